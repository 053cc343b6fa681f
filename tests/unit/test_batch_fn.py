"""Batches from a function: they enter the steps they are for, and one compilation serves all runs of a model."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regressions import KINDS, SAME_ROWS, STARTS, B, W, X, Y, fed, fetch, likelihood, make, prior, run

import ogradient as og
from ogradient import chunk
from ogradient.start import inspect


def test_batches_of_a_function_enter_the_steps_they_are_for():
    problem, eta = fed(), 0.003
    trace = run(problem, og.langevin(problem, eta), num_samples=4)
    for chain in range(2):
        position = STARTS[chain]
        for t in range(4):
            algorithm = og.langevin(og.with_batch(problem, fetch(t)), eta)
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), chain), t)
            state, info = jax.jit(algorithm.step)(key, algorithm.init(position))
            position = state.position
            np.testing.assert_allclose(trace["x"][chain, t], position, rtol=1e-4, atol=1e-5)
            value = info.constraint_value["equality"]
            np.testing.assert_allclose(trace.sample_stats["equality"][chain, t], value, rtol=1e-4, atol=1e-5)


def test_batches_of_a_function_stand_for_num_rows():
    batch = fetch(3)
    problem = og.with_batch(fed(num_rows=1000), batch)
    expected = prior(W) + 1000 / B * likelihood(W, batch)
    for value in (problem.logdensity(W), problem.view(jax.random.key(0)).logdensity(W)):
        np.testing.assert_allclose(value, expected, rtol=1e-5)


@SAME_ROWS
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_resuming_never_change_a_draw(kind):
    problem = KINDS[kind]()
    algorithm = og.o_langevin(problem, 0.001)
    whole = run(problem, algorithm)
    for chunk_size in (1, 7, 1000):
        trace = run(problem, algorithm, chunk_size=chunk_size)
        np.testing.assert_array_equal(trace["x"], whole["x"])
        np.testing.assert_array_equal(trace.sample_stats["equality"], whole.sample_stats["equality"])
    resumed = run(problem, algorithm, None, num_samples=8, resume=run(problem, algorithm, num_samples=12))
    np.testing.assert_array_equal(resumed["x"], whole["x"])
    np.testing.assert_array_equal(resumed.sample_stats["equality"], whole.sample_stats["equality"])


def test_a_step_on_batches_of_a_function_needs_its_batch():
    problem = fed()
    algorithm = og.langevin(problem, 0.003)
    with pytest.raises(ValueError, match=r"brought by og.sample.*og.with_batch\(problem, batch_fn\(t\)\)"):
        algorithm.step(jax.random.key(0), algorithm.init(W))


@pytest.mark.parametrize("judge", [og.land, og.orthogonal_ksd, og.constraint_violation])
def test_nothing_is_judged_by_the_first_batch_alone(judge):
    with pytest.raises(ValueError, match=r"the data come batch by batch, .* pass og.with_batch"):
        judge(fed(), STARTS)
    judge(og.with_batch(fed(), (X, Y)), STARTS)


# Compiled programs


def test_data_are_arguments_of_compiled_programs_and_not_written_into_them():
    data = jnp.zeros((2000, 50)) + jnp.arange(50.0)[None], jnp.arange(2000.0)
    problem, w = make(data=data), jnp.ones(50)
    program = jax.jit(lambda problem, w: problem.logdensity(w)).lower(problem, w).as_text()
    assert len(program) < 10_000
    assert "2000x50xf32" in program
    assert len(jax.jit(problem.logdensity).lower(w).as_text()) > 100_000, "a constant would have been seen"


@pytest.mark.parametrize("kind", KINDS)
def test_one_compilation_serves_all_runs_of_a_model(kind):
    calls = types.SimpleNamespace(number=0)

    def counted(w, batch):
        calls.number += 1
        return likelihood(w, batch)

    problem = KINDS[kind](loglikelihood_fn=counted)
    algorithm = og.langevin(problem, 0.003)
    first = run(problem, algorithm)
    compiled, traced = [f._cache_size() for f in (chunk.run_chunk, inspect._inspect_all)], calls.number
    run(problem, algorithm, STARTS + 0.1, num_samples=7, num_warmup=2, thinning=2, chunk_size=3)
    run(problem, algorithm, None, num_samples=7, resume=first)
    assert [f._cache_size() for f in (chunk.run_chunk, inspect._inspect_all)] == compiled
    assert calls.number < 2 * traced  # two runs more: only shapes were looked at, without compiling
