"""How long trajectories should be: the length whose draws forget most for what they cost, from windows of each length.

The efficiency of draws is 1/τ, for the worst autocorrelation time τ of all coordinates, their principal components, and the
squares of both. The squares see what coordinates alone cannot: trajectories of half a period, which end opposite where they
began for ever. Per root of the cost, since draws are what users count, and gradients what they wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ogradient.geometry.land import FIXED
from ogradient.warmup.metric import determined, judged
from ogradient.warmup.stages import Stage, Windows

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
LEAST_STEPS = 6  # where windows cannot tell lengths apart


def steps_for(time: float, step_size: float, trajectories: Sequence[int]) -> int:
    """How many steps take a time, within the lengths that may be tried."""
    return int(np.clip(round(time / step_size), trajectories[0], trajectories[-1]))


class Length(NamedTuple):
    """A number of steps, the efficiency 1/τ of draws that are so far apart, and that per root of the cost."""

    steps: int
    efficiency: float
    gain: float


def find_length(
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
        fixed = lambda: determined(windows.problem, stage.states.position)
        share = efficiency(judged(common, moving(stage.draws, fixed)))
        tried[steps] = Length(steps, share, share / (steps + 0.5) ** 0.5)
        return tried[steps]

    middle = int(np.argmin(np.abs(np.log(np.asarray(trajectories) / begin))))
    best = Length(0, 0.0, 0.0)
    too_costly = lambda steps: (steps + 0.5) ** -0.5 < max(least, best.gain)
    for steps in trajectories[middle:]:
        beyond = BEYOND if best.efficiency >= ENOUGH or best.gain < least else FAR_BEYOND
        too_long = best.steps and steps > beyond * long_enough(tried, best).steps
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
    found = long_enough(tried, best)
    return stage._replace(num_integration_steps=found.steps), found._replace(gain=best.gain)


def _no_better(lengths: list[Length]) -> bool:
    """Whether twice the length was no gain: then what is slow does not depend on it. Windows cannot tell very slow ones apart."""
    if len(lengths) < 3 or lengths[-3].efficiency < VERY_SLOW:
        return False
    return max(length.efficiency for length in lengths[-2:]) < GROWING * lengths[-3].efficiency


def long_enough(tried: dict[int, Length], best: Length) -> Length:
    """The length that did best per cost, or a longer one where its draws are so correlated that a thousand would not do.

    Where none is enough, as on sets of several parts, the shortest that is nearly as good as any, and no very short one: windows
    cannot tell them apart there.
    """
    lengths = [tried[steps] for steps in sorted(tried)]
    enough = (length for length in lengths if length.steps >= best.steps and length.efficiency >= ENOUGH)
    most = max(length.efficiency for length in lengths)
    nearly = next(length for length in lengths if length.efficiency >= NEARLY * most)
    return next(enough, nearly._replace(steps=max(LEAST_STEPS, nearly.steps)))


def moving(draws: np.ndarray, fixed: Callable[[], np.ndarray]) -> np.ndarray:
    """Draws (time, chain, coordinate) about their mean, in double precision; 0 where all that they show are roundings.

    Coordinates that vary by little, and are `fixed` by the constraint, are such. In other units, or mixed with others, that could
    not be seen any more.
    """
    roundings = FIXED * np.finfo(draws.dtype).eps * np.abs(draws).max(axis=(0, 1))
    centred = draws.astype(np.float64) - draws.mean(axis=(0, 1), dtype=np.float64)
    still = np.abs(centred).max(axis=(0, 1)) <= roundings
    return np.where(still & fixed(), 0.0, centred) if still.any() else centred


def efficiency(draws: np.ndarray) -> float:
    """1/√(τ τ') of draws (time, chain, coordinate), at most 1: the worst τ = 1 + 2Σρ_k of all coordinates and their squares.

    The correlations ρ_k at lag k are about the mean of all chains in τ, so that chains which differ count as slow, and about each
    chain's own mean in τ', which tells lengths apart where chains never meet. For chains that mix both are the same. The sums end
    where two successive ρ_k add up to less than 0 (Geyer 1992). Coordinates that the constraint fixes have none.
    """
    centred = draws.astype(np.float64) - draws.mean(axis=(0, 1), dtype=np.float64)
    # The mean of equal numbers has a rounding.
    free = np.ptp(draws, axis=(0, 1)) > 0
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
