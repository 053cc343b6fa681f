"""Warm-up: choosing a step size from what the problem does to a step, not from its scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.geometry import frame_at, landing, project, row_lengths
from ogradient.land import FIXED, land, units_of
from ogradient.problem import Position, Problem
from ogradient.samplers.chmc import build_kernel as build_chmc
from ogradient.samplers.chmc import init as init_chmc
from ogradient.samplers.o_langevin import build_kernel, init
from ogradient.status import warn
from ogradient.stein import over_particles

TRIAL_STEPS = 50
REFLECTED = (
    0.1  # the largest share of steps that a boundary may turn back: it grows like √η, and the error like its square
)
LINEAR = 0.1  # how far a step may bend away from the set, relative to its length
WINDOWS = 20  # of trial steps in a row that must be good, so that the chains see more than their start
AGAIN = 16.0  # times the step size of the first search, where the second begins
LARGEST, SMALLEST = (
    2.0**10,
    2.0**-30,
)  # step sizes of O-Langevin that are tried, in squares of the positions' own length
WINDOW = 100  # transitions of one stage of the warm-up of chmc
STUCK = 1e-3  # a chain that accepts less than this does not move at the common step size
SHORTER = (0.5, 0.25, 0.125)  # times the step size, tried where a chain does not move
REFUSALS = 8  # in a row, after which a chain in warm-up halves its own step
UNEQUAL = (
    100.0  # times the spread of the starts in another coordinate: then units differ, and the first metric follows them
)
FARTHEST = 16.0  # log of how much one stage may change the step size
BEGINNINGS = (1.0, 30.0, 1000.0, 1 / 30)  # times the first step size, tried in turn until chains move
MOVING = 0.4  # acceptance from which they do
LEAST_MOVE = 0.05  # of a step: what is nearer to where it began has not moved
TRAJECTORIES = (1, 2, 4, 8, 16)  # steps per transition that are tried


class OLangevinTuning(NamedTuple):
    """What the warm-up of `o_langevin` found: η, and the mean |g| of its draws, of the worst row."""

    step_size: float
    mean_violation: float


def tune_o_langevin(
    key: Array, problem: Problem, positions: Position, *, tolerance: float | None = None
) -> OLangevinTuning:
    """The largest power of two for which an O-Langevin step of every chain is nearly linear and mean |g| ≤ tolerance.

    Two numbers of a trial, both free of units, are held small: how far from the set a step ends, relative to its length
    (‖J⁺g(x')‖/‖x'−x‖ ≤ 1/10, which sees the curvature of the constraint: a sphere's radius is then off by 2 %), and how much
    the drift along the set changes over a step, relative to its length (η‖D's'−D s‖/‖x'−x‖ ≈ ηL ≤ 1/20, which sees that of
    log π; a Gaussian's variance is then off by 2.5 %). With inequalities, at most one step in ten is turned back at a
    boundary (a Gaussian cut at its standard deviation then has its mean off by 2 % of that). In the user's units, the
    mean |g_k| of every row of g is held at or below `tolerance` where one is given: |g| is O(η), and smallest for its η with
    α = 1/η and β = 0, a Newton step per iteration, which is what is run.
    Starts at the square of the positions' own length, doubles or halves, and then follows the chains for a while, halving again
    where the set bends more. Where they started things may bend more than where they belong: so it begins once more from where
    they are then, at 16 times that.
    One compilation, about seventy trials of 50 steps.
    """

    def trial(problem: Problem, key: Array, position: Position, eta: Array) -> tuple[Position, tuple[Array, ...]]:
        step = build_kernel(problem, lambda _: eta)

        def body(carry: tuple[Position, Array], key: Array) -> tuple[tuple[Position, Array], tuple[Array, ...]]:
            position, drift = carry
            previous = problem.flatten(position)[0]
            state, info = step(key, init(position))
            x, _, constraint, _ = problem.flatten(state.position)
            frame = frame_at(constraint, x)
            new_drift = _tangent_drift(problem, state.position)
            change = eta * (new_drift - drift)
            squares = (jnp.sum((v / length) ** 2) for v in (landing(frame, alpha=1.0), change, x - previous))
            reflected = jnp.zeros((), bool) if info.reflected is None else info.reflected
            return (state.position, new_drift), (*squares, jnp.abs(frame.value), reflected)

        start = (position, _tangent_drift(problem, position))
        (position, _), seen = lax.scan(body, start, jax.random.split(key, TRIAL_STEPS))
        return position, seen

    current = land(problem, positions).position
    length = 2.0 ** round(math.log2(_first_length(problem, current)))
    largest, smallest = LARGEST * length**2, SMALLEST * length**2
    num_chains = jax.tree.leaves(positions)[0].shape[0]

    @jax.jit
    def window(problem: Problem, key: Array, positions: Position, eta: Array) -> tuple[Position, Array, Array]:
        keys = jax.random.split(key, num_chains)
        chains = jax.vmap(partial(trial, problem), (0, 0, None))
        positions, (residual, change, moved, value, reflected) = chains(keys, positions, eta)
        bend = jnp.sqrt(jnp.maximum(jnp.sum(residual), 4 * jnp.sum(change)) / jnp.sum(moved))
        bend = jnp.maximum(bend, LINEAR / REFLECTED * jnp.mean(reflected, dtype=bend.dtype))
        return positions, bend, jnp.max(jnp.mean(value, axis=(0, 1)), initial=0.0)

    dtype = jnp.result_type(*jax.tree.leaves(positions))
    limit = float("inf") if tolerance is None else tolerance

    def attempt(number: int, positions: Position, eta: float) -> tuple[Position, bool, float]:
        positions, bend, off = window(problem, jax.random.fold_in(key, number), positions, jnp.asarray(eta, dtype))
        return positions, bool(bend <= LINEAR) and float(off) <= limit, float(off)  # NaN compares false

    eta, number = length**2, 1
    while eta < largest and attempt(number, current, 2 * eta)[1]:
        eta *= 2
    for again in (1, AGAIN):
        eta, violations = min(again * eta, largest), list[float]()
        while eta > smallest and len(violations) < WINDOWS:
            number += 1
            proposal, fine, off = attempt(number, current, eta)
            current, violations, eta = (proposal, [*violations, off], eta) if fine else (current, [], eta / 2)
    if eta > smallest:
        return OLangevinTuning(eta, sum(violations) / len(violations))
    warn(
        f"no step size down to {smallest:.1e} keeps a step near the constraint set"
        + ("" if tolerance is None else f" and mean |g| at {tolerance:.3g}")
        + "; the smallest is used. The constraint may be unattainable or have a vanishing gradient, the log density may be "
        "unbounded, or the tolerance may be finer than this precision."
    )
    return OLangevinTuning(eta, attempt(number + 1, current, eta)[2])


def _tangent_drift(problem: Problem, position: Position) -> Array:
    x, logdensity, constraint, _ = problem.flatten(position)
    return project(frame_at(constraint, x), jax.grad(logdensity)(x))


class CHMCTuning(NamedTuple):
    """What the warm-up of `chmc` found, and where its chains ended."""

    step_size: float
    num_integration_steps: int
    inverse_mass: Array
    boundary_step: float | None
    acceptance_rate: float
    positions: Position
    stuck: np.ndarray  # which chains do not move with these settings


def tune_chmc(
    key: Array,
    problem: Problem,
    positions: Position,
    *,
    target: float | None = None,
    trajectories: Sequence[int] = TRAJECTORIES,
) -> CHMCTuning:
    """Step size, trajectory length and diagonal metric for `chmc`, from all chains together.

    The step size follows the pooled acceptance rate by dual averaging (Hoffman and Gelman 2014, section 3.2) to `target`. The
    inverse mass is the pooled variance of each coordinate. A chain that is stuck where the common step is too long (beside a
    boundary, far in a tail) gets away by shorter steps of its own. It is never moved to another place: that may be another
    part of the set. Chains that do not move with the final settings are named.
    The number of steps is the one with the largest efficiency, (1 − ρ)/(1 + ρ) for the worst correlation ρ of successive draws
    over all coordinates and their squares, per root of the cost (draws are what users count, gradients what they wait for). The
    squares see what coordinates alone cannot: trajectories of half a period, which end opposite where they began for ever.
    With inequalities a single step is tuned as well: where it comes out much shorter, the law has a layer along a boundary that
    thin, and it becomes the `boundary_step`. One compilation, or two.

    Args:
        key: random key.
        problem: with equality constraints.
        positions: of all chains, on the set.
        target: acceptance rate aimed at; None is 0.8, or 0.65 with inequalities, where refused moves may have ended outside and
            only shorter ones would not.
        trajectories: numbers of steps per transition to choose from.
    """
    if target is None:
        target = 0.8 if problem.inequality is None else 0.65
    num_chains = jax.tree.leaves(positions)[0].shape[0]
    first = jax.tree.map(lambda leaf: leaf[0], positions)
    x, _, _, _ = problem.flatten(first)
    flat_one = lambda position: problem.flatten(position)[0]
    flat = jax.vmap(flat_one)

    @partial(jax.jit, static_argnums=6)
    def window(
        problem: Problem,
        key: Array,
        positions: Position,
        step_size: Array,
        num_steps: Array,
        inverse_mass: Array,
        length: int,
        adapt: Array,
        boundary_step: Array | None,
    ) -> tuple[Position, Array, Array, Array, Array]:
        """Run; return positions, the averaged step size, acceptance by chain, variances and efficiency, over the second half."""

        def one(key: Array, position: Position, epsilon: Array) -> tuple[Position, Array]:
            settings: dict[str, Any] = {"inverse_mass": inverse_mass, "boundary_step": boundary_step}
            step = build_chmc(problem, lambda _: epsilon, num_steps, **settings)
            state, info = step(key, init_chmc(position))
            if problem.inequality is None:
                return state.position, info.acceptance_rate
            # Bouncing off two walls, or one, may lead back to where a trajectory began, however long its steps: no move.
            change = (flat_one(state.position) - flat_one(position)) / jnp.sqrt(inverse_mass)
            moved = jnp.sum(change**2) > x.size * (LEAST_MOVE * epsilon) ** 2
            return state.position, (info.is_accepted & moved).astype(x.dtype)

        def body(carry: Any, key: Array) -> tuple[Any, tuple[Array, Array]]:
            positions, refused, log_step, average, error, t = carry
            keys = jax.random.split(key, num_chains)
            halvings = jnp.where(adapt, refused // REFUSALS, 0)
            own = jnp.exp(log_step) * 0.5 ** halvings.astype(x.dtype)
            positions, rates = jax.vmap(one)(keys, positions, own)
            # A move by a shorter step says nothing for the common one.
            refused = jnp.clip(jnp.where(rates > 0.1, refused - REFUSALS // 2, refused + 1), 0, 20 * REFUSALS)
            rates = jnp.where(halvings > 0, 0.0, rates)
            # Dual averaging with the usual constants: γ = 0.05, t₀ = 10, κ = 0.75, shrunk to ten times the start.
            error = error + (target - jnp.mean(rates) - error) / (t + 10)
            proposal = jnp.log(10 * step_size) - jnp.clip(jnp.sqrt(t) / 0.05 * error, -FARTHEST, FARTHEST)
            weight = t**-0.75
            average = jnp.where(adapt, weight * proposal + (1 - weight) * average, average)
            log_step = jnp.where(adapt, proposal, log_step)
            return (positions, refused, log_step, average, error, t + 1), (rates, flat(positions))

        zero, log_step = jnp.zeros((), x.dtype), jnp.log(step_size)
        start = (positions, jnp.zeros(num_chains, jnp.int32), log_step, log_step, zero, zero + 1)
        (positions, _, _, average, _, _), (rates, draws) = lax.scan(body, start, jax.random.split(key, length))
        late, rates = draws[length // 2 :].reshape(-1, x.size), jnp.mean(rates[length // 2 :], axis=0)
        root = jnp.sqrt(inverse_mass)
        variance = jnp.var(late / root[None], axis=0) * inverse_mass  # in this order squares stay within range
        return positions, jnp.exp(average), rates, variance, _efficiency(draws / root[None, None])

    short = None

    def run(number: int, positions: Position, epsilon: Any, steps: int, mass: Array, *, adapt: bool) -> tuple[Any, ...]:
        scalars = (jnp.asarray(epsilon, x.dtype), jnp.int32(steps), mass)
        return window(problem, jax.random.fold_in(key, number), positions, *scalars, WINDOW, jnp.asarray(adapt), short)

    first_mass, epsilon = _first_metric(problem, positions)
    # A step can be too short as well as too long: below the roundings of g no move is told from the next.
    begun = []
    for number, times in enumerate(BEGINNINGS):
        begun.append(run(40 + number, positions, times * epsilon, 3, first_mass, adapt=True))
        if float(jnp.mean(begun[-1][2])) > MOVING:
            break
    positions, epsilon, *_ = max(begun, key=lambda stage: float(jnp.mean(stage[2])))
    positions, epsilon, _, variance, _ = run(1, positions, epsilon, 6, first_mass, adapt=True)
    positions, epsilon, _, variance, _ = run(2, positions, epsilon, 6, first_mass, adapt=True)
    # Directions that hardly move keep a share of the largest variance: the mass must stay positive and reasonable.
    largest = jnp.max(variance / first_mass)
    mass = jnp.maximum(variance, 1e-4 * largest * first_mass) if float(largest) > 0 else first_mass
    positions, epsilon, *_ = run(3, positions, 0.5, 4, mass, adapt=True)
    if problem.inequality is not None and len(trajectories) > 1:
        # A single step that is accepted two times in three is about as long as a layer along a boundary is thick.
        positions, alone, *_ = run(30, positions, epsilon, 1, mass, adapt=True)
        short = alone if float(alone) < 0.5 * float(epsilon) else None
    gains = []
    for number, steps in enumerate(trajectories):
        positions, _, _, _, efficiency = run(4 + number, positions, epsilon, steps, mass, adapt=False)
        gains.append(float(efficiency) / (steps + 0.5) ** 0.5)
    steps = trajectories[max(range(len(gains)), key=gains.__getitem__)]
    short = None if steps == 1 else short
    positions, epsilon, *_ = run(20, positions, epsilon, steps, mass, adapt=True)
    positions, _, rates, _, _ = run(21, positions, epsilon, steps, mass, adapt=False)
    boundary_step = None if short is None else float(short)
    stuck = np.asarray(rates) <= STUCK
    # A chain that waits in a corner for a move that fits is worth a shorter step for all. One that no such step moves is named.
    for number, times in enumerate(SHORTER):
        if not stuck.any():
            break
        moved, _, late, _, _ = run(50 + number, positions, times * epsilon, steps, mass, adapt=False)
        if np.all(np.asarray(late) > STUCK):
            positions, epsilon, rates, stuck = moved, times * epsilon, late, np.zeros_like(stuck)
    return CHMCTuning(float(epsilon), steps, mass, boundary_step, float(jnp.mean(rates)), positions, stuck)


def _first_metric(problem: Problem, positions: Position) -> tuple[Array, float]:
    """The inverse mass and step size to begin with: 1 and a tenth of the positions' own length; or units, where those differ."""
    x = jax.vmap(lambda position: problem.flatten(position)[0])(positions)
    units = units_of(x)
    if bool(jnp.all(units == 1)):
        return units, 0.1 * _first_length(problem, positions)
    return units**2, 0.1


def _first_length(problem: Problem, positions: Position) -> float:
    """How far a first move may go: about as far as the positions are from 0, in mean square.

    Positions at 0, or so near that log π could not tell them from it, say nothing: then a hundred times as far as log π takes to
    change by 1, which in a tail is little. Too long a first step is soon shortened; one within the roundings of g is not seen.
    """

    def look(problem: Problem, position: Position) -> tuple[Array, Array]:
        x, drift = problem.flatten(position)[0], _tangent_drift(problem, position)
        return row_lengths(x[None])[0] / math.sqrt(x.size), row_lengths(drift[None])[0]

    together = lambda problem, positions: over_particles(partial(look, problem), positions, problem.draws_together)
    lengths, drifts = (np.asarray(part, np.float64) for part in jax.jit(together)(problem, positions))
    length, drift = float(np.sqrt(np.mean(lengths**2))), float(np.sqrt(np.mean(drifts**2)))
    return 100 / drift if 0 < length * drift < 1e-3 or (length == 0 and drift > 0) else length or 1.0


def _efficiency(draws: Array) -> Array:
    """(1 − ρ)/(1 + ρ) of draws (time, chain, coordinate), for the worst lag-one correlation ρ of coordinates and squares.

    Coordinates that the constraint fixes, up to roundings, have no correlation.
    """
    centred = draws - jnp.mean(draws, axis=(0, 1), keepdims=True)
    roundings = FIXED * jnp.finfo(draws.dtype).eps * jnp.max(jnp.abs(draws), axis=(0, 1), keepdims=True)
    centred = jnp.where(jnp.max(jnp.abs(centred), axis=(0, 1), keepdims=True) > roundings, centred, 0.0)
    functions = jnp.concatenate([centred, centred**2], axis=2)
    functions = functions - jnp.mean(functions, axis=(0, 1), keepdims=True)
    variance = jnp.mean(functions**2, axis=(0, 1))
    covariance = jnp.mean(functions[1:] * functions[:-1], axis=(0, 1))
    rho = jnp.where(variance > 0, covariance / jnp.where(variance > 0, variance, 1.0), 0.0)
    worst = jnp.clip(jnp.max(rho), 0.0, 1.0)
    return (1 - worst) / (1 + worst)
