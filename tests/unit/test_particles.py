"""Ensembles through og.sample: axes, resuming, convergence on the cubic, and bad input."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ogradient as og

pytestmark = pytest.mark.optimised

KNOWN = og.problems.cubic()
PROBLEM = KNOWN.problem
STARTS = jnp.stack([KNOWN.start_off(jax.random.key(i), 20) for i in range(2)])


def run(algorithm, starts=STARTS, **arguments):
    return og.sample(
        0, PROBLEM, starts, algorithm=algorithm, progress=False, **{"num_warmup": 5, "num_samples": 4} | arguments
    )


def test_axes_names_and_tables(tmp_path):
    trace = run(og.o_svgd(PROBLEM, 0.1))
    assert trace["x"].shape == (2, 4, 20, 2)
    assert trace.sample_stats["equality"].shape == (2, 4, 20, 1)
    assert trace.sample_stats["bandwidth"].shape == (2, 4)
    assert trace.pooled.shape == (160, 2)
    assert trace.apply(lambda x: x[0]).shape == (2, 4, 20)
    assert "2 ensembles of 20 particles × 4 draws" in repr(trace)
    table = trace.summary(digits=None)
    assert list(table.columns) == ["mean", "sd", "max"]  # no ESS and no R-hat: particles are no Markov chain
    assert table.loc["x[1]", "mean"] == pytest.approx(trace["x"][:, -1, :, 1].mean(), rel=1e-5)
    assert trace.to_datatree()["posterior"]["x"].dims == ("chain", "draw", "particle", "x_dim_0")
    assert og.load(trace.save(tmp_path / "t.zarr")).ensemble


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.parametrize("optimizer", [None, optax.adam(0.1)])
def test_resuming_equals_running_through(optimizer, tmp_path):
    algorithm = og.o_svgd(PROBLEM, 0.1, optimizer=optimizer, rkhs_kernel=og.rbf(every=3))
    whole = run(algorithm)
    part = og.load(run(algorithm, num_samples=1).save(tmp_path / "t.zarr"))
    np.testing.assert_array_equal(run(algorithm, None, num_samples=3, resume=part)["x"], whole["x"])
    np.testing.assert_array_equal(run(algorithm, chunk_size=2)["x"], whole["x"])


def test_ensembles_are_independent():
    algorithm = og.o_svgd(PROBLEM, 0.1)
    both, one = run(algorithm), run(algorithm, STARTS[1:])
    np.testing.assert_allclose(both["x"][1], one["x"][0], rtol=1e-3, atol=1e-3)


def test_particles_may_be_pytrees():
    problem = og.Problem(
        lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2)), equality=lambda p: p["a"] - jnp.sum(p["b"])
    )
    starts = {"a": jax.random.normal(jax.random.key(0), (1, 6)), "b": jax.random.normal(jax.random.key(1), (1, 6, 2))}
    trace = og.sample(
        0, problem, starts, algorithm=og.o_svgd(problem, 0.1), num_warmup=9, num_samples=1, progress=False
    )
    assert trace["b"].shape == (1, 1, 6, 2)
    assert np.abs(trace.sample_stats["equality"]).max() < 1e-5


def converge(start, n, algorithm, num_steps, dtype):
    starts = getattr(KNOWN, f"start_{start}")(jax.random.key(4), n)[None].astype(dtype)
    trace = run(algorithm, starts, num_warmup=num_steps - 1, num_samples=1)
    reference = KNOWN.exact(jax.random.key(5), 2000)
    return og.energy_distance(trace["x"][0, -1], reference), np.abs(trace.sample_stats["equality"]).max()


@pytest.mark.parametrize(
    ("start", "dtype"),
    [("on", "float32"), ("off", "float32"), ("on", "float64"), pytest.param("off", "float64", marks=pytest.mark.slow)],
)
def test_fifty_particles_converge(start, dtype, request):
    if dtype == "float64":
        request.getfixturevalue("x64")
    distance, violation = converge(start, 50, og.o_svgd(PROBLEM, 0.5), 3000, dtype)
    assert distance < 0.12
    assert violation < 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.parametrize("start", ["on", "off"])
def test_five_hundred_particles_converge_with_an_optimiser(start):
    distance, violation = converge(start, 500, og.o_svgd(PROBLEM, optimizer=optax.adam(0.1)), 1500, "float32")
    assert distance < 0.05
    assert violation < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("start", ["on", "off"])
def test_five_hundred_particles_converge(start):
    distance, violation = converge(start, 500, og.o_svgd(PROBLEM, 0.5), 6000, "float32")
    assert distance < 0.05
    assert violation < 1e-3


def test_exact_draws_stay():
    starts = KNOWN.exact(jax.random.key(6), 200)[None]
    trace = run(og.o_svgd(PROBLEM, 0.5), starts, num_warmup=500, num_samples=1)
    assert og.energy_distance(trace["x"][0, -1], KNOWN.exact(jax.random.key(5), 2000)) < 0.02


def test_without_second_order_the_law_is_another_one():
    """Negative control: a = D s is drawn to the Hausdorff law, which has E[x₂²] = 2.66 instead of 1."""
    starts = KNOWN.exact(jax.random.key(6), 100)[None]
    right, wrong = (
        run(og.o_svgd(PROBLEM, 0.5, correction=c), starts, num_warmup=3000, num_samples=1)["x"][0, -1]
        for c in ("exact", "none")
    )
    assert np.mean(right[:, 1] ** 2) < 1.3
    assert np.mean(wrong[:, 1] ** 2) > 1.8


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        (STARTS[:, :1], "one particle has no median distance"),
        (STARTS[0, 0], r"axes \(ensembles, particles, ...\).*x0\[None\]"),
        (STARTS[:, :0], r"axes \(ensembles, particles, ...\)"),
    ],
)
def test_bad_starts(starts, message):
    with pytest.raises(ValueError, match=message):
        run(og.o_svgd(PROBLEM, 0.1), starts)


def test_one_particle_with_a_bandwidth_is_fine():
    trace = run(og.o_svgd(PROBLEM, 0.1, rkhs_kernel=og.rbf(1.0)), STARTS[:, :1], num_warmup=200)
    assert np.abs(trace.sample_stats["equality"]).max() < 1e-3


def test_coinciding_particles_are_noticed():
    starts = STARTS.at[:, 15:].set(STARTS[:, :5])
    with pytest.warns(og.ConstraintWarning, match="only 15 of 20 particles have distinct starts"):
        run(og.o_svgd(PROBLEM, 0.1), starts)
    collapsed, same = "COLLAPSED.*give the kernel a bandwidth", "only 1 of 8"
    with pytest.warns(og.ConstraintWarning, match=same), pytest.warns(og.ConstraintWarning, match=collapsed):
        trace = run(og.o_svgd(PROBLEM, 0.1), jnp.tile(STARTS[:1, :1], (1, 8, 1)))
    assert np.isfinite(trace["x"]).all()
    assert trace.problems() == {og.Status.COLLAPSED: 9}


def test_non_finite_scores_stop_the_run_and_keep_the_particles():
    problem = og.Problem(lambda x: jnp.sqrt(x[0]) - x[0] ** 2, equality=lambda x: x[1] - 1)
    starts = jax.random.uniform(jax.random.key(0), (1, 9, 2), minval=0.05, maxval=0.3)
    with pytest.raises(og.SamplingError, match="NON_FINITE") as caught:
        og.sample(0, problem, starts, algorithm=og.o_svgd(problem, 5.0), num_warmup=0, num_samples=200, progress=False)
    assert np.isfinite(caught.value.trace["x"]).all()


def test_particles_do_not_pile_up_on_the_boundary(x64):
    """The boundary weight is what keeps them off: with it the mean height of a cap is right, without it .15 too low."""
    known = og.problems.spherical_cap(3, 0.3)
    starts = known.start_off(jax.random.key(0), 100)
    algorithm = og.o_svgd(known.problem, 0.1)
    trace = og.sample(
        0, known.problem, starts[None], algorithm=algorithm, num_warmup=4000, num_samples=1, progress=False
    )
    particles = trace["x"][0, -1]
    assert trace.sample_stats["inequality"].max() <= 0
    assert abs(particles[:, 0].mean() - 0.65) < 0.01
    exact = known.exact(jax.random.key(1), 2000)
    assert og.energy_distance(particles, exact) < 0.005  # a hundred exact draws are at 0.012 on average


def test_without_the_weight_they_do(x64, monkeypatch):
    """Negative control of the test above: reflections alone leave the mean height of the cap far too low."""
    plain = lambda inequality, frames, x, h, block_size: (jnp.ones(len(x)), jnp.zeros_like(x))
    monkeypatch.setattr(sys.modules["ogradient.samplers.o_svgd"], "boundary_weight", plain)
    known = og.problems.spherical_cap(3, 0.3)
    starts = known.start_off(jax.random.key(0), 100)[None]
    algorithm = og.o_svgd(known.problem, 0.1)
    trace = og.sample(0, known.problem, starts, algorithm=algorithm, num_warmup=4000, num_samples=1, progress=False)
    assert trace["x"][0, -1][:, 0].mean() < 0.58
