"""Orthogonal-space kernel Stein discrepancy: are draws near {g = 0} spread along it as the law says? No truth needed.

KSD⊥² = mean over i, j of  a_iᵀa_j k + a_iᵀD_j∇_{x_j}k + a_jᵀD_i∇_{x_i}k + tr(D_i ∇_{x_i}∇_{x_j}ᵀk D_j),  a = D s + r.

It is zero only for the right law along the level set. It says nothing about |g| (report that beside it), and cannot see
wrong weights of components that are far apart. With inequalities h ≤ 0 the kernel is b(x) k(x, y) b(y), b vanishing on the
boundary (boundary.py): a becomes b a + D∇b, every D∇k has its b, and draws outside count for nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.boundary import boundary_weight
from ogradient.geometry import Frame, random_signs, stein_drift
from ogradient.problem import Position, Problem
from ogradient.stein import RKHSKernel, median_bandwidth, over_particles, rbf, squared_distances


class KSD(NamedTuple):
    """The discrepancy and what it takes to judge it."""

    value: float  # KSD⊥², U- or V-statistic; the U-statistic averages to 0 under the right law and may be negative
    standard_error: float  # of the value under the right law: √(2 Σ_{i≠j} K²)/(n(n−1))
    p_value: float | None  # how often independent draws of the right law would show as much
    bandwidth: float
    num_draws: int


def orthogonal_ksd(
    problem: Problem,
    draws: Position,
    *,
    rkhs_kernel: RKHSKernel | None = None,
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
        rkhs_kernel: `og.rbf()` by default, bandwidth by the median heuristic.
        statistic: "u" leaves the terms i = j out (unbiased), "v" keeps them (never negative).
        num_bootstrap: replications for the p-value; 0 for none.
        flip_probability: of the signs' Markov chain. ½ makes them independent, which is right for independent draws. The
            states of one chain depend on each other: thin them until they hardly do, or pass them in order with a smaller
            probability (about 1 over the correlation time), which carries the dependence into the bootstrap.
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
    problem.check_whole()
    problem.check(jax.tree.map(lambda leaf: leaf[0], draws))
    kernel = rbf() if rkhs_kernel is None else rkhs_kernel
    x, drift, frames = _geometry(problem, draws, min(problem.draws_together or block_size, n), jax.random.key(seed + 1))
    if not bool(jnp.all(jnp.isfinite(x)) & jnp.all(jnp.isfinite(drift))):
        raise ValueError("some draws, or the score or curvature at them, are not finite; remove those draws first.")
    h = jax.jit(median_bandwidth)(x) if kernel.bandwidth is None else jnp.asarray(kernel.bandwidth, x.dtype)
    if not float(h) > 0:
        raise ValueError(
            "more than half of the draws coincide, so the median bandwidth is 0; give one: og.rbf(bandwidth=1.0)."
        )
    share = jnp.ones(n, x.dtype)
    if problem.inequality is not None:
        share, gradient = _boundary(problem, draws, frames, h, min(block_size, n))
        drift = share[:, None] * drift + gradient
    signs = _wild_signs(jax.random.key(seed), n, max(num_bootstrap, 1), flip_probability, x.dtype)
    rows = _rows(kernel, h, _centred(x), drift, frames.root @ frames.jacobian, share, signs, min(block_size, n))
    total, diagonal, squares, resampled = (np.asarray(part, np.float64) for part in rows)
    pairs = n * (n - 1)
    observed = total.sum() / pairs
    replicated = (resampled * np.asarray(signs, np.float64)).sum(axis=0) / pairs
    return KSD(
        value=float(observed if statistic == "u" else (total.sum() + diagonal.sum()) / n**2),
        standard_error=float(np.sqrt(2 * squares.sum()) / pairs),
        p_value=float((1 + np.sum(replicated >= observed)) / (1 + num_bootstrap)) if num_bootstrap else None,
        bandwidth=float(h),
        num_draws=n,
    )


@partial(jax.jit, static_argnums=2)
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


@partial(jax.jit, static_argnums=4)
def _boundary(problem: Problem, draws: Position, frames: Frame, h: Array, block_size: int) -> tuple[Array, Array]:
    unravel = problem.flatten(jax.tree.map(lambda leaf: leaf[0], draws))[3]
    x = jax.vmap(lambda position: problem.flatten(position)[0])(draws)
    return boundary_weight(lambda x: problem.inequality_fn(unravel(x)), frames, x, h, block_size)


def _centred(x: Array) -> Array:
    return x - jnp.mean(x, axis=0, keepdims=True)


@partial(jax.jit, static_argnums=(0, 7))
def _rows(
    kernel: RKHSKernel, h: Array, x: Array, drift: Array, normals: Array, share: Array, signs: Array, block_size: int
) -> tuple[Array, Array, Array, Array]:
    """Per draw i, over j ≠ i: Σ K_ij, K_ii, Σ K_ij², and Σ K_ij W_j for every replication."""
    n, d = x.shape
    offsets = jnp.einsum("jmd,jd->jm", normals, x)
    along = jnp.sum(drift * x, axis=1)
    size = jnp.sum(normals**2, axis=(1, 2))

    def row(argument: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        index, point, a, normal = argument
        u = squared_distances(point, x)
        k = kernel.profile(u, h)
        weight = -2 * k.first  # ∇_{x_j}k = weight (x_i − x_j) = −∇_{x_i}k
        theirs = jnp.einsum("jmd,d->jm", normals, point) - offsets  # Q_j (x_i − x_j)
        mine = (normal @ point)[None] - x @ normal.T  # Q_i (x_i − x_j)
        overlap = jnp.einsum("jmd,kd->jmk", normals, normal)  # Q_j Q_iᵀ
        first = a @ point - x @ a - jnp.sum(jnp.einsum("jmd,d->jm", normals, a) * theirs, axis=1)  # a_i·D_j(x_i − x_j)
        second = drift @ point - along - jnp.sum((drift @ normal.T) * mine, axis=1)  # a_j·D_i(x_i − x_j)
        trace = d - size - size[index] + jnp.sum(overlap**2, axis=(1, 2))  # tr(D_i D_j)
        quadratic = u - jnp.sum(theirs**2, axis=1) - jnp.sum(mine**2, axis=1)
        quadratic = quadratic + jnp.einsum("jm,jmk,jk->j", theirs, overlap, mine)  # (x_i−x_j)ᵀ D_j D_i (x_i−x_j)
        both = share[index] * share
        stein = k.value * (drift @ a) + weight * (share * first - share[index] * second + both * trace)
        stein = stein - 4 * k.second * both * quadratic
        others = jnp.where(jnp.arange(n) == index, 0.0, stein)
        return jnp.sum(others), stein[index], jnp.sum(others**2), others @ signs

    return over_particles(row, (jnp.arange(n), x, drift, normals), block_size)


def _wild_signs(key: Array, n: int, replications: int, flip_probability: float, dtype: Any) -> Array:
    """Signs (n, replications): a Markov chain along the draws that flips with the given probability."""
    if flip_probability == 0.5:
        return random_signs(key, (n, replications), dtype)
    first_key, flip_key = jax.random.split(key)
    first = random_signs(first_key, (1, replications), dtype)
    flips = jnp.where(jax.random.bernoulli(flip_key, flip_probability, (n - 1, replications)), -1, 1).astype(dtype)
    return jnp.cumprod(jnp.concatenate([first, flips]), axis=0)
