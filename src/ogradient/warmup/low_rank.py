"""The directions of a low-rank metric: where draws are much wider, or much narrower, than in most directions.

Wide directions are seen in the draws, whose covariance in units of the diagonal is C. Narrow ones are seen in the forces along
the set, whose covariance is about C⁻¹. With few draws in many coordinates the widest direction of a sample is mostly chance. So
one half of the chains says which directions to look at, and the other half how wide they are: the geometric mean of the
covariance of draws and of the inverse covariance of forces, in the space of those directions. Where there are no forces, as of
a flat law, the draws alone say so. What is usual is the mean width of the other directions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.compilation import compiled
from ogradient.geometry import is_affine, project
from ogradient.mapping import draws_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.rattle import potential_of
from ogradient.warmup.metric import orthonormal, widest

RANK = 32  # directions at most
CUTOFF = (
    2.5  # times as wide or as narrow, in variance, as is usual: less is within the noise, and not worth a direction
)
POINTS = 800  # draws in each half that are looked at
RIDGE = 1e-4  # of the mean variance: what a covariance has at least


def with_directions(
    problem: Problem, positions: Position, draws: np.ndarray, variances: np.ndarray
) -> np.ndarray | None:
    """The columns (d, 1 + RANK) of a low-rank metric for draws (time, chain, d), as `og.chmc` takes them.

    None where no direction is much wider or narrower than the others.
    """
    scale = np.sqrt(variances)
    halves = []
    for half in _halves(draws):
        points = half.reshape(-1, half.shape[-1])
        # Always as many, some twice if need be: one program serves all windows.
        points = points[np.linspace(0, len(points) - 1, POINTS).astype(int)]
        forces = np.asarray(_forces(problem, positions, points, scale.astype(draws.dtype)), np.float64)
        z = (points - points.mean(axis=0, dtype=np.float64)) / scale
        good = np.all(np.isfinite(z), axis=1) & np.all(np.isfinite(forces), axis=1)
        halves.append((z[good], forces[good] - forces[good].mean(axis=0) if good.any() else forces[good]))
    if min(len(z) for z, _ in halves) < 2 * RANK:
        return None
    # Twice, since columns that nearly depend on each other are orthogonal to few digits after once.
    basis = orthonormal(orthonormal(np.concatenate([widest(part, RANK) for part in halves[0]], axis=1)))
    points, forces = halves[1]
    widths, vectors = _widths(points @ basis, forces @ basis)
    usual = _usual(points, basis, widths)
    widths = widths / usual
    chosen = np.argsort(-np.abs(np.log(widths)))[:RANK]
    chosen = chosen[np.abs(np.log(widths[chosen])) > np.log(CUTOFF)]
    if not chosen.size:
        return None
    columns = np.zeros((len(variances), 1 + RANK))
    columns[:, 0] = usual * variances
    columns[:, 1 : 1 + chosen.size] = basis @ vectors[:, chosen] * np.sqrt(widths[chosen])
    return columns


def _halves(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two halves that know little of each other: of the chains, or of the time where there are few chains."""
    time, chains = draws.shape[:2]
    if chains >= 4:
        return draws[:, : chains // 2], draws[:, chains // 2 :]
    return draws[: time // 2], draws[time // 2 :]


def _widths(draws: np.ndarray, forces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and vectors of the geometric mean of cov(draws) and cov(forces)⁻¹: the metric between what both say."""
    inner = _covariance(draws)
    if not np.any(forces):
        return np.linalg.eigh(inner)
    values, vectors = np.linalg.eigh(_covariance(forces))
    root, inverse = (vectors * values**power @ vectors.T for power in (0.5, -0.5))
    values, vectors = np.linalg.eigh(root @ inner @ root)
    middle = inverse @ (vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T) @ inverse
    values, vectors = np.linalg.eigh((middle + middle.T) / 2)
    return np.maximum(values, np.finfo(float).tiny), vectors


def _usual(points: np.ndarray, basis: np.ndarray, widths: np.ndarray) -> float:
    """The mean variance of points (n, d) in the directions that are not in a basis (d, k)."""
    rest, others = points.shape[1] - basis.shape[1], np.sum((points - points @ basis @ basis.T) ** 2)
    return float(others / len(points) / rest) if rest > 0 and others > 0 else float(np.median(widths))


def _covariance(draws: np.ndarray) -> np.ndarray:
    """That of draws (n, k), with a ridge, so that it has an inverse; the identity where all are 0."""
    number, k = draws.shape
    covariance = draws.T @ draws / number
    mean = np.trace(covariance) / k
    return covariance + RIDGE * mean * np.eye(k) if mean > 0 else np.eye(k)


@compiled
def _forces(problem: Problem, positions: Position, points: Array, scale: Array) -> Array:
    """The force along the set, −D Rᵀ∇V, at points (n, d), in the coordinates of a diagonal R."""
    unravel = problem.flatten(jax.tree.map(lambda leaf: leaf[0], positions))[3]
    equality = lambda x: problem.equality_value(unravel(x))
    logdensity = lambda x: problem.logdensity(unravel(x))
    flat = is_affine(equality, jnp.zeros_like(points[0]))
    potential = potential_of(logdensity, equality, scale, measure=problem.measure, curved=not flat)

    def force(x: Array) -> Array:
        _, gradient, place = potential(x)
        return -project(place.frame, gradient)

    return over_particles(force, points, draws_together(problem) or 16)
