"""g, its Jacobian and their Gram matrix at one point, and what follows from first derivatives: projection and landing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

ConstraintFn = Callable[[Array], Array]
DEPENDENT = 4  # times the ridge: a row whose pivot² is below that depends on earlier rows


class Frame(NamedTuple):
    """g and its first derivative at a point, with G factored once; for m = 1 that is a division."""

    value: Array  # g, (m,)
    jacobian: Array  # J, (m, d)
    root: Array  # (m, m) with G⁻¹ = rootᵀ root; 0 in the columns whose gradient vanishes
    half_log_det: Array  # ½ log det G, the log of the factor between the two measures
    deficient: Array  # bool: the rows are dependent, or one vanishes


class Local(NamedTuple):
    """What a step needs to know at a point: log π, its gradient, and the frame of the constraint."""

    logdensity: Array
    score: Array  # ∇log π, (d,)
    frame: Frame


def evaluate(logdensity: Callable[[Array], Array], constraint: ConstraintFn, x: Array) -> Local:
    """Log π, ∇log π, g and J at x: one forward pass, one backward pass for log π and one for each row of g.

    All samplers near a constraint come through here; those on it have `rattle.potential_of`, which knows their mass. Where
    log π and g call one function, such as the user's `joint_fn`, the compiler finds their forward passes equal and
    computes one.
    """
    value, score = jax.value_and_grad(logdensity)(x)
    return Local(value, score, frame_at(constraint, x))


def frame_at(constraint: ConstraintFn, x: Array) -> Frame:
    """Evaluate g and J at x (one forward and m backward passes) and factor G = J Jᵀ.

    Rows are scaled to unit length first, so that constraints in different units do not spoil the conditioning, and a
    relative ridge keeps redundant rows solvable.
    """
    return factor(*value_and_jacobian(constraint, x))


def value_and_jacobian(constraint: ConstraintFn, x: Array) -> tuple[Array, Array]:
    """The values g (m,) and the Jacobian J (m, d) at x."""
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
    diagonal = jnp.full(m, _ridge(m, dtype), dtype)
    if active is not None:  # a 1 on the diagonal in place of a row that is not there keeps shapes static
        diagonal = jnp.where(active, diagonal, 1.0)
    cholesky = jnp.linalg.cholesky(unit @ unit.T + jnp.diag(diagonal))
    root = _invert_lower(cholesky) * scale[None]  # L⁻¹S
    pivots = jnp.diagonal(cholesky)
    # A row that depends on earlier ones adds nothing to the volume: a row given twice has that of the row.
    independent = pivots**2 > DEPENDENT * _ridge(m, dtype)
    half_log_det = jnp.sum(jnp.where(independent & ~vanishing, jnp.log(pivots) + jnp.log(safe), 0.0))
    deficient = jnp.any(gone) | ~jnp.all(independent)
    return Frame(value, jacobian, root, half_log_det, deficient)


def _ridge(m: int, dtype: Any) -> float:
    """What is added to the diagonal of the Gram matrix of m unit rows."""
    return 8 * m * float(jnp.finfo(dtype).eps)


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
    ridge = _ridge(frame.value.size, frame.jacobian.dtype)
    inverse_pivots = row_lengths(frame.jacobian) * jnp.diagonal(frame.root)
    return ~((inverse_pivots > 0) & (inverse_pivots**2 * (DEPENDENT * ridge) < 1))


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
