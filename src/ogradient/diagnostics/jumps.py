"""Does log π jump where its gradient does not see it? Then a step or a test that uses the gradient alone is blind to it.

Between neighbouring draws log π(y) − log π(x) = ∫ ∇log π·dx. Where the trapezoidal rule is most wrong, the segment is halved
again and again, towards the half that is more wrong. Bends and steep slopes vanish; what is left over no length is a jump.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.geometry import frame_at, landing
from ogradient.mapping import over_draws
from ogradient.problem import Problem
from ogradient.problem.functions import Position

NEIGHBOURS = 3
SEGMENTS = 32  # halved, those where the trapezoidal rule is most wrong
HALVINGS = 16
LEAST = 0.1  # a smaller jump of log π does not count: a tenth more or less density


def largest_jump(problem: Problem, draws: Position) -> float:
    """The largest jump of log π between neighbours among draws (n, ...), or 0: log π is continuous as far as they see.

    Costs n + 32 · 16 evaluations of log π and its gradient. Jumps below 0.1 or below the roundings of log π do not count, nor do
    those off the set or where h > 0.
    """
    x, value, score = (np.asarray(part, np.float64) for part in over_draws(_values, problem, draws))
    n = len(x)
    squares = (x**2).sum(axis=1)
    distances = squares[:, None] + squares[None] - 2 * (x @ x.T)
    scale = np.finfo(np.asarray(jax.tree.leaves(draws)[0]).dtype).eps * squares.max()
    # A draw is no neighbour of itself, nor of its repetitions.
    distances[distances <= 10 * scale] = np.inf
    k = min(NEIGHBOURS, n - 1)
    near = np.argpartition(distances, k - 1, axis=1)[:, :k]
    i, j = np.repeat(np.arange(n), k), near.ravel()
    wrong = value[j] - value[i] - 0.5 * ((score[i] + score[j]) * (x[j] - x[i])).sum(axis=1)
    wrong = np.where(np.isfinite(wrong) & np.isfinite(distances[i, j]), np.abs(wrong), -1.0)
    chosen = np.argsort(-wrong)[:SEGMENTS]
    chosen = chosen[wrong[chosen] >= LEAST]
    if chosen.size == 0:
        return 0.0
    # Always as many segments, so that one compilation serves.
    chosen = np.resize(chosen, SEGMENTS)
    take = lambda index: jax.tree.map(lambda leaf: np.asarray(leaf)[index], draws)
    return float(np.max(over_draws(_jump_between, problem, (take(i[chosen]), take(j[chosen])))))


def _values(problem: Problem, position: Position) -> tuple[Array, Array, Array]:
    """The flat position, log π and its gradient at one draw."""
    x, logdensity, _, _ = problem.flatten(position)
    return x, *jax.value_and_grad(logdensity)(x)


def _jump_between(problem: Problem, ends: tuple[Position, Position]) -> Array:
    """The jump that halving leaves on one segment; 0 where there is none that counts."""
    first, logdensity, constraint, unravel = problem.flatten(ends[0])
    last = problem.flatten(ends[1])[0]
    evaluate = jax.value_and_grad(logdensity)
    at = lambda x: (x, *evaluate(x))

    def wrong(a: tuple, b: tuple) -> Array:
        error = jnp.abs(b[1] - a[1] - 0.5 * jnp.dot(a[2] + b[2], b[0] - a[0]))
        # Outside the support log π does not jump, it ends.
        return jnp.where(jnp.isfinite(error), error, 0.0)

    def halve(ends: tuple, _: None) -> tuple[tuple, None]:
        a, b = ends
        middle = at(0.5 * (a[0] + b[0]))
        left = wrong(a, middle) >= wrong(middle, b)
        pick = lambda one, other: jax.tree.map(lambda u, v: jnp.where(left, u, v), one, other)
        return (pick(a, middle), pick(middle, b)), None

    (a, b), _ = lax.scan(halve, (at(first), at(last)), length=HALVINGS)
    height = wrong(a, b)
    least = LEAST + 64 * jnp.finfo(first.dtype).eps * jnp.maximum(jnp.abs(a[1]), jnp.abs(b[1]))
    length = jnp.linalg.norm(last - first)
    near = jnp.linalg.norm(landing(frame_at(constraint, a[0]), alpha=1.0)) <= 0.5 * length
    inside = jnp.all(problem.inequality_value(unravel(a[0])) <= 0)
    return jnp.where((height > least) & near & inside, height, 0.0)
