"""Constrained Langevin (CLangevin in the paper): `chmc` with one RATTLE step per transition, a Metropolis-adjusted step.

ε stands for the Langevin step size η = ε²/2. Everything else, equations and cost, is in `chmc.py`.
"""

from __future__ import annotations

from typing import Any

from ogradient.problem import Problem
from ogradient.samplers.base import SamplingAlgorithm, Schedule, make_algorithm
from ogradient.samplers.chmc import make_exact


def clangevin(
    problem: Problem,
    step_size: float | Schedule,
    *,
    inverse_mass: Any = None,
    refreshment: float = 1.0,
    projection: str = "auto",
) -> SamplingAlgorithm:
    """Constrained, Metropolis-adjusted Langevin: exact draws on the set, one RATTLE step each.

    Args:
        problem: log density, equality constraint(s) and measure; steps bounce off the boundary of h ≤ 0.
        step_size: ε; the Langevin step size it stands for is ε²/2.
        inverse_mass: M⁻¹ or its diagonal, see `og.chmc`.
        refreshment: share of the momentum's variance that is new each transition; below 1 it is underdamped.
        projection: "auto", "newton", "broyden" or "chord", see `og.chmc`.

    >>> import jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> trace = og.sample(0, problem, jnp.ones((4, 2)), algorithm=og.clangevin(problem, 0.3), num_samples=100)
    >>> bool(abs(trace.sample_stats["equality"]).max() < 1e-4)      # float32: a few roundings
    True
    """
    settings = {
        "step_size": step_size,
        "inverse_mass": inverse_mass,
        "refreshment": refreshment,
        "projection": projection,
    }
    kernel, parameters = make_exact(
        problem, step_size, 1, inverse_mass, refreshment=float(refreshment), projection=projection, single=True
    )
    return make_algorithm(kernel, problem, parameters, settings)
