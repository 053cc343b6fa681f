"""RATTLE: steps along {g = 0} in phase space, each projected onto the set and checked to be reversible.

The equations are in `chmc.py`. Positions are in the user's coordinates, momenta in those of unit mass (`metric.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import ConstraintFn, factor, project, solve
from ogradient.geometry.correction import hessian_sum
from ogradient.geometry.land import rounding_level, weighted_sum
from ogradient.samplers.metric import Root, gather, spread
from ogradient.samplers.solver import Place, Reached, place_at, reach
from ogradient.status import Status


class Point(NamedTuple):
    """A phase-space point of a trajectory."""

    x: Array
    p: Array  # in coordinates of unit mass
    potential: Array

    @property
    def energy(self) -> Array:
        """V + ½‖p‖²."""
        return self.potential + 0.5 * self.p @ self.p


class Visit(NamedTuple):
    """A point at which a trajectory arrived, and what a step that ended here, or begins here, needs of it."""

    place: Place
    p: Array
    gradient: Array  # Rᵀ∇V, which acts on p
    before: Array  # x of the point before,
    before_left: Array  # and how far g's roundings leave it off the set
    arrived: Array  # whether there is a point before
    leaves: Array  # whether the trajectory goes on


class Move(NamedTuple):
    """From one point to the next."""

    x: Array
    led: Array  # the momentum that led there, neither kicked nor projected
    status: Array
    iterations: Array  # of solvers
    volume: Array  # log of how much the volume of phase space changes
    bounces: Array


class Path(NamedTuple):
    """A trajectory: both ends, how it ended, and sums over its moves."""

    start: Point
    end: Point
    status: Array
    iterations: Array
    volume: Array
    bounces: Array
    deficient: Array  # whether rows of g depend on each other at the start


Advance = Callable[[Visit], Move]
Potential = Callable[[Array], tuple[Array, Array, Place]]


def potential_of(
    logdensity: Callable[[Array], Array], constraint: ConstraintFn, root: Root, *, measure: str, curved: bool
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
    potential: Potential, advance: Advance, root: Root, x: Array, p: Array, epsilon: Array, num_steps: int | Array
) -> Path:
    """`num_steps` steps from x with momentum p, which is projected first; a failure ends it.

    One loop over all points, the start among them: it evaluates the potential once at each, so that one evaluation is compiled.
    At every point p gets half a kick of the step that led there, and `advance` makes the next half and the next move.
    """
    zero, none = jnp.zeros((), x.dtype), jnp.zeros((), jnp.int32)

    def keep_going(carry: Any) -> Array:
        path, done = carry[0], carry[-1]
        return (path.status == Status.OK) & (done <= num_steps)

    def body(carry: Any) -> Any:
        path, x, led, before, before_left, done = carry
        first, going = done == 0, keep_going(carry)
        value, gradient, place = potential(x)
        p = project(place.frame, led - jnp.where(first, 0.0, 0.5 * epsilon * gradient))
        here = Point(x, p, value)
        visit = Visit(place, p, gradient, before, before_left, going & ~first, going & (done < num_steps))
        move = advance(visit)
        path = Path(
            jax.tree.map(lambda new, old: jnp.where(first, new, old), here, path.start),
            here,
            move.status,
            path.iterations + move.iterations,
            path.volume + move.volume,
            path.bounces + move.bounces,
            jnp.where(first, place.frame.deficient, path.deficient),
        )
        return path, move.x, move.led, x, left_over(root, place), done + 1

    here = Point(x, p, zero)
    path = Path(here, here, none, none, zero, none, jnp.zeros((), bool))
    return lax.while_loop(keep_going, body, (path, x, p, x, jnp.zeros_like(x), none))[0]


def along_set(
    constraint: ConstraintFn, root: Root, epsilon: Array, projection: str, *, flat: bool, together: bool
) -> Advance:
    """Moves along {g = 0}: there to the next point, and back to the one before, which must be the same.

    Both begin at the same point, so one solver is compiled for the two. It runs them `together`, side by side, or one after the
    other, which wastes nothing at the two ends of a trajectory. On a `flat` set every step is reversible.
    """

    def advance(visit: Visit) -> Move:
        place, p, kick = visit.place, visit.p, 0.5 * epsilon * visit.gradient
        solve_for = lambda move: reach(constraint, root, place, move[0], projection, move[1])
        ahead, same = (epsilon * (p - kick), visit.leaves), jnp.ones((), bool)
        if flat or place.frame.value.size == 0:
            there = solve_for(ahead)
            iterations = there.iterations
        else:
            # One that did not arrive has no way back to look for.
            both = jax.tree.map(lambda *ways: jnp.stack(ways), ahead, (-epsilon * (p + kick), visit.arrived))
            ends = jax.vmap(solve_for)(both) if together else lax.map(solve_for, both)
            there, back = (jax.tree.map(lambda leaf, way=way: leaf[way], ends) for way in (0, 1))
            same = ~visit.arrived | (back.landed & came_back(place, visit.before, visit.before_left, back))
            iterations = there.iterations + back.iterations
        landed = there.landed | ~visit.leaves
        status = jnp.where(same, jnp.where(landed, Status.OK, Status.SOLVER_DIVERGED), Status.NOT_REVERSIBLE)
        zero, none = jnp.zeros((), p.dtype), jnp.zeros((), jnp.int32)
        return Move(there.x, there.move / epsilon, status.astype(jnp.int32), iterations, zero, none)

    return advance


def left_over(root: Root, place: Place) -> Array:
    """How far x is off the set, (d,): M⁻¹Jᵀ G_M⁻¹g, by what is left of g within its roundings."""
    return jnp.abs(spread(root, solve(place.frame, place.frame.value) @ place.frame.jacobian))


def came_back(end: Place, start: Array, left: Array, back: Reached) -> Array:
    """Whether the reverse move from `end` returned to the start, by every row of g in its own units.

    The way back does without what is `left` of g at the start, in whatever row: rows share coordinates. And something is left
    of g where it ends.
    """
    weights = jnp.abs(end.jacobian)
    roundings = 4 * (rounding_level(weights, back.size) + weighted_sum(weights, left + back.left))
    allowed = jnp.sqrt(jnp.finfo(start.dtype).eps) * weighted_sum(weights, jnp.abs(end.x - start)) + roundings
    return jnp.all(weighted_sum(weights, jnp.abs(back.x - start)) <= allowed)
