"""g, its Jacobian and their Gram matrix at one point, and what follows from first derivatives: projection and landing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

ConstraintFn = Callable[[Array], Array]


class Frame(NamedTuple):
    """g and its first derivative at a point, with G factored once; for m = 1 that is a division."""

    value: Array  # g, (m,)
    jacobian: Array  # J, (m, d)
    root: Array  # (m, m) with G⁻¹ = rootᵀ root; 0 in the columns whose gradient vanishes
    half_log_det: Array  # ½ log det G, the log of the factor between the two measures
    deficient: Array  # bool: the rows are dependent, or one vanishes


def frame_at(constraint: ConstraintFn, x: Array) -> Frame:
    """Evaluate g and J at x (one forward and m backward passes) and factor G = J Jᵀ.

    Rows are scaled to unit length first, so that constraints in different units do not spoil the conditioning, and a
    relative ridge keeps redundant rows solvable.
    """
    return factor(*value_and_jacobian(constraint, x))


def value_and_jacobian(constraint: ConstraintFn, x: Array) -> tuple[Array, Array]:
    """G (m,) and J (m, d) at x."""
    value, pullback = jax.vjp(constraint, x)
    rows = jnp.eye(value.size, dtype=value.dtype)
    if value.size == 1:  # without a mapped axis, with which compilers do less well
        return value, pullback(rows[0])[0][None]
    return value, jax.vmap(pullback)(rows)[0]


def factor(value: Array, jacobian: Array, active: Array | None = None) -> Frame:
    """The frame of given rows. Rows that are not `active`, which must be 0, are as if they were not there."""
    m, dtype = value.size, jacobian.dtype
    if m == 0:
        zero = jnp.zeros((), dtype)
        return Frame(value, jacobian, jnp.zeros((0, 0), dtype), zero, jnp.zeros((), bool))
    lengths = row_lengths(jacobian)
    vanishing = ~(lengths > 0)
    gone = vanishing if active is None else vanishing & active
    safe = jnp.where(vanishing, 1.0, lengths)
    scale = jnp.where(vanishing, 0.0, 1 / safe)
    if m == 1:
        half_log_det = jnp.sum(jnp.log(lengths if active is None else jnp.where(active, lengths, 1.0)))
        return Frame(value, jacobian, scale[:, None], half_log_det, gone[0])
    unit = jacobian * scale[:, None]
    ridge = 8 * m * jnp.finfo(dtype).eps
    diagonal = jnp.full(m, ridge, dtype)
    if active is not None:  # a 1 on the diagonal in place of a row that is not there keeps shapes static
        diagonal = jnp.where(active, diagonal, 1.0)
    cholesky = jnp.linalg.cholesky(unit @ unit.T + jnp.diag(diagonal))
    root = _invert_lower(cholesky) * scale[None]  # L⁻¹S
    pivots = jnp.diagonal(cholesky)
    # A row that depends on earlier ones leaves a pivot² of about the ridge. It counts for nothing, so that a row given twice
    # has the volume of the row.
    counts = (pivots**2 > 4 * ridge) & ~vanishing
    half_log_det = jnp.sum(jnp.where(counts, jnp.log(pivots) + jnp.log(safe), 0.0))
    deficient = jnp.any(gone) | ~jnp.all(pivots**2 > 4 * ridge)
    return Frame(value, jacobian, root, half_log_det, deficient)


def row_lengths(rows: Array) -> Array:
    """‖row‖ of every row of (m, d), in any units: entries are divided by the largest before they are squared.

    In float32 a square is 0 below 1e-19 and infinite above 2e19; gradients of a set of size 1e-10, in scaled coordinates, get
    there.
    """
    largest = jnp.max(jnp.abs(rows), axis=1, initial=0.0)
    divisor = jnp.where(largest >= jnp.finfo(rows.dtype).tiny, largest, 1.0)
    return divisor * jnp.sqrt(jnp.sum((rows / divisor[:, None]) ** 2, axis=1))


def dependent_rows(frame: Frame) -> Array:
    """Which rows (m,) depend on earlier ones, or vanish: the pivots of the scaled Gram matrix are 1/(‖J_i‖ root_ii)."""
    m, eps = frame.value.size, jnp.finfo(frame.jacobian.dtype).eps
    inverse_pivots = row_lengths(frame.jacobian) * jnp.diagonal(frame.root)
    return ~((inverse_pivots > 0) & (inverse_pivots**2 * (4 * 8 * m * eps) < 1))


def _invert_lower(lower: Array) -> Array:
    """L⁻¹ of a lower triangular matrix by matrix products alone.

    Triangular solves with many right-hand sides go to a threaded library on CPU, which can be hundreds of times slower in a
    mapped loop on a busy machine. Blocks are halved down to 8×8; there each round of X ← X − X M X doubles the size of the
    diagonal blocks that X inverts, M being the part of L between them.
    """
    m = lower.shape[0]
    if m > 8:
        h = m // 2
        first, last = _invert_lower(lower[:h, :h]), _invert_lower(lower[h:, h:])
        corner = -last @ (lower[h:, :h] @ first)
        return jnp.block([[first, jnp.zeros((h, m - h), lower.dtype)], [corner, last]])
    inverse = jnp.diag(1 / jnp.diagonal(lower))
    index = np.arange(m)
    for size in (1, 2, 4):
        if size < m:
            block = index // size
            between = (block[:, None] % 2 == 1) & (block[None] == block[:, None] - 1)
            inverse = inverse - inverse @ jnp.where(between, lower, 0.0) @ inverse
    return inverse


def solve(frame: Frame, values: Array) -> Array:
    """G⁻¹ applied to a vector of shape (m,) or to the columns of an (m, k) array.

    By its root, twice: the product rootᵀ root itself would lose half the digits when rows are nearly dependent.
    """
    return frame.root.T @ (frame.root @ values)


def steer(frame: Frame, vector: Array, rate: Array) -> Array:
    """The vector nearest to `vector` along which g changes at the given rate: D v + J⁺ rate.

    This one formula is the projection (rate 0), the landing (vector 0, rate −ψ(g)) and the whole O-Gradient step.
    """
    return vector + solve(frame, rate - frame.jacobian @ vector) @ frame.jacobian


def project(frame: Frame, vector: Array) -> Array:
    """Tangent projection D v = v − J⁺(J v)."""
    return steer(frame, vector, jnp.zeros_like(frame.value))


def psi(value: Array, alpha: float | Array, beta: float = 0.0) -> Array:
    """ψ(y) = α sign(y)|y|^{1+β}, elementwise: how fast g is pulled to 0."""
    return alpha * value if beta == 0 else alpha * value * jnp.abs(value) ** beta


def landing(frame: Frame, alpha: float | Array, beta: float = 0.0) -> Array:
    """Landing velocity v♯ = −J⁺ψ(g), along which dg/dt = −ψ(g) (paper, eq. for v♯)."""
    return steer(frame, jnp.zeros(frame.jacobian.shape[1:], frame.jacobian.dtype), -psi(frame.value, alpha, beta))
