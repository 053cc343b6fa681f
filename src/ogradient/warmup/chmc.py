"""Warm-up of the exact samplers: step size, metric and trajectory length, in this order, from all chains together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ogradient.geometry.land import units_of
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.warmup.lengths import QUARTER, TRAJECTORIES, Length, find_length, steps_for
from ogradient.warmup.low_rank import with_directions
from ogradient.warmup.metric import correlation_condition, refit, rounded, without_correlations
from ogradient.warmup.scales import first_length, flat_points
from ogradient.warmup.stages import Stage, Windows, first_stage

STUCK = 1e-3  # a chain that accepts less than this does not move at the common step size
SHORTER = (0.5, 0.25, 0.125)  # times the step size, tried where a chain does not move
# Times the first step size: tried in turn, for some transitions each, until chains move,
BEGINNINGS = (1.0, *(8.0 ** (sign * power) for power in range(1, 11) for sign in (-1, 1)))
GLANCE = 10
MOVING = 0.4  # which they do from this acceptance on
METRIC_WINDOWS = (50, 50, 100, 200)  # transitions after each of which the metric is fitted to the draws,
METRIC_STEPS = 6  # of so many steps at most
CORRELATED = 4.0  # condition number of the correlations from which on a metric without them is tried too
LEAST_WARMUP, MOST_WARMUP = 100, 1000  # transitions of a tuned run before its first draw,
TIMES = 20  # and how many autocorrelation times they last


class CHMCTuning(NamedTuple):
    """What warm-up found, and where its chains ended."""

    step_size: float
    num_integration_steps: int
    inverse_mass: np.ndarray
    acceptance_rate: float
    efficiency: float  # 1/τ of draws, as far as warm-up could see
    positions: Position
    stuck: np.ndarray  # which chains do not move with these settings

    @property
    def num_warmup(self) -> int:
        """Transitions that chains should still make before their draws count: some autocorrelation times."""
        return int(np.clip(np.ceil(TIMES / max(self.efficiency, 1e-9)), LEAST_WARMUP, MOST_WARMUP))


def tune_chmc(windows: Windows, positions: Position, trajectories: Sequence[int] = TRAJECTORIES) -> CHMCTuning:
    """Step size, trajectory length and metric for an exact kernel, from all chains together.

    The step size follows the pooled acceptance rate by dual averaging (pace.py) to `target`. The metric is fitted to the draws of
    all chains after windows of growing length (metric.py). A chain that is stuck where the common step is too long (beside a
    boundary, far in a tail) gets away by shorter steps of its own. It is never moved elsewhere: that may be another part of
    the set. Chains that do not move with the final settings are named.
    The number of steps is the one with the largest efficiency per root of the cost (lengths.py). The same number decides between
    the metric with its correlations and without.
    One compilation, and another where a metric of low rank is found; a run with these settings needs no other.

    Args:
        windows: of the problem and kernel.
        positions: of all chains, on the set.
        trajectories: numbers of steps to try.
    """
    units = np.asarray(units_of(flat_points(positions), np), np.float64)
    stage = _find_metric(windows, _begin(windows, positions, units), units)
    stage, found = _dense_or_not(windows, stage, trajectories)
    time = stage.num_integration_steps * stage.step_size
    stage = windows.run(20, stage, adapt=True)
    # What was found is a time: a shorter step takes more of them.
    stage = stage._replace(num_integration_steps=steps_for(time, stage.step_size, trajectories))
    stage, stuck = _free_stuck(windows, windows.run(21, stage, adapt=False), time, trajectories)
    num_chains = jax.tree.leaves(positions)[0].shape[0]
    return CHMCTuning(
        stage.step_size,
        stage.num_integration_steps,
        stage.inverse_mass,
        float(stage.rates[:num_chains].mean()),
        found.efficiency,
        jax.tree.map(lambda leaf: leaf[:num_chains], stage.states.position),
        stuck[:num_chains],
    )


def _begin(windows: Windows, positions: Position, units: np.ndarray) -> Stage:
    """A first step size with which chains move, in units of the positions where those differ much."""
    step_size = 0.1 * (first_length(windows.problem, positions) if np.all(units == 1) else 1.0)
    first = first_stage(windows.kernel, positions, units, step_size)
    # A step can be too short as well as too long: below the roundings of g no move is told from the next. Dual averaging knows
    # only of the latter, and would make steps ever shorter where none is accepted. So look first, in both directions: what the
    # positions say of the scale may be all wrong, as where starts at 0 are landed and only roundings are left of them.
    seen = []
    for number, times in enumerate(BEGINNINGS):
        seen.append(windows.run(1000 + number, first, adapt=False, length=GLANCE, step_size=times * step_size))
        if seen[-1].rates.mean() > MOVING:
            break
    return windows.run(48, max(seen, key=lambda stage: float(stage.rates.mean())), adapt=True)


def _find_metric(windows: Windows, stage: Stage, units: np.ndarray) -> Stage:
    """The metric, and a step size for it."""
    stage = windows.run(1, stage, adapt=True, num_integration_steps=METRIC_STEPS)
    for number, length in enumerate(METRIC_WINDOWS):
        steps = min(METRIC_STEPS, max(2, round(QUARTER / stage.step_size)))
        stage = windows.run(60 + number, stage, adapt=True, length=length, num_integration_steps=steps)
        stage = stage._replace(inverse_mass=_fit(windows.problem, stage, units, number > 0), step_size=0.5)
    # Longer trajectories have larger errors: what suits short ones would not suit those.
    return windows.run(3, stage, adapt=True, num_integration_steps=METRIC_STEPS)


def _fit(problem: Problem, stage: Stage, units: np.ndarray, directions: bool) -> np.ndarray:
    """The metric of a stage's draws, without the first of them; of low rank where that is wanted and of use."""
    late, before, positions = stage.draws[len(stage.draws) // 4 :], stage.inverse_mass, stage.states.position
    if before.ndim == 2 and before.shape[0] == before.shape[1]:
        return rounded(refit(problem, positions, late, before, units))
    metric = refit(problem, positions, late, before if before.ndim == 1 else before[:, 0], units)
    found = with_directions(problem, positions, late, metric) if directions and metric.size > 1 else None
    return rounded(metric) if found is None or correlation_condition(found) < CORRELATED else found


def _dense_or_not(windows: Windows, dense: Stage, trajectories: Sequence[int]) -> tuple[Stage, Length]:
    """The metric and length that are more efficient: with the correlations, or without.

    Where a set or a law bends much, the directions of the whole of it are not those of its parts. Where correlations are weak
    there is nothing to choose.
    """
    common = dense.inverse_mass
    begin = QUARTER / dense.step_size
    dense, found = find_length(windows, dense, trajectories, common, first=100, begin=begin)
    if correlation_condition(common) < CORRELATED:
        return dense, found
    plain = dense._replace(inverse_mass=without_correlations(common), step_size=0.5, num_integration_steps=METRIC_STEPS)
    plain = windows.run(4, plain, adapt=True)
    plain, other = find_length(windows, plain, trajectories, common, first=200, begin=found.steps, least=found.gain)
    return (plain, other) if other.gain > found.gain else (dense._replace(states=plain.states), found)


def _free_stuck(windows: Windows, stage: Stage, time: float, trajectories: Sequence[int]) -> tuple[Stage, np.ndarray]:
    """A chain that waits in a corner for a move that fits is worth a shorter step for all; one that none moves is named.

    Trajectories of shorter steps take as much time.
    """
    stuck = stage.rates <= STUCK
    for number, times in enumerate(SHORTER):
        if not stuck.any():
            break
        step_size = times * stage.step_size
        changes: dict[str, Any] = {
            "step_size": step_size,
            "num_integration_steps": steps_for(time, step_size, trajectories),
        }
        shorter = windows.run(50 + number, stage, adapt=False, **changes)
        if np.all(shorter.rates > STUCK):
            return shorter, np.zeros_like(stuck)
    return stage, stuck
