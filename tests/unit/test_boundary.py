"""Inequalities: reflections along the set, the weight that vanishes on the boundary, and what all samplers do with h."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ogradient as og
from ogradient import geometry as geo
from ogradient.geometry.boundary import boundary_weight, turn_back
from ogradient.geometry.land import land_one

CAP = og.problems.spherical_cap(4, 0.2)
gaussian = lambda x: -0.5 * jnp.sum(x**2)
nothing = lambda x: jnp.zeros((0,), x.dtype)


def turned(inequality, x, y, equality=nothing, max_active=8):
    @jax.jit
    def move(x, y):
        turn = turn_back(inequality, geo.frame_at(equality, x), x, y, max_active=max_active, pull=lambda h: h)
        return turn.end, turn.left

    return move(jnp.asarray(x), jnp.asarray(y))


def test_a_move_that_ends_inside_is_left_alone(x64):
    end, left = turned(lambda x: x[:1] - 1, [0.0, 0.0], [0.9, 3.0])
    np.testing.assert_array_equal(end, [0.9, 3.0])
    assert not left


def test_a_move_that_ends_outside_is_mirrored_at_a_plane(x64):
    normal = jnp.array([0.6, 0.8])
    end, left = turned(lambda x: jnp.array([normal @ x - 1]), [0.0, 0.0], [1.0, 1.0])
    np.testing.assert_allclose(end, np.ones(2) - 2 * 0.4 * normal, atol=1e-12)
    assert left


def test_two_violated_rows_are_mirrored_together(x64):
    end, _ = turned(lambda x: x - 1, [0.5, 0.5], [1.2, 1.3])
    np.testing.assert_allclose(end, [0.8, 0.7], atol=1e-12)


def test_the_reflection_leaves_g_alone_to_first_order(x64):
    """With g = x₀ − x₁ and h = x₀ − 1 the way back is along the line, not straight to the wall."""
    end, _ = turned(lambda x: x[:1] - 1, [0.9, 0.9], [1.1, 1.1], equality=lambda x: x[:1] - x[1:2])
    np.testing.assert_allclose(end, [0.9, 0.9], atol=1e-12)


def test_where_boundaries_meet_a_move_is_refused(x64):
    """In a wedge of ten degrees the mirror image at one wall is outside the other."""
    walls = lambda x: jnp.stack([x[1] - 0.1 * x[0], -x[1] - 0.1 * x[0]])
    start = jnp.array([0.5, 0.0])
    end, left = turned(walls, start, [0.5, 0.3], max_active=1)
    np.testing.assert_array_equal(end, start)
    assert left


def test_a_start_outside_is_pulled_in_and_not_mirrored(x64):
    end, _ = turned(lambda x: x[:1] - 1, [40.0], [39.0])
    np.testing.assert_allclose(end, [1.0], atol=1e-12)


def test_where_h_is_not_a_number_is_outside(x64):
    end, left = turned(lambda x: jnp.log(x[:1]) - 1, [0.1, 0.0], [-0.2, 0.0])
    np.testing.assert_array_equal(end, [0.1, 0.0])
    assert left


def test_the_wall_is_where_the_move_crossed_it_and_not_where_it_ended(x64):
    """Beyond it a steep h is flat, and says nothing of how far outside a move is."""
    steep = lambda x: jnp.tanh(5 * (x[:1] - 1))
    end, _ = turned(steep, [0.95], [1.3])
    assert abs(end[0] - 0.7) < 0.02
    straight, _ = turned(lambda x: x[:1] - 1, [0.95], [1.3])
    np.testing.assert_allclose(straight, [0.7], atol=1e-12)


def no_gradient(x):
    """0, with a gradient that is not a number."""
    return -jnp.linalg.norm(0 * x)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: og.o_langevin(p, 0.05),
        lambda p: og.o_langevin(p, 0.05, momentum=0.5),
        lambda p: og.o_kinetic(p, 0.05),
        lambda p: og.o_svgd(p, 0.05),
        lambda p: og.o_svgd(p, 0.05, momentum=0.5),
    ],
    ids=["o_langevin", "o_langevin, momentum", "o_kinetic", "o_svgd", "o_svgd, momentum"],
)
def test_a_move_that_is_not_a_number_is_no_reflection(make):
    """It is said, and nothing of it stays: what comes next begins at the last good place, with finite numbers."""
    problem = og.Problem(no_gradient, inequality=lambda x: jnp.sum(x**2) - 9)
    algorithm = make(problem)
    position = jnp.linspace(0.2, 1, 8).reshape(4, 2)
    position = position if algorithm.step.kernel.ensemble else position[0]
    state, info = jax.jit(algorithm.step)(jax.random.key(0), algorithm.init(position))
    assert info.status == og.Status.NON_FINITE
    np.testing.assert_array_equal(state.position, position)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))


def test_rows_given_twice_change_nothing(x64):
    once = turned(lambda x: x[:1] - 1, [0.9, 0.3], [1.1, 0.7])[0]
    twice = turned(lambda x: jnp.stack([x[0] - 1, 2 * x[0] - 2]), [0.9, 0.3], [1.1, 0.7])[0]
    np.testing.assert_allclose(once, twice, atol=1e-12)


def test_inactive_rows_of_a_frame_are_as_if_not_there(x64):
    rng = np.random.default_rng(0)
    jacobian, value, active = rng.normal(size=(4, 6)), rng.normal(size=4), np.array([True, False, True, False])
    masked = geo.factor(jnp.array(value), jnp.where(active[:, None], jacobian, 0.0), jnp.array(active))
    plain = geo.factor(jnp.array(value[active]), jnp.array(jacobian[active]))
    vector = rng.normal(size=6)
    np.testing.assert_allclose(
        geo.steer(masked, vector, jnp.array(value)), geo.steer(plain, vector, value[active]), atol=1e-12
    )
    np.testing.assert_allclose(masked.half_log_det, plain.half_log_det, atol=1e-12)
    assert not masked.deficient


def particles_on_the_cap(n):
    x = CAP.exact(jax.random.key(0), n)
    return x, jax.jit(jax.vmap(lambda p: geo.frame_at(CAP.problem.equality_value, p)))(x)


@partial(jax.jit, static_argnums=3)
def weigh(frames, x, h, block_size):
    return boundary_weight(CAP.problem.inequality_value, frames, x, h, block_size)


def test_the_weight_vanishes_on_the_boundary_and_its_gradient_is_right(x64):
    x, frames = particles_on_the_cap(50)
    x = x.at[0].set(jnp.array([0.2, *([np.sqrt(0.96 / 3)] * 3)]))
    h = jnp.asarray(0.3)
    weight, gradient = weigh(frames, x, h, None)
    assert weight[0] == 0
    assert 0.1 < weight[1:].mean() < 1
    slope = lambda f, p: jnp.linalg.norm(geo.project(f, jax.jacobian(CAP.problem.inequality_value)(p)[0]))
    slopes = jax.jit(jax.vmap(slope))(frames, x)
    width = jnp.sqrt(h) * slopes.mean()
    b = lambda p: jnp.clip(-CAP.problem.inequality_value(p)[0] / width, 0.0, 1.0)
    np.testing.assert_allclose(weight, jax.vmap(b)(x), atol=1e-12)
    expected = jax.jit(jax.vmap(lambda f, p: geo.project(f, jax.grad(b)(p))))(frames, x)
    inside = np.asarray((weight > 0) & (weight < 1))
    np.testing.assert_allclose(gradient[inside], expected[inside], atol=1e-12)
    blocked = weigh(frames, x, h, 7)
    np.testing.assert_allclose(blocked[0], weight, atol=1e-14)
    np.testing.assert_allclose(blocked[1], gradient, atol=1e-14)


@pytest.mark.parametrize("name", ["spherical_cap", "interval", "disc"])
def test_steins_identity_needs_the_weight(name, x64):
    """E[(b a + D∇b)·φ + b tr(D∇φ)] = 0 on exact draws; with b = 1 the boundary term is seen."""
    known = og.problems.PROBLEMS[name]()
    n = 20_000
    x = known.exact(jax.random.key(3), n)
    problem = known.problem

    @jax.jit
    def pieces(x):
        frames, drift, _ = jax.vmap(lambda p: geo.stein_drift(problem.logdensity, problem.equality_value, p))(x)
        return frames, drift, boundary_weight(problem.inequality_value, frames, x, jnp.asarray(0.1), None)

    frames, drift, (b, gradient) = pieces(x)
    weights = jax.random.normal(jax.random.key(4), (6, known.dim, known.dim))

    def identity(frame, a, b, gradient, p, w):
        phi = lambda y: jnp.cos(w @ y)
        trace = jnp.trace(jax.vmap(lambda e: geo.project(frame, jax.jvp(phi, (p,), (e,))[1]))(jnp.eye(p.size)))
        return (b * a + gradient) @ phi(p) + b * trace

    over_draws = jax.vmap(identity, (0, 0, 0, 0, 0, None))
    over_functions = jax.jit(jax.vmap(over_draws, (None, None, None, None, None, 0)))

    def largest(b, gradient):
        values = np.asarray(over_functions(frames, drift, b, gradient, x, weights))
        return np.abs(values.mean(axis=1) / (values.std(axis=1) / np.sqrt(n))).max()

    assert largest(b, gradient) < stats.norm.ppf(1 - 0.5e-6)
    assert largest(jnp.ones_like(b), jnp.zeros_like(gradient)) > 20


def test_the_stein_test_knows_boundaries(x64):
    known, other = og.problems.spherical_cap(3, 0.3), og.problems.spherical_cap(3, 0.45)
    right, wrong = (og.orthogonal_ksd(known.problem, k.exact(jax.random.key(5), 400)) for k in (known, other))
    assert right.p_value > 0.01
    assert wrong.p_value < 0.01


@pytest.mark.parametrize(
    ("where", "name", "setting"),
    [
        ("spherical_cap", "o_langevin", 0.02),
        ("spherical_cap", "o_kinetic", 0.2),
        pytest.param("disc", "o_langevin", 0.01, marks=pytest.mark.slow),
        ("interval", "o_langevin", 0.02),
        pytest.param("interval", "chmc", 0.1, marks=pytest.mark.slow),  # test_chmc.py has the cap
        ("dirichlet", "o_langevin", 1e-5),
        pytest.param(
            "dirichlet", "chmc", None, marks=pytest.mark.slow
        ),  # tuned: no step is good both in the middle and at the edges
    ],
)
def test_once_inside_a_chain_never_leaves(where, name, setting):
    known = og.problems.PROBLEMS[where]()
    algorithm = name if setting is None else og.SAMPLERS[name](known.problem, setting)
    starts = known.start_off(jax.random.key(0), 16)
    trace = og.sample(0, known.problem, starts, algorithm=algorithm, num_warmup=200, num_samples=400, progress=False)
    assert trace.sample_stats["inequality"].max() <= 0
    assert np.all(trace["x"].std(axis=1).max(axis=-1) > 0)
    if name.startswith("o_"):
        assert 0 < trace.sample_stats["reflected"].mean() < 0.8
    if where == "interval":
        assert og.diagnose(trace)["inequality"].text.startswith("every draw has h ≤ 0")


def test_draws_outside_are_reported_with_their_share_and_size():
    """With x ≤ 1 and x ≥ 2 every draw violates one of them."""
    problem = og.Problem(gaussian, inequality=lambda x: jnp.stack([x[0] - 1, 2 - x[0]]))
    algorithm = og.o_langevin(problem, 0.001)
    with pytest.warns(og.ConstraintWarning, match="may contradict"):
        trace = og.sample(
            0, problem, jnp.ones((4, 1)), algorithm=algorithm, num_warmup=0, num_samples=50, progress=False
        )
    finding = og.diagnose(trace)["inequality"]
    assert finding.level == "bad"
    assert "100 % of the draws are outside, by up to h = " in finding.text
    assert trace.summary().loc["inequality[1]₊", "max"] > 0.1


def test_steps_that_are_all_turned_back_are_told():
    known = og.problems.disc()
    algorithm = og.o_langevin(known.problem, 0.5)
    starts = known.start_on(jax.random.key(0), 4)
    trace = og.sample(0, known.problem, starts, algorithm=algorithm, num_warmup=0, num_samples=50, progress=False)
    finding = og.diagnose(trace)["inequality"]
    assert finding.level == "doubtful"
    assert "of the steps were turned back: use a smaller step size" in finding.text


def test_a_density_that_ends_at_the_boundary_is_never_asked_beyond_it():
    """Log x is NaN for x < 0: starts there are landed first, and no step evaluates it outside."""
    problem = og.Problem(lambda x: jnp.sum(jnp.log(x) - x), inequality=lambda x: -x)
    starts = jax.random.normal(jax.random.key(0), (8, 2))
    trace = og.sample(0, problem, starts, algorithm=og.o_langevin(problem, 1e-3), num_samples=300, progress=False)
    assert not trace.problems()
    assert trace["x"].min() > 0
    ensemble = og.sample(
        0, problem, starts[None], algorithm=og.o_svgd(problem, 0.02), num_warmup=300, num_samples=1, progress=False
    )
    assert not ensemble.problems()
    assert ensemble["x"].min() > 0


@pytest.mark.parametrize(
    ("name", "step_size"),
    [("o_langevin", 0.002), ("o_kinetic", 0.06), pytest.param("clangevin", 0.1, marks=pytest.mark.slow)],
)
def test_many_rows_and_any_pytree_mix_with_equalities(name, step_size):
    problem = og.Problem(
        lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + p["b"] ** 2),
        equality=lambda p: jnp.sum(p["w"] ** 2) - 1,
        inequality=[lambda p: -p["w"], lambda p: p["b"] - p["w"][0]],
    )
    starts = {"w": jax.random.normal(jax.random.key(0), (8, 5)), "b": jnp.ones(8)}
    algorithm = og.SAMPLERS[name](problem, step_size)
    trace = og.sample(0, problem, starts, algorithm=algorithm, num_samples=200, progress=False)
    assert trace.sample_stats["inequality"].shape == (8, 200, 6)
    assert trace.sample_stats["inequality"].max() <= 0
    assert np.abs(trace.sample_stats["equality"]).mean() < 0.02
    assert trace["w"].min() >= 0


def test_landing_aims_inside():
    """A start outside lands at its mirror image, not on the boundary, where densities are often at their worst."""
    problem = og.Problem(gaussian, inequality=lambda x: -x)
    landed = og.land(problem, jnp.array([[-2.0, 5.0], [-3.0, -3.0]]))
    np.testing.assert_allclose(landed.position, [[2.0, 5.0], [3.0, 3.0]], atol=1e-4)  # float32, with a ridge
    narrow = og.Problem(gaussian, inequality=lambda x: jnp.stack([1 - x[0], x[0] - 1.1]))
    position = jax.jit(lambda x: land_one(narrow, x).position)(jnp.array([97.0, 0.0]))
    assert 1 <= position[0] <= 1.1
