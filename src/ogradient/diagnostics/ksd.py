"""Orthogonal-space kernel Stein discrepancy: are draws near {g = 0} spread along it as the law says? No truth needed.

KSD⊥² = mean over i, j of  a_iᵀa_j k + a_iᵀD_j∇_{x_j}k + a_jᵀD_i∇_{x_i}k + tr(D_i ∇_{x_i}∇_{x_j}ᵀk D_j),  a = D s + r.

It is zero only for the right law along the level set. It says nothing about |g| (report that beside it), and cannot see
wrong weights of components that are far apart. With inequalities h ≤ 0 the kernel is b(x) k(x, y) b(y), b vanishing on the
boundary (boundary.py): a becomes b a + D∇b, every D∇k has its b, and draws outside count for nothing.

The p-value is by wild bootstrap: Σ K_ij W_i W_j with random signs W. The draws of one chain depend on each other, so a group of
draws (a chain, or a long stretch of one) shares its sign, and pairs within a group are left out. What is then resampled are
the sums over groups, which are independent whatever happens within them: slow mixing and repeated positions raise no alarm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.compilation import compiled
from ogradient.geometry import Frame, random_signs, stein_drift
from ogradient.geometry.boundary import boundary_weight
from ogradient.mapping import draws_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position, first_of
from ogradient.stein import RKHSKernel, imq, median_bandwidth, rbf, squared_distances

WIDE = (1.0, 10.0)  # bandwidths of the wide kernels, in median squared distances
_median_bandwidth = compiled(median_bandwidth)


class KSD(NamedTuple):
    """The discrepancy and what it takes to judge it."""

    value: float  # KSD⊥², U- or V-statistic; the U-statistic averages to 0 under the right law and may be negative
    standard_error: float  # of the value under the right law: √(2 Σ_{i≠j} K²)/(n(n−1)); with groups, of the bootstrap
    p_value: float | None  # how often independent draws (groups) of the right law would show as much
    bandwidth: float
    num_draws: int


def orthogonal_ksd(
    problem: Problem,
    draws: Position,
    *,
    rkhs_kernel: RKHSKernel | None = None,
    groups: np.ndarray | None = None,
    statistic: str = "u",
    num_bootstrap: int = 1000,
    flip_probability: float = 0.5,
    block_size: int = 256,
    seed: int = 0,
) -> KSD:
    """KSD⊥² of draws against the problem's law, with a p-value by wild bootstrap.

    Args:
        problem: with constraints or without; its measure decides a.
        draws: positions with the draws as first axis (n, ...); of a trace, `trace.pooled`, thinned.
        rkhs_kernel: None reports the value of `og.rbf()`, with the median heuristic for its bandwidth, which sees the shape of
            the law best. The p-value also asks wide kernels (inverse multiquadrics of the median squared distance and of ten
            times that) and the functions x_k e_k, which see a wrong spread: it is that of the largest of the four statistics,
            each in its own standard errors. A kernel that is given is taken alone.
        groups: a label (n,) per draw: draws of one label may depend on each other, those of different labels do not. Pairs
            within a group are left out. Of a trace, the chain of every draw. None: every draw is a group.
        statistic: "u" leaves the terms i = j out (unbiased), "v" keeps them (never negative).
        num_bootstrap: replications for the p-value; 0 for none.
        flip_probability: of the signs' Markov chain. ½ makes them independent, which is right for independent draws. For a
            single chain in order, without groups, a smaller probability (about 1 over the correlation time) carries the
            dependence into the bootstrap.
        block_size: draws whose pairs are in memory together.
        seed: of the bootstrap.

    >>> import jax, ogradient as og
    >>> known = og.problems.cubic()
    >>> right = og.orthogonal_ksd(known.problem, known.exact(jax.random.key(0), 300))
    >>> wrong = og.orthogonal_ksd(known.problem, og.problems.cubic("hausdorff").exact(jax.random.key(0), 300))
    >>> right.p_value > 0.01, wrong.p_value < 0.01
    (True, True)
    """
    if statistic not in ("u", "v"):
        raise ValueError(f"statistic must be 'u' or 'v'; got {statistic!r}.")
    if not 0 < flip_probability <= 0.5:
        raise ValueError(f"flip_probability must lie in (0, 0.5]; got {flip_probability!r}.")
    n = jax.tree.leaves(draws)[0].shape[0]
    if n < 2:
        raise ValueError(f"orthogonal_ksd needs at least two draws; got {n}.")
    labels = _labels(groups, n, statistic, flip_probability)
    problem.check_whole()
    if problem.support is not None:
        problem, draws = problem.free, problem.support.from_user(draws)
    problem.check(first_of(draws))
    together = min(draws_together(problem) or block_size, n)
    x, drift, frames = _geometry(problem, draws, together, jax.random.key(seed + 1))
    if not bool(jnp.all(jnp.isfinite(x)) & jnp.all(jnp.isfinite(drift))):
        raise ValueError("some draws, or the score or curvature at them, are not finite; remove those draws first.")
    kernel = rbf() if rkhs_kernel is None else rkhs_kernel
    h = _median_bandwidth(x) if kernel.bandwidth is None else jnp.asarray(kernel.bandwidth, x.dtype)
    if not float(h) > 0:
        raise ValueError(
            "more than half of the draws coincide, so the median bandwidth is 0; give one: og.rbf(bandwidth=1.0)."
        )
    block_size = min(block_size, n)
    weight = None if problem.inequality is None else _boundary(problem, draws, frames, h, block_size)
    wide = () if rkhs_kernel is not None else WIDE
    kernels = (kernel, *(imq() for _ in wide))
    bandwidths = np.array([float(h), *(float(h) * np.log(n) * factor for factor in wide)], x.dtype)
    num_groups, replications = int(labels.max()) + 1, max(num_bootstrap, 1)
    signs = _wild_signs(jax.random.key(seed), num_groups, replications, flip_probability, x.dtype)
    parts = _rows(kernels, block_size, bandwidths, _Draws(x, drift, frames, weight), labels, signs)
    totals, diagonals, squares, resampled, features = (np.asarray(part, np.float64) for part in parts)
    observed, replicated = list(totals.sum(axis=0)), list(resampled.sum(axis=0))
    if rkhs_kernel is None:
        total, again = _scale(features, labels, np.asarray(signs, np.float64))
        observed, replicated = [*observed, total], [*replicated, again]
    pairs = n**2 - int((np.bincount(labels) ** 2).sum())
    error = np.sqrt(2 * squares[:, 0].sum()) if groups is None else replicated[0].std()
    return KSD(
        value=float(observed[0] / pairs if statistic == "u" else (observed[0] + diagonals[:, 0].sum()) / n**2),
        standard_error=float(error / pairs),
        p_value=_p_value(np.array(observed), np.array(replicated)) if num_bootstrap else None,
        bandwidth=float(h),
        num_draws=n,
    )


class _Draws(NamedTuple):
    """Flat positions (n, d), a (n, d), frames, and with inequalities b (n,) and D∇b (n, d)."""

    x: Array
    drift: Array
    frames: Frame
    weight: tuple[Array, Array] | None


def _p_value(observed: np.ndarray, replicated: np.ndarray) -> float:
    """How often resampling shows as much as was seen, in the largest of k statistics, each in its own standard errors.

    `observed` has shape (k,), and `replicated` (k, replications).
    """
    errors = np.maximum(replicated.std(axis=1), np.finfo(float).tiny)
    seen, shown = np.max(observed / errors), np.max(replicated / errors[:, None], axis=0)
    return float((1 + np.sum(shown >= seen)) / (1 + shown.size))


def _scale(features: np.ndarray, labels: np.ndarray, signs: np.ndarray) -> tuple[float, np.ndarray]:
    """Σ K_ij and its replications for φ_k(x) = b (x_k − c_k) e_k: K_ij = f_i·f_j, f_k = (b a + D∇b)_k (x_k − c_k) + b D_kk.

    Without constraints E f_k = 0 says E[x_k ∂_k log π] = −1, whatever the unit of x_k: a wrong spread shows here first.
    """
    sums = np.zeros((len(signs), features.shape[1]))
    np.add.at(sums, labels, features)
    gram = sums @ sums.T
    np.fill_diagonal(gram, 0.0)
    return float(gram.sum()), (signs * (gram @ signs)).sum(axis=0)


def _labels(groups: np.ndarray | None, n: int, statistic: str, flip_probability: float) -> np.ndarray:
    """The group of every draw, numbered from 0; each draw is its own where no groups are given."""
    if groups is None:
        return np.arange(n)
    if np.shape(groups) != (n,):
        raise ValueError(f"groups must have one label per draw, shape ({n},); got shape {np.shape(groups)}.")
    if statistic != "u" or flip_probability != 0.5:
        raise ValueError("groups go with statistic='u' and flip_probability=0.5: they carry the dependence themselves.")
    labels = np.unique(groups, return_inverse=True)[1]
    if labels.max() < 1:
        raise ValueError(
            "groups has one label only, so no pair of independent draws is left; cut the chain into stretches."
        )
    return labels


@compiled(static_argnums=2)
def _geometry(problem: Problem, draws: Position, block_size: int, key: Array) -> tuple[Array, Array, Frame]:
    """Flat positions, a, and the frames of all draws.

    Above 64 dimensions a has two Hutchinson probes per draw: the U-statistic is linear in each a_i, so it stays unbiased.
    """

    def one(argument: tuple[Position, Array]) -> tuple[Array, Array, Frame]:
        position, probe_key = argument
        x, logdensity, constraint, _ = problem.flatten(position)
        frame, drift, _ = stein_drift(logdensity, constraint, x, measure=problem.measure, num_probes=2, key=probe_key)
        return x, drift, frame

    keys = jax.random.split(key, jax.tree.leaves(draws)[0].shape[0])
    return over_particles(one, (jax.tree.map(jnp.asarray, draws), keys), block_size)


@compiled(static_argnums=4)
def _boundary(problem: Problem, draws: Position, frames: Frame, h: Array, block_size: int) -> tuple[Array, Array]:
    """The boundary weights b (n,) of all draws, and D∇b (n, d)."""
    unravel = problem.flatten(first_of(draws))[3]
    x = jax.vmap(lambda position: problem.flatten(position)[0])(draws)
    return boundary_weight(lambda x: problem.inequality_value(unravel(x)), frames, x, h, block_size)


@compiled(static_argnums=(0, 1))
def _rows(
    kernels: tuple[RKHSKernel, ...], block_size: int, bandwidths: Array, draws: _Draws, labels: Array, signs: Array
) -> tuple[Array, ...]:
    """Sums over the pairs of every draw, for every kernel; and the features f of `_scale`.

    For draw i, over the draws j of other groups: Σ K_ij, K_ii, Σ K_ij², and W_i Σ K_ij W_j per replication.
    """
    x, drift, frames, weight = draws
    n, d = x.shape
    x = x - jnp.mean(x, axis=0, keepdims=True)
    normals, signs = frames.root @ frames.jacobian, signs[labels]
    b = jnp.ones(n, x.dtype)
    if weight is not None:
        b, gradient = weight
        drift = b[:, None] * drift + gradient
    offsets = jnp.einsum("jmd,jd->jm", normals, x)
    along = jnp.sum(drift * x, axis=1)
    size = jnp.sum(normals**2, axis=(1, 2))

    def row(argument: tuple[Array, Array, Array, Array]) -> tuple[Array, ...]:
        index, point, a, normal = argument
        u = squared_distances(point, x)
        theirs = jnp.einsum("jmd,d->jm", normals, point) - offsets  # Q_j (x_i − x_j)
        mine = (normal @ point)[None] - x @ normal.T  # Q_i (x_i − x_j)
        overlap = jnp.einsum("jmd,kd->jmk", normals, normal)  # Q_j Q_iᵀ
        first = a @ point - x @ a - jnp.sum(jnp.einsum("jmd,d->jm", normals, a) * theirs, axis=1)  # a_i·D_j(x_i − x_j)
        second = drift @ point - along - jnp.sum((drift @ normal.T) * mine, axis=1)  # a_j·D_i(x_i − x_j)
        trace = d - size - size[index] + jnp.sum(overlap**2, axis=(1, 2))  # tr(D_i D_j)
        quadratic = u - jnp.sum(theirs**2, axis=1) - jnp.sum(mine**2, axis=1)
        quadratic = quadratic + jnp.einsum("jm,jmk,jk->j", theirs, overlap, mine)  # (x_i−x_j)ᵀ D_j D_i (x_i−x_j)
        both = b[index] * b
        gradients = b * first - b[index] * second + both * trace
        product, independent = drift @ a, labels != labels[index]

        def sums(kernel: RKHSKernel, h: Array) -> tuple[Array, Array, Array, Array]:
            k = kernel.profile(u, h)  # ∇_{x_j}k = −2κ' (x_i − x_j) = −∇_{x_i}k
            stein = k.value * product - 2 * k.first * gradients - 4 * k.second * both * quadratic
            others = jnp.where(independent, stein, 0.0)
            return jnp.sum(others), stein[index], jnp.sum(others**2), signs[index] * (others @ signs)

        by_kernel = [sums(kernel, bandwidths[i]) for i, kernel in enumerate(kernels)]
        return tuple(jnp.stack(parts) for parts in zip(*by_kernel, strict=True))

    features = drift * x + b[:, None] * (1 - jnp.sum(normals**2, axis=1))
    return *over_particles(row, (jnp.arange(n), x, drift, normals), block_size), features


def _wild_signs(key: Array, n: int, replications: int, flip_probability: float, dtype: Any) -> Array:
    """Signs (n, replications): a Markov chain along the draws that flips with the given probability."""
    if flip_probability == 0.5:
        return random_signs(key, (n, replications), dtype)
    first_key, flip_key = jax.random.split(key)
    first = random_signs(first_key, (1, replications), dtype)
    flips = jnp.where(jax.random.bernoulli(flip_key, flip_probability, (n - 1, replications)), -1, 1).astype(dtype)
    return jnp.cumprod(jnp.concatenate([first, flips]), axis=0)
