"""og.posterior: all rows are the hand-written problem, batches stand for all rows, and no draw depends on how data arrive."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from calibrated import discrepancy

import ogradient as og
from ogradient import chunk
from ogradient.mapping import chains_together
from ogradient.start import inspect

N, B = 40, 8
X = jax.random.normal(jax.random.key(0), (N, 3))
Y = X @ jnp.array([1.0, -0.5, 0.2]) + 0.3 * jax.random.normal(jax.random.key(1), (N,))
STARTS = jnp.array([[1.0, 0.2, -0.1], [0.3, -1.0, 0.5], [-0.4, 0.3, 1.2]])
STARTS = STARTS / jnp.sqrt(jnp.mean((STARTS @ X.T) ** 2, axis=1, keepdims=True))  # on the set of all rows
W = jnp.array([-1.0, 1.0, 1.0])  # off it, and far from where the score is 0

SAME_ROWS = pytest.mark.filterwarnings("ignore:the constraint sees")
prior = lambda w: -0.5 * jnp.sum(w**2)
likelihood = lambda w, batch: -0.5 * jnp.sum((batch[1] - batch[0] @ w) ** 2)
size = lambda w, batch: jnp.mean((batch[0] @ w) ** 2) - 1.0  # curved, so that r is at work
below = lambda w, batch: jnp.mean(batch[0] @ w) - 1.0
both = lambda w, batch: (likelihood(w, batch), size(w, batch), below(w, batch))


def make(**changes):
    arguments = {"logprior_fn": prior, "loglikelihood_fn": likelihood, "data": (X, Y), "equality": size} | changes
    return og.posterior(**arguments)


def run(problem, algorithm, starts=STARTS, **changes):
    arguments = {"num_warmup": 0, "num_samples": 20, "progress": False} | changes
    return og.sample(0, problem, starts, algorithm=algorithm, **arguments)


def steps(algorithm, start=STARTS[0], count=6):
    """Positions of one chain, without what og.sample does around it."""

    def step(state, t):
        state, _ = algorithm.step(jax.random.fold_in(jax.random.key(0), t), state)
        return state, state.position

    return np.asarray(jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(count)))(algorithm.init(start))[1])


def numbered(**changes):
    """Rows 0 … N−1 whose sum is the likelihood and whose mean is g: what a step saw is there to read."""
    data, total, mean = jnp.arange(1.0 * N), lambda w, rows: jnp.sum(rows), lambda w, rows: jnp.mean(rows) + w[0]
    return og.posterior(lambda w: 0 * w[0], total, data, equality=mean, **changes)


def seen(problem, num_keys=4000):
    """Mean row of the likelihood's batch and of the constraint's, by step key."""
    zero = jnp.zeros(1)
    look = lambda key: (problem.view(key).logdensity(zero) / N, problem.view(key).equality_value(zero)[0])
    rows, constraint_rows = jax.jit(jax.vmap(look))(jax.random.split(jax.random.key(2), num_keys))
    return np.asarray(rows, float), np.asarray(constraint_rows, float)


def assert_uncorrelated(first, second):
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))


# All rows


ON_ALL_ROWS = {
    "langevin": lambda problem: og.langevin(problem, 0.003),
    "o_langevin": lambda problem: og.o_langevin(problem, 0.003),
    "chmc": lambda problem: og.chmc(problem, 0.1, num_integration_steps=3),
}


@pytest.mark.parametrize("name", ON_ALL_ROWS)
def test_all_rows_are_the_hand_written_problem(name):
    by_hand = og.Problem(lambda w: prior(w) + likelihood(w, (X, Y)), equality=lambda w: size(w, (X, Y)))
    positions = [steps(ON_ALL_ROWS[name](problem)) for problem in (make(), by_hand)]
    assert np.ptp(positions[0], axis=0).min() > 1e-3, "the chain stands still"
    np.testing.assert_allclose(*positions, rtol=1e-4, atol=1e-5)


def test_runs_on_all_rows_are_those_of_the_hand_written_problem():
    by_hand = og.Problem(lambda w: prior(w) + likelihood(w, (X, Y)), equality=lambda w: size(w, (X, Y)))
    traces = [run(problem, og.o_langevin(problem, 0.003)) for problem in (make(), by_hand)]
    np.testing.assert_allclose(*(trace["x"] for trace in traces), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*(trace.sample_stats["equality"] for trace in traces), atol=1e-5)


@pytest.mark.parametrize("sizes", [{}, {"batch_size": N}, {"batch_size": N, "constraint_batch_size": N}])
def test_all_rows_are_no_minibatch(sizes):
    problem = make(**sizes)
    assert not problem.stochastic
    assert problem.view(jax.random.key(0)) is problem


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


def test_data_may_be_any_pytree_with_columns_of_any_numbers():
    data = {"x": np.asarray(X, np.float64), "label": np.arange(N) % 2, "kept": np.ones(N, bool)}
    problem = make(
        data=data,
        loglikelihood_fn=lambda w, rows: jnp.sum(jnp.where(rows["kept"], rows["label"].astype(w.dtype), 0.0)) + w[0],
        equality=lambda w, rows: jnp.mean(rows["x"] @ w) - 0.1,
        batch_size=B,
    )
    assert run(problem, og.langevin(problem, 0.01), num_samples=2)["x"].shape == (3, 2, 3)


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


def test_a_constraint_on_the_likelihood_s_few_rows_is_seldom_meant():
    problem = make(batch_size=B)
    with pytest.warns(og.ConstraintWarning, match=f"sees {B} of {N} .* constraint_batch_size={N}"):
        run(problem, og.o_langevin(problem, 0.001), num_samples=1)
    run(problem, og.langevin(problem, 0.001), num_samples=1)  # does not look at it
    meant = make(batch_size=B, constraint_batch_size=B)
    run(meant, og.o_langevin(meant, 0.001), num_samples=1)


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
    assert text.endswith("Use og.chmc or og.o_langevin.")
    assert "only some rows" not in text
    assert "on all rows" not in text


def test_a_constraint_that_is_nan_on_a_batch_is_not_ok():
    """A mean over the rows that a rule touches is NaN where a batch has none of them."""
    rule = jnp.zeros(N).at[0].set(1.0)
    mean = lambda w, batch: jnp.sum(batch[2] * (batch[0] @ w) ** 2) / jnp.sum(batch[2]) - 1e6
    model = (prior, lambda w, batch: likelihood(w, batch[:2]), (X, Y, rule))
    for kind in ("equality", "inequality"):
        problem = og.posterior(*model, batch_size=B, constraint_batch_size=B, **{kind: mean})
        step = jax.jit(og.o_langevin(problem, 1e-4).step)
        state = og.o_langevin(problem, 1e-4).init(W)
        keys = jax.random.split(jax.random.key(0), 20)
        none = [not bool(jnp.isfinite(problem.view(key).constraint_value(W)[kind][0])) for key in keys]
        found = [int(step(key, state)[1].status) == og.Status.NON_FINITE for key in keys]
        assert found == none
        assert 0 < sum(none) < 20


def test_predictions_on_further_rows():
    problem = make()
    trace = run(problem, og.langevin(problem, 0.003), num_samples=4)
    predicted = trace.apply(lambda w, rows, offset: rows @ w + offset, X[:5], jnp.float32(2))
    np.testing.assert_allclose(predicted, trace["x"] @ np.asarray(X[:5]).T + 2, rtol=1e-4, atol=1e-5)


# Batches


def values_over_keys(problem, num_keys=4000):
    """Log density, its gradient and g by step key, (num_keys, 1 + 3 + 1), and on all rows."""

    def look(problem):
        value, score = jax.value_and_grad(problem.logdensity)(W)
        return jnp.concatenate([value[None], score, problem.equality_value(W)])

    keys = jax.random.split(jax.random.key(3), num_keys)
    by_key = jax.jit(jax.vmap(lambda key: look(problem.view(key))))(keys)
    return np.asarray(by_key, float), np.asarray(jax.jit(look)(make()), float)


def assert_unbiased(problem):
    by_key, whole = values_over_keys(problem)
    for values, truth in zip(by_key.T, whole, strict=True):
        error, limit = discrepancy(values, truth)
        assert limit < 0.2 * abs(truth), "too few keys to see a wrong scale"
        assert error < limit


def test_batches_stand_for_all_rows_on_average():
    assert_unbiased(make(batch_size=B))


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="negative control: a batch counted once is another model")
def test_leaving_out_the_scale_is_seen():
    problem = make(batch_size=B)
    model = dataclasses.replace(problem.data.model, num_rows=B)
    assert_unbiased(dataclasses.replace(problem, data=dataclasses.replace(problem.data, model=model)))


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


def test_batches_do_not_follow_the_noise():
    rows, _ = seen(numbered(batch_size=B))
    keys = jax.random.split(jax.random.key(2), len(rows))
    for noise_key in (keys, jax.vmap(jax.random.split)(keys)[:, 0]):  # as samplers without and with probes draw theirs
        assert_uncorrelated(rows, np.asarray(jax.vmap(lambda key: jax.random.normal(key, ()))(noise_key)))


def test_every_row_is_drawn_as_often_as_any_other():
    problem = numbered(batch_size=1)
    rows, _ = seen(problem)
    counts = np.bincount(np.rint(rows).astype(int), minlength=N)
    chi_squared = np.sum((counts - counts.mean()) ** 2) / counts.mean()
    assert chi_squared < N - 1 + 6 * np.sqrt(2 * (N - 1))


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


@pytest.mark.parametrize("batch_size", [B, None])
def test_more_rows_for_the_constraint(batch_size):
    problem = numbered(batch_size=batch_size, constraint_batch_size=4 * B)
    rows, constraint_rows = seen(problem)
    assert problem.stochastic
    assert np.var(constraint_rows) == pytest.approx(np.var(np.arange(N)) / (4 * B), rel=0.2)
    error, limit = discrepancy(constraint_rows, (N - 1) / 2)
    assert error < limit
    if batch_size is not None:
        assert np.var(rows) == pytest.approx(np.var(np.arange(N)) / B, rel=0.2)
        assert_uncorrelated(rows, constraint_rows)


@SAME_ROWS
def test_traces_keep_the_constraint_of_the_batch_that_the_step_saw():
    problem = make(batch_size=B)
    trace = run(problem, og.o_langevin(problem, 0.001), num_samples=3)
    look = jax.jit(lambda key, position: problem.view(key).equality_value(position))
    for chain, draw in np.ndindex(3, 3):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), chain), draw)
        value = look(key, trace["x"][chain, draw])
        np.testing.assert_allclose(trace.sample_stats["equality"][chain, draw], value, atol=1e-5)


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


@pytest.mark.parametrize("batch_size", [None, B])
def test_rows_are_augmented_by_a_key_of_their_step(batch_size):
    shift = lambda key, rows: rows + 1000 * jax.random.normal(key, ())
    plain, shifted = numbered(batch_size=batch_size), numbered(batch_size=batch_size, augment=shift)
    assert shifted.stochastic
    move = seen(shifted)[0] - (seen(plain)[0] if batch_size else (N - 1) / 2)
    error, limit = discrepancy(move, 0.0)
    assert error < limit
    assert np.std(move) == pytest.approx(1000, rel=0.1)
    np.testing.assert_array_equal(*(seen(shifted, 5)[0] for _ in range(2)))
    assert (
        float(shifted.equality_value(jnp.zeros(1))[0]) == (N - 1) / 2
    )  # what is reported on all rows is not augmented


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


# Batches from a function


def fetch(step):
    rows = np.random.default_rng(step).integers(0, N, B)
    return np.asarray(X)[rows], np.asarray(Y)[rows]


def fed(batch_fn=fetch, **changes):
    return make(**{"data": batch_fn, "num_rows": N} | changes)


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


KINDS = {"batch_fn": lambda **changes: fed(**changes), "minibatches": lambda **changes: make(batch_size=B, **changes)}


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


def test_runs_longer_than_what_is_fetched_together(monkeypatch):
    problem = fed()
    whole = run(problem, og.langevin(problem, 0.003))
    monkeypatch.setattr("ogradient.problem.feed.FEED_STEPS", 3)
    np.testing.assert_array_equal(run(problem, og.langevin(problem, 0.003))["x"], whole["x"])
    monkeypatch.setattr("ogradient.problem.feed.FEED_BYTES", 1)
    np.testing.assert_array_equal(run(problem, og.langevin(problem, 0.003))["x"], whole["x"])


def recorded():
    """A problem fed by a function, and the list of the steps that it was called for."""
    calls = []
    problem = fed(lambda step: (calls.append(step), fetch(step))[1])
    calls.clear()  # its construction looks at batch 0
    return problem, calls


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_no_batch_is_made_but_for_the_steps_of_the_run(chunk_size):
    problem, calls = recorded()
    algorithm = og.langevin(problem, 0.003)
    part = run(problem, algorithm, num_warmup=5, num_samples=40, thinning=2, chunk_size=chunk_size)
    assert set(calls) == set(range(85))
    calls.clear()
    run(problem, algorithm, None, num_samples=3, thinning=2, resume=part, chunk_size=chunk_size)
    assert set(calls) == set(range(85, 91))


@pytest.mark.parametrize("case", ["as it is", "short chunks", "large draws"])
def test_every_batch_is_made_once(case, monkeypatch):
    problem, calls = recorded()
    if case == "large draws":  # of which only a few fit into the buffer of a chunk
        monkeypatch.setattr("ogradient.chunk.CHUNK_BYTES", 200)
    run(problem, og.langevin(problem, 0.003), num_samples=80, chunk_size=3 if case == "short chunks" else None)
    assert sorted(calls) == list(range(80))


@pytest.mark.parametrize("step", [2, 100])  # in the first lot, and in one fetched ahead
def test_an_error_inside_batch_fn_reaches_the_user(step):
    def failing(t):
        if t == step:
            raise OSError(f"disk gone at {t}")
        return fetch(t)

    problem = fed(failing)
    with pytest.raises(og.SamplingError, match=f"disk gone at {step}"):
        run(problem, og.langevin(problem, 0.003), num_samples=200)


@pytest.mark.parametrize(
    "other",
    [lambda x, y: (x[:-1], y[:-1]), lambda x, y: (x, y.astype(int)), lambda x, y: {"x": x, "y": y}],
    ids=["rows", "dtype", "structure"],
)
def test_batches_must_look_alike(other):
    problem = fed(lambda t: other(*fetch(t)) if t == 5 else fetch(t))
    with pytest.raises(
        og.SamplingError, match=r"batch_fn\(5\) differs in structure, shape or dtype from batch_fn\(0\)"
    ):
        run(problem, og.langevin(problem, 0.003))


def test_a_step_on_batches_of_a_function_needs_its_batch():
    problem = fed()
    algorithm = og.langevin(problem, 0.003)
    with pytest.raises(ValueError, match=r"brought by og.sample.*og.with_batch\(problem, batch_fn\(t\)\)"):
        algorithm.step(jax.random.key(0), algorithm.init(W))


def test_a_step_on_minibatches_needs_a_key():
    problem = make(batch_size=B)
    algorithm = og.svgd(problem, 0.1)
    with pytest.raises(ValueError, match="a step on minibatches needs a random key"):
        algorithm.step(None, algorithm.init(STARTS))


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_the_same_model_over_other_rows(kind):
    data = kind(X[:30]), kind(Y[:30])
    problem, expected = og.with_batch(make(batch_size=B), data), make(data=data, batch_size=B)
    view, wanted = (jax.jit(jax.vmap(lambda key, p=p: p.view(key).logdensity(W))) for p in (problem, expected))
    keys = jax.random.split(jax.random.key(8), 3)
    np.testing.assert_allclose(view(keys), wanted(keys), rtol=1e-6)


def test_all_rows_for_the_constraint_stay_all_rows_when_there_are_more():
    problem = og.with_batch(numbered(batch_size=B, constraint_batch_size=N), jnp.arange(2.0 * N))
    _, constraint_rows = seen(problem, 5)
    np.testing.assert_allclose(constraint_rows, (2 * N - 1) / 2)


def test_resuming_refuses_other_data():
    make_with = lambda rows, **sizes: make(data=(X[:rows], Y[:rows]), **sizes)
    problem = make_with(N)
    trace = run(problem, og.langevin(problem, 0.001), num_samples=2)
    changed = make(data=(X, Y.at[3].add(1.0)))
    for other in (make_with(N - 1), make_with(N, batch_size=B), changed):
        with pytest.raises(ValueError, match="resume continues a run on the data .*'rows': 40"):
            run(other, og.langevin(other, 0.001), None, resume=trace)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((X[:20], Y[:30]), "same, positive number of rows"),
        ((X.at[2, 1].set(jnp.nan), Y), "has NaN or infinite values in 1 of 40 rows"),
        ({"X": X, "y": Y}, r"must be of the structure of the problem's data, \[0\]\[40, 3\], \[1\]\[40\]; got \['X'\]"),
        ((X[:, :2], Y), r"must be of the structure .*; got \[0\]\[40, 2\]"),
        ((X[:0], Y[:0]), "same, positive number of rows"),
        ((), "data has no arrays"),
    ],
)
def test_a_batch_must_be_one_of_the_problem(batch, message):
    with pytest.raises(ValueError, match=message):
        og.with_batch(make(), batch)


def test_errors_in_users_functions_say_what_they_were_given():
    for changes, note in (
        (
            {"loglikelihood_fn": lambda w, batch: batch[0] @ jnp.ones(7)},
            r"loglikelihood_fn\(position, batch\) with batch \[0\]",
        ),
        ({"equality": lambda w: w}, r"equality\(position, batch\) with batch .* one position \(one chain\) \[3\]"),
        ({"logprior_fn": lambda w: w @ jnp.ones(7)}, r"logprior_fn\(position\) with one position \(one chain\) \[3\]"),
    ):
        with pytest.raises(TypeError) as caught:
            make(**changes).check(W)
        assert any(re.search(note, line) for line in caught.value.__notes__)


@pytest.mark.parametrize("judge", [og.land, og.orthogonal_ksd, og.constraint_violation])
def test_nothing_is_judged_by_the_first_batch_alone(judge):
    with pytest.raises(ValueError, match=r"the data come batch by batch, .* pass og.with_batch"):
        judge(fed(), STARTS)
    judge(og.with_batch(fed(), (X, Y)), STARTS)


def test_problems_and_traces_say_what_steps_see():
    assert repr(make()) == "<posterior over 40 rows with equality, conditional measure>"
    few = make(batch_size=B, constraint_batch_size=N)
    assert (
        repr(few) == "<posterior over 40 rows, 8 in each step, 40 for constraints with equality, conditional measure>"
    )
    assert "over 40 rows, 8 from batch_fn in each step with equality" in repr(fed())
    assert repr(og.Problem(prior, inequality=[prior])) == "<Problem with inequality, conditional measure>"
    assert "on its batch" not in repr(run(few, og.o_langevin(few, 0.001), num_samples=1))
    streamed = fed()
    assert "on its batch" in repr(run(streamed, og.o_langevin(streamed, 0.001), num_samples=1))


def test_with_batch_is_for_posteriors():
    with pytest.raises(ValueError, match="with_batch is for problems of og.posterior; this one has no data"):
        og.with_batch(og.Problem(prior), (X, Y))


# At the door


@pytest.mark.parametrize("name", ["batch_size", "constraint_batch_size"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (N + 1, "must be at most the number of rows, 40; got 41. None takes all rows"),
        (0, "must be a positive whole number"),
        (-3, "must be a positive whole number"),
        (2.5, "must be a positive whole number"),
        (True, "must be a positive whole number"),
        ("8", "must be a positive whole number"),
    ],
)
def test_bad_batch_sizes(name, value, message):
    with pytest.raises(ValueError, match=f"^{name} {message}"):
        make(**{name: value})


def with_hole():
    rows = np.array(X)
    rows[[7, 9], 1] = np.nan, np.inf
    return rows, Y


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data is missing: give a pytree of arrays"),
        ((X, Y[:-1]), r"same, positive number of rows \(first axis\); got data\[0\] 40, data\[1\] 39"),
        ((X[:0], Y[:0]), r"positive number of rows \(first axis\); got data\[0\] 0"),
        ((), "data has no arrays"),
        ((X, 1.0), r"data\[1\] is a single float; every leaf of data needs the rows as its first axis"),
        ([[1.0, 2.0], [3.0, 4.0]], "data is a list of numbers: pass np.asarray"),
        ({"X": X, "s": None}, r"data\['s'\] is None"),
        ((X for _ in range(2)), r"data is a generator; give arrays .*, or a batch_fn"),
        (
            {"X": scipy.sparse.csr_matrix(np.asarray(X))},
            r"data\['X'\] is a sparse csr_matrix: pass data\['X'\].toarray",
        ),
        (pd.DataFrame({"y": Y}), r"data is a DataFrame: pass its columns as arrays"),
        ((np.ma.masked_less(np.asarray(Y), 0),), r"data\[0\] is a masked array"),
        ((np.array([1, 3_000_000_000]),), r"data\[0\] has values too large for int32; pass floats"),
        (
            (np.array([1.0, 1e39]),),
            r"data\[0\] has NaN or infinite values in float32 in 1 of 2 rows \(the first is row 1\)",
        ),
        ((np.ones(2, np.longdouble),), r"data\[0\] has dtype float128; encode"),
        (with_hole(), r"data\[0\] has NaN or infinite values in 2 of 40 rows \(the first is row 7\): drop or impute"),
        ({"city": np.array(["Köln", "Bonn"])}, r"data\['city'\] has dtype <U4; encode it as numbers first"),
        ((np.array([1.0, None]),), r"data\[0\] has dtype object; encode"),
        ((np.array(["2020-01-01"], "datetime64[D]"),), "has dtype datetime64.*; encode"),
    ],
)
def test_bad_data(data, message):
    with pytest.raises(ValueError, match=message):
        make(data=data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loglikelihood_fn": None}, "give loglikelihood_fn, or joint_fn in its place; not both, and not neither"),
        ({"joint_fn": both}, "not both, and not neither"),
        ({"loglikelihood_fn": None, "joint_fn": both}, "leave out equality, inequality and constraint_batch_size"),
        (
            {"loglikelihood_fn": None, "joint_fn": both, "equality": None, "constraint_batch_size": N},
            "leave out equality, inequality and constraint_batch_size",
        ),
        (
            {"loglikelihood_fn": None, "joint_fn": both, "equality": None, "joint_kinds": ("inequality", "equality")},
            "joint_kinds must be .* or both in that order; got",
        ),
        ({"logprior_fn": 1.0}, "logprior_fn must be a function of a position; got float"),
        ({"loglikelihood_fn": Y}, "loglikelihood_fn must be a function; got"),
        ({"augment": "flip"}, "augment must be a function; got str"),
        ({"equality": "size"}, "equality must be a function, or a list of functions"),
        ({"measure": "area"}, "measure must be 'conditional' or 'hausdorff'"),
        ({"num_rows": N + 1}, "num_rows is 41 but the data have 40 rows; leave it out"),
        ({"data": fetch}, "num_rows must be a positive whole number .*batch_fn draws from.*; got None"),
        ({"data": fetch, "num_rows": 0}, "num_rows must be a positive whole number"),
        ({"data": fetch, "num_rows": N, "batch_size": 4}, "batch_size is for data in memory"),
        ({"data": fetch, "num_rows": N, "constraint_batch_size": 4}, "constraint_batch_size is for data in memory"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"loglikelihood_fn": lambda w, batch: batch[1] - batch[0] @ w},
            r"loglikelihood_fn must return a scalar for one position; got shape \(8,\)",
        ),
        ({"logprior_fn": lambda w: w}, r"logprior_fn must return a scalar for one position; got shape \(3,\)"),
        (
            {"loglikelihood_fn": None, "equality": None, "joint_fn": lambda w, batch: (w, w[0])},
            "the first value of joint_fn must return a scalar",
        ),
        ({"equality": lambda w, batch: "none"}, "equality must return a scalar or an array"),
    ],
)
def test_what_functions_return_is_refused_under_their_own_name(changes, message):
    problem = make(batch_size=B, **changes)
    with pytest.raises(ValueError, match=message):
        run(problem, og.langevin(problem, 0.01))


@pytest.mark.parametrize("name", ["chmc", "clangevin"])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_samplers_refuse_minibatches_with_the_remedy(name, kind):
    with pytest.raises(ValueError, match=f"{name}.*og.o_langevin"):
        og.SAMPLERS[name](KINDS[kind](), 0.1)


@pytest.mark.parametrize("name", [None, "chmc", "clangevin", "o_langevin"])
def test_tuning_refuses_minibatches_with_the_remedy(name):
    with pytest.raises(
        ValueError,
        match=r"with minibatches give them: algorithm=og.o_langevin\(problem, step_size, alpha=.*constraint_batch_size=N",
    ):
        og.sample(0, make(batch_size=B), STARTS, algorithm=name, progress=False)


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
    calls = []

    def counted(w, batch):
        calls.append(1)
        return likelihood(w, batch)

    problem = KINDS[kind](loglikelihood_fn=counted)
    algorithm = og.langevin(problem, 0.003)
    first = run(problem, algorithm)
    compiled, traced = [f._cache_size() for f in (chunk.run_chunk, inspect._inspect_all)], len(calls)
    run(problem, algorithm, STARTS + 0.1, num_samples=7, num_warmup=2, thinning=2, chunk_size=3)
    run(problem, algorithm, None, num_samples=7, resume=first)
    assert [f._cache_size() for f in (chunk.run_chunk, inspect._inspect_all)] == compiled
    assert len(calls) < 2 * traced  # two runs more: only shapes were looked at, without compiling


def one_at_a_time(monkeypatch, draw):
    """What is drawn from minibatches with all chains or particles together, and one after the other."""
    yield draw(make(batch_size=B))
    monkeypatch.setattr("ogradient.mapping.LARGE_BATCH", 0)
    jax.clear_caches()  # nothing compiled before may answer
    problem = make(batch_size=B)
    assert chains_together(problem) == 1
    yield draw(problem)


@SAME_ROWS
def test_chains_one_at_a_time_draw_as_together(monkeypatch):
    draw = lambda problem: run(problem, og.o_langevin(problem, 0.001), num_samples=5)
    together, apart = one_at_a_time(monkeypatch, draw)
    np.testing.assert_allclose(apart["x"], together["x"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*(t.sample_stats["equality"] for t in (apart, together)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", [og.svgd, og.o_svgd, og.control_langevin])
def test_particles_one_at_a_time_move_as_together(sampler, monkeypatch):
    together, apart = one_at_a_time(monkeypatch, lambda problem: steps(sampler(problem, 0.001), STARTS))
    assert np.ptp(together, axis=0).min() > 1e-4, "a particle stands still"
    np.testing.assert_allclose(apart, together, rtol=1e-4, atol=1e-5)


def test_what_counts_as_large_is_the_batch_and_not_the_data():
    rows = jnp.zeros((4000, 100)), jnp.zeros(4000)
    assert chains_together(make(data=rows)) == 1
    assert chains_together(make(data=rows, batch_size=10)) is None
    assert chains_together(og.Problem(prior)) is None


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
    state, _ = second.step(
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
