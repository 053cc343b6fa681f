"""Scales of a problem, before anything is known of it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.compilation import compiled
from ogradient.geometry import frame_at, project, row_lengths, steer
from ogradient.mapping import draws_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position, dtype_of

STRAIGHT = 0.5  # of the length of a move, how far from the set it may end
SHRINKING, SHRINKINGS = 0.25, 40  # lengths that are tried, the longest first


def first_length(problem: Problem, positions: Position) -> float:
    """How far a first move may go: about as far as the positions are from 0, in mean square.

    Positions at 0, or so near that log π could not tell them from it, say nothing: then a hundred times as far as log π takes to
    change by 1, which in a tail is little. Too long a first step is soon shortened; one within the roundings of g is not seen.
    But no farther than the set is straight, and of a gradient that is across the set, but for roundings, nothing is made.
    """
    lengths, drifts, slopes = (np.asarray(part, np.float64) for part in _lengths_and_drifts(problem, positions))
    length, drift, slope = (float(np.sqrt(np.mean(part**2))) for part in (lengths, drifts, slopes))
    if length * drift >= 1e-3 or not drift > np.sqrt(np.finfo(dtype_of(positions)).eps) * slope:
        return length or 1.0
    tried = 100 / drift * SHRINKING ** np.arange(SHRINKINGS)
    bends = np.asarray(_bends(problem, positions, tried.astype(dtype_of(positions))), np.float64)
    straight = tried[np.median(bends, axis=0) <= STRAIGHT * tried]
    return max([length, *straight[:1]]) or tried[-1]


@compiled(once=True)
def _lengths_and_drifts(problem: Problem, positions: Position) -> tuple[Array, Array, Array]:
    def look(position: Position) -> tuple[Array, Array, Array]:
        x, drift = problem.flatten(position)[0], tangent_drift(problem, position)
        slope = jax.grad(problem.flatten(position)[1])(x)
        return row_lengths(x[None])[0] / math.sqrt(x.size), row_lengths(drift[None])[0], row_lengths(slope[None])[0]

    return over_particles(look, positions, draws_together(problem))


@compiled(once=True)
def _bends(problem: Problem, positions: Position, lengths: Array) -> Array:
    """How far across the set moves of some lengths along the drift go, (position, length)."""

    def look(position: Position) -> Array:
        x, _, constraint, _ = problem.flatten(position)
        frame, drift = frame_at(constraint, x), tangent_drift(problem, position)
        size = row_lengths(drift[None])[0]
        along = drift / jnp.where(size > 0, size, 1.0)
        zero = jnp.zeros_like(x)
        off = lambda length: row_lengths(steer(frame, zero, constraint(x + length * along) - frame.value)[None])[0]
        return jax.lax.map(off, lengths)

    return over_particles(look, positions, draws_together(problem))


def tangent_drift(problem: Problem, position: Position) -> Array:
    """The gradient of log π along the set, D s."""
    x, logdensity, constraint, _ = problem.flatten(position)
    return project(frame_at(constraint, x), jax.grad(logdensity)(x))


def flat_points(positions: Position) -> np.ndarray:
    """Positions of all chains as one (chains, d) array on the host, in the order of `ravel_pytree`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(positions)]
    return np.concatenate([leaf.reshape(*leaf.shape[:1], -1) for leaf in leaves], axis=1)
