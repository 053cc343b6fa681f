"""Other libraries drive our samplers, read our traces, and agree with our numbers."""

import blackjax
import dcor
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.util import run_inference_algorithm

import ogradient as og

KNOWN = og.problems.cubic()
STARTS = KNOWN.start_off(jax.random.key(0), 4)


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.parametrize("name", og.SAMPLERS)
def test_blackjax_drives_our_samplers(name):
    algorithm = og.SAMPLERS[name](KNOWN.problem, 0.01)
    start = STARTS if name.endswith("svgd") or name == "control_langevin" else STARTS[0]
    if name in ("chmc", "clangevin"):
        start = og.land(KNOWN.problem, STARTS[:1]).position[0]
    final, (states, infos) = run_inference_algorithm(
        rng_key=jax.random.key(0), inference_algorithm=algorithm, num_steps=50, initial_position=start
    )
    assert states.position.shape == (50, *start.shape)
    assert infos.constraint_value["equality"].shape == (50, *start.shape[:-1], 1)
    np.testing.assert_array_equal(final.position, states.position[-1])
    if name not in ("langevin", "svgd", "control_langevin"):
        assert np.abs(infos.constraint_value["equality"][20:]).mean() < 0.02


@pytest.mark.usefixtures("lenient_promotion")
def test_we_drive_blackjax():
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0])
    algorithm = blackjax.mala(problem.logdensity_fn, 0.5)
    with pytest.warns(og.ConstraintWarning, match="nothing is known of the algorithm"):
        trace = og.sample(0, problem, STARTS, algorithm=algorithm, num_samples=200, num_warmup=50, progress=False)
    assert trace["x"].shape == (4, 200, 2)
    assert {"equality", "acceptance_rate", "is_accepted"} <= set(trace.sample_stats)
    assert 0.5 < trace.sample_stats["acceptance_rate"].mean() <= 1


def test_arviz_reads_our_traces():
    import arviz_stats  # noqa: F401  (registers the accessor)

    algorithm = og.o_langevin(KNOWN.problem, 0.01)
    trace = og.sample(0, KNOWN.problem, STARTS, algorithm=algorithm, num_samples=100, progress=False)
    tree = trace.to_datatree()
    assert {"posterior", "sample_stats"} <= set(tree.children)
    assert tree["posterior"]["x"].dims == ("chain", "draw", "x_dim_0")
    assert tree["sample_stats"]["equality"].shape == (4, 100, 1)
    assert tree.attrs["algorithm"] == "o_langevin"
    ess = tree["posterior"].dataset.azstats.ess()
    np.testing.assert_allclose(ess["x"].values, trace.summary(digits=None)["ess_bulk"][:2], rtol=1e-3)


@pytest.mark.parametrize("sizes", [(50, 80), (600, 300), (1, 5)])
def test_energy_distance_agrees_with_dcor(sizes, x64):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(sizes[0], 3)), rng.normal(size=(sizes[1], 3)) + 0.3
    assert og.energy_distance(first, second) == pytest.approx(dcor.energy_distance(first, second), rel=1e-10)
    if min(sizes) > 1:
        unbiased = dcor.energy_distance(first, second, estimation_stat="u_statistic")
        assert og.energy_distance(first, second, unbiased=True) == pytest.approx(unbiased, rel=1e-8)
