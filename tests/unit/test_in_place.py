"""States that are large have no second copy: a chunk computes in their memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import ogradient as og
from ogradient import chunk
from ogradient.packing import Packing
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


def several(p):
    return p["a"].ravel(), p["b"].ravel(), p["c"].ravel()


NESTED = og.Problem(
    lambda p: -0.5 * sum(jnp.sum(v**2) for v in several(p)),
    equality=lambda p: jnp.concatenate(several(p)) @ jnp.ones(8) - 1,
)
MANY = {
    "a": jax.random.normal(jax.random.key(1), (6, 2, 2)),
    "b": jnp.ones((6, 1)),
    "c": jax.random.normal(jax.random.key(2), (6, 3)),
}


@pytest.mark.parametrize(
    "algorithm",
    [
        og.o_langevin(NESTED, 0.01, momentum=0.5),
        og.o_kinetic(NESTED, 0.1),
        og.o_svgd(NESTED, 0.1),
        og.chmc(NESTED, 0.1),
    ],
    ids=lambda algorithm: algorithm.step.kernel.name,
)
def test_positions_of_several_arrays_are_one_array_in_the_loop(algorithm, monkeypatch):
    starts = jax.tree.map(lambda v: jnp.stack([v, 2 * v, -v], axis=1), MANY)
    starts = starts if algorithm.step.kernel.ensemble else MANY
    begin = {"problem": NESTED, "initial_positions": starts, "algorithm": algorithm, "progress": False}
    as_they_are = og.sample(0, **begin, num_warmup=2, num_samples=7, thinning=2)
    monkeypatch.setattr(chunk, "IN_PLACE_BYTES", 0)
    packing = chunk.packing_of(algorithm.step.kernel, chunk.start(algorithm.step.kernel, starts))
    assert packing.pack(starts).shape == (*starts["b"].shape[:-1], 8)
    one_array = og.sample(0, **begin, num_warmup=2, num_samples=7, thinning=2)
    for name, draws in as_they_are.position.items():
        np.testing.assert_allclose(one_array.position[name], draws, rtol=1e-5, atol=1e-6)
    # What is written when it is kept, and what another run goes on from, are the user's arrays.
    again = og.sample(0, **begin, num_warmup=2, num_samples=3, thinning=2)
    again = og.sample(0, NESTED, algorithm=algorithm, num_samples=4, thinning=2, progress=False, resume=again)
    jax.tree.map(np.testing.assert_array_equal, again.position, one_array.position)


def test_one_array_or_several_dtypes_stay_as_they_are():
    assert Packing.of({"x": jnp.ones((2, 3))}, 1) is None
    assert Packing.of({"x": np.ones((2, 3)), "y": np.ones((2, 3), np.float32)}, 1) is None
    packing = Packing.of(MANY, 1)
    flat = jax.vmap(lambda p: ravel_pytree(p)[0])(MANY)
    np.testing.assert_array_equal(packing.pack(MANY), flat)
    jax.tree.map(np.testing.assert_array_equal, packing.unpack(flat), MANY)
