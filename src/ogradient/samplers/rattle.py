"""RATTLE: steps along {g = 0} in phase space, each projected onto the set and checked to be reversible.

The equations are in `chmc.py`. Positions are in the user's coordinates, momenta in those of unit mass (`metric.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import ConstraintFn, Frame, factor, project, solve
from ogradient.geometry.correction import hessian_sum
from ogradient.geometry.land import rounding_level
from ogradient.samplers.metric import gather, spread
from ogradient.samplers.solver import Place, place_at, reach
from ogradient.status import Status


class Point(NamedTuple):
    """A phase-space point with everything a step needs at it."""

    x: Array
    p: Array  # in coordinates of unit mass
    potential: Array
    force: Array  # −Rᵀ∇V, which acts on p
    jacobian: Array  # J
    frame: Frame  # of the rows J R, so that its Gram matrix is G_M

    @property
    def place(self) -> Place:
        """Without the momentum."""
        return Place(self.x, self.jacobian, self.frame)


Potential = Callable[[Array], tuple[Array, Array, Place]]


def potential_of(
    logdensity: Callable[[Array], Array], constraint: ConstraintFn, root: Array, *, measure: str, curved: bool
) -> Potential:
    """V, Rᵀ∇V and the frame at x, from one evaluation of log π, of g and of their derivatives.

    ½ log det G_M has the gradient Σ_k H_k w_k, w_k the rows of G_M⁻¹J M⁻¹, and ½ log det J Jᵀ the same with M = I: nothing is
    differentiated twice but along w.
    """

    def at(x: Array) -> tuple[Array, Array, Place]:
        value, gradient = jax.value_and_grad(logdensity)(x)
        place = place_at(constraint, root, x)
        if not curved or place.frame.value.size == 0:
            return -value, -gather(root, gradient), place
        frame = place.frame
        half, directions = frame.half_log_det, spread(root, solve(frame, frame.jacobian))
        if measure == "hausdorff":  # − ½ log det J Jᵀ
            plain = factor(frame.value, place.jacobian)
            half, directions = half - plain.half_log_det, directions - solve(plain, plain.jacobian)
        return half - value, gather(root, hessian_sum(constraint, x, directions) - gradient), place

    return at


def trajectory(
    constraint: ConstraintFn,
    potential: Potential,
    root: Array,
    start: Point,
    epsilon: Array,
    num_steps: int | Array,
    projection: str,
    *,
    flat: bool = False,
) -> tuple[Point, Array, Array]:
    """`num_steps` RATTLE steps, each checked; a failure ends it. On a `flat` set every step is reversible.

    Mapped chains wait for each other, in the loop over steps and in every projection. One that has failed, or that did not land
    and has no way back to look for, asks for nothing more.
    """
    single = isinstance(num_steps, int) and num_steps == 1

    def keep_going(carry: tuple[Point, Array, Array, Array]) -> Array:
        _, status, _, done = carry
        return (status == Status.OK) & (done < num_steps)

    def body(carry: tuple[Point, Array, Array, Array]) -> tuple[Point, Array, Array, Array]:
        point, _, iterations, done = carry
        active = keep_going(carry)
        half = point.p + 0.5 * epsilon * point.force
        there = reach(constraint, root, point.place, epsilon * half, projection, active)
        value, gradient, place = potential(there.x)
        # The move over ε is the momentum that led there; its kick and projection make it the new one.
        p = project(place.frame, there.move / epsilon - 0.5 * epsilon * gradient)
        same, iterations = jnp.ones((), bool), iterations + there.iterations
        if not flat:
            back_move = -epsilon * (p + 0.5 * epsilon * gradient)
            back = reach(constraint, root, place, back_move, projection, active & there.landed)
            same = back.landed & came_back(place, point.place, back.x, back.size)
            iterations = iterations + back.iterations
        outcome = jnp.where(there.landed, jnp.where(same, Status.OK, Status.NOT_REVERSIBLE), Status.SOLVER_DIVERGED)
        moved = Point(there.x, p, value, -gradient, place.jacobian, place.frame)
        point = jax.tree.map(lambda new, old: jnp.where(outcome == Status.OK, new, old), moved, point)
        return point, outcome.astype(jnp.int32), iterations, done + 1

    zero = jnp.zeros((), jnp.int32)
    carry = (start, zero, zero, zero)
    return (body(carry) if single else lax.while_loop(keep_going, body, carry))[:3]


def came_back(end: Place, start: Place, back: Array, size: Array) -> Array:
    """Whether the reverse move from `end` returned to the start, by every row of g in its own units."""
    weights = jnp.abs(end.jacobian)
    # What is left of g at the start is within its roundings, and the way back does without it.
    roundings = 4 * (rounding_level(weights, size) + jnp.abs(start.frame.value))
    allowed = jnp.sqrt(jnp.finfo(back.dtype).eps) * (weights @ jnp.abs(end.x - start.x)) + roundings
    return jnp.all(weights @ jnp.abs(back - start.x) <= allowed)
