"""Seeds of any size have a run of their own; runs may be longer than 32 bits count."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.keys import as_key, split_step

KNOWN = og.problems.cubic()
PROBLEM = KNOWN.problem
STARTS = KNOWN.start_on(jax.random.key(1), 3)
SCHEDULE = lambda t: 0.01 * (1.0 + t.astype(jnp.float32)) ** -0.01
ALGORITHMS = {
    "o_langevin": og.o_langevin(PROBLEM, SCHEDULE),
    "o_kinetic": og.o_kinetic(PROBLEM, SCHEDULE),
    "chmc": og.chmc(PROBLEM, 0.1, num_integration_steps=2),
    "o_svgd": og.o_svgd(PROBLEM, 0.01),
    # Their states have the last move as well.
    "langevin, momentum": og.langevin(PROBLEM, 1e-4, momentum=0.5),
    "o_langevin, momentum": og.o_langevin(PROBLEM, SCHEDULE, momentum=0.5),
    "o_svgd, momentum": og.o_svgd(PROBLEM, 0.01, momentum=0.5),
}


def bits(seed):
    return tuple(np.asarray(jax.random.key_data(as_key(seed))).tolist())


SEEDS = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**65, 2**128 + 1, 3 * 2**256]


def test_every_seed_has_a_key_of_its_own_whatever_the_precision():
    keys = [bits(seed) for seed in SEEDS]
    assert len(set(keys)) == len(SEEDS)
    with jax.enable_x64(True):
        assert [bits(seed) for seed in SEEDS] == keys


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**31 - 1, 2**31, 2**32 - 1])
def test_small_seeds_are_those_of_jax(seed):
    assert bits(seed) == tuple(np.asarray(jax.random.key_data(jax.random.key(seed))).tolist())
    assert bits(np.uint32(seed)) == bits(seed)


@pytest.mark.parametrize("seed", [-1, np.int64(-(2**31)), True, 1.0, "0", None])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be"):
        og.sample(seed, PROBLEM, STARTS, algorithm=ALGORITHMS["o_langevin"], progress=False)


def test_large_seeds_give_other_runs_and_resume(tmp_path):
    run = lambda seed, **more: og.sample(
        seed, PROBLEM, **{"initial_positions": STARTS, "algorithm": ALGORITHMS["o_langevin"], "num_warmup": 0, "num_samples": 6}
        | {"progress": False} | more
    )  # fmt: skip
    traces = {seed: run(seed) for seed in (0, 2**32, 2**70)}
    for first, second in ((0, 2**32), (0, 2**70), (2**32, 2**70)):
        assert not np.array_equal(traces[first]["x"], traces[second]["x"])
    loaded = og.load(traces[2**70].save(tmp_path / "trace.zarr"))
    assert loaded.provenance["seed"] == 2**70
    np.testing.assert_array_equal(run(2**70, resume=loaded)["x"], run(2**70, num_samples=12)["x"])
    with pytest.raises(ValueError, match="same seed"):
        run(2**32, resume=traces[0])


# Long runs


def late(trace, step):
    """The trace as that of a run that has made `step` steps, most of them in the warm-up."""
    moved = {"num_steps": step, "num_warmup": step - trace.num_draws * trace.provenance["thinning"]}
    return dataclasses.replace(trace, provenance=trace.provenance | moved)


@functools.cache
def advance_by(step):
    """Compiled once for an algorithm."""
    return jax.jit(lambda keys, states: jax.vmap(step)(keys, states)[0])


def expected(algorithm, trace, step, draws):
    """Positions of the steps from `step` on, by the rule for keys, without the runner."""
    key, position = jax.random.key(0), jax.tree.map(lambda leaf: jnp.asarray(leaf[:, -1]), trace.position)
    advance = advance_by(algorithm.step)
    states = jax.tree.unflatten(jax.tree.structure(jax.vmap(algorithm.init)(position)), jax.tree.leaves(trace.state))
    for t in range(step, step + draws):
        high, low = divmod(t, 2**32)
        base = jax.random.fold_in(jax.random.fold_in(key, 2**32 - 2), high) if high else key
        keys = jnp.stack(
            [jax.random.fold_in(jax.random.fold_in(base, c), np.uint32(low)) for c in range(trace.num_chains)]
        )
        states = advance(keys, states)
        yield np.asarray(states.position)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("step", [2**31, 2**32, 5 * 2**32], ids=["2**31", "2**32", "5*2**32"])
def test_steps_past_what_32_bits_count(name, step):
    algorithm, starts = ALGORITHMS[name], STARTS[None] if name.startswith("o_svgd") else STARTS
    first = og.sample(0, PROBLEM, starts, algorithm=algorithm, num_warmup=0, num_samples=2, progress=False)
    begin = late(first, step - 5)
    trace = og.sample(0, PROBLEM, algorithm=algorithm, num_samples=12, resume=begin, chunk_size=7, progress=False)
    assert trace.num_draws == 14
    assert trace.provenance["num_steps"] == step + 7
    for draw, position in enumerate(expected(algorithm, begin, step - 5, 12)):
        np.testing.assert_allclose(trace["x"][:, 2 + draw], position, rtol=2e-4, atol=2e-4)
    values = np.asarray(trace.apply(PROBLEM.equality_value))
    np.testing.assert_allclose(trace.sample_stats["equality"], values, atol=1e-4)
    assert np.unique(trace["x"].reshape(14, -1), axis=0).shape[0] == 14


@pytest.mark.parametrize("chunk_size", [1, 3, 2**40])
def test_chunks_never_change_a_draw_of_a_long_run(chunk_size):
    run = lambda **more: og.sample(0, PROBLEM, algorithm=ALGORITHMS["o_langevin"], progress=False, **more)
    first = run(initial_positions=STARTS, num_warmup=0, num_samples=2, thinning=3)
    begin = late(first, 2**32 - 7)
    whole = run(resume=begin, num_samples=6)
    np.testing.assert_array_equal(run(resume=begin, num_samples=6, chunk_size=chunk_size)["x"], whole["x"])
    part = run(resume=begin, num_samples=4)
    np.testing.assert_array_equal(run(resume=part, num_samples=2)["x"], whole["x"])


def test_the_warm_up_and_the_thinning_may_be_longer_than_32_bits_count():
    first = og.sample(
        0, PROBLEM, STARTS, algorithm=ALGORITHMS["o_langevin"], num_warmup=0, num_samples=1, progress=False
    )
    moved = {"num_warmup": 2**40, "thinning": 2**35, "num_steps": 2**40 + 2**35 * 2 - 3}
    begin = dataclasses.replace(first, provenance=first.provenance | moved)
    trace = og.sample(
        0, PROBLEM, algorithm=ALGORITHMS["o_langevin"], resume=begin, num_samples=1, chunk_size=2, progress=False
    )
    assert (trace.num_draws, trace.provenance["num_steps"]) == (2, 2**40 + 2**35 * 2)
    *_, last = expected(ALGORITHMS["o_langevin"], begin, moved["num_steps"], 3)
    np.testing.assert_allclose(trace["x"][:, 1], last, rtol=1e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_count_that_schedules_look_at_never_turns_negative(name):
    algorithm, starts = ALGORITHMS[name], STARTS[None] if name.startswith("o_svgd") else STARTS
    first = og.sample(0, PROBLEM, starts, algorithm=algorithm, num_warmup=0, num_samples=2, progress=False)
    count = jnp.full_like(jnp.asarray(first.state.iteration), 2**31 - 3)
    begin = dataclasses.replace(late(first, 2**31 - 3), state=first.state._replace(iteration=count))
    trace = og.sample(0, PROBLEM, algorithm=algorithm, num_samples=6, resume=begin, progress=False)
    assert np.all(trace.state.iteration == 2**31 - 1)
    assert np.isfinite(trace["x"]).all()


def test_the_batches_of_a_long_run_are_those_of_its_steps():
    seen, rows = [], np.arange(8, dtype=np.float32)
    batch_fn = lambda step: (seen.append(step), rows + np.float32(step % 7))[1]
    problem = og.posterior(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, x: -0.5 * jnp.sum((x - w[0]) ** 2), batch_fn, num_rows=80
    )
    algorithm = og.langevin(problem, 1e-4)
    first = og.sample(0, problem, jnp.zeros((2, 1)), algorithm=algorithm, num_warmup=0, num_samples=2, progress=False)
    seen.clear()
    trace = og.sample(
        0, problem, algorithm=algorithm, resume=late(first, 2**32 - 3), num_samples=9, chunk_size=4, progress=False
    )
    assert trace.num_draws == 11
    assert seen == list(range(2**32 - 3, 2**32 + 6))


def test_the_first_steps_have_the_key_itself():
    key = jax.random.key(3)
    assert split_step(key, 2**32 - 1)[0] is key
    later = {tuple(jax.random.key_data(split_step(key, epoch * 2**32)[0]).tolist()) for epoch in range(5)}
    assert len(later) == 5
