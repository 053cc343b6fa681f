"""States that are large have no second copy: a chunk computes in their memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient import chunk
from ogradient.run import placement

PROBLEM = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: jnp.sum(x**2) - 1)
ALGORITHM = og.o_langevin(PROBLEM, 0.01)
STARTS = jax.random.normal(jax.random.key(0), (3, 4))


def run(starts=None, **options):
    options = {"num_warmup": 3, "num_samples": 10, "progress": False, "algorithm": ALGORITHM} | options
    return og.sample(0, PROBLEM, starts, **options)


@pytest.fixture
def in_place(monkeypatch):
    monkeypatch.setattr(chunk, "IN_PLACE_BYTES", 0)


def test_draws_are_the_same_and_the_users_arrays_stay(in_place, monkeypatch):
    starts = STARTS + 0.0
    part = run(starts, num_samples=6, chunk_size=2)
    assert not starts.is_deleted()
    state = jax.tree.map(np.copy, part.state)
    whole = run(num_samples=4, resume=part)
    jax.tree.map(np.testing.assert_array_equal, part.state, state)
    monkeypatch.undo()
    np.testing.assert_array_equal(whole["x"], run(STARTS)["x"])


def test_the_memory_of_the_states_is_used_again():
    kernel = ALGORITHM.step.kernel
    states = chunk.start(kernel, STARTS)
    parameters, pace = chunk.arguments_of(kernel, ALGORITHM.step.parameters, STARTS)
    counts = [np.int32(1)] * 3
    arguments = (PROBLEM, kernel, 3, parameters, pace, jax.random.key(0), states, np.uint32(0), *counts, None)
    shared = [
        program.lower(*arguments).compile().memory_analysis().alias_size_in_bytes
        for program in (chunk.run_chunk, chunk.run_chunk_in_place)
    ]
    assert shared[0] == 0
    assert shared[1] >= STARTS.nbytes


def test_an_error_inside_a_chunk_keeps_the_draws_and_says_that_the_states_are_gone(in_place, monkeypatch, tmp_path):
    compiled, whole = placement.run_chunk_in_place, run(STARTS)

    def failing(*arguments):
        result = compiled(*arguments)
        if int(arguments[7]) >= 8:  # the first step of the chunk
            raise MemoryError("none left")
        return result

    monkeypatch.setattr(placement, "run_chunk_in_place", failing)
    with pytest.raises(og.SamplingError, match=r"none left. Stopped after step 8; the draws so far are in") as error:
        run(STARTS, chunk_size=4)
    assert "resume" not in str(error.value)
    trace = error.value.trace
    np.testing.assert_array_equal(trace["x"], whole["x"][:, :5])
    monkeypatch.undo()
    loaded = og.load(trace.save(tmp_path / "part.zarr"))
    for part in (trace, loaded):
        with pytest.raises(ValueError, match="no state to go on from.*Start a run from the last draws"):
            run(resume=part)
