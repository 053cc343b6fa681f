"""OLLA-H, overdamped Langevin dynamics with landing, from its equations (Jeon, Muehlebach and Tao, NeurIPS 2025).

With J the rows of g and of the h_j ≥ 0 together, G = J Jᵀ, Π = I − Jᵀ G⁻¹ J and f = −log of the density against area:
    x ← x + Δ [−Π∇f − α Jᵀ G⁻¹ (g, h + ε) − Jᵀ G⁻¹ (tr Π∇²g_k)_k] + √(2Δ) Π ξ,
the traces by Hutchinson's estimator with five probes. It samples the Hausdorff law, so that for the conditional one f has the
term ½ log det(∂g ∂gᵀ). There is no tuning: the step is given.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

PROBES = 5
LANDING = 0.5  # αΔ: the share of g that a step takes away
MARGIN = 1e-4  # ε: how far inside h ≤ 0 a step aims
DAMPING = 1e-6  # on the diagonal of G


def area_logdensity(problem):
    """The log density against surface area whose law is the problem's."""

    def density(x):
        value, jacobian = problem.logdensity(x), jax.jacrev(problem.equality_value)(x)
        if problem.measure == "hausdorff" or jacobian.size == 0:
            return value
        return value - 0.5 * jnp.linalg.slogdet(jacobian @ jacobian.T)[1]

    return density


def olla_step(problem, step_size):
    """One step, of a key and a position."""
    gradient = jax.grad(area_logdensity(problem))

    def constraints(x):
        return jnp.concatenate([problem.equality_value(x), problem.inequality_value(x)])

    def step(key, x):
        noise_key, probe_key = jax.random.split(key)
        value, jacobian = constraints(x), jax.jacrev(constraints)(x)
        bound = jnp.arange(value.size) >= problem.equality_value(x).size
        inside = bound & (value < 0)
        jacobian = jnp.where(inside[:, None], 0.0, jacobian)
        gram = jacobian @ jacobian.T + jnp.diag(jnp.where(inside, 1.0, DAMPING))
        normal = lambda rate: jnp.linalg.solve(gram, rate) @ jacobian
        project = lambda v: v - normal(jacobian @ v)
        probes = jax.random.rademacher(probe_key, (PROBES, x.size), x.dtype)
        curvature = lambda u: jax.jvp(jax.jacrev(constraints), (x,), (u,))[1] @ project(u)
        traces = jnp.mean(jax.vmap(curvature)(probes), axis=0)
        pull = jnp.where(inside, 0.0, LANDING * (value + MARGIN * bound) + step_size * traces)
        noise = jnp.sqrt(2 * step_size) * jax.random.normal(noise_key, x.shape, x.dtype)
        return x + project(step_size * gradient(x) + noise) - normal(pull)

    return step
