"""The metric of warm-up: covariances in any units, from many draws or few, on sets and off them."""

import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.samplers.metric import gather, mass_parameters, mass_root, spread, unit_lengths
from ogradient.warmup.low_rank import RANK, with_directions
from ogradient.warmup.metric import (
    DENSE_LIMIT,
    correlation_condition,
    first_metric,
    judged,
    kind_of,
    refit,
    rounded,
    whiten,
    widest,
    without_correlations,
)

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


def test_draws_are_judged_by_their_widest_direction_too():
    rng = np.random.default_rng(0)
    direction = np.ones(D) / np.sqrt(D)
    z = rng.normal(size=(50, 4, D)) + 10 * rng.normal(size=(50, 4, 1)) * direction
    wide = judged(np.ones(D), z)
    assert wide.shape == (50, 4, 2 * D)
    assert wide[..., D].std() == pytest.approx(np.sqrt(101), rel=0.2)


def test_widest_directions_are_those_of_a_singular_value_decomposition():
    points = np.random.default_rng(0).normal(size=(300, 60)) * np.geomspace(10, 0.01, 60)
    found, (_, values, exact) = widest(points, 5), np.linalg.svd(points)
    np.testing.assert_allclose(found.T @ found, np.eye(5), atol=1e-12)
    # Six rounds take (0.89^12)^6 = 2e-4 of what is wrong with the fifth direction, and the square of that in its width.
    np.testing.assert_allclose(np.abs(np.sum(found * exact[:5].T, axis=0)), 1, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(points @ found, axis=0), values[:5], rtol=1e-5)
    assert widest(np.zeros((300, 60)), 5).shape == (60, 0)


def test_a_determined_coordinate_moves_with_what_determines_it(x64):
    """x₀ = 0.1 sin x₁ varies little, and yet as fast as x₁ in places: its small variance must not hold up x₁."""
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x[1:] ** 2), lambda x: x[0] - 0.1 * jnp.sin(x[1]))
    x = np.random.default_rng(0).normal(size=(500, 4, D))
    x[..., 0] = 0.1 * np.sin(x[..., 1])
    metric = refit(problem, jnp.asarray(x[-1]), x, np.ones(D), np.ones(D))
    np.testing.assert_allclose(metric, 1, rtol=0.15)
    # Where it is in units of its own it gets those of the others, in its units.
    tiny = og.Problem(lambda x: -0.5 * jnp.sum(x[1:] ** 2), lambda x: x[0] / 1e-6 - 0.1 * jnp.sin(x[1]))
    units = np.array([1e-6, 1, 1, 1, 1, 1])
    metric = refit(tiny, jnp.asarray(x[-1] * units), x * units, units**2, units)
    np.testing.assert_allclose(metric / units**2, 1, rtol=0.15)


def factors(dim=230, seed=0):
    """A Gaussian with two wide and two narrow directions on Σx = 0: problem, draws (time, chain, d), directions, widths."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(np.column_stack([np.ones(dim), rng.normal(size=(dim, 4))]))[0][:, 1:]
    widths = np.array([100.0, 50.0, 0.02, 0.01])
    change, some = jnp.asarray(1 / widths - 1), jnp.asarray(directions)
    problem = og.Problem(lambda x: -0.5 * (x @ x + jnp.sum(change * (x @ some) ** 2)), lambda x: jnp.sum(x))
    z = rng.normal(size=(100, 16, dim))
    z = z + (z @ directions * (np.sqrt(widths) - 1)) @ directions.T
    return problem, z - z.mean(axis=-1, keepdims=True), directions, widths


def test_wide_and_narrow_directions_are_found_and_no_others(x64):
    problem, x, directions, widths = factors()
    columns = with_directions(problem, jnp.asarray(x[-1]), x, np.var(x, axis=(0, 1)))
    used = np.linalg.norm(columns[:, 1:], axis=0) > 0
    assert (columns.shape, kind_of(columns)) == ((230, 1 + RANK), "low-rank")
    # In units of the variances, to which the widest direction adds unequally, a fifth is narrower than the others.
    assert 4 <= used.sum() <= 5
    root = mass_root(mass_parameters(columns), jnp.zeros(230))
    metric = np.asarray(spread(root, gather(root, jnp.eye(230))))
    found = np.sum(directions * (metric @ directions), axis=0)
    np.testing.assert_allclose(found, widths, rtol=0.5)
    assert correlation_condition(columns) > 1000
    np.testing.assert_allclose(without_correlations(columns), columns[:, 0])


def test_noise_has_no_directions(x64):
    """Of 1,600 draws in 230 coordinates the widest direction is three times as wide as it should be."""
    x = np.random.default_rng(1).normal(size=(100, 16, 230))
    x = x - x.mean(axis=-1, keepdims=True)
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), lambda x: jnp.sum(x))
    assert np.linalg.svd(x[:, :8].reshape(800, -1))[1][0] ** 2 / 800 > 2.3
    assert with_directions(problem, jnp.asarray(x[-1]), x, np.ones(230)) is None


def test_draws_without_forces_have_directions_too(x64):
    """A law that is flat on its set pushes nowhere."""
    _, x, directions, _ = factors()
    flat = og.Problem(lambda x: 0.0 * jnp.sum(x), lambda x: jnp.sum(x))
    columns = with_directions(flat, jnp.asarray(x[-1]), x, np.var(x, axis=(0, 1)))
    assert np.abs(directions[:, :2].T @ columns[:, 1:] / np.linalg.norm(columns[:, 1:], axis=0).clip(1e-9)).max() > 0.9
    root = mass_root(mass_parameters(columns), jnp.zeros(230))
    metric = np.asarray(spread(root, gather(root, jnp.eye(230))))
    np.testing.assert_allclose(np.sum(directions * (metric @ directions), axis=0)[:2], [100, 50], rtol=0.5)


@pytest.mark.parametrize("number", [16, 20])
def test_many_wide_directions_do_not_pass_for_what_is_usual(number, x64):
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(230, number)))[0]
    x = rng.normal(size=(100, 16, 230))
    x = x + 9 * (x @ directions) @ directions.T
    columns = with_directions(og.Problem(lambda x: 0.0 * jnp.sum(x)), jnp.asarray(x[-1]), x, np.var(x, axis=(0, 1)))
    root = mass_root(mass_parameters(columns), jnp.zeros(230))
    metric = np.asarray(spread(root, gather(root, jnp.eye(230))))
    law = np.eye(230) + 99 * directions @ directions.T
    whitened = np.linalg.eigvals(np.linalg.solve(metric, law)).real
    assert whitened.max() / whitened.min() < 15 < 0.5 * np.linalg.cond(law / np.diag(law)[:, None])


def test_a_root_of_low_rank(x64):
    rng = np.random.default_rng(0)
    directions, widths = np.linalg.qr(rng.normal(size=(D, 2)))[0], np.array([9.0, 0.04])
    variances = np.geomspace(0.1, 10, D)
    columns = np.column_stack([variances, directions * np.sqrt(widths), np.zeros(D)])
    matrix = np.eye(D) + directions * (widths - 1) @ directions.T
    matrix = np.sqrt(variances)[:, None] * matrix * np.sqrt(variances)[None]
    root = mass_root(mass_parameters(columns), jnp.zeros(D))
    whole = np.asarray(spread(root, jnp.eye(D))).T
    np.testing.assert_allclose(whole @ whole.T, matrix, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gather(root, jnp.eye(D)), whole, atol=1e-12)
    np.testing.assert_allclose(spread(root, jnp.ones(D)), whole @ np.ones(D), atol=1e-12)
    np.testing.assert_allclose(unit_lengths(root), np.linalg.norm(whole, axis=1))
    x = rng.normal(size=(3, 4, D))
    np.testing.assert_allclose(whiten(columns, x) @ whole.T, x - x.mean(axis=(0, 1)), atol=1e-10)
    # As a diagonal for a position of its shape it is what it always was.
    assert mass_root(mass_parameters(np.ones((D, 3))), jnp.zeros(3 * D)).shape == (3 * D,)


def test_columns_that_are_no_metric_are_refused():
    negative = np.column_stack([[-1.0, 1, 1, 1], [1.0, 0, 0, 0]])
    oblique = np.column_stack([np.ones(4), [1.0, 0, 0, 0], [-1.0, 1, 0, 0]])
    for bad in (negative, oblique):
        with pytest.raises(ValueError, match="inverse_mass"):
            mass_root(mass_parameters(bad), jnp.zeros(4))


@pytest.mark.parametrize("mass", [None, 2.0, np.arange(1.0, 4.0), np.diag([1.0, 2.0, 3.0]) + 0.3])
def test_a_root_is_a_root(mass, x64):
    root = mass_root(mass_parameters(mass), jnp.zeros(3))
    identity = jnp.eye(3)
    matrix = 1.0 if mass is None else mass if np.ndim(mass) == 2 else np.diag(np.broadcast_to(mass, 3))
    np.testing.assert_allclose(
        spread(root, gather(root, identity)), matrix * np.ones(1) if mass is not None else identity
    )
    np.testing.assert_allclose(spread(root, identity)[0], spread(root, identity[0]))


def test_a_metric_that_is_nearly_round_is_made_round():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(D, D))
    near, far = np.eye(D) + 0.05 * (noise + noise.T), np.diag(np.geomspace(1, 10, D))
    assert np.count_nonzero(rounded(near)) == D
    np.testing.assert_allclose(np.linalg.slogdet(rounded(near))[1], np.linalg.slogdet(near)[1])
    np.testing.assert_array_equal(rounded(far), far)
    # Correlations alone are reason enough to keep it.
    correlated = np.full((D, D), 0.9) + 0.1 * np.eye(D)
    np.testing.assert_array_equal(rounded(correlated), correlated)
    np.testing.assert_allclose(rounded(np.array([1.0, 2.0, 1.0])), 2 ** (1 / 3))
    columns = np.column_stack([np.ones(4), [3.0, 0, 0, 0]])
    np.testing.assert_array_equal(rounded(columns), columns)
