"""The exact kernels: reversible, second order, on the set, and honest about moves that fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.geometry import project
from ogradient.samplers.chmc import flat_inverse_mass
from ogradient.samplers.rattle import Point, potential_of, trajectory

CONSTRAINT = lambda x: jnp.array([jnp.sum(x**2) + 0.3 * x[0] ** 3 - 1, x[0] * x[1] + x[2] - 0.2])
PROBLEM = og.Problem(lambda x: jnp.sin(x[0]) + 0.5 * x[3], CONSTRAINT)


def setting(measure="conditional", mass=None):
    problem = og.Problem(PROBLEM.logdensity_fn, CONSTRAINT, measure=measure)
    x = og.land(problem, jnp.array([[0.7, -0.4, 0.5, 0.3]])).position[0]
    root = jnp.sqrt(flat_inverse_mass(mass, x))
    scaled = lambda y: CONSTRAINT(root * y)
    potential = potential_of(problem, lambda y: problem.logdensity_fn(root * y), scaled, root, curved=True)
    value, gradient, frame = jax.jit(potential)(x / root)
    p = jax.jit(project)(frame, jax.random.normal(jax.random.key(1), (4,)))
    return scaled, potential, Point(x / root, p, value, -gradient, frame), root


@pytest.mark.parametrize("projection", ["newton", "chord"])
@pytest.mark.parametrize("mass", [None, jnp.array([0.5, 1.0, 2.0, 1.5])], ids=["unit", "diagonal"])
def test_trajectories_are_reversible_and_stay_on_the_set(projection, mass, x64):
    scaled, potential, start, _ = setting(mass=mass)
    run = jax.jit(lambda point: trajectory(scaled, None, potential, point, jnp.asarray(0.05), 20, projection))
    end, status, iterations = run(start)
    assert int(status) == og.Status.OK
    assert float(jnp.linalg.norm(end.x - start.x)) > 0.3
    assert np.abs(scaled(end.x)).max() < 1e-14
    np.testing.assert_allclose(end.frame.jacobian @ end.p, np.zeros(2), atol=1e-12)
    back, status, _ = run(end._replace(p=-end.p))
    np.testing.assert_allclose(back.x, start.x, atol=1e-10)
    np.testing.assert_allclose(back.p, -start.p, atol=1e-10)
    assert 0 < int(iterations) < 20 * 2 * 30


def test_trajectories_that_bounce_are_reversible(x64):
    scaled, potential, start, _ = setting()
    outside = []

    def bounds(y):
        return jnp.stack([y[0] - start.x[0] - 0.05, jnp.sum((y - start.x) ** 2) - 0.3])

    run = jax.jit(lambda point, steps: trajectory(scaled, bounds, potential, point, jnp.asarray(0.05), steps, "newton"))
    for steps in range(1, 41):
        end, status, _ = run(start, jnp.int32(steps))
        outside.append(bool((bounds(end.x) > 0).any()))
        assert int(status) == og.Status.OK
        np.testing.assert_allclose(end.frame.jacobian @ end.p, np.zeros(2), atol=1e-12)
    assert 3 < sum(outside) < 37
    steps = jnp.int32(40 - outside[::-1].index(False))  # those that end outside are refused anyway
    assert int(steps) > 30
    end, *_ = run(start, steps)
    back, *_ = run(end._replace(p=-end.p), steps)
    np.testing.assert_allclose(back.x, start.x, atol=1e-9)
    np.testing.assert_allclose(back.p, -start.p, atol=1e-9)


@pytest.mark.parametrize("measure", ["conditional", "hausdorff"])
def test_energy_error_is_of_second_order(measure, x64):
    scaled, potential, start, _ = setting(measure, jnp.array([0.5, 1.0, 2.0, 1.5]))
    energy = lambda point: point.potential + 0.5 * point.p @ point.p
    run = jax.jit(lambda step_size, steps: trajectory(scaled, None, potential, start, step_size, steps, "newton"))
    errors = []
    for halvings in range(4):
        end, status, _ = run(jnp.asarray(0.1 / 2**halvings), jnp.int32(10 * 2**halvings))
        assert int(status) == og.Status.OK
        errors.append(abs(float(energy(end) - energy(start))))
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    np.testing.assert_allclose(slopes[-2:], 2, atol=0.25)


@pytest.mark.parametrize("measure", ["conditional", "hausdorff"])
def test_potential_and_its_gradient(measure, x64):
    mass = jnp.array([0.5, 1.0, 2.0, 1.5])
    _, potential, start, root = setting(measure, mass)

    def definition(y):
        J = jax.jacobian(CONSTRAINT)(root * y)
        half = 0.5 * jnp.linalg.slogdet((J * mass[None]) @ J.T)[1]
        if measure == "hausdorff":
            half = half - 0.5 * jnp.linalg.slogdet(J @ J.T)[1]
        return half - PROBLEM.logdensity_fn(root * y)

    value, gradient, _ = jax.jit(potential)(start.x)
    np.testing.assert_allclose(value, definition(start.x), rtol=1e-10)
    np.testing.assert_allclose(gradient, jax.jit(jax.grad(definition))(start.x), rtol=1e-8, atol=1e-10)


def test_draws_are_on_the_set_to_a_few_roundings(x64):
    known = og.problems.cubic()
    algorithm = og.chmc(known.problem, 1.0, num_integration_steps=2)

    def step(state, key):
        state, info = algorithm.step(key, state)
        return state, (state.position, info.constraint_value["equality"][0], info.is_accepted)

    walk = jax.jit(jax.vmap(lambda x, keys: jax.lax.scan(step, algorithm.init(x), keys)[1]))
    for dtype, limit in (("float64", 1e-10), ("float32", None)):
        starts = known.exact(jax.random.key(0), 8).astype(dtype)
        draws, g, accepted = walk(starts, jax.random.split(jax.random.key(1), (8, 1300)))
        x = np.asarray(draws, np.float64)
        level = 12 * np.finfo(dtype).eps * (np.abs(x[..., 0]) + 3 * np.abs(x[..., 1]) ** 3)
        assert draws.dtype == dtype
        assert np.all(np.abs(g) <= (level if limit is None else limit))
        assert accepted.mean() > 0.5
        assert x[..., 1].std() > 0.5


ELLIPSE = og.problems.ellipse()


def test_failed_moves_are_counted_and_rejected():
    known = ELLIPSE
    starts = known.start_on(jax.random.key(0), 16)
    algorithm = og.chmc(
        known.problem, 3.0, num_integration_steps=2
    )  # far too large: the projection often has no solution
    trace = og.sample(0, known.problem, starts, algorithm=algorithm, num_samples=90, progress=False, num_warmup=0)
    failed = trace.sample_stats["status"] != og.Status.OK
    assert og.Status.SOLVER_DIVERGED in trace.problems()
    assert failed.mean() > 0.2
    assert not np.any(trace.sample_stats["is_accepted"] & failed)
    assert np.abs(trace.sample_stats["equality"]).max() < 1e-5


def test_a_chain_that_never_moves_is_told():
    known = ELLIPSE
    algorithm, starts = og.chmc(known.problem, 1e4, num_integration_steps=1), known.start_on(jax.random.key(0), 16)
    never_moved = pytest.warns(og.ConstraintWarning, match="never moved: every move was rejected")
    with pytest.warns(og.ConstraintWarning, match="never meet"), never_moved:
        og.sample(0, known.problem, starts, algorithm=algorithm, num_samples=100, progress=False)


def test_inequalities_are_never_violated():
    known = og.problems.spherical_cap(3, 0.3)
    algorithm = og.chmc(known.problem, 0.3, num_integration_steps=3)
    trace = og.sample(
        0, known.problem, known.start_off(jax.random.key(0), 8), algorithm=algorithm, num_samples=300, progress=False
    )
    assert trace.sample_stats["inequality"].max() <= 0
    assert 0.3 < trace.sample_stats["is_accepted"].mean() < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_integration_steps": 0}, "num_integration_steps must be"),
        ({"inverse_mass": -1.0}, "inverse_mass must be positive"),
        ({"refreshment": 0.0}, "refreshment must lie"),
        ({"projection": "secant"}, "projection must be"),
        ({"step_size": -1.0}, "step_size must be"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        og.chmc(PROBLEM, **{"step_size": 0.1} | arguments)


def test_bad_mass_and_missing_constraint():
    known = ELLIPSE
    wrong, starts = og.chmc(known.problem, 0.1, inverse_mass=jnp.ones(3)), known.start_on(jax.random.key(0), 2)
    with pytest.raises(ValueError, match=r"one entry per coordinate \(2\); got 3"):
        og.sample(0, known.problem, starts, algorithm=wrong)
    with pytest.raises(ValueError, match="clangevin needs a constraint"):
        og.clangevin(og.Problem(lambda x: 0.0), 0.1)


def two_circles():
    """(|x| − 3)² + y² = 1: two circles that no continuous path on the set joins."""
    return og.Problem(lambda x: 0.0, equality=lambda x: (jnp.abs(x[0]) - 3) ** 2 + x[1] ** 2 - 1)


def test_separate_parts_are_noticed():
    starts = jnp.array([[3.5, 0.5], [-3.5, 0.5], [2.0, 0.3], [-2.0, -0.4]])
    problem = two_circles()
    with pytest.warns(og.ConstraintWarning, match=r"2 groups that never meet \(of 2, 2 chains\)"):
        og.sample(0, problem, starts, algorithm=og.chmc(problem, 0.3), num_samples=300, progress=False)
    one = jnp.abs(starts)
    og.sample(0, problem, one, algorithm=og.chmc(problem, 0.3), num_samples=300, progress=False)


def test_component_fn_sees_what_boxes_cannot():
    known = og.problems.orthogonal(2)
    flip = jnp.array([-1.0, 1, -1, 1])  # mirrors the first column: det −1
    starts = known.start_on(jax.random.key(0), 4) * jnp.stack([jnp.ones(4), flip, jnp.ones(4), flip])
    run = lambda **a: og.sample(
        0,
        known.problem,
        starts,
        algorithm=og.chmc(known.problem, 0.5, num_integration_steps=4),
        num_samples=300,
        progress=False,
        **a,
    )
    run()  # the parts look alike in every coordinate
    with pytest.warns(og.ConstraintWarning, match="2 groups that never meet"):
        trace = run(component_fn=lambda x: jnp.linalg.det(x.reshape(2, 2)) > 0)
    assert trace.sample_stats["component"].shape == (4, 300)


@pytest.mark.parametrize("projection", ["newton", "chord"])
def test_roundings_of_a_constraint_that_averages_rows_do_not_stop_it(projection):
    rows = jax.random.normal(jax.random.key(0), (2000, 4))
    weights = jax.random.normal(jax.random.key(1), (2000,))
    g = lambda x: jnp.mean(weights * jax.nn.sigmoid(rows @ x)) - jnp.mean(weights) / 2  # 0 at 0, but for roundings
    problem = og.Problem(lambda x: -jnp.sum(jax.nn.softplus(rows @ x)), equality=g)
    # A step along which g changes by less than its roundings over √eps is rejected: 1e-3 is such a step for some versions of XLA.
    algorithm = og.chmc(problem, 4e-3, num_integration_steps=3, projection=projection)
    start = jax.vmap(algorithm.init)(jnp.zeros((8, 4)))
    states, info = jax.jit(jax.vmap(algorithm.step))(jax.random.split(jax.random.key(2), 8), start)
    assert np.all(info.status == og.Status.OK)
    assert np.mean(info.is_accepted) > 0.5
    assert np.abs(info.constraint_value["equality"]).max() < 1e-7
    assert np.abs(states.position).max() > 1e-4
