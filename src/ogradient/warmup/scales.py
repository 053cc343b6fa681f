"""Scales of a problem, before anything is known of it."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import Array

from ogradient.compilation import compiled
from ogradient.geometry import frame_at, project, row_lengths
from ogradient.mapping import draws_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position


def first_length(problem: Problem, positions: Position) -> float:
    """How far a first move may go: about as far as the positions are from 0, in mean square.

    Positions at 0, or so near that log π could not tell them from it, say nothing: then a hundred times as far as log π takes to
    change by 1, which in a tail is little. Too long a first step is soon shortened; one within the roundings of g is not seen.
    """
    lengths, drifts = (np.asarray(part, np.float64) for part in _lengths_and_drifts(problem, positions))
    length, drift = float(np.sqrt(np.mean(lengths**2))), float(np.sqrt(np.mean(drifts**2)))
    return 100 / drift if 0 < length * drift < 1e-3 or (length == 0 and drift > 0) else length or 1.0


@compiled(once=True)
def _lengths_and_drifts(problem: Problem, positions: Position) -> tuple[Array, Array]:
    def look(position: Position) -> tuple[Array, Array]:
        x, drift = problem.flatten(position)[0], tangent_drift(problem, position)
        return row_lengths(x[None])[0] / math.sqrt(x.size), row_lengths(drift[None])[0]

    return over_particles(look, positions, draws_together(problem))


def tangent_drift(problem: Problem, position: Position) -> Array:
    """The gradient of log π along the set, D s."""
    x, logdensity, constraint, _ = problem.flatten(position)
    return project(frame_at(constraint, x), jax.grad(logdensity)(x))


def flat_points(positions: Position) -> np.ndarray:
    """Positions of all chains as one (chains, d) array on the host, in the order of `ravel_pytree`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(positions)]
    return np.concatenate([leaf.reshape(*leaf.shape[:1], -1) for leaf in leaves], axis=1)
