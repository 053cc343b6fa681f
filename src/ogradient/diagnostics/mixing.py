"""Have the chains mixed? ArviZ's R-hat and ESS of the worst scalars, found by a cheap look at all of them.

The look needs means over stretches of every chain only: two passes through the draws, whatever their number. ArviZ takes ranks
and Fourier transforms of every scalar it is given, 15 ms each for 32 chains of 1,000 draws, so it is given the worst.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogradient.geometry import frame_at
from ogradient.mapping import over_draws
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.status import ConvergenceWarning, warn

STRETCHES = 20  # of a chain, whose means the look takes
WORST = 25  # scalars by each of R-hat and ESS that ArviZ is asked about
PIECES = 8  # of a chain, longer than stretches, so that each has several correlation times
OUTLIER = 5  # standard errors of a chain's mean
FEWEST = 4  # draws per chain: ArviZ splits chains in halves
ROUNDINGS = 64  # a scalar whose spread is within so many of its own roundings stands still
RHAT_LIMIT, RHAT_BAD, RHAT_WARNS, ESS_WARNS = 1.01, 1.1, 1.05, 100
FIXED_DRAWS = 64  # at which the constraint is asked what it fixes
FIXED = 1e-2  # the tangent projection leaves at most this of a unit step along a fixed coordinate
FIXED_ROUNDINGS = 1000  # the spread that solvers leave to a fixed coordinate, in roundings of the largest one


class Screen(NamedTuple):
    """A look at all scalars, in the order of the leaves: rough numbers, good enough to find the worst."""

    sd: np.ndarray  # over all draws
    size: np.ndarray  # the largest absolute value
    eps: np.ndarray  # of the dtype
    rhat: np.ndarray  # the larger of those of x and of (x − mean)²
    ess: np.ndarray  # the smaller of both

    @property
    def still(self) -> np.ndarray:
        """Scalars that move by no more than their own roundings."""
        return ~(self.sd > ROUNDINGS * self.eps * self.size)


class Mixing(NamedTuple):
    """R-hat and ESS of the worst scalars, and which those are (counted over all leaves)."""

    rhat: float
    rhat_of: int
    ess: float
    ess_of: int
    by_chance: bool  # R-hat is no larger than what chains of this length and correlation time differ by


def evenly_spaced(draws: Any, most: int) -> Any:
    """At most so many draws of arrays with the draws as first axis, evenly spaced."""
    n = jax.tree.leaves(draws)[0].shape[0]
    chosen = np.linspace(0, n - 1, min(most, n)).astype(int)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], draws)


def screen(variables: Mapping[str, np.ndarray]) -> Screen:
    """Look at all scalars of arrays with axes (chain, draw, ...)."""
    parts = [_screen(value.reshape(*value.shape[:2], -1)) for value in variables.values()]
    return Screen(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _screen(x: np.ndarray) -> Screen:
    chains, draws, dim = x.shape
    stretches = max(2, 2 * (min(STRETCHES, draws // 5) // 2))
    length = draws // stretches
    start = draws - stretches * length
    mean = x.mean(axis=(0, 1), dtype=np.float64)
    highest, lowest = (np.asarray(end, np.float64) for end in (x.max(axis=(0, 1)), x.min(axis=(0, 1))))
    size, scale = np.maximum(highest, -lowest), np.maximum(highest - mean, mean - lowest)
    scale = np.where((scale > 0) & np.isfinite(scale), scale, 1.0)
    # Means over stretches of y = (x − mean)/scale, |y| ≤ 1, and of y², and the mean of y⁴: a chain at a time stays in the cache.
    first, second = (np.empty((chains, stretches, dim)) for _ in range(2))
    fourth = np.zeros(dim)
    for c, chain in enumerate(x):
        y = (chain[start:] - mean.astype(x.dtype)) / scale.astype(x.dtype)
        first[c] = y.reshape(stretches, length, dim).mean(axis=1)
        y *= y
        second[c] = y.reshape(stretches, length, dim).mean(axis=1)
        y *= y
        fourth += y.mean(axis=0) / chains
    variance = second.mean(axis=(0, 1))
    rhat, ess = _look(first, variance, length)
    square_rhat, square_ess = _look(second - variance, np.maximum(fourth - variance**2, 0), length)
    eps = np.full(dim, np.finfo(x.dtype).eps)
    worst = np.maximum(rhat, square_rhat), np.minimum(ess, square_ess)
    return Screen(scale * np.sqrt(variance), size, eps, *worst)


def _look(means: np.ndarray, variance: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Split R-hat and the ESS of batch means, from means over stretches (chain, stretch, d) and the variance of all draws."""
    chains, stretches, dim = means.shape
    halves = means.reshape(chains, 2, stretches // 2, dim).mean(axis=2)
    between = halves.reshape(-1, dim).var(axis=0, ddof=1)
    safe = np.where(variance > 0, variance, 1.0)
    rhat = np.sqrt(safe / np.maximum(safe - between, 1e-12 * safe))
    # The variance of a mean over many draws, times their number.
    long_run = length * (means**2).mean(axis=(0, 1))
    ess = chains * stretches * length * safe / np.where(long_run > 0, long_run, safe)
    moves = variance > 0
    return np.where(moves, rhat, 1.0), np.where(moves, ess, np.inf)


def worst_mixing(
    variables: Mapping[str, np.ndarray], seen: Screen, skip: np.ndarray, most: int = WORST
) -> Mixing | None:
    """ArviZ's rank-normalised R-hat and bulk ESS of the scalars that look worst; None if no scalar moves."""
    from arviz_stats.base import array_stats

    chosen = np.flatnonzero(~(skip | seen.still))
    if chosen.size == 0 or next(iter(variables.values())).shape[1] < FEWEST:
        return None
    if chosen.size > 2 * most:
        by_rhat, by_ess = np.argsort(-seen.rhat[chosen])[:most], np.argsort(seen.ess[chosen])[:most]
        chosen = chosen[np.union1d(by_rhat, by_ess)]
    flat = [value.reshape(*value.shape[:2], -1) for value in variables.values()]
    ends = np.cumsum([value.shape[2] for value in flat])
    axes = {"chain_axis": 0, "draw_axis": 1}

    def scalar(index: int | np.integer) -> np.ndarray:
        # In its leaf a scalar is counted from the end.
        leaf = int(np.searchsorted(ends, index, side="right"))
        return np.asarray(flat[leaf][..., index - ends[leaf]], np.float64)

    rhats: np.ndarray = np.array([array_stats.rhat(scalar(i), **axes, method="rank") for i in chosen], np.float64)
    sizes: np.ndarray = np.array([array_stats.ess(scalar(i), **axes, method="bulk") for i in chosen], np.float64)
    if not np.isfinite(rhats).any():
        return None
    high, low = int(np.nanargmax(rhats)), int(np.nanargmin(sizes))
    by_chance = rhats[high] <= RHAT_BAD and all(_differ_by_chance(scalar(i)) for i in chosen[rhats > RHAT_LIMIT])
    return Mixing(float(rhats[high]), int(chosen[high]), float(sizes[low]), int(chosen[low]), by_chance)


def _differ_by_chance(draws: np.ndarray) -> bool:
    """Whether the halves of chains (chain, draw) differ no more than pieces within them say they should.

    R-hat of chains that agree is about 1 + chains/ESS: with many chains it passes 1.01 though the ESS is large enough. Looked at
    are the ranks of x and of |x − median|. The means of halves should vary by the variance of the means of their four pieces,
    over four. No chain should be five standard errors from the others.
    """
    chains, n = draws.shape
    length = n // PIECES
    if length < 2:
        return False
    limit = 1.5 + 4 * np.sqrt(2 / (2 * chains - 1))
    for values in (draws, np.abs(draws - np.median(draws))):
        ranks = np.empty(draws.size)
        ranks[np.argsort(values, axis=None)] = np.arange(draws.size)
        pieces = ranks.reshape(chains, n)[:, n - PIECES * length :].reshape(2 * chains, PIECES // 2, length)
        means = pieces.mean(axis=2)
        expected = means.var(axis=1, ddof=1).mean() / (PIECES // 2)
        whole = means.reshape(chains, PIECES).mean(axis=1)
        furthest = np.abs(whole - np.median(whole)).max()
        if not (means.mean(axis=1).var(ddof=1) <= limit * expected and furthest <= OUTLIER * np.sqrt(expected / 2)):
            return False
    return True


def fixed_scalars(problem: Problem | None, position: Position, seen: Screen) -> np.ndarray:
    """Which scalars the constraint fixes. Only roundings move in those, which R-hat would take for a disagreement.

    A scalar x_k is fixed where e_k is a normal of the set at every draw looked at, |D e_k| ≤ `FIXED`, and x_k varies by
    roundings of the position only.
    """
    hardly_varies = seen.sd <= FIXED_ROUNDINGS * seen.eps * seen.size.max(initial=0)
    if problem is None or problem.equality is None or not problem.whole or not hardly_varies.any():
        return np.zeros(seen.sd.size, bool)
    pooled = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), position)
    tangential = over_draws(_tangential_parts, problem, evenly_spaced(pooled, FIXED_DRAWS))
    return hardly_varies & (np.asarray(tangential).max(axis=0) <= FIXED**2)


def _tangential_parts(problem: Problem, position: Position) -> jax.Array:
    """D_kk = |D e_k|² of all coordinates."""
    x, _, constraint, _ = problem.flatten(position)
    frame = frame_at(constraint, x)
    return 1 - jnp.sum((frame.root @ frame.jacobian) ** 2, axis=0)


def scalar_name(variables: Mapping[str, np.ndarray], index: int, axes: int = 2) -> str:
    """The name of a scalar counted over all leaves: `x[3]`, `w[0, 2]`, `tau`."""
    for name, value in variables.items():
        shape = value.shape[axes:]
        count = int(np.prod(shape))
        if index < count:
            return name + (f"[{', '.join(map(str, np.unravel_index(index, shape)))}]" if shape else "")
        index -= count
    raise IndexError("no such scalar")


def warn_if_unmixed(variables: Mapping[str, np.ndarray], problem: Problem | None, position: Position) -> None:
    """One line at the end of a run whose chains have not mixed: R-hat above 1.05, or ESS below 100.

    ArviZ is loaded, which takes two seconds the first time, only where the look at all scalars gives a reason to.
    """
    chains, draws = next(iter(variables.values())).shape[:2]
    if draws < FEWEST:
        few = f"only {chains * draws} draws were kept, too few for R-hat and ESS to say whether the chains have mixed"
        if chains * draws < ESS_WARNS:
            warn(f"{few}: raise num_samples.", ConvergenceWarning)
        return
    seen = screen(variables)
    moves = ~seen.still
    if not moves.any() or (seen.rhat[moves].max() < 1.02 and seen.ess[moves].min() > 4 * ESS_WARNS):
        return
    mixing = worst_mixing(variables, seen, fixed_scalars(problem, position, seen), most=5)
    if mixing is None or ((mixing.rhat <= RHAT_WARNS or mixing.by_chance) and mixing.ess >= ESS_WARNS):
        return
    warn(
        f"the chains have not mixed: R-hat {mixing.rhat:.3g} of {scalar_name(variables, mixing.rhat_of)} (1.05 at most), ESS "
        f"{mixing.ess:,.0f} of {scalar_name(variables, mixing.ess_of)} (100 at least). Run longer (num_samples, num_warmup, "
        "thinning); og.diagnose(trace) says more.",
        ConvergenceWarning,
    )
