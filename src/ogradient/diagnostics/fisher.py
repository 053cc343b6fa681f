"""Orthogonal-space Fisher divergence: how far a law with a known score is from the target along the set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ogradient.geometry import frame_at, project
from ogradient.problem import Problem
from ogradient.problem.functions import Position, first_of


def orthogonal_fisher(problem: Problem, draws: Position, score: Callable[[Position], Any] | Any) -> float:
    """F⊥ = E_q ‖D(s_q − s)‖², the divergence whose decay the paper proves (min F⊥ = O(log T / T)).

    Args:
        problem: with equality constraints; s = ∇log π and D are its own.
        draws: of q, with the draws as first axis.
        score: s_q = ∇log q: a function of one position with a result of its structure, or the values at the draws, known
            or estimated by whatever means fits q.

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> known = og.problems.von_mises_fisher(3, 5.0)
    >>> uniform = known.start_on(jax.random.key(0), 1000)          # flat on the sphere: s_q = 0
    >>> round(og.orthogonal_fisher(known.problem, uniform, lambda x: jnp.zeros(3)), 0)   # κ² E[1 − x₁²] = 25 · 2/3
    17.0
    """
    if problem.equality is None:
        raise ValueError("orthogonal_fisher needs a problem with equality=...; D is its tangent projection.")
    draws = jax.tree.map(jnp.asarray, draws)
    problem.check(first_of(draws))
    scores = jax.vmap(score)(draws) if callable(score) else jax.tree.map(jnp.asarray, score)
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (draws, scores)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"score must have the structure and shapes of the draws, {shapes[0]}; got {shapes[1]}.")

    def one(position: Position, score: Position) -> jax.Array:
        x, logdensity, constraint, _ = problem.flatten(position)
        difference = project(frame_at(constraint, x), ravel_pytree(score)[0] - jax.grad(logdensity)(x))
        return jnp.sum(difference**2)

    return float(jnp.mean(jax.jit(jax.vmap(one))(draws, scores)))
