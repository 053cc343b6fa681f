"""The metric that warm-up fits to its draws: dense up to `DENSE_LIMIT` coordinates, above variances and a few directions.

Dense: Σ = R[(1 − w)C + w·c·I + s·P]Rᵀ, with R Rᵀ the metric that the draws were made with, C the covariance of R⁻¹x over all
chains and c the mean of its diagonal. Draws on a set have no variance of their own across it: P is the mean projector on the
normals of the set, and s the geometric mean of C's eigenvalues. w = d/(d + 5n) for n draws keeps what few of them cannot tell as
it was, in the metric before. Everything is relative to that one, so units of coordinates play no part.

Diagonal: the same of the diagonals alone. A coordinate that others determine through g varies as they do, which may be little
in one place and much in another; its own variance would hold up every move along the set.

Low rank: the diagonal, and in its units the directions that are much wider or narrower (low_rank.py).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.compilation import compiled
from ogradient.geometry import factor, value_and_jacobian
from ogradient.mapping import draws_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.metric import gather, low_rank, mass_parameters
from ogradient.warmup.scales import flat_points

DENSE_LIMIT = 200  # coordinates; above, nothing is d × d
LEAST_SHARE = 1e-4  # of the largest variance: the least that a direction is given, so that the mass stays reasonable
LEAST_EIGENVALUE = 1e-7  # likewise of a dense metric, relative to the one before
NORMAL_POINTS = 64  # chains whose normals are looked at
COMPONENTS = 10  # directions of largest variance that lengths are judged by, beside the coordinates,
JUDGED = 2000  # of which there are so many at most
ROUNDS = 6  # of subspace iteration
FIXED_SHARE = 1e-4  # of a unit vector's square: what a fixed coordinate has along the set at most
NEARLY_ROUND = 3.0  # condition number of a metric below which it is made a multiple of the identity


def first_metric(units: np.ndarray) -> np.ndarray:
    """The metric to begin with: squares of units, as a matrix where it is going to be one."""
    return np.diag(units**2) if 1 < units.size <= DENSE_LIMIT else units**2


def kind_of(inverse_mass: np.ndarray) -> str:
    """What a person calls it."""
    if inverse_mass.ndim == 1:
        return "diagonal"
    if inverse_mass.shape[0] != inverse_mass.shape[1]:
        return "low-rank"
    return "diagonal" if np.count_nonzero(inverse_mass) == len(inverse_mass) else "dense"


def correlation_condition(inverse_mass: np.ndarray) -> float:
    """How many times as large the largest eigenvalue of its correlations is as the least."""
    if inverse_mass.ndim == 1:
        return 1.0
    if kind_of(inverse_mass) == "low-rank":
        stretches = np.sum(inverse_mass[:, 1:] ** 2, axis=0)
        values = np.sort(np.append(stretches[stretches > 0], 1.0))
    else:
        scale = np.sqrt(np.diagonal(inverse_mass))
        values = np.linalg.eigvalsh(inverse_mass / scale[:, None] / scale[None])
    return float(values[-1] / max(values[0], np.finfo(float).tiny))


def without_correlations(inverse_mass: np.ndarray) -> np.ndarray:
    """The metric of the variances alone. Of a matrix it is one as well, so that nothing is compiled for it."""
    return inverse_mass[:, 0] if kind_of(inverse_mass) == "low-rank" else np.diag(np.diagonal(inverse_mass))


def rounded(inverse_mass: np.ndarray) -> np.ndarray:
    """A metric that is nearly a multiple of the identity, made one.

    Half of what it says is chance, and on sets that are alike in all directions, such as spheres and rotations, solvers take half
    the iterations where the metric is so too.
    """
    if kind_of(inverse_mass) == "low-rank":
        return inverse_mass
    values = inverse_mass if inverse_mass.ndim == 1 else np.linalg.eigvalsh(inverse_mass)
    if values.min() * NEARLY_ROUND < values.max():
        return inverse_mass
    constant = np.full(len(values), np.exp(np.mean(np.log(values))))
    return constant if inverse_mass.ndim == 1 else np.diag(constant)


def whiten(inverse_mass: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """R⁻¹x of draws (..., d), from their mean, in float64."""
    flat = draws.reshape(-1, draws.shape[-1]).astype(np.float64)
    flat = flat - flat.mean(axis=0)
    if inverse_mass.ndim == 1:
        return (flat / np.sqrt(inverse_mass)).reshape(draws.shape)
    if (root := low_rank(inverse_mass) if kind_of(inverse_mass) == "low-rank" else None) is not None:
        flat = flat / root.scale
        narrower = 1 / (1 + root.change) - 1
        return (flat + (flat @ root.directions * narrower) @ root.directions.T).reshape(draws.shape)
    return np.linalg.solve(mass_parameters(inverse_mass)["mass_factor"], flat.T).T.reshape(draws.shape)


def refit(
    problem: Problem, positions: Position, draws: np.ndarray, before: np.ndarray, units: np.ndarray
) -> np.ndarray:
    """The metric of draws (time, chain, d) that were made with the one `before`; positions are where normals are looked at."""
    some = jax.tree.map(lambda leaf: leaf[:NORMAL_POINTS], positions)
    if before.ndim == 1:
        return _refit_diagonal(problem, some, draws, before, units)
    z = whiten(before, draws).reshape(-1, draws.shape[-1])
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
        normals = np.asarray(_jacobians(problem, some), np.float64)
        covariance += np.exp(np.mean(np.log(positive))) * _mean_projector(normals @ root)
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, LEAST_EIGENVALUE * values[-1])
    wide = root @ (vectors * np.sqrt(values))
    return wide @ wide.T


def _refit_diagonal(
    problem: Problem, positions: Position, draws: np.ndarray, before: np.ndarray, units: np.ndarray
) -> np.ndarray:
    variance = np.var(draws, axis=(0, 1), dtype=np.float64) / before
    if problem.equality is not None:
        across = np.asarray(_normal_shares(problem, positions, np.sqrt(before).astype(draws.dtype)), np.float64)
        across = np.where(np.isfinite(across), np.clip(across, 0.0, 1.0), 0.0)
        along = np.where(variance > 0, 1 - across, 0.0)
        if along.sum() > 0:
            usual = np.exp(np.sum(along * np.log(np.where(variance > 0, variance, 1.0))) / along.sum())
            variance = variance + usual * across
    variance = variance * before
    largest = np.max(variance / units**2)
    if not (np.all(np.isfinite(variance)) and largest > 0):
        return before
    return np.maximum(variance, LEAST_SHARE * largest * units**2)


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


@compiled(once=True)
def _jacobians(problem: Problem, positions: Position) -> Array:
    def rows(position: Position) -> Array:
        x, _, constraint, _ = problem.flatten(position)
        return value_and_jacobian(constraint, x)[1]

    return over_particles(rows, positions, draws_together(problem))


@compiled(once=True)
def _normal_shares(problem: Problem, positions: Position, root: Array) -> Array:
    """The mean over points of the diagonal of J⁺J, (d,), in the coordinates of a diagonal R."""

    def shares(position: Position) -> Array:
        x, _, constraint, _ = problem.flatten(position)
        value, jacobian = value_and_jacobian(constraint, x)
        frame = factor(value, gather(root, jacobian))
        return jnp.sum((frame.root @ frame.jacobian) ** 2, axis=0)

    return jnp.mean(over_particles(shares, positions, 1), axis=0)


def determined(problem: Problem, positions: Position) -> np.ndarray:
    """Which coordinates are fixed by g alone: their unit vectors are normals of the set at all positions that are looked at."""
    some = jax.tree.map(lambda leaf: leaf[:NORMAL_POINTS], positions)
    x = flat_points(some)
    if problem.equality is None:
        return np.zeros(x.shape[1], bool)
    return np.asarray(_normal_shares(problem, some, np.ones(x.shape[1], x.dtype))) >= 1 - FIXED_SHARE


def judged(inverse_mass: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """What draws (time, chain, d) are judged by: R⁻¹x and its widest directions; some coordinates of very many."""
    if draws.shape[-1] > JUDGED and inverse_mass.ndim == 1:
        chosen = np.linspace(0, draws.shape[-1] - 1, JUDGED).astype(int)
        z = whiten(inverse_mass[chosen], draws[..., chosen])
    else:
        z = whiten(inverse_mass, draws)
        z = z[..., :: -(-z.shape[-1] // JUDGED)]
    flat = z.reshape(-1, z.shape[-1])
    some = flat[:: max(1, len(flat) // 500)]
    return np.concatenate([z, z @ widest(some - some.mean(axis=0), COMPONENTS)], axis=2)


def widest(points: np.ndarray, number: int) -> np.ndarray:
    """The directions (d, number) along which points (n, d) have the largest mean square, the first the largest; orthonormal.

    By subspace iteration: some products with twice as many vectors. A singular value decomposition would take n²d operations,
    and on a busy machine far longer than that.
    """
    n, d = points.shape
    number = min(number, n, d)
    basis = np.random.default_rng(0).normal(size=(d, min(2 * number, n, d)))
    for _ in range(ROUNDS):
        basis = orthonormal(points.T @ (points @ orthonormal(basis)))
    within = points @ basis
    vectors = np.linalg.eigh(within.T @ within)[1]
    return basis @ vectors[:, ::-1][:, :number]


def orthonormal(columns: np.ndarray) -> np.ndarray:
    """A basis of the space of some columns (d, k), by their Gram matrix: k × k is all that LAPACK sees."""
    lengths = np.linalg.norm(columns, axis=0)
    columns = columns / np.where(lengths > 0, lengths, 1.0)
    values, vectors = np.linalg.eigh(columns.T @ columns)
    good = values > 1e-10 * values.max(initial=np.finfo(float).tiny)
    return columns @ (vectors[:, good] / np.sqrt(values[good]))
