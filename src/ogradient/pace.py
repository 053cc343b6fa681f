"""How warm-up finds the step size, inside the compiled loop: dual averaging, and shorter steps for chains that are stuck.

The step size follows the mean of `steering` over all chains to a target (Hoffman and Gelman 2014, section 3.2, with the usual
constants γ = 0.05, t₀ = 10, κ = 0.75, shrunk to ten times the start). A chain that is refused many times in a row, beside a
boundary or far in a tail, halves a step of its own until it gets away. What it does with that says nothing for the common step.
In a run after warm-up `adapt` is False, and every chain has the step size that it was given, to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

REFUSALS = 8  # in a row, after which a chain halves its own step
FARTHEST = 16.0  # log of how much one stage may change the step size


class Pace(NamedTuple):
    """The step size, and what is needed to adapt it."""

    adapt: Array  # bool
    target: Array
    begin: Array  # the step size that a stage begins with
    log_step: Array
    average: Array  # of log_step: what a stage ends with is its exponential
    error: Array
    t: Array
    refused: Array  # (chains,): refusals in a row, more or less


def own_steps(pace: Pace) -> tuple[Array, Array]:
    """The step size of every chain, and which of them are shorter than the common one."""
    halvings = jnp.where(pace.adapt, pace.refused // REFUSALS, 0)
    adapted = jnp.exp(pace.log_step) * 0.5 ** halvings.astype(pace.begin.dtype)
    return jnp.where(pace.adapt, adapted, pace.begin), halvings > 0


def follow(pace: Pace, rates: Array, shorter: Array) -> tuple[Pace, Array]:
    """The pace after a step, and the rates of those chains that took the common step; 0 for the others."""
    refused = jnp.clip(jnp.where(rates > 0.1, pace.refused - REFUSALS // 2, pace.refused + 1), 0, 20 * REFUSALS)
    rates = jnp.where(shorter, 0.0, rates)
    error = pace.error + (pace.target - jnp.mean(rates) - pace.error) / (pace.t + 10)
    proposal = jnp.log(10 * pace.begin) - jnp.clip(jnp.sqrt(pace.t) / 0.05 * error, -FARTHEST, FARTHEST)
    weight = pace.t**-0.75
    average = jnp.where(pace.adapt, weight * proposal + (1 - weight) * pace.average, pace.average)
    log_step = jnp.where(pace.adapt, proposal, pace.log_step)
    return pace._replace(log_step=log_step, average=average, error=error, t=pace.t + 1, refused=refused), rates
