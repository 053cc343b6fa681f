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

from ogradient.geometry.affine import is_affine
from ogradient.geometry.correction import (
    Correction,
    correction,
    correction_parts,
    curvature,
    half_log_det_gradient,
    random_signs,
    resolve_correction,
    stein_drift,
)
from ogradient.geometry.frame import (
    ConstraintFn,
    Frame,
    Local,
    dependent_rows,
    evaluate,
    factor,
    frame_at,
    landing,
    project,
    psi,
    row_lengths,
    solve,
    steer,
    value_and_jacobian,
)

__all__ = [
    "ConstraintFn",
    "Correction",
    "Frame",
    "Local",
    "correction",
    "correction_parts",
    "curvature",
    "dependent_rows",
    "evaluate",
    "factor",
    "frame_at",
    "half_log_det_gradient",
    "is_affine",
    "landing",
    "project",
    "psi",
    "random_signs",
    "resolve_correction",
    "row_lengths",
    "solve",
    "steer",
    "stein_drift",
    "value_and_jacobian",
]
