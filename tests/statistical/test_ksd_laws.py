"""The Stein test: calibrated under the null, for dependent draws too; powerful against the other measure and a wrong variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ogradient as og

pytestmark = pytest.mark.statistical
CUBIC, OTHER = og.problems.cubic(), og.problems.cubic("hausdorff")


@pytest.mark.parametrize("seed", range(4))
def test_exact_draws_pass_and_the_other_measure_is_ten_standard_errors_away(seed, x64):
    right = og.orthogonal_ksd(CUBIC.problem, CUBIC.exact(jax.random.key(seed), 800))
    wrong = og.orthogonal_ksd(CUBIC.problem, OTHER.exact(jax.random.key(seed), 800))
    assert abs(right.value) < 4 * right.standard_error
    assert right.p_value > 1e-3
    assert wrong.value > 10 * wrong.standard_error
    assert wrong.p_value < 0.01
    mirrored = og.orthogonal_ksd(OTHER.problem, OTHER.exact(jax.random.key(seed), 800))
    assert abs(mirrored.value) < 4 * mirrored.standard_error


def p_values(known, replications, n, **settings):
    ksd = lambda s: og.orthogonal_ksd(
        CUBIC.problem, known.exact(jax.random.key(500 + s), n), num_bootstrap=199, seed=s, **settings
    )
    return np.array([ksd(s).p_value for s in range(replications)])


def test_p_values_are_uniform_under_the_null_and_small_otherwise():
    null = p_values(CUBIC, 200, 150)
    assert stats.kstest(null, "uniform").pvalue > 1e-4
    assert np.mean(p_values(OTHER, 12, 800) < 0.05) > 0.9


def test_standard_error_is_that_over_replications():
    """In 50 dimensions too, where the terms i = j are far larger than the others."""
    known = og.problems.transport(50, 5)
    results = [
        og.orthogonal_ksd(known.problem, known.exact(jax.random.key(s), 100), num_bootstrap=0) for s in range(60)
    ]
    values, claimed = np.array([r.value for r in results]), np.mean([r.standard_error for r in results])
    assert claimed == pytest.approx(values.std(ddof=1), rel=0.35)
    assert abs(values.mean()) < 5 * claimed / np.sqrt(60)


def test_dependent_draws_need_dependent_signs():
    """Every draw three times in a row: independent signs cry wolf, a chain of signs with the right memory does not."""
    draws = [jnp.repeat(CUBIC.exact(jax.random.key(s), 80), 3, axis=0) for s in range(40)]
    reject = lambda p: np.mean(
        [og.orthogonal_ksd(CUBIC.problem, d, num_bootstrap=199, flip_probability=p).p_value < 0.05 for d in draws]
    )
    assert reject(0.5) > 0.5
    assert reject(0.1) < 0.25


def flat_gaussian(rng, chains, draws, dim, *, rho=0.0, variance=1.0):
    """N(0, variance · I) given x₀ = 0.3, autoregressive along every chain."""
    x = np.empty((chains, draws, dim), np.float32)
    x[:, 0] = rng.normal(size=(chains, dim))
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * rng.normal(size=(chains, dim))
    x *= np.float32(np.sqrt(variance))
    x[..., 0] = 0.3
    return x


FLAT = og.Problem(lambda x: -0.5 * jnp.sum(x**2), lambda x: x[0] - 0.3)


@pytest.mark.parametrize("dim", [2, 5, 20])
@pytest.mark.parametrize("variance", [1.3, 1 / 1.3])
def test_a_wrong_variance_is_seen_in_a_thousand_draws(dim, variance):
    """One kernel of bandwidth median / log n saw 1.3 in none of twenty cases."""
    rng = np.random.default_rng(dim)
    seen = [
        og.orthogonal_ksd(FLAT, flat_gaussian(rng, 1000, 1, dim, variance=variance)[:, 0], num_bootstrap=300).p_value
        for _ in range(5)
    ]
    assert max(seen) < 0.01


def test_dependent_draws_in_many_dimensions_are_no_alarm():
    """Correlation time 19, d = 100. Three runs at level 0.01: two alarms have probability 3e-4. Without groups all alarm."""
    rng = np.random.default_rng(0)
    with_groups, without = [], []
    for seed in range(3):
        draws, groups = flat_gaussian(rng, 32, 200, 100, rho=0.9)[:, ::10], np.repeat(np.arange(32), 20)
        settings = {"num_bootstrap": 300, "seed": seed}
        with_groups.append(og.orthogonal_ksd(FLAT, draws.reshape(-1, 100), groups=groups, **settings).p_value)
        without.append(og.orthogonal_ksd(FLAT, draws.reshape(-1, 100), **settings).p_value)
    assert sum(p < 0.01 for p in with_groups) < 2
    assert max(without) < 0.01
