"""Mici's constrained system of one of our problems: its functions call JAX, in double precision."""

from __future__ import annotations

import jax
import numpy as np


def mici_system(problem):
    """The same law for mici. Build it, and use it, under `jax.enable_x64(True)`.

    Outside h ≤ 0 the energy is infinite, so that trajectories end there.
    """
    import mici

    potential, gradient = (
        jax.jit(f) for f in (lambda q: -problem.logdensity(q), jax.grad(lambda q: -problem.logdensity(q)))
    )
    constraint, jacobian = jax.jit(problem.equality_value), jax.jit(jax.jacrev(problem.equality_value))
    # Σ_ki m_ki ∂²g_k/∂x_i∂x_j, for the gradient of log det G.
    product = jax.jit(lambda q, m: jax.vjp(jax.jacrev(problem.equality_value), q)[1](m)[0])
    bounds = jax.jit(problem.inequality_value)

    def neg_log_dens(q):
        outside = problem.inequality is not None and np.any(np.asarray(bounds(q)) > 0)
        return np.inf if outside else float(potential(q))

    return mici.systems.DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=neg_log_dens,
        grad_neg_log_dens=lambda q: np.asarray(gradient(q)),
        constr=lambda q: np.asarray(constraint(q)),
        jacob_constr=lambda q: np.asarray(jacobian(q)),
        mhp_constr=lambda q: lambda m: np.asarray(product(q, m)),
        dens_wrt_hausdorff=problem.measure == "hausdorff",
    )
