"""KSD⊥ and its relatives: against the definition, calibrated under the null, powerful against the other measure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ogradient as og
from ogradient import geometry as geo

CUBIC, OTHER = og.problems.cubic(), og.problems.cubic("hausdorff")


def slow_ksd(problem, x, kernel):
    """The four terms by autodiff, for all pairs."""

    def pieces(point):
        _, logdensity, constraint, _ = problem.flatten(point)
        frame, a, _ = geo.stein_drift(logdensity, constraint, point, measure=problem.measure, method="exact")
        return a, jax.vmap(lambda e: geo.project(frame, e))(jnp.eye(point.size))

    k = lambda y, z: kernel.profile(jnp.sum((y - z) ** 2), kernel.bandwidth).value

    def term(one, other):
        (x, a, D), (y, b, E) = one, other
        mixed = jax.jacobian(jax.grad(k, 1), 0)(x, y).T
        sides = a @ E @ jax.grad(k, 1)(x, y) + b @ D @ jax.grad(k, 0)(x, y)
        return a @ b * k(x, y) + sides + jnp.trace(D @ mixed @ E)

    @jax.jit
    def all_pairs(x):
        points = (x, *jax.vmap(pieces)(x))
        return jax.vmap(lambda one: jax.vmap(lambda other: term(one, other))(points))(points)

    return np.asarray(all_pairs(x))


@pytest.mark.parametrize("kernel", [og.rbf(1.4), og.imq(1.4)], ids=["rbf", "imq"])
@pytest.mark.parametrize("m", [1, 2])
def test_agrees_with_the_definition(kernel, m, x64):
    problem = og.Problem(
        lambda x: -0.25 * jnp.sum(x**4), lambda x: jnp.array([x[0] + x[1] ** 3, x[1] + jnp.sin(x[2])])[:m]
    )
    x = jax.random.normal(jax.random.key(0), (6, 3))
    terms = slow_ksd(problem, x, kernel)
    off = terms.sum() - np.trace(terms)
    u = og.orthogonal_ksd(problem, x, rkhs_kernel=kernel, num_bootstrap=0)
    v = og.orthogonal_ksd(problem, x, rkhs_kernel=kernel, statistic="v", num_bootstrap=0, block_size=4)
    assert u.value == pytest.approx(off / 30, abs=1e-12)
    assert v.value == pytest.approx(terms.mean(), abs=1e-12)
    assert u.standard_error == pytest.approx(
        np.sqrt(2 * ((terms**2).sum() - (np.diag(terms) ** 2).sum())) / 30, rel=1e-12
    )
    assert u.p_value is None


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


def test_groups_leave_out_their_own_pairs(x64):
    problem = og.Problem(lambda x: -0.25 * jnp.sum(x**4), lambda x: x[0] + x[1] ** 3)
    x, kernel = jax.random.normal(jax.random.key(0), (6, 3)), og.imq(1.4)
    terms, groups = slow_ksd(problem, x, kernel), np.array([7, 7, 3, 3, 3, 9])
    apart = groups[:, None] != groups[None]
    result = og.orthogonal_ksd(problem, x, rkhs_kernel=kernel, groups=groups)
    assert result.value == pytest.approx(terms[apart].sum() / apart.sum(), abs=1e-12)


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


def test_single_precision_agrees():
    draws = CUBIC.exact(jax.random.key(3), 500)
    single = og.orthogonal_ksd(CUBIC.problem, draws, num_bootstrap=0)
    with jax.enable_x64(True):
        double = og.orthogonal_ksd(CUBIC.problem, np.asarray(draws, np.float64), num_bootstrap=0)
    assert abs(single.value - double.value) < 0.02 * double.standard_error
    assert single.standard_error == pytest.approx(double.standard_error, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: og.orthogonal_ksd(CUBIC.problem, d[:1]), "at least two draws"),
        (lambda d: og.orthogonal_ksd(CUBIC.problem, d, statistic="w"), "statistic must be"),
        (lambda d: og.orthogonal_ksd(CUBIC.problem, d, flip_probability=0.9), "flip_probability must"),
        (lambda d: og.orthogonal_ksd(CUBIC.problem, d.at[0].set(jnp.nan)), "not finite"),
        (lambda d: og.orthogonal_ksd(CUBIC.problem, d, groups=np.zeros(3)), "one label per draw"),
        (lambda d: og.orthogonal_ksd(CUBIC.problem, d, groups=np.zeros(9)), "one label only"),
        (lambda d: og.orthogonal_ksd(CUBIC.problem, d, groups=np.arange(9), statistic="v"), "groups go with"),
        (lambda d: og.orthogonal_ksd(CUBIC.problem, jnp.ones((9, 2))), "median bandwidth is 0"),
        (lambda d: og.orthogonal_fisher(og.Problem(lambda x: 0.0), d, d), "needs a problem with equality"),
        (lambda d: og.orthogonal_fisher(CUBIC.problem, d, d[:3]), "structure and shapes of the draws"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(CUBIC.exact(jax.random.key(0), 9))


def test_fisher_divergence_is_zero_for_the_score_itself_and_known_otherwise(x64):
    known = og.problems.von_mises_fisher(3, 5.0)
    draws = known.start_on(jax.random.key(0), 40_000)
    assert og.orthogonal_fisher(known.problem, draws, lambda x: 5 * jnp.eye(3)[0]) == pytest.approx(0, abs=1e-12)
    normal_only = lambda x: 5 * jnp.eye(3)[0] + 7 * x  # differs across the sphere only
    assert og.orthogonal_fisher(known.problem, draws, normal_only) == pytest.approx(0, abs=1e-12)
    assert og.orthogonal_fisher(known.problem, draws, jnp.zeros_like(draws)) == pytest.approx(25 * 2 / 3, rel=0.02)


def test_sliced_wasserstein():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(500, 2)), rng.normal(size=(700, 2))
    assert og.sliced_wasserstein(first, first) == 0
    assert og.sliced_wasserstein(first, second) < 0.15
    shift = np.array([[3.0, 4.0]])
    expected = 5 / np.sqrt(2)  # root mean square of 5 cos θ
    assert og.sliced_wasserstein(first, first + shift, num_projections=5000) == pytest.approx(expected, rel=0.03)
    one = stats.wasserstein_distance(first[:, 0], second[:, 0])
    assert og.sliced_wasserstein(first[:, :1], second[:, :1], p=1) == pytest.approx(one, rel=1e-6)
    with pytest.raises(ValueError, match="same dimension"):
        og.sliced_wasserstein(first, second[:, :1])
    with pytest.raises(ValueError, match="at least 1"):
        og.sliced_wasserstein(first, second, p=0.5)
