"""KSD⊥ and its relatives: against the definition, in both precisions, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ogradient as og
from ogradient import geometry as geo

pytestmark = pytest.mark.optimised

CUBIC = og.problems.cubic()


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


@pytest.mark.parametrize(
    ("m", "kernel"),
    [
        (1, og.rbf(1.4)),
        (2, og.imq(1.4)),
        pytest.param(1, og.imq(1.4), marks=pytest.mark.slow),
        pytest.param(2, og.rbf(1.4), marks=pytest.mark.slow),
    ],
    ids=["1-rbf", "2-imq", "1-imq", "2-rbf"],
)
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


def test_groups_leave_out_their_own_pairs(x64):
    problem = og.Problem(lambda x: -0.25 * jnp.sum(x**4), lambda x: x[0] + x[1] ** 3)
    x, kernel = jax.random.normal(jax.random.key(0), (6, 3)), og.imq(1.4)
    terms, groups = slow_ksd(problem, x, kernel), np.array([7, 7, 3, 3, 3, 9])
    apart = groups[:, None] != groups[None]
    result = og.orthogonal_ksd(problem, x, rkhs_kernel=kernel, groups=groups)
    assert result.value == pytest.approx(terms[apart].sum() / apart.sum(), abs=1e-12)


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
