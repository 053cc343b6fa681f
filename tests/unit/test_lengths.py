"""How long trajectories should be: autocorrelation times of short windows, and what follows from them."""

import numpy as np
import pytest

from ogradient.warmup.chmc import ENOUGH, METRIC_STEPS, _long_enough, efficiency


def autoregression(rho, length=2000, chains=16, seed=0):
    """Draws (time, chain, 1) of a stationary process with correlation ρ^k at lag k."""
    noise = np.random.default_rng(seed).normal(size=(length, chains, 1))
    draws = noise.copy()
    for t in range(1, length):
        draws[t] = rho * draws[t - 1] + np.sqrt(1 - rho**2) * noise[t]
    return draws


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_efficiency_of_an_autoregression_is_known(rho):
    assert efficiency(autoregression(rho)) == pytest.approx((1 - rho) / (1 + rho), rel=0.15)


def test_draws_that_alternate_are_as_good_as_their_squares():
    assert efficiency(autoregression(-0.5)) == pytest.approx((1 - 0.25) / (1 + 0.25), rel=0.15)


def test_a_slow_direction_is_seen_behind_a_fast_one():
    """One correlation, of successive draws, does not tell them: 0.5 here, as of a process that is ten times faster."""
    fast, slow = autoregression(0.0), autoregression(0.97, seed=1)
    mixed = fast + slow
    lag_one = np.mean(mixed[1:] * mixed[:-1]) / np.mean(mixed**2)
    assert lag_one < 0.55
    assert efficiency(mixed) < 0.1


def test_chains_that_differ_are_slow():
    apart = 3 * np.arange(16)[None, :, None]
    assert efficiency(autoregression(0.0, length=100) + apart) < 0.2
    # And yet it shows which moves are better.
    assert efficiency(autoregression(0.8, length=100) + apart) < 0.6 * efficiency(
        autoregression(0.0, length=100) + apart
    )


def test_fixed_coordinates_play_no_part():
    draws = autoregression(0.5)
    assert efficiency(np.concatenate([draws, np.full_like(draws, 2.0)], axis=2)) == efficiency(draws)
    assert efficiency(np.full((50, 4, 2), 3.0)) == 1.0


def test_longer_trajectories_are_taken_where_draws_are_too_correlated():
    assert _long_enough({1: 0.3, 2: 0.35, 4: 0.5}, 1) == 1
    assert _long_enough({1: 0.1, 2: 0.15, 4: ENOUGH, 8: 0.5}, 1) == 4
    assert _long_enough({4: 0.01, 8: 0.03, 12: 0.05, 16: 0.04}, 4) == 12
    # Where chains never meet all lengths look alike, up to chance.
    assert _long_enough({1: 0.0100, 2: 0.0101, 4: 0.0102, 8: 0.0103}, 1) == METRIC_STEPS
