"""Second derivatives of g at one point: the correction r = ∇·D, in its two halves, and the drift of Stein's identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry.frame import ConstraintFn, Frame, evaluate, project, row_lengths, solve, steer

Correction = Literal["auto", "exact", "hutchinson", "none"]

EXACT_LIMIT = 64  # "auto" takes the exact trace up to this dimension, Hutchinson's estimate above
CHUNK = 64  # directions of the exact trace that are in memory together


def half_log_det_gradient(constraint: ConstraintFn, x: Array, frame: Frame) -> Array:
    """∇ ½ log det G = Σ_k H_k w_k, with w_k the rows of G⁻¹J: m Hessian-vector products.

    The ridge sits inside the weights, which are not differentiated, so a row given twice counts once.
    """
    return hessian_sum(constraint, x, solve(frame, frame.jacobian))


def hessian_sum(constraint: ConstraintFn, x: Array, directions: Array) -> Array:
    """Σ_k H_k v_k for directions v (m, d)."""
    return jnp.sum(_hessian_vectors(constraint, x, directions), axis=0)


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
    """The correction r = ∇·D = −½ D∇log det G − J⁺[tr(D H_k)]_k, the drift that makes the law right.

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
    value, score, frame = evaluate(logdensity, constraint, x)
    tangential, normal = correction_parts(
        constraint, x, frame, measure=measure, method=method, num_probes=num_probes, key=key
    )
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
