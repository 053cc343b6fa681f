"""The mass of the exact samplers: M⁻¹ = R Rᵀ, with R a number, a diagonal, a lower triangular matrix, or of low rank.

Positions stay in the user's coordinates. Momenta are those of unit mass, p ~ N(0, I): a velocity is R p, and a gradient or a row
of the Jacobian acts on p as J R. No inverse of R is needed, and nothing is d × d but a dense R.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from ogradient.geometry import row_lengths


class LowRank(NamedTuple):
    """R = S(I + U diag(√λ − 1)Uᵀ): scales of the coordinates, and some directions that are wider or narrower than those."""

    scale: Any  # the diagonal of S, (d,)
    directions: Any  # U, (d, k), with orthonormal columns; a column of zeros is none
    change: Any  # √λ − 1, (k,)


Root = Array | LowRank


def mass_parameters(inverse_mass: Any) -> dict[str, Any]:
    """What a compiled kernel takes of M⁻¹: square roots of all entries, and the factor R of what may be a matrix.

    Whether a matrix is that, or a diagonal for a position of its shape, is known only with a position.
    """
    leaves = jax.tree.leaves(inverse_mass)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        factor = jnp.linalg.cholesky(leaves[0]) if _square(leaves) else None
        return {"mass_root": jax.tree.map(jnp.sqrt, inverse_mass), "mass_factor": factor}
    arrays = [np.asarray(leaf, np.float64) for leaf in leaves]
    if not all(np.all(np.isfinite(leaf)) for leaf in arrays):
        raise ValueError("inverse_mass must be finite.")
    factor = _cholesky(arrays[0]) if _square(arrays) else low_rank(arrays[0]) if _tall(arrays) else None
    if factor is None and not all(np.all(leaf > 0) for leaf in arrays):
        if _square(arrays):
            raise ValueError("inverse_mass must be positive; as a matrix symmetric and positive definite.")
        if _tall(arrays):
            raise ValueError("inverse_mass must be positive; of low rank, its columns after the first orthogonal.")
        raise ValueError("inverse_mass must be positive.")
    # Off the diagonal of a matrix entries may be negative; their roots are never used.
    return {"mass_root": jax.tree.map(lambda leaf: np.sqrt(np.abs(leaf)), inverse_mass), "mass_factor": factor}


def _square(leaves: list[Any]) -> bool:
    return len(leaves) == 1 and np.ndim(leaves[0]) == 2 and leaves[0].shape[0] == leaves[0].shape[1] > 1


def _tall(leaves: list[Any]) -> bool:
    return len(leaves) == 1 and np.ndim(leaves[0]) == 2 and leaves[0].shape[0] > leaves[0].shape[1] > 1


def _cholesky(matrix: np.ndarray) -> np.ndarray | None:
    """The lower factor of a symmetric, positive definite matrix, else None; of its correlations first, for any units."""
    diagonal = np.diagonal(matrix)
    if not np.all(diagonal > 0):
        return None
    scale = np.sqrt(diagonal)
    correlation = matrix / scale[:, None] / scale[None]
    if np.abs(correlation - correlation.T).max() > 1e-5:
        return None
    try:
        return scale[:, None] * np.linalg.cholesky((correlation + correlation.T) / 2)
    except np.linalg.LinAlgError:
        return None


def low_rank(columns: np.ndarray) -> LowRank | None:
    """R of M⁻¹ = S(I + U(Λ − I)Uᵀ)S from its columns (d, 1 + k): the variances S², then √λ u of each direction.

    None where the variances are not positive, or the directions not orthogonal.
    """
    variances, wide = columns[:, 0], columns[:, 1:]
    root = np.linalg.norm(wide, axis=0)
    directions = wide / np.where(root > 0, root, 1.0)
    products = directions.T @ directions - np.diag(root > 0)
    if not np.all(variances > 0) or np.abs(products).max() > 1e-5:
        return None
    return LowRank(np.sqrt(variances), directions, np.where(root > 0, root - 1, 0.0))


def mass_root(parameters: dict[str, Any], x: Array) -> Root:
    """R for a flat position x: () or (d,), its diagonal, or (d, d), or of low rank."""
    factor, given = parameters["mass_factor"], parameters["mass_root"]
    leaves = jax.tree.leaves(given)
    if not leaves:
        return jnp.ones_like(x)
    if (_square(leaves) or _tall(leaves)) and leaves[0].shape[0] == x.size:
        if factor is None:
            raise ValueError(
                "inverse_mass as a matrix must be symmetric and positive definite; of low rank, with orthogonal columns."
            )
        return jax.tree.map(lambda part: jnp.asarray(part, x.dtype), factor)
    flat = ravel_pytree(given)[0].astype(x.dtype)
    if flat.size not in (1, x.size):
        raise ValueError(
            f"inverse_mass must be a number or a ({x.size}, {x.size}) matrix or have one entry per coordinate ({x.size}); "
            f"got {flat.size} entries."
        )
    return jnp.broadcast_to(flat, x.shape)


def spread(root: Root, vectors: Array) -> Array:
    """R v of a vector (d,), or of every row of (k, d): from momenta to velocities."""
    if isinstance(root, LowRank):
        return spread(root.scale, _stretch(root, vectors))
    if root.ndim == 2:
        return vectors @ root.T
    return vectors * (root if vectors.ndim == 1 else root[None])


def gather(root: Root, rows: Array) -> Array:
    """Rᵀ v of a vector (d,), or of every row of (k, d): how gradients act on momenta."""
    if isinstance(root, LowRank):
        return _stretch(root, gather(root.scale, rows))
    if root.ndim == 2:
        return rows @ root
    return rows * (root if rows.ndim == 1 else root[None])


def _stretch(root: LowRank, vectors: Array) -> Array:
    """(I + U diag(√λ − 1)Uᵀ)v, likewise."""
    change = root.change if vectors.ndim == 1 else root.change[None]
    return vectors + (change * (vectors @ root.directions)) @ root.directions.T


def unit_lengths(root: Root) -> Array:
    """How far a coordinate moves with a momentum of length 1, (d,)."""
    if isinstance(root, LowRank):
        stretched = jnp.sum(((1 + root.change) ** 2 - 1)[None] * root.directions**2, axis=1)
        return root.scale * jnp.sqrt(jnp.maximum(1 + stretched, 0.0))
    return row_lengths(root) if root.ndim == 2 else root


def move_of(root: Root, origin: Array, x: Array, made: Array) -> Array:
    """R⁻¹(x − origin): by division where R is diagonal, else as it was `made` up."""
    return made if isinstance(root, LowRank) or root.ndim == 2 else (x - origin) / root
