"""diagnose says the right words for good and for bad traces."""

import jax
import numpy as np
import pytest

import ogradient as og

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


def test_statuses_are_told():
    problem = og.Problem(KNOWN.problem.logdensity_fn, [KNOWN.problem.equality] * 2)
    with pytest.warns(og.ConstraintWarning):
        trace = og.sample(0, problem, STARTS, algorithm=og.o_langevin(problem, 0.02), num_samples=50, progress=False)
    finding = og.diagnose(trace)["status"]
    assert finding.level == "doubtful"
    assert "RANK_DEFICIENT" in finding.text


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
