"""How long trajectories should be: autocorrelation times of short windows, and what follows from them."""

import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.samplers.chmc import CHMC
from ogradient.warmup.chmc import CHMCTuning, _begin
from ogradient.warmup.lengths import (
    ENOUGH,
    LEAST_STEPS,
    TRAJECTORIES,
    Length,
    efficiency,
    find_length,
    long_enough,
    moving,
    steps_for,
)
from ogradient.warmup.metric import determined, judged
from ogradient.warmup.stages import Stage


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


def test_roundings_of_a_fixed_coordinate_are_not_its_motion():
    """In float32 100/3 is known to 4e-6: what draws show there is slow, and larger than anything in units of the metric."""
    draws = autoregression(0.5).astype(np.float32)
    pinned = np.float32(100 / 3) + np.cumsum(np.float32(4e-6) * np.sign(draws), axis=0, dtype=np.float32) / 50
    both = np.concatenate([draws, pinned.astype(np.float32)], axis=2)
    scales = np.r_[np.ones(draws.shape[2]), np.full(draws.shape[2], 1e-10)]
    assert np.ptp(both[..., -1]) > 0
    assert efficiency(judged(scales, both)) < 0.5 * efficiency(draws)
    fixed = lambda: np.arange(both.shape[2]) == both.shape[2] - 1
    assert efficiency(judged(scales, moving(both, fixed))) > 0.9 * efficiency(draws)
    # One that is free is seen, far from 0 as it may be.
    slow = (1e5 + autoregression(0.99)[..., :1]).astype(np.float32)
    free = lambda: np.zeros(1, bool)
    assert efficiency(judged(np.ones(1), moving(slow, free))) < 0.05


def test_fixed_coordinates_are_those_of_the_constraint():
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), lambda x: jnp.stack([x[0] - 5, x[1] * x[2] - 1]))
    positions = jnp.stack([jnp.array([5.0, t, 1 / t, 1e5]) for t in (0.5, 1.0, 2.0)])
    np.testing.assert_array_equal(determined(problem, positions), [True, False, False, False])
    free = og.Problem(lambda x: -0.5 * jnp.sum(x**2))
    assert not determined(free, positions).any()


def taken(efficiencies, best):
    tried = {steps: Length(steps, share, share / (steps + 0.5) ** 0.5) for steps, share in efficiencies.items()}
    return long_enough(tried, tried[best]).steps


def test_longer_trajectories_are_taken_where_draws_are_too_correlated():
    assert taken({1: 0.3, 2: 0.35, 4: 0.5}, 1) == 1
    assert taken({1: 0.1, 2: 0.15, 4: ENOUGH, 8: 0.5}, 1) == 4
    assert taken({8: 0.5, 4: ENOUGH, 2: 0.15, 1: 0.1}, 1) == 4
    assert taken({4: 0.01, 8: 0.03, 12: 0.05, 16: 0.04}, 4) == 12
    # Where chains never meet all lengths look alike, up to chance.
    assert taken({1: 0.0100, 2: 0.0101, 4: 0.0102, 8: 0.0103}, 1) == LEAST_STEPS


class Pretended:
    """Windows whose draws have a correlation that the length decides, and an acceptance rate that may fall with it."""

    target = 0.8

    def __init__(self, correlation, acceptance=lambda steps: 0.8):
        self.correlation, self.acceptance, self.tried = correlation, acceptance, []

    def run(self, number, stage, *, adapt, num_integration_steps):
        self.tried.append(num_integration_steps)
        draws = autoregression(self.correlation(num_integration_steps), length=400, seed=number)
        rates = np.full(16, self.acceptance(num_integration_steps))
        return stage._replace(num_integration_steps=num_integration_steps, rates=rates, draws=draws)


def search(windows, begin, **settings):
    none = np.zeros(0)
    stage = Stage(0.5, 1, np.ones(1), None, none, none)
    return find_length(windows, stage, TRAJECTORIES, np.ones(1), first=0, begin=begin, **settings)[1]


@pytest.mark.parametrize("begin", [1.0, 3.0, 20.0])
def test_the_best_length_is_found_from_below_and_from_above(begin):
    """Draws forget as cos(0.25 L) does: a quarter of a period is about six steps, and three or four pay best."""
    windows = Pretended(lambda steps: np.cos(min(0.25 * steps, np.pi / 2)))
    found = search(windows, begin)
    assert found.steps in (4, 6)
    assert found.gain == pytest.approx(found.efficiency / (found.steps + 0.5) ** 0.5)
    assert max(windows.tried) <= 24


def test_slow_draws_are_worth_long_trajectories():
    windows = Pretended(lambda steps: np.exp(-steps / 40))
    assert search(windows, 3.0).steps >= 16


def test_nothing_longer_is_tried_where_few_moves_are_accepted():
    windows = Pretended(lambda steps: 0.99, lambda steps: 0.8 if steps < 8 else 0.3)
    search(windows, 3.0)
    assert max(windows.tried) == 8


def test_nothing_longer_is_tried_where_length_is_no_gain():
    """A slow direction that no length makes faster: draws of correlation 0.85 have efficiency 0.08, which is not enough."""
    windows = Pretended(lambda steps: 0.85)
    search(windows, 3.0)
    assert max(windows.tried) <= 16


def test_what_cannot_be_better_is_not_tried():
    windows = Pretended(lambda steps: 0.0)
    search(windows, 6.0, least=0.5)
    assert max(windows.tried) == 3
    windows = Pretended(lambda steps: 0.9)
    search(windows, 6.0, least=0.3)
    assert max(windows.tried) <= 12


def test_warm_up_lasts_some_autocorrelation_times():
    tuning = lambda efficiency: CHMCTuning(0.5, 1, np.ones(1), 0.8, efficiency, None, np.zeros(1, bool))
    assert [tuning(share).num_warmup for share in (1.0, 0.1, 0.0)] == [100, 200, 1000]


class Fussy:
    """Windows in which only steps of some sizes are accepted: those below are lost in roundings."""

    kernel = CHMC()
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), lambda x: jnp.sum(x**2) - 1)

    def __init__(self, shortest, longest):
        self.shortest, self.longest, self.adapted = shortest, longest, []

    def run(self, number, stage, *, adapt, length=100, **changes):
        stage = stage._replace(**changes)
        if adapt:
            self.adapted.append(stage.step_size)
        accepted = 0.8 if self.shortest < stage.step_size < self.longest else 0.0
        return stage._replace(rates=np.full(4, accepted))


@pytest.mark.parametrize(("shortest", "longest"), [(1e-3, 1e-2), (1e-9, 1e-7), (1e-2, 1.0), (0.5, 10.0), (1e5, 1e7)])
def test_steps_are_adapted_from_one_that_moves(shortest, longest):
    windows = Fussy(shortest, longest)
    _begin(windows, jnp.eye(4), np.ones(4))
    assert len(windows.adapted) == 1
    assert shortest < windows.adapted[0] < longest


def test_a_trajectory_keeps_its_time_when_the_step_size_changes():
    assert steps_for(3 * 0.488, 0.381, TRAJECTORIES) == 4
    assert steps_for(3 * 0.4, 0.4, TRAJECTORIES) == 3
    assert steps_for(1e-3, 0.4, TRAJECTORIES) == 1
    assert steps_for(1e9, 0.4, TRAJECTORIES) == TRAJECTORIES[-1]
    assert steps_for(5.0, 0.4, (1,)) == 1  # clangevin
