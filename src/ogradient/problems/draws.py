"""Exact draws: from tabulated densities, on spheres, and by rejection."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Draw = Callable[[Array, int], Array]  # (key, n) -> (n, d)


def inverse_cdf(grid: np.ndarray, density: np.ndarray) -> Draw:
    """Draws (n,) from a density tabulated on a fine grid, by inverting its distribution function."""
    cumulative = np.concatenate([[0], np.cumsum(0.5 * np.diff(grid) * (density[1:] + density[:-1]))])

    def draw(key: Array, n: int) -> Array:
        return jnp.interp(jax.random.uniform(key, (n,)), jnp.asarray(cumulative / cumulative[-1]), jnp.asarray(grid))

    return draw


def expectation(grid: np.ndarray, density: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> float:
    """E[f] under a density tabulated on a fine grid."""
    return float(np.trapezoid(function(grid) * density, grid) / np.trapezoid(density, grid))


def rejection(key: Array, points: Array, log_ratio: Array, n: int) -> Array:
    """The first n of many proposals that are accepted, each with the probability exp(log_ratio)."""
    accepted = jnp.log(jax.random.uniform(key, log_ratio.shape)) < log_ratio
    return points[jnp.argsort(~accepted, stable=True)[:n]]


def uniform_sphere(key: Array, n: int, dim: int) -> Array:
    """Points (n, dim) on the unit sphere, uniform."""
    z = jax.random.normal(key, (n, dim))
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


def at_height(height: Draw, key: Array, n: int, dim: int) -> Array:
    """Points of the unit sphere with x₁ drawn by `height` and the rest uniform around it."""
    height_key, direction_key = jax.random.split(key)
    t = height(height_key, n)[:, None]
    return jnp.concatenate([t, jnp.sqrt(1 - t**2) * uniform_sphere(direction_key, n, dim - 1)], axis=1)
