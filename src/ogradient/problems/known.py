"""What a problem with a known answer consists of, and tools for drawing from one-dimensional densities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem import Problem

Draw = Callable[[Array, int], Array]  # (key, n) -> (n, d)
FREE_DIRECTIONS = 8  # above which a few hundred particles of SVGD lose variance
MANY_DIRECTIONS = "so many free directions need more particles than usual: SVGD loses variance"


class Moment(NamedTuple):
    """A function of one position, and its true expectation."""

    function: Callable[[Array], Array]
    value: float


@dataclass(frozen=True)
class KnownProblem:
    """A problem, where to start it, and what the answer is."""

    name: str
    problem: Problem
    dim: int
    start_on: Draw
    start_off: Draw
    moments: dict[str, Moment]
    exact: Draw | None = field(default=None)  # independent draws of the law itself
    unsuitable: dict[str, str] = field(default_factory=dict)  # samplers that cannot do it, and why


def coordinate(i: int) -> Callable[[Array], Array]:
    """X ↦ x_i."""
    return lambda x: x[i]


def square_about(i: int, centre: float) -> Callable[[Array], Array]:
    """X ↦ (x_i − centre)²."""
    return lambda x: (x[i] - float(centre)) ** 2


def inverse_cdf(grid: np.ndarray, density: np.ndarray) -> Callable[[Array, int], Array]:
    """Draws (n,) from a density tabulated on a fine grid, by inverting its distribution function."""
    cumulative = np.concatenate([[0], np.cumsum(0.5 * np.diff(grid) * (density[1:] + density[:-1]))])

    def draw(key: Array, n: int) -> Array:
        return jnp.interp(jax.random.uniform(key, (n,)), jnp.asarray(cumulative / cumulative[-1]), jnp.asarray(grid))

    return draw


def expectation(grid: np.ndarray, density: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> float:
    """E[f] under a density tabulated on a fine grid."""
    return float(np.trapezoid(function(grid) * density, grid) / np.trapezoid(density, grid))


def accepted_first(points: Array, accepted: Array, n: int) -> Array:
    """The first n accepted of many proposals."""
    return points[jnp.argsort(~accepted, stable=True)[:n]]


def uniform_sphere(key: Array, n: int, dim: int) -> Array:
    """Points on the unit sphere."""
    z = jax.random.normal(key, (n, dim))
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)
