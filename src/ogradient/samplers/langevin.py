"""Langevin dynamics without a constraint: what O-Langevin is compared with, and its limit when there is nothing to obey.

x ← x + η ∇log π(x) + √(2ηT) ξ,  ξ ~ N(0, I)          (paper, section 3)

One gradient of log π per step. Unadjusted: the law is off by O(η). The constraint is only reported, never enforced.
On minibatches (`og.posterior(batch_size=...)`) this is stochastic gradient Langevin dynamics, SGLD, and with momentum
(memory.py) stochastic gradient Hamiltonian Monte Carlo in its simplest form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.base import (
    ChainInfo,
    ChainState,
    Obeys,
    SamplingAlgorithm,
    Schedule,
    check_temperature,
    keep_finite,
    make_algorithm,
    split_step_size,
    step_size_at,
)
from ogradient.samplers.memory import MovingState, check_momentum, noise_scale, remembered, start, step_on


@dataclass(frozen=True)
class Langevin:
    """The kernel. Parameters: step_size, temperature, momentum."""

    schedule: Schedule | None = None
    remembers: bool = False  # whether there is a momentum
    name: ClassVar[str] = "langevin"
    ensemble: ClassVar[bool] = False
    obeys: ClassVar[Obeys] = "no"
    steered: ClassVar[bool] = False

    def init(self, position: Position) -> ChainState | MovingState:
        """Start a chain at a position."""
        return start(position, self.remembers)

    def step(
        self, rng_key: Array, state: Any, problem: Problem, parameters: dict[str, Any]
    ) -> tuple[ChainState | MovingState, ChainInfo]:
        """One transition."""
        view = problem.view(rng_key)
        x, logdensity, _, unravel = view.flatten(state.position)
        eta = step_size_at(self.schedule, parameters, state.iteration, x.dtype)
        temperature = jnp.asarray(parameters["temperature"], x.dtype)
        momentum = parameters["momentum"] if self.remembers else None
        noise = noise_scale(eta, temperature, momentum) * jax.random.normal(rng_key, x.shape, x.dtype)
        value, score = jax.value_and_grad(logdensity)(x)
        new, rest, velocity = x + eta * score + noise, None, None
        if self.remembers:
            velocity, rest = remembered(state, momentum, eta * score + noise), jnp.zeros_like(x)
            new = x + velocity
        (x, velocity), status = keep_finite((new, velocity), (x, rest), value)
        position = unravel(x)
        return step_on(state, velocity, position), ChainInfo(view.constraint_value(position), status)


def langevin(
    problem: Problem, step_size: float | Schedule, *, temperature: float = 1.0, momentum: float = 0.0
) -> SamplingAlgorithm:
    """Unadjusted Langevin dynamics, blind to the constraint.

    Args:
        problem: what to sample; its constraint is reported in the info and otherwise ignored.
        step_size: η, a number or an optax schedule of the iteration.
        temperature: T; the law is π^{1/T}.
        momentum: μ in [0, 1), the share of a move that the next one keeps; a step then covers η/(1−μ) of time.

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2))
    >>> algorithm = og.langevin(problem, 0.1)
    >>> state, info = algorithm.step(jax.random.key(0), algorithm.init(jnp.zeros(2)))
    >>> state.position.shape, int(info.status)
    ((2,), 0)
    """
    schedule, parameters = split_step_size(step_size)
    check_temperature(problem, temperature)
    remembers = check_momentum(momentum)
    settings = {"step_size": step_size, "temperature": temperature, "momentum": momentum}
    parameters |= {"temperature": temperature} | ({"momentum": momentum} if remembers else {})
    return make_algorithm(Langevin(schedule, remembers), problem, parameters, settings)
