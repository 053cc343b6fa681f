"""Draws of problems with supports have the law that was written down, in the coordinates in which it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calibrated import SEED, discrepancy

import ogradient as og

CHAINS = 48


def check(trace, moments):
    assert not trace.problems().get(og.Status.NON_FINITE)
    for function, truth, resolution in moments:
        means = np.asarray(trace.apply(function), float).mean(axis=1)
        error, limit = discrepancy(means, truth)
        assert limit < resolution
        assert error < limit


def run(problem, starts, **options):
    return og.sample(SEED, problem, starts, num_warmup=300, num_samples=600, progress=False, **options)


def hyperbola(support=True, log_jacobian=True):
    """Of tau ~ Gamma(3, 1) and p ~ Beta(2, 3), given tau · p = ½: the law of p alone is a density on (0, 1)."""
    logdensity = lambda x: 2 * jnp.log(x["tau"]) - x["tau"] + jnp.log(x["p"]) + 2 * jnp.log1p(-x["p"])
    if not log_jacobian:  # as if the factor of tau = exp(y) had been forgotten
        logdensity_with = logdensity
        logdensity = lambda x: logdensity_with(x) - jnp.log(x["tau"])
    supports = {"tau": og.positive, "p": og.interval(0.0, 1.0)} if support else None
    return og.Problem(logdensity, lambda x: x["tau"] * x["p"] - 0.5, support=supports)


def hyperbola_mean():
    p = np.linspace(1e-6, 1 - 1e-6, 400_001)
    tau = 0.5 / p
    density = tau**2 * np.exp(-tau) * p * (1 - p) ** 2 / p  # δ(τp − ½) dτ dp = dp/p
    return float((p * density).sum() / density.sum())


STARTS = {"tau": jnp.linspace(0.5, 4.0, CHAINS), "p": jnp.linspace(0.1, 0.9, CHAINS)}


@pytest.mark.statistical
def test_positive_numbers_and_intervals():
    trace = run(hyperbola(), STARTS)
    assert trace["tau"].min() > 0
    assert 0 < trace["p"].min() <= trace["p"].max() < 1
    np.testing.assert_allclose(trace["tau"] * trace["p"], 0.5, rtol=1e-5)
    check(trace, [(lambda x: x["p"], hyperbola_mean(), 0.02)])


@pytest.mark.statistical
@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_a_forgotten_jacobian_is_seen():
    check(run(hyperbola(log_jacobian=False), STARTS), [(lambda x: x["p"], hyperbola_mean(), 0.02)])


@pytest.mark.statistical
def test_a_simplex():
    """Dirichlet(a), given that the first two shares are equal: their sum is that of Dirichlet(a₀ + a₁ − 1, a₂, a₃)."""
    a = jnp.array([2.0, 1.5, 0.8, 3.0])
    problem = og.Problem(lambda w: jnp.sum((a - 1) * jnp.log(w)), lambda w: w[0] - w[1], support=og.simplex)
    trace = run(problem, jax.random.dirichlet(jax.random.key(3), 2 * jnp.ones(4), (CHAINS,)))
    assert trace["x"].shape == (CHAINS, 600, 4)
    np.testing.assert_allclose(trace["x"].sum(axis=-1), 1.0, rtol=1e-5)
    total = float(a.sum()) - 1
    check(trace, [(lambda w: w[0] + w[1], 2.5 / total, 0.02), (lambda w: w[2], 0.8 / total, 0.02)])


@pytest.mark.slow
@pytest.mark.statistical
def test_a_correlation_matrix():
    """LKJ(2) of 3 × 3, given that two correlations are opposite: the third has the mean of a density in two numbers."""

    def logdensity(L):
        return jnp.log(L[1, 1]) * 3 + jnp.log(L[2, 2]) * 2  # of L, with det^(η−1) and the factor from LLᵀ to L

    correlation = lambda L, i, j: (L @ L.T)[i, j]
    problem = og.Problem(logdensity, lambda L: correlation(L, 0, 1) + correlation(L, 0, 2), support=og.cholesky_corr)
    starts = og.cholesky_corr.to_user(0.3 * jax.random.normal(jax.random.key(4), (CHAINS, 3)))
    # In correlations (a, b, c): density det R on the set, restricted to b = −a (conditional in those coordinates, dδ = 1).
    a, c = np.meshgrid(np.linspace(-1, 1, 1501), np.linspace(-1, 1, 1501), indexing="ij")
    determinant = 1 - 2 * a**2 - c**2 - 2 * a**2 * c
    density = np.where(determinant > 0, determinant, 0.0)
    truth = float((c * density).sum() / density.sum())
    check(run(problem, starts), [(lambda L: correlation(L, 1, 2), truth, 0.06)])
