"""Whole runs of og.posterior, and what og.diagnose says of them: all rows judge what batches have drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regressions import SAME_ROWS, STARTS, B, N, X, Y, likelihood, make, prior, run, size

import ogradient as og


def test_runs_on_all_rows_are_those_of_the_hand_written_problem():
    by_hand = og.Problem(lambda w: prior(w) + likelihood(w, (X, Y)), equality=lambda w: size(w, (X, Y)))
    traces = [run(problem, og.o_langevin(problem, 0.003)) for problem in (make(), by_hand)]
    np.testing.assert_allclose(*(trace["x"] for trace in traces), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*(trace.sample_stats["equality"] for trace in traces), atol=1e-5)


def test_the_default_sampler_takes_all_rows():
    trace = og.sample(0, make(), STARTS, num_warmup=100, num_samples=100, progress=False)
    assert trace.provenance["algorithm"] == "chmc"
    assert np.abs(trace.sample_stats["equality"]).max() < 1e-5
    assert trace.sample_stats["is_accepted"].mean() > 0.5


@pytest.mark.usefixtures("lenient_promotion")
def test_chains_that_start_at_0_leave_it():
    # There |x| says nothing of how far a first move may go, nor of the roundings of a g that averages rows.
    rng = np.random.default_rng(0)
    group = (rng.random(2000) < 0.6).astype(np.float32)
    rows = rng.normal(size=(2000, 5)).astype(np.float32)
    rows[:, 0] += 0.5 * group  # the other columns may be used
    label = (rows.sum(axis=1) + rng.logistic(size=2000) > 0).astype(np.float32)
    problem = og.posterior(
        lambda w: -0.5 * jnp.sum(w**2),
        lambda w, batch: jnp.sum(batch[1] * (batch[0] @ w) - jax.nn.softplus(batch[0] @ w)),
        (rows, label, group),
        equality=lambda w, batch: jnp.mean((batch[2] - jnp.mean(batch[2])) * jax.nn.sigmoid(batch[0] @ w)),
    )
    trace = og.sample(0, problem, jnp.zeros((4, 5)), num_samples=250, progress=False)
    assert np.abs(trace["x"]).mean() > 0.1
    assert trace.summary()["r_hat"].max() < 1.1


@SAME_ROWS
def test_violation_and_diagnosis_use_all_rows():
    problem = make(batch_size=B)
    trace = run(problem, og.o_langevin(problem, 0.001))
    violation = og.constraint_violation(problem, trace.pooled)["equality"]
    values = np.abs([float(size(w, (X, Y))) for w in trace.pooled])
    np.testing.assert_allclose(violation["mean"], [values.mean()], rtol=1e-4)
    np.testing.assert_allclose(violation["max"], [values.max()], rtol=1e-4)
    diagnosis = og.diagnose(trace)
    assert "all 60 steps went well" in diagnosis["status"].text
    assert f"on all rows mean |g| {values.mean():.2g}" in diagnosis["constraint"].text
    assert "from the set" in diagnosis["constraint"].text


def band(w, batch):
    return jnp.abs(size(w, batch)) - 0.01


def test_an_inequality_is_judged_on_all_rows():
    """On the rows of its step a draw may be inside where it is not on all of them."""
    problem = make(batch_size=B, constraint_batch_size=B, equality=None, inequality=band)
    trace = run(problem, og.o_langevin(problem, 0.001), num_samples=50)
    outside = np.mean([float(band(w, (X, Y))) > 0 for w in trace.pooled])
    text = og.diagnose(trace)["inequality"].text
    assert outside > 0.1
    assert text.startswith(f"{100 * outside:.0f} % of the draws are outside")
    assert "constraint_batch_size=N" in text


def test_a_constraint_on_all_rows_is_not_blamed_on_batches():
    problem = make(batch_size=B, constraint_batch_size=N)
    text = og.diagnose(run(problem, og.langevin(problem, 0.003), num_samples=100))["constraint"].text
    assert text.endswith("Use og.chmc or og.o_kinetic.")
    assert "only some rows" not in text
    assert "on all rows" not in text
