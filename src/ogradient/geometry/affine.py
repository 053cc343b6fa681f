"""Whether a function is affine, Ax + b, read off the operations that it is made of.

On flat sets between flat walls much of an exact step is known beforehand: volumes do not change, paths are straight, and every
move runs back as it came. A function is called affine only if each operation on x is known to be: none is by mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# Linear in all their inputs together.
LINEAR = {
    "add",
    "add_any",
    "broadcast_in_dim",
    "concatenate",
    "copy",
    "cumsum",
    "expand_dims",
    "neg",
    "reduce_sum",
    "reshape",
    "rev",
    "slice",
    "split",
    "squeeze",
    "stack",
    "sub",
    "transpose",
    "unstack",
}
# Linear in one input where the others do not depend on x.
LINEAR_IN_FIRST = {"convert_element_type", "div", "dynamic_slice", "gather"}
LINEAR_IN_ONE = {"conv_general_dilated", "dot_general", "dynamic_update_slice", "mul", "pad", "scatter", "scatter-add"}
LINEAR_IN_ALL_BUT_FIRST = {"select_n"}
CALLS = {
    "pjit",
    "jit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
}


def is_affine(function: Callable[[Array], Array], x: Any) -> bool:
    """Whether x ↦ function(x) is Ax + b, for an x of this shape and dtype. A no may be a yes not recognised."""
    closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)))
    return _follow(closed.jaxpr, [True]) is not None


def _follow(jaxpr: Any, depends: list[bool]) -> list[bool] | None:
    """Which outputs depend on those inputs that do; None where one of them may not be affine."""
    known = dict(zip(jaxpr.invars, depends, strict=True))
    ask = lambda atom: not hasattr(atom, "val") and known.get(atom, False)
    for equation in jaxpr.eqns:
        inputs = [ask(atom) for atom in equation.invars]
        outputs: list[bool] | None = [any(inputs)] * len(equation.outvars)
        if any(inputs):
            outputs = _of_equation(equation, inputs, outputs)
        if outputs is None:
            return None
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return [ask(atom) for atom in jaxpr.outvars]


def _of_equation(equation: Any, inputs: list[bool], all_outputs: list[bool] | None) -> list[bool] | None:
    """Like `_follow`, of one operation with an input that depends on x."""
    name = equation.primitive.name
    if name in CALLS:
        inner = next((equation.params[key] for key in ("jaxpr", "call_jaxpr") if key in equation.params), None)
        inner = getattr(inner, "jaxpr", inner)
        return None if inner is None or len(inner.invars) != len(inputs) else _follow(inner, inputs)
    if not all(jnp.issubdtype(out.aval.dtype, jnp.floating) for out in equation.outvars):
        return None
    affine = (
        name in LINEAR
        or (name in LINEAR_IN_FIRST and not any(inputs[1:]))
        or (name in LINEAR_IN_ALL_BUT_FIRST and not inputs[0])
        or (name in LINEAR_IN_ONE and sum(inputs) == 1)
    )
    return all_outputs if affine else None
