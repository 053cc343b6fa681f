"""What is sampled: a log density, constraints, and the measure meant by "given the constraint"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from ogradient.precision import full_precision
from ogradient.problem.data import Data
from ogradient.problem.functions import Position, as_functions, calling, checked, dtype_of, same_key, stack
from ogradient.problem.support import Coordinates, in_free_coordinates

Measure = Literal["conditional", "hausdorff"]
KINDS = ("equality", "inequality")


@dataclass(frozen=True, eq=False)
class Problem:
    """A density restricted to g(x) = 0 (and h(x) ≤ 0).

    Args:
        logdensity_fn: log π of one position (any pytree of float arrays), a scalar, up to a constant.
        equality: g, wanted 0: a function of one position that returns a scalar or an array, or a list of such functions.
        inequality: h, wanted ≤ 0, in the same form.
        measure: which law on the set {g = 0} is meant, with J the Jacobian of g.
            `"conditional"`: π/√det(J Jᵀ) against surface area. This is p(x | g(x) = 0) of Bayes' rule.
            `"hausdorff"`: π itself against surface area.
        support: where variables lie, by name: `{"tau": og.positive, "w": og.simplex, "p": og.interval(0, 1), "L":
            og.cholesky_corr}`, or one of these for a position that is a bare array. Functions are written in these coordinates;
            samplers move in free ones, with the Jacobian of the change in their density.

    >>> import jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> float(problem.equality_value(jnp.array([1.0, 1.0]))[0])
    2.0
    """

    logdensity_fn: Callable[[Position], Any] | None
    equality: Callable | Sequence[Callable] | None = None
    inequality: Callable | Sequence[Callable] | None = None
    measure: Measure = "conditional"
    support: Any = None
    data: Data | None = field(default=None, repr=False)  # of og.posterior: then functions take a batch as well

    def __post_init__(self) -> None:
        if not callable(self.logdensity_fn) and self.data is None:
            raise ValueError(
                f"logdensity_fn must be a function of a position; got {type(self.logdensity_fn).__name__}."
            )
        if self.measure not in get_args(Measure):
            raise ValueError(f"measure must be 'conditional' or 'hausdorff'; got {self.measure!r}.")
        if self.support is not None:
            object.__setattr__(self, "support", Coordinates.of(self.support))
            if self.measure == "hausdorff":
                raise ValueError(
                    "measure='hausdorff' is a density against surface area, which depends on the coordinates, and support= "
                    "changes those: use measure='conditional', or write the bounds as inequality=..."
                )
        for kind in KINDS:
            functions = as_functions(kind, getattr(self, kind))
            object.__setattr__(self, kind, getattr(self, kind) if functions else None)  # an empty list is none

    def __repr__(self) -> str:
        kinds = [kind for kind in ("equality", "inequality") if getattr(self, kind) is not None]
        what = "Problem" if self.data is None else f"posterior over {self.data}"
        return f"<{what} with {' and '.join(kinds) or 'no constraint'}, {self.measure} measure>"

    @property
    def stochastic(self) -> bool:
        """Whether a step sees a random part of the data, rather than all of them."""
        return self.data is not None and self.data.model.stochastic

    @property
    def noisy_constraint(self) -> bool:
        """Whether steps see different constraints."""
        return self.data is not None and self.data.model.noisy_constraint

    @property
    def batch_fn(self) -> Callable[[int], Any] | None:
        """The user's batch_fn, where the data come from one."""
        return None if self.data is None else self.data.model.batch_fn

    def view(self, key: Array | None) -> Problem:
        """The problem as one step sees it: with the batch that the step's key draws. Without batches, itself."""
        return replace(self, data=self.data.seen_by(key)) if self.data is not None and self.stochastic else self

    @property
    def whole(self) -> bool:
        """Whether the functions here are of all the data; not where those come batch by batch."""
        return self.batch_fn is None or (self.data is not None and self.data.model.fed)

    def check_whole(self) -> None:
        """Refuse, with the remedy, data that come batch by batch: no call has all of them to judge by."""
        if not self.whole:
            raise ValueError(
                "the data come batch by batch, and no call has all of them: pass og.with_batch(problem, rows), with the rows to "
                "judge by."
            )

    @property
    def functions(self) -> dict[str, Any]:
        """The functions that the user gave, by the names of their arguments."""
        named: dict[str, Any] = {kind: getattr(self, kind) for kind in KINDS}
        if self.data is None:
            named["logdensity_fn"] = self.logdensity_fn
        else:
            model = self.data.model
            named = {name: getattr(model, name) for name in ("logprior_fn", "loglikelihood_fn", "joint_fn", "augment")}
            named |= {"equality": model.equalities, "inequality": model.inequalities}
        return {
            name: value
            for name, value in named.items()
            if value is not None and not (isinstance(value, tuple) and not value)
        }

    @cached_property
    def free(self) -> Problem:
        """The problem in the free coordinates that samplers move in; itself where no support was given."""
        if self.support is None:
            return self
        move = partial(in_free_coordinates, coordinates=self.support)
        data = self.data
        if data is not None:
            model = data.model
            parts = {
                name: move(getattr(model, name))
                for name in ("loglikelihood_fn", "joint_fn", "equalities", "inequalities")
            }
            data = replace(data, model=replace(model, logprior_fn=move(model.logprior_fn, density=True), **parts))
        constraints = {kind: move(getattr(self, kind)) for kind in KINDS}
        logdensity = move(self.logdensity_fn, density=True)
        return replace(self, logdensity_fn=logdensity, **constraints, support=None, data=data)

    @property
    def constrained(self) -> bool:
        """Whether any equality or inequality was given."""
        return self.equality is not None or self.inequality is not None

    def logdensity(self, position: Position) -> Array:
        """Log π at one position, as a scalar of the position's dtype."""
        logdensity: Any = self.logdensity_fn if self.data is None else self.data.logdensity
        with full_precision():
            return jnp.asarray(logdensity(position), dtype_of(position))

    def equality_value(self, position: Position) -> Array:
        """All equality functions at one position, flattened to shape (m,)."""
        return self._values("equality", position)

    def inequality_value(self, position: Position) -> Array:
        """All inequality functions at one position, flattened to shape (p,)."""
        return self._values("inequality", position)

    def constraint_value(self, position: Position) -> dict[str, Array]:
        """`{"equality": (m,), "inequality": (p,)}` at one position; a kind that was not given is left out."""
        return {kind: self._values(kind, position) for kind in KINDS if getattr(self, kind) is not None}

    def _values(self, kind: str, position: Position) -> Array:
        with full_precision():
            if self.data is not None:
                return self.data.constraint(kind, position)
            return stack([function(position) for function in as_functions(kind, getattr(self, kind))], position)

    def flatten(self, position: Position) -> tuple[Array, Callable[[Array], Array], Callable[[Array], Array], Callable]:
        """The problem in flat coordinates: x of shape (d,), log density and g as functions of x, and the way back."""
        x, unravel = ravel_pytree(position)
        return x, lambda x: self.logdensity(unravel(x)), lambda x: self.equality_value(unravel(x)), unravel

    def check(self, position: Position) -> None:
        """Check shapes and dtypes of one position and of what the functions return there, without computing.

        An exception raised inside a user's function passes through with the user's own traceback, and a note of the shapes.
        """
        leaves = jax.tree.leaves(position)
        if not leaves or sum(jnp.size(leaf) for leaf in leaves) == 0:
            raise ValueError("the position is empty; give at least one float array with at least one element.")
        for leaf in leaves:
            dtype = jnp.result_type(leaf)
            if not jnp.issubdtype(dtype, jnp.floating):
                raise ValueError(
                    f"positions must be real floating-point arrays; got a leaf of dtype {dtype}. "
                    "Convert it, for instance with jnp.asarray(x, float)."
                )
            if jnp.finfo(dtype).bits < 32:
                raise ValueError(
                    f"positions need at least 32 bits; got a leaf of dtype {dtype}, in which small moves would be rounded away. "
                    "Keep the position in float32 and cast inside your functions."
                )
        if self.data is not None:
            self.data.check(position)
        else:
            self._check_functions(position)
        dim, rows = sum(jnp.size(leaf) for leaf in leaves), jax.eval_shape(self.equality_value, position).shape[0]
        if rows > dim:
            raise ValueError(
                f"equality returns {rows} values but the position has only {dim} coordinates, "
                "so they cannot all be independent. Drop the redundant ones; average those of single rows of data (jnp.mean)."
            )

    def _check_functions(self, position: Position) -> None:
        logdensity: Any = self.logdensity_fn
        with calling("logdensity_fn", position):
            jax.eval_shape(lambda p: checked("logdensity_fn", logdensity(p), scalar=True), position)
        for kind in KINDS:
            functions = as_functions(kind, getattr(self, kind))
            for index, function in enumerate(functions):
                name = kind if len(functions) == 1 else f"{kind}[{index}]"
                with calling(name, position):
                    jax.eval_shape(lambda p, f=function, n=name: checked(n, f(p), scalar=False), position)


_STATIC = ("logdensity_fn", "equality", "inequality", "measure", "support")


class _Static:
    """The functions and the measure of a problem: equal where those are, so that compiled programs are found again."""

    def __init__(self, problem: Problem) -> None:
        self.functions = tuple(getattr(problem, name) for name in _STATIC)
        as_tuple = lambda given: tuple(given) if isinstance(given, list) else given
        self.key = same_key(*(as_tuple(part) for part in self.functions))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def problem(self, data: Data | None) -> Problem:
        problem = object.__new__(Problem)  # checked when it was made
        for name, value in zip((*_STATIC, "data"), (*self.functions, data), strict=True):
            object.__setattr__(problem, name, value)
        return problem


# Compiled functions take a problem as an argument: its data then are arrays like any others, and not written into the program.
jax.tree_util.register_pytree_node(
    Problem,
    lambda problem: ((problem.data,), _Static(problem)),
    lambda static, children: static.problem(children[0]),
)
