"""Traces of problems with supports, in one kind of coordinates or the other."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from ogradient.problem import Problem
from ogradient.trace.trace import Trace, in_order_of


def in_free_coordinates(trace: Trace, problem: Problem) -> Trace:
    """The trace as the samplers made it."""
    position = jax.tree.map(np.asarray, problem.support.from_user(trace.position))
    return replace(trace, position=position, problem=problem.free)


def in_users_coordinates(trace: Trace, problem: Problem, resumed: Trace | None = None) -> Trace:
    """The trace as the user wants it; its record says which support it is of. Draws of a resumed trace stay as they were."""
    position = jax.tree.map(np.asarray, problem.support.to_user(trace.position))
    if resumed is not None:
        done = resumed.num_draws
        join = lambda old, new: np.concatenate([old, new[:, done:]], axis=1)
        position = jax.tree.map(join, in_order_of(resumed, position), position)
    provenance = trace.provenance | {"support": repr(problem.support)}
    return replace(trace, position=position, problem=problem, provenance=provenance)
