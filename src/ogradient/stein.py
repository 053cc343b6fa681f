"""Reproducing kernels for particles: values and derivatives from squared distances, and the median bandwidth.

A kernel here is k(x, y) = κ(u/h), u = ‖x − y‖². All that samplers and discrepancies need of it is κ and its first two
derivatives in u, as numbers per pair: ∇_y k = −2 κ' (x − y) and ∇_x∇_yᵀ k = −2κ' I − 4κ'' (x − y)(x − y)ᵀ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

DIRECT_DIMENSIONS = 8  # up to these, distances come from differences; above, from a matrix product of centred particles
MEDIAN_PARTICLES = 1024  # the median distance of more particles is taken over so many of them


class KernelValues(NamedTuple):
    """κ, κ' and κ'' with respect to the squared distance, one number per pair."""

    value: Array
    first: Array
    second: Array


@dataclass(frozen=True)
class RKHSKernel:
    """A radial kernel: its profile, and how the bandwidth h is found.

    Attributes:
        name: for the records.
        profile: (u, h) -> `KernelValues`.
        bandwidth: a fixed h, or None for the median heuristic h = median of squared distances / log n (the paper's).
        every: with the median, recompute it every so many steps and keep it in between.
    """

    name: str
    profile: Callable[[Array, Array], KernelValues]
    bandwidth: float | None
    every: int

    def __post_init__(self) -> None:
        if self.bandwidth is not None and not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            allowed = "a finite, positive number, or None for the median"
            raise ValueError(f"bandwidth must be {allowed}; got {self.bandwidth!r}.")
        # A number of Python's can be hashed, an array cannot.
        if self.bandwidth is not None:
            object.__setattr__(self, "bandwidth", float(self.bandwidth))
        if self.every < 1:
            raise ValueError(f"every must be at least 1; got {self.every!r}.")

    def __repr__(self) -> str:
        return f"{self.name}(bandwidth={self.bandwidth}, every={self.every})"


def rbf(bandwidth: float | None = None, *, every: int = 1) -> RKHSKernel:
    """Gaussian kernel exp(−‖x−y‖²/h).

    >>> import ogradient as og
    >>> og.rbf(), og.rbf(2.0)
    (rbf(bandwidth=None, every=1), rbf(bandwidth=2.0, every=1))
    """
    return RKHSKernel("rbf", _rbf_profile, bandwidth, every)


def imq(bandwidth: float | None = None, *, every: int = 1) -> RKHSKernel:
    """Inverse multiquadric (1 + ‖x−y‖²/h)^{−1/2}: heavy tails, so that far particles still feel each other.

    >>> import ogradient as og
    >>> og.imq(1.0)
    imq(bandwidth=1.0, every=1)
    """
    return RKHSKernel("imq", _imq_profile, bandwidth, every)


def _rbf_profile(u: Array, h: Array) -> KernelValues:
    value = jnp.exp(-u / h)
    return KernelValues(value, -value / h, value / h**2)


def _imq_profile(u: Array, h: Array) -> KernelValues:
    base = 1 / (1 + u / h)
    value = jnp.sqrt(base)
    return KernelValues(value, -0.5 / h * value * base, 0.75 / h**2 * value * base**2)


def squared_distances(point: Array, points: Array) -> Array:
    """‖x − y_j‖² from one point (d,) to many (n, d). Give centred points: in many dimensions a product is used.

    ‖x‖² + ‖y‖² − 2x·y is a matrix product when mapped over points, but rounds like the squared norms; differences are
    exact between near points and cost nothing in few dimensions.
    """
    if points.shape[1] <= DIRECT_DIMENSIONS:
        return jnp.sum((points - point[None]) ** 2, axis=1)
    return jnp.maximum(jnp.sum(points**2, axis=1) + jnp.sum(point**2) - 2 * (points @ point), 0.0)


def median_bandwidth(particles: Array) -> Array:
    """The bandwidth h = median over pairs of ‖x_i − x_j‖² / log n; 0 if more than half of the pairs coincide.

    No sort: the median of non-negative numbers is found by bisection on their bit patterns, one counting pass per bit.
    Of more than `MEDIAN_PARTICLES` particles, evenly spaced ones are taken.
    """
    n = particles.shape[0]
    chosen = particles[:: -(-n // MEDIAN_PARTICLES)]
    k = chosen.shape[0]
    if k < 2:
        return jnp.zeros((), particles.dtype)
    chosen = chosen - jnp.mean(chosen, axis=0, keepdims=True)
    distances = jax.vmap(squared_distances, (0, None))(chosen, chosen)
    # Each pair twice, and k zeros on the diagonal. Seven digits of the median are plenty, and halve the passes.
    distances = jnp.where(jnp.eye(k, dtype=bool), 0.0, distances).astype(jnp.float32)
    pairs = k * (k - 1) // 2
    low = _order_statistic(distances, k + 2 * ((pairs - 1) // 2) + 1)
    if pairs % 2:
        median = low
    else:
        # The mean of the two middle pairs: the upper one is the next larger value, unless it equals the lower.
        reached = jnp.sum(distances <= low) >= k + 2 * (pairs // 2 + 1)
        above = jnp.min(jnp.where(distances > low, distances, jnp.inf))
        median = jnp.where(reached, low, 0.5 * (low + above))
    return (median / math.log(n)).astype(particles.dtype)


def _order_statistic(values: Array, rank: int) -> Array:
    """The smallest v among non-negative float32 values with at least `rank` of them ≤ v."""
    as_float = lambda bits: lax.bitcast_convert_type(bits, jnp.float32)

    def refine(step: Array, prefix: Array) -> Array:
        # Would a 0 in this bit leave enough values at or below? If not, the bit is 1. The sign bit is 0, and the order of
        # the other 31 is that of the numbers.
        bit = jnp.left_shift(jnp.uint32(1), jnp.uint32(30) - step.astype(jnp.uint32))
        enough = jnp.sum(values <= as_float(prefix | (bit - jnp.uint32(1)))) >= rank
        return jnp.where(enough, prefix, prefix | bit)

    return as_float(lax.fori_loop(jnp.int32(0), jnp.int32(31), refine, jnp.uint32(0)))
