import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og


def test_energy_distance_of_one_law_is_small_and_of_two_is_not():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 800, 2))
    assert og.energy_distance(first, first) == pytest.approx(0, abs=1e-6)
    assert og.energy_distance(first, second) < 0.02
    assert og.energy_distance(first, second + 1) > 0.3
    assert og.energy_distance(first[:, 0], second[:, 0] + 1) == pytest.approx(0.52, abs=0.1)


def test_unbiased_averages_to_zero():
    rng = np.random.default_rng(1)
    values = [og.energy_distance(*rng.normal(size=(2, 30, 2)), unbiased=True) for _ in range(200)]
    assert abs(np.mean(values)) < 5 * np.std(values) / np.sqrt(200)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros((0, 2)), np.zeros((3, 2)), "first must be draws"),
        (np.zeros((3, 2)), np.zeros((3, 4)), "same dimension; got 2 and 4"),
        (np.full((3, 2), np.nan), np.zeros((3, 2)), "first has draws that are not finite"),
        (np.zeros((3, 2)), np.zeros((3, 2, 2)), "second must be draws"),
    ],
)
def test_energy_distance_names_bad_input(first, second, message):
    with pytest.raises(ValueError, match=message):
        og.energy_distance(first, second)


def test_energy_distance_needs_two_draws_to_be_unbiased():
    with pytest.raises(ValueError, match="at least two draws"):
        og.energy_distance(np.zeros((1, 2)), np.zeros((3, 2)), unbiased=True)


def test_constraint_violation_per_row():
    problem = og.Problem(lambda x: 0.0, equality=lambda x: x[:2], inequality=lambda x: x[2])
    draws = jnp.array([[1.0, -4.0, -1.0], [-3.0, 0.0, 2.0]])
    report = og.constraint_violation(problem, draws)
    np.testing.assert_allclose(report["equality"]["mean"], [2, 2])
    np.testing.assert_allclose(report["equality"]["max"], [3, 4])
    np.testing.assert_allclose(report["inequality"]["mean"], [1])
    np.testing.assert_allclose(report["equality"]["q50"], [2, 2])
    assert set(report["inequality"]) == {"mean", "max", "q50", "q90", "q99"}


def test_constraint_violation_of_a_trace():
    known = og.problems.ellipse()
    starts = known.start_off(jax.random.key(0), 3)
    algorithm = og.o_langevin(known.problem, 0.01)
    trace = og.sample(0, known.problem, starts, algorithm=algorithm, num_samples=50, progress=False)
    report = og.constraint_violation(known.problem, trace.pooled)
    assert report["equality"]["mean"][0] == pytest.approx(np.abs(trace.sample_stats["equality"]).mean(), rel=1e-4)
    with pytest.raises(ValueError, match="no constraint"):
        og.constraint_violation(og.Problem(lambda x: 0.0), trace.pooled)
