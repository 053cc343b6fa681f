"""Minibatches of og.posterior: decided by the key of their step, for the likelihood and the constraint, plain or augmented."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regressions import (
    SAME_ROWS,
    STARTS,
    B,
    N,
    W,
    X,
    Y,
    below,
    both,
    likelihood,
    make,
    numbered,
    prior,
    run,
    seen,
    size,
    steps,
)

import ogradient as og
from ogradient.mapping import chains_together
from ogradient.start.inspect import check_start


def test_a_view_is_decided_by_its_key():
    problem = make(batch_size=B, constraint_batch_size=2 * B)
    look = jax.jit(lambda key: jnp.append(problem.view(key).equality_value(W), problem.view(key).logdensity(W)))
    first, again, other = (look(jax.random.key(k)) for k in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.asarray(first) != np.asarray(other))


def test_batches_leave_the_noise_alone():
    """The step of a batch differs from that of all rows by the drift alone."""
    whole, part, eta, key = make(), make(batch_size=B), 0.01, jax.random.key(6)
    algorithms = [og.langevin(p, eta) for p in (whole, part)]
    moved = [jax.jit(a.step)(key, a.init(W))[0].position for a in algorithms]
    drift = eta * (jax.jit(jax.grad(part.view(key).logdensity))(W) - jax.jit(jax.grad(whole.logdensity))(W))
    assert np.abs(drift).min() > 0.01
    np.testing.assert_allclose(moved[1] - moved[0], drift, atol=1e-6)


def test_constraints_see_the_batch_of_the_likelihood_unless_told():
    rows, constraint_rows = seen(numbered(batch_size=B), 50)
    np.testing.assert_allclose(rows, constraint_rows, rtol=1e-5)


def test_all_rows_for_the_constraint_alone():
    problem = numbered(batch_size=B, constraint_batch_size=N)
    rows, constraint_rows = seen(problem)
    np.testing.assert_allclose(constraint_rows, (N - 1) / 2)
    assert rows.std() > 1
    problem = make(batch_size=B, constraint_batch_size=N)
    trace = run(problem, og.o_langevin(problem, 0.001))
    np.testing.assert_allclose(trace.sample_stats["equality"], trace.apply(lambda w: size(w, (X, Y))[None]), atol=1e-5)


def test_all_rows_for_the_constraint_stay_all_rows_when_there_are_more():
    problem = og.with_batch(numbered(batch_size=B, constraint_batch_size=N), jnp.arange(2.0 * N))
    _, constraint_rows = seen(problem, 5)
    np.testing.assert_allclose(constraint_rows, (2 * N - 1) / 2)


@SAME_ROWS
@pytest.mark.parametrize(("sampler", "step_size"), [(og.o_langevin, 0.001), (og.o_kinetic, 0.04)])
def test_traces_keep_the_constraint_of_the_batch_that_the_step_saw(sampler, step_size):
    problem = make(batch_size=B)
    trace = run(problem, sampler(problem, step_size), num_samples=3)
    look = jax.jit(lambda key, position: problem.view(key).equality_value(position))
    for chain, draw in np.ndindex(3, 3):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), chain), draw)
        value = look(key, trace["x"][chain, draw])
        np.testing.assert_allclose(trace.sample_stats["equality"][chain, draw], value, atol=1e-5)


def test_a_step_on_minibatches_needs_a_key():
    problem = make(batch_size=B)
    algorithm = og.svgd(problem, 0.1)
    with pytest.raises(ValueError, match="a step on minibatches needs a random key"):
        algorithm.step(None, algorithm.init(STARTS))


@pytest.mark.parametrize(("sampler", "step_size"), [(og.o_langevin, 1e-4), (og.o_kinetic, 0.014)])
def test_a_constraint_that_is_nan_on_a_batch_is_not_ok(sampler, step_size):
    """A mean over the rows that a rule touches is NaN where a batch has none of them."""
    rule = jnp.zeros(N).at[0].set(1.0)
    mean = lambda w, batch: jnp.sum(batch[2] * (batch[0] @ w) ** 2) / jnp.sum(batch[2]) - 1e6
    model = (prior, lambda w, batch: likelihood(w, batch[:2]), (X, Y, rule))
    for kind in ("equality", "inequality"):
        problem = og.posterior(*model, batch_size=B, constraint_batch_size=B, **{kind: mean})
        algorithm = sampler(problem, step_size)
        step, state = jax.jit(algorithm.step), algorithm.init(W)
        keys = jax.random.split(jax.random.key(0), 20)
        none = [not bool(jnp.isfinite(problem.view(key).constraint_value(W)[kind][0])) for key in keys]
        found = [int(step(key, state)[1].status) == og.Status.NON_FINITE for key in keys]
        assert found == none
        assert 0 < sum(none) < 20


def test_a_constraint_on_the_likelihood_s_few_rows_is_seldom_meant():
    problem = make(batch_size=B)
    with pytest.warns(og.ConstraintWarning, match=f"sees {B} of {N} .* constraint_batch_size={N}"):
        run(problem, og.o_langevin(problem, 0.001), num_samples=1)
    settings = {"step_size": 0.001, "alpha": 1000.0, "beta": 0.0}
    check_start(problem, STARTS, settings, constrained=False)  # a sampler that does not look at it
    check_start(make(batch_size=B, constraint_batch_size=B), STARTS, settings, constrained=True)  # it is meant


# One function for all


@pytest.mark.parametrize(
    ("kinds", "joint"),
    [
        (("equality",), lambda w, batch: both(w, batch)[:2]),
        (("inequality",), lambda w, batch: [both(w, batch)[0], both(w, batch)[2]]),
        (("equality", "inequality"), both),
    ],
    ids=["equality", "inequality", "both"],
)
def test_a_joint_function_draws_as_separate_ones_do(kinds, joint):
    functions = {kind: {"equality": size, "inequality": below}[kind] for kind in kinds}
    separate = og.posterior(prior, likelihood, (X, Y), batch_size=B, **functions)
    together = og.posterior(prior, data=(X, Y), joint_fn=joint, joint_kinds=kinds, batch_size=B)
    positions = [steps(og.o_langevin(p, 0.001)) for p in (separate, together)]
    np.testing.assert_allclose(*positions, rtol=1e-4, atol=1e-5)
    assert set(together.constraint_value(W)) == set(kinds)
    assert (separate.stochastic, together.stochastic) == (True, True)


@pytest.mark.parametrize(
    ("joint", "count"), [(likelihood, 1), (lambda w, batch: both(w, batch), 3), (lambda w, batch: (1.0,), 1)]
)
def test_a_joint_function_must_return_what_its_kinds_say(joint, count):
    problem = og.posterior(prior, data=(X, Y), joint_fn=joint)
    message = rf"joint_fn must return \(loglikelihood, equality\), as joint_kinds says; got {count} values"
    with pytest.raises(ValueError, match=message):
        run(problem, og.langevin(problem, 0.01))


def test_nothing_may_follow_what_a_joint_function_returns():
    problem = og.posterior(prior, data=(X, Y), joint_fn=lambda w, batch: (*both(w, batch)[:2], None))
    assert run(problem, og.langevin(problem, 0.001), num_samples=1).num_draws == 1


# Augmented rows


def test_augmenting_may_change_the_shape_of_a_batch():
    doubled = lambda key, batch: jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), batch)
    problem = make(batch_size=B, augment=doubled)
    keys = jax.random.split(jax.random.key(7), 20)
    look = lambda key: jnp.stack([p.view(key).logdensity(W) for p in (make(batch_size=B), problem)])
    values = jax.jit(jax.vmap(look))(keys)
    np.testing.assert_allclose(values[:, 1], values[:, 0], rtol=1e-5)  # N/B counts the rows that the likelihood sums


@pytest.mark.parametrize("augment", [lambda key, batch: {"X": batch[0]}, lambda key, batch: (batch[0] > 0, batch[1])])
def test_augmenting_must_not_convert(augment):
    problem = make(batch_size=B, augment=augment)
    with pytest.raises(ValueError, match="augment must return rows of the same structure, shapes and dtypes"):
        problem.check(W)


# One at a time


def one_at_a_time(monkeypatch, draw):
    """What is drawn from minibatches with all chains or particles together, and one after the other."""
    yield draw(make(batch_size=B))
    monkeypatch.setattr("ogradient.mapping.LARGE_BATCH", 0)
    jax.clear_caches()  # nothing compiled before may answer
    problem = make(batch_size=B)
    assert chains_together(problem, STARTS) == 1
    yield draw(problem)


@SAME_ROWS
def test_chains_one_at_a_time_draw_as_together(monkeypatch):
    draw = lambda problem: run(problem, og.o_langevin(problem, 0.001), num_samples=5)
    together, apart = one_at_a_time(monkeypatch, draw)
    np.testing.assert_allclose(apart["x"], together["x"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*(t.sample_stats["equality"] for t in (apart, together)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", [pytest.param(og.svgd, marks=pytest.mark.slow), og.o_svgd, og.control_langevin])
def test_particles_one_at_a_time_move_as_together(sampler, monkeypatch):
    together, apart = one_at_a_time(monkeypatch, lambda problem: steps(sampler(problem, 0.001), STARTS))
    assert np.ptp(together, axis=0).min() > 1e-4, "a particle stands still"
    np.testing.assert_allclose(apart, together, rtol=1e-4, atol=1e-5)


def test_what_counts_as_large_is_the_batch_and_not_the_data():
    rows = jnp.zeros((4000, 100)), jnp.zeros(4000)
    assert chains_together(make(data=rows), STARTS) == 1
    assert chains_together(make(data=rows, batch_size=10), STARTS) is None
    assert chains_together(og.Problem(prior), STARTS) is None
    assert chains_together(og.Problem(prior), jnp.zeros((2, 2**20))) == 1


# Schedules


def test_power_decay_is_what_it_says():
    schedule = og.power_decay(0.2, 0.5)
    np.testing.assert_allclose([schedule(t) for t in (0, 3, 99)], [0.2, 0.1, 0.02], rtol=1e-6)
    np.testing.assert_allclose(og.power_decay(1.0)(99), 100**-0.55, rtol=1e-6)
    np.testing.assert_allclose(og.power_decay(0.3, 0)(1000), 0.3, rtol=1e-6)


def test_power_decay_sets_the_steps_of_a_run():
    problem = make(batch_size=B)
    trace = run(problem, og.langevin(problem, og.power_decay(0.01, 0.5)), num_samples=2)
    assert trace.provenance["settings"]["step_size"].startswith("schedule 0.01, ")
    second = og.langevin(problem, 0.01 / np.sqrt(2))
    state, _ = jax.jit(second.step)(
        jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 1), second.init(jnp.asarray(trace["x"][0, 0]))
    )
    np.testing.assert_allclose(trace["x"][0, 1], state.position, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0,), "initial must be one finite, positive number"),
        ((np.inf,), "initial must be one finite, positive number"),
        ((0.1, -0.1), r"exponent must lie in \[0, 1\]"),
        ((0.1, 1.5), "or the chain stops short of its law; got 1.5"),
    ],
)
def test_bad_decays(arguments, message):
    with pytest.raises(ValueError, match=message):
        og.power_decay(*arguments)
