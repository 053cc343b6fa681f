"""From any point to the constraint set: damped Gauss–Newton with minimum-norm steps.

x ← x − t J⁺c(x),  c = (g, (h + δ)₊),  t the first of 1, ½, ¼, … that shortens c enough

δ, how far inside the boundary is aimed at, starts as far as the start is outside or off {g = 0} (the mirror image: on the
boundary itself a density is often at its worst), the same length for all rows, and is halved each time, down to √eps of the
start's size.

Each iteration costs one frame and the values of c at eight points. It converges quadratically near the set, and stops where
|g| is a few roundings of x, 8 eps Σ_i |∂_i g||x_i|. Where no step shortens c any more, it also stops at the roundings of what was
added up to make x (a coordinate that is 0 on the set has none of its own), or of g itself, which no longer follows its gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.compilation import compiled
from ogradient.geometry import ConstraintFn, Frame, frame_at, landing, row_lengths, solve, value_and_jacobian
from ogradient.mapping import over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position, as_positions, first_of
from ogradient.status import Status

HALVINGS = 8
MAX_ITERATIONS = 100
ROUNDINGS = 8
UNEQUAL = 100.0  # times the spread of the points in another coordinate: then coordinates have different units
FIXED = 1e3  # roundings of a coordinate: one that varies by less is fixed


class Landing(NamedTuple):
    """Where a point landed, and how. Fields of several points have those as their first axis."""

    position: Position
    status: Array  # OK, SOLVER_DIVERGED, or NON_FINITE
    residual: Array  # max |g| (and h₊) at the position: the best one met
    rank: Array  # of the Jacobian of g there
    iterations: Array


def rounding_level(weights: Array, size: Array) -> Array:
    """How small each |g_k| can be asked to be, (m,): a few roundings of x, 8 eps Σ_i w_ki s_i.

    `weights` are w_ki = |∂_i g_k|. `size` holds s_i ≥ 0: that of x_i, or of the terms that were added up to make it where they
    cancel. A coordinate that is 0 on the set has no size of its own. Nothing below the smallest normal number is asked for.
    """
    info = jnp.finfo(size.dtype)
    return ROUNDINGS * (info.eps * weighted_sum(weights, jnp.maximum(size, info.tiny / info.eps)) + info.tiny)


def weighted_sum(rows: Array, vector: Array) -> Array:
    """The product of rows (m, d) and a vector (d,). One row is multiplied and summed: XLA compiles this better."""
    return rows @ vector if rows.shape[0] != 1 else jnp.sum(rows * vector[None], axis=1)


def land(problem: Problem, positions: Position, *, max_iterations: int = MAX_ITERATIONS) -> Landing:
    """Bring points to g(x) = 0 (and h(x) ≤ 0), from anywhere, each on its own.

    Args:
        problem: whose constraints are meant; the log density plays no part.
        positions: one or more starts, with the points as the first axis of every leaf.
        max_iterations: after which a point that has not landed is given up.

    Returns:
        A `Landing`. Points with `status` OK are on the set to the last digits; the others are at the best place met, with
        the `residual` there and the `rank` of the Jacobian (fewer than the number of constraints: they conflict, or a
        gradient vanishes).

    >>> import jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: 0.0, equality=lambda x: jnp.sum(x**2) - 1)
    >>> landing = og.land(problem, jnp.array([[3.0, 4.0], [0.1, 0.0]]))
    >>> jnp.allclose(landing.position, jnp.array([[0.6, 0.8], [1.0, 0.0]]), atol=1e-6).item(), landing.status.tolist()
    (True, [0, 0])
    """
    if not problem.constrained:
        raise ValueError("land needs a problem with a constraint: pass equality=... or inequality=... to og.Problem.")
    problem.check_whole()
    positions = as_positions(positions)
    problem.check(first_of(positions))
    if problem.support is None:
        return _land_all(problem, positions, max_iterations)
    landing = _land_all(problem.free, problem.support.from_user(positions), max_iterations)
    return landing._replace(position=problem.support.to_user(landing.position))


def units_of(points: Any, xp: Any = jnp) -> Any:
    """Units (d,) of the coordinates of points (n, d): 1, or their spreads where those differ more than a hundredfold.

    Coordinates that are the same in all points have no spread, and take the smallest. `xp` is jax.numpy or numpy.
    """
    spread, size = xp.std(points, axis=0), xp.max(xp.abs(points), axis=0)
    free = spread > FIXED * jnp.finfo(points.dtype).eps * size
    smallest = xp.min(xp.where(free, spread, xp.inf))
    unequal = (points.shape[0] >= 4) & xp.any(free) & (xp.max(spread) > UNEQUAL * smallest)
    return xp.where(unequal, xp.where(free, spread, smallest), 1.0)


@compiled(once=True, static_argnums=2)
def _land_all(problem: Problem, positions: Position, max_iterations: int) -> Landing:
    together = None if problem.data is None else 1  # data take memory for each point
    units = units_of(jax.vmap(lambda position: problem.flatten(position)[0])(positions))
    return over_particles(lambda position: land_one(problem, position, max_iterations, units), positions, together)


def land_one(
    problem: Problem, position: Position, max_iterations: int = MAX_ITERATIONS, units: Array | None = None
) -> Landing:
    """`land` for a single point, a pure function to be mapped and compiled. Steps are shortest in the given units."""
    x, _, plain_equality, unravel_x = problem.flatten(position)
    units = jnp.ones_like(x) if units is None else units
    x, unravel = x / units, lambda y: unravel_x(units * y)
    equality = lambda y: plain_equality(units * y)
    inequality = lambda y: problem.inequality_value(unravel(y))
    bounds, slopes = value_and_jacobian(inequality, x)
    slopes = row_lengths(slopes)
    outside = jnp.max(jnp.where(slopes > 0, bounds / jnp.where(slopes > 0, slopes, 1.0), 0.0), initial=0.0)
    outside = jnp.maximum(outside, row_lengths(landing(frame_at(equality, x), alpha=1.0)[None])[0])
    margin = jnp.sqrt(jnp.finfo(x.dtype).eps) * slopes * jnp.maximum(outside, jnp.max(jnp.abs(x)))
    m = jax.eval_shape(equality, x).shape[0]

    depth_at = lambda iteration: jnp.maximum(outside * slopes * 0.5 ** iteration.astype(x.dtype), margin)

    def combined(iteration: Array) -> ConstraintFn:
        depth = depth_at(iteration)
        # Rows further inside vanish, with their gradient.
        return lambda x: jnp.concatenate([equality(x), jnp.maximum(inequality(x) + depth, 0.0)])

    def measure(constraint: ConstraintFn, x: Array) -> tuple[Frame, Array, Array, Array]:
        """Frame, the level of the roundings, whether x is on the set, and how far it is off: max |g| and h₊."""
        frame = frame_at(constraint, x)
        feasible = jnp.all(inequality(x) <= 0)
        g, level = jnp.abs(frame.value[:m]), rounding_level(jnp.abs(frame.jacobian[:m]), jnp.abs(x))
        on_set = feasible & jnp.all((g <= level) & jnp.isfinite(g))
        off = jnp.max(jnp.concatenate([g, jnp.maximum(inequality(x), 0.0), jnp.zeros((1,), x.dtype)]))
        return frame, level, on_set, off

    def keep_going(carry: Any) -> Array:
        _, _, _, _, done, stuck, iteration = carry
        return ~done & ~stuck & (iteration < max_iterations)

    def improve(carry: Any) -> Any:
        x, size, best, best_off, _, _, iteration = carry
        constraint = combined(iteration)
        frame, level, on_set, off = measure(constraint, x)
        better = off < best_off
        best, best_off = jnp.where(better | on_set, x, best), jnp.where(better | on_set, off, best_off)
        # Compilers may compute g anew for each use, to other roundings: 0 for the step, and not on the set for the decision.
        on_set = on_set | (best_off == 0)
        # Rows at their level count as 0: their noise must not keep the others from getting there.
        level = jnp.concatenate([level, jnp.zeros(bounds.shape, x.dtype)])
        multipliers = -solve(frame, jnp.where(jnp.abs(frame.value) <= level, 0.0, frame.value))
        step = multipliers @ frame.jacobian
        t, shorter, noise = _search(constraint, x, frame, level, step, m)
        # A bounded g may look like it where the line search fails, after long steps; those that come from roundings are short.
        noise = noise & (row_lengths(step[None])[0] <= shortest)
        rounded = jnp.all(jnp.abs(frame.value[:m]) <= rounding_level(jnp.abs(frame.jacobian[:m]), size))
        # Rows of h that ask for more depth than there is contradict g: then steps are made of roundings, and g is not.
        pulled = jnp.any(frame.value[m:] > 0) & ~jnp.all(depth_at(iteration) <= margin)
        settled = ~shorter & (rounded | noise) & ~pulled & jnp.all(inequality(x) <= 0)
        on_set = on_set | settled
        best, best_off = jnp.where(settled, x, best), jnp.where(settled, off, best_off)
        proposal = x + t * step
        # No step can come from rows that ask for too much depth together; it shrinks.
        stuck = ~jnp.all(jnp.isfinite(proposal)) | (jnp.all(step == 0) & jnp.all(depth_at(iteration) <= margin))
        # Multipliers of dependent rows cancel and say nothing.
        terms = jnp.where(frame.deficient, jnp.abs(step), jnp.abs(multipliers) @ jnp.abs(frame.jacobian))
        terms = jnp.abs(proposal) + t * terms
        stop = stuck | on_set
        x, size = jnp.where(stop, x, proposal), jnp.where(stop, size, terms)
        return x, size, best, best_off, on_set, stuck & ~on_set, iteration + 1

    # From a start at 0 nothing is known of what is short.
    scale = row_lengths(x[None])[0]
    shortest = jnp.where(scale > 0, jnp.cbrt(jnp.finfo(x.dtype).eps) * scale, jnp.inf)
    far, no = jnp.asarray(jnp.inf, x.dtype), jnp.zeros((), bool)
    start = (x, jnp.abs(x), x, far, no, no, jnp.zeros((), jnp.int32))
    _, _, best, best_off, done, _, iterations = lax.while_loop(keep_going, improve, start)
    finite = jnp.isfinite(best_off)
    status = jnp.where(done, Status.OK, jnp.where(finite, Status.SOLVER_DIVERGED, Status.NON_FINITE)).astype(jnp.int32)
    return Landing(unravel(best), status, best_off, _rank(value_and_jacobian(equality, best)[1]), iterations)


def _search(
    constraint: ConstraintFn, x: Array, frame: Frame, level: Array, step: Array, m: int
) -> tuple[Array, Array, Array]:
    """How much of a step to take, whether that shortens c enough, and whether g is at the level of its own noise."""
    norms = row_lengths(frame.jacobian)
    scale = jnp.where(norms > 0, 1 / jnp.where(norms > 0, norms, 1.0), 1.0)  # rows in units of length
    lengths = 0.5 ** jnp.arange(HALVINGS, dtype=x.dtype)
    values = jax.vmap(lambda t: constraint(x + t * step) * scale)(lengths)
    here = frame.value * scale
    excess = jnp.abs(jnp.concatenate([here[None], values])) - (level * scale)[None]
    sizes = row_lengths(jnp.maximum(excess, 0.0))
    sizes, size_here = sizes[1:], sizes[0]
    enough = sizes <= (1 - 0.25 * lengths) * size_here
    chosen = jnp.where(
        jnp.any(enough), jnp.argmax(enough), jnp.nanargmin(jnp.where(jnp.isfinite(sizes), sizes, jnp.inf))
    )
    # A g that averages many terms has roundings that |x| knows nothing of: g then differs from its linear prediction as much
    # after an eighth of the step as after all of it, where curvature would make that 1/64.
    slope = (frame.jacobian @ step * scale)[:m]
    surprise = row_lengths(values[:, :m] - here[None, :m] - lengths[:, None] * slope[None])
    noise = (surprise[3] >= surprise[0] / 16) & (row_lengths(here[None, :m])[0] <= 8 * jnp.max(surprise[:4]))
    return lengths[chosen], jnp.any(enough), noise


def _rank(jacobian: Array) -> Array:
    """How many rows of the Jacobian are independent, judged on rows of unit length."""
    if jacobian.shape[0] == 0:
        return jnp.zeros((), jnp.int32)
    norms = row_lengths(jacobian)[:, None]
    rows = jnp.where(norms > 0, jacobian / jnp.where(norms > 0, norms, 1.0), 0.0)
    values = jnp.linalg.svd(jnp.where(jnp.isfinite(rows), rows, 0.0), compute_uv=False)
    return jnp.sum(values > 10 * jnp.sqrt(jnp.finfo(rows.dtype).eps))
