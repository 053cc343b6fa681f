"""How well draws obey the constraint."""

from __future__ import annotations

from typing import Any

import numpy as np

from ogradient.mapping import over_draws
from ogradient.problem import Problem
from ogradient.problem.functions import Position, first_of

QUANTILES = (0.5, 0.9, 0.99)


def constraint_violation(problem: Problem, draws: Position) -> dict[str, Any]:
    """Mean, max and quantiles of |g| (and of h₊ = max(h, 0)) over draws, per constraint row.

    Args:
        problem: whose constraints to evaluate.
        draws: positions with the draws as first axis (n, ...); of a trace, `trace.pooled`.

    Returns:
        `{"equality": {"mean", "max", "q50", "q90", "q99"}, "inequality": {...}}`, arrays with one number per row; a kind
        that the problem does not have is left out.

    >>> import jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: 0.0, equality=lambda x: x[0])
    >>> og.constraint_violation(problem, jnp.array([[0.0, 1.0], [-0.5, 1.0]]))["equality"]["max"].tolist()
    [0.5]
    """
    if not problem.constrained:
        raise ValueError("the problem has no constraint to violate.")
    problem.check_whole()
    problem.check(first_of(draws))
    values = over_draws(Problem.constraint_value, problem, draws)
    report = {}
    for kind, value in values.items():
        value = np.asarray(value)
        size = np.abs(value) if kind == "equality" else np.maximum(value, 0)
        report[kind] = {"mean": size.mean(axis=0), "max": size.max(axis=0)}
        report[kind] |= {f"q{100 * q:.0f}": np.quantile(size, q, axis=0) for q in QUANTILES}
    return report
