"""The solver of a RATTLE step: back to {g = 0} along the normals of the point that a move began at, to the last digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import (
    ConstraintFn,
    Frame,
    dependent_rows,
    factor,
    project,
    row_lengths,
    solve,
    value_and_jacobian,
)
from ogradient.geometry.land import rounding_level, weighted_sum
from ogradient.samplers.metric import Root, gather, move_of, spread

NEWTON_ITERATIONS = 12  # a quadratic iteration that is not near the set by then will not get there,
RESTING_ITERATIONS = 30  # and one that is near may take longer to come to rest
BROYDEN_ITERATIONS = 20  # likewise of a superlinear one
CHORD_ITERATIONS = 60
LONGEST = 5.0  # times its first estimate: Broyden's step, where the iteration gains little
HOPELESS = 6  # iterations without a new least |g| or half of the one before: then Broyden's method will not arrive
PATIENCE = 3  # iterations without a smaller |g| after which x has come to rest,
NOISE_PATIENCE = 5  # or g is at the level of its own roundings,
FARTHEST = 8.0  # which are within so many times the least |g| that was seen
RUNAWAY = 1e4  # times the move, along the normals: a solver that is farther away does not come back
CLOSE = 0.4  # power of eps: |g| and steps of that share of the move are near the set (roundings of g may be above √eps of it)
CALM = 4  # iterations from one look at what |g| is made of to the next
STRAIGHT = 0.25  # of how g changes over two equal steps, how far it may be from linear where it is not all roundings
SURELY = 0.006  # of |g| itself, where it is much more than those;
SURE = 100.0  # what such a look counts: it takes two others to undo it


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
    left: Array  # how far x is off the set, (d,), by what is left of g within its roundings


class Rows(NamedTuple):
    """The rows of g at the origin of a move, by which a solver measures and corrects."""

    weights: Array  # |J|
    lengths: Array  # of the rows J R,
    scale: Array  # and 1 over them, 0 for a row that vanishes
    own_normals: Array  # unit rows of J R
    normals: Array  # M⁻¹Jᵀ for those units


class Settling(NamedTuple):
    """How a solver comes to rest; 0 and 1 stand for no and yes. |g| is the largest row, in units of the move.

    A loop carries it as one array: what a mapped iteration costs is how many arrays it makes.
    """

    done: Array
    lost: Array  # whether there is no point in going on
    least: Array  # the least |g| so far
    idle: Array  # iterations without progress
    size: Array  # |g| of the iteration before
    best: Array  # the least |g| since steps are tiny; infinite before that
    waited: Array  # iterations since then without a smaller one
    rose: Array  # whether |g| has risen since steps are tiny,
    fell: Array  # and fallen again
    again: Array  # whether the step before is made once more, to see what |g| is made of,
    smooth: Array  # and at how many such looks it was more than roundings
    iteration: Array

    @property
    def away(self) -> Array:
        """Whether x is still away from the set."""
        return ~jnp.isfinite(self.best)


def place_at(constraint: ConstraintFn, root: Root, x: Array) -> Place:
    """The frame at a point."""
    value, jacobian = value_and_jacobian(constraint, x)
    return Place(x, jacobian, factor(value, gather(root, jacobian)))


def reach(
    constraint: ConstraintFn, root: Root, place: Place, move: Array, projection: str, active: Array | bool = True
) -> Reached:
    """The point x + R·move − M⁻¹J(x)ᵀλ with g = 0 to rounding, for a move (d,) in coordinates of unit mass.

    The same solver from both ends is what the reversibility check needs. One that is not `active` does nothing.
    """
    frame, origin = place.frame, place.x
    if frame.value.size == 0:  # no equality: plain leapfrog
        x = origin + spread(root, move)
        zeros = jnp.zeros_like(x)
        landed = jnp.ones((), bool)
        return Reached(x, move_of(root, origin, x, move), landed, jnp.zeros((), jnp.int32), _larger(origin, x), zeros)
    # What a move has along the normals is the solver's to find.
    move = project(frame, move)
    proposal = origin + spread(root, move)
    ends = _larger(origin, proposal)
    rows, limits = _rows_of(root, place), LIMITS[projection]
    normal_sizes, proposed = jnp.abs(rows.normals), weighted_sum(rows.weights, jnp.abs(proposal - origin))
    # The normals are orthogonal to the move, so that all of it is no shorter than that.
    length = row_lengths(move[None])[0]
    tiny = jnp.sqrt(jnp.finfo(proposal.dtype).eps) * rows.lengths * length
    # Multipliers of rows that depend on each other may be large and cancel.
    farthest = jnp.where((length > 0) & ~frame.deficient, RUNAWAY * length, jnp.inf)
    estimate, memory = SOLVERS[projection](constraint, place, rows)

    def size_of(x: Array, multipliers: Array) -> Array:
        # Multipliers of dependent rows cancel and say nothing.
        terms = jnp.where(frame.deficient, 0.0, jnp.abs(multipliers) @ normal_sizes)
        return jnp.maximum(ends, jnp.abs(x)) + terms

    def keep_going(carry: Any) -> Array:
        settling = Settling(*carry[-1])
        return (settling.done + settling.lost == 0) & (
            settling.iteration < jnp.where(settling.away, limits[0], limits[1])
        )

    def improve(carry: Any) -> Any:
        x, multipliers, memory, (before, *values), packed = carry
        settling = Settling(*packed)
        # Two looks say that there is something to learn, or that an iteration is away.
        clear = settling.away | ((settling.smooth > 1) & (settling.smooth != SURE))
        delta, value, jacobian, memory = estimate(x, memory, before, clear)
        step = delta @ rows.normals
        weights = rows.weights if jacobian is None else jnp.abs(jacobian)
        # Roundings that x has, and that its terms have; a quarter of the tolerance is for who adds up in another order.
        level, loose = (0.75 * rounding_level(weights, s) for s in (jnp.abs(x), size_of(x, multipliers)))
        moved, next_move = (weighted_sum(weights, jnp.abs(v)) for v in (x - origin, step))
        terms = (value, value - values[1], value - 2 * values[0] + values[1])
        relative, change, bend = (jnp.abs(v) / (level + proposed) for v in terms)
        seen = Seen(jnp.abs(value), level, loose, moved, next_move, relative, tiny, change, bend)
        gone = jnp.sum(jnp.abs(multipliers)) > farthest
        settling = _settle(settling, seen, jnp.all(x - step == x), gone, limits[2])
        stop = settling.done + settling.lost > 0
        delta = jnp.where((settling.again > 0) & ~stop, before, delta)
        x, multipliers = jnp.where(stop, x, x - delta @ rows.normals), jnp.where(stop, multipliers, multipliers + delta)
        return x, multipliers, memory, jnp.stack([delta, value, values[0]]), jnp.stack(settling)

    far, zero = jnp.full((), jnp.inf, origin.dtype), jnp.zeros((), origin.dtype)
    first = Settling(jnp.where(active, zero, 1.0), zero, far, zero, far, far, *[zero] * 6)
    none = jnp.zeros_like(frame.value)
    begin = (proposal, none, memory, jnp.stack([none] * 3), jnp.stack(first))
    x, multipliers, _, (last, *_), packed = lax.while_loop(keep_going, improve, begin)
    settling = Settling(*packed)
    whole = move_of(root, origin, x, move - multipliers @ rows.own_normals)
    landed, iterations = settling.done > 0, settling.iteration.astype(jnp.int32)
    return Reached(x, whole, landed, iterations, size_of(x, multipliers), jnp.abs(last @ rows.normals))


def _larger(first: Array, second: Array) -> Array:
    return jnp.maximum(jnp.abs(first), jnp.abs(second))


def _rows_of(root: Root, place: Place) -> Rows:
    lengths = row_lengths(place.frame.jacobian)
    scale = jnp.where(lengths > 0, 1 / jnp.where(lengths > 0, lengths, 1.0), 0.0)
    own_normals = place.frame.jacobian * scale[:, None]
    return Rows(jnp.abs(place.jacobian), lengths, scale, own_normals, spread(root, own_normals))


# Of x, what iterations before have left, the step before, and whether |g| is more than roundings: the step in multiples of the
# unit normals, g, its Jacobian if there is one, and what the next iteration is to know.
Estimate = Callable[[Array, Any, Array, Array], tuple[Array, Array, Array | None, Any]]


def _chord(constraint: ConstraintFn, place: Place, rows: Rows) -> tuple[Estimate, tuple[()]]:
    """λ ← λ + G⁻¹g with the Gram matrix of the origin: a value of g an iteration, linear convergence, for small steps."""

    def estimate(x: Array, memory: tuple[()], *_: Array) -> tuple[Array, Array, None, tuple[()]]:
        value = constraint(x)
        return solve(place.frame, value) * rows.lengths, value, None, memory

    return estimate, ()


def _newton(constraint: ConstraintFn, place: Place, rows: Rows) -> tuple[Estimate, tuple[()]]:
    """λ ← λ + (J(x')M⁻¹J(x)ᵀ)⁻¹g: a Jacobian and a system of m equations an iteration, quadratic convergence."""
    redundant = dependent_rows(place.frame)

    def estimate(x: Array, memory: tuple[()], *_: Array) -> tuple[Array, Array, Array, tuple[()]]:
        value, jacobian = value_and_jacobian(constraint, x)
        mixed, scaled = (jacobian * rows.scale[:, None]) @ rows.normals.T, value * rows.scale
        delta = scaled / mixed[0] if value.size == 1 else jnp.linalg.solve(_without(mixed, redundant), scaled)
        return jnp.where(redundant, 0.0, delta), value, jacobian, memory

    return estimate, ()


def _broyden(constraint: ConstraintFn, place: Place, rows: Rows) -> tuple[Estimate, Array]:
    """λ ← λ + B g, where B begins as G⁻¹ of the origin and learns from each step: a value of g and m² operations an iteration.

    Broyden's (first) method: B changes by the rank-one matrix that makes it right along the step δ just made, and the new step
    is Bg‖δ‖²/(‖δ‖² − δ·Bg) with the old B. Convergence is superlinear. With one row it is the
    secant method.
    """
    own = place.frame.root * rows.lengths[None]

    def estimate(x: Array, inverse: Array, before: Array, clear: Array) -> tuple[Array, Array, None, Array]:
        value = constraint(x)
        guess = inverse @ (value * rows.scale)
        # Along the last step, what is left of it; from roundings nothing is learnt.
        size = jnp.where(clear, before @ before, 0.0)
        safe = jnp.where(size > 0, size, 1.0)
        left = jnp.where(size > 0, jnp.clip(before @ guess / safe, -LONGEST, 1 - 1 / LONGEST), 0.0)
        learnt = jnp.where(size > 0, 1 / (safe * (1 - left)), 0.0) * (before @ inverse)
        delta = guess / (1 - left)
        return delta, value, None, inverse + guess[:, None] * learnt[None]

    return estimate, own.T @ own


SOLVERS = {"broyden": _broyden, "newton": _newton, "chord": _chord}
# Iterations until x is near the set, until it has come to rest there, and without any progress. Newton's method may leap far out
# and then take several iterations to be where it was.
LIMITS = {
    "broyden": (BROYDEN_ITERATIONS, RESTING_ITERATIONS, HOPELESS),
    "newton": (NEWTON_ITERATIONS, RESTING_ITERATIONS, RESTING_ITERATIONS),
    "chord": (CHORD_ITERATIONS, CHORD_ITERATIONS, CHORD_ITERATIONS),
}


class Seen(NamedTuple):
    """What an iteration knows of each row of g, (m,)."""

    off: Array  # |g|
    level: Array  # of the roundings of x,
    loose: Array  # and of those of the terms that make x
    moved: Array  # Σ_i |∂_i g||x_i − origin_i|
    next_move: Array  # the same of the step to come
    relative: Array  # |g| in units of the move
    tiny: Array  # a change of g that is little for a move of this length
    change: Array  # of g over the last two steps, in units of the move,
    bend: Array  # and how far it is from the same in both


def _settle(settling: Settling, seen: Seen, still: Array, gone: Array, hopeless: int) -> Settling:
    """Whether a solver has reached the set, to the roundings that there are; `still` where its step no longer changes x.

    One that has `gone` far out has not: any g is within the roundings of numbers that large.

    Where |g| no longer falls, the roundings of the terms that make x will do: a coordinate that is 0 on the set has none of its
    own. And a g that averages many terms has roundings that x knows nothing of: there |g| goes up and down while steps are tiny.
    A slow iteration falls each time, one that runs away rises, and one that misses the set by little repeats its |g|, or leaps.
    An iteration with a wrong Jacobian goes up and down as well: so a step is made twice, over which g is linear unless it is all
    roundings.
    """
    dtype = seen.off.dtype
    eps = jnp.finfo(dtype).eps
    # Small is small against the move to here, not against the proposal, which may be far outside the set.
    small = eps**CLOSE * seen.moved
    rounded = seen.off <= jnp.minimum(seen.loose, seen.tiny)
    # A row whose coordinates are 0 on the set has no roundings of its own: one of its terms' roundings' roundings will do.
    low = jnp.where(seen.level <= eps**2 * seen.loose, eps * seen.loose, seen.level)
    rows = (
        rounded,
        rounded | ((seen.off <= small) & (seen.next_move <= small)),
        seen.off <= low,
        # Where x has run away, |g| and its roundings are infinite alike.
        jnp.isfinite(seen.off),
    )
    all_rounded, calm, arrived, finite = jnp.all(jnp.stack(rows), axis=1)
    largest = jnp.max(seen.relative)
    before = settling
    # Roundings may be as large as what is small: who was calm stays so until |g| is well above the least.
    calm = calm | (jnp.isfinite(before.best) & (largest <= FARTHEST * before.best))
    waited = jnp.where(calm & ~(largest < before.best), before.waited + 1, 0)
    best = jnp.where(calm, jnp.minimum(before.best, largest), jnp.inf)
    rose = calm & ((before.rose > 0) | ((before.waited > 0) & (largest > 1.25 * before.size)))
    fell = calm & ((before.fell > 0) | ((before.rose > 0) & (largest < 0.8 * before.size)))
    bend = jnp.max(seen.bend)
    straight = bend < STRAIGHT * jnp.max(seen.change)
    # Roundings in steps of one may be straight to the last digit, and others hardly ever nearly so.
    surely = straight & (bend > 0) & (bend < SURELY * largest)
    looked = jnp.where(
        straight, before.smooth + jnp.where(surely, SURE, 1.0), jnp.where(before.smooth >= SURE, 1.0, 0.0)
    )
    smooth = jnp.where(before.again > 0, looked, before.smooth)
    # Roundings may look straight once; what is straight is so each time. Between, steps that were made twice have to calm down.
    again = (waited >= PATIENCE) & ((waited - PATIENCE) % CALM == 0)
    rough = ~again & ~(smooth > 0)
    noise = fell & rough & (waited >= NOISE_PATIENCE) & (largest <= FARTHEST * best)
    at_rest = (waited >= PATIENCE) & (all_rounded | still)
    idle = jnp.where((largest < before.least) | (largest < 0.5 * before.size), 0, before.idle + 1)
    lost = ~finite | gone | (~jnp.isfinite(best) & (idle >= hopeless))
    least = jnp.minimum(before.least, largest)
    done = (arrived | at_rest | noise) & finite & ~gone
    after = (done, lost, least, idle, largest, best, waited, rose, fell, again, smooth, before.iteration + 1)
    return Settling(*(number.astype(dtype) for number in after))


def _without(matrix: Array, rows: Array) -> Array:
    """The matrix with some rows and columns replaced by those of the identity."""
    kept = ~rows
    return jnp.where(kept[:, None] & kept[None], matrix, jnp.eye(rows.size, dtype=matrix.dtype))
