"""A sampler and a diagnostic made by the recipe in CONTRIBUTING.md: one file (here, this one) and one row each."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import ogradient as og
from ogradient.cli import app
from ogradient.diagnostics import Diagnostic
from ogradient.samplers.base import ChainInfo, ChainState, Sampler, init, keep_finite, make_algorithm, step_size_at

KNOWN = og.problems.ellipse()


@dataclass(frozen=True)
class Walk:
    """A random walk that is brought back to the set by one Newton step. Parameters: step_size."""

    name: ClassVar[str] = "walk"
    ensemble: ClassVar[bool] = False
    obeys: ClassVar[str] = "near"
    steered: ClassVar[bool] = False

    def init(self, position):
        return init(position)

    def step(self, rng_key, state, problem, parameters):
        view = problem.view(rng_key)
        x, logdensity, constraint, unravel = view.flatten(state.position)
        proposal = x + step_size_at(None, parameters, state.iteration, x.dtype) * jax.random.normal(rng_key, x.shape)
        proposal = proposal + og.geometry.landing(og.geometry.frame_at(constraint, proposal), alpha=1.0)
        x, status = keep_finite(proposal, x, logdensity(x))
        return ChainState(unravel(x), state.iteration + 1), ChainInfo(view.constraint_value(unravel(x)), status)


def walk(problem, step_size):
    """A walk along the set that knows nothing of the log density."""
    return make_algorithm(Walk(), problem, {"step_size": step_size}, {"step_size": step_size})


def mean_gap(draws, exact):
    """The largest difference between means."""
    return float(np.abs(np.mean(draws, axis=0) - np.mean(exact, axis=0)).max())


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setitem(og.SAMPLERS, "walk", Sampler(walk, Walk, step_size=0.1))
    monkeypatch.setitem(
        og.DIAGNOSTICS, "mean_gap", Diagnostic(mean_gap, lambda _, draws, exact: mean_gap(draws, exact))
    )


def test_a_row_is_all_that_the_rest_needs(rows, tmp_path):
    listed = CliRunner().invoke(app, ["list"]).output
    assert "A walk along the set" in listed
    assert "The largest difference between means" in listed
    starts = KNOWN.start_off(jax.random.key(0), 8)
    settings = {"num_warmup": 50, "num_samples": 100, "progress": False}
    trace = og.sample(0, KNOWN.problem, starts, algorithm=og.SAMPLERS["walk"](KNOWN.problem, 0.1), **settings)
    assert np.abs(trace.sample_stats["equality"]).mean() < 0.05
    assert trace.obeys == "near"
    more = og.sample(0, KNOWN.problem, resume=og.load(trace.save(tmp_path / "walk")), num_samples=10, progress=False)
    assert more.num_draws == 110  # the algorithm was made again from its row
    assert og.DIAGNOSTICS["mean_gap"].off(KNOWN.problem, jnp.ones((3, 2)), jnp.zeros((3, 2))) == 1
