"""Spheres and rotations."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem import Problem
from ogradient.problems.draws import at_height, inverse_cdf, rejection, uniform_sphere
from ogradient.problems.known import KnownProblem, Moment, coordinate, means_and_variances, square_about, unsuitable_in


def von_mises_fisher(dim: int = 10, concentration: float = 10.0) -> KnownProblem:
    """The unit sphere with log π = κ μᵀx. E[μᵀx] = I_{d/2}(κ)/I_{d/2−1}(κ)."""
    ratio = _bessel_ratio(dim / 2, concentration)
    # Along t = μᵀx the density is e^{κt}(1 − t²)^{(d−3)/2}.
    grid = np.linspace(-1, 1, 200_001)
    height = inverse_cdf(grid, np.exp(concentration * (grid - 1)) * np.maximum(1 - grid**2, 0.0) ** ((dim - 3) / 2))
    problem = Problem(lambda x: concentration * x[0], equality=lambda x: jnp.sum(x**2) - 1)
    start_on = lambda key, n: uniform_sphere(key, n, dim)
    start_off = lambda key, n: 2 * jax.random.normal(key, (n, dim)) / math.sqrt(dim)
    exact = lambda key, n: at_height(height, key, n, dim)
    square = 1 - (dim - 1) / concentration * ratio
    moments = {"μᵀx": Moment(coordinate(0), ratio), "(μᵀx)²": Moment(square_about(0), square)}
    moments["x_d"] = Moment(coordinate(-1), 0.0)
    unsuitable = unsuitable_in(dim - 1)
    return KnownProblem("von_mises_fisher", problem, dim, start_on, start_off, moments, exact, unsuitable)


def bingham() -> KnownProblem:
    """The sphere in three dimensions with log π = xᵀ diag(0, 2, 5) x: two opposite modes, both to be visited."""
    weights = (0.0, 2.0, 5.0)
    truth = (0.1151698, 0.1952702, 0.6895600)

    def exact(key: Array, n: int) -> Array:
        """Rejection from the uniform law: the density is at most e⁵."""
        direction_key, accept_key = jax.random.split(key)
        points = uniform_sphere(direction_key, 60 * n, 3)
        return rejection(accept_key, points, jnp.sum(jnp.asarray(weights)[None] * points**2, axis=1) - max(weights), n)

    problem = Problem(lambda x: jnp.sum(jnp.asarray(weights, x.dtype) * x**2), equality=lambda x: jnp.sum(x**2) - 1)
    start_on, start_off = lambda key, n: uniform_sphere(key, n, 3), lambda key, n: 2 * jax.random.normal(key, (n, 3))
    moments = {f"x_{i + 1}²": Moment(square_about(i), truth[i]) for i in range(3)} | {"x_3": Moment(coordinate(2), 0.0)}
    return KnownProblem("bingham", problem, 3, start_on, start_off, moments, exact)


def orthogonal(n: int = 4) -> KnownProblem:
    """Rotations: n×n matrices with X Xᵀ = I and det X = 1, uniform (Haar); d = n², m = n(n+1)/2, positions flattened."""
    # int32 in either precision.
    upper = tuple(index.astype(np.int32) for index in np.triu_indices(n))
    matrix = lambda x: x.reshape(n, n)

    def exact(key: Array, count: int) -> Array:
        def one(key: Array) -> Array:
            q, r = jnp.linalg.qr(jax.random.normal(key, (n, n)))
            q = q * jnp.sign(jnp.diagonal(r))[None]
            return q.at[0].multiply(jnp.sign(jnp.linalg.det(q))).reshape(-1)

        return jax.vmap(one)(jax.random.split(key, count))

    equality = lambda x: (matrix(x) @ matrix(x).T - jnp.eye(n, dtype=x.dtype))[upper]
    start_off = lambda key, count: jnp.eye(n).reshape(1, -1) + 0.3 * jax.random.normal(key, (count, n * n))
    moments = {
        "trace": Moment(lambda x: jnp.trace(matrix(x)), 0.0),
        "trace²": Moment(lambda x: jnp.trace(matrix(x)) ** 2, 1.0),
        "trace⁴": Moment(lambda x: jnp.trace(matrix(x)) ** 4, 4.0 if n == 4 else 3.0),
        "x_1²": Moment(square_about(0), 1 / n),
    }
    return KnownProblem(
        "orthogonal", Problem(lambda x: 0.0, equality=equality), n * n, exact, start_off, moments, exact
    )


def sphere_affine(dim: int = 10, num_linear: int = 3, seed: int = 0) -> KnownProblem:
    """The unit sphere cut by A x = b: uniform on a smaller sphere, round the least-norm solution of A x = b."""
    if not 1 <= num_linear <= dim - 2:
        raise ValueError(f"num_linear must lie between 1 and dim - 2; got {num_linear} and dim={dim}.")
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(num_linear, dim))
    centre = np.linalg.pinv(matrix) @ matrix @ rng.normal(size=dim)
    centre *= 0.6 / np.linalg.norm(centre)
    level = matrix @ centre
    # An orthonormal basis of the directions with A x = 0.
    null = np.linalg.svd(matrix)[2][num_linear:]
    radius = math.sqrt(1 - centre @ centre)
    covariance = radius**2 / (dim - num_linear) * null.T @ null

    def exact(key: Array, n: int) -> Array:
        return jnp.asarray(centre)[None] + radius * uniform_sphere(key, n, dim - num_linear) @ jnp.asarray(null)

    on_plane = lambda x: jnp.asarray(matrix, x.dtype) @ x - jnp.asarray(level, x.dtype)
    on_sphere = lambda x: jnp.sum(x**2) - 1
    problem = Problem(lambda x: 0.0, equality=[on_sphere, on_plane])
    start_off = lambda key, n: 2 * uniform_sphere(key, n, dim)
    moments = means_and_variances(range(2), centre, np.diag(covariance), first=1)
    return KnownProblem("sphere_affine", problem, dim, exact, start_off, moments, exact)


def _bessel_ratio(order: float, argument: float) -> float:
    """I_ν(κ)/I_{ν−1}(κ) by its continued fraction, 1/(2ν/κ + 1/(2(ν+1)/κ + …)), evaluated from the far end."""
    value = 0.0
    for k in range(500, -1, -1):
        value = 1 / (2 * (order + k) / argument + value)
    return value
