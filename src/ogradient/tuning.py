"""Warm-up: choosing a step size from what the problem does to a step, not from its scale."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import frame_at, landing, project
from ogradient.problem import Position, Problem
from ogradient.samplers.chmc import build_kernel as build_chmc
from ogradient.samplers.chmc import init as init_chmc
from ogradient.samplers.o_langevin import build_kernel, init
from ogradient.status import ConstraintWarning

LANDING_STEPS = 50  # at a tiny step size: nearly pure Newton steps
TRIAL_STEPS = 50
WINDOWS = 20  # of trial steps in a row that must be good, so that the chains see more than their start
LARGEST, SMALLEST = 2.0**10, 2.0**-30
WINDOW = 100  # transitions of one stage of the warm-up of chmc
TRAJECTORIES = (1, 2, 4, 8, 16)  # steps per transition that are tried


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


class CHMCTuning(NamedTuple):
    """What the warm-up of `chmc` found, and where its chains ended."""

    step_size: float
    num_integration_steps: int
    inverse_mass: Array
    acceptance_rate: float
    positions: Position


def tune_chmc(key: Array, problem: Problem, positions: Position, *, target: float = 0.8) -> CHMCTuning:
    """Step size, trajectory length and diagonal metric for `chmc`, from all chains together.

    The step size follows the pooled acceptance rate by dual averaging (Hoffman and Gelman 2014, section 3.2) to `target`. The
    inverse mass is the pooled variance of each coordinate. The number of steps is the one with the largest expected squared
    jump per step, in units of that metric. One compilation.

    Args:
        key: random key.
        problem: with equality constraints.
        positions: of all chains, on the set.
        target: acceptance rate aimed at.
    """
    num_chains = jax.tree.leaves(positions)[0].shape[0]
    first = jax.tree.map(lambda leaf: leaf[0], positions)
    x, _, _, _ = problem.flatten(first)
    flat = jax.vmap(lambda position: problem.flatten(position)[0])

    @partial(jax.jit, static_argnums=5)
    def window(
        key: Array,
        positions: Position,
        step_size: Array,
        num_steps: Array,
        inverse_mass: Array,
        length: int,
        adapt: Array,
    ) -> tuple[Position, Array, Array, Array, Array]:
        """Run; return positions, the averaged step size, acceptance, variances and squared jump, over the second half."""

        def one(key: Array, position: Position, epsilon: Array) -> tuple[Position, Array, Array]:
            step = build_chmc(problem, lambda _: epsilon, num_steps, inverse_mass=inverse_mass)
            state, info = step(key, init_chmc(position))
            jump = problem.flatten(state.position)[0] - problem.flatten(position)[0]
            return state.position, info.acceptance_rate, jnp.sum(jump**2 / inverse_mass)

        def body(carry: Any, key: Array) -> tuple[Any, tuple[Array, Array, Array]]:
            positions, log_step, average, error, t = carry
            keys = jax.random.split(key, num_chains)
            positions, rates, jumps = jax.vmap(one, (0, 0, None))(keys, positions, jnp.exp(log_step))
            rate = jnp.mean(rates)
            # Dual averaging with the usual constants: γ = 0.05, t₀ = 10, κ = 0.75, shrunk to ten times the start.
            error = error + (target - rate - error) / (t + 10)
            proposal = jnp.log(10 * step_size) - jnp.sqrt(t) / 0.05 * error
            weight = t**-0.75
            average = jnp.where(adapt, weight * proposal + (1 - weight) * average, average)
            log_step = jnp.where(adapt, proposal, log_step)
            return (positions, log_step, average, error, t + 1), (rate, jnp.mean(jumps), flat(positions))

        start = (positions, jnp.log(step_size), jnp.log(step_size), jnp.zeros((), x.dtype), jnp.ones((), x.dtype))
        (positions, _, average, _, _), (rates, jumps, draws) = lax.scan(body, start, jax.random.split(key, length))
        late = draws[length // 2 :].reshape(-1, x.size)
        return positions, jnp.exp(average), jnp.mean(rates[length // 2 :]), jnp.var(late, axis=0), jnp.mean(jumps)

    def run(number: int, positions: Position, epsilon: Any, steps: int, mass: Array, *, adapt: bool) -> tuple[Any, ...]:
        scalars = (jnp.asarray(epsilon, x.dtype), jnp.int32(steps), mass)
        return window(jax.random.fold_in(key, number), positions, *scalars, WINDOW, jnp.asarray(adapt))

    unit = jnp.ones_like(x)
    scale = float(jnp.sqrt(jnp.mean(flat(positions) ** 2))) or 1.0
    positions, epsilon, *_ = run(0, positions, 0.1 * scale, 3, unit, adapt=True)
    positions, epsilon, _, variance, _ = run(1, positions, epsilon, 6, unit, adapt=True)
    positions, epsilon, _, variance, _ = run(2, positions, epsilon, 6, unit, adapt=True)
    # Directions that hardly move keep a share of the largest variance: the mass must stay positive and reasonable.
    mass = jnp.maximum(variance, 1e-4 * jnp.max(variance)) if float(jnp.max(variance)) > 0 else unit
    positions, epsilon, *_ = run(3, positions, 0.5, 4, mass, adapt=True)
    gains = []
    for number, steps in enumerate(TRAJECTORIES):
        positions, _, _, _, jump = run(4 + number, positions, epsilon, steps, mass, adapt=False)
        gains.append(float(jump) / (steps + 0.5))
    steps = TRAJECTORIES[max(range(len(gains)), key=gains.__getitem__)]
    positions, epsilon, *_ = run(20, positions, epsilon, steps, mass, adapt=True)
    positions, _, rate, _, _ = run(21, positions, epsilon, steps, mass, adapt=False)
    return CHMCTuning(float(epsilon), steps, mass, float(rate), positions)
