"""The first length of a move, before anything is known of a problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.warmup.scales import first_length

SPHERE = lambda x: jnp.sum(x**2) - 1
STARTS = jax.random.normal(jax.random.key(0), (16, 4))
LANDED = STARTS / jnp.linalg.norm(STARTS, axis=1, keepdims=True)


@pytest.mark.parametrize("logdensity", [lambda x: -0.5 * jnp.sum(x**2), lambda x: 1e-6 * x[0], lambda x: 0.0 * x[0]])
def test_where_log_density_says_nothing_the_set_has_a_scale_of_its_own(logdensity):
    """Across the sphere, and along it but little: a move cannot be longer than the set is straight."""
    assert 0.1 < first_length(og.Problem(logdensity, SPHERE), LANDED) < 2


def test_at_zero_the_log_density_has_a_scale():
    steep = og.Problem(lambda x: 1e3 * x[0] - 0.5 * jnp.sum(x**2), lambda x: jnp.sum(x[1:]) + 0.1 * jnp.sum(x[1:] ** 2))
    for starts in (jnp.zeros((4, 3)), jnp.full((4, 3), 1e-12)):
        np.testing.assert_allclose(first_length(steep, starts), 0.1, rtol=1e-3)
    assert first_length(og.Problem(lambda x: 0.0 * x[0]), jnp.zeros((4, 3))) == 1


@pytest.mark.parametrize("name", ["o_langevin", "o_kinetic"])
def test_samplers_near_the_set_are_tuned_where_the_gradient_is_across_it(name):
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), SPHERE)
    trace = og.sample(0, problem, STARTS, algorithm=name, num_warmup=0, num_samples=200, progress=False)
    assert trace.problems() == {}
    assert np.abs(trace.sample_stats["equality"]).mean() < 0.1
    assert 1e-3 < trace.provenance["settings"]["step_size"] < 1
