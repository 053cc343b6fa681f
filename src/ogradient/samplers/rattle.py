"""RATTLE: steps along {g = 0} in phase space, each projected onto the set and checked to be reversible.

The equations are in `chmc.py`. Here mass is the identity: coordinates are y = M^{½}x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import (
    ConstraintFn,
    Frame,
    dependent_rows,
    frame_at,
    half_log_det_gradient,
    project,
    row_lengths,
    value_and_jacobian,
)
from ogradient.geometry.land import rounding_level
from ogradient.problem import Problem
from ogradient.status import Status

NEWTON_ITERATIONS = 12  # a quadratic iteration that is not near the set by then will not get there,
RESTING_ITERATIONS = 30  # and one that is near may take longer to come to rest
CHORD_ITERATIONS = 60
PATIENCE = 3  # iterations without a smaller |g| after which x has come to rest,
NOISE_PATIENCE = 5  # or g is at the level of its own roundings,
FARTHEST = 8.0  # which are within so many times the least |g| that was seen


class Point(NamedTuple):
    """A phase-space point with everything a step needs at it."""

    x: Array
    p: Array
    potential: Array
    force: Array  # −∇V
    frame: Frame  # of the scaled constraint: rows J M^{−½}, so that its Gram matrix is G_M


class Settling(NamedTuple):
    """How a solver comes to rest. |g| is the largest row, in units of the move."""

    done: Array
    size: Array  # |g| of the iteration before
    best: Array  # the least |g| since steps are tiny
    waited: Array  # iterations since then without a smaller one
    rose: Array  # whether |g| has risen since steps are tiny,
    fell: Array  # and fallen again


def potential_of(
    problem: Problem, logdensity: Callable[[Array], Array], constraint: ConstraintFn, root: Array, *, curved: bool
) -> Callable[[Array], tuple[Array, Array, Frame]]:
    """V, ∇V and the frame at y. φ and its gradient are Σ_k H_k w_k, as in the O-samplers; nothing is differentiated twice."""

    def at(y: Array) -> tuple[Array, Array, Frame]:
        value, gradient = jax.value_and_grad(logdensity)(y)
        frame = frame_at(constraint, y)
        if not curved:
            return -value, -gradient, frame
        half, half_gradient = frame.half_log_det, half_log_det_gradient(constraint, y, frame)
        if problem.measure == "hausdorff":  # − ½ log det J Jᵀ, J the Jacobian in x = root · y
            plain = lambda x: constraint(x / root)
            other = frame_at(plain, root * y)
            half = half - other.half_log_det
            half_gradient = half_gradient - root * half_log_det_gradient(plain, root * y, other)
        return half - value, half_gradient - gradient, frame

    return at


def trajectory(
    constraint: ConstraintFn,
    bounds: ConstraintFn | None,
    potential: Callable,
    start: Point,
    epsilon: Array,
    num_steps: int | Array,
    projection: str,
) -> tuple[Point, Array, Array]:
    """`num_steps` RATTLE steps, each checked; a failure ends it.

    Mapped chains wait for each other, in the loop over steps and in every projection. One that has failed, or that did not land
    and has no way back to look for, asks for nothing more.
    """
    # A move that ends outside is refused: no use in turning round after a single step.
    single = isinstance(num_steps, int) and num_steps == 1

    def keep_going(carry: tuple[Point, Array, Array, Array]) -> Array:
        _, status, _, done = carry
        return (status == Status.OK) & (done < num_steps)

    def body(carry: tuple[Point, Array, Array, Array]) -> tuple[Point, Array, Array, Array]:
        point, status, iterations, done = carry
        active = keep_going(carry)
        half = point.p + 0.5 * epsilon * point.force
        x, landed, used, _ = _project(constraint, point.frame, point.x, point.x + epsilon * half, projection, active)
        value, gradient, frame = potential(x)
        if bounds is not None:  # log π need not exist outside; what is kicked there only has to be the same both ways
            gradient = jnp.where(jnp.all(jnp.isfinite(gradient)), gradient, 0.0)
        # (x − point.x)/ε is the momentum that led there; its kick and projection make it the new one.
        p = project(frame, (x - point.x) / epsilon - 0.5 * epsilon * gradient)
        back_from = x - epsilon * (p + 0.5 * epsilon * gradient)
        back, returned, used_back, size = _project(constraint, frame, x, back_from, projection, active & landed)
        same = _came_back(frame, point, x, back, size)
        outcome = jnp.where(
            landed, jnp.where(returned & same, Status.OK, Status.NOT_REVERSIBLE), Status.SOLVER_DIVERGED
        )
        if bounds is not None and not single:
            p = _bounce(bounds, frame, x, p)
        moved = Point(x, p, value, -gradient, frame)
        point = jax.tree.map(lambda new, old: jnp.where(outcome == Status.OK, new, old), moved, point)
        return point, outcome.astype(jnp.int32), iterations + used + used_back, done + 1

    zero = jnp.zeros((), jnp.int32)
    carry = (start, zero, zero, zero)
    return (body(carry) if single else lax.while_loop(keep_going, body, carry))[:3]


def _bounce(bounds: ConstraintFn, frame: Frame, x: Array, p: Array) -> Array:
    """The momentum after a step to x: outside, mirrored in the boundary of the row of h that is largest there."""
    value, pullback = jax.vjp(bounds, x)
    row = jnp.argmax(jnp.where(jnp.isnan(value), jnp.inf, value))
    normal = project(frame, pullback(jax.nn.one_hot(row, value.size, dtype=value.dtype))[0])
    length = row_lengths(normal[None])[0]
    normal = normal / jnp.where(length > 0, length, 1.0)
    mirrored = p - 2 * (normal @ p) * normal
    return jnp.where(jnp.all(value <= 0) | ~jnp.all(jnp.isfinite(mirrored)), p, mirrored)


def _came_back(frame: Frame, start: Point, end: Array, back: Array, size: Array) -> Array:
    """Whether the reverse move from `end`, of the given frame, returned to the start, by every row of g in its own units."""
    weights = jnp.abs(frame.jacobian)
    # What is left of g at the start is within its roundings, and the way back does without it.
    roundings = 4 * (rounding_level(weights, size) + jnp.abs(start.frame.value))
    allowed = jnp.sqrt(jnp.finfo(end.dtype).eps) * (weights @ jnp.abs(end - start.x)) + roundings
    return jnp.all(weights @ jnp.abs(back - start.x) <= allowed)


def _project(
    constraint: ConstraintFn, frame: Frame, origin: Array, x: Array, projection: str, active: Array | bool = True
) -> tuple[Array, Array, Array, Array]:
    """x − J(origin)ᵀλ with g = 0 to rounding: the point, whether it was reached, the iterations it took, and `size`.

    Chord: λ ← λ + G⁻¹g with the Gram matrix of the origin, one value of g each. Newton: (J(x)J(origin)ᵀ)⁻¹g, one frame each,
    quadratic, and for larger steps. The same solver from both ends is what the reversibility check needs.
    `size` is that of the terms that were added up to make each coordinate: its roundings are relative to that.
    One that is not `active` does nothing.
    """
    ends = jnp.maximum(jnp.abs(origin), jnp.abs(x))
    if frame.value.size == 0:  # no equality: plain leapfrog
        return x, jnp.ones((), bool), jnp.zeros((), jnp.int32), ends
    limits = (NEWTON_ITERATIONS, RESTING_ITERATIONS) if projection == "newton" else (CHORD_ITERATIONS, CHORD_ITERATIONS)
    redundant = dependent_rows(frame)
    lengths = row_lengths(frame.jacobian)
    scale = jnp.where(lengths > 0, 1 / jnp.where(lengths > 0, lengths, 1.0), 0.0)
    normals = frame.jacobian * scale[:, None]
    proposed = jnp.abs(frame.jacobian) @ jnp.abs(x - origin)

    def size_of(x: Array, multipliers: Array) -> Array:
        # Multipliers of dependent rows cancel and say nothing.
        terms = jnp.where(frame.deficient, 0.0, jnp.abs(multipliers) @ jnp.abs(normals))
        return jnp.maximum(ends, jnp.abs(x)) + terms

    def residual(x: Array, size: Array) -> tuple[Array, Array, Array, Array]:
        """The step in multiples of the unit normals, g, and the roundings that x has, and that its terms have."""
        if projection == "chord":
            value, jacobian = constraint(x), frame.jacobian
            delta = (frame.root.T @ (frame.root @ value)) * lengths
        else:
            value, jacobian = value_and_jacobian(constraint, x)
            mixed, scaled = (jacobian * scale[:, None]) @ normals.T, value * scale
            delta = scaled / mixed[0] if value.size == 1 else jnp.linalg.solve(_without(mixed, redundant), scaled)
            delta = jnp.where(redundant, 0.0, delta)
        # Keep a quarter of the tolerance for the rounding of x = M^{−½}y.
        level, loose = (0.75 * rounding_level(jacobian, s) for s in (jnp.abs(x), size))
        return delta, value, level, loose

    def keep_going(carry: Any) -> Array:
        _, _, settling, iteration = carry
        return ~settling.done & (iteration < jnp.where(jnp.isfinite(settling.best), limits[1], limits[0]))

    def improve(carry: Any) -> Any:
        x, multipliers, settling, iteration = carry
        delta, value, level, loose = residual(x, size_of(x, multipliers))
        step, largest = delta @ normals, jnp.max(jnp.abs(value) / (level + proposed))
        settling = _settle(settling, frame, x, x - origin, step, value, level, loose, largest)
        stop = settling.done | ~jnp.all(jnp.isfinite(value))
        x, multipliers = jnp.where(stop, x, x - step), jnp.where(stop, multipliers, multipliers + delta)
        iteration = jnp.where(stop & ~settling.done, limits[1], iteration + 1)
        return x, multipliers, settling, iteration

    zeros, none, no = jnp.zeros_like(frame.value), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    far = jnp.full((), jnp.inf, x.dtype)
    first = Settling(~jnp.asarray(active), far, far, none, no, no)
    x, multipliers, settling, iterations = lax.while_loop(keep_going, improve, (x, zeros, first, none))
    return x, settling.done, iterations, size_of(x, multipliers)


def _settle(
    settling: Settling,
    frame: Frame,
    x: Array,
    move: Array,
    step: Array,
    value: Array,
    level: Array,
    loose: Array,
    largest: Array,
) -> Settling:
    """Whether a solver that is at x, after a move from the origin, has reached the set, to the roundings that there are.

    Where |g| no longer falls, the roundings of the terms that make x will do: a coordinate that is 0 on the set has none of its
    own. And a g that averages many terms has roundings that x knows nothing of: there |g| goes up and down while steps are tiny.
    A slow iteration falls each time, one that runs away rises, and one that misses the set by little repeats its |g|, or leaps.
    """
    off, weights, root_eps = jnp.abs(value), jnp.abs(frame.jacobian), jnp.sqrt(jnp.finfo(x.dtype).eps)
    # Small is small against the move to here, not against the proposal, which may be far outside the set.
    small = root_eps * (weights @ jnp.abs(move))
    rounded = off <= jnp.minimum(loose, root_eps * row_lengths(frame.jacobian) * row_lengths(move[None])[0])
    calm = jnp.all(rounded | ((off <= small) & (weights @ jnp.abs(step) <= small)))
    waited = jnp.where(calm & ~(largest < settling.best), settling.waited + 1, 0)
    best = jnp.where(calm, jnp.minimum(settling.best, largest), jnp.inf)
    rose = calm & (settling.rose | ((settling.waited > 0) & (largest > 1.25 * settling.size)))
    fell = calm & (settling.fell | (settling.rose & (largest < 0.8 * settling.size)))
    noise = fell & (waited >= NOISE_PATIENCE) & (largest <= FARTHEST * best)
    at_rest = (waited >= PATIENCE) & (jnp.all(rounded) | jnp.all(x - step == x))
    # Where x has run away, |g| and its roundings are infinite alike.
    done = (jnp.all(off <= level) | at_rest | noise) & jnp.all(jnp.isfinite(value))
    return Settling(done, largest, best, waited, rose, fell)


def _without(matrix: Array, rows: Array) -> Array:
    """The matrix with some rows and columns replaced by those of the identity."""
    kept = ~rows
    return jnp.where(kept[:, None] & kept[None], matrix, jnp.eye(rows.size, dtype=matrix.dtype))
