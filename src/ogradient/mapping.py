"""Maps over chains, particles and draws, all at once or in blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.compilation import compiled
from ogradient.precision import full_precision
from ogradient.problem import Problem
from ogradient.problem.functions import Position

LARGE_BATCH = 2**18  # bytes
LARGE_POSITION = 2**20  # coordinates


def draws_together(problem: Problem) -> int | None:
    """Draws evaluated per block in diagnostics; None means all. Data take memory for each."""
    return None if problem.data is None else 16


def chains_together(problem: Problem, positions: Position) -> int | None:
    """How many chains or particles, the first axis of `positions`, a step moves together; None is all.

    One at a time where a position has a million coordinates: one fills any device by itself, side by side they take more memory,
    and mapped convolutions with weights of their own are half as fast. On a CPU also where a batch is large: what a chain
    computes of it then stays in the cache, which is up to twice as fast as all chains side by side.
    """
    size = sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(positions))
    large = problem.data is not None and problem.data.batch_bytes > LARGE_BATCH
    return 1 if size >= LARGE_POSITION or (large and jax.default_backend() == "cpu") else None


def ways_together(problem: Problem) -> bool:
    """Whether the ways there and back of an exact step are computed side by side.

    An accelerator has room for both, and half as many loops to wait for. On a CPU, and over data, one after the other is faster:
    nothing is computed for the way that the ends of a trajectory do not have.
    """
    return jax.default_backend() != "cpu" and problem.data is None


def over_draws(function: Callable[[Problem, Position], Any], problem: Problem, draws: Position) -> Any:
    """A function of the problem and one draw, over all draws (first axis), compiled.

    The compiled program is found again by the function, so it should be one that lasts: of a module, not made on the spot.
    """
    return _over_draws(function, problem, jax.tree.map(jnp.asarray, draws))


@compiled(static_argnums=0)
def _over_draws(function: Callable[[Problem, Position], Any], problem: Problem, draws: Position) -> Any:
    return over_particles(partial(function, problem), draws, draws_together(problem))


def over_particles(function: Callable, arguments: Any, block_size: int | None) -> Any:
    """Map over particles: all at once, or in blocks so that memory is O(n · block); in full precision."""
    with full_precision():
        return _over_particles(function, arguments, block_size)


def _over_particles(function: Callable, arguments: Any, block_size: int | None) -> Any:
    leaves, structure = jax.tree.flatten(arguments)
    if block_size is None or block_size >= leaves[0].shape[0]:
        return jax.vmap(function)(arguments)
    # lax.map cannot cut empty arrays (those of no equality constraint) into blocks: they go around it.
    shapes, out = jax.tree.flatten(jax.eval_shape(jax.vmap(function), arguments))

    def solid(given: list[Array]) -> list[Array]:
        full = iter(given)
        filled = [next(full) if leaf.size else jnp.zeros(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        result = jax.tree.leaves(function(jax.tree.unflatten(structure, filled)))
        return [leaf for leaf, shape in zip(result, shapes, strict=True) if shape.size]

    # One at a time is a plain loop: a block of one would be mapped all the same.
    mapped = iter(
        lax.map(solid, [leaf for leaf in leaves if leaf.size], batch_size=None if block_size == 1 else block_size)
    )
    return jax.tree.unflatten(out, [next(mapped) if s.size else jnp.zeros(s.shape, s.dtype) for s in shapes])
