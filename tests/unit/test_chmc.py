"""The exact kernels: reversible, second order, on the set, and honest about moves that fail."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.geometry import project
from ogradient.samplers.chmc import _jittered
from ogradient.samplers.metric import gather, mass_parameters, mass_root
from ogradient.samplers.rattle import along_set, potential_of, trajectory
from ogradient.samplers.solver import place_at

CONSTRAINT = lambda x: jnp.array([jnp.sum(x**2) + 0.3 * x[0] ** 3 - 1, x[0] * x[1] + x[2] - 0.2])
DIAGONAL = np.array([0.5, 1.0, 2.0, 1.5])
DENSE = np.diag(DIAGONAL) + 0.4 * np.array([[0, 1, -1, 0], [1, 0, 1, 1], [-1, 1, 0, -1], [0, 1, -1, 0]])
PROBLEM = og.Problem(lambda x: jnp.sin(x[0]) + 0.5 * x[3], CONSTRAINT)
ELLIPSE = og.problems.ellipse()


@functools.cache
def landed():
    return og.land(PROBLEM, jnp.array([[0.7, -0.4, 0.5, 0.3]])).position[0]


def setting(measure="conditional", mass=None):
    x = landed()
    root = mass_root(mass_parameters(mass), x)
    potential = potential_of(PROBLEM.logdensity_fn, CONSTRAINT, root, measure=measure, curved=True)
    p = jax.jit(lambda x: project(place_at(CONSTRAINT, root, x).frame, jax.random.normal(jax.random.key(1), (4,))))(x)
    return potential, x, p, root


def runner(potential, root, projection="newton", together=True):
    """(x, p, step size, steps) ↦ the path from there."""

    def run(x, p, step_size, steps):
        advance = along_set(CONSTRAINT, root, step_size, projection, flat=False, together=together)
        return trajectory(potential, advance, root, x, p, step_size, steps)

    return jax.jit(run)


MASSES = {"unit": None, "diagonal": DIAGONAL, "dense": DENSE}


def gate(cases, others):
    return [*cases, *(pytest.param(*case, marks=pytest.mark.slow) for case in others)]


@pytest.mark.parametrize(
    ("mass", "projection"),
    gate(
        [("unit", "newton"), ("diagonal", "chord"), ("dense", "broyden")],
        [("unit", "chord"), ("unit", "broyden"), ("diagonal", "newton"), ("dense", "newton"), ("dense", "chord")],
    ),
)
def test_trajectories_are_reversible_and_stay_on_the_set(projection, mass, x64):
    potential, x, p, root = setting(mass=MASSES[mass])
    run = runner(potential, root, projection)
    path = run(x, p, 0.05, 20)
    start, end = path.start, path.end
    assert int(path.status) == og.Status.OK
    np.testing.assert_allclose(start.p, p, atol=1e-14)
    assert float(start.potential) == pytest.approx(float(potential(x)[0]))
    assert float(jnp.linalg.norm(end.x - x)) > 0.3
    assert np.abs(CONSTRAINT(end.x)).max() < 1e-14
    np.testing.assert_allclose(place_at(CONSTRAINT, root, end.x).frame.jacobian @ end.p, np.zeros(2), atol=1e-12)
    back = run(end.x, -end.p, 0.05, 20).end
    np.testing.assert_allclose(back.x, x, atol=1e-10)
    np.testing.assert_allclose(back.p, -p, atol=1e-10)
    assert 0 < int(path.iterations) < 20 * 2 * 30


def test_there_and_back_may_be_computed_one_after_the_other(x64):
    potential, x, p, root = setting(mass=DENSE)
    together, apart = (runner(potential, root, together=together)(x, p, 0.05, 20) for together in (True, False))
    assert int(apart.status) == og.Status.OK
    assert int(apart.iterations) == int(together.iterations)
    np.testing.assert_allclose(apart.end.x, together.end.x, atol=1e-13)


@pytest.mark.parametrize(
    ("measure", "mass"),
    gate(
        [("conditional", "diagonal"), ("hausdorff", "dense")],
        [("conditional", "dense"), ("hausdorff", "diagonal")],
    ),
)
def test_energy_error_is_of_second_order(measure, mass, x64):
    potential, x, p, root = setting(measure, MASSES[mass])
    run = runner(potential, root)
    errors = []
    for halvings in range(4):
        path = run(x, p, 0.1 / 2**halvings, 10 * 2**halvings)
        assert int(path.status) == og.Status.OK
        errors.append(abs(float(path.end.energy - path.start.energy)))
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    np.testing.assert_allclose(slopes[-2:], 2, atol=0.25)


@pytest.mark.parametrize("mass", [DIAGONAL, DENSE], ids=["diagonal", "dense"])
@pytest.mark.parametrize("measure", ["conditional", "hausdorff"])
def test_potential_and_its_gradient(measure, mass, x64):
    potential, x, _, root = setting(measure, mass)
    inverse_mass = mass if mass.ndim == 2 else np.diag(mass)

    def definition(x):
        J = jax.jacobian(CONSTRAINT)(x)
        half = 0.5 * jnp.linalg.slogdet(J @ inverse_mass @ J.T)[1]
        if measure == "hausdorff":
            half = half - 0.5 * jnp.linalg.slogdet(J @ J.T)[1]
        return half - PROBLEM.logdensity_fn(x)

    value, gradient, _ = jax.jit(potential)(x)
    np.testing.assert_allclose(value, definition(x), rtol=1e-10)
    np.testing.assert_allclose(gradient, gather(root, jax.jit(jax.grad(definition))(x)), rtol=1e-8, atol=1e-10)


def test_a_dense_diagonal_is_the_diagonal(x64):
    known = ELLIPSE
    starts = known.start_on(jax.random.key(0), 4)
    settings = {"num_warmup": 0, "num_samples": 10, "progress": False}
    one, other = (
        og.sample(0, known.problem, starts, algorithm=og.chmc(known.problem, 0.5, inverse_mass=mass), **settings)
        for mass in (np.array([5.0, 1.0]), np.diag([5.0, 1.0]))
    )
    np.testing.assert_allclose(one["x"], other["x"], atol=1e-8)


def test_a_square_array_for_a_square_position_is_a_diagonal():
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), lambda x: jnp.sum(x**2) - 1)
    starts = np.ones((4, 2, 2), np.float32)
    flat = og.Problem(lambda x: -0.5 * jnp.sum(x**2), lambda x: jnp.sum(x**2) - 1)
    mass, settings = np.array([[1.0, 2.0], [3.0, 4.0]]), {"num_warmup": 0, "num_samples": 10, "progress": False}
    one = og.sample(0, problem, starts, algorithm=og.chmc(problem, 0.3, inverse_mass=mass), **settings)
    other = og.sample(
        0, flat, starts.reshape(4, 4), algorithm=og.chmc(flat, 0.3, inverse_mass=mass.ravel()), **settings
    )
    np.testing.assert_array_equal(one["x"].reshape(other["x"].shape), other["x"])


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
        ({"inverse_mass": np.array([[1.0, -2.0], [-2.0, 1.0]])}, "symmetric and positive definite"),
        ({"inverse_mass": np.inf}, "inverse_mass must be finite"),
        ({"refreshment": 0.0}, "refreshment must lie"),
        ({"length_jitter": 1.0}, "length_jitter must lie"),
        ({"projection": "secant"}, "projection must be"),
        ({"step_size": -1.0}, "step_size must be"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        og.chmc(PROBLEM, **{"step_size": 0.1} | arguments)


def test_lengths_vary_evenly_and_alike_for_all_chains():
    lengths = np.array(jax.vmap(lambda t: _jittered(10, 0.5, t))(jnp.arange(1000, dtype=jnp.int32)))
    assert set(lengths) == set(range(5, 16))
    assert abs(lengths.mean() - 10) < 0.05
    assert np.all(np.bincount(lengths)[6:15] > 90)
    assert int(_jittered(1, 0.4, jnp.int32(2**31 - 1))) == 1


@pytest.mark.parametrize("projection", ["newton", "broyden"])
def test_a_force_across_the_set_is_no_force(projection, x64):
    """Log π = −c‖x‖² is constant on a sphere, and yet a thousand times as steep across it as a step is short."""
    moved = []
    for steepness in (0.0, 1e4):
        problem = og.Problem(lambda x, c=steepness: -c * jnp.sum(x**2) + x[0], lambda x: jnp.sum(x**2) - 1)
        starts = jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0])
        algorithm = og.chmc(problem, 0.3, num_integration_steps=3, projection=projection)
        trace = og.sample(0, problem, starts, algorithm=algorithm, num_warmup=0, num_samples=20, progress=False)
        moved.append(trace["x"])
        assert trace.sample_stats["acceptance_rate"].mean() > 0.9
    np.testing.assert_allclose(*moved, atol=1e-6)


def test_warm_up_follows_the_target():
    known = ELLIPSE
    starts = known.start_on(jax.random.key(0), 8)
    rates = [
        og.tune(0, known.problem, starts, target_accept=rate, progress=False).found["acceptance_rate"]
        for rate in (0.6, 0.95)
    ]
    np.testing.assert_allclose(rates, (0.6, 0.95), atol=0.1)
    with pytest.raises(ValueError, match="target_accept must lie below 1"):
        og.tune(0, known.problem, starts, target_accept=1.5)
    with pytest.raises(ValueError, match="target_accept is for settings that are tuned here"):
        og.sample(0, known.problem, starts, algorithm=og.chmc(known.problem, 0.1), target_accept=0.9)


def test_bad_mass():
    known = ELLIPSE
    wrong, starts = og.chmc(known.problem, 0.1, inverse_mass=jnp.ones(3)), known.start_on(jax.random.key(0), 2)
    with pytest.raises(ValueError, match=r"one entry per coordinate \(2\); got 3"):
        og.sample(0, known.problem, starts, algorithm=wrong)
    for bad in (np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([1.0, -1.0]), np.array([1.0, np.nan])):
        with pytest.raises(ValueError, match="inverse_mass .*must be"):
            og.sample(0, known.problem, starts, algorithm=og.chmc(known.problem, 0.1, inverse_mass=bad))


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
