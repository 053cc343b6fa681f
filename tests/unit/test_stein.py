"""Kernels, bandwidths and the particle velocity against slow definitions, in float64."""

import functools

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ogradient as og
from ogradient import geometry as geo
from ogradient.samplers.o_svgd import particle_geometry
from ogradient.samplers.svgd import check_memory, mean_field
from ogradient.stein import median_bandwidth, squared_distances

pytestmark = pytest.mark.usefixtures("x64")

CONSTRAINTS = {
    1: lambda x: x[0] + x[1] ** 3 + 0.5 * jnp.sin(x[2]),
    3: lambda x: jnp.array([x[0] + 0.3 * x[1] ** 2, x[1] + 0.3 * jnp.sin(x[2]), x[2] + 0.3 * x[3] ** 2]),
}
KERNELS = {"rbf": og.rbf(1.7), "imq": og.imq(1.7)}


def logdensity(x):
    return -0.25 * jnp.sum(x**4) + jnp.sin(x[0])


def particles(n=7, d=5, seed=0):
    return jax.random.normal(jax.random.key(seed), (n, d))


def geometry(problem, x, correction="exact", key=None):
    state = og.o_svgd(problem, 0.1).init(x)
    return particle_geometry(problem, state, x, correction=correction, num_probes=1, key=key, block_size=None)


def tangent_velocity(problem, x, kernel):
    """What O-SVGD moves along the set: field and its projection, from the pieces the sampler uses."""

    @jax.jit
    def velocity(x):
        frames, drive, _ = geometry(problem, x)
        h = jnp.asarray(kernel.bandwidth)
        field = mean_field(kernel, h, x, drive, frames.root @ frames.jacobian, None)
        return jax.vmap(geo.project)(frames, field), frames

    return velocity(x)


def after_a_step(algorithm, x):
    return jax.jit(lambda x: algorithm.step(jax.random.key(0), algorithm.init(x))[0].position)(x)


def matrix_kernel(problem, kernel):
    """k⊥(x, y) = k(x, y) D(x) D(y), a d×d matrix, by its definition."""

    def projector(x):
        J = jnp.atleast_2d(jax.jacobian(problem.equality)(x))
        return jnp.eye(x.size) - J.T @ jnp.linalg.solve(J @ J.T, J)

    return lambda x, y: kernel.profile(jnp.sum((x - y) ** 2), kernel.bandwidth).value * projector(x) @ projector(y)


@pytest.mark.parametrize("m", CONSTRAINTS)
@pytest.mark.parametrize("name", KERNELS)
def test_velocity_is_that_of_the_definition(m, name):
    problem, kernel, x = og.Problem(logdensity, CONSTRAINTS[m]), KERNELS[name], particles()
    k = matrix_kernel(problem, kernel)

    def definition(point):
        def term(y):
            divergence = jnp.einsum("ijj->i", jax.jacobian(lambda z: k(point, z))(y))
            return k(point, y) @ jax.grad(logdensity)(y) + divergence

        return jnp.mean(jax.vmap(term)(x), axis=0)

    fast, _ = tangent_velocity(problem, x, kernel)
    np.testing.assert_allclose(fast, jax.jit(jax.vmap(definition))(x), atol=1e-10)


@pytest.mark.parametrize("m", CONSTRAINTS)
def test_matrix_kernel_is_symmetric_and_positive(m):
    problem, x = og.Problem(logdensity, CONSTRAINTS[m]), particles(6)
    k = matrix_kernel(problem, KERNELS["rbf"])
    blocks = jax.jit(jax.vmap(jax.vmap(k, (None, 0)), (0, None)))(x, x)  # (n, n, d, d)
    gram = np.asarray(blocks.transpose(0, 2, 1, 3).reshape(30, 30))
    np.testing.assert_allclose(gram, gram.T, atol=1e-12)
    assert np.linalg.eigvalsh(gram).min() > -1e-12


@pytest.mark.parametrize("m", CONSTRAINTS)
def test_velocity_is_tangent_up_to_landing(m):
    problem, x = og.Problem(logdensity, CONSTRAINTS[m]), particles()
    velocity, frames = tangent_velocity(problem, x, KERNELS["rbf"])
    np.testing.assert_allclose(jnp.einsum("nmd,nd->nm", frames.jacobian, velocity), np.zeros((7, m)), atol=1e-12)
    step = og.o_svgd(problem, 0.05, alpha=2.0, correction="exact", rkhs_kernel=KERNELS["rbf"])
    moved = after_a_step(step, x) - x
    expected = -0.05 * 2.0 * frames.value
    np.testing.assert_allclose(jnp.einsum("nmd,nd->nm", frames.jacobian, moved), expected, atol=1e-12)
    np.testing.assert_allclose(jax.vmap(geo.project)(frames, moved), 0.05 * velocity, atol=1e-12)


@pytest.mark.parametrize("name", ["o_svgd", "svgd"])
def test_permuting_particles_permutes_the_result(name):
    problem, x = og.Problem(logdensity, CONSTRAINTS[3]), particles()
    algorithm, order = og.SAMPLERS[name](problem, 0.1), np.random.default_rng(0).permutation(7)
    moved, expected = after_a_step(algorithm, x[order]), after_a_step(algorithm, x)[order]
    np.testing.assert_allclose(moved, expected, atol=1e-12)


@pytest.mark.parametrize("measure", ["conditional", "hausdorff"])
def test_one_particle_is_projected_ascent(measure):
    problem, x = og.Problem(logdensity, CONSTRAINTS[3], measure=measure), particles(1)
    half_log_det = lambda y: (
        0.5 * jnp.linalg.slogdet(jax.jacobian(CONSTRAINTS[3])(y) @ jax.jacobian(CONSTRAINTS[3])(y).T)[1]
    )
    target = logdensity if measure == "hausdorff" else lambda y: logdensity(y) - half_log_det(y)
    velocity, frames = tangent_velocity(problem, x, KERNELS["rbf"])
    expected = geo.project(jax.tree.map(lambda leaf: leaf[0], frames), jax.jit(jax.grad(target))(x[0]))
    np.testing.assert_allclose(velocity[0], expected, atol=1e-10)


def test_affine_constraint_is_plain_svgd_in_reduced_coordinates():
    normal = jnp.array([1.0, -2.0, 0.5])
    basis = jnp.linalg.svd(normal[None])[2][1:]  # orthonormal, across the normal
    density = lambda x: -0.25 * jnp.sum(x**4)
    problem = og.Problem(density, equality=lambda x: normal @ x - 1)
    reduced = og.Problem(lambda t: density(normal / (normal @ normal) + basis.T @ t))
    t = particles(9, 2)
    kernel = og.rbf(1.3)
    constrained, plain = og.o_svgd(problem, 0.1, rkhs_kernel=kernel), og.svgd(reduced, 0.1, rkhs_kernel=kernel)
    x = (normal / (normal @ normal))[None] + t @ basis
    moved, expected = after_a_step(constrained, x), after_a_step(plain, t)
    np.testing.assert_allclose(moved @ basis.T, expected, atol=1e-12)
    np.testing.assert_allclose(moved @ normal, np.ones(9), atol=1e-12)


@pytest.mark.usefixtures("lenient_promotion")
def test_svgd_agrees_with_blackjax():
    x, kernel = particles(8, 3), og.rbf(1.5)
    ours = og.svgd(og.Problem(logdensity), 0.1, rkhs_kernel=kernel)
    theirs = blackjax.svgd(jax.grad(logdensity), optax.sgd(0.1), update_kernel_parameters=lambda state: state)
    expected = jax.jit(theirs.step)(theirs.init(x, {"length_scale": 1.5})).particles
    np.testing.assert_allclose(after_a_step(ours, x), expected, atol=1e-10)


def test_dropping_the_second_order_leaves_projected_scores():
    problem, x = og.Problem(logdensity, CONSTRAINTS[3]), particles()
    frames, drive, _ = jax.jit(lambda x: geometry(problem, x, correction="none"))(x)
    np.testing.assert_allclose(drive, jax.vmap(geo.project)(frames, jax.vmap(jax.grad(logdensity))(x)), atol=1e-12)


def test_hutchinson_averages_to_the_exact_drive():
    problem, x = og.Problem(logdensity, CONSTRAINTS[3]), particles(3)
    random = jax.jit(jax.vmap(lambda key: geometry(problem, x, "hutchinson", key)[1]))
    draws = np.asarray(random(jax.random.split(jax.random.key(0), 5000)))
    error = draws.std(axis=0) / np.sqrt(5000)
    exact = jax.jit(lambda x: geometry(problem, x)[1])(x)
    assert np.all(np.abs(draws.mean(axis=0) - exact) < 5 * error + 1e-9)


# In 12 dimensions distances are computed by a product.
BLOCKS = [(5, 1), (5, 4), (12, 7), (5, 100)]
SLOW_BLOCKS = [pytest.param(*case, marks=pytest.mark.slow) for case in [(12, 1), (12, 4), (5, 7), (12, 100)]]


@functools.cache
def after_a_step_in_blocks(name, dim, block_size):
    problem = og.Problem(logdensity, CONSTRAINTS[3])
    return after_a_step(og.SAMPLERS[name](problem, 0.1, block_size=block_size), particles(10, dim))


@pytest.mark.parametrize("name", ["o_svgd", "svgd"])
@pytest.mark.parametrize(("dim", "block_size"), BLOCKS + SLOW_BLOCKS)
def test_blocks_never_change_the_result(name, dim, block_size):
    blocked, whole = (after_a_step_in_blocks(name, dim, size) for size in (block_size, None))
    np.testing.assert_allclose(blocked, whole, atol=1e-13)


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_derivatives(name):
    profile = KERNELS[name].profile
    u, h = 0.83, 1.7
    value = lambda u: profile(u, h).value
    k = profile(jnp.asarray(u), h)
    np.testing.assert_allclose([k.first, k.second], [jax.grad(value)(u), jax.grad(jax.grad(value))(u)], rtol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 10, 51, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_median_without_sorting(n, dtype):
    x = particles(n, 3).astype(dtype)
    y = np.asarray(x, np.float64)
    distances = ((y[:, None] - y[None]) ** 2).sum(-1)[np.triu_indices(n, 1)]
    np.testing.assert_allclose(
        median_bandwidth(x), np.median(distances) / np.log(n), rtol=1e-5 if dtype == "float32" else 1e-6
    )


def test_median_with_ties_and_many_particles():
    pairs = jnp.array([[0.0], [0.0], [1.0], [1.0]])  # squared distances 0, 0, 1, 1, 1, 1
    np.testing.assert_allclose(median_bandwidth(pairs), 1 / np.log(4))
    assert median_bandwidth(jnp.zeros((5, 2))) == 0
    many = particles(5000, 2)
    np.testing.assert_allclose(median_bandwidth(many) * np.log(5000), 4 * np.log(2), rtol=0.1)  # median of 2·χ²₂


@pytest.mark.parametrize("dim", [3, 20])
def test_squared_distances(dim):
    x = particles(6, dim)
    expected = ((np.asarray(x)[:, None] - np.asarray(x)[None]) ** 2).sum(-1)
    np.testing.assert_allclose(jax.vmap(squared_distances, (0, None))(x, x), expected, atol=1e-12)


def test_bandwidth_is_kept_between_its_updates():
    problem, x = og.Problem(logdensity, CONSTRAINTS[1]), particles()
    algorithm = og.o_svgd(problem, 0.1, rkhs_kernel=og.rbf(every=3))
    state, seen, step = algorithm.init(x), [], jax.jit(algorithm.step)
    for _ in range(7):
        expected = median_bandwidth(state.position)
        state, info = step(None, state)
        seen.append((float(info.bandwidth), float(expected)))
    for t, (used, fresh) in enumerate(seen):
        assert used == pytest.approx(seen[t - t % 3][1])
        assert (used == pytest.approx(fresh, rel=1e-6)) == (t % 3 == 0)


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.parametrize("optimizer", [optax.adam(0.05), optax.adagrad(0.3), optax.sgd(0.1, momentum=0.9)])
def test_an_optimiser_leaves_the_landing_rate_alone(optimizer):
    """However it rescales coordinates, g obeys its own rate to first order: Jᵀdx = −αη g."""
    problem, x = og.Problem(logdensity, CONSTRAINTS[3]), particles()
    algorithm = og.o_svgd(problem, 0.01, optimizer=optimizer, alpha=30.0)
    state, step = algorithm.init(x), jax.jit(algorithm.step)
    frames_at = jax.jit(jax.vmap(lambda p: geo.frame_at(problem.equality_value, p)))
    for _ in range(5):
        frames = frames_at(state.position)
        new, info = step(None, state)
        moved = jnp.einsum("nmd,nd->nm", frames.jacobian, new.position - state.position)
        np.testing.assert_allclose(moved, -0.3 * frames.value, atol=1e-12)
        state = new
    assert int(info.status) == og.Status.OK
    assert int(state.iteration) == 5


def test_too_large_for_memory_says_which_block_size():
    with pytest.raises(ValueError, match=r"100,000,000 particles with no blocks need about .* use block_size=\d+"):
        check_memory(10**8, 1, 8, None)
    check_memory(20_000, 1, 4, 256)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_size": None}, "step_size is missing"),
        ({"step_size": None, "optimizer": optax.adam(0.1), "alpha": 3.0}, "give step_size too"),
        ({"step_size": 0.1, "block_size": 0}, "block_size must be"),
        ({"step_size": 0.1, "beta": -1.0}, "beta must lie"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        og.o_svgd(og.Problem(logdensity, CONSTRAINTS[1]), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"bandwidth": -1.0}, "bandwidth must be"), ({"every": 0}, "every must be")]
)
def test_bad_kernels(arguments, message):
    with pytest.raises(ValueError, match=message):
        og.rbf(**arguments)
