"""Warm-up of the exact samplers: step size, trajectory length and metric, from all chains together.

Stages are windows of transitions of the very program that then samples; between them the parameters change, and nothing is
compiled again. What a stage is judged by comes from its draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from ogradient.chunk import arguments_of, capacity_of, pace_of, run_chunk, start, with_companion
from ogradient.geometry.land import FIXED, units_of
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.chmc import CHMC
from ogradient.samplers.metric import mass_parameters
from ogradient.warmup.lengths import first_length, flat_points
from ogradient.warmup.low_rank import with_directions
from ogradient.warmup.metric import correlation_condition, first_metric, judged, refit, rounded, without_correlations

TARGET = 0.85  # acceptance rate that the step size is tuned to,
TARGET_WITH_WALLS = 0.8
WINDOW = 100  # transitions of one stage
STUCK = 1e-3  # a chain that accepts less than this does not move at the common step size
SHORTER = (0.5, 0.25, 0.125)  # times the step size, tried where a chain does not move
# Times the first step size: tried in turn, for some transitions each, until chains move,
BEGINNINGS = (1.0, *(8.0 ** (sign * power) for power in range(1, 11) for sign in (-1, 1)))
GLANCE = 10
MOVING = 0.4  # which they do from this acceptance on
# Steps per transition that may be tried.
TRAJECTORIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
QUARTER = 1.5  # time in which a Gaussian of unit variances forgets where it was: a quarter of a period. The first length tried,
BEYOND = 2  # times the best so far: the longest,
FAR_BEYOND = 4  # or so many times where no length is enough yet
FALLING = 0.6  # of the target: acceptance below which nothing longer is tried
GROWING = 1.2  # times the efficiency of half the length: less is no gain,
VERY_SLOW = 0.04  # unless that was below what windows can see
WORSE = 0.8  # of the best: a shorter length that gains less ends the search for shorter ones
ENOUGH = 0.2  # efficiency of a draw below which longer trajectories are taken than pay for themselves,
NEARLY = 0.8  # up to the first with this share of the largest efficiency
METRIC_WINDOWS = (50, 50, 100, 200)  # transitions after each of which the metric is fitted to the draws,
METRIC_STEPS = 6  # of so many steps at most
CORRELATED = 4.0  # condition number of the correlations from which on a metric without them is tried too
LEAST_WARMUP, MOST_WARMUP = 100, 1000  # transitions of a tuned run before its first draw,
TIMES = 20  # and how many autocorrelation times they last


class Stage(NamedTuple):
    """Where warm-up stands after a stage: parameters, chains, and what the stage showed."""

    step_size: float
    num_integration_steps: int
    inverse_mass: np.ndarray
    states: Any
    rates: np.ndarray  # acceptance of every chain over the second half
    draws: np.ndarray  # (transition, chain, coordinate)


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


class Windows:
    """Runs stages: windows of transitions of all chains with the parameters of a stage.

    `target` is the acceptance rate; None is `TARGET`, or `TARGET_WITH_WALLS` where there are inequalities.
    """

    def __init__(self, key: Array, problem: Problem, kernel: CHMC, target: float | None = None) -> None:
        self.key, self.problem, self.kernel = key, problem, kernel
        self.target = target or (TARGET if problem.inequality is None else TARGET_WITH_WALLS)

    def run(self, number: int, stage: Stage, *, adapt: bool, length: int = WINDOW, **changes: Any) -> Stage:
        """A window with the parameters of a stage, or with `changes` to them; adapting the step size, or not."""
        stage = stage._replace(**changes)
        parameters, pace = self._arguments(stage, adapt)
        key, states = jax.random.fold_in(self.key, np.uint32(number)), stage.states
        capacity = capacity_of(self.problem, self.kernel, parameters, pace, key, states)
        draws, rates, done = [], [], 0
        while done < length:
            steps = min(capacity - 1, length - done)
            counts = (np.uint32(done), np.int32(steps), np.int32(1), np.int32(1), None)
            arguments = (parameters, pace, key, states, *counts)
            states, rows, _, pace = run_chunk(self.problem, self.kernel, capacity, *arguments)
            leaves = [np.asarray(leaf)[:steps] for leaf in jax.tree.leaves(rows["position"])]
            draws.append(np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=2))
            rates.append(np.asarray(rows["stats"]["steering"])[:steps])
            done += steps
        step_size = float(np.exp(pace.average)) if adapt else stage.step_size
        late = np.concatenate(rates)[length // 2 :].mean(axis=0, dtype=np.float64)
        return stage._replace(step_size=step_size, states=states, rates=late, draws=np.concatenate(draws))

    def _arguments(self, stage: Stage, adapt: bool) -> tuple[dict[str, Any], Any]:
        """Parameters and pace of a stage."""
        given = {"num_integration_steps": stage.num_integration_steps} | mass_parameters(stage.inverse_mass)
        parameters, _ = arguments_of(self.kernel, given, stage.states.position)
        return parameters, pace_of(stage.step_size, stage.states.position, adapt=adapt, target=self.target)

    def prepare(self, positions: Position) -> Callable[[], None]:
        """Begin to compile what windows run; returns what waits for it."""
        units = np.ones(flat_points(positions).shape[1])
        stage = _first_stage(self.kernel, positions, units, 1.0)
        parameters, pace = self._arguments(stage, adapt=False)
        arguments = (parameters, pace, self.key, stage.states)
        capacity = capacity_of(self.problem, self.kernel, *arguments)
        counts = (np.uint32(0), np.int32(1), np.int32(1), np.int32(1), None)
        return run_chunk.prepare(self.problem, self.kernel, capacity, *arguments, *counts)


def tune_chmc(windows: Windows, positions: Position, trajectories: Sequence[int] = TRAJECTORIES) -> CHMCTuning:
    """Step size, trajectory length and metric for an exact kernel, from all chains together.

    The step size follows the pooled acceptance rate by dual averaging (pace.py) to `target`. The metric is fitted to the draws of
    all chains after windows of growing length (metric.py). A chain that is stuck where the common step is too long (beside a
    boundary, far in a tail) gets away by shorter steps of its own. It is never moved elsewhere: that may be another part of
    the set. Chains that do not move with the final settings are named.
    The number of steps is the one with the largest efficiency, 1/τ for the worst autocorrelation time τ of all coordinates,
    their principal components, and the squares of both, per root of the cost (draws are what users count, gradients what they
    wait for). The squares see what coordinates alone cannot: trajectories of half a period, which end opposite where they began
    for ever. The same number decides between the metric with its correlations and without.
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
    stage = stage._replace(num_integration_steps=_steps_for(time, stage.step_size, trajectories))
    stage, stuck = _free_stuck(windows, windows.run(21, stage, adapt=False))
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


def _first_stage(kernel: CHMC, positions: Position, units: np.ndarray, step_size: float) -> Stage:
    states = start(kernel, positions)
    states = with_companion(states) if jax.tree.leaves(positions)[0].shape[0] == 1 else states
    return Stage(step_size, 3, first_metric(units), states, np.zeros(0), np.zeros(0))


def _begin(windows: Windows, positions: Position, units: np.ndarray) -> Stage:
    """A first step size with which chains move, in units of the positions where those differ much."""
    step_size = 0.1 * (first_length(windows.problem, positions) if np.all(units == 1) else 1.0)
    first = _first_stage(windows.kernel, positions, units, step_size)
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


def _steps_for(time: float, step_size: float, trajectories: Sequence[int]) -> int:
    """How many steps take a time, within the lengths that may be tried."""
    return int(np.clip(round(time / step_size), trajectories[0], trajectories[-1]))


class Length(NamedTuple):
    """A number of steps, the efficiency 1/τ of draws that are so far apart, and that per root of the cost."""

    steps: int
    efficiency: float
    gain: float


def _find_length(
    windows: Windows,
    stage: Stage,
    trajectories: Sequence[int],
    common: np.ndarray,
    *,
    first: int,
    begin: float,
    least: float = 0.0,
) -> tuple[Stage, Length]:
    """The number of steps with the largest efficiency per root of its cost; its gain is 0 where it cannot be more than `least`.

    The search begins near `begin` steps, goes up to a multiple of the best, and then down while that pays. Draws are judged in
    the coordinates of the `common` metric. No efficiency is above 1, which bounds what is worth a try.
    """
    tried: dict[int, Length] = {}

    def attempt(steps: int) -> Length:
        nonlocal stage
        stage = windows.run(first + trajectories.index(steps), stage, adapt=False, num_integration_steps=steps)
        share = efficiency(judged(common, stage.draws))
        tried[steps] = Length(steps, share, share / (steps + 0.5) ** 0.5)
        return tried[steps]

    middle = int(np.argmin(np.abs(np.log(np.asarray(trajectories) / begin))))
    best = Length(0, 0.0, 0.0)
    too_costly = lambda steps: (steps + 0.5) ** -0.5 < max(least, best.gain)
    for steps in trajectories[middle:]:
        beyond = BEYOND if best.efficiency >= ENOUGH or best.gain < least else FAR_BEYOND
        too_long = best.steps and steps > beyond * _long_enough(tried, best).steps
        # Errors grow with the length: where few are accepted, a step that suits longer ones would be another one.
        too_wrong = best.steps and stage.rates.mean() < FALLING * windows.target
        if too_long or too_wrong or too_costly(steps) or _no_better(list(tried.values())):
            break
        best = max(best, attempt(steps), key=lambda length: length.gain)
    for steps in (steps for steps in reversed(trajectories[:middle]) if not too_costly(steps)):
        if (length := attempt(steps)).gain < WORSE * best.gain:
            break
        best = max(best, length, key=lambda length: length.gain)
    if not tried:
        return stage, best
    found = _long_enough(tried, best)
    return stage._replace(num_integration_steps=found.steps), found._replace(gain=best.gain)


def _no_better(lengths: list[Length]) -> bool:
    """Whether twice the length was no gain: then what is slow does not depend on it. Windows cannot tell very slow ones apart."""
    if len(lengths) < 3 or lengths[-3].efficiency < VERY_SLOW:
        return False
    return max(length.efficiency for length in lengths[-2:]) < GROWING * lengths[-3].efficiency


def _long_enough(tried: dict[int, Length], best: Length) -> Length:
    """The length that did best per cost, or a longer one where its draws are so correlated that a thousand would not do.

    Where none is enough, as on sets of several parts, the shortest that is nearly as good as any, and no very short one: windows
    cannot tell them apart there.
    """
    lengths = [tried[steps] for steps in sorted(tried)]
    enough = (length for length in lengths if length.steps >= best.steps and length.efficiency >= ENOUGH)
    most = max(length.efficiency for length in lengths)
    nearly = next(length for length in lengths if length.efficiency >= NEARLY * most)
    return next(enough, nearly._replace(steps=max(METRIC_STEPS, nearly.steps)))


def _dense_or_not(windows: Windows, dense: Stage, trajectories: Sequence[int]) -> tuple[Stage, Length]:
    """The metric and length that are more efficient: with the correlations, or without.

    Where a set or a law bends much, the directions of the whole of it are not those of its parts. Where correlations are weak
    there is nothing to choose.
    """
    common = dense.inverse_mass
    begin = QUARTER / dense.step_size
    dense, found = _find_length(windows, dense, trajectories, common, first=100, begin=begin)
    if correlation_condition(common) < CORRELATED:
        return dense, found
    plain = dense._replace(inverse_mass=without_correlations(common), step_size=0.5, num_integration_steps=METRIC_STEPS)
    plain = windows.run(4, plain, adapt=True)
    plain, other = _find_length(windows, plain, trajectories, common, first=200, begin=found.steps, least=found.gain)
    return (plain, other) if other.gain > found.gain else (dense._replace(states=plain.states), found)


def _free_stuck(windows: Windows, stage: Stage) -> tuple[Stage, np.ndarray]:
    """A chain that waits in a corner for a move that fits is worth a shorter step for all; one that none moves is named."""
    stuck = stage.rates <= STUCK
    for number, times in enumerate(SHORTER):
        if not stuck.any():
            break
        shorter = windows.run(50 + number, stage, adapt=False, step_size=times * stage.step_size)
        if np.all(shorter.rates > STUCK):
            return shorter, np.zeros_like(stuck)
    return stage, stuck


def efficiency(draws: np.ndarray) -> float:
    """1/√(τ τ') of draws (time, chain, coordinate), at most 1: the worst τ = 1 + 2Σρ_k of all coordinates and their squares.

    The correlations ρ_k at lag k are about the mean of all chains in τ, so that chains which differ count as slow, and about each
    chain's own mean in τ', which tells lengths apart where chains never meet. For chains that mix both are the same. The sums end
    where two successive ρ_k add up to less than 0 (Geyer 1992). Coordinates that the constraint fixes have none.
    """
    roundings = FIXED * np.finfo(draws.dtype).eps * np.abs(draws).max(axis=(0, 1))
    centred = draws.astype(np.float64) - draws.mean(axis=(0, 1), dtype=np.float64)
    free = np.abs(centred).max(axis=(0, 1)) > roundings
    if not free.any():
        return 1.0
    worst = {(0, 1): 1.0, (0,): 1.0}
    for functions in (centred[..., free], centred[..., free] ** 2):
        for axes in worst:
            about = functions - functions.mean(axis=axes, keepdims=True)
            about = about[..., np.any(about != 0, axis=(0, 1))]
            if about.size:
                worst[axes] = max(worst[axes], float(_correlation_times(about).max()))
    return float(np.prod(list(worst.values())) ** -0.5)


def _correlation_times(centred: np.ndarray) -> np.ndarray:
    """τ of each function (time, chain, function)."""
    length = len(centred)
    spectrum = np.abs(np.fft.rfft(centred, n=2 * length, axis=0)) ** 2
    covariance = np.fft.irfft(spectrum.mean(axis=1), axis=0)[:length] / np.arange(length, 0, -1)[:, None]
    rho = covariance[: length // 2] / covariance[0]
    pairs = rho[: len(rho) // 2 * 2].reshape(-1, 2, rho.shape[1]).sum(axis=1)
    # No pair is larger than one before it, and none counts after one below 0.
    pairs = np.minimum.accumulate(np.maximum(pairs, 0.0), axis=0)
    return 2 * pairs.sum(axis=0) - 1
