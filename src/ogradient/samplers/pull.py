"""The pull to {g = 0} that samplers near the set share: how much of g a step takes out, and a bound on it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from ogradient.geometry import Frame, psi, solve
from ogradient.problem import Problem
from ogradient.samplers.base import check_positive


def pull(value: Array, eta: Array, alpha: Any, beta: float) -> Array:
    """ηψ(g), never more than g itself: the factor αη|g|^β is capped at 1, one Newton step. α = None means 1/η."""
    strength = 1.0 if alpha is None else jnp.asarray(alpha, eta.dtype) * eta
    wanted = psi(value, strength, beta)
    return jnp.sign(value) * jnp.minimum(jnp.abs(wanted), jnp.abs(value))


def bounded(frame: Frame, rate: Array, eta: Array, max_pull: Any) -> Array:
    """The rate of a step, made smaller where its pull −η Σ_k λ_k∇g_k has |λ_k| above `max_pull`.

    One factor for all rows, max_pull / max|λ_k|: the pull stays −J⁺ψ(g) with a smaller α, and the flow goes the same way.
    """
    if max_pull is None:
        return rate
    largest = jnp.max(jnp.abs(solve(frame, rate)), initial=0.0)
    limit = eta * jnp.asarray(max_pull, rate.dtype)
    return rate * jnp.where(largest > limit, limit / jnp.where(largest > 0, largest, 1.0), 1.0)


def check_pull(
    name: str,
    problem: Problem,
    *,
    alpha: float | None,
    beta: float,
    num_probes: int = 1,
    max_pull: float | None = None,
    max_active: int = 1,
) -> None:
    """Refuse, with the remedy, what no sampler that pulls to a constraint can use."""
    if not problem.constrained:
        plain = "svgd" if name == "o_svgd" else "langevin"
        raise ValueError(
            f"{name} needs a constraint and the problem has none: pass equality=... (or inequality=...) to it, "
            f"or use og.{plain}, the unconstrained sampler."
        )
    for argument, number in (("alpha", alpha), ("max_pull", max_pull)):
        if number is not None:
            check_positive(argument, number)
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must lie in [0, 1]; got {beta!r}.")
    if num_probes < 1:
        raise ValueError(f"num_probes must be at least 1; got {num_probes!r}.")
    if not isinstance(max_active, int) or max_active < 1:
        raise ValueError(f"max_active must be a whole number of at least 1; got {max_active!r}.")
