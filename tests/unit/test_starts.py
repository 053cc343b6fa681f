"""Many chains from one start, or from a function of a key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og

PROBLEM = og.Problem(lambda x: -0.5 * jnp.sum(x["a"] ** 2), lambda x: jnp.sum(x["a"] ** 2) - 1)
START = {"a": jnp.array([1.0, 0.0])}


def run(starts, algorithm=None, **options):
    algorithm = og.chmc(PROBLEM, 0.3) if algorithm is None else algorithm
    options = {"num_warmup": 0, "num_samples": 2, "progress": False} | options
    return og.sample(0, PROBLEM, starts, algorithm=algorithm, **options)


def test_one_start_many_chains():
    trace = run(START, num_chains=5)
    assert trace["a"].shape == (5, 2, 2)
    assert len(np.unique(trace["a"][:, -1, 1])) == 5  # the chains part
    np.testing.assert_array_equal(trace["a"], run({"a": jnp.tile(START["a"], (5, 1))})["a"])


def test_noise_spreads_them():
    off = run(START, og.o_langevin(PROBLEM, 1e-12, alpha=1e-3), num_chains=400, spread=0.5, num_samples=1)["a"][:, 0]
    np.testing.assert_allclose(off.std(axis=0), 0.5, rtol=0.15)
    by_leaf = run(START, og.o_langevin(PROBLEM, 1e-12, alpha=1e-3), num_chains=400, spread={"a": 0.1}, num_samples=1)
    np.testing.assert_allclose(by_leaf["a"].std(axis=(0, 1)), 0.1, rtol=0.15)


def test_a_function_of_a_key_has_eight_chains_of_its_own():
    draw = lambda key: {"a": jax.random.normal(key, (2,))}
    trace = run(draw, og.o_langevin(PROBLEM, 0.01))
    assert trace["a"].shape == (8, 2, 2)
    np.testing.assert_array_equal(trace["a"], run(draw, og.o_langevin(PROBLEM, 0.01))["a"])
    assert run(draw, num_chains=3)["a"].shape == (3, 2, 2)


def test_particles_from_a_function():
    algorithm = og.o_svgd(PROBLEM, 0.1)
    trace = run(lambda key: {"a": jax.random.normal(key, (2,))}, algorithm, num_chains=20)
    assert trace["a"].shape == (1, 2, 20, 2)
    with pytest.raises(ValueError, match="particles that start at one place stay there"):
        run(START, algorithm, num_chains=20)
    assert run(START, algorithm, num_chains=20, spread=0.1)["a"].shape == (1, 2, 20, 2)


def test_what_is_refused():
    with pytest.raises(ValueError, match="spread is for one start and many chains"):
        run({"a": jnp.ones((4, 2))}, spread=0.1)
    with pytest.raises(ValueError, match="spread must be one number, or have the structure"):
        run(START, num_chains=4, spread={"b": 0.1})
    with pytest.raises(ValueError, match="num_chains must be a whole number of at least 1"):
        run(START, num_chains=0)
