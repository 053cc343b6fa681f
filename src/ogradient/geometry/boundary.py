"""Where h(x) ≤ 0 ends: turning moves back at the boundary, and a weight that vanishes on it.

Inside nothing changes. A move that ends outside is completed by a reflection along {g = 0}. Landing on the boundary itself would
leave an atom there; the mirror image keeps the law, with an error of O(η).

Integrals by parts along the set (Stein's identity, and with it O-SVGD and KSD⊥) have a boundary term, which a factor
b(x) = min_j min(1, −h_j/w_j), 0 on the boundary, takes away: E[a·(bφ) + tr(D∇(bφ))] = E[(b a + D∇b)·φ + b tr(D∇φ)] = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import ConstraintFn, Frame, factor, project, row_lengths, solve, value_and_jacobian
from ogradient.mapping import over_particles

MAX_ACTIVE = 8  # rows of h that can turn a move back together, unless the user says otherwise


class Turn(NamedTuple):
    """How a move that ended outside h ≤ 0 was turned back."""

    end: Array  # where the move ends instead, (d,)
    left: Array  # whether it had ended outside
    refused: Array  # whether it is where it began, since its mirror image was outside too
    from_inside: Array  # whether it began inside
    normals: Array  # D∇h of the violated rows, (k, d), 0 for the others,
    gram: Frame  # and their Gram matrix, factored

    def of_velocity(self, velocity: Array) -> Array:
        """The velocity after it: mirrored where the move was, reversed where it was refused, along the wall from outside."""
        across = solve(self.gram, self.normals @ velocity) @ self.normals
        turned = jnp.where(self.refused, -velocity, velocity - jnp.where(self.from_inside, 2.0, 1.0) * across)
        return jnp.where(self.left, turned, velocity)


def turn_back(
    inequality: ConstraintFn,
    frame: Frame,
    x: Array,
    y: Array,
    *,
    max_active: int,
    pull: Callable[[Array], Array],
    at_wall: Callable[[Array], Frame] | None = None,
) -> Turn:
    """How a move from x to y ends when h ≤ 0 must hold.

    A y inside stays. Outside, the (at most `max_active`) most violated rows of h are brought to their mirror images −h by the
    shortest move along {g = 0}: (D∇h)⁺(−2h), with the D of `frame`. If that is still outside, where boundaries
    meet, the move is refused and x stays: once inside, always inside. From an x outside, rows move by `pull(h)` instead;
    from one where h is NaN, and to a y that is not finite, nothing can be said, and the end is NaN.

    The normals are those where the move crossed a wall first, as far as h at its two ends tells; a steep h is flat beyond.
    D is that of `frame`, or with `at_wall`, which has the frame of g at a point, that of the same place (one Jacobian of g
    more): that is what mirrors a velocity. The other turns it by O(‖y − x‖), at every wall in the same sense.
    """
    y = lax.optimization_barrier(y)  # otherwise the compiler computes y, random numbers and all, once per use of it
    here = inequality(x)
    from_inside = jnp.all(here <= 0)
    value = inequality(y)
    crossing = (value > 0) & from_inside
    shares = jnp.where(crossing, here / jnp.where(crossing, here - value, 1.0), 1.0)
    beyond = (1 - jnp.min(shares, initial=1.0)) * (y - x)
    value_there, pullback = jax.vjp(inequality, y - beyond)
    frame = frame if at_wall is None else at_wall(y - beyond)
    violation, rows = lax.top_k(value, min(max_active, value.size))
    active = violation > 0

    def differentiate(i: Array, normals: Array) -> Array:
        return normals.at[i].set(pullback(jax.nn.one_hot(rows[i], value.size, dtype=value.dtype))[0])

    # Usually few rows are violated, if any: only those are differentiated.
    normals = lax.fori_loop(0, jnp.sum(active), differentiate, jnp.zeros((violation.size, y.size), y.dtype))
    tangent = normals - solve(frame, frame.jacobian @ normals.T).T @ frame.jacobian
    rows_of_h = factor(violation, tangent, active)
    outside = value_there[rows] + normals @ beyond
    change = jnp.where(active, -jnp.where(from_inside, 2 * outside, pull(violation)), 0.0)
    mirrored = y + solve(rows_of_h, change) @ tangent
    left = ~jnp.all(value <= 0)  # where h is NaN counts as outside, and has no mirror image
    refused = left & from_inside & ~jnp.all(inequality(mirrored) <= 0)
    end = jnp.where(refused, x, jnp.where(left, mirrored, y))
    end = jnp.where(jnp.any(jnp.isnan(here)) | ~jnp.all(jnp.isfinite(y)), jnp.nan, end)
    return Turn(end, left, refused, from_inside, tangent, rows_of_h)


def boundary_weight(
    inequality: ConstraintFn, frames: Frame, x: Array, bandwidth: Array, block_size: int | None
) -> tuple[Array, Array]:
    """B (n,) and D∇b (n, d) of many points x (n, d): rises from 0 on the boundary to 1 about a kernel's length away.

    w_j = √bandwidth · mean over the points of ‖D∇h_j‖ is one number per row, so that ∇b is exactly −∇h_j/w_j of the nearest row.
    """

    def measure(argument: tuple[Frame, Array]) -> tuple[Array, Array]:
        frame, point = argument
        value, jacobian = value_and_jacobian(inequality, point)
        return value, row_lengths(jax.vmap(lambda row: project(frame, row))(jacobian))

    values, slopes = over_particles(measure, (frames, x), block_size)
    widths = jnp.sqrt(bandwidth) * jnp.mean(slopes, axis=0)
    depth = -values / jnp.where(widths > 0, widths, 1.0)[None]
    nearest = jnp.argmin(depth, axis=1)
    depth = jnp.min(depth, axis=1)

    def slope(argument: tuple[Frame, Array, Array]) -> Array:
        frame, point, row = argument
        return project(frame, jax.grad(lambda y: inequality(y)[row])(point)) / widths[row]

    gradients = over_particles(slope, (frames, x, nearest), block_size)
    between = (depth > 0) & (depth < 1)
    return jnp.clip(depth, 0.0, 1.0), jnp.where(between[:, None], -gradients, 0.0)
