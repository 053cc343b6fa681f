"""Gaussians under equality constraints, of any size."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.problem import Problem
from ogradient.problems.known import KnownProblem, Moment, means_and_variances, unsuitable_in


def transport(dim: int = 50, num_constraints: int = 5) -> KnownProblem:
    """Any size: y = φ(x), y_i = x_i + sin(x_{i+1}), y_d = x_d, log π = −½‖y‖², g = y_{1:m}. Then y_{m+1:d} ~ N(0, I)."""
    if not 1 <= num_constraints < dim:
        raise ValueError(f"num_constraints must lie between 1 and dim - 1; got {num_constraints} and dim={dim}.")
    m = num_constraints

    def phi(x: Array) -> Array:
        return x + jnp.concatenate([jnp.sin(x[1:]), jnp.zeros_like(x[:1])])

    def inverse(y: Array) -> Array:
        def back(following: Array, y_i: Array) -> tuple[Array, Array]:
            x_i = y_i - jnp.sin(following)
            return x_i, x_i

        _, rest = lax.scan(back, y[-1], y[:-1], reverse=True)
        return jnp.concatenate([rest, y[-1:]])

    def exact(key: Array, n: int) -> Array:
        free = jax.random.normal(key, (n, dim - m))
        return jax.vmap(inverse)(jnp.concatenate([jnp.zeros_like(free, shape=(n, m)), free], axis=1))

    # g needs the first m + 1 coordinates only. Taking the slice first keeps its derivatives cheap at any d.
    problem = Problem(lambda x: -0.5 * jnp.sum(phi(x) ** 2), equality=lambda x: phi(x[: m + 1])[:m])
    start_off = lambda key, n: 2 * jax.random.normal(key, (n, dim))
    moments = {
        "y_{m+1}": Moment(lambda x: phi(x)[m], 0.0),
        "y_{m+1}²": Moment(lambda x: phi(x)[m] ** 2, 1.0),
        "‖y_{m+1:}‖²/(d−m)": Moment(lambda x: jnp.mean(phi(x)[m:] ** 2), 1.0),
        "cos y_d": Moment(lambda x: jnp.cos(x[-1]), math.exp(-0.5)),
    }
    return KnownProblem("transport", problem, dim, exact, start_off, moments, exact, unsuitable_in(dim - m))


def affine_gaussian(dim: int = 5, num_constraints: int = 2, seed: int = 0) -> KnownProblem:
    """N(μ, Σ) given A x = b, with μ, Σ, A, b drawn from `seed`. Gaussian again; both measures agree and r = 0."""
    rng = np.random.default_rng(seed)
    mean, spread = rng.normal(size=dim), rng.normal(size=(dim, dim)) / math.sqrt(dim)
    covariance = spread @ spread.T + 0.5 * np.eye(dim)
    matrix, level = rng.normal(size=(num_constraints, dim)), rng.normal(size=num_constraints)
    gain = covariance @ matrix.T @ np.linalg.inv(matrix @ covariance @ matrix.T)
    new_mean = mean + gain @ (level - matrix @ mean)
    new_covariance = covariance - gain @ matrix @ covariance
    values, vectors = np.linalg.eigh(new_covariance)
    # The constraint takes m directions.
    root = vectors * np.sqrt(np.where(np.arange(dim) < num_constraints, 0, values))
    precision = np.linalg.inv(covariance)

    def logdensity(x: Array) -> Array:
        centred = x - jnp.asarray(mean, x.dtype)
        return -0.5 * centred @ jnp.asarray(precision, x.dtype) @ centred

    equality = lambda x: jnp.asarray(matrix, x.dtype) @ x - jnp.asarray(level, x.dtype)
    exact = lambda key, n: jnp.asarray(new_mean)[None] + jax.random.normal(key, (n, dim)) @ jnp.asarray(root.T)
    start_off = lambda key, n: 3 * jax.random.normal(key, (n, dim))
    moments = means_and_variances(range(dim), new_mean, np.diag(new_covariance), first=0)
    return KnownProblem(
        "affine_gaussian", Problem(logdensity, equality=equality), dim, exact, start_off, moments, exact
    )
