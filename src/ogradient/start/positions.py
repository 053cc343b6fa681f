"""Starts as arrays with the chains first, in the shapes that the problem takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ogradient.problem import Problem
from ogradient.problem.functions import Position, as_positions, first_of, leaf_names, shapes_of

DEFAULT_CHAINS = 8
STARTS = 2**32 - 3  # folded into the run's key for random starts; no chain has this number
RESERVED = {"chain", "draw", "particle", "equality", "inequality", "status"}


def check_positions(problem: Problem, positions: Position, *, ensemble: bool = False) -> Position:
    """Positions of all chains as arrays with the chains first (then the particles); functions checked on one of them."""
    leaves, structure = jax.tree.flatten(positions)
    if not leaves:
        raise ValueError("initial_positions is empty; give an array of shape (chains, d) or a pytree of such arrays.")
    try:
        arrays = [jnp.asarray(leaf) for leaf in leaves]
    except (TypeError, ValueError) as error:
        raise ValueError(f"initial_positions has a leaf that is no array of numbers: {error}") from None
    if any(array.ndim == 0 for array in arrays):
        raise ValueError(
            "every leaf of initial_positions needs the chains as its first axis; got a scalar leaf. A nested list is "
            "a pytree of scalars: wrap it in jnp.array, and add an axis for a single chain: x0[None]."
        )
    for path, _ in jax.tree_util.tree_leaves_with_path(positions):
        if not all(isinstance(getattr(key, "key", ""), str | int) for key in path):
            got = jax.tree_util.keystr(path)
            raise ValueError(f"the keys of dicts in initial_positions must be strings; got {got}.")
    for name in RESERVED & set(leaf_names(positions)):
        why = "which a trace uses for its own axes and numbers"
        raise ValueError(f"a variable cannot be called {name!r}, {why}; rename it.")
    chains = sorted({array.shape[0] for array in arrays})
    if len(chains) > 1:
        raise ValueError(f"the leaves of initial_positions disagree on the number of chains (first axis): {chains}.")
    if chains == [0]:
        raise ValueError("initial_positions has no chain: its first axis is empty.")
    positions = as_positions(jax.tree.unflatten(structure, arrays))
    _refuse_lone_start(problem, positions)
    if ensemble:
        shapes = {array.shape[:2] for array in arrays}
        if any(len(shape) < 2 for shape in shapes) or len(shapes) > 1 or 0 in next(iter(shapes)):
            raise ValueError(
                "an ensemble sampler needs starts with axes (ensembles, particles, ...) in every leaf; got leading axes "
                f"{sorted(shapes)}. Add an axis for a single ensemble: x0[None]."
            )
    problem.check(first_of(first_of(positions) if ensemble else positions))
    return positions


def many_starts(
    key: Array, initial_positions: Any, num_chains: int | None, spread: Any, *, ensemble: bool = False
) -> Position:
    """Starts of all chains from what the user gave: themselves, one position for `num_chains`, or a function of a key.

    Ensemble samplers get one ensemble of so many particles.
    """
    if not callable(initial_positions) and num_chains is None:
        if spread is not None:
            raise ValueError("spread is for one start and many chains: give num_chains as well.")
        return initial_positions
    count = DEFAULT_CHAINS if num_chains is None else num_chains
    starts_key, noise_key = jax.random.split(jax.random.fold_in(key, STARTS))
    if callable(initial_positions):
        drawn = [initial_positions(one) for one in jax.random.split(starts_key, count)]
        starts = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *drawn)
    else:
        repeat = lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], count, axis=0)
        starts = as_positions(jax.tree.map(repeat, initial_positions))
    if spread is not None:
        starts = _spread_out(noise_key, starts, spread)
    elif ensemble and not callable(initial_positions):
        raise ValueError("particles that start at one place stay there: give spread=..., or a function of a key.")
    return jax.tree.map(lambda leaf: leaf[None], starts) if ensemble else starts


def _spread_out(key: Array, starts: Position, spread: Any) -> Position:
    """Starts with Gaussian noise of the given standard deviation: one number, or a pytree like a position."""
    leaves, structure = jax.tree.flatten(starts)
    scales, given = jax.tree.flatten(spread)
    if jax.tree_util.all_leaves([spread]):
        scales = [spread] * len(leaves)
    elif str(given) != str(structure):
        raise ValueError("spread must be one number, or have the structure of a position.")
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + jnp.asarray(scale, leaf.dtype) * jax.random.normal(one, leaf.shape, leaf.dtype)
        for leaf, scale, one in zip(leaves, scales, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def free_positions(problem: Problem, positions: Position) -> Position:
    """Checked positions in the free coordinates of the problem's support; refused outside it."""
    if problem.support is None:
        return positions
    if outside := problem.support.outside(positions):
        raise ValueError(
            f"initial_positions has {', '.join(outside)} outside the support: all starts must be inside it, not on its edge. "
            f"It is {dict(problem.support.supports)[outside[0]]!r}."
        )
    return as_positions(problem.support.from_user(positions))


def _refuse_lone_start(problem: Problem, positions: Position) -> None:
    """Refuse starts of shape (d,) where the functions take one start of d coordinates as well as d chains of a scalar."""
    leaves = jax.tree.leaves(positions)
    if len(leaves) > 1 or leaves[0].ndim != 1 or leaves[0].size == 1:
        return
    for one in (first_of(positions), positions):
        try:
            problem.check(one)
        except Exception:
            # A user's function may raise anything on another shape.
            return
    raise ValueError(
        f"initial_positions, {shapes_of(positions)}, can be read as {leaves[0].size} chains of scalars, and as one start, "
        "since your functions take both. Add an axis: x0[None] for a single chain that starts there, x0[:, None] for chains "
        "of one coordinate."
    )
