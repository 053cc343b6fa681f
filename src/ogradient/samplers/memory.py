"""Momentum of whole moves, for Langevin samplers on minibatches: v ← μv + Δ, x ← x + v (heavy ball; Polyak 1964).

Δ is the sampler's own move of step size η with noise of variance 2(1−μ)ηT. Along a direction in which log π is −λx²/2 the
stationary variance is then T/λ · 1/(1 − ηλ/2(1+μ)): the law of the sampler without memory, with half its error. Moves of
1/(1−μ) steps are added up, so that a chain covers η/(1−μ) of time a step, and the noise of as many batches is averaged.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from ogradient.problem.functions import Position
from ogradient.samplers.base import ChainState, init


class MovingState(NamedTuple):
    """Where a chain is, how many steps it made, and its last move, flat."""

    position: Position
    iteration: Array
    velocity: Array


def start(position: Position, remembers: bool) -> ChainState | MovingState:
    """A chain at rest."""
    state = init(position)
    return MovingState(*state, jnp.zeros_like(ravel_pytree(position)[0])) if remembers else state


def step_on(state: Any, velocity: Array | None, position: Position) -> ChainState | MovingState:
    """The state after a step; `velocity` is None without memory."""
    iteration = state.iteration + 1
    return ChainState(position, iteration) if velocity is None else MovingState(position, iteration, velocity)


def remembered(state: Any, momentum: Any, move: Array) -> Array:
    """μv + Δ."""
    return jnp.asarray(momentum, move.dtype) * state.velocity + move


def noise_scale(eta: Array, temperature: Array, momentum: Any) -> Array:
    """√(2(1−μ)ηT), the standard deviation of a step's noise."""
    share = 1.0 if momentum is None else 1 - jnp.asarray(momentum, eta.dtype)
    return jnp.sqrt(2 * temperature * eta * share)


def check_momentum(momentum: float) -> bool:
    """Refuse what is no share of a move; whether there is any."""
    if "Tracer" in type(momentum).__name__:
        return True
    try:
        share = float(momentum)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 <= share < 1:
        raise ValueError(f"momentum is the share of a move that the next one keeps, in [0, 1); got {momentum!r}.")
    return share != 0
