"""Momentum of whole moves keeps the law, and a bound on the pull changes when a chain lands and not where it goes."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calibrated import check_law
from test_laws import CASES

import ogradient as og
from ogradient import geometry as geo
from ogradient.samplers.pull import bounded

pytestmark = pytest.mark.statistical
MOMENTUM = 0.8


def run_case(case, **settings):
    """As without memory, over the same time: a step covers η/(1−μ) of it."""
    case = dict(case)
    known, step_size = case.pop("known")(), case.pop("step_size") * (1 - MOMENTUM)
    check_law(known, og.o_langevin(known.problem, step_size, momentum=MOMENTUM, **settings), **case)


@pytest.mark.parametrize(
    "name",
    [
        "ellipse",
        "interval",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("ellipse-hausdorff", "cubic", "torus_b", "torus_b-hausdorff")
        ),
    ],
)
def test_law(name):
    # On the cubic's flanks all of g in a step, remembered, goes too far: a chain in five hundred runs away.
    weaker = {"alpha": 1 / CASES[name]["step_size"]} if name == "cubic" else {}
    run_case(CASES[name], **weaker)


def test_a_bound_on_the_pull_that_is_met_now_and_then_keeps_the_law():
    run_case(CASES["ellipse"], max_pull=5.0)


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="negative control: noise of a sampler without memory is too much for one"
)
def test_noise_that_forgets_the_momentum_is_seen(monkeypatch):
    module = sys.modules["ogradient.samplers.o_langevin"]
    monkeypatch.setattr(module, "noise_scale", lambda eta, temperature, momentum: jnp.sqrt(2 * temperature * eta))
    jax.clear_caches()
    run_case(CASES["interval"])


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="negative control: a wall that leaves the velocity as it is"
)
def test_a_velocity_that_is_not_mirrored_is_seen(monkeypatch):
    monkeypatch.setattr(geo.boundary.Turn, "of_velocity", lambda self, velocity: velocity)
    jax.clear_caches()
    run_case(CASES["interval"])


BOUND = 0.1
PULLED = {
    "o_langevin": lambda problem: og.o_langevin(problem, 0.01, temperature=1e-12, max_pull=BOUND),
    "o_kinetic": lambda problem: og.o_kinetic(problem, 0.01, temperature=1e-12, max_pull=BOUND),
    "o_svgd": lambda problem: og.o_svgd(problem, 0.01, max_pull=BOUND),
}


@pytest.mark.parametrize("name", PULLED)
def test_no_sampler_goes_farther_across_the_set_than_its_bound(name):
    """From far off: a step moves by η Σ λ_k∇g_k at most, |λ_k| ≤ max_pull, where it would go all the way without a bound."""
    problem = og.Problem(lambda x: 0.0 * jnp.sum(x), equality=lambda x: jnp.sum(x**2) - 1)
    algorithm, starts = PULLED[name](problem), jnp.array([[3.0, 4.0], [-4.0, 3.0]])
    start = starts if algorithm.step.kernel.ensemble else starts[0]
    state, _ = jax.jit(algorithm.step)(jax.random.key(0), algorithm.init(start))
    moved = np.linalg.norm(np.asarray(state.position - start), axis=-1)
    np.testing.assert_allclose(moved, 0.01 * BOUND * 10, rtol=0.02)  # |∇g| = 10


def test_particles_add_up_their_moves(x64):
    """Steps v ← μv + Δ, x ← x + v with the Δ of particles without memory at the same place; where they rest is the same."""
    known = og.problems.ellipse()
    plain, moving = og.o_svgd(known.problem, 0.05), og.o_svgd(known.problem, 0.05, momentum=0.6)
    key, x = jax.random.key(0), known.start_off(jax.random.key(1), 12)
    state, velocity = moving.init(x), jnp.zeros_like(x)
    for _ in range(4):
        delta = (
            plain.step(key, plain.init(state.position)._replace(bandwidth=state.bandwidth))[0].position - state.position
        )
        velocity, expected = 0.6 * velocity + delta, state.position + 0.6 * velocity + delta
        state, _ = moving.step(key, state)
        np.testing.assert_allclose(state.position, expected, atol=1e-9)


def test_particles_with_memory_are_mirrored_at_a_wall(x64):
    """A particle that meets the wall keeps its speed and turns round."""
    problem = og.Problem(lambda x: 0.0 * jnp.sum(x), inequality=lambda x: x[:1] - 1)
    algorithm = og.o_svgd(problem, 0.01, momentum=0.9)
    state = algorithm.init(jnp.array([[0.9, 0.0], [-3.0, 0.0]]))._replace(velocity=jnp.array([[0.5, 0.2], [0.0, 0.0]]))
    state, _ = algorithm.step(jax.random.key(0), state)
    moved = 0.9 * np.array([0.5, 0.2])
    np.testing.assert_allclose(state.velocity[0], moved * [-1, 1], atol=0.02)
    np.testing.assert_allclose(state.position[0], [2 - 0.9 - moved[0], moved[1]], atol=0.02)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_variance_on_a_line_is_what_the_recursion_says(momentum):
    """A chain x ← x + μΔ − ηλx + √(2(1−μ)ηT)ξ has variance T/λ/(1 − ηλ/2(1+μ)), at any step size."""
    problem = og.Problem(lambda x: -0.5 * jnp.sum(jnp.asarray([0.5, 2.0]) * x**2))
    algorithm = og.langevin(problem, 0.6, momentum=momentum, temperature=3.0)
    run = {"num_warmup": 300, "num_samples": 400, "thinning": 5, "progress": False}
    draws = og.sample(0, problem, jnp.zeros((512, 2)), algorithm=algorithm, **run)["x"]
    rates = np.array([0.5, 2.0])
    expected = 3.0 / rates / (1 - 0.6 * rates / (2 * (1 + momentum)))
    per_chain = np.mean(np.asarray(draws, float) ** 2, axis=1)
    error = per_chain.std(axis=0, ddof=1) / np.sqrt(512)
    assert np.all(error < 0.01 * expected)
    assert np.all(np.abs(per_chain.mean(axis=0) - expected) < 5 * error)


def test_a_bounded_pull_goes_the_same_way_later():
    """Two rows, from far: the flow ẋ = −J⁺ψ(g) ends at the same point for every bound, which no gradient's share exceeds."""
    g = lambda x: jnp.stack([jnp.sum(x**2) - 1, x[0] * x[1] - 0.2])
    bound = 0.001

    @jax.jit
    def land(x, max_pull):
        def step(x, _):
            frame = geo.frame_at(g, x)
            rate = bounded(frame, 0.01 * frame.value, jnp.asarray(0.01), max_pull)
            return x + geo.steer(frame, jnp.zeros_like(x), -rate), jnp.max(jnp.abs(geo.solve(frame, rate)))

        return jax.lax.scan(step, x, length=4000)

    start = jnp.array([1.5, 2.0, -1.0])
    ends = []
    for limit in (None, bound / 0.01):
        end, largest = land(start, limit)
        assert np.abs(g(end)).max() < 1e-5
        assert (largest.max() > 1.5 * bound) if limit is None else (largest.max() <= bound * (1 + 1e-5))
        ends.append(end)
    assert np.linalg.norm(start - ends[0]) > 1
    np.testing.assert_allclose(*ends, atol=0.01)
