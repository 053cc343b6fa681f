"""The metric that warm-up fits to its draws: the covariance of all chains up to `DENSE_LIMIT` coordinates, variances above.

Σ = R[(1 − w)C + w·c·I + s·P]Rᵀ, with R Rᵀ the metric that the draws were made with, C the covariance of R⁻¹x over all chains and
c the mean of its diagonal. Draws on a set have no variance of their own across it: P is the mean projector on the normals of the
set, and s the geometric mean of C's eigenvalues. w = d/(d + 5n) for n draws keeps what few of them cannot tell as it was, in the
metric before. Everything is relative to that one, so units of coordinates play no part.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import Array

from ogradient.compilation import compiled
from ogradient.geometry import value_and_jacobian
from ogradient.mapping import draws_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.metric import mass_parameters

DENSE_LIMIT = 200  # coordinates; above, the metric is diagonal, and nothing is d × d
LEAST_SHARE = 1e-4  # of the largest variance: the least that a direction is given, so that the mass stays reasonable
LEAST_EIGENVALUE = 1e-7  # likewise of a dense metric, relative to the one before
NORMAL_POINTS = 64  # chains whose normals are looked at
COMPONENTS = 10  # directions of largest variance that lengths are judged by, beside the coordinates


def first_metric(units: np.ndarray) -> np.ndarray:
    """The metric to begin with: squares of units, as a matrix where it is going to be one."""
    return np.diag(units**2) if 1 < units.size <= DENSE_LIMIT else units**2


def correlation_condition(inverse_mass: np.ndarray) -> float:
    """How many times as large the largest eigenvalue of its correlations is as the least."""
    scale = np.sqrt(np.diagonal(inverse_mass))
    values = np.linalg.eigvalsh(inverse_mass / scale[:, None] / scale[None])
    return float(values[-1] / max(values[0], np.finfo(float).tiny))


def whiten(inverse_mass: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """R⁻¹x of draws (..., d), from their mean, in float64."""
    flat = draws.reshape(-1, draws.shape[-1]).astype(np.float64)
    flat = flat - flat.mean(axis=0)
    if inverse_mass.ndim == 1:
        return (flat / np.sqrt(inverse_mass)).reshape(draws.shape)
    return np.linalg.solve(mass_parameters(inverse_mass)["mass_factor"], flat.T).T.reshape(draws.shape)


def refit(
    problem: Problem, positions: Position, draws: np.ndarray, before: np.ndarray, units: np.ndarray
) -> np.ndarray:
    """The metric of draws (time, chain, d) that were made with the one `before`; positions are where normals are looked at."""
    z = whiten(before, draws).reshape(-1, draws.shape[-1])
    if before.ndim == 1:
        variance = np.var(z, axis=0) * before
        largest = np.max(variance / units**2)
        return np.maximum(variance, LEAST_SHARE * largest * units**2) if largest > 0 else before
    number, d = z.shape
    covariance = z.T @ z / number
    eigenvalues = np.linalg.eigvalsh(covariance)
    if not (np.all(np.isfinite(eigenvalues)) and eigenvalues[-1] > 0):
        return before
    weight = d / (d + 5 * number)
    covariance = (1 - weight) * covariance + weight * np.mean(np.diagonal(covariance)) * np.eye(d)
    root = mass_parameters(before)["mass_factor"]
    if problem.equality is not None:
        positive = eigenvalues[eigenvalues > LEAST_EIGENVALUE * eigenvalues[-1]]
        normals = np.asarray(
            _jacobians(problem, jax.tree.map(lambda leaf: leaf[:NORMAL_POINTS], positions)), np.float64
        )
        covariance += np.exp(np.mean(np.log(positive))) * _mean_projector(normals @ root)
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, LEAST_EIGENVALUE * values[-1])
    wide = root @ (vectors * np.sqrt(values))
    return wide @ wide.T


def _mean_projector(rows: np.ndarray) -> np.ndarray:
    """The mean over points of J⁺J, for rows (point, m, d) of any lengths."""
    lengths = np.linalg.norm(rows, axis=2, keepdims=True)
    unit = np.where(lengths > 0, rows / np.where(lengths > 0, lengths, 1.0), 0.0)
    unit = unit[np.all(np.isfinite(unit), axis=(1, 2))]
    if not len(unit):
        return np.zeros((rows.shape[2], rows.shape[2]))
    _, values, directions = np.linalg.svd(unit, full_matrices=False)
    directions = directions * (values > 1e-3)[..., None]
    return np.einsum("nki,nkj->ij", directions, directions) / len(unit)


@compiled
def _jacobians(problem: Problem, positions: Position) -> Array:
    def rows(position: Position) -> Array:
        x, _, constraint, _ = problem.flatten(position)
        return value_and_jacobian(constraint, x)[1]

    return over_particles(rows, positions, draws_together(problem))


def components(z: np.ndarray) -> np.ndarray:
    """Draws (time, chain, d) with their directions of largest variance as further coordinates."""
    flat = z.reshape(-1, z.shape[-1])
    some = flat[:: max(1, len(flat) // 500)]
    directions = np.linalg.svd(some - some.mean(axis=0), full_matrices=False)[2][:COMPONENTS]
    return np.concatenate([z, z @ directions.T], axis=2)
