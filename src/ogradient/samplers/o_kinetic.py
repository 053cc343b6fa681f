"""O-kinetic: O-Gradient with momentum. Underdamped Langevin dynamics along {g = 0}, with a pull to g = 0 across it.

On the set, with p tangent (J p = 0), F = ∇log π − T ∇½log det G (conditional measure) or ∇log π (Hausdorff):

    dx = p dt,   dp = (D F − γp) dt − Jᵀλ dt + √(2γT) D dW,   λ such that J p = 0 stays true.

Its invariant law is π^{1/T}/√det G (conditional) times a Gaussian of p in the tangent space, whatever the friction γ: in local
coordinates of the set it is ordinary underdamped dynamics with the kinetic energy of the embedding, whose density against
surface measure is e^{F's potential/T}; the factor 1/√det G of the conditional law is a part of that potential. The normal half of
r = ∇·D, which O-Langevin has to compute, is a term of second order in the move: here the correction of the position supplies it.

One step of size h is B A O A of the splitting B A O A B (Leimkuhler and Matthews 2013), whose last B is the next step's first,
at the same point:
    B: p ← D(x)(p + hF(x))                                        D(x) also turns the p that arrives here into the tangent space
    A: y = x + ½h p;  x' = y − J(x)⁺(g(y) − g(x) + ½hψ(g(x)));  p ← (x' − x + ½h J(x)⁺ψ(g(x)))/(½h),  projected where x' is
    O: p ← c p + √(T(1 − c²)) D ξ,  c = e^{−γh}
    A again.
A is one chord step along the normals of the point it came from. What it takes out of g(y) beside the pull is the second order
of the move; momentum is carried as the chord itself and projected where it ends, which costs |p| nothing to order h²: correcting
along J(x')ᵀ, or projecting p in place of the chord, would lose a part O(h²) of |p|² in every step, a bias of order h. The pull
mends an old residual and is no velocity, so it is taken out of the chord.

Cost per step: one gradient of log π, two frames (g and J at x and at the middle), two values of g, and one Hessian-vector
product of each g_k (conditional measure, where g is not affine). No trace and no probes. Unadjusted: the error of the law is
O(h²), |g| on the set O(h³). A step covers as much of the law as O-Langevin's with η = h²/2, at about the same cost, but does so
in one direction for a time 1/γ.

Inequalities h ≤ 0 add nothing inside. A move that ends outside is mirrored at the violated rows, and its velocity with it
(boundary.py), by the normals where it met the wall. Two Jacobians of g and two values of h more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from ogradient.geometry import (
    ConstraintFn,
    Frame,
    evaluate,
    frame_at,
    half_log_det_gradient,
    is_affine,
    project,
    steer,
)
from ogradient.geometry.boundary import MAX_ACTIVE, turn_back
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.base import (
    Obeys,
    SamplingAlgorithm,
    Schedule,
    check_positive,
    check_temperature,
    keep_finite,
    make_algorithm,
    split_step_size,
    step_size_at,
)
from ogradient.samplers.pull import bounded, check_pull, pull
from ogradient.status import Status


class KineticState(NamedTuple):
    """Where a chain is, where it is going, and how many steps it made."""

    position: Position
    momentum: Array  # flat, (d,); drawn by the first step
    iteration: Array


class KineticInfo(NamedTuple):
    """Constraint values at the new position, how the step ended, and whether a boundary h = 0 turned it back."""

    constraint_value: dict[str, Array]
    status: Array
    reflected: Array | None  # None without an inequality


@dataclass(frozen=True)
class OKinetic:
    """The kernel. Parameters: step_size, friction, alpha, max_pull, temperature."""

    schedule: Schedule | None = None
    beta: float = 0.0
    max_active: int = MAX_ACTIVE
    name: ClassVar[str] = "o_kinetic"
    ensemble: ClassVar[bool] = False
    obeys: ClassVar[Obeys] = "near"
    steered: ClassVar[bool] = False

    def init(self, position: Position) -> KineticState:
        """Start a chain at a position, on the constraint set or off it."""
        x, _ = ravel_pytree(position)
        return KineticState(position, jnp.zeros_like(x), jnp.zeros((), jnp.int32))

    def step(
        self, rng_key: Array, state: KineticState, problem: Problem, parameters: dict[str, Any]
    ) -> tuple[KineticState, KineticInfo]:
        """One transition."""
        view = problem.view(rng_key)
        x, logdensity, constraint, unravel = view.flatten(state.position)
        dtype = x.dtype
        h = step_size_at(self.schedule, parameters, state.iteration, dtype)
        temperature = jnp.asarray(parameters["temperature"], dtype)
        keep = jnp.exp(-jnp.asarray(parameters["friction"], dtype) * h)
        noise_key, fresh_key = jax.random.split(rng_key)
        fresh = jnp.sqrt(temperature) * jax.random.normal(fresh_key, x.shape, dtype)
        noise = jnp.sqrt(temperature * (1 - keep**2)) * jax.random.normal(noise_key, x.shape, dtype)

        value, force, frame = evaluate(logdensity, constraint, x)
        if problem.measure != "hausdorff" and frame.value.size and not is_affine(constraint, x):
            force = force - temperature * half_log_det_gradient(constraint, x, frame)
        # At first there is no momentum yet.
        p = project(frame, jnp.where(state.iteration == 0, fresh, state.momentum) + h * force)

        inequality = None if problem.inequality is None else lambda x: view.inequality_value(unravel(x))
        drift = lambda frame, x, p: self._drift(constraint, inequality, frame, x, p, h / 2, parameters)
        middle, p, first = drift(frame, x, p)
        middle_frame = frame_at(constraint, middle)
        end, p, second = drift(middle_frame, middle, project(middle_frame, keep * p + noise))

        status = jnp.where(frame.deficient | middle_frame.deficient, Status.RANK_DEFICIENT, Status.OK)
        # A step that is refused would fail again with the same momentum.
        (x, p), status = keep_finite((end, p), (x, fresh), value, status)
        position = unravel(x)
        reflected = None if inequality is None else first | second
        info = KineticInfo(view.constraint_value(position), status, reflected)
        return KineticState(position, p, state.iteration + 1), info

    def _drift(
        self,
        constraint: ConstraintFn,
        inequality: ConstraintFn | None,
        frame: Frame,
        x: Array,
        p: Array,
        time: Array,
        parameters: dict[str, Any],
    ) -> tuple[Array, Array, Array]:
        """A move of some time with momentum p: where it ends, the momentum there, not yet projected, whether it was mirrored."""
        landing = lambda value: pull(value, time, parameters["alpha"], self.beta)
        none = jnp.zeros_like(x)
        proposal = x + time * p
        if frame.value.size:
            rate = bounded(frame, landing(frame.value), time, parameters["max_pull"])
            correction = steer(frame, none, frame.value - rate - constraint(proposal))
            # A schedule may reach 0: nothing moves then.
            chord = (correction + steer(frame, none, rate)) / jnp.where(time > 0, time, 1.0)
            end, velocity = proposal + correction, p + chord
        else:
            end, velocity = proposal, p
        if inequality is None:
            return end, velocity, jnp.zeros((), bool)
        there = lambda point: frame_at(constraint, point)
        turn = turn_back(inequality, frame, x, end, max_active=self.max_active, pull=landing, at_wall=there)
        return turn.end, turn.of_velocity(velocity), turn.left


def o_kinetic(
    problem: Problem,
    step_size: float | Schedule,
    *,
    friction: float = 1.0,
    alpha: float | None = None,
    beta: float = 0.0,
    temperature: float = 1.0,
    max_pull: float | None = None,
    max_active: int = MAX_ACTIVE,
) -> SamplingAlgorithm:
    """O-Gradient with momentum: underdamped Langevin dynamics along the set, from any start, with an error of O(step_size²).

    |g| is O(step_size³), with the pull that alpha=None, beta=0 makes, and O(step_size²) under a weaker one.

    Args:
        problem: log density, constraint(s) and measure. Moves that leave h ≤ 0 are mirrored, and their velocity with them; once
            inside, a chain never leaves (unless h changes from step to step, on minibatches).
        step_size: h, a number or an optax schedule of the iteration. It has the units of a position: about a fifth of the
            smallest standard deviation along the set is a good choice. A step costs as much as one of O-Langevin with
            step size h²/2.
        friction: γ. Momentum is forgotten over a time 1/γ. About 1 over the largest standard deviation along the set mixes
            fastest. The law does not depend on it, but on minibatches: gradients with noise of variance σ² add hσ²/(2γ) to the
            temperature. An equality of which a step sees some rows only takes momentum away: with θ² the mean squared angle
            between the normals of two batches, the temperature is T(1 − c²)/(1 − c² + θ²), c = e^{−γh}, the lower the smaller h
            is. Give the constraint all rows (`constraint_batch_size=N`), keep γh well above θ², or take `og.o_langevin`.
        alpha: strength of the pull ψ(g) = α sign(g)|g|^{1+β} to the set. None takes all of g out in every half of a step. On
            minibatches, whose g is noise in part, a weaker one averages over steps: 0.1/step_size, say.
        beta: in [0, 1]. 0 lands exponentially fast; larger values land faster from far away and slower near the set.
        temperature: T; the law is π^{1/T} with the measure's factor unchanged.
        max_pull: a bound on |λ_k| in the pull v♯ = −Σ_k λ_k∇g_k, λ = G⁻¹ψ(g), as in `og.o_langevin`.
        max_active: rows of h that can turn a move back together: the most violated ones.

    In the Hausdorff measure nothing is differentiated twice, which is what deep networks need.

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> starts = jax.random.normal(jax.random.key(0), (8, 2))
    >>> trace = og.sample(0, problem, starts, algorithm=og.o_kinetic(problem, 0.1), num_samples=500, progress=False)
    >>> bool(abs(trace.sample_stats["equality"]).mean() < 0.005)
    True
    """
    settings: dict[str, Any] = {
        "friction": friction,
        "alpha": alpha,
        "beta": beta,
        "temperature": temperature,
        "max_pull": max_pull,
        "max_active": max_active,
    }
    schedule, parameters = split_step_size(step_size)
    check_pull("o_kinetic", problem, alpha=alpha, beta=beta, max_pull=max_pull, max_active=max_active)
    check_positive("friction", friction)
    check_temperature(problem, temperature)
    kernel = OKinetic(schedule, float(beta), max_active)
    parameters |= {"friction": friction, "alpha": alpha, "temperature": temperature, "max_pull": max_pull}
    return make_algorithm(kernel, problem, parameters, {"step_size": step_size} | settings)
