"""E[a·φ + tr(D∇φ)] = 0 on exact draws: tests score, projection and correction with no chain at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ogradient import geometry as geo
from ogradient import problems

pytestmark = pytest.mark.usefixtures("x64")

CASES = [
    problems.cubic(),
    problems.cubic("hausdorff"),
    problems.ellipse(),
    problems.ellipse("hausdorff"),
    problems.torus("a"),
    problems.torus("b"),
    problems.torus("b", "hausdorff"),
    problems.affine_gaussian(),
    problems.transport(8, 3),
]
IDS = [f"{known.name}-{known.problem.measure}" for known in CASES]


def stein_z_scores(known, measure, n=20_000):
    """z-scores of the identity for a few bounded test fields φ."""
    draws = known.exact(jax.random.key(5), n)
    weights = jax.random.normal(jax.random.key(6), (4, known.dim, known.dim))

    def one(x):
        _, logdensity, g, _ = known.problem.flatten(x)
        frame = geo.frame_at(g, x)
        a = geo.project(frame, jax.grad(logdensity)(x)) + geo.correction(g, x, frame, measure=measure, method="exact")

        def identity(w):
            phi = lambda y: jnp.sin(w @ y)
            columns = jax.vmap(lambda e: geo.project(frame, jax.jvp(phi, (x,), (e,))[1]) @ e)(jnp.eye(x.size))
            return a @ phi(x) + jnp.sum(columns)

        return jax.vmap(identity)(weights)

    values = np.asarray(jax.jit(jax.vmap(one))(draws))
    return values.mean(axis=0) / (values.std(axis=0, ddof=1) / np.sqrt(n))


@pytest.mark.parametrize("known", CASES, ids=IDS)
def test_identity_holds_on_exact_draws(known):
    limit = stats.norm.ppf(1 - 0.5e-6)
    assert np.abs(stein_z_scores(known, known.problem.measure)).max() < limit


@pytest.mark.parametrize("known", [CASES[2], CASES[5]], ids=[IDS[2], IDS[5]])
def test_identity_fails_with_the_other_measure(known):
    assert np.abs(stein_z_scores(known, "hausdorff")).max() > 10
