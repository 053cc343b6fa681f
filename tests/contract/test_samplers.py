"""Every sampler in the table keeps the same contract."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.geometry.land import land_one
from ogradient.samplers.base import kernel_of

CURVE = og.problems.cubic().problem
TREE = og.Problem(
    lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + p["b"] ** 2),
    equality=[lambda p: jnp.sum(p["w"] ** 2) - 1, lambda p: p["b"] - p["w"][0]],
)
POSITIONS = {
    "array": (CURVE, jnp.array([-10.0, 1.0])),
    "tree": (TREE, {"w": jnp.array([0.5, 2.0]), "b": jnp.array(0.3)}),
}
everyone = pytest.mark.parametrize("name", og.SAMPLERS)
everywhere = pytest.mark.parametrize("where", POSITIONS)


def particles_of(position, n=5):
    return jax.tree.map(lambda leaf: jnp.stack([leaf + 0.1 * i for i in range(n)]), position)


@functools.cache
def landed(where):
    problem, position = POSITIONS[where]
    return jax.jit(lambda p: land_one(problem, p).position)(position)


def build(name, where="array"):
    problem, position = POSITIONS[where]
    position = particles_of(position) if og.SAMPLERS[name].ensemble else position
    if og.SAMPLERS[name].obeys == "exact":
        position = landed(where)
    return problem, position, og.SAMPLERS[name](problem, og.SAMPLERS[name].step_size)


def constraint_of(problem, name, position):
    return (jax.vmap(problem.constraint_value) if og.SAMPLERS[name].ensemble else problem.constraint_value)(position)


def test_the_table_is_public():
    assert all(getattr(og, name) is row.make for name, row in og.SAMPLERS.items())
    assert {name for name, row in og.SAMPLERS.items() if row.ensemble} == {"o_svgd", "svgd", "control_langevin"}
    assert {name for name, row in og.SAMPLERS.items() if row.obeys == "exact"} == {"chmc", "clangevin"}


@everyone
def test_a_kernel_says_what_it_is(name):
    row, kernel = og.SAMPLERS[name], kernel_of(build(name)[2])
    assert isinstance(kernel, row.kernel)
    assert (kernel.name, kernel.ensemble, kernel.obeys) == (name, row.ensemble, row.obeys)
    assert kernel == kernel_of(build(name)[2])
    assert hash(kernel) == hash(kernel_of(build(name)[2]))


@everyone
@everywhere
def test_init_and_step(name, where):
    problem, position, algorithm = build(name, where)
    init, step = algorithm
    state = init(position)
    assert jax.tree.structure(init(position, rng_key=jax.random.key(0))) == jax.tree.structure(state)
    assert state._fields[0] == "position"
    new, info = jax.jit(step)(jax.random.key(0), state)
    same = lambda a, b: (jnp.shape(a), jnp.result_type(a)) == (jnp.shape(b), jnp.result_type(b))
    assert all(jax.tree.leaves(jax.tree.map(same, new, state)))
    assert int(info.status) == og.Status.OK
    expected = constraint_of(problem, name, new.position)
    assert set(info.constraint_value) == set(expected) == {"equality"}
    np.testing.assert_allclose(info.constraint_value["equality"], expected["equality"], atol=1e-6)
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), new.position, position)
    assert all(distance > 0 for distance in jax.tree.leaves(moved))


@everyone
@everywhere
def test_steps_compose_with_jit_vmap_and_scan(name, where):
    _, position, algorithm = build(name, where)
    positions = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), position)

    @jax.jit
    def run(key, states):
        step = lambda s, k: jax.vmap(algorithm.step)(jax.random.split(k, 2), s)
        return jax.lax.scan(step, states, jax.random.split(key, 5))

    states, infos = run(jax.random.key(0), jax.vmap(algorithm.init)(positions))
    assert infos.status.shape == (5, 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states.position))


@everyone
def test_a_non_finite_proposal_never_overwrites_the_state(name):
    """A step outside `jax.jit` as well."""
    problem = og.Problem(lambda x: jnp.where(x[0] > 0, jnp.nan, 0.0) * x[0], equality=lambda x: x[1])
    algorithm = og.SAMPLERS[name](problem, og.SAMPLERS[name].step_size)
    start = jnp.array([1.0, 0.5])
    start = particles_of(start) if og.SAMPLERS[name].ensemble else start
    state, info = algorithm.step(jax.random.key(0), algorithm.init(start))
    if og.SAMPLERS[name].obeys == "exact":
        assert not bool(info.is_accepted)  # there a non-finite energy is a rejected move
    else:
        assert int(info.status) == og.Status.NON_FINITE
    np.testing.assert_array_equal(state.position, start)


@everyone
def test_schedules_are_read_at_the_states_iteration(name):
    problem, position, _ = build(name)
    schedule = lambda t: jnp.where(t < 1, 0.01, 0.002)
    varying = og.SAMPLERS[name](problem, schedule)
    step = jax.jit(varying.step)
    first, _ = step(jax.random.key(0), varying.init(position))
    second, _ = step(jax.random.key(1), first)
    constant = og.SAMPLERS[name](problem, 0.002)
    expected, _ = jax.jit(constant.step)(jax.random.key(1), first)
    np.testing.assert_allclose(second.position, expected.position, rtol=1e-6)


@everyone
def test_docstring_has_equation_arguments_and_example(name):
    documentation = og.SAMPLERS[name].make.__doc__
    assert "Args:" in documentation
    assert ">>>" in documentation
