"""Constrained Hamiltonian Monte Carlo: exact draws on {g = 0}, by RATTLE, a reversibility check and Metropolis.

Energy H(x, p) = −log π(x) + φ(x) + ½ pᵀM⁻¹p on g(x) = 0, J M⁻¹p = 0, with G_M = J M⁻¹Jᵀ and
φ = ½ log det G_M (conditional measure), ½ log det G_M − ½ log det J Jᵀ (Hausdorff).

One RATTLE step of size ε, V = −log π + φ:
    p ← p − ½ε∇V(x);  x' ← x + ε M⁻¹p − M⁻¹J(x)ᵀλ with λ solving g(x') = 0;  p ← M(x' − x)/ε − ½ε∇V(x'), projected.
The reverse step from (x', −p') must come back to x (same solver), or the move is rejected: without that check a solver that
finds another root would break detailed balance. "Came back" is judged by each row of g in its own units, against the move: with
weights w = |∂g_k(x')|, Σ_i w_i|back_i − x_i| ≤ √eps Σ_i w_i|x'_i − x_i|, plus a few roundings. Then Metropolis on H. L steps per
transition, fresh momentum each time.

With h ≤ 0 steps bounce off the walls, as often as they meet one (`walls.py`).

Cost per step: one gradient of log π, one frame, m Hessian-vector products where φ is not constant, and two projections (there
and back), each a few values of g (Broyden, chord) or Jacobians (Newton).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from ogradient.geometry import ConstraintFn, is_affine
from ogradient.mapping import ways_together
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.base import (
    Obeys,
    SamplingAlgorithm,
    Schedule,
    make_algorithm,
    split_step_size,
    step_size_at,
)
from ogradient.samplers.metric import Root, mass_parameters, mass_root
from ogradient.samplers.rattle import along_set, potential_of, trajectory
from ogradient.samplers.solver import SOLVERS
from ogradient.samplers.walls import Walls, between_walls, without_force_outside
from ogradient.status import Status


class ConstrainedState(NamedTuple):
    """A point on the set and its momentum; the rest is computed anew, so that a state is as small as a draw."""

    position: Position
    momentum: Array  # flat, (d,); used only with partial refreshment
    iteration: Array


class ConstrainedInfo(NamedTuple):
    """How a transition went."""

    constraint_value: dict[str, Array]
    status: Array
    acceptance_rate: Array
    is_accepted: Array
    energy: Array
    n_steps: Array  # RATTLE steps that the transition had
    num_solver_iterations: Array
    steering: Array  # what warm-up holds at its target: the acceptance rate, less where a step bounces too often


@dataclass(frozen=True)
class CHMC:
    """The kernel. Parameters: step_size, num_integration_steps, and those of `metric.mass_parameters`.

    `single`: one RATTLE step per transition whatever num_integration_steps says, without a loop around it.
    """

    schedule: Schedule | None = None
    refreshment: float = 1.0
    jitter: float = 0.0
    projection: str = "auto"
    single: bool = False
    length_jitter: float = 0.0
    ensemble: ClassVar[bool] = False
    obeys: ClassVar[Obeys] = "exact"
    steered: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """As in `SAMPLERS`."""
        return "clangevin" if self.single else "chmc"

    def init(self, position: Position) -> ConstrainedState:
        """Start at a point on the set (`og.sample` lands there first)."""
        x, _ = ravel_pytree(position)
        return ConstrainedState(position, jnp.zeros_like(x), jnp.zeros((), jnp.int32))

    def step(
        self, rng_key: Array, state: ConstrainedState, problem: Problem, parameters: dict[str, Any]
    ) -> tuple[ConstrainedState, ConstrainedInfo]:
        """One transition."""
        x, _, _, unravel = problem.flatten(state.position)
        epsilon = step_size_at(self.schedule, parameters, state.iteration, x.dtype)
        if self.jitter > 0:
            uniform = jax.random.uniform(jax.random.fold_in(rng_key, 2), (), x.dtype, minval=-1.0)
            epsilon = epsilon * (1 + self.jitter * uniform)
        num_steps = 1 if self.single else parameters["num_integration_steps"]
        if self.length_jitter > 0 and not self.single:
            num_steps = _jittered(num_steps, self.length_jitter, state.iteration)
        root = mass_root(parameters, x)
        move = partial(self._move, problem, unravel, root, _one_number(parameters))
        momentum = None if self.refreshment == 1 else state.momentum
        x, momentum, (status, rate, accepted, energy, iterations, steering) = move(
            rng_key, x, momentum, epsilon, num_steps
        )
        position, n_steps = unravel(x), jnp.asarray(num_steps, jnp.int32)
        moved = (status, rate, accepted, energy, n_steps, iterations, steering)
        info = ConstrainedInfo(problem.constraint_value(position), *moved)
        return ConstrainedState(position, momentum, state.iteration + 1), info

    def _solver(self, rows: int, flat: bool) -> str:
        """How moves come back to the set. On a flat one chord is exact."""
        if flat or self.projection != "auto":
            return "chord" if flat else self.projection
        return "newton" if rows == 1 else "broyden"

    def _move(
        self,
        problem: Problem,
        unravel: Callable[[Array], Position],
        root: Root,
        uniform: bool,
        key: Array,
        x: Array,
        momentum: Array | None,
        epsilon: Array,
        num_steps: int | Array,
    ) -> tuple[Array, Array, tuple[Array, ...]]:
        """One trajectory with fresh momentum (mixed with `momentum`), accepted or not."""
        equality: ConstraintFn = lambda x: problem.equality_value(unravel(x))
        bounds: ConstraintFn = lambda x: problem.inequality_value(unravel(x))
        flat = is_affine(equality, x)
        # The Gram factor is constant on a flat set, and in the Hausdorff measure with a multiple of the identity as mass.
        curved = not flat and (problem.measure == "conditional" or not uniform)
        projection = self._solver(jax.eval_shape(equality, x).size, flat)
        logdensity = lambda x: problem.logdensity(unravel(x))
        potential = potential_of(logdensity, equality, root, measure=problem.measure, curved=curved)

        momentum_key, accept_key = jax.random.split(key)
        p = jax.random.normal(momentum_key, x.shape, x.dtype)
        if momentum is not None:
            p = jnp.sqrt(1 - self.refreshment) * momentum + jnp.sqrt(self.refreshment) * p
        if problem.inequality is None:
            advance = along_set(equality, root, epsilon, projection, flat=flat, together=ways_together(problem))
        else:
            potential = without_force_outside(potential)
            walls = Walls(equality, bounds, root, projection, flat and is_affine(bounds, x))
            advance = between_walls(walls, epsilon)
        path = trajectory(potential, advance, root, x, p, epsilon, num_steps)
        start, end = path.start, path.end
        # Where log π is flat every step is accepted, however long: a bounce for every second coordinate is enough.
        most = (1 + 0.5 * min(jax.eval_shape(bounds, x).size, x.size)) * jnp.asarray(num_steps).astype(x.dtype)
        crowded = jnp.minimum(most / jnp.maximum(path.bounces, 1).astype(x.dtype), 1.0)

        energy, new_energy = start.energy, end.energy
        reached = (path.status == Status.OK) & jnp.all(bounds(end.x) <= 0) & jnp.all(jnp.isfinite(end.x))
        # An infinite energy is a rejected move like any other: the chain has not left its place. NaN at a point of the set is
        # a fault of the log density, and is said.
        valid = reached & jnp.isfinite(new_energy)
        rate = jnp.where(valid, jnp.exp(jnp.minimum(energy - new_energy + path.volume, 0.0)), 0.0)
        accepted = jax.random.uniform(accept_key, (), x.dtype) < rate
        status = jnp.where((path.status == Status.OK) & path.deficient, jnp.int32(Status.RANK_DEFICIENT), path.status)
        status = jnp.where(reached & jnp.isnan(end.potential), jnp.int32(Status.NON_FINITE), status)
        x, p = jnp.where(accepted, end.x, x), jnp.where(accepted, end.p, -start.p)
        return x, p, (status, rate, accepted, jnp.where(accepted, new_energy, energy), path.iterations, rate * crowded)


def make_exact(
    problem: Problem,
    step_size: float | Schedule,
    num_integration_steps: Any,
    inverse_mass: Any,
    **static: Any,
) -> tuple[CHMC, dict[str, Any]]:
    """Kernel and parameters of an exact sampler; refuses, with the remedy, what it cannot use."""
    schedule, parameters = split_step_size(step_size)
    kernel = CHMC(schedule, **static)
    if problem.stochastic:
        raise ValueError(
            f"{kernel.name} is exact only with all the data in every step: use og.posterior(..., batch_size=None) without "
            "augment, or og.o_langevin, which takes minibatches."
        )
    if not isinstance(num_integration_steps, jax.Array) and (
        not isinstance(num_integration_steps, int) or num_integration_steps < 1
    ):
        raise ValueError(f"num_integration_steps must be a whole number of at least 1; got {num_integration_steps!r}.")
    mass = mass_parameters(inverse_mass)
    if not 0 < kernel.refreshment <= 1:
        raise ValueError(f"refreshment must lie in (0, 1]; got {kernel.refreshment!r}.")
    if not 0 <= kernel.jitter < 1:
        raise ValueError(f"jitter must lie in [0, 1); got {kernel.jitter!r}.")
    if not 0 <= kernel.length_jitter < 1:
        raise ValueError(f"length_jitter must lie in [0, 1); got {kernel.length_jitter!r}.")
    if kernel.projection not in ("auto", *SOLVERS):
        raise ValueError(f"projection must be 'auto' or one of {', '.join(SOLVERS)}; got {kernel.projection!r}.")
    parameters |= {"num_integration_steps": num_integration_steps} | mass
    return kernel, parameters


def _jittered(num_steps: Any, jitter: float, iteration: Array) -> Array:
    """The number of steps of a transition, the same for all chains: L(1 + jitter·u), u from a sequence that fills [−1, 1] evenly.

    Multiples of the golden ratio, modulo 1, by whole numbers that wrap round: the count of transitions alone decides, so that
    every transition keeps the law. Lengths of each chain's own would have all of them wait for the longest.
    """
    share = (iteration.astype(jnp.uint32) * np.uint32(2654435769) >> np.uint32(8)).astype(jnp.float32) / 2**24
    length = jnp.asarray(num_steps).astype(jnp.float32) * (1 + jitter * (2 * share - 1))
    return jnp.maximum(jnp.round(length).astype(jnp.int32), 1)


def _one_number(parameters: dict[str, Any]) -> bool:
    """Whether the mass is a multiple of the identity."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(parameters["mass_root"])) <= 1


def chmc(
    problem: Problem,
    step_size: float | Schedule,
    *,
    num_integration_steps: int = 10,
    inverse_mass: Any = None,
    refreshment: float = 1.0,
    jitter: float = 0.0,
    length_jitter: float = 0.0,
    projection: str = "auto",
) -> SamplingAlgorithm:
    """Constrained Hamiltonian Monte Carlo: exact draws on the set, |g| at rounding level.

    Args:
        problem: log density, constraint(s) and measure. Trajectories bounce off the boundary of h ≤ 0.
        step_size: ε of a RATTLE step, a number or an optax schedule of the iteration.
        num_integration_steps: L, steps per transition.
        inverse_mass: M⁻¹. A number, or its diagonal (a flat array or a pytree like the position), or all of it: (d, d), in
            the order of `jax.flatten_util.ravel_pytree`. About the variances of the coordinates, or their covariance, is a
            good choice; a dense one takes d² numbers, and d² operations per step and row of g. Or of low rank,
            S(I + U(Λ − I)Uᵀ)S, from columns (d, 1 + k): the variances S², then √λ u for each of k < d − 1 orthonormal directions
            u, in units of S.
        refreshment: share of the momentum's variance that is new each transition; 1 forgets it.
        jitter: each transition's step is ε(1 + jitter·u), u uniform on [−1, 1]. Trajectories of one length can be nearly
            periodic (on a Gaussian, half a period is x → −x for ever); a jitter of 0.2 is enough against that.
        length_jitter: each transition has L(1 + length_jitter·u) steps, rounded, with the same u for all chains.
        projection: how a step comes back to the set. "newton" takes a Jacobian and solves m equations per iteration; "broyden"
            takes one value of g per iteration and learns from each; "chord" takes one value of g and learns nothing, for
            small steps. "auto" is newton for one row of g and broyden for more.

    Positions must be on the set: `og.sample` lands first, or use `og.land`.

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> trace = og.sample(0, problem, jnp.ones((4, 2)), algorithm=og.chmc(problem, 0.5), num_samples=100)
    >>> bool(abs(trace.sample_stats["equality"]).max() < 1e-4)      # float32: a few roundings
    True
    """
    settings: dict[str, Any] = {
        "num_integration_steps": num_integration_steps,
        "inverse_mass": inverse_mass,
        "refreshment": refreshment,
        "jitter": jitter,
        "length_jitter": length_jitter,
        "projection": projection,
    }
    kernel, parameters = make_exact(
        problem,
        step_size,
        num_integration_steps,
        inverse_mass,
        refreshment=float(refreshment),
        jitter=float(jitter),
        length_jitter=float(length_jitter),
        projection=projection,
    )
    return make_algorithm(kernel, problem, parameters, {"step_size": step_size} | settings)
