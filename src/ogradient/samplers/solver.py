"""The solver of a RATTLE step: back to {g = 0} along the normals of the point that a move began at, to the last digits."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import ConstraintFn, Frame, dependent_rows, factor, row_lengths, value_and_jacobian
from ogradient.geometry.land import rounding_level, weighted_sum
from ogradient.samplers.metric import gather, spread

NEWTON_ITERATIONS = 12  # a quadratic iteration that is not near the set by then will not get there,
RESTING_ITERATIONS = 30  # and one that is near may take longer to come to rest
CHORD_ITERATIONS = 60
PATIENCE = 3  # iterations without a smaller |g| after which x has come to rest,
NOISE_PATIENCE = 5  # or g is at the level of its own roundings,
FARTHEST = 8.0  # which are within so many times the least |g| that was seen


class Place(NamedTuple):
    """A point of the set, with what moves from it and to it need."""

    x: Array
    jacobian: Array  # J
    frame: Frame  # of the rows J R, so that its Gram matrix is G_M


class Reached(NamedTuple):
    """Where a solver ended."""

    x: Array
    move: Array  # from the start to x, in coordinates of unit mass
    landed: Array  # whether x is on the set
    iterations: Array
    size: Array  # of the terms that were added up to make each coordinate: its roundings are relative to that


class Settling(NamedTuple):
    """How a solver comes to rest. |g| is the largest row, in units of the move."""

    done: Array
    size: Array  # |g| of the iteration before
    best: Array  # the least |g| since steps are tiny
    waited: Array  # iterations since then without a smaller one
    rose: Array  # whether |g| has risen since steps are tiny,
    fell: Array  # and fallen again


def place_at(constraint: ConstraintFn, root: Array, x: Array) -> Place:
    """The frame at a point."""
    value, jacobian = value_and_jacobian(constraint, x)
    return Place(x, jacobian, factor(value, gather(root, jacobian)))


def reach(
    constraint: ConstraintFn, root: Array, place: Place, move: Array, projection: str, active: Array | bool = True
) -> Reached:
    """The point x + R·move − M⁻¹J(x)ᵀλ with g = 0 to rounding, for a move (d,) in coordinates of unit mass.

    Chord: λ ← λ + G⁻¹g with the Gram matrix of the origin, one value of g each. Newton: (J(x')M⁻¹J(x)ᵀ)⁻¹g, one Jacobian each,
    quadratic, and for larger steps. The same solver from both ends is what the reversibility check needs.
    One that is not `active` does nothing.
    """
    frame, origin = place.frame, place.x
    proposal = origin + spread(root, move)
    ends = jnp.maximum(jnp.abs(origin), jnp.abs(proposal))
    none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    if frame.value.size == 0:  # no equality: plain leapfrog
        return Reached(proposal, move_of(root, origin, proposal, move), ~no, none, ends)
    limits = (NEWTON_ITERATIONS, RESTING_ITERATIONS) if projection == "newton" else (CHORD_ITERATIONS, CHORD_ITERATIONS)
    redundant = dependent_rows(frame)
    lengths = row_lengths(frame.jacobian)
    scale = jnp.where(lengths > 0, 1 / jnp.where(lengths > 0, lengths, 1.0), 0.0)
    own_normals = frame.jacobian * scale[:, None]
    normals = spread(root, own_normals)
    proposed = jnp.abs(place.jacobian) @ jnp.abs(proposal - origin)
    # What the solver added to the move so far, and all of it.
    whole = lambda x, multipliers: move_of(root, origin, x, move - multipliers @ own_normals)

    def size_of(x: Array, multipliers: Array) -> Array:
        # Multipliers of dependent rows cancel and say nothing.
        terms = jnp.where(frame.deficient, 0.0, jnp.abs(multipliers) @ jnp.abs(normals))
        return jnp.maximum(ends, jnp.abs(x)) + terms

    def residual(x: Array, size: Array) -> tuple[Array, Array, Array, Array]:
        """The step in multiples of the unit normals, g, and the roundings that x has, and that its terms have."""
        if projection == "chord":
            value, jacobian = constraint(x), place.jacobian
            delta = (frame.root.T @ (frame.root @ value)) * lengths
        else:
            value, jacobian = value_and_jacobian(constraint, x)
            mixed, scaled = (jacobian * scale[:, None]) @ normals.T, value * scale
            delta = scaled / mixed[0] if value.size == 1 else jnp.linalg.solve(_without(mixed, redundant), scaled)
            delta = jnp.where(redundant, 0.0, delta)
        # Keep a quarter of the tolerance for who adds up in another order.
        level, loose = (0.75 * rounding_level(jacobian, s) for s in (jnp.abs(x), size))
        return delta, value, level, loose

    def keep_going(carry: Any) -> Array:
        _, _, settling, iteration = carry
        return ~settling.done & (iteration < jnp.where(jnp.isfinite(settling.best), limits[1], limits[0]))

    def improve(carry: Any) -> Any:
        x, multipliers, settling, iteration = carry
        delta, value, level, loose = residual(x, size_of(x, multipliers))
        step, largest = delta @ normals, jnp.max(jnp.abs(value) / (level + proposed))
        settling = _settle(settling, place, x, whole(x, multipliers), step, value, level, loose, largest)
        stop = settling.done | ~jnp.all(jnp.isfinite(value))
        x, multipliers = jnp.where(stop, x, x - step), jnp.where(stop, multipliers, multipliers + delta)
        iteration = jnp.where(stop & ~settling.done, limits[1], iteration + 1)
        return x, multipliers, settling, iteration

    far = jnp.full((), jnp.inf, origin.dtype)
    first = Settling(~jnp.asarray(active), far, far, none, no, no)
    begin = (proposal, jnp.zeros_like(frame.value), first, none)
    x, multipliers, settling, iterations = lax.while_loop(keep_going, improve, begin)
    return Reached(x, whole(x, multipliers), settling.done, iterations, size_of(x, multipliers))


def move_of(root: Array, origin: Array, x: Array, made: Array) -> Array:
    """R⁻¹(x − origin): by division where R is diagonal, else as it was `made` up."""
    return made if root.ndim == 2 else (x - origin) / root


def _settle(
    settling: Settling,
    place: Place,
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
    off, weights, root_eps = jnp.abs(value), jnp.abs(place.jacobian), jnp.sqrt(jnp.finfo(x.dtype).eps)
    # Small is small against the move to here, not against the proposal, which may be far outside the set.
    small = root_eps * weighted_sum(weights, jnp.abs(x - place.x))
    rounded = off <= jnp.minimum(loose, root_eps * row_lengths(place.frame.jacobian) * row_lengths(move[None])[0])
    calm = jnp.all(rounded | ((off <= small) & (weighted_sum(weights, jnp.abs(step)) <= small)))
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
