"""og.posterior: all rows are the hand-written problem, and what cannot be meant is refused by name."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from regressions import KINDS, STARTS, B, N, W, X, Y, both, fed, fetch, likelihood, make, prior, run, size, steps

import ogradient as og

ON_ALL_ROWS = {
    "langevin": lambda problem: og.langevin(problem, 0.003),
    "o_langevin": lambda problem: og.o_langevin(problem, 0.003),
    "o_kinetic": lambda problem: og.o_kinetic(problem, 0.08),
    "chmc": lambda problem: og.chmc(problem, 0.1, num_integration_steps=3),
}


@pytest.mark.parametrize("name", ON_ALL_ROWS)
def test_all_rows_are_the_hand_written_problem(name):
    by_hand = og.Problem(lambda w: prior(w) + likelihood(w, (X, Y)), equality=lambda w: size(w, (X, Y)))
    positions = [steps(ON_ALL_ROWS[name](problem)) for problem in (make(), by_hand)]
    assert np.ptp(positions[0], axis=0).min() > 1e-3, "the chain stands still"
    np.testing.assert_allclose(*positions, rtol=1e-4, atol=1e-5)


def test_on_a_level_of_the_loss_the_likelihood_says_nothing():
    loss = lambda w, batch: -likelihood(w, batch) / len(batch[1])
    level = lambda w, batch: loss(w, batch) - 0.6
    ends = []
    for given in (lambda w, batch: -N * loss(w, batch), None):
        problem = make(loglikelihood_fn=given, equality=level)
        assert given is None or float(problem.logdensity(W)) != float(prior(W))
        ends.append(steps(og.o_langevin(problem, 0.003, correction="none")))
    np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [{}, {"batch_size": N}, {"batch_size": N, "constraint_batch_size": N}])
def test_all_rows_are_no_minibatch(sizes):
    problem = make(**sizes)
    assert not problem.stochastic
    assert problem.view(jax.random.key(0)) is problem


def test_data_may_be_any_pytree_with_columns_of_any_numbers():
    data = {"x": np.asarray(X, np.float64), "label": np.arange(N) % 2, "kept": np.ones(N, bool)}
    problem = make(
        data=data,
        loglikelihood_fn=lambda w, rows: jnp.sum(jnp.where(rows["kept"], rows["label"].astype(w.dtype), 0.0)) + w[0],
        equality=lambda w, rows: jnp.mean(rows["x"] @ w) - 0.1,
        batch_size=B,
    )
    assert run(problem, og.langevin(problem, 0.01), num_samples=2)["x"].shape == (3, 2, 3)


def test_predictions_on_further_rows():
    problem = make()
    trace = run(problem, og.langevin(problem, 0.003), num_samples=4)
    predicted = trace.apply(lambda w, rows, offset: rows @ w + offset, X[:5], jnp.float32(2))
    np.testing.assert_allclose(predicted, trace["x"] @ np.asarray(X[:5]).T + 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_the_same_model_over_other_rows(kind):
    data = kind(X[:30]), kind(Y[:30])
    problem, expected = og.with_batch(make(batch_size=B), data), make(data=data, batch_size=B)
    view, wanted = (jax.jit(jax.vmap(lambda key, p=p: p.view(key).logdensity(W))) for p in (problem, expected))
    keys = jax.random.split(jax.random.key(8), 3)
    np.testing.assert_allclose(view(keys), wanted(keys), rtol=1e-6)


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
        ({"loglikelihood_fn": None, "equality": None}, "nothing here sees the data: give loglikelihood_fn"),
        ({"joint_fn": both}, "give loglikelihood_fn, or joint_fn in its place; not both"),
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


@pytest.mark.parametrize("name", [None, "chmc", "clangevin", "o_langevin", "o_kinetic"])
def test_tuning_refuses_minibatches_with_the_remedy(name):
    with pytest.raises(
        ValueError,
        match=r"with minibatches give them: algorithm=og.o_langevin\(problem, step_size, alpha=.*constraint_batch_size=N",
    ):
        og.sample(0, make(batch_size=B), STARTS, algorithm=name, progress=False)
