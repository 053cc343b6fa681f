"""What a problem with a known answer consists of, and the moments that many of them have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jax import Array

from ogradient.problem import Problem
from ogradient.problems.draws import Draw

FREE_DIRECTIONS = 8  # in more of them a few hundred particles of SVGD lose variance


class Moment(NamedTuple):
    """A function of one position, and its true expectation."""

    function: Callable[[Array], Array]
    value: float


@dataclass(frozen=True)
class KnownProblem:
    """A problem, where to start it, and what the answer is."""

    name: str
    problem: Problem
    dim: int
    start_on: Draw  # starts on the set
    start_off: Draw  # starts off it
    moments: dict[str, Moment]
    exact: Draw | None = None  # independent draws of the law itself
    unsuitable: dict[str, str] = field(default_factory=dict)  # samplers that cannot do it, and why


def unsuitable_in(directions: int) -> dict[str, str]:
    """Samplers that cannot do a problem with so many free directions, and why."""
    why = "so many free directions need more particles than usual: SVGD loses variance"
    return {"o_svgd": why} if directions > FREE_DIRECTIONS else {}


def means_and_variances(
    indices: Sequence[int], mean: np.ndarray, variance: np.ndarray, first: int
) -> dict[str, Moment]:
    """The moments x_i and var x_i of some coordinates; names count coordinates from `first`."""
    means = {f"x_{i + first}": Moment(coordinate(i), float(mean[i])) for i in indices}
    return means | {f"var x_{i + first}": Moment(square_about(i, mean[i]), float(variance[i])) for i in indices}


def coordinate(i: int) -> Callable[[Array], Array]:
    """The function x ↦ x_i."""
    return lambda x: x[i]


def square_about(i: int, centre: float = 0.0) -> Callable[[Array], Array]:
    """The function x ↦ (x_i − centre)²."""
    return lambda x: (x[i] - float(centre)) ** 2
