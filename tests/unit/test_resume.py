"""A trace is continued by the run that made it, or the difference is named."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import ogradient as og
from ogradient.problem.fingerprint import fingerprint
from ogradient.run.resume import continue_run

TREE = og.Problem(
    lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + p["b"] ** 2),
    equality=[lambda p: jnp.sum(p["w"] ** 2) - 1, lambda p: p["b"] - p["w"][0]],
)
STARTS = {"w": jax.random.normal(jax.random.key(0), (3, 4)), "b": jnp.ones(3)}
N = 4000
X = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)


def over(data, **options):
    prior, likelihood = (
        lambda w: -0.5 * jnp.sum(w**2),
        lambda w, x: -0.5 * jnp.sum((x.reshape(-1, 2) - w[None]) ** 2) / N,
    )
    return og.posterior(prior, likelihood, data, **options)


def sample(problem, starts=None, **options):
    return og.sample(0, problem, starts, **{"num_warmup": 0, "num_samples": 3, "progress": False} | options)


@pytest.mark.parametrize("row", [0, 1, 777, N - 1])
def test_other_data_are_refused_whichever_row_differs(row):
    other = X.copy()
    other[row, 1] += 1e-3
    mine, others = over(X), over(other)
    trace = sample(mine, jnp.zeros((2, 2)), algorithm=og.langevin(mine, 0.01))
    with pytest.raises(ValueError, match="resume continues a run on the data"):
        sample(others, resume=trace, algorithm=og.langevin(others, 0.01))
    same = over(X.copy())
    assert sample(same, resume=trace, algorithm=og.langevin(same, 0.01)).num_draws == 6


def test_other_shapes_of_the_same_bytes_and_no_data_are_refused():
    mine, flat = over(X), over(X.reshape(N, 2, 1))
    trace = sample(mine, jnp.zeros((2, 2)), algorithm=og.langevin(mine, 0.01))
    with pytest.raises(ValueError, match="resume continues a run on the data"):
        sample(flat, resume=trace, algorithm=og.langevin(flat, 0.01))
    none = og.Problem(lambda x: -jnp.sum(x**2))
    with pytest.raises(ValueError, match="resume continues a run on the data .*the problem given has None"):
        sample(none, resume=trace, algorithm=og.langevin(none, 0.01))


def test_the_data_are_summed_once(monkeypatch):
    data = importlib.import_module("ogradient.problem.data")
    calls, original = [], data.checksum
    monkeypatch.setattr(data, "checksum", lambda *a: (calls.append(1), original(*a))[1])
    problem = over(X)
    algorithm = og.langevin(problem, 0.01)
    sample(problem, resume=sample(problem, jnp.zeros((2, 2)), algorithm=algorithm), algorithm=algorithm)
    assert len(calls) == 1
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # from where rows come in blocks
    for size in (8, 17, 1000):
        monkeypatch.setattr(data, "CHECKSUM_BYTES", size)
        assert over(X).data.crc32 == problem.data.crc32


MASS = {"b": jnp.float32(2.0), "w": jnp.arange(1.0, 5.0)}


@pytest.mark.parametrize("name", ["clangevin", pytest.param("chmc", marks=pytest.mark.slow)])
def test_another_inverse_mass_by_variable_is_refused(name, tmp_path):
    make = lambda mass: og.SAMPLERS[name](TREE, 0.1, inverse_mass=mass)
    whole = sample(TREE, STARTS, algorithm=make(MASS), num_samples=8)
    trace = og.load(sample(TREE, STARTS, algorithm=make(MASS), num_samples=5).save(tmp_path / "t.zarr"))
    for wrong in (MASS | {"b": jnp.float32(3.0)}, MASS | {"w": jnp.ones(4)}, None, [1.0, 2.0, 3.0, 4.0, 5.0]):
        with pytest.raises(ValueError, match=f"resume continues a run of {name} with"):
            sample(TREE, resume=trace, algorithm=make(wrong))
    flat = np.array([2.0, 1.0, 2.0, 3.0, 4.0])  # b first, as in the tree's own order
    for right in (make(MASS), make(flat), make(list(flat)), None, name):
        chosen, states, *_ = continue_run(trace, TREE, None, right, jax.random.key(0), 1)
        np.testing.assert_allclose(ravel_pytree(chosen.step.parameters["mass_root"])[0] ** 2, flat, rtol=1e-6)
        np.testing.assert_array_equal(states.position["w"], trace.position["w"][:, -1])
    np.testing.assert_array_equal(sample(TREE, resume=trace, algorithm=make(MASS))["w"], whole["w"])


@pytest.mark.usefixtures("lenient_promotion")  # of optax
def test_another_optimiser_is_refused():
    particles = jax.tree.map(lambda leaf: leaf[None], STARTS)
    make = lambda optimizer: og.o_svgd(TREE, optimizer=optimizer)
    trace = sample(TREE, particles, algorithm=make(optax.adam(0.1)))
    with pytest.raises(ValueError, match="resume continues a run of o_svgd with"):
        sample(TREE, resume=trace, algorithm=make(optax.adam(0.2)))
    assert sample(TREE, resume=trace, algorithm=make(optax.adam(0.1))).num_draws == 6


def test_another_log_density_is_named():
    """Without data nothing but the code of the function tells it from the one before."""

    def density(scale):
        return lambda x: -scale * jnp.sum(x**2)

    circle = lambda x: jnp.sum(x**2) - 1
    first = og.Problem(density(0.5), circle)
    trace = sample(first, jnp.ones((2, 3)), algorithm=og.o_langevin(first, 0.01))
    again = og.Problem(density(0.5), lambda y: jnp.sum(y**2) - 1)  # the same code, in other objects
    sample(again, resume=trace, algorithm=og.o_langevin(again, 0.01))
    other = og.Problem(density(0.6), circle)
    with pytest.warns(og.ConstraintWarning, match="other code in logdensity_fn.*of two laws"):
        sample(other, resume=trace, algorithm=og.o_langevin(other, 0.01))


def test_another_version_is_named():
    problem = og.Problem(lambda x: -jnp.sum(x**2), lambda x: jnp.sum(x**2) - 1)
    trace = sample(problem, jnp.ones((2, 3)), algorithm=og.o_langevin(problem, 0.01))
    trace.provenance["versions"]["jax"] = "0.7.1"
    with pytest.warns(og.ConstraintWarning, match=r"made with jax 0.7.1 \(now .*may round otherwise"):
        sample(problem, resume=trace, algorithm=og.o_langevin(problem, 0.01))


def test_a_fingerprint_is_of_what_is_computed_not_of_how_it_is_written():
    def helper(x):
        return 2 * x

    def plain(x):
        """Words."""
        return helper(x)

    def renamed(value):
        # Other words.
        return helper(value)

    numbers = np.arange(3.0)
    closed = lambda: lambda x: x * numbers
    before = fingerprint(closed())
    assert fingerprint(plain) == fingerprint(renamed) == fingerprint(jax.jit(plain))
    assert fingerprint(closed()) == before
    numbers = np.arange(3.0) + 1e-12
    assert fingerprint(closed()) != before
    assert fingerprint(functools.partial(plain, 1)) != fingerprint(functools.partial(plain, 2))
    assert fingerprint([plain, helper]) != fingerprint([helper, plain])
    calls = []
    counted = lambda x: (calls.append(1), x)[1]
    before = fingerprint(counted)
    counted(0)
    assert fingerprint(counted) == before
