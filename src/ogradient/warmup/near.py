"""Warm-up of O-Langevin and O-kinetic: a step size from what the problem does to a step, not from its scale."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.compilation import compiled
from ogradient.geometry import frame_at, landing, project
from ogradient.geometry.land import land
from ogradient.precision import full_precision
from ogradient.problem import Problem
from ogradient.problem.functions import Position, dtype_of
from ogradient.progress import TuningBar
from ogradient.samplers.o_kinetic import OKinetic
from ogradient.samplers.o_langevin import OLangevin
from ogradient.status import warn
from ogradient.warmup.metric import widest
from ogradient.warmup.scales import first_length, flat_points, tangent_drift

TRIAL_STEPS = 50
# The largest share of steps that a boundary may turn back: it grows like √η, and the error like its square.
REFLECTED = 0.1
LINEAR = 0.1  # how far a step may bend away from the set, relative to its length
BENT = 0.15  # the same of a sampler whose error is of second order
WINDOWS = 20  # of trial steps in a row that must be good, so that the chains see more than their start
AGAIN = 16.0  # times the step size of the first search, where the second begins
LARGEST, SMALLEST = 2.0**10, 2.0**-30  # step sizes that are tried, in squares of the positions' own length


class NearTuning(NamedTuple):
    """What the warm-up of a sampler near the set found."""

    step_size: float  # η
    mean_violation: float  # mean |g| of its draws, of the worst row
    spread: float  # the largest standard deviation of its draws in any direction


def tune_o_kinetic(
    key: Array, problem: Problem, positions: Position, *, tolerance: float | None = None, bar: TuningBar | None = None
) -> tuple[float, float, float]:
    """Step size h, friction and mean |g| of O-kinetic, by the trials of `tune_o_langevin` with η = h²/2.

    The limits are those of errors of second order. A move has at most 0.15 of its length across the tangent space it began
    in (curvature), and the drift along the set changes by at most a tenth of what it takes to turn the move (ηL ≤ 1/10). Friction
    is 1 over the largest standard deviation of the draws: squares of the slowest direction then forget fastest.
    """
    found = tune_o_langevin(key, problem, positions, tolerance=tolerance, kernel=OKinetic(), bar=bar)
    return math.sqrt(2 * found.step_size), 1 / found.spread, found.mean_violation


def tune_o_langevin(
    key: Array,
    problem: Problem,
    positions: Position,
    *,
    tolerance: float | None = None,
    kernel: OLangevin | OKinetic = OLangevin(),  # noqa: B008, a value
    bar: TuningBar | None = None,
) -> NearTuning:
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
    current = land(problem, positions).position
    length = 2.0 ** round(math.log2(first_length(problem, current)))
    largest, smallest = LARGEST * length**2, SMALLEST * length**2
    dtype = np.dtype(dtype_of(positions))
    limit = float("inf") if tolerance is None else tolerance

    def attempt(number: int, positions: Position, eta: float) -> tuple[Position, bool, float]:
        numbers = np.asarray(length, dtype), jax.random.fold_in(key, number), positions, np.asarray(eta, dtype)
        positions, bend, off = _window(problem, kernel, *numbers)
        if bar is not None:
            bar.update(TRIAL_STEPS, f"{math.sqrt(2 * eta) if isinstance(kernel, OKinetic) else eta:.3g}")
        return positions, bool(bend <= LINEAR) and float(off) <= limit, float(off)  # NaN compares false

    eta, number = length**2, 1
    while eta < largest and attempt(number, current, 2 * eta)[1]:
        eta *= 2
    for again in (1, AGAIN):
        eta, seen = min(again * eta, largest), list[tuple[float, np.ndarray]]()
        while eta > smallest and len(seen) < WINDOWS:
            number += 1
            proposal, fine, off = attempt(number, current, eta)
            current, seen, eta = (
                (proposal, [*seen, (off, flat_points(proposal))], eta) if fine else (current, [], eta / 2)
            )
    if eta > smallest:
        return NearTuning(eta, sum(off for off, _ in seen) / len(seen), _spread([points for _, points in seen], length))
    shown = math.sqrt(2 * smallest) if isinstance(kernel, OKinetic) else smallest
    warn(
        f"no step size down to {shown:.1e} keeps a step near the constraint set"
        + ("" if tolerance is None else f" and mean |g| at {tolerance:.3g}")
        + "; the smallest is used. The constraint may be unattainable or have a vanishing gradient, the log density may be "
        "unbounded, or the tolerance may be finer than this precision."
    )
    return NearTuning(eta, attempt(number + 1, current, eta)[2], length)


def _spread(points: list[np.ndarray], length: float) -> float:
    """The largest standard deviation of points (chains, d) of some windows in any direction; the length where all stand still."""
    together = np.concatenate(points).astype(np.float64)
    centred = together - together.mean(axis=0)
    direction = widest(centred, 1)
    return float(np.std(centred @ direction[:, 0])) or length


def _trial(
    problem: Problem, kernel: OLangevin | OKinetic, length: Array, key: Array, position: Position, eta: Array
) -> tuple[Position, tuple[Array, ...]]:
    """Steps of one chain: where it ends, and what was seen on the way."""
    parameters = {"step_size": eta, "alpha": None, "temperature": 1.0, "max_pull": None}
    if kinetic := isinstance(kernel, OKinetic):
        parameters |= {"step_size": jnp.sqrt(2 * eta), "friction": 1 / length}

    def body(carry: tuple[Any, Array], key: Array) -> tuple[tuple[Any, Array], tuple[Array, ...]]:
        state, drift = carry
        previous, _, constraint, _ = problem.flatten(state.position)
        state, info = kernel.step(key, state, problem, parameters)
        x = problem.flatten(state.position)[0]
        frame, new_drift = frame_at(constraint, x), tangent_drift(problem, state.position)
        change = eta * (new_drift - drift)
        if kinetic:
            # Both scaled so that `LINEAR` is the limit of either.
            before, move = frame_at(constraint, previous), x - previous
            bent, change = LINEAR / BENT * (move - project(before, move) - landing(before, alpha=1.0)), change / 2
        else:
            bent = landing(frame, alpha=1.0)
        squares = (jnp.sum((v / length) ** 2) for v in (bent, change, x - previous))
        reflected = jnp.zeros((), bool) if info.reflected is None else info.reflected
        return (state, new_drift), (*squares, jnp.abs(frame.value), reflected)

    start = (kernel.init(position), tangent_drift(problem, position))
    (state, _), seen = lax.scan(body, start, jax.random.split(key, TRIAL_STEPS))
    return state.position, seen


@partial(compiled, static_argnums=1)
def _window(
    problem: Problem, kernel: OLangevin | OKinetic, length: Array, key: Array, positions: Position, eta: Array
) -> tuple[Position, Array, Array]:
    """Steps of all chains: where they end, the worse of the two numbers, and the largest mean |g| of a row."""
    keys = jax.random.split(key, jax.tree.leaves(positions)[0].shape[0])
    chains = jax.vmap(partial(_trial, problem, kernel, length), (0, 0, None))
    with full_precision():
        positions, (residual, change, moved, value, reflected) = chains(keys, positions, eta)
    bend = jnp.sqrt(jnp.maximum(jnp.sum(residual), 4 * jnp.sum(change)) / jnp.sum(moved))
    bend = jnp.maximum(bend, LINEAR / REFLECTED * jnp.mean(reflected, dtype=bend.dtype))
    return positions, bend, jnp.max(jnp.mean(value, axis=(0, 1)), initial=0.0)
