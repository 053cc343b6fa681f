"""Supports: the coordinates of positive numbers, intervals, simplices and Cholesky factors of correlation matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient import chunk
from ogradient.problem.support import Coordinates

SUPPORTS = {
    "positive": (og.positive, (3,)),
    "interval": (og.interval(-1.0, 2.5), (2,)),
    "simplex": (og.simplex, (4,)),
    "simplices": (og.simplex, (2, 3)),
    "correlations": (og.cholesky_corr, (6,)),
}


def independent(name, x):
    """The coordinates of x that its density is against."""
    if name.startswith("simplex") or name == "simplices":
        return x[..., :-1].ravel()
    return x[jnp.tril_indices(x.shape[-1], -1)] if name == "correlations" else x.ravel()


@pytest.mark.parametrize("name", SUPPORTS)
def test_there_and_back_and_the_determinant(name, x64):
    support, shape = SUPPORTS[name]
    y = jax.random.normal(jax.random.key(0), shape, float)
    x = jax.jit(support.to_user)(y)
    assert bool(support.holds(x))
    np.testing.assert_allclose(jax.jit(support.from_user)(x), y, rtol=1e-9)
    jacobian = jax.jit(jax.jacobian(lambda y: independent(name, support.to_user(y))))(y).reshape(y.size, y.size)
    np.testing.assert_allclose(jax.jit(support.log_det)(y), np.linalg.slogdet(jacobian)[1], rtol=1e-9)


@functools.partial(jax.jit, static_argnums=0)
def compute(support, y):
    """Of many points together: themselves, the determinant, and whether they are inside."""
    x = support.to_user(y)
    return x, jax.vmap(support.log_det)(y), jax.vmap(support.holds)(x)


@pytest.mark.parametrize("name", SUPPORTS)
@pytest.mark.parametrize("size", [3.0, 30.0, 300.0])
def test_far_out_points_are_still_inside(name, size):
    support, shape = SUPPORTS[name]
    y = size * jax.random.normal(jax.random.key(1), (20, *shape))
    x, log_det, holds = compute(support, y)
    assert np.all(np.isfinite(x))
    assert np.all(np.isfinite(log_det))
    if name != "correlations" or size < 10:
        assert np.all(holds)


def test_correlation_matrices():
    factor = og.cholesky_corr.to_user(jnp.array([0.3, -2.0, 1.0]))
    matrix = factor @ factor.T
    np.testing.assert_allclose(jnp.diagonal(matrix), 1.0, rtol=1e-6)
    assert np.linalg.eigvalsh(matrix).min() > 0


@pytest.mark.parametrize(("bad", "match"), [((1.0, 1.0), "lower < upper"), ((0.0, np.inf), "finite ends")])
def test_intervals_are_checked(bad, match):
    with pytest.raises(ValueError, match=match):
        og.interval(*bad)


def test_names_are_checked():
    with pytest.raises(ValueError, match=r"support\['tau'\] must be og.positive"):
        Coordinates.of({"tau": "positive"})
    with pytest.raises(ValueError, match="support names sigma, but the position has tau"):
        Coordinates.of({"sigma": og.positive}).to_user({"tau": jnp.ones(2)})


def test_only_named_variables_change():
    coordinates = Coordinates.of({"a.tau": og.positive})
    position = {"a": {"tau": jnp.ones(2), "mu": jnp.ones(2)}}
    free = coordinates.from_user(position)
    np.testing.assert_array_equal(free["a"]["tau"], 0)
    np.testing.assert_array_equal(free["a"]["mu"], 1)
    assert coordinates == Coordinates.of({"a.tau": og.positive})


PROBLEM = og.Problem(
    lambda x: -x["tau"] + jnp.log(x["p"]) + jnp.log1p(-x["p"]),
    lambda x: x["tau"] * x["p"] - 0.5,
    support={"tau": og.positive, "p": og.interval(0.0, 1.0)},
)
STARTS = {"tau": jnp.array([0.7, 1.0, 2.0, 3.0]), "p": jnp.array([0.3, 0.4, 0.5, 0.6])}


def run(**options):
    options = {"num_warmup": 2, "num_samples": 6, "progress": False} | options
    return og.sample(0, PROBLEM, **{"initial_positions": STARTS, "algorithm": og.chmc(PROBLEM, 0.3)} | options)


def test_a_trace_is_in_the_users_coordinates_and_goes_on(tmp_path):
    whole = run()
    assert set(whole.variables) == {"tau", "p"}
    assert whole.problem is PROBLEM
    np.testing.assert_allclose(whole["tau"] * whole["p"], 0.5, rtol=1e-5)
    part = og.load(run(num_samples=4).save(tmp_path / "part.zarr"))
    for trace in (run(num_samples=4), part):
        again = run(initial_positions=None, num_samples=2, resume=trace)
        np.testing.assert_array_equal(again["tau"], whole["tau"])
    other = og.Problem(PROBLEM.logdensity_fn, PROBLEM.equality, support={"tau": og.positive})
    with pytest.raises(ValueError, match="resume continues a run with the support"):
        og.sample(0, other, algorithm=og.chmc(other, 0.3), resume=part, progress=False)


def test_landing_stays_inside():
    landing = og.land(PROBLEM, STARTS)
    np.testing.assert_array_equal(landing.status, 0)
    assert bool(PROBLEM.support.outside(landing.position) == [])
    np.testing.assert_allclose(landing.position["tau"] * landing.position["p"], 0.5, rtol=1e-5)


def test_particles_and_data_and_a_verdict():
    particles = jax.tree.map(lambda leaf: jnp.linspace(leaf[0], leaf[-1], 12)[None], STARTS)
    algorithm = og.o_svgd(PROBLEM, 0.1)
    trace = run(initial_positions=particles, algorithm=algorithm, num_warmup=50, num_samples=1)
    assert trace["p"].shape == (1, 1, 12)
    assert 0 < trace["p"].min() <= trace["p"].max() < 1
    model = og.posterior(
        lambda tau: -tau,
        lambda tau, y: jnp.sum(jnp.log(tau) - tau * y),
        jnp.arange(1.0, 5.0),
        support=og.positive,
    )
    # The log density that is sampled: that of the user, times the factor of tau = exp(y).
    np.testing.assert_allclose(model.free.logdensity(jnp.array(0.5)), model.logdensity(jnp.exp(0.5)) + 0.5, rtol=1e-6)
    verdict = og.diagnose(run(num_samples=30))
    assert verdict["constraint"].level == "fine"


def test_what_is_refused():
    outside = STARTS | {"p": jnp.array([0.3, 0.4, 1.0, 0.6])}
    with pytest.raises(ValueError, match="initial_positions has p outside the support"):
        run(initial_positions=outside)
    with pytest.raises(ValueError, match="support= changes those: use measure='conditional'"):
        og.Problem(lambda x: 0.0, lambda x: x[0], measure="hausdorff", support=og.positive)


def test_a_second_run_compiles_nothing():
    run()
    before = chunk.run_chunk._cache_size()
    other = og.Problem(PROBLEM.logdensity_fn, PROBLEM.equality, support=PROBLEM.support)
    og.sample(1, other, STARTS, algorithm=og.chmc(other, 0.2), num_warmup=2, num_samples=6, progress=False)
    assert chunk.run_chunk._cache_size() == before
