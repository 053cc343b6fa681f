"""Warm-up: choosing a step size from what the problem does to a step, not from its scale."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import frame_at, landing, project
from ogradient.problem import Position, Problem
from ogradient.samplers.o_langevin import build_kernel, init
from ogradient.status import ConstraintWarning

LANDING_STEPS = 50  # at a tiny step size: nearly pure Newton steps
TRIAL_STEPS = 50
WINDOWS = 20  # of trial steps in a row that must be good, so that the chains see more than their start
LARGEST, SMALLEST = 2.0**10, 2.0**-30


def find_step_size(key: Array, problem: Problem, positions: Position, *, tolerance: float = 0.25) -> float:
    """The largest power of two for which an O-Langevin step of every chain is nearly linear.

    Two numbers of a trial, both free of units, are held small: how far from the set a step ends, relative to its length
    (‖J⁺g(x')‖/‖x'−x‖ ≤ tolerance, which sees the curvature of the constraint), and how much the drift along the set
    changes over a step, relative to its length (η‖D's'−D s‖/‖x'−x‖ ≈ ηL ≤ tolerance/5, which sees the curvature of
    log π; a Gaussian's variance is then off by 2.5 %).
    Starts at 1, doubles or halves, and then follows the chains for a while, halving again where the set bends more.
    One compilation, about fifty trials of 50 steps.
    """

    def trial(key: Array, position: Position, eta: Array) -> tuple[Position, tuple[Array, ...]]:
        step = build_kernel(problem, lambda _: eta)

        def body(carry: tuple[Position, Array], key: Array) -> tuple[tuple[Position, Array], tuple[Array, ...]]:
            position, drift = carry
            previous = problem.flatten(position)[0]
            state, _ = step(key, init(position))
            x, _, constraint, _ = problem.flatten(state.position)
            residual = landing(frame_at(constraint, x), alpha=1.0)
            new_drift = _tangent_drift(problem, state.position)
            change = eta * (new_drift - drift)
            return (state.position, new_drift), tuple(jnp.sum(v**2) for v in (residual, change, x - previous))

        start = (position, _tangent_drift(problem, position))
        (position, _), squares = lax.scan(body, start, jax.random.split(key, TRIAL_STEPS))
        return position, squares

    def land(key: Array, position: Position) -> Position:
        step = build_kernel(problem, SMALLEST)
        return lax.scan(lambda s, k: (step(k, s)[0], None), init(position), jax.random.split(key, LANDING_STEPS))[
            0
        ].position

    num_chains = jax.tree.leaves(positions)[0].shape[0]

    @jax.jit
    def start(key: Array) -> Position:
        return jax.vmap(land)(jax.random.split(key, num_chains), positions)

    @jax.jit
    def window(key: Array, positions: Position, eta: Array) -> tuple[Position, Array]:
        keys = jax.random.split(key, num_chains)
        positions, (residual, change, length) = jax.vmap(trial, (0, 0, None))(keys, positions, eta)
        return positions, jnp.sqrt(jnp.maximum(jnp.sum(residual), 25 * jnp.sum(change)) / jnp.sum(length))

    dtype = jnp.result_type(*jax.tree.leaves(positions))

    def attempt(number: int, positions: Position, eta: float) -> tuple[Position, bool]:
        positions, worst = window(jax.random.fold_in(key, number), positions, jnp.asarray(eta, dtype))
        return positions, bool(worst <= tolerance)  # NaN compares false

    current = start(jax.random.fold_in(key, 0))
    eta = 1.0
    while eta < LARGEST and attempt(1, current, 2 * eta)[1]:
        eta *= 2
    good = number = 1
    while eta > SMALLEST and good <= WINDOWS:
        number += 1
        proposal, fine = attempt(number, current, eta)
        current, good, eta = (proposal, good + 1, eta) if fine else (current, 1, eta / 2)
    if eta > SMALLEST:
        return eta
    warnings.warn(
        f"no step size down to {SMALLEST:.1e} keeps a step near the constraint set; the smallest is used. The constraint "
        "may be unattainable or have a vanishing gradient, or the log density may be unbounded.",
        ConstraintWarning,
        stacklevel=3,
    )
    return eta


def _tangent_drift(problem: Problem, position: Position) -> Array:
    x, logdensity, constraint, _ = problem.flatten(position)
    return project(frame_at(constraint, x), jax.grad(logdensity)(x))
