"""Problems of the comparison with other libraries that `og.problems` does not have, each with its truth where there is one."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

import ogradient as og
from ogradient.problems.known import KnownProblem, Moment, coordinate, means_and_variances


def rotated_gaussian(dim=60, condition=1e4, rows=3):
    """N(0, Σ) given A x = 1: variances from 1 to `condition` along random directions. Truth by Gaussian conditioning."""
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    variances, matrix = np.geomspace(1, condition, dim), rng.normal(size=(rows, dim))
    covariance = directions * variances @ directions.T
    precision = directions / variances @ directions.T
    gain = covariance @ matrix.T @ np.linalg.inv(matrix @ covariance @ matrix.T)
    mean, spread = gain @ np.ones(rows), covariance - gain @ matrix @ covariance
    problem = og.Problem(
        lambda x: -0.5 * x @ jnp.asarray(precision, x.dtype) @ x,
        equality=lambda x: jnp.asarray(matrix, x.dtype) @ x - 1,
    )
    moments = means_and_variances((0, 1, dim - 1), mean, np.diag(spread), first=0)
    return with_landed_starts(
        "rotated_gaussian", problem, dim, lambda key, n: 10 * normal(key, n, dim), moments
    ), matrix


def simplex(dim=30):
    """The uniform law on Σx = 1, x ≥ 0: Dirichlet(1, …, 1)."""
    problem = og.Problem(lambda x: jnp.zeros((), x.dtype), lambda x: jnp.sum(x) - 1, lambda x: -x)
    mean, variance = np.full(dim, 1 / dim), np.full(dim, (dim - 1) / (dim**2 * (dim + 1)))
    exact = lambda key, n: jax.random.dirichlet(key, jnp.ones(dim), (n,))
    start_off = lambda key, n: jax.random.uniform(key, (n, dim), minval=0.5 / dim, maxval=4 / dim)
    moments = means_and_variances((0, dim - 1), mean, variance, first=1)
    return KnownProblem("simplex", problem, dim, exact, start_off, moments, exact)


def half_normals(dim=20):
    """N(0, I) where all coordinates are positive: inequalities alone. E[x] = √(2/π), E[x²] = 1."""
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), inequality=lambda x: -x)
    exact = lambda key, n: jnp.abs(normal(key, n, dim))
    mean = np.full(dim, math.sqrt(2 / math.pi))
    moments = means_and_variances((0, dim - 1), mean, 1 - mean**2, first=1)
    start_off = lambda key, n: jax.random.uniform(key, (n, dim), minval=1.0, maxval=4.0)
    return KnownProblem("half_normals", problem, dim, exact, start_off, moments, exact)


def bond_chain(atoms=30, stiffness=2.0):
    """Atoms in space with bonds of length 1, log π = −½‖x₁‖² + κ Σ b_i·b_{i+1}: a worm-like chain, the first atom held.

    Bonds b_i = x_{i+1} − x_i and x₁ are coordinates of unit Jacobian, and ‖b_i‖² = 1 leaves the uniform law on each sphere. So
    conditionally t = b_i·b_{i+1} has density ∝ e^{κt} on [−1, 1], and E[b_i·b_j] = (coth κ − 1/κ)^{|i−j|}.
    """
    bonds = lambda x: jnp.diff(x.reshape(atoms, 3), axis=0)

    def logdensity(x):
        b = bonds(x)
        return -0.5 * jnp.sum(x[:3] ** 2) + stiffness * jnp.sum(b[1:] * b[:-1])

    bend = 1 / math.tanh(stiffness) - 1 / stiffness
    apart = np.abs(np.subtract.outer(np.arange(atoms - 1), np.arange(atoms - 1)))
    moments = {
        "b·b'": Moment(lambda x: jnp.mean(jnp.sum(bonds(x)[1:] * bonds(x)[:-1], axis=1)), bend),
        "end to end²": Moment(lambda x: jnp.sum((x[-3:] - x[:3]) ** 2), float(np.sum(bend**apart))),
        "x_1": Moment(coordinate(0), 0.0),
    }
    problem = og.Problem(logdensity, equality=lambda x: jnp.sum(bonds(x) ** 2, axis=1) - 1)
    start_off = lambda key, n: jnp.cumsum(normal(key, n, 3 * atoms).reshape(n, atoms, 3) / 2, axis=1).reshape(n, -1)
    return with_landed_starts("bond_chain", problem, 3 * atoms, start_off, moments)


def pressure(dim=20, sensors=3, cells=100):
    """A noiseless inverse problem: the pressure of −(e^u p')' = 1, p(0) = p(1) = 0, is known exactly at some places.

    u is a Gaussian field with `dim` coefficients x ~ N(0, I). In one dimension p(s) = ∫₀ˢ (F − t) e^{−u(t)} dt, with the flow F
    that makes p(1) = 0. g is in units of 0.05, about the spread of p under the prior. The truth is not known.
    """
    place = (np.arange(cells) + 0.5) / cells
    wave = np.arange(1, dim + 1)
    basis = 1.5 / wave * np.sin(np.pi * np.outer(place, wave))
    # Cells count as far as they lie left of the sensor.
    at = (
        np.clip(np.outer(np.arange(1, sensors + 1) / (sensors + 1), np.full(cells, cells)) - np.arange(cells), 0, 1)
        / cells
    )

    def observed(x):
        resistance = jnp.exp(-jnp.asarray(basis, x.dtype) @ x)
        s = jnp.asarray(place, x.dtype)
        flow = jnp.sum(s * resistance) / jnp.sum(resistance)
        return jnp.asarray(at, x.dtype) @ ((flow - s) * resistance)

    hidden = np.random.default_rng(3).normal(size=dim)
    data = np.asarray(observed(jnp.asarray(hidden, jnp.float32)))
    problem = og.Problem(
        lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: (observed(x) - jnp.asarray(data, x.dtype)) / 0.05
    )
    return with_landed_starts("pressure", problem, dim, lambda key, n: normal(key, n, dim), {})


def income(data, rows=2000):
    """Logistic regression on Adult whose predictions have no covariance with sex, in whitened coordinates."""
    from ogradient.datasets import adult
    from ogradient.experiments.reference import build

    task = build(adult(data), rows, 0)
    start_off = lambda key, n: 0.5 * normal(key, n, task.dim)
    return with_landed_starts("income", task.problem, task.dim, start_off, {})


def normal(key, n, dim):
    return jax.random.normal(key, (n, dim))


def with_landed_starts(name, problem, dim, start_off, moments):
    """A problem without exact draws: those of its starts on the set are landed."""
    start_on = lambda key, n: og.land(problem, start_off(key, n)).position
    return KnownProblem(name, problem, dim, start_on, start_off, moments)
