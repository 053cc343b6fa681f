"""Traces of problems with supports, in one kind of coordinates or the other."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from ogradient.problem import Problem
from ogradient.trace.trace import Trace


def in_free_coordinates(trace: Trace, problem: Problem) -> Trace:
    """The trace as the samplers made it."""
    position = jax.tree.map(np.asarray, problem.support.from_user(trace.position))
    return replace(trace, position=position, problem=problem.free)


def in_users_coordinates(trace: Trace, problem: Problem) -> Trace:
    """The trace as the user wants it; its record says which support it is of."""
    position = jax.tree.map(np.asarray, problem.support.to_user(trace.position))
    provenance = trace.provenance | {"support": repr(problem.support)}
    return replace(trace, position=position, problem=problem, provenance=provenance)
