"""A RATTLE step inside h(x) ≤ 0: legs from wall to wall, with the momentum mirrored at each.

A step of size ε begins and ends with half a kick; between them the point moves freely along {g = 0}, on the path
x(s) = x + sRp − M⁻¹J(x)ᵀλ(s), g(x(s)) = 0. At the first s where a row h_b becomes positive, p ← p − 2n(n·p)/‖n‖² with n the part
of Rᵀ∇h_b along the set, and the rest of the step goes on from there.

For a given s a leg keeps the volume of phase space, but s depends on where it begins. In coordinates (s, point of the wall,
momentum) the volume is |n·v| ds dσ dp, v the velocity of the path. So the log of the volume changes by
    ℓ = Σ_legs [begins at wall a] log|∇h_a(x)·v_r| − [ends at wall b] log|∇h_b(x')·v_f|,   v_f = O(x→x')p,  v_r = −O(x'→x)p',
O(x→x')w = w − J(x)ᵀ(J(x')J(x)ᵀ)⁻¹J(x')w in coordinates of unit mass. A move is accepted with min(1, exp(−ΔH + ℓ)). On flat
sets with flat walls ℓ = 0, and legs are straight (`straight.py`). Elsewhere every leg is run back: it must return to where it
began, and meet the wall it left and no other.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import ConstraintFn, project, row_lengths, solve
from ogradient.geometry.land import rounding_level
from ogradient.samplers.metric import Root, gather, spread, unit_lengths
from ogradient.samplers.rattle import Advance, Move, Potential, Visit, came_back, left_over
from ogradient.samplers.solver import Place, Reached, place_at, reach
from ogradient.samplers.straight import earliest, straight_legs
from ogradient.status import Status

SEARCH = 30  # evaluations of h that may go into finding one wall
SHORT = 1e-4  # of a step: over a leg that short the momentum is projected, not transported
NO_WALL = -1
BOUNCES = 10  # per row of h that one step may make, and some more


class Walls(NamedTuple):
    """What a step needs to know of the problem."""

    constraint: ConstraintFn
    bounds: ConstraintFn
    root: Root
    projection: str
    flat: bool  # whether g and h are affine


class Hit(NamedTuple):
    """The end of a leg: at a row of h, or at the end of the time."""

    time: Array
    row: Array  # NO_WALL at the end of the time
    found: Array  # whether the search came to an end
    reached: Reached
    gradient: Array  # Rᵀ∇h of the row there


class Leg(NamedTuple):
    """Where a step stands after some legs."""

    place: Place
    p: Array
    remaining: Array  # time
    row: Array  # the wall that the leg begins at,
    gradient: Array  # Rᵀ∇h there
    volume: Array  # ℓ
    bounces: Array
    status: Array
    iterations: Array


def between_walls(walls: Walls, epsilon: Array) -> Advance:
    """Moves along {g = 0} inside h ≤ 0, from wall to wall."""

    def advance(visit: Visit) -> Move:
        p = project(visit.place.frame, visit.p - 0.5 * epsilon * visit.gradient)
        leg = (_straight if walls.flat else _legs)(walls, visit.place, p, epsilon, visit.leaves)
        status = jnp.where(visit.leaves, leg.status, Status.OK)
        return Move(leg.place.x, leg.p, status, leg.iterations, leg.volume, leg.bounces)

    return advance


def without_force_outside(potential: Potential) -> Potential:
    """Where h ≤ 0 fails by a rounding log π may not exist: no force there. A move that ends there is refused."""

    def at(x: Array) -> tuple[Array, Array, Place]:
        value, gradient, place = potential(x)
        return value, jnp.where(jnp.all(jnp.isfinite(gradient)), gradient, 0.0), place

    return at


def _straight(walls: Walls, place: Place, p: Array, epsilon: Array, active: Array) -> Leg:
    """All legs of one step where g and h are affine."""
    most = BOUNCES * jax.eval_shape(walls.bounds, place.x).shape[0] + 20
    moved, p, left, bounces = straight_legs(walls.bounds, walls.root, place, p, jnp.where(active, epsilon, 0.0), most)
    reached = reach(walls.constraint, walls.root, place, moved, walls.projection, active)
    ended = jnp.where(left > 0, Status.NOT_REVERSIBLE, Status.OK)
    status = jnp.where(reached.landed, ended, Status.SOLVER_DIVERGED).astype(jnp.int32)
    zero, end = jnp.zeros((), p.dtype), Place(reached.x, place.jacobian, place.frame)
    return Leg(end, p, left, jnp.int32(NO_WALL), jnp.zeros_like(p), zero, bounces, status, reached.iterations)


def _legs(walls: Walls, place: Place, p: Array, epsilon: Array, active: Array) -> Leg:
    """All legs of one step, without force."""
    most = BOUNCES * jax.eval_shape(walls.bounds, place.x).shape[0] + 20
    zero, none = jnp.zeros((), p.dtype), jnp.zeros((), jnp.int32)
    first = Leg(
        place, p, jnp.where(active, epsilon, 0.0), jnp.int32(NO_WALL), jnp.zeros_like(p), zero, none, none, none
    )

    def keep_going(leg: Leg) -> Array:
        return (leg.remaining > 0) & (leg.status == Status.OK)

    def body(leg: Leg) -> Leg:
        going = keep_going(leg)
        end, p, hit, reverse = _there_and_back(walls, leg, epsilon, going)
        at_wall = hit.row != NO_WALL
        # The velocities of the path at its two ends.
        forward, backward = _oblique(leg.place, end, leg.p), _oblique(end, leg.place, p)
        volume = jnp.where(leg.row != NO_WALL, _log_size(leg.gradient @ backward), 0.0)
        volume = volume - jnp.where(at_wall, _log_size(hit.gradient @ forward), 0.0)
        back, same = _came_back(walls, leg, end, p, hit, reverse, epsilon, going)
        normal = project(end.frame, hit.gradient)
        length = row_lengths(normal[None])[0]
        normal = normal / jnp.where(length > 0, length, 1.0)
        towards = normal @ p
        p = jnp.where(at_wall, p - 2 * towards * normal, p)
        fine = same & jnp.isfinite(volume) & (~at_wall | (towards > 0)) & (leg.bounces < most)
        landed = hit.found & hit.reached.landed
        status = jnp.where(landed, jnp.where(fine, Status.OK, Status.NOT_REVERSIBLE), Status.SOLVER_DIVERGED)
        return Leg(
            end,
            p,
            jnp.where(at_wall, leg.remaining - hit.time, 0.0),
            hit.row,
            hit.gradient,
            leg.volume + volume,
            leg.bounces + at_wall.astype(jnp.int32),
            status.astype(jnp.int32),
            leg.iterations + hit.reached.iterations + back,
        )

    return lax.while_loop(keep_going, body, first)


def _log_size(rate: Array) -> Array:
    return jnp.log(jnp.abs(rate))


def _oblique(start: Place, end: Place, w: Array) -> Array:
    """O(x→x')w: the part of w along the set at x', with the rest taken off along the normals of x."""
    m = start.frame.value.size
    if m == 0:
        return w
    mixed = end.frame.jacobian @ start.frame.jacobian.T
    if m == 1:
        return w - (end.frame.jacobian @ w / mixed[0]) @ start.frame.jacobian
    return w - jnp.linalg.solve(mixed, end.frame.jacobian @ w) @ start.frame.jacobian


class Way(NamedTuple):
    """A search to make: from a place with a momentum, over a time, away from a wall."""

    place: Place
    p: Array
    time: Array
    row: Array


def _there_and_back(walls: Walls, leg: Leg, epsilon: Array, active: Array) -> tuple[Place, Array, Hit, Hit]:
    """Where a leg ends, its momentum there, the hit that ends it, and that of the way back. One search is compiled for both."""

    def search(way: Way) -> tuple[Way, Hit]:
        hit = _first_hit(walls, *way, active)
        end = place_at(walls.constraint, walls.root, hit.reached.x)
        short = hit.time <= SHORT * epsilon
        led = jnp.where(short, way.p, hit.reached.move / jnp.where(short, 1.0, hit.time))
        # Back to a wall it may take a rounding longer.
        time = jnp.where(leg.row != NO_WALL, hit.time + _near(epsilon), hit.time)
        return Way(end, -project(end.frame, led), time, hit.row), hit

    first = Way(leg.place, leg.p, leg.remaining, leg.row)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(search, first)[1])
    again = lambda _, carry: (carry[1], *search(carry[1]), carry[2])
    back, _, reverse, hit = lax.fori_loop(0, 2, again, (first, first, nothing, nothing))
    return back.place, -back.p, hit, reverse


def _near(epsilon: Array) -> Array:
    """How much two times of a step may differ that should be the same."""
    return 10 * jnp.sqrt(jnp.finfo(epsilon.dtype).eps) * epsilon


def _came_back(
    walls: Walls, leg: Leg, end: Place, p: Array, hit: Hit, reverse: Hit, epsilon: Array, active: Array
) -> tuple[Array, Array]:
    """Iterations, and whether the leg from its end with −p returns in the same time, to the wall it left and no other."""
    near = _near(epsilon)
    at_wall = (reverse.row == leg.row) & (jnp.abs(reverse.time - hit.time) <= near)
    agrees = jnp.where(leg.row != NO_WALL, at_wall, reverse.row == NO_WALL)
    # A corner, or a leg of no length: walls that are met in the same moment may be met in another order.
    agrees = agrees | (hit.time <= near)
    if leg.place.frame.value.size == 0:
        return jnp.zeros((), jnp.int32), agrees
    back = reach(walls.constraint, walls.root, end, -hit.time * p, walls.projection, active)
    same = back.landed & came_back(end, leg.place.x, left_over(walls.root, leg.place), back)
    return back.iterations, agrees & same


def _first_hit(walls: Walls, place: Place, p: Array, time: Array, left: Array, active: Array) -> Hit:
    """The first s ≤ time at which a row of h becomes positive along the path of momentum p.

    Begins with the smallest upward root of h + ḣs + ½ḧs² over all rows, exact where those are linear. Then, from points outside,
    Newton or the secant of the rows that are positive there; from points inside, the quadratic anew. The row that was left
    counts as 0 at the beginning, and as h/s on the way.
    """
    bounds, root = walls.bounds, walls.root
    h, slope, bend = _along(walls, place, p)
    rows, farthest = jnp.arange(h.size, dtype=jnp.int32), unit_lengths(root) * row_lengths(p[None])[0]
    own = rows == left
    roots = jnp.where(own, _root_left(slope, bend), _upward_root(jnp.minimum(h, 0.0), slope, bend))
    target = earliest(roots)
    s = jnp.minimum(roots[target], time)

    def at(s: Array) -> tuple[Reached, Array, Array]:
        reached = reach(walls.constraint, root, place, s * p, walls.projection, active)
        velocity = p if place.frame.value.size == 0 else _oblique(place, place_at(walls.constraint, root, reached.x), p)
        value, rate = jax.jvp(bounds, (reached.x,), (spread(root, velocity),))
        return reached, value, rate

    def keep_going(carry: Any) -> Array:
        return ~carry[-2] & (carry[-1] < SEARCH)

    def body(carry: Any) -> Any:
        s, target, low, low_value, _, _, _, _, count = carry
        reached, value, rate = at(s)
        level_of = partial(_roundings, bounds, reached.x, reached.size + s * farthest)
        safe = jnp.where(s > 0, s, 1.0)
        deflated = jnp.where(own, value / safe, value)
        deflated_rate = jnp.where(own, (rate - value / safe) / safe, rate)
        outside = (value > 0) & ~(own & (value <= level_of(left)[0]))
        outside = outside | jnp.isnan(value)
        secant = low + (s - low) * low_value / jnp.where(outside, low_value - deflated, 1.0)
        newton = s - deflated / jnp.where(deflated_rate > 0, deflated_rate, 1.0)
        good = (deflated_rate > 0) & (newton > low) & (newton < s)
        earlier = jnp.where(outside, jnp.where(good, newton, jnp.clip(secant, low, s)), jnp.inf)
        later = jnp.where(
            own, s + _upward_root(value, rate, bend), s + _upward_root(jnp.minimum(value, 0.0), rate, bend)
        )
        any_outside = jnp.any(outside)
        estimates = jnp.where(any_outside, jnp.where(jnp.isnan(earlier), low, earlier), later)
        new_target = earliest(estimates)
        level, old_gradient = level_of(target)
        new_level, gradient = level_of(new_target)
        on_target = (
            ~any_outside & (jnp.abs(value[target]) <= level) & (rate[target] > 0) & ~((target == left) & (s <= 0))
        )
        on_new = any_outside & (jnp.abs(value[new_target]) <= new_level)
        ended = ~any_outside & ~on_target & (s >= time)
        row = jnp.where(on_new, new_target, jnp.where(on_target, target, NO_WALL)).astype(jnp.int32)
        gradient = gather(root, jnp.where(on_new, gradient, old_gradient))
        done = on_new | on_target | ended
        inside = ~any_outside
        low, low_value = jnp.where(inside, s, low), jnp.where(inside, deflated, low_value)
        s_next = jnp.where(done, s, jnp.minimum(estimates[new_target], time))
        return s_next, jnp.where(done, target, new_target), low, low_value, reached, row, gradient, done, count + 1

    zero = jnp.zeros((), p.dtype)
    nowhere = Reached(
        place.x, jnp.zeros_like(p), jnp.ones((), bool), jnp.zeros((), jnp.int32), jnp.abs(place.x), jnp.zeros_like(p)
    )
    first_value = jnp.where(own, slope, jnp.minimum(h, 0.0))
    begin = (s, target, zero, first_value, nowhere, jnp.int32(NO_WALL), jnp.zeros_like(p), ~active, jnp.int32(0))
    s, _, _, _, reached, row, gradient, found, _ = lax.while_loop(keep_going, body, begin)
    return Hit(s, row, found, reached, gradient)


def _along(walls: Walls, place: Place, p: Array) -> tuple[Array, Array, Array]:
    """h, ḣ and ḧ of all rows along the path at its beginning."""
    velocity = spread(walls.root, p)
    rate = lambda function: lambda x: jax.jvp(function, (x,), (velocity,))[1]
    h, slope = jax.jvp(walls.bounds, (place.x,), (velocity,))
    bend = rate(rate(walls.bounds))(place.x)
    if place.frame.value.size:
        # The path bends along the normals: g = 0 along it.
        turn = -solve(place.frame, rate(rate(walls.constraint))(place.x)) @ place.frame.jacobian
        bend = bend + jax.jvp(walls.bounds, (place.x,), (spread(walls.root, turn),))[1]
    return h, slope, bend


def _roundings(bounds: ConstraintFn, x: Array, size: Array, row: Array) -> tuple[Array, Array]:
    """How small |h| of a row can be asked to be at an x that was made of terms of this size, and its gradient."""
    value, pullback = jax.vjp(bounds, x)
    gradient = pullback(jax.nn.one_hot(row, value.size, dtype=value.dtype))[0]
    return rounding_level(jnp.abs(gradient)[None], size)[0], gradient


def _upward_root(h: Array, slope: Array, bend: Array) -> Array:
    """The smallest s ≥ 0 at which h + slope·s + ½ bend·s², with h ≤ 0, goes from below to above 0; infinite where none is."""
    discriminant = slope**2 - 2 * bend * h
    rootd = jnp.sqrt(jnp.maximum(discriminant, 0.0))
    # −2h/(slope + √…) has no cancellation for slope > 0, and (√… − slope)/bend none for slope < 0.
    below = slope + rootd
    first = jnp.where(below > 0, -2 * h / jnp.where(below > 0, below, 1.0), jnp.inf)
    second = jnp.where(bend > 0, (rootd - slope) / jnp.where(bend > 0, bend, 1.0), jnp.inf)
    s = jnp.where(slope > 0, first, second)
    return jnp.where(discriminant >= 0, jnp.where(s >= 0, s, jnp.inf), jnp.inf)


def _root_left(slope: Array, bend: Array) -> Array:
    """When a wall that was just left comes back."""
    away = slope < 0
    return jnp.where(away & (bend > 0), -2 * slope / jnp.where(bend > 0, bend, 1.0), jnp.where(away, jnp.inf, 0.0))
