"""Runs of problems with supports: the user's coordinates outside, free ones inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.problem.support import in_free_coordinates as move
from ogradient.samplers.base import BoundStep, kernel_of
from ogradient.start.positions import check_positions, free_positions
from ogradient.status import SamplingError
from ogradient.trace import Trace
from ogradient.trace.coordinates import in_free_coordinates, in_users_coordinates


def sample_in_free_coordinates(
    sample: Callable[..., Trace],
    seed: Any,
    problem: Problem,
    positions: Position,
    *,
    algorithm: Any,
    resume: Trace | None,
    component_fn: Any,
    **options: Any,
) -> Trace:
    """`sample` of the problem in free coordinates; its trace, also that of an error, in the user's."""
    if hasattr(algorithm, "step") and not isinstance(algorithm.step, BoundStep):
        # An algorithm from elsewhere knows nothing of free coordinates.
        plain = replace(problem, support=None)
        return sample(seed, plain, positions, algorithm=algorithm, resume=resume, component_fn=component_fn, **options)
    inside = None if resume is None else _resumed(resume, problem)
    if positions is not None:
        ensemble = hasattr(algorithm, "step") and kernel_of(algorithm).ensemble
        positions = free_positions(problem, check_positions(problem, positions, ensemble=ensemble))
    component_fn = move(component_fn, problem.support)
    try:
        trace = sample(
            seed, problem.free, positions, algorithm=algorithm, resume=inside, component_fn=component_fn, **options
        )
    except (SamplingError, Warning) as error:
        if isinstance(found := getattr(error, "trace", None), Trace):
            error.trace = in_users_coordinates(found, problem, resume)  # type: ignore[union-attr]
        raise
    return in_users_coordinates(trace, problem, resume)


def _resumed(resume: Trace, problem: Problem) -> Trace:
    """The trace to go on from, in free coordinates."""
    then, now = resume.provenance.get("support"), repr(problem.support)
    if then != now:
        raise ValueError(f"resume continues a run with the support {then}; the problem given has {now}.")
    return in_free_coordinates(resume, problem)
