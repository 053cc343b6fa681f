"""What all samplers share: the contract, step-size schedules, and refusing a non-finite proposal."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem import Position, Problem
from ogradient.status import Status
from ogradient.stein import RKHSKernel

Schedule = Callable[[Array], Any]  # iteration -> step size; every optax schedule is one


class SamplingAlgorithm(NamedTuple):
    """A sampler as two pure functions, BlackJAX's contract.

    `state = init(position, rng_key=None)` and `state, info = step(rng_key, state)`, for one chain. Neither is jitted,
    so they can be composed with `jax.jit`, `jax.vmap` and `lax.scan` at will.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]


class ChainState(NamedTuple):
    """Where a chain is, and how many steps it made (schedules look at that)."""

    position: Position
    iteration: Array


class ChainInfo(NamedTuple):
    """Constraint values at the new position, and how the step ended."""

    constraint_value: dict[str, Array]
    status: Array


def init(position: Position) -> ChainState:
    """Start a chain at a position, on the constraint set or off it."""
    return ChainState(position, jnp.zeros((), jnp.int32))


def make_algorithm(
    name: str,
    problem: Problem,
    init: Callable,
    build_kernel: Callable[..., Callable],
    *,
    ensemble: bool = False,
    exact: bool = False,
    **settings: Any,
) -> SamplingAlgorithm:
    """Bundle a sampler; what it is and what it was built for stand on the step function, for checks and provenance."""
    build = partial(build_kernel, **settings)
    step = build(problem)

    def named_init(position: Any, rng_key: Array | None = None) -> Any:
        del rng_key  # part of the contract; no sampler here starts at random
        return init(position)

    step.__name__ = name
    about = {"problem": problem, "settings": settings, "ensemble": ensemble, "exact": exact, "build": build}
    for attribute, value in about.items():
        setattr(step, attribute, value)
    return SamplingAlgorithm(named_init, step)


def step_for(step: Callable, problem: Problem) -> Callable:
    """The same step for the same problem with other arrays as its data; a foreign step as it is."""
    build = getattr(step, "build", None)
    return step if build is None or problem.source is None else build(problem)


def describe(algorithm: Any) -> tuple[str, dict[str, Any]]:
    """Name and settings of an algorithm; a foreign one has the name of its step function and no settings."""
    return getattr(algorithm.step, "__name__", "unknown"), dict(getattr(algorithm.step, "settings", {}))


def plain_settings(algorithm: Any) -> dict[str, Any]:
    """The settings as they are written into a trace: numbers and words as they are, kernels by name, functions by deeds.

    A pytree of arrays (an inverse mass by variable) is written as its numbers in a row, which is all that a sampler takes of
    it. So two settings are the same here where the samplers are.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, str | int | float | None):
            return value
        if isinstance(value, RKHSKernel):
            return repr(value)
        if callable(value):  # a schedule: by what it says at a few iterations
            return "schedule " + ", ".join(f"{float(value(jnp.int32(t))):.6g}" for t in (0, 10, 100, 1000, 10_000))
        if callable(getattr(value, "update", None)) and callable(getattr(value, "init", None)):
            return f"{type(value).__name__} {_moves(value)}"
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return _numbers(value).tolist()
        return np.concatenate([np.ravel(_numbers(leaf)) for leaf in jax.tree.leaves(value)]).tolist()

    return {key: plain(value) for key, value in describe(algorithm)[1].items()}


def _numbers(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _moves(optimizer: Any) -> str:
    """An optimiser by what it does: its first updates of two numbers."""
    parameters, moves = jnp.array([1.0, -2.0]), []
    try:
        state = optimizer.init(parameters)
        for gradient in ([1.0, 0.5], [-0.25, 3.0], [0.1, 0.2]):
            update, state = optimizer.update(jnp.array(gradient), state, parameters)
            moves += [f"{move:.6g}" for move in np.asarray(update, np.float64).tolist()]
    except Exception:  # one that is made for another structure of parameters
        return "of its own"
    return ", ".join(moves)


def is_ensemble(step: Callable) -> bool:
    """Whether the position that a step moves is a whole ensemble, with the particles as its first axis."""
    return bool(getattr(step, "ensemble", False))


def is_exact(step: Callable) -> bool:
    """Whether a step needs its position on the constraint set, and keeps it there."""
    return bool(getattr(step, "exact", False))


def as_schedule(step_size: float | Schedule) -> Schedule:
    """A number or a schedule, as a schedule; refuses what cannot be a step size."""
    if callable(step_size):
        return step_size
    check_positive("step_size", step_size)
    return lambda iteration: step_size


def power_decay(initial: float, exponent: float = 0.55) -> Schedule:
    """The schedule η_t = η₀ (1 + t)^−exponent; 0.55 is that of the paper's code.

    Σ η_t = ∞ and Σ η_t² < ∞ for exponents in (½, 1], under which the bias of minibatches and of the step size goes to 0.

    >>> import jax.numpy as jnp, numpy as np, ogradient as og
    >>> schedule = og.power_decay(1e-5)
    >>> float(schedule(0)), round(float(schedule(99) / schedule(0)), 4)      # 100^−0.55
    (1e-05, 0.0794)
    >>> iterations = np.arange(100)                                          # of many iterations at once, to plot it
    >>> bool(schedule(iterations)[99] == schedule(99)), np.allclose(schedule(iterations), schedule(jnp.asarray(iterations)))
    (True, True)
    """
    check_positive("initial", initial)
    if not 0 <= exponent <= 1:
        raise ValueError(f"exponent must lie in [0, 1], or the chain stops short of its law; got {exponent!r}.")

    def schedule(iteration: Any) -> Any:
        if isinstance(iteration, jax.Array):
            t: Any = iteration.astype(float)
        else:
            t = np.asarray(iteration, float) if np.ndim(iteration) else float(iteration)
        return initial * (1.0 + t) ** -exponent

    return schedule


def check_positive(name: str, value: Any) -> None:
    """Refuse anything but one finite, positive number. A traced value passes: it cannot be looked at."""
    try:
        ok = bool(jnp.ndim(value) == 0) and math.isfinite(value) and value > 0
    except (TypeError, ValueError):
        ok = "Tracer" in type(value).__name__
    if not ok:
        raise ValueError(f"{name} must be one finite, positive number; got {value!r}.")


def keep_finite(proposal: Array, current: Array, logdensity: Array) -> tuple[Array, Array]:
    """The proposal if all of it is finite, else the current position; and the status that says so.

    `logdensity` is log π at the current position: where it is not finite the chain has left the support, however finite its
    gradient may be, and must not wander on unnoticed.
    """
    finite = jnp.all(jnp.isfinite(proposal)) & jnp.isfinite(logdensity)
    return jnp.where(finite, proposal, current), jnp.where(finite, Status.OK, Status.NON_FINITE).astype(jnp.int32)
