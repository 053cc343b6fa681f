"""The metric of warm-up: covariances in any units, from many draws or few, on sets and off them."""

import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.samplers.metric import gather, mass_parameters, mass_root, spread
from ogradient.warmup.metric import DENSE_LIMIT, components, first_metric, refit, whiten

D = 6


def gaussian(units):
    return og.Problem(lambda x: -0.5 * jnp.sum((x / units) ** 2), lambda x: jnp.sum(x / units))


def draws(units, number, seed=0):
    """Of a Gaussian with strong correlations, on the plane Σ x/units = 0."""
    rng = np.random.default_rng(seed)
    wide = rng.normal(size=(D, D)) * np.logspace(-2, 0, D)
    z = rng.normal(size=(number, 4, D)) @ wide.T
    return (z - z.mean(axis=-1, keepdims=True)) * units


@pytest.mark.parametrize("number", [5, 500])
def test_units_play_no_part(number, x64):
    found = []
    for units in (np.ones(D), np.logspace(-6, 6, D)):
        x = draws(units, number)
        metric = refit(gaussian(units), jnp.asarray(x[-1]), x, first_metric(units), units)
        found.append(metric / units[:, None] / units[None])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-9)


def test_the_metric_is_the_covariance_along_the_set(x64):
    units = np.ones(D)
    x, metric = draws(units, 20_000), first_metric(units)
    for _ in range(3):
        metric = refit(gaussian(units), jnp.asarray(x[-1]), x, metric, units)
    z = whiten(metric, x).reshape(-1, D)
    values = np.linalg.eigvalsh(np.cov(z.T))
    assert values[0] < 1e-8  # across the plane there is nothing
    np.testing.assert_allclose(values[1:], 1, rtol=0.01)
    assert np.linalg.eigvalsh(metric)[0] > 1e-7 * np.linalg.eigvalsh(metric)[-1]


def test_draws_that_say_nothing_change_nothing(x64):
    units = np.ones(D)
    still = np.zeros((10, 4, D))
    np.testing.assert_array_equal(refit(gaussian(units), still[0], still, np.eye(D), units), np.eye(D))
    np.testing.assert_array_equal(refit(gaussian(units), still[0], still, np.ones(D), units), np.ones(D))


def test_many_coordinates_have_a_diagonal():
    assert first_metric(np.ones(DENSE_LIMIT)).shape == (DENSE_LIMIT, DENSE_LIMIT)
    assert first_metric(np.ones(DENSE_LIMIT + 1)).shape == (DENSE_LIMIT + 1,)
    assert first_metric(np.ones(1)).shape == (1,)


def test_components_find_the_widest_direction():
    rng = np.random.default_rng(0)
    direction = np.ones(D) / np.sqrt(D)
    z = rng.normal(size=(50, 4, D)) + 10 * rng.normal(size=(50, 4, 1)) * direction
    wide = components(z)
    assert wide.shape == (50, 4, 2 * D)
    assert wide[..., D].std() == pytest.approx(np.sqrt(101), rel=0.2)


@pytest.mark.parametrize("mass", [None, 2.0, np.arange(1.0, 4.0), np.diag([1.0, 2.0, 3.0]) + 0.3])
def test_a_root_is_a_root(mass, x64):
    root = mass_root(mass_parameters(mass), jnp.zeros(3))
    identity = jnp.eye(3)
    matrix = 1.0 if mass is None else mass if np.ndim(mass) == 2 else np.diag(np.broadcast_to(mass, 3))
    np.testing.assert_allclose(
        spread(root, gather(root, identity)), matrix * np.ones(1) if mass is not None else identity
    )
    np.testing.assert_allclose(spread(root, identity)[0], spread(root, identity[0]))
