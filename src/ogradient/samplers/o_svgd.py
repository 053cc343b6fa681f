"""O-SVGD: particles that repel along the set and are pulled onto it, at the cost of plain SVGD.

x_i ← x_i + η (v♯(x_i) + v⊥(x_i)),   v♯ = −J⁺ψ(g),                                                (paper, section 4)
v⊥(x_i) = D_i (1/n) Σ_j [k(x_i, x_j) a_j + D_j ∇_{x_j}k(x_i, x_j)],   a_j = D_j s_j + r_j,  r = ∇·D

This is the velocity of the matrix kernel k⊥(x, y) = k(x, y) D(x)D(y), with its divergence written out: r enters once per
particle, and no kernel matrix is ever differentiated. Cost: one gradient of log π and the geometry of O-Langevin per
particle, and O(n²md) arithmetic in matrix products. Deterministic but for Hutchinson's probes.

With inequalities h ≤ 0 the kernel is k(x, y) b(y), b vanishing on the boundary (boundary.py): a_j becomes b_j a_j + D_j∇b_j and
∇k is weighted by b_j. Without b particles would pile up on the boundary, however small the step: nothing outside repels
them. Particles that leave are reflected, as in O-Langevin.

Momentum μ adds up whole moves, the pull among them, as in O-Langevin (memory.py): v ← μv + η(v♯ + v⊥), x ← x + v.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ogradient.geometry import ConstraintFn, Correction, Frame, frame_at, resolve_correction, steer, stein_drift
from ogradient.geometry.boundary import MAX_ACTIVE, Turn, boundary_weight, turn_back
from ogradient.mapping import chains_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.base import Obeys, SamplingAlgorithm, Schedule, make_algorithm
from ogradient.samplers.memory import check_momentum, remembered
from ogradient.samplers.o_langevin import check_o_sampler
from ogradient.samplers.pull import bounded, pull
from ogradient.samplers.svgd import (
    ParticleInfo,
    ParticleState,
    check_block_size,
    flatten_particles,
    init_particles,
    mean_field,
    next_bandwidth,
    particle_step_size,
    settle,
    split_particle_step_size,
    tangent_update,
)
from ogradient.status import Status
from ogradient.stein import RKHSKernel, rbf


@dataclass(frozen=True)
class OSVGD:
    """The kernel. Parameters: alpha, max_pull, momentum, and step_size unless an optimiser brings its own."""

    schedule: Schedule | None = None
    optimizer: Any = None
    beta: float = 0.0
    correction: Correction = "auto"
    num_probes: int = 1
    rkhs_kernel: RKHSKernel = field(default_factory=rbf)
    block_size: int | None = None
    max_active: int = MAX_ACTIVE
    remembers: bool = False  # whether there is a momentum
    name: ClassVar[str] = "o_svgd"
    ensemble: ClassVar[bool] = True
    obeys: ClassVar[Obeys] = "near"
    steered: ClassVar[bool] = False

    def init(self, position: Position) -> ParticleState:
        """Start an ensemble, with the particles as the first axis."""
        return init_particles(position, self.optimizer, remembers=self.remembers)

    def step(
        self, rng_key: Array | None, state: ParticleState, problem: Problem, parameters: dict[str, Any]
    ) -> tuple[ParticleState, ParticleInfo]:
        """One transition of an ensemble."""
        view = problem.view(rng_key)  # one batch for all particles, where there are batches
        x, unravel = flatten_particles(view, state.position)
        eta = particle_step_size(self.schedule, parameters, state, x.dtype)
        h, collapsed = next_bandwidth(self.rkhs_kernel, x, state)
        frames, drift, values = particle_geometry(
            view,
            state,
            x,
            correction=self.correction,
            num_probes=self.num_probes,
            key=rng_key,
            block_size=self.block_size or chains_together(problem, x),
        )
        inequality, weight = particle_inequality(view, state), None
        if inequality is not None:
            weight, gradient = boundary_weight(inequality, frames, x, h, self.block_size)
            drift = weight[:, None] * drift + gradient
        normals = frames.root @ frames.jacobian
        along = mean_field(self.rkhs_kernel, h, x, drift, normals, self.block_size, weight)

        # The optimiser is given the velocity along the set only, and what it returns is projected again: however it
        # rescales coordinates, g moves by −ηψ(g) and nothing else, to first order.
        zero = jnp.zeros_like(frames.value)
        update, optimizer_state = tangent_update(jax.vmap(steer)(frames, along, zero), x, eta, self.optimizer, state)
        pace = jnp.ones((), x.dtype) if eta is None else eta
        landing = lambda value: pull(value, pace, parameters["alpha"], self.beta)
        rates = jax.vmap(lambda frame: bounded(frame, landing(frame.value), pace, parameters["max_pull"]))(frames)
        move = jax.vmap(steer)(frames, update, -rates)
        velocity: Array | None = None
        if self.remembers:
            velocity = move = remembered(state, parameters["momentum"], move)
        proposal = x + move
        if inequality is not None:
            constraint = view.flatten(jax.tree.map(lambda leaf: leaf[0], state.position))[2]
            at_wall = partial(frame_at, constraint) if self.remembers else None
            inside = partial(turn_back, inequality, max_active=self.max_active, pull=landing, at_wall=at_wall)
            turns = over_particles(lambda argument: inside(*argument), (frames, x, proposal), self.block_size)
            proposal = turns.end
            velocity = None if velocity is None else jax.vmap(Turn.of_velocity)(turns, velocity)

        status = jnp.where(collapsed, Status.COLLAPSED, Status.OK).astype(jnp.int32)
        status = jnp.where(jnp.any(frames.deficient), jnp.int32(Status.RANK_DEFICIENT), status)
        return settle(view, proposal, values, state, unravel, h, optimizer_state, status, velocity)


def particle_inequality(problem: Problem, state: ParticleState) -> ConstraintFn | None:
    """The inequality h of one particle in flat coordinates, or None."""
    if problem.inequality is None:
        return None
    unravel = problem.flatten(jax.tree.map(lambda leaf: leaf[0], state.position))[3]
    return lambda x: problem.inequality_value(unravel(x))


def particle_geometry(
    problem: Problem,
    state: ParticleState,
    x: Array,
    *,
    correction: Correction,
    num_probes: int,
    key: Array | None,
    block_size: int | None,
) -> tuple[Frame, Array, Array]:
    """Frames of all particles, a = D s + r of each (n, d), and their log densities."""
    _, logdensity, constraint, _ = problem.flatten(jax.tree.map(lambda leaf: leaf[0], state.position))
    method = resolve_correction(correction, x.shape[1])

    def one(argument: tuple[Array, Array | None]) -> tuple[Frame, Array, Array]:
        point, probe_key = argument
        return stein_drift(
            logdensity, constraint, point, measure=problem.measure, method=method, num_probes=num_probes, key=probe_key
        )

    keys = None
    if method == "hutchinson":
        if key is None:
            raise ValueError("correction='hutchinson' needs a random key for its probes.")
        keys = jax.random.split(key, x.shape[0])
    return over_particles(one, (x, keys), block_size)


def o_svgd(
    problem: Problem,
    step_size: float | Schedule | None = None,
    *,
    optimizer: Any = None,
    alpha: float | None = None,
    beta: float = 0.0,
    correction: Correction = "auto",
    num_probes: int = 1,
    rkhs_kernel: RKHSKernel | None = None,
    block_size: int | None = None,
    max_pull: float | None = None,
    momentum: float = 0.0,
    max_active: int = MAX_ACTIVE,
) -> SamplingAlgorithm:
    """The paper's O-SVGD, for any number of equality and inequality constraints, from any start: an ensemble sampler.

    Args:
        problem: log density, constraint(s) and measure.
        step_size: η, a number or an optax schedule of the iteration. Not needed with an optimiser.
        optimizer: an optax optimiser for the motion along the set. It is given −v⊥ as gradient, its updates replace η v⊥
            and are projected on the tangent space again; the landing is added afterwards, untouched.
        alpha: strength of the pull ψ(g) = α sign(g)|g|^{1+β}. None is 1/η: one Newton step per iteration when β = 0.
            The discrete factor αη|g|^β is capped at 1.
        beta: in [0, 1].
        correction: how r is computed: "exact", "hutchinson", "auto" (exact up to d = 64), or "none" (a_j = D_j s_j).
        num_probes: probes of the Hutchinson estimate.
        rkhs_kernel: `og.rbf()` (default) or `og.imq()`, with their bandwidth.
        block_size: particles whose interactions are in memory together; None is all. Never changes the result but for
            rounding.
        max_pull: a bound on |λ_k| in the pull v♯ = −Σ_k λ_k∇g_k, λ = G⁻¹ψ(g), as in O-Langevin.
        momentum: μ in [0, 1), the share of a move, the pull included, that the next one keeps. For minibatches, whose noise it
            averages; a step then covers η/(1−μ) of time.
        max_active: rows of h that can turn a particle back together: the most violated ones.

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> particles = jax.random.normal(jax.random.key(0), (1, 20, 2))       # one ensemble of twenty
    >>> trace = og.sample(0, problem, particles, algorithm=og.o_svgd(problem, 0.1), num_warmup=200, num_samples=1)
    >>> trace["x"].shape, bool(abs(trace.sample_stats["equality"]).max() < 1e-2)
    ((1, 1, 20, 2), True)
    """
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "alpha": alpha,
        "beta": beta,
        "correction": correction,
        "num_probes": num_probes,
        "rkhs_kernel": rkhs_kernel or rbf(),
        "block_size": block_size,
        "max_pull": max_pull,
        "momentum": momentum,
        "max_active": max_active,
    }
    schedule, parameters = split_particle_step_size(step_size, optimizer)
    check_o_sampler(
        problem,
        "o_svgd",
        alpha=alpha,
        beta=beta,
        correction=correction,
        num_probes=num_probes,
        max_active=max_active,
        max_pull=max_pull,
    )
    remembers = check_momentum(momentum)
    for name, given in (("alpha", alpha), ("max_pull", max_pull)):
        if step_size is None and given is not None:
            raise ValueError(
                f"{name} means {name} * step_size per step: give step_size too, or leave {name} out (one Newton step)."
            )
    check_block_size(block_size)
    kernel = OSVGD(
        schedule,
        optimizer,
        float(beta),
        correction,
        num_probes,
        rkhs_kernel or rbf(),
        block_size,
        max_active,
        remembers,
    )
    parameters |= {"alpha": alpha, "max_pull": max_pull} | ({"momentum": momentum} if remembers else {})
    return make_algorithm(kernel, problem, parameters, {"step_size": step_size} | settings)
