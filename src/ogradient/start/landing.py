"""Starts brought onto the set, or inside h ≤ 0."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ogradient.geometry.land import land
from ogradient.mapping import over_draws
from ogradient.problem import Problem
from ogradient.problem.functions import Position, first_of
from ogradient.status import Status, warn

LOST_DIGITS = 0.1  # a last digit of log π that is larger spoils acceptance


def land_starts(problem: Problem, positions: Position) -> Position:
    """Starts brought onto the set, for samplers that move on it; an error with the best residual if some cannot be."""
    if not problem.constrained:
        check_digits(problem, positions)
        return positions
    landing = land(problem, positions)
    lost = np.flatnonzero(np.asarray(landing.status) != Status.OK)
    if lost.size:
        residual, rank = (np.asarray(part)[lost].min() for part in (landing.residual, landing.rank))
        rows = jax.eval_shape(problem.equality_value, first_of(positions)).shape[0]
        why = f" The Jacobian has rank {rank} of {rows} there: constraints conflict, or a gradient vanishes."
        why = why if rank < rows else ""
        raise ValueError(
            f"{lost.size} of {len(landing.status)} starts (the first is chain {lost[0]}) could not be brought onto the set: the "
            f"best residual is {residual:.3g}.{why} If the constraint can be met at all, start nearer to the set."
        )
    check_digits(problem, landing.position)
    return landing.position


def bring_inside(problem: Problem, positions: Position, *, ensemble: bool = False) -> Position:
    """The starts, with inequalities landed where they can be.

    Log π need not exist where h(x) > 0, and a step towards {g = 0} may lead across a boundary.
    """
    if problem.inequality is None:
        return positions
    flat = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])) if ensemble else leaf, positions)
    landing = land(problem, flat)
    landed = landing.status == Status.OK
    pick = lambda new, old: jnp.where(landed.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)
    return jax.tree.map(lambda new, old, like: pick(new, old).reshape(like.shape), landing.position, flat, positions)


def check_digits(problem: Problem, positions: Position) -> None:
    """Warn where log π is so huge that its last digit is larger than the differences by which moves are accepted."""
    value = np.asarray(over_draws(Problem.logdensity, problem, positions))
    lost = float(np.finfo(value.dtype).eps * np.median(np.abs(value)))
    if lost > LOST_DIGITS:
        warn(
            f"log π is about {np.median(value):.3g} at the starts, and {value.dtype} resolves no more than {lost:.2g} of it: "
            "moves are accepted by differences smaller than that, so the law will be off. It is needed only up to a constant: "
            "subtract one, term by term where it is a sum, or use float64 (jax_enable_x64)."
        )
