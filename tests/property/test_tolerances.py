"""Exact kernels in any units, anywhere: coordinates that are 0, small and far sets, slow solvers, roundings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ogradient as og
from ogradient.samplers.solver import SOLVERS, place_at, reach

ALARM = 1e-6
circle = lambda x: jnp.sum(x**2) - 1


def reach_from(constraint, origin, x, projection):
    root = jnp.ones_like(x)
    return reach(constraint, root, place_at(constraint, root, origin), x - origin, projection)


def chain_limit(values):
    """Mean over chains of values (chain, draw), and how far it may be from the truth."""
    means = np.asarray(values, float).mean(axis=1)
    return means.mean(), stats.t.ppf(1 - ALARM / 2, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))


def bonds(x):
    atoms = x.reshape(3, 3)
    lengths = jnp.sum(jnp.diff(atoms, axis=0) ** 2, axis=1) - 1
    return jnp.concatenate([atoms[0], lengths])


PINNED = {
    "great circle": (lambda x: jnp.stack([circle(x), x[0]]), 3, 0.4),
    "plane": (lambda x: x[0], 3, 0.5),
    "atom at the origin": (bonds, 9, 0.3),
    "another centre": (lambda x: jnp.stack([jnp.sum((x - jnp.array([0.6, 0, 0])) ** 2) - 1, jnp.sinh(x[0])]), 3, 0.4),
}


GATE = {
    ("great circle", "broyden", "float32"),
    ("atom at the origin", "chord", "float64"),
    ("atom at the origin", "broyden", "float32"),
    ("plane", "newton", "float64"),
    ("plane", "broyden", "float32"),
}
CASES = [
    pytest.param(name, projection, dtype, marks=[] if (name, projection, dtype) in GATE else pytest.mark.slow)
    for name in PINNED
    for projection in SOLVERS
    for dtype in ("float32", "float64")
]


@pytest.mark.parametrize(("name", "projection", "dtype"), CASES)
def test_coordinates_that_are_zero_on_the_set(name, projection, dtype, request):
    if dtype == "float64":
        request.getfixturevalue("x64")
    equality, d, step_size = PINNED[name]
    problem = og.Problem(lambda x: -0.5 * jnp.sum((x - 0.3) ** 2), equality)
    starts = jax.random.normal(jax.random.key(0), (64, d), dtype)
    assert not np.any(og.land(problem, starts).status)
    algorithm = og.chmc(problem, step_size, num_integration_steps=2, projection=projection)
    trace = og.sample(0, problem, starts, algorithm=algorithm, num_warmup=50, num_samples=100, progress=False)
    assert trace.sample_stats["is_accepted"].mean() > 0.7
    assert np.abs(trace["x"][..., 0]).max() < 100 * np.finfo(dtype).eps
    if name == "plane":  # N(0.3, 1) in the other coordinates
        mean, limit = chain_limit(trace["x"][..., 1])
        assert abs(mean - 0.3) < limit < 0.3


SLOW_SOLVER = [
    ("chord", "float32"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("chord", "float64"),
            *((solver, dtype) for solver in ("newton", "broyden") for dtype in ("float32", "float64")),
        )
    ),
]


@pytest.mark.parametrize(("projection", "dtype"), SLOW_SOLVER)
def test_a_slow_solver_is_not_taken_for_rounding(projection, dtype, request):
    """Chord converges like 0.95ⁿ on some of these moves; what has not converged is rejected, not kept off the set."""
    if dtype == "float64":
        request.getfixturevalue("x64")
    problem = og.Problem(lambda x: 0.0, lambda x: x[0] ** 2 / 4 + x[1] ** 2 - 1)
    starts = jax.random.normal(jax.random.key(0), (64, 2), dtype)
    algorithm = og.chmc(problem, 0.5, num_integration_steps=2, projection=projection)
    trace = og.sample(0, problem, starts, algorithm=algorithm, num_samples=1000, progress=False)
    assert np.abs(trace.sample_stats["equality"]).max() < 24 * np.finfo(dtype).eps
    mean, limit = chain_limit(trace["x"][..., 0] ** 2)
    assert abs(mean - 2) < limit < 0.1


@pytest.mark.slow
def test_reversibility_is_judged_in_units_of_the_move(x64):
    """A small ellipse, and one far from 0, has the moves of a large one at 0: accepted and rejected alike."""
    ends = []
    for size, centre in ((1.0, 0.0), (1e-4, 0.0), (1.0, 1e4)):
        u = lambda x, size=size, centre=centre: x / size - centre
        problem = og.Problem(
            lambda x, u=u: u(x)[1], lambda x, u=u: u(x)[0] ** 2 / 9 + u(x)[1] ** 2 - 1, measure="hausdorff"
        )
        angle = np.linspace(0, 2 * np.pi, 256, endpoint=False)
        starts = size * (np.stack([3 * np.cos(angle), np.sin(angle)], axis=1) + centre)
        algorithm = og.chmc(problem, 2.0 * size, num_integration_steps=2)
        trace = og.sample(0, problem, starts, algorithm=algorithm, num_warmup=0, num_samples=1, progress=False)
        assert 0.1 < trace.sample_stats["is_accepted"].mean() < 0.9
        ends.append(trace["x"][:, 0] / size - centre)
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-9)
    np.testing.assert_allclose(ends[2], ends[0], atol=1e-6)


def test_the_law_of_a_small_set_with_long_steps(x64):
    """From exact draws, an ellipse of size 1e-4 and steps that often reach another root."""
    size = 1e-4
    problem = og.Problem(lambda x: x[1] / size, lambda x: (x[0] / size) ** 2 / 9 + (x[1] / size) ** 2 - 1)
    rng = np.random.default_rng(0)
    angle = np.concatenate(
        [rng.vonmises(np.pi / 2, 1.0, 8000)]
    )  # conditional law: uniform in the angle, times exp(sin)
    starts = size * np.stack([3 * np.cos(angle), np.sin(angle)], axis=1)
    algorithm = og.chmc(problem, 1.5 * size, num_integration_steps=2)
    trace = og.sample(0, problem, starts, algorithm=algorithm, num_warmup=0, num_samples=10, progress=False)
    height = trace["x"][:, -1, 1] / size
    truth = np.sin(rng.vonmises(np.pi / 2, 1.0, 4_000_000)).mean()
    assert abs(height.mean() - truth) < 5 * height.std() / np.sqrt(8000)


@pytest.mark.parametrize("radius", [1e-10, pytest.param(1e10, marks=pytest.mark.slow)])
def test_radii_of_any_size(radius):
    """Far starts too: the path to a small sphere looks like that to a square, and is not called one."""
    problem = og.Problem(lambda x: 0.0, lambda x: jnp.sum(x**2) - radius**2)
    trace = og.sample(0, problem, jax.random.normal(jax.random.key(0), (32, 3)), num_samples=300, progress=False)
    x = trace["x"].astype(float) / radius
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1, atol=1e-4)
    mean, limit = chain_limit(x[..., 0] ** 2)
    assert abs(mean - 1 / 3) < limit < 0.1


@pytest.mark.parametrize("radius", [1e-3, pytest.param(1e3, marks=pytest.mark.slow)])
def test_o_langevin_is_tuned_in_any_units(radius):
    problem = og.Problem(lambda x: 0.0, lambda x: jnp.sum(x**2) - radius**2)
    starts = radius * jax.random.normal(jax.random.key(0), (32, 3))
    trace = og.sample(0, problem, starts, algorithm="o_langevin", num_samples=200, num_warmup=200, progress=False)
    step_size = trace.provenance["settings"]["step_size"] / radius**2
    assert 2**-10 < step_size < 2**-2
    assert np.abs(np.linalg.norm(trace["x"] / radius, axis=-1) - 1).mean() < 0.05


def test_mixed_precisions_become_one(x64):
    problem = og.Problem(
        lambda q: -0.5 * (jnp.sum(q["a"] ** 2) + jnp.sum(q["b"] ** 2)), lambda q: jnp.sum(q["a"]) + jnp.sum(q["b"]) - 1
    )
    starts = {"a": np.ones((4, 2), np.float32), "b": np.ones((4, 2))}
    trace = og.sample(0, problem, starts, num_samples=50, progress=False)
    assert trace["a"].dtype == trace["b"].dtype == np.float64
    assert np.abs(trace.sample_stats["equality"]).max() < 1e-13
    assert og.land(problem, starts).position["a"].dtype == np.float64


@pytest.mark.slow
@pytest.mark.parametrize("projection", SOLVERS)
def test_a_solver_that_leaps_ends_on_the_set_or_is_rejected(projection):
    """Several rows, long steps: Newton goes far out and back, which must not pass for large numbers with large roundings."""
    known = og.problems.sphere_affine()
    starts = known.start_on(jax.random.key(0), 256)
    algorithm = og.clangevin(known.problem, 0.45, projection=projection)
    trace = og.sample(0, known.problem, starts, algorithm=algorithm, num_samples=20, thinning=100, progress=False)
    assert trace.problems().get(og.Status.SOLVER_DIVERGED, 0) > 1000
    assert np.abs(trace.sample_stats["equality"]).max() < 100 * np.finfo(np.float32).eps


@pytest.mark.parametrize("projection", SOLVERS)
def test_proposals_far_outside_reach_the_set_or_fail(projection):
    """Steps up to 1e5 times the size of the set: what is small against such a proposal is not small on the set."""
    units = jnp.array([1.0, 40.0, 160.0])
    bowl = lambda u: u[0] ** 2 + 2 * u[1] ** 2 + 0.5 * u[2] ** 2 - 1
    constraint = lambda x: jnp.stack([bowl(x / units), x[2] / 160 - 0.3 * x[0] - 0.1, 1e-7 * bowl(x / units)])
    problem = og.Problem(lambda x: x[0], constraint)
    origins = og.land(problem, jax.random.normal(jax.random.key(0), (4096, 3))).position
    lengths = 10.0 ** jnp.linspace(1, 5, 4096)[:, None]
    proposals = origins + lengths * jax.random.normal(jax.random.key(1), origins.shape)
    project = lambda origin, x: reach_from(constraint, origin, x, projection)
    ends, _, reached, *_ = jax.jit(jax.vmap(project))(origins, proposals)
    off = jnp.max(jnp.abs(jax.vmap(constraint)(ends)[:, :2]), axis=1)
    assert jnp.max(jnp.where(reached, off, 0.0)) < 1e-4
    assert projection == "chord" or 20 < jnp.sum(reached) < 4000


@pytest.mark.parametrize("projection", SOLVERS)
def test_what_a_leaping_solver_reaches_is_on_the_set(projection):
    """The moves of the test above, one by one: Newton may go far out and back, or to nowhere."""
    known = og.problems.sphere_affine()
    constraint = known.problem.equality_value
    origins = jnp.repeat(known.start_on(jax.random.key(0), 256), 256, axis=0)
    proposals = origins + 0.45 * jax.random.normal(jax.random.key(1), origins.shape)
    project = lambda origin, x: reach_from(constraint, origin, x, projection)
    ends, _, reached, *_ = jax.jit(jax.vmap(project))(origins, proposals)
    off = jnp.max(jnp.abs(jax.vmap(constraint)(ends)), axis=1)
    assert jnp.max(jnp.where(reached, off, 0.0)) < 100 * np.finfo(np.float32).eps
    assert 100 < np.sum(~np.asarray(reached)) < 0.9 * reached.size


@pytest.mark.parametrize("projection", SOLVERS)
def test_a_bounded_g_is_not_0_far_out(projection):
    """A solver that runs away gets to where any g is within the roundings of numbers so large; one beside the set may leap."""
    rows = jax.random.normal(jax.random.key(1), (2, 20, 6))
    bounded = lambda u: u**2 / (1 + u**2)
    g = lambda x: jnp.stack(
        [jnp.mean(bounded(part @ x + shift)) - 0.6 for part, shift in zip(rows, (1, -1), strict=True)]
    )
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), g)
    landing = og.land(problem, jax.random.normal(jax.random.key(0), (8000, 6)))
    origins = landing.position[np.asarray(landing.status == og.Status.OK)]
    proposals = origins + 0.3 * jax.random.normal(jax.random.key(2), origins.shape)
    reach_all = jax.jit(jax.vmap(lambda origin, x: reach_from(g, origin, x, projection)))
    ends, _, reached, *_ = reach_all(origins, proposals)
    off = jnp.max(jnp.abs(jax.vmap(g)(ends)), axis=1)
    assert jnp.max(jnp.where(reached, off, 0.0)) < 1e-5
    assert 0.5 < jnp.mean(reached) < 0.99


@pytest.mark.parametrize("projection", ["broyden", "chord", pytest.param("newton", marks=pytest.mark.slow)])
def test_an_iteration_with_a_wrong_jacobian_is_not_taken_for_rounding(projection):
    """Moves half as long as the set is wide: beside the set |g| goes up and down, at hundreds of roundings."""
    known = og.problems.orthogonal(5)
    constraint = known.problem.equality_value
    origins = og.land(known.problem, known.start_on(jax.random.key(0), 2000)).position
    proposals = origins + 0.6 * jax.random.normal(jax.random.key(1), origins.shape)
    project = lambda origin, x: reach_from(constraint, origin, x, projection)
    ends, _, reached, *_ = jax.jit(jax.vmap(project))(origins, proposals)
    terms = jax.vmap(lambda x: jnp.abs(jax.jacrev(constraint)(x)) @ jnp.abs(x))(ends)
    off = jnp.max(jnp.abs(jax.vmap(constraint)(ends)) / terms, axis=1)
    assert jnp.max(jnp.where(reached, off, 0.0)) < 100 * np.finfo(np.float32).eps
    assert jnp.mean(reached) > 0.05


@pytest.mark.parametrize("projection", SOLVERS)
def test_roundings_of_g_as_large_as_a_small_part_of_the_move_do_not_stop_it(projection, x64):
    """Three rows, averages of numbers of size 30 that cancel: |g| has roundings of its own, in steps of one of them.

    They are from a tenth to more than all of √eps of the move, look straight by chance, and leave g at 0 nowhere on some
    machines. As many moves arrive as in double precision.
    """
    rows, group = (
        np.asarray(jax.random.normal(jax.random.key(i), (2000, n), np.float32)) for i, n in ((0, 10), (1, 3))
    )
    moves = [np.asarray(jax.random.normal(jax.random.key(i), (300, 10), np.float32)) for i in (2, 3)]
    arrived, off = {}, {}
    for dtype in ("float32", "float64"):
        g = lambda w, d=dtype: (
            jnp.mean(30 + 2 * jnp.tanh(rows.astype(d) @ w)[:, None] * jnp.tanh(group.astype(d)), axis=0) - 30
        )
        problem = og.Problem(lambda w: -0.5 * jnp.sum(w**2), equality=g)
        origins = og.land(problem, 0.5 * moves[0].astype(dtype)).position
        project = jax.jit(jax.vmap(lambda origin, x, g=g: reach_from(g, origin, x, projection)))
        ends, _, reached, *_ = project(origins, origins + 0.1 * moves[1].astype(dtype))
        arrived[dtype] = np.mean(reached)
        off[dtype] = np.max(np.where(reached[:, None], np.abs(jax.vmap(g)(ends)), 0.0))
    assert arrived["float64"] > 0.9
    assert arrived["float32"] > arrived["float64"] - 0.03
    assert off["float32"] < 1e-4
    assert off["float64"] < 1e-12


def test_rows_that_share_coordinates_share_what_is_left_of_g():
    """A landed start has roundings left in some rows; mending those moves coordinates that other rows look at too."""
    known = og.problems.transport(60, 50)
    algorithm = og.chmc(known.problem, 0.05, num_integration_steps=3)
    starts = known.start_off(jax.random.key(0), 16)
    trace = og.sample(0, known.problem, starts, algorithm=algorithm, num_warmup=0, num_samples=20, progress=False)
    assert trace.sample_stats["acceptance_rate"].mean(axis=1).min() > 0.9


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


@pytest.mark.parametrize("projection", SOLVERS)
def test_roundings_of_a_constraint_that_averages_rows_do_not_stop_it(projection):
    rows = jax.random.normal(jax.random.key(0), (2000, 4))
    weights = jax.random.normal(jax.random.key(1), (2000,))
    g = lambda x: jnp.mean(weights * jax.nn.sigmoid(rows @ x)) - jnp.mean(weights) / 2  # 0 at 0, but for roundings
    problem = og.Problem(lambda x: -jnp.sum(jax.nn.softplus(rows @ x)), equality=g)
    # A step along which g changes by less than its roundings over √eps is rejected: 1e-3 is such a step for some versions of XLA.
    algorithm = og.chmc(problem, 4e-3, num_integration_steps=3, projection=projection)
    start = jax.vmap(algorithm.init)(jnp.zeros((500, 4)))
    states, info = jax.jit(jax.vmap(algorithm.step))(jax.random.split(jax.random.key(2), 500), start)
    # Broyden's method learns from a rounding now and then.
    assert np.mean(info.status == og.Status.OK) > (0.9 if projection == "broyden" else 0.98)
    assert np.mean(info.is_accepted) > 0.5
    assert np.abs(info.constraint_value["equality"]).max() < 1e-7
    assert np.abs(states.position).max() > 1e-4
