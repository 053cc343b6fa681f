"""Stein variational gradient descent without a constraint: what O-SVGD is compared with.

x_i ← x_i + η v(x_i),   v(x_i) = (1/n) Σ_j [k(x_i, x_j) s_j + ∇_{x_j} k(x_i, x_j)],   s = ∇log π     (paper, section 3)

One gradient of log π per particle, and three n×n×d matrix products. Deterministic: the key only draws minibatches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from ogradient.mapping import chains_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.base import (
    Obeys,
    SamplingAlgorithm,
    Schedule,
    keep_finite,
    make_algorithm,
    split_step_size,
    step_size_at,
)
from ogradient.status import Status
from ogradient.stein import RKHSKernel, median_bandwidth, rbf, squared_distances


class ParticleState(NamedTuple):
    """All particles, the number of steps made, the bandwidth in use, the optimiser's own state, and the last moves (n, d)."""

    position: Position
    iteration: Array
    bandwidth: Array
    optimizer_state: Any
    velocity: Array | None = None  # where there is a momentum


class ParticleInfo(NamedTuple):
    """Constraint values of every particle (n, m), how the step ended, and the kernel's bandwidth."""

    constraint_value: dict[str, Array]
    status: Array
    bandwidth: Array


def init_particles(position: Position, optimizer: Any = None, *, remembers: bool = False) -> ParticleState:
    """Start an ensemble at a position with the particles as its first axis, at rest."""
    x = jax.vmap(lambda one: ravel_pytree(one)[0])(position)
    state = None if optimizer is None else optimizer.init(x)
    velocity = jnp.zeros_like(x) if remembers else None
    return ParticleState(position, jnp.zeros((), jnp.int32), jnp.zeros((), x.dtype), state, velocity)


def flatten_particles(problem: Problem, position: Position) -> tuple[Array, Callable[[Array], Position]]:
    """Particles as one (n, d) array, and the way back."""
    first = jax.tree.map(lambda leaf: leaf[0], position)
    unravel = problem.flatten(first)[3]
    return jax.vmap(lambda p: problem.flatten(p)[0])(position), jax.vmap(unravel)


def next_bandwidth(kernel: RKHSKernel, x: Array, state: ParticleState) -> tuple[Array, Array]:
    """The bandwidth of this step, and whether the particles have collapsed so that the median gives none."""
    if kernel.bandwidth is not None:
        return jnp.asarray(kernel.bandwidth, x.dtype), jnp.zeros((), bool)
    if x.shape[0] < 2:
        raise ValueError("the median bandwidth needs at least two particles; give a number: og.rbf(bandwidth=1.0).")
    if kernel.every == 1:
        median = median_bandwidth(x)
    else:
        due = state.iteration % kernel.every == 0
        median = lax.cond(due, median_bandwidth, lambda _: state.bandwidth, x)
    collapsed = ~(median > 0)
    # Coinciding particles exert no force on each other whatever the bandwidth is; the status tells the user.
    return jnp.where(collapsed, jnp.ones_like(median), median), collapsed


def mean_field(
    kernel: RKHSKernel,
    h: Array,
    x: Array,
    drift: Array,
    normals: Array | None,
    block_size: int | None,
    weight: Array | None = None,
) -> Array:
    """(1/n) Σ_j [k(x_i, x_j) a_j + b_j D_j ∇_{x_j}k(x_i, x_j)] for every i, as matrix products.

    `drift` is a (n, d); `normals` are Q (n, m, d) with D_j = I − Q_jᵀQ_j, or None where D = I; `weight` is b (n,), or
    None for 1. With w = −2bκ' ≥ 0,
    Σ_j b_j D_j∇k = x_i Σ_j w_ij − Σ_j w_ij x_j − Σ_j w_ij Q_jᵀ Q_j(x_i − x_j), all O(n²md) and no d×d matrix.
    """
    n, d = x.shape
    check_memory(n, 0 if normals is None else normals.shape[1], x.dtype.itemsize, block_size)
    x = x - jnp.mean(x, axis=0, keepdims=True)  # differences are all that counts, and they round better near 0
    if normals is None:
        normals = jnp.zeros((n, 0, d), x.dtype)  # m = 0: the products below vanish
    flat_normals = normals.reshape(-1, d)
    offsets = jnp.einsum("jmd,jd->jm", normals, x)

    def row(point: Array) -> Array:
        k = kernel.profile(squared_distances(point, x), h)
        slope = -2 * k.first if weight is None else -2 * weight * k.first
        across = (flat_normals @ point).reshape(offsets.shape) - offsets  # Q_j (x_i − x_j)
        leak = (slope[:, None] * across).reshape(-1) @ flat_normals
        return (k.value @ drift + jnp.sum(slope) * point - slope @ x - leak) / n

    return over_particles(row, x, block_size)


def check_memory(n: int, m: int, itemsize: int, block_size: int | None) -> None:
    """Refuse, before anything is allocated, an interaction matrix that cannot fit; say which block size would."""
    # Where the system does not tell, 8 GiB are assumed.
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
    limits = jax.devices()[0].memory_stats() or {}
    budget = limits.get("bytes_limit", available) // 2
    per_row = n * itemsize * (4 + 2 * m)  # distances, kernel, weights and products with the normals
    rows = n if block_size is None else min(block_size, n)
    if rows * per_row > budget:
        fitting = max(1, 2 ** int(math.log2(max(budget // (4 * per_row), 1))))
        raise ValueError(
            f"{n:,} particles with {'no blocks' if block_size is None else f'block_size={block_size}'} need about "
            f"{rows * per_row / 2**30:.0f} GiB for their interactions; use block_size={fitting}."
        )


def check_block_size(block_size: int | None) -> None:
    """Refuse a block size that is not a positive whole number."""
    if block_size is not None and (not isinstance(block_size, int) or block_size < 1):
        raise ValueError(f"block_size must be a positive whole number, or None; got {block_size!r}.")


def tangent_update(
    velocity: Array, x: Array, eta: Array | None, optimizer: Any, state: ParticleState
) -> tuple[Array, Any]:
    """η v, or what an optax optimiser makes of the gradient −v."""
    if optimizer is None:
        assert eta is not None
        return eta * velocity, None
    return optimizer.update(-velocity, state.optimizer_state, x)


def settle(
    problem: Problem,
    proposal: Array,
    logdensities: Array,
    state: ParticleState,
    unravel: Callable,
    h: Array,
    optimizer_state: Any,
    status: Array,
    velocity: Array | None = None,
) -> tuple[ParticleState, ParticleInfo]:
    """The new state, unless any number of it is not finite; and what is to be said of it."""
    # After moves that were refused particles start from rest.
    rest = None if velocity is None else jnp.zeros_like(velocity)
    moved, stays = (unravel(proposal), velocity), (state.position, rest)
    (position, velocity), status = keep_finite(moved, stays, logdensities, status)
    keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(status != Status.NON_FINITE, a, b), new, old)
    carried = (*keep((h, optimizer_state), (state.bandwidth, state.optimizer_state)), velocity)
    info = ParticleInfo(jax.vmap(problem.constraint_value)(position), status, h)
    return ParticleState(position, state.iteration + 1, *carried), info


@dataclass(frozen=True)
class SVGD:
    """The kernel. Parameters: step_size, unless an optimiser brings its own."""

    schedule: Schedule | None = None
    optimizer: Any = None
    rkhs_kernel: RKHSKernel = field(default_factory=rbf)
    block_size: int | None = None
    name: ClassVar[str] = "svgd"
    ensemble: ClassVar[bool] = True
    obeys: ClassVar[Obeys] = "no"
    steered: ClassVar[bool] = False

    def init(self, position: Position) -> ParticleState:
        """Start an ensemble, with the particles as the first axis."""
        return init_particles(position, self.optimizer)

    def step(
        self, rng_key: Array | None, state: ParticleState, problem: Problem, parameters: dict[str, Any]
    ) -> tuple[ParticleState, ParticleInfo]:
        """One transition of an ensemble."""
        view = problem.view(rng_key)  # one batch for all particles, where there are batches
        x, unravel = flatten_particles(view, state.position)
        eta = particle_step_size(self.schedule, parameters, state, x.dtype)
        h, collapsed = next_bandwidth(self.rkhs_kernel, x, state)
        logdensity = view.flatten(jax.tree.map(lambda leaf: leaf[0], state.position))[1]
        together = self.block_size or chains_together(problem, x)
        values, scores = over_particles(jax.value_and_grad(logdensity), x, together)
        velocity = mean_field(self.rkhs_kernel, h, x, scores, None, self.block_size)
        update, optimizer_state = tangent_update(velocity, x, eta, self.optimizer, state)
        status = jnp.where(collapsed, Status.COLLAPSED, Status.OK).astype(jnp.int32)
        return settle(view, x + update, values, state, unravel, h, optimizer_state, status)


def split_particle_step_size(
    step_size: float | Schedule | None, optimizer: Any
) -> tuple[Schedule | None, dict[str, Any]]:
    """Schedule and parameters; no step size at all where an optimiser brings its own."""
    if step_size is not None:
        return split_step_size(step_size)
    if optimizer is None:
        raise ValueError("step_size is missing: give a number or a schedule, or an optax optimizer.")
    return None, {}


def particle_step_size(
    schedule: Schedule | None, parameters: dict[str, Any], state: ParticleState, dtype: Any
) -> Array | None:
    """The step size of this iteration, or None where an optimiser brings its own."""
    if schedule is None and "step_size" not in parameters:
        return None
    return step_size_at(schedule, parameters, state.iteration, dtype)


def svgd(
    problem: Problem,
    step_size: float | Schedule | None = None,
    *,
    optimizer: Any = None,
    rkhs_kernel: RKHSKernel | None = None,
    block_size: int | None = None,
) -> SamplingAlgorithm:
    """Stein variational gradient descent, blind to the constraint: an ensemble sampler.

    Args:
        problem: what to sample; its constraint is reported in the info and otherwise ignored.
        step_size: η, a number or an optax schedule of the iteration. Not needed with an optimiser.
        optimizer: an optax optimiser, which is given −v as gradient and whose updates replace η v.
        rkhs_kernel: `og.rbf()` (default) or `og.imq()`, with their bandwidth.
        block_size: particles whose interactions are in memory together; None is all. Never changes the result but for
            rounding.

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2))
    >>> algorithm = og.svgd(problem, 0.1)
    >>> state, info = algorithm.step(None, algorithm.init(jax.random.normal(jax.random.key(0), (20, 2))))
    >>> state.position.shape, int(info.status)
    ((20, 2), 0)
    """
    schedule, parameters = split_particle_step_size(step_size, optimizer)
    check_block_size(block_size)
    rkhs_kernel = rkhs_kernel or rbf()
    settings = {"step_size": step_size, "optimizer": optimizer, "rkhs_kernel": rkhs_kernel, "block_size": block_size}
    return make_algorithm(SVGD(schedule, optimizer, rkhs_kernel, block_size), problem, parameters, settings)
