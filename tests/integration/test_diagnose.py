"""diagnose says the right words for good and for bad traces."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.diagnostics.jumps import largest_jump

KNOWN = og.problems.ellipse()
STARTS = KNOWN.start_off(jax.random.key(0), 32)


def run(algorithm, starts=STARTS, **arguments):
    return og.sample(0, KNOWN.problem, starts, algorithm=algorithm, progress=False, **arguments)


def levels(diagnosis):
    return {finding.subject: finding.level for finding in diagnosis.findings}


def test_a_good_run_is_called_good(tmp_path):
    trace = run(og.o_langevin(KNOWN.problem, 0.02), num_samples=3000, thinning=40, num_warmup=3000)
    diagnosis = og.diagnose(trace)
    assert diagnosis.ok, diagnosis
    assert set(levels(diagnosis).values()) == {"fine"}
    assert str(diagnosis).startswith("Nothing speaks against these draws.")
    loaded = og.load(trace.save(tmp_path / "t.zarr"))
    assert levels(og.diagnose(loaded))["law along the set"] == "unknown"
    assert str(og.diagnose(loaded)).startswith(
        "Nothing speaks against these draws; not tested: constraint, law along the set."
    )
    assert og.diagnose(loaded, KNOWN.problem).ok


def test_the_wrong_law_is_called_bad():
    trace = run(og.o_langevin(KNOWN.problem, 0.02, correction="none"), num_samples=3000, thinning=20, num_warmup=3000)
    diagnosis = og.diagnose(trace)
    assert not diagnosis.ok
    assert levels(diagnosis)["law along the set"] == "bad"
    assert "not spread as the law says" in diagnosis["law along the set"].text


def test_a_short_run_is_called_short():
    diagnosis = og.diagnose(run(og.o_langevin(KNOWN.problem, 1e-4), num_samples=50, num_warmup=10))
    assert levels(diagnosis)["R-hat"] == "bad"
    assert levels(diagnosis)["ESS"] == "doubtful"
    assert "Do not rely" in str(diagnosis)


def test_ignoring_the_constraint_is_called_bad():
    problem = og.Problem(lambda x: -0.5 * x @ x, KNOWN.problem.equality)
    trace = og.sample(0, problem, STARTS, algorithm=og.langevin(problem, 0.05), num_samples=500, progress=False)
    assert levels(og.diagnose(trace))["constraint"] == "bad"


def test_rows_given_twice_only_cost_time():
    problem = og.Problem(KNOWN.problem.logdensity_fn, [KNOWN.problem.equality] * 2)
    with pytest.warns(og.ConstraintWarning):
        trace = og.sample(0, problem, STARTS, algorithm=og.o_langevin(problem, 0.02), num_samples=50, progress=False)
    finding = og.diagnose(trace)["status"]
    assert finding.level == "fine"  # it was warned about before the run, and the law is right
    assert "only cost time" in finding.text


def test_particles_get_no_ess_and_the_reason():
    starts = KNOWN.start_off(jax.random.key(1), 100)[None]
    trace = run(og.o_svgd(KNOWN.problem, 0.1), starts, num_warmup=3000, num_samples=1)
    diagnosis = og.diagnose(trace)
    assert levels(diagnosis)["R-hat"] == levels(diagnosis)["ESS"] == "unknown"
    assert "not a Markov chain" in diagnosis["ESS"].text
    assert levels(diagnosis)["constraint"] == "fine"
    assert levels(diagnosis)["law along the set"] == "fine"
    early = run(og.o_svgd(KNOWN.problem, 0.01), starts, num_warmup=20, num_samples=1)
    assert levels(og.diagnose(early))["law along the set"] == "bad"


def test_very_few_draws_do_not_break_it():
    trace = run(og.o_langevin(KNOWN.problem, 0.02), STARTS[:2], num_samples=2, num_warmup=0)
    assert levels(og.diagnose(trace))["R-hat"] == "doubtful"
    assert np.isfinite(trace["x"]).all()


def with_statuses(trace, tuned=None, **counts):
    """The same trace, had its steps ended otherwise: shares of all steps by status."""
    total = trace.status_counts.sum(axis=1)
    new = np.zeros_like(trace.status_counts)
    for name, share in counts.items():
        new[:, og.Status[name]] = (share * total).astype(int)
    new[:, og.Status.OK] = total - new.sum(axis=1)
    return dataclasses.replace(trace, status_counts=new, provenance=trace.provenance | {"tuned": tuned})


def exact_trace(problem=KNOWN.problem, draws=None, **stats):
    """Independent draws of the law as a trace of 32 chains."""
    draws = np.asarray(KNOWN.exact(jax.random.key(3), 32 * 200)).reshape(32, 200, -1) if draws is None else draws
    g = np.asarray(jax.vmap(jax.vmap(problem.equality_value))(jnp.asarray(draws)))
    counts = np.zeros((len(draws), len(og.Status)), int)
    counts[:, 0] = 1000
    return og.Trace(draws, {"equality": g} | stats, counts, {"algorithm": "draws", "ensemble": False}, None, problem)


def test_refused_moves_are_part_of_exact_sampling_unless_they_are_most():
    trace = exact_trace()
    diagnosis = og.diagnose(with_statuses(trace, SOLVER_DIVERGED=0.2, NOT_REVERSIBLE=0.1))
    assert diagnosis.ok, diagnosis
    assert "part of exact sampling" in diagnosis["status"].text
    most = og.diagnose(with_statuses(trace, SOLVER_DIVERGED=0.6))["status"]
    assert most.level == "doubtful"
    assert "use a smaller step" in most.text
    chosen = og.diagnose(with_statuses(trace, tuned=True, SOLVER_DIVERGED=0.6))["status"]
    assert chosen.level == "doubtful"
    assert "smaller step" not in chosen.text  # which the user did not choose
    assert og.diagnose(with_statuses(trace, NON_FINITE=0.001))["status"].level == "bad"
    assert og.diagnose(with_statuses(trace, RANK_DEFICIENT=0.3))["status"].level == "doubtful"


def test_the_default_call_is_fine_where_it_is_right():
    """Its exact sampler refuses some moves on the torus."""
    known = og.problems.torus_b()
    trace = og.sample(0, known.problem, known.start_off(jax.random.key(0), 32), num_samples=500, progress=False)
    assert trace.provenance["tuned"]
    assert trace.problems()
    diagnosis = og.diagnose(trace)
    assert diagnosis.ok, diagnosis


def independent(shape, scale, seed=0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


UNITS = [(1e-4, 1e3), (1.0, 1e-3), (1e4, 1e-3)]
SLOW_UNITS = [pytest.param(*case, marks=pytest.mark.slow) for case in [(1e-4, 1e-3), (1.0, 1e3), (1e4, 1e3)]]


@pytest.mark.parametrize(("unit", "row"), UNITS + SLOW_UNITS)
def test_draws_that_ignore_a_flat_constraint_are_told_in_any_unit(unit, row):
    """N(0, 1) × N(0, 100²) given x₀ = 0: off by 1, which is 1 % of the spread of all coordinates."""
    problem = og.Problem(
        lambda x: -0.5 * ((x[0] / unit) ** 2 + (x[1] / (100 * unit)) ** 2), lambda x: row * (x[0] - 3 * unit)
    )
    draws = independent((32, 200, 2), np.array([unit, 100 * unit])) + np.array([3 * unit, 0], np.float32)
    finding = og.diagnose(exact_trace(problem, draws))["constraint"]
    assert finding.level == "bad"
    assert "hardly obey it" in finding.text
    draws[..., 0] = np.float32(3 * unit) * (1 + 2e-7 * np.sign(draws[..., 0]))  # on it, up to roundings
    assert og.diagnose(exact_trace(problem, draws))["constraint"].level == "fine"


@pytest.mark.parametrize("radius", [1.0, 1000.0])
def test_distance_is_measured_against_the_bend_of_the_set(radius):
    """N(μ, I) near a circle of radius R through μ: draws that ignore it are off by 1, those of O-Langevin by η/R."""
    problem = og.Problem(
        lambda x: -0.5 * ((x[0] - radius) ** 2 + x[1] ** 2), lambda x: (jnp.sum(x**2) - radius**2) / (2 * radius)
    )
    ignoring = independent((32, 200, 2), 1.0) + np.array([radius, 0], np.float32)
    assert og.diagnose(exact_trace(problem, ignoring))["constraint"].level == "bad"
    settings = {"num_warmup": 500, "num_samples": 200, "thinning": 10, "progress": False}
    trace = og.sample(0, problem, ignoring[:, 0], algorithm=og.o_langevin(problem, 0.02), **settings)
    assert og.diagnose(trace)["constraint"].level == "fine", og.diagnose(trace)["constraint"]


def test_a_sampler_that_does_not_know_the_constraint_is_named():
    problem = og.Problem(lambda x: -0.5 * x @ x, KNOWN.problem.equality)
    trace = og.sample(0, problem, STARTS, algorithm=og.langevin(problem, 0.05), num_samples=100, progress=False)
    assert "og.langevin does not use the constraint" in og.diagnose(trace)["constraint"].text


def jumping(height, width=0.0):
    """The sphere with more density on one side, rising at x₀ = 0 at once or over a width."""
    step = lambda t: jnp.where(t > 0, 1.0, 0.0) if width == 0 else jnp.clip(0.5 + t / width, 0.0, 1.0)
    return og.Problem(lambda x: height * step(x[0]), lambda x: jnp.sum(x**2) - 1)


def test_a_jump_of_the_log_density_is_told():
    """Gradients do not see it: O-Langevin samples both sides alike, and the Stein test would agree."""
    problem, starts = jumping(2.0), jax.random.normal(jax.random.key(0), (32, 3))
    settings = {"num_samples": 200, "progress": False}
    algorithm = og.o_langevin(problem, 0.02)
    blind = og.diagnose(og.sample(0, problem, starts, algorithm=algorithm, thinning=20, **settings))
    assert blind["log density"].level == "bad"
    assert "og.chmc" in blind["log density"].text
    assert blind["law along the set"].level == "unknown"
    exact = og.diagnose(
        og.sample(0, problem, starts, algorithm=og.chmc(problem, 0.5, num_integration_steps=4), **settings)
    )
    assert exact["log density"].level == "fine"
    assert exact["law along the set"].level == "unknown"


def test_slopes_and_bends_are_no_jumps():
    sphere = np.asarray(og.problems.von_mises_fisher(3).start_on(jax.random.key(0), 1000))
    assert largest_jump(jumping(2.0), sphere) == pytest.approx(2.0, rel=1e-5)
    assert largest_jump(jumping(0.05), sphere) == 0  # too small to matter
    assert largest_jump(jumping(2.0, width=0.01), sphere) == 0  # steep, but its gradient tells
    bent = og.Problem(lambda x: -20 * jnp.sum(jnp.abs(x)), lambda x: jnp.sum(x**2) - 1)
    assert largest_jump(bent, sphere) == 0
    outside = og.Problem(
        lambda x: jnp.where(x[0] > 0.5, 5.0, 0.0), lambda x: jnp.sum(x**2) - 1, lambda x: x[0] - 0.5
    )  # no draw of this law is beyond
    assert largest_jump(outside, sphere[sphere[:, 0] < 0.5]) == 0


def test_a_chain_that_stands_still_is_told():
    trace = exact_trace()
    x = trace["x"].copy()
    x[7] = x[7, :1]
    finding = og.diagnose(dataclasses.replace(trace, position=x))["movement"]
    assert finding.level == "bad"
    assert "1 of 32 chains hardly move (chain 7" in finding.text


@pytest.mark.parametrize("chains", [4, pytest.param(32, marks=pytest.mark.slow)])
def test_repeated_positions_are_no_alarm(chains):
    """Chains that move in one draw out of seven, to an exact draw. Ten runs at level 0.01: three alarms have probability 1e-4."""
    rng = np.random.default_rng(0)
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), lambda x: x[0] - 0.3)
    n, alarms = 32_000 // chains, 0
    for _ in range(10):
        moves = rng.random((chains, n)) < 0.14
        moves[:, 0] = True
        last = np.maximum.accumulate(np.where(moves, np.arange(n), 0), axis=1)
        draws = np.take_along_axis(rng.normal(size=(chains, n, 3)), last[..., None], axis=1).astype(np.float32)
        draws[..., 0] = 0.3
        diagnosis = og.diagnose(exact_trace(problem, draws))
        assert diagnosis["law along the set"].level != "unknown"
        alarms += not diagnosis.ok
    assert alarms < 3
