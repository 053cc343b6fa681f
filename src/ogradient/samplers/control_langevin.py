"""Langevin particles under a moment constraint E[g] = 0 (and E[h] ≤ 0): what constraining every draw is compared with.

The sampler of Liu, Tong and Liu (2021), "Control + Langevin" in the paper's appendix. Write q for the law of the particles.
Langevin moves them by the velocity u = s − ∇log q, and among velocities v the one nearest to u, in E_q‖v − u‖², under which the
moments decay at a given rate,
    d/dt E[g] = E[J v] = −ψ(E[g]),
is v = u − Jᵀλ with one vector λ for all particles: the gradient of the Lagrangian ½E‖v−u‖² + λ·(E[J v] + ψ) is zero there.
Put it into the condition, with E[J ∇log q] = −E[Δg] by parts:
    E[J s + Δg] − E[J Jᵀ] λ = −ψ(E[g]),   so   λ = E[J Jᵀ]⁻¹ (E[J s + Δg] + ψ(E[g])).
An inequality asks for d/dt E[h] ≤ −ψ(E[h]) only, so its λ is not negative, and 0 where the condition holds by itself.

Step: x_i ← x_i + η(s_i − J_iᵀλ) + √(2η) ξ_i, with E the mean over the particles and Δg by Hutchinson's estimate: one gradient of
log π, one of each row, and one second derivative along a random direction, per particle. Only the ensemble obeys: single
particles keep their spread in g.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.geometry import evaluate, random_signs
from ogradient.mapping import chains_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.base import (
    ChainState,
    Obeys,
    SamplingAlgorithm,
    Schedule,
    init,
    keep_finite,
    make_algorithm,
    split_step_size,
    step_size_at,
)
from ogradient.samplers.pull import check_pull, pull
from ogradient.samplers.svgd import flatten_particles

SWEEPS = 100  # of the solver for λ


class ControlInfo(NamedTuple):
    """Constraint values of every particle (n, m), how the step ended, and the multipliers λ, equalities first."""

    constraint_value: dict[str, Array]
    status: Array
    multiplier: Array


@dataclass(frozen=True)
class ControlLangevin:
    """The kernel. Parameters: step_size, alpha."""

    schedule: Schedule | None = None
    beta: float = 0.0
    num_probes: int = 1
    name: ClassVar[str] = "control_langevin"
    ensemble: ClassVar[bool] = True
    obeys: ClassVar[Obeys] = "mean"
    steered: ClassVar[bool] = False

    def init(self, position: Position) -> ChainState:
        """Start an ensemble, with the particles as the first axis."""
        return init(position)

    def step(
        self, rng_key: Array, state: ChainState, problem: Problem, parameters: dict[str, Any]
    ) -> tuple[ChainState, ControlInfo]:
        """One transition of an ensemble."""
        view = problem.view(rng_key)
        x, unravel = flatten_particles(view, state.position)
        n, dim = x.shape
        first = jax.tree.map(lambda leaf: leaf[0], state.position)
        _, logdensity, equality, unravel_one = view.flatten(first)
        rows_of = lambda x: jnp.concatenate([equality(x), view.inequality_value(unravel_one(x))])
        eta = step_size_at(self.schedule, parameters, state.iteration, x.dtype)
        noise_key, probe_key = jax.random.split(rng_key)

        def look(argument: tuple[Array, Array]) -> tuple[Array, ...]:
            point, key = argument
            value, score, frame = evaluate(logdensity, rows_of, point)
            rows, jacobian = frame.value, frame.jacobian
            along = lambda z: jax.jvp(lambda y: jax.jvp(rows_of, (y,), (z,))[1], (point,), (z,))[1]
            laplacian = jnp.mean(jax.vmap(along)(random_signs(key, (self.num_probes, dim), x.dtype)), axis=0)
            return value, score, rows, jacobian, jacobian @ score + laplacian

        values, scores, rows, jacobians, rates = over_particles(
            look, (x, jax.random.split(probe_key, n)), chains_together(problem, x)
        )
        gram = jnp.einsum("nkd,nld->kl", jacobians, jacobians) / n
        # η times the bracket of λ.
        wanted = eta * jnp.mean(rates, axis=0) + pull(jnp.mean(rows, axis=0), eta, parameters["alpha"], self.beta)
        num_equalities = equality(x[0]).shape[0]
        multiplier = solve_multipliers(gram, wanted, jnp.arange(wanted.size) >= num_equalities)
        noise = jnp.sqrt(2 * eta) * jax.random.normal(noise_key, x.shape, x.dtype)
        proposal = x + eta * scores - jnp.einsum("nkd,k->nd", jacobians, multiplier) + noise
        position, status = keep_finite(unravel(proposal), state.position, values)
        info = ControlInfo(jax.vmap(view.constraint_value)(position), status, multiplier / eta)
        return ChainState(position, state.iteration + 1), info


def solve_multipliers(gram: Array, wanted: Array, signed: Array) -> Array:
    """λ with gram λ = wanted; where `signed`, λ ≥ 0 and gram λ ≥ wanted, one of the two with equality.

    Gauss–Seidel sweeps that clip as they go tell which signed rows have λ > 0; for those and the unsigned rows it is a linear
    system. Rows without any gradient get 0.
    """
    scale = jnp.diagonal(gram)
    safe = jnp.where(scale > 0, scale, 1.0)

    def one(k: Array, multiplier: Array) -> Array:
        change = (wanted[k] - gram[k] @ multiplier) / safe[k]
        new = jnp.where(signed[k], jnp.maximum(multiplier[k] + change, 0.0), multiplier[k] + change)
        return multiplier.at[k].set(jnp.where(scale[k] > 0, new, 0.0))

    sweep = lambda _, multiplier: lax.fori_loop(0, wanted.size, one, multiplier)
    swept = lax.fori_loop(0, 1 if wanted.size == 1 else SWEEPS, sweep, jnp.zeros_like(wanted))
    kept = (scale > 0) & (~signed | (swept > 0))
    matrix = jnp.where(kept[:, None] & kept[None], gram, jnp.eye(wanted.size, dtype=gram.dtype))
    exact = jnp.linalg.solve(matrix, jnp.where(kept, wanted, 0.0))
    fits = jnp.all(
        jnp.isfinite(exact) & (~signed | (exact >= 0))
    )  # not where rows say the same, or sweeps chose wrongly
    return jnp.where(fits, exact, swept)


def control_langevin(
    problem: Problem,
    step_size: float | Schedule,
    *,
    alpha: float | None = None,
    beta: float = 0.0,
    num_probes: int = 1,
) -> SamplingAlgorithm:
    """Langevin particles whose mean obeys: E[g] = 0 and E[h] ≤ 0 over the ensemble, not draw by draw.

    Args:
        problem: log density and constraint(s), read as constraints on means over the particles.
        step_size: η, a number or an optax schedule of the iteration.
        alpha: strength of the pull ψ(E[g]) = α sign(E[g])|E[g]|^{1+β}; None is 1/η. The factor αη|E[g]|^β is capped at 1.
        beta: in [0, 1].
        num_probes: random directions per particle for Δg.

    For every draw to obey, use `og.o_langevin`. An ensemble sampler: starts have axes (ensembles, particles, ...).

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] - 1)
    >>> starts = jax.random.normal(jax.random.key(0), (1, 50, 2))
    >>> algorithm = og.control_langevin(problem, 0.01)
    >>> trace = og.sample(0, problem, starts, algorithm=algorithm, num_warmup=500, num_samples=100, progress=False)
    >>> g = trace.sample_stats["equality"][0, :, :, 0]                          # (draw, particle)
    >>> bool(abs(g.mean(axis=1)).max() < 0.1), bool(g.std(axis=1).mean() > 0.5)  # the mean obeys, the particles do not
    (True, True)
    """
    schedule, parameters = split_step_size(step_size)
    check_pull("control_langevin", problem, alpha=alpha, beta=beta, num_probes=num_probes)
    settings = {"step_size": step_size, "alpha": alpha, "beta": beta, "num_probes": num_probes}
    kernel = ControlLangevin(schedule, float(beta), num_probes)
    return make_algorithm(kernel, problem, parameters | {"alpha": alpha}, settings)
