"""O-Langevin: Langevin dynamics in the directions that leave g alone, with a pull to g = 0 across them.

dx = (v♯ + D s + T r) dt + √(2T) D dW,   v♯ = −J⁺ψ(g),   r = ∇·D          (paper, theorem on O-Langevin)
x ← x + η(v♯ + D s + T r) + √(2ηT) D ξ,  ξ ~ N(0, I)                       (its Euler step)

In code the step is one vector u and one rate c, and a single projection: x ← x + D u + J⁺c with
u = η(s − T ∇½log det G) + √(2ηT) ξ  and  c = −ηψ(g) − ηT [tr(D H_k)]_k.
Cost per step: one gradient of log π, one of each g_k, one Hessian-vector product of each g_k (conditional measure), and
the second derivative of g along d directions (exact) or along one per probe (Hutchinson; with a single probe the product serves
both). Unadjusted: the law along the
set is off by O(η), and |g| stays at O(η).

Inequalities h ≤ 0 add nothing inside. A step that ends outside is completed by a reflection, x ← x − J⁺(0, 2h) over the rows of
g and the violated rows of h (see boundary.py); the error it makes in the law is O(η) too.

Momentum μ remembers whole moves, the pull among them (memory.py): v ← μv + D u + J⁺c, x ← x + v, with noise √(2(1−μ)ηT) D ξ.
A move covers η/(1−μ) of time. J v = g(x) − g(x − v) + ½vᵀHv + …, and a second ½vᵀHv comes with the next move, so that in the
mean g gains ½(1+μ)E vᵀH v = ηT tr(D H) a step: just what the normal half of r takes out, whatever μ is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ogradient.geometry import Correction, correction_parts, evaluate, frame_at, resolve_correction, steer
from ogradient.geometry.boundary import MAX_ACTIVE, turn_back
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.samplers.base import (
    ChainState,
    Obeys,
    SamplingAlgorithm,
    Schedule,
    check_temperature,
    keep_finite,
    make_algorithm,
    split_step_size,
    step_size_at,
)
from ogradient.samplers.memory import MovingState, check_momentum, noise_scale, remembered, start, step_on
from ogradient.samplers.pull import bounded, check_pull, pull
from ogradient.status import Status


class OLangevinInfo(NamedTuple):
    """Constraint values at the new position, how the step ended, and whether a boundary h = 0 turned it back."""

    constraint_value: dict[str, Array]
    status: Array
    reflected: Array | None  # None without an inequality


@dataclass(frozen=True)
class OLangevin:
    """The kernel. Parameters: step_size, alpha, temperature, max_pull, momentum."""

    schedule: Schedule | None = None
    beta: float = 0.0
    correction: Correction = "auto"
    num_probes: int = 1
    max_active: int = MAX_ACTIVE
    remembers: bool = False  # whether there is a momentum
    name: ClassVar[str] = "o_langevin"
    ensemble: ClassVar[bool] = False
    obeys: ClassVar[Obeys] = "near"
    steered: ClassVar[bool] = False

    def init(self, position: Position) -> ChainState | MovingState:
        """Start a chain at a position, on the constraint set or off it."""
        return start(position, self.remembers)

    def step(
        self, rng_key: Array, state: Any, problem: Problem, parameters: dict[str, Any]
    ) -> tuple[ChainState | MovingState, OLangevinInfo]:
        """One transition."""
        view = problem.view(rng_key)
        x, logdensity, constraint, unravel = view.flatten(state.position)
        eta = step_size_at(self.schedule, parameters, state.iteration, x.dtype)
        temperature = jnp.asarray(parameters["temperature"], x.dtype)
        momentum = parameters["momentum"] if self.remembers else None
        landing = lambda value: pull(value, eta, parameters["alpha"], self.beta)
        method = resolve_correction(self.correction, x.size)
        noise_key, probe_key = jax.random.split(rng_key) if method == "hutchinson" else (rng_key, None)

        value, score, frame = evaluate(logdensity, constraint, x)
        tangential, normal = correction_parts(
            constraint, x, frame, measure=problem.measure, method=method, num_probes=self.num_probes, key=probe_key
        )
        noise = noise_scale(eta, temperature, momentum) * jax.random.normal(noise_key, x.shape, x.dtype)
        vector = eta * (score + temperature * tangential) + noise
        rate = eta * temperature * normal - bounded(frame, landing(frame.value), eta, parameters["max_pull"])
        velocity, move = None, steer(frame, vector, rate)
        if self.remembers:
            velocity = move = remembered(state, momentum, move)
        proposal, reflected = x + move, None
        if problem.inequality is not None:
            inequality = lambda x: view.inequality_value(unravel(x))
            # A velocity is mirrored where it meets the wall.
            at_wall = (lambda point: frame_at(constraint, point)) if self.remembers else None
            turn = turn_back(inequality, frame, x, proposal, max_active=self.max_active, pull=landing, at_wall=at_wall)
            proposal, reflected = turn.end, turn.left
            velocity = None if velocity is None else turn.of_velocity(velocity)
        status = jnp.where(frame.deficient, Status.RANK_DEFICIENT, Status.OK)
        # A move that is refused would fail again: its chain starts from rest.
        rest = None if velocity is None else jnp.zeros_like(x)
        (x, velocity), status = keep_finite((proposal, velocity), (x, rest), value, status)
        position = unravel(x)
        info = OLangevinInfo(view.constraint_value(position), status, reflected)
        return step_on(state, velocity, position), info


def check_o_sampler(
    problem: Problem,
    name: str,
    *,
    alpha: float | None,
    beta: float,
    correction: Correction,
    num_probes: int,
    max_active: int,
    max_pull: float | None,
) -> None:
    """Refuse, with the remedy, what no O-sampler can use."""
    check_pull(name, problem, alpha=alpha, beta=beta, num_probes=num_probes, max_pull=max_pull, max_active=max_active)
    resolve_correction(correction, 1)


def o_langevin(
    problem: Problem,
    step_size: float | Schedule,
    *,
    alpha: float | None = None,
    beta: float = 0.0,
    correction: Correction = "auto",
    num_probes: int = 1,
    temperature: float = 1.0,
    max_pull: float | None = None,
    momentum: float = 0.0,
    max_active: int = MAX_ACTIVE,
) -> SamplingAlgorithm:
    """The paper's O-Langevin, for any number of equality and inequality constraints, from any start.

    Args:
        problem: log density, constraint(s) and measure. Where a step leaves h ≤ 0 it is reflected back along {g = 0}; once
            inside, a chain never leaves (unless h changes from step to step, on minibatches).
        step_size: η, a number or an optax schedule of the iteration. Bias along the set and |g| are O(η).
        alpha: strength of the pull ψ(g) = α sign(g)|g|^{1+β}. None is 1/η: one Newton step per iteration when β = 0.
            The discrete factor αη|g|^β is capped at 1, beyond which a step would overshoot.
        beta: in [0, 1]. 0 lands exponentially fast; larger values land faster from far away and slower near the set.
        correction: how the normal half of r is computed. "exact" (d second derivatives), "hutchinson" (`num_probes`
            of them, unbiased), "auto" (exact up to d = 64), or "none", which drops all of r: cheap, but then the law is
            near the Hausdorff one whatever `measure` says, on a level set shifted by O(1/α). All but "none" differentiate g
            twice: kinks (relu, abs) have no second derivative, and an average of many of them is curved where r sees nothing.
        num_probes: probes of the Hutchinson estimate.
        temperature: T; the law is π^{1/T} with the measure's factor unchanged.
        max_pull: a bound on |λ_k| in the pull v♯ = −Σ_k λ_k∇g_k, λ = G⁻¹ψ(g), which is met by a smaller α. Where g is a loss, λη
            is a learning rate: αηg/‖∇g‖², the step of Polyak, is huge where a batch has a small gradient.
        momentum: μ in [0, 1), the share of a move, the pull included, that the next one keeps. For minibatches: the noise of
            1/(1−μ) of them is averaged, and a step covers η/(1−μ) of time. |g| and bias stay O(η/(1−μ)). A pull that takes all of
            g in a step (alpha=None) and is remembered goes too far, and back: where g bends much, take alpha=(1−μ)/η. With all of
            the data `og.o_kinetic` is the sampler with momentum.
        max_active: rows of h that can turn a step back together: the most violated ones.

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> algorithm = og.o_langevin(problem, 0.01)
    >>> state, info = algorithm.step(jax.random.key(0), algorithm.init(jnp.array([3.0, 0.0])))
    >>> bool(abs(info.constraint_value["equality"][0]) < 0.5), int(info.status)   # it was 3
    (True, 0)
    """
    settings: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "correction": correction,
        "num_probes": num_probes,
        "temperature": temperature,
        "max_pull": max_pull,
        "momentum": momentum,
        "max_active": max_active,
    }
    schedule, parameters = split_step_size(step_size)
    check_o_sampler(
        problem,
        "o_langevin",
        alpha=alpha,
        beta=beta,
        correction=correction,
        num_probes=num_probes,
        max_active=max_active,
        max_pull=max_pull,
    )
    check_temperature(problem, temperature)
    remembers = check_momentum(momentum)
    kernel = OLangevin(schedule, float(beta), correction, num_probes, max_active, remembers)
    parameters |= {"alpha": alpha, "temperature": temperature, "max_pull": max_pull}
    parameters |= {"momentum": momentum} if remembers else {}
    return make_algorithm(kernel, problem, parameters, {"step_size": step_size} | settings)
