"""Legs between flat walls on a flat set: everything about them is known beforehand.

With h(x) = Ax + b and g affine, h is linear in time along a leg, so the wall that is met first is the row with the least −h/ḣ.
Mirroring p at it changes p by a multiple of n, the part of Rᵀ∇h along the set, and ḣ by as much of A R n. The volume of phase
space does not change. From its end a leg leads back through the same walls, so nothing needs to be run back.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import ConstraintFn, project, row_lengths
from ogradient.samplers.metric import Root, gather, spread
from ogradient.samplers.solver import Place


def straight_legs(
    bounds: ConstraintFn, root: Root, place: Place, p: Array, time: Array, most: int
) -> tuple[Array, Array, Array, Array]:
    """The move of a point over a time, in coordinates of unit mass, its momentum then, the time left, and the bounces.

    Time is left where there were more than `most` bounces.
    """
    pullback = jax.vjp(bounds, place.x)[1]
    along = lambda p: jax.jvp(bounds, (place.x,), (spread(root, p),))

    def keep_going(carry: Any) -> Array:
        _, _, _, _, left, bounces = carry
        return (left > 0) & (bounces <= most)

    def body(carry: Any) -> Any:
        moved, p, h, slope, left, bounces = carry
        times = jnp.where(slope > 0, -h / jnp.where(slope > 0, slope, 1.0), jnp.inf)
        row = earliest(times)
        at_wall = times[row] < left
        lasts = jnp.where(at_wall, times[row], left)
        own = jax.nn.one_hot(row, h.size, dtype=h.dtype)
        normal = project(place.frame, gather(root, pullback(own)[0]))
        length = row_lengths(normal[None])[0]
        normal = normal / jnp.where(length > 0, length, 1.0)
        impulse = jnp.where(at_wall, 2 * (normal @ p), 0.0)
        mirrored = jnp.where(own > 0, -slope, slope - impulse * along(normal)[1])
        # On the wall h is 0 without a rounding.
        h = jnp.where(own > 0, 0.0, jnp.minimum(h + lasts * slope, 0.0))
        left = jnp.where(at_wall, left - lasts, 0.0)
        slope = jnp.where(at_wall, mirrored, slope)
        return moved + lasts * p, p - impulse * normal, h, slope, left, bounces + at_wall.astype(jnp.int32)

    h, slope = along(p)
    begin = (jnp.zeros_like(p), p, jnp.minimum(h, 0.0), slope, time, jnp.zeros((), jnp.int32))
    moved, p, _, _, left, bounces = lax.while_loop(keep_going, body, begin)
    return moved, p, left, bounces


def earliest(times: Array) -> Array:
    """Which of the times comes first; one that is not a number never does."""
    return jnp.argmin(jnp.where(jnp.isnan(times), jnp.inf, times)).astype(jnp.int32)
