"""The geometry of {g = 0} at one point x: projection, landing, correction, volume.

Notation (paper, section 4): J = ∂g (m×d), G = J Jᵀ, J⁺ = Jᵀ G⁻¹, D = I − J⁺J, H_k = ∇²g_k.
Everything here is a pure function of flat coordinates x of shape (d,) and a constraint function with values of shape
(m,). Nothing of shape d×d is ever built; the largest array is J itself, or one chunk of directions.

>>> import jax.numpy as jnp
>>> from ogradient import geometry
>>> circle = lambda x: jnp.array([jnp.sum(x**2) - 1.0])
>>> frame = geometry.frame_at(circle, jnp.array([2.0, 0.0]))
>>> geometry.project(frame, jnp.array([1.0, 1.0])).tolist()   # only the tangent direction is left
[0.0, 1.0]
>>> geometry.landing(frame, alpha=1.0).tolist()               # −J⁺g: one Newton step towards the circle
[-0.75, 0.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

ConstraintFn = Callable[[Array], Array]
Correction = Literal["auto", "exact", "hutchinson", "none"]

EXACT_LIMIT = 64  # "auto" takes the exact trace up to this dimension, Hutchinson's estimate above
CHUNK = 64  # directions of the exact trace that are in memory together


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
    """g (m,) and J (m, d) at x."""
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


def half_log_det_gradient(constraint: ConstraintFn, x: Array, frame: Frame) -> Array:
    """∇ ½ log det G = Σ_k H_k w_k, with w_k the rows of G⁻¹J: m Hessian-vector products.

    The ridge sits inside the weights, which are not differentiated, so a row given twice counts once.
    """
    return jnp.sum(_hessian_vectors(constraint, x, solve(frame, frame.jacobian)), axis=0)


def _hessian_vectors(constraint: ConstraintFn, x: Array, directions: Array) -> Array:
    """H_k v_k for every row, (m, d)."""

    def hessian_vector(row: Array, direction: Array) -> Array:
        return jax.jvp(lambda y: jax.vjp(constraint, y)[1](row)[0], (x,), (direction,))[1]

    rows = jnp.eye(directions.shape[0], dtype=x.dtype)
    return jax.vmap(hessian_vector)(rows, directions)


def _both_halves(constraint: ConstraintFn, x: Array, frame: Frame, key: Array) -> tuple[Array, Array]:
    """Unbiased ∇ ½ log det G and [tr(D H_k)]_k from one Hessian-vector product per row, where apart they take half as much again.

    With q_k = H_k(w_k + κ_k v), v = D z and z of random signs, E Σ_k q_k = Σ_k H_k w_k and E[v·q_k]/κ_k = tr(D H_k), since odd
    powers of z average to 0. κ_k = ‖w_k‖ makes the noise of both as large as that of Hutchinson's estimate alone.
    """
    v = project(frame, random_signs(key, (1, x.size), x.dtype)[0])
    weights = solve(frame, frame.jacobian)
    scale = row_lengths(weights)
    scale = jnp.where(scale > 0, scale, 1.0)
    products = _hessian_vectors(constraint, x, weights + scale[:, None] * v[None])
    return jnp.sum(products, axis=0), products @ v / scale


def curvature(
    constraint: ConstraintFn,
    x: Array,
    frame: Frame,
    *,
    method: Correction = "auto",
    num_probes: int = 1,
    key: Array | None = None,
) -> Array:
    """tr(D H_k) for every k, from second derivatives along tangent directions v: vᵀH_k v is two nested jvp's.

    Exact: v = D e_i for all i, in chunks. Hutchinson: v = D z with z of random signs, unbiased, one probe each.
    """
    method = resolve_correction(method, x.size)
    if method == "none":
        return jnp.zeros_like(frame.value)

    def second_derivative(direction: Array) -> Array:
        v = project(frame, direction)
        return jax.jvp(lambda y: jax.jvp(constraint, (y,), (v,))[1], (x,), (v,))[1]

    if method == "hutchinson":
        probes = random_signs(_needed(key), (num_probes, x.size), x.dtype)
        return jnp.mean(jax.vmap(second_derivative)(probes), axis=0)
    if x.size <= CHUNK:
        return jnp.sum(jax.vmap(second_derivative)(jnp.eye(x.size, dtype=x.dtype)), axis=0)
    one = lambda i: second_derivative(jax.nn.one_hot(i, x.size, dtype=x.dtype))
    return jnp.sum(lax.map(one, jnp.arange(x.size), batch_size=CHUNK), axis=0)


def correction(
    constraint: ConstraintFn,
    x: Array,
    frame: Frame,
    *,
    measure: str = "conditional",
    method: Correction = "auto",
    num_probes: int = 1,
    key: Array | None = None,
) -> Array:
    """r = ∇·D = −½ D∇log det G − J⁺[tr(D H_k)]_k, the drift that makes the law right (paper, theorem on O-Langevin).

    The second, normal half keeps the flow on the level set; the first, tangential half makes the law conditional, and
    is left out for `measure="hausdorff"`. `method="none"` drops all of r.
    """
    tangential, normal = correction_parts(
        constraint, x, frame, measure=measure, method=method, num_probes=num_probes, key=key
    )
    return steer(frame, tangential, normal)


def correction_parts(
    constraint: ConstraintFn,
    x: Array,
    frame: Frame,
    *,
    measure: str,
    method: Correction,
    num_probes: int = 1,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """The two halves of r before projection: r = steer(frame, tangential, normal).

    Samplers add them to their own vector and rate, and so pay for one projection rather than three.
    """
    estimated = resolve_correction(method, x.size) == "hutchinson"
    if estimated and num_probes == 1 and measure != "hausdorff" and frame.value.size:
        tangential, trace = _both_halves(constraint, x, frame, _needed(key))
        return -tangential, -trace
    trace = curvature(constraint, x, frame, method=method, num_probes=num_probes, key=key)
    if measure == "hausdorff" or method == "none":
        return jnp.zeros_like(x), -trace
    return -half_log_det_gradient(constraint, x, frame), -trace


def stein_drift(
    logdensity: Callable[[Array], Array],
    constraint: ConstraintFn,
    x: Array,
    *,
    measure: str = "conditional",
    method: Correction = "auto",
    num_probes: int = 1,
    key: Array | None = None,
) -> tuple[Frame, Array, Array]:
    """The frame at x, a = D∇log π + r (Hausdorff: the normal half of r only) with one projection for all of it, and log π.

    a is the drift of O-Langevin along the set, what drives the particles of O-SVGD, and the vector of the Stein identity
    E[a·φ + tr(D∇φ)] = 0.
    """
    frame = frame_at(constraint, x)
    tangential, normal = correction_parts(
        constraint, x, frame, measure=measure, method=method, num_probes=num_probes, key=key
    )
    value, score = jax.value_and_grad(logdensity)(x)
    return frame, steer(frame, score + tangential, normal), value


def _needed(key: Array | None) -> Array:
    if key is None:
        raise ValueError("correction='hutchinson' needs a random key for its probes.")
    return key


def resolve_correction(method: Correction, dim: int) -> Correction:
    """Turn "auto" into "exact" or "hutchinson" by the dimension; refuse unknown names."""
    if method not in get_args(Correction):
        raise ValueError(f"correction must be one of {', '.join(get_args(Correction))}; got {method!r}.")
    return ("exact" if dim <= EXACT_LIMIT else "hutchinson") if method == "auto" else method


def random_signs(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Independent ±1, from one random bit each: 32 times fewer random words than drawing a number per sign."""
    rows, columns = shape
    words = jax.random.bits(key, (rows, -(-columns // 32), 1), jnp.uint32)
    bits = (words >> jnp.arange(32, dtype=jnp.uint32).reshape(1, 1, 32)) & jnp.uint32(1)
    return 2 * bits.reshape(rows, -1)[:, :columns].astype(dtype) - 1
