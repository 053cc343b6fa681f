"""Identities of the geometry at a point, in float64, for one and several constraints."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogradient import geometry as geo
from ogradient.geometry.frame import _invert_lower

pytestmark = pytest.mark.usefixtures("x64")

CONSTRAINTS = {
    1: lambda x: jnp.array([x[0] + x[1] ** 3 + jnp.sin(x[2]) * x[3]]),
    2: lambda x: jnp.array([jnp.sum(x**2) - 1, x[0] * x[1] + jnp.exp(0.3 * x[2])]),
    3: lambda x: jnp.array([jnp.sum(x**4), x[0] - x[3] ** 2, 1e4 * jnp.cos(x[1] + x[2])]),
}
POINT = np.array([0.7, -0.4, 1.1, 0.3, -0.9])


def setup(m):
    g, x = CONSTRAINTS[m], jnp.asarray(POINT)
    return g, x, frame_at(g, x)


# One program per function, in place of one per operation.
frame_at = jax.jit(geo.frame_at, static_argnums=0)
correction = jax.jit(geo.correction, static_argnums=0, static_argnames=("measure", "method"))


def projector(g, x):
    J = jax.jacobian(g)(x)
    return jnp.eye(x.size) - J.T @ jnp.linalg.solve(J @ J.T, J)


@pytest.mark.parametrize("m", CONSTRAINTS)
def test_frame_has_value_jacobian_and_volume(m):
    g, x, frame = setup(m)
    J = jax.jacobian(g)(x)
    np.testing.assert_allclose(frame.value, g(x))
    np.testing.assert_allclose(frame.jacobian, J, rtol=1e-12)
    np.testing.assert_allclose(geo.solve(frame, J @ J.T), np.eye(m), atol=1e-9)
    np.testing.assert_allclose(frame.half_log_det, 0.5 * jnp.linalg.slogdet(J @ J.T)[1], rtol=1e-10)
    assert not frame.deficient


@pytest.mark.parametrize("m", CONSTRAINTS)
def test_projection_is_a_projection(m):
    g, x, frame = setup(m)
    D = jax.vmap(lambda e: geo.project(frame, e))(jnp.eye(x.size)).T
    np.testing.assert_allclose(D @ D, D, atol=1e-12)
    np.testing.assert_allclose(D, D.T, atol=1e-12)
    np.testing.assert_allclose(jnp.trace(D), x.size - m, atol=1e-12)
    np.testing.assert_allclose(frame.jacobian @ D, np.zeros((m, x.size)), atol=1e-8)
    np.testing.assert_allclose(D, projector(g, x), atol=1e-12)


@pytest.mark.parametrize("m", CONSTRAINTS)
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_landing_moves_g_at_the_rate_psi(m, beta):
    _, _, frame = setup(m)
    v = geo.landing(frame, alpha=3.0, beta=beta)
    psi = 3.0 * np.sign(frame.value) * np.abs(frame.value) ** (1 + beta)
    np.testing.assert_allclose(frame.jacobian @ v, -psi, rtol=1e-9)
    np.testing.assert_allclose(geo.project(frame, v), np.zeros(5), atol=1e-8)


def test_steer_is_the_nearest_vector_with_that_rate():
    _, _, frame = setup(2)
    vector, rate = jnp.array([1.0, -2.0, 0.5, 0.0, 3.0]), jnp.array([0.3, -0.7])
    steered = geo.steer(frame, vector, rate)
    np.testing.assert_allclose(frame.jacobian @ steered, rate, rtol=1e-10)
    np.testing.assert_allclose(geo.project(frame, steered - vector), np.zeros(5), atol=1e-12)


@pytest.mark.parametrize("m", CONSTRAINTS)
def test_correction_is_the_divergence_of_the_projector(m):
    g, x, frame = setup(m)
    divergence = jnp.einsum("ijj->i", jax.jit(jax.jacobian(lambda y: projector(g, y)))(x))
    np.testing.assert_allclose(correction(g, x, frame, method="exact"), divergence, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("m", CONSTRAINTS)
def test_half_log_det_gradient(m):
    g, x, frame = setup(m)
    half_log_det = lambda y: 0.5 * jnp.linalg.slogdet(jax.jacobian(g)(y) @ jax.jacobian(g)(y).T)[1]
    gradient = jax.jit(geo.half_log_det_gradient, static_argnums=0)(g, x, frame)
    np.testing.assert_allclose(gradient, jax.jit(jax.grad(half_log_det))(x), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("m", CONSTRAINTS)
def test_hutchinson_averages_to_the_exact_curvature(m):
    g, x, frame = setup(m)
    exact = geo.curvature(g, x, frame, method="exact")
    one = jax.jit(lambda key: geo.curvature(g, x, frame, method="hutchinson", key=key))
    draws = jax.vmap(one)(jax.random.split(jax.random.key(0), 20_000))
    error = jnp.std(draws, axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - exact) < 5 * error + 1e-9)
    many = geo.curvature(g, x, frame, method="hutchinson", key=jax.random.key(1), num_probes=20_000)
    assert np.all(np.abs(many - exact) < 5 * error + 1e-9)


def test_hausdorff_leaves_the_tangential_half_out():
    g, x, frame = setup(2)
    both, normal = (correction(g, x, frame, measure=m, method="exact") for m in ("conditional", "hausdorff"))
    np.testing.assert_allclose(both - normal, -geo.project(frame, geo.half_log_det_gradient(g, x, frame)), atol=1e-12)
    np.testing.assert_allclose(geo.project(frame, normal), np.zeros(5), atol=1e-12)


def test_none_drops_all_of_it():
    g, x, frame = setup(2)
    assert not np.any(geo.correction(g, x, frame, method="none"))


def test_exact_in_chunks_equals_exact_at_once(monkeypatch):
    g, x, frame = setup(2)
    at_once = geo.correction(g, x, frame, method="exact")
    monkeypatch.setattr(sys.modules["ogradient.geometry.correction"], "CHUNK", 2)
    np.testing.assert_allclose(geo.correction(g, x, frame, method="exact"), at_once, rtol=1e-12)


def test_auto_is_exact_up_to_64_dimensions():
    assert geo.resolve_correction("auto", 64) == "exact"
    assert geo.resolve_correction("auto", 65) == "hutchinson"
    with pytest.raises(ValueError, match="correction must be one of"):
        geo.resolve_correction("exakt", 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_given_twice_counts_once_and_is_reported(dtype):
    single = CONSTRAINTS[1]
    double = lambda x: jnp.concatenate([single(x), 2 * single(x)])
    x = jnp.asarray(POINT, dtype)
    one, two = frame_at(single, x), frame_at(double, x)
    tolerance = 2e-3 if dtype == "float32" else 1e-6
    assert two.deficient
    assert not one.deficient
    np.testing.assert_allclose(geo.landing(two, 1.0), geo.landing(one, 1.0), rtol=tolerance)
    for part in ("conditional", "hausdorff"):
        r1, r2 = (correction(g, x, f, measure=part, method="exact") for g, f in ((single, one), (double, two)))
        np.testing.assert_allclose(r2, r1, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("m", [1, 2])
def test_a_vanishing_gradient_is_reported_and_stays_finite(m):
    g = lambda x: jnp.array([jnp.sum(x**2), x[0]])[:m]
    frame = geo.frame_at(g, jnp.zeros(3))
    assert frame.deficient
    assert np.all(np.isfinite(geo.steer(frame, jnp.ones(3), -frame.value)))


def test_the_conditional_drift_does_not_depend_on_how_the_set_is_written():
    g = CONSTRAINTS[1]
    scaled = lambda x: jnp.sinh(3 * g(x))  # same zero set, other values off it
    x = jnp.asarray(POINT)
    for _ in range(30):
        x = x + geo.landing(frame_at(g, x), 1.0)
    r1, r2 = (correction(f, x, frame_at(f, x), method="exact") for f in (g, scaled))
    np.testing.assert_allclose(r1, r2, atol=1e-9)


def test_signs_are_fair_independent_bits():
    signs = np.asarray(geo.random_signs(jax.random.key(3), (2000, 70), jnp.float64))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert np.abs(signs.mean(axis=0)).max() < 5 / np.sqrt(2000)
    gram = signs.T @ signs / 2000 - np.eye(70)
    assert np.abs(gram).max() < 5.5 / np.sqrt(2000)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 9, 16, 33, 66])
def test_triangular_inverse(m):
    lower = jnp.tril(jax.random.normal(jax.random.key(m), (m, m))) + 3 * jnp.sqrt(m) * jnp.eye(m)
    inverse = jax.jit(_invert_lower)(lower)
    np.testing.assert_allclose(inverse @ lower, np.eye(m), atol=1e-12)
    np.testing.assert_array_equal(jnp.triu(inverse, 1), np.zeros((m, m)))
