"""What all samplers share: the contract, step-size schedules, and refusing a non-finite proposal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.precision import full_precision
from ogradient.problem import Problem
from ogradient.problem.functions import Position, hashable
from ogradient.status import Status
from ogradient.stein import RKHSKernel

Schedule = Callable[[Array], Any]  # iteration -> step size; every optax schedule is one


Obeys = Literal["exact", "near", "mean", "no", "unknown"]


class Kernel(Protocol):
    """What a sampler is: a frozen object of its static settings, equal to another where those are equal.

    Compiled programs are found again by it. What may change without compiling again is in `parameters`, a dict of numbers and
    arrays: the step size, the inverse mass, and so on.
    """

    @property
    def name(self) -> str:
        """As in `SAMPLERS`."""

    @property
    def ensemble(self) -> bool:
        """Whether a position is a whole ensemble, with the particles as its first axis."""

    @property
    def obeys(self) -> Obeys:
        """How draws obey the constraint: exactly, nearly, on average over the particles, or not at all."""

    @property
    def steered(self) -> bool:
        """Whether the info of a step has `steering`: how well the step size fits, for warm-up to follow."""

    def init(self, position: Position) -> Any:
        """The state of a chain, or of an ensemble, at a position."""

    def step(self, rng_key: Array, state: Any, problem: Problem, parameters: dict[str, Any]) -> tuple[Any, Any]:
        """One transition: the new state, and what a person wants to know about it."""


class SamplingAlgorithm(NamedTuple):
    """A sampler as two pure functions, BlackJAX's contract.

    `state = init(position, rng_key=None)` and `state, info = step(rng_key, state)`, for one chain. Neither is jitted,
    so they can be composed with `jax.jit`, `jax.vmap` and `lax.scan` at will. Those of this library are a kernel with its
    problem and parameters, which `algorithm.step` keeps.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class BoundStep:
    """The step of a kernel for one problem, with its parameters; `settings` are what the user gave."""

    kernel: Kernel
    problem: Problem
    parameters: dict[str, Any]
    settings: dict[str, Any]

    def __call__(self, rng_key: Array | None, state: Any) -> tuple[Any, Any]:
        """One transition."""
        with full_precision():
            return self.kernel.step(rng_key, state, self.problem, self.parameters)  # type: ignore[arg-type]

    def init(self, position: Position, rng_key: Array | None = None) -> Any:
        """The state at a position."""
        del rng_key  # part of the contract; no sampler here starts at random
        return self.kernel.init(position)


@dataclass(frozen=True)
class ForeignKernel:
    """An algorithm from elsewhere, of which nothing is known but its two functions."""

    init_fn: Callable[..., Any]
    step_fn: Callable[..., Any]
    ensemble: ClassVar[bool] = False
    obeys: ClassVar[Obeys] = "unknown"
    steered: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """That of the step function."""
        return getattr(self.step_fn, "__name__", "unknown")

    def init(self, position: Position) -> Any:
        """As the algorithm has it."""
        return self.init_fn(position)

    def step(self, rng_key: Array, state: Any, problem: Problem, parameters: dict[str, Any]) -> tuple[Any, Any]:
        """As the algorithm has it; problem and parameters are inside."""
        del problem, parameters
        return self.step_fn(rng_key, state)


@dataclass(frozen=True)
class Sampler:
    """A row of the table of samplers: `make(problem, step_size, ...)`, its kernel, and a step size for problems of size 1."""

    make: Callable[..., SamplingAlgorithm]
    kernel: Any
    step_size: float

    def __call__(self, problem: Problem, *arguments: Any, **settings: Any) -> SamplingAlgorithm:
        """The algorithm for a problem."""
        return self.make(problem, *arguments, **settings)

    @property
    def help(self) -> str:
        """One line on what it is."""
        return (self.make.__doc__ or "").strip().splitlines()[0]

    @property
    def ensemble(self) -> bool:
        """Whether a position is a whole ensemble."""
        return self.kernel.ensemble

    @property
    def obeys(self) -> Obeys:
        """How draws obey the constraint."""
        return self.kernel.obeys


def make_algorithm(
    kernel: Kernel, problem: Problem, parameters: dict[str, Any], settings: dict[str, Any]
) -> SamplingAlgorithm:
    """A kernel behind BlackJAX's contract. It moves in free coordinates where the problem has supports."""
    step = BoundStep(kernel, problem.free, parameters, settings)
    return SamplingAlgorithm(step.init, step)


def kernel_of(algorithm: Any) -> Kernel:
    """The kernel of an algorithm, of this library or from elsewhere."""
    step = algorithm.step
    return step.kernel if isinstance(step, BoundStep) else ForeignKernel(algorithm.init, step)


def parameters_of(algorithm: Any) -> dict[str, Any]:
    """What may change without compiling again; nothing where the algorithm is from elsewhere."""
    return dict(algorithm.step.parameters) if isinstance(algorithm.step, BoundStep) else {}


def settings_of(algorithm: Any) -> dict[str, Any]:
    """What the user gave; nothing where the algorithm is from elsewhere."""
    return dict(algorithm.step.settings) if isinstance(algorithm.step, BoundStep) else {}


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

    return {key: plain(value) for key, value in settings_of(algorithm).items()}


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


def split_step_size(step_size: float | Schedule) -> tuple[Schedule | None, dict[str, Any]]:
    """A schedule is part of the kernel, and a number one of its parameters; refuses what cannot be a step size."""
    if callable(step_size):
        return hashable(step_size), {}
    check_positive("step_size", step_size)
    return None, {"step_size": step_size}


def step_size_at(schedule: Schedule | None, parameters: dict[str, Any], iteration: Array, dtype: Any) -> Array:
    """The step size of an iteration."""
    return jnp.asarray(parameters["step_size"] if schedule is None else schedule(iteration), dtype)


@dataclass(frozen=True)
class PowerDecay:
    """The schedule of `power_decay`: a value, equal to another of the same numbers."""

    initial: float
    exponent: float

    def __call__(self, iteration: Any) -> Any:
        """The step size at one iteration, or at many."""
        if isinstance(iteration, jax.Array):
            t: Any = iteration.astype(float)
        else:
            t = np.asarray(iteration, float) if np.ndim(iteration) else float(iteration)
        return self.initial * (1.0 + t) ** -self.exponent


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

    return PowerDecay(initial, exponent)


def check_positive(name: str, value: Any) -> None:
    """Refuse anything but one finite, positive number. A traced value passes: it cannot be looked at."""
    try:
        ok = bool(jnp.ndim(value) == 0) and math.isfinite(value) and value > 0
    except (TypeError, ValueError):
        ok = "Tracer" in type(value).__name__
    if not ok:
        raise ValueError(f"{name} must be one finite, positive number; got {value!r}.")


def check_temperature(problem: Problem, temperature: Any) -> None:
    """Refuse what is no temperature, and one other than 1 where the Jacobian of a support would be tempered with log π."""
    check_positive("temperature", temperature)
    if problem.support is not None and "Tracer" not in type(temperature).__name__ and temperature != 1:
        raise ValueError(
            f"temperature={temperature!r} with support= would temper the Jacobian of the change of coordinates too, another law: "
            "divide the log density by the temperature, or write the bounds as inequality=..."
        )


def keep_finite(new: Any, old: Any, logdensity: Array, status: Array | int = Status.OK) -> tuple[Any, Array]:
    """The new position where all of it is finite, else the old one; and the status, NON_FINITE in that case.

    `logdensity` is log π at the old position, or at those of all particles: where it is not finite the chain has left the
    support, however finite its gradient may be, and must not wander on unnoticed. Particles reach each other, so all of them
    move, or none.
    """
    finite = jnp.all(jnp.isfinite(logdensity))
    for leaf in jax.tree.leaves(new):
        finite = finite & jnp.all(jnp.isfinite(leaf))
    kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
    return kept, jnp.where(finite, status, Status.NON_FINITE).astype(jnp.int32)
