"""Exact kernels: started from exact draws the law stays, in both measures and with any mass; agreement with mici."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calibrated import SEED, walk
from scipy import special, stats

import ogradient as og
from ogradient import problems
from ogradient.problems.known import KnownProblem, Moment

pytestmark = pytest.mark.statistical

ALARM = 1e-5
CASES = {
    "cubic": (problems.cubic(), 1.0, 2, None),
    "cubic-hausdorff": (problems.cubic("hausdorff"), 1.0, 2, None),
    "ellipse": (problems.ellipse(), 0.5, 3, None),
    "ellipse-mass": (problems.ellipse(), 0.5, 3, (5.0, 1.0)),
    "ellipse-hausdorff": (problems.ellipse("hausdorff"), 0.5, 3, None),
    "ellipse-hausdorff-mass": (problems.ellipse("hausdorff"), 0.5, 3, (5.0, 1.0)),
    "ellipse-dense": (problems.ellipse(), 0.5, 3, ((5.0, 1.5), (1.5, 1.0))),
    "ellipse-hausdorff-dense": (problems.ellipse("hausdorff"), 0.5, 3, ((5.0, 1.5), (1.5, 1.0))),
    "torus_b": (problems.torus("b"), 0.3, 3, None),
    "torus_b-long": (problems.torus("b"), 0.15, 40, ((1.0, 0.4, 0.2), (0.4, 1.0, 0.0), (0.2, 0.0, 0.3))),
    "torus_b-mass": (problems.torus("b"), 0.3, 3, (1.0, 1.0, 0.3)),
    "torus_b-hausdorff-mass": (problems.torus("b", "hausdorff"), 0.3, 3, (1.0, 1.0, 0.3)),
    # Of low rank: variances, and a direction that is wider or narrower than they say.
    "torus_b-low-rank": (problems.torus("b"), 0.2, 3, ((1.0, 1.2), (0.5, 0.9), (0.8, -0.3))),
    "torus_b-hausdorff-low-rank": (problems.torus("b", "hausdorff"), 0.3, 3, ((1.0, 0.4), (0.5, 0.1), (0.8, -0.3))),
    "transport-low-rank": (
        problems.transport(4, 1),
        0.3,
        3,
        ((1.0, 0.4, 1.0), (0.5, 0.4, -1.0), (0.8, 0, 0), (2.0, 0, 0)),
    ),
    "bingham": (problems.bingham(), 0.5, 3, None),
    "SO(4)": (problems.orthogonal(4), 0.5, 3, None),
    "spherical_cap": (problems.spherical_cap(3, 0.3), 0.4, 2, None),
    "torus_a": (problems.torus("a"), 0.3, 3, None),
    "mici_torus": (problems.mici_torus(), 0.3, 2, None),
    "von_mises_fisher": (problems.von_mises_fisher(), 0.2, 2, None),
    "sphere_affine": (problems.sphere_affine(), 0.25, 2, None),
    "affine_gaussian": (problems.affine_gaussian(), 0.5, 2, None),
    "transport": (problems.transport(10, 3), 0.4, 3, None),
    "interval": (problems.interval(), 0.3, 2, None),
    "disc": (problems.disc(), 0.08, 2, None),
    "dirichlet": (problems.dirichlet(), 0.01, 2, None),
    "cone": (problems.cone(), 0.2, 2, None),
    "cone-hausdorff": (problems.cone("hausdorff"), 0.2, 2, None),
    "quadratic_poly": (problems.quadratic_poly(), 0.3, 2, None),
    "quadratic_poly-hausdorff": (problems.quadratic_poly("hausdorff"), 0.3, 2, None),
}
GATE = {
    "ellipse-mass",
    "ellipse-hausdorff-dense",
    "torus_b-hausdorff-low-rank",
    "torus_b-hausdorff-mass",
    "spherical_cap",
    "interval",
    "cone",
}


def check_ends(known, starts, ends, accepted):
    """Every moment of the ends has its value; and the chains have moved, or nothing would be seen."""
    if accepted <= 0.4:
        pytest.fail("too few moves to see anything")  # no AssertionError: a negative control must fail by its law
    moved = np.linalg.norm(ends - np.asarray(starts), axis=1)
    if np.mean(moved > 0.1 * np.asarray(starts).std()) <= 0.8:
        pytest.fail("most chains must have gone somewhere")
    for name, values in values_of(known, ends).items():
        if name == "x₁²":
            continue  # its own variance hardly exists
        truth = known.moments[name].value
        limit = stats.norm.ppf(1 - ALARM / 2) * values.std(ddof=1) / np.sqrt(len(values))
        assert abs(values.mean() - truth) < limit, f"{name}: {values.mean():.4g}, truth {truth:.4g} ± {limit:.2g}"


def values_of(known, positions):
    """All moments at all positions, in one compiled program."""
    every = jax.jit(jax.vmap(lambda x: {name: moment.function(x) for name, moment in known.moments.items()}))
    return {name: np.asarray(values, float) for name, values in every(jnp.asarray(positions)).items()}


def check_invariance(known, algorithm, *, num_chains=6000, num_steps=12):
    """From exact draws, every moment at the end still has its value."""
    starts = known.exact(jax.random.key(2000 + SEED), num_chains)
    check_ends(known, starts, *walk(algorithm, starts, num_steps))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in GATE else pytest.mark.slow) for n in CASES])
def test_the_law_stays(name, x64):
    known, step_size, num_steps, mass = CASES[name]
    mass = None if mass is None else jnp.array(mass)
    algorithm = og.chmc(known.problem, step_size, num_integration_steps=num_steps, inverse_mass=mass)
    check_invariance(known, algorithm, num_chains=1000 if name.startswith("SO") else 6000)


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="negative control: the other measure moves the law")
def test_the_other_measure_is_seen(x64):
    """Draws of one measure, moved by the kernel of the other: that of ellipse-mass above, which is not compiled again."""
    known, step_size, num_steps, mass = CASES["ellipse-mass"]
    other = dataclasses.replace(problems.ellipse("hausdorff"), problem=known.problem)
    algorithm = og.chmc(known.problem, step_size, num_integration_steps=num_steps, inverse_mass=jnp.array(mass))
    check_invariance(other, algorithm, num_steps=60)


@pytest.mark.parametrize(
    "name", ["cubic", "ellipse-mass", "ellipse-dense", pytest.param("torus_b", marks=pytest.mark.slow)]
)
def test_the_law_stays_in_float32_and_with_one_step(name):
    known, step_size, _, mass = CASES[name]
    mass = None if mass is None else jnp.array(mass)
    check_invariance(known, og.clangevin(known.problem, step_size, inverse_mass=mass), num_steps=20)


def test_the_law_stays_with_lengths_that_vary():
    known = problems.torus("b")
    settings = {"inverse_mass": np.array(CASES["torus_b-long"][3]), "jitter": 0.2, "length_jitter": 0.5}
    check_invariance(known, og.chmc(known.problem, 0.2, num_integration_steps=6, **settings))


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="negative control: the energy does not know of the mass")
def test_forgetting_the_mass_is_seen(x64, monkeypatch):
    """With M = I the Hausdorff measure needs no Gram factor, with a dense one it does."""
    module = sys.modules["ogradient.samplers.chmc"]
    plain = module.potential_of
    monkeypatch.setattr(module, "potential_of", lambda *a, **k: plain(*a, **k | {"curved": False}))
    jax.clear_caches()
    known, step_size, num_steps, mass = CASES["ellipse-hausdorff-dense"]
    algorithm = og.chmc(known.problem, step_size, num_integration_steps=num_steps, inverse_mass=np.array(mass))
    try:
        check_invariance(known, algorithm, num_steps=40)
    finally:
        jax.clear_caches()


def test_the_law_stays_with_partial_refreshment_and_chord(x64):
    known = CASES["ellipse"][0]
    algorithm = og.chmc(known.problem, 0.3, num_integration_steps=2, refreshment=0.4, projection="chord")
    check_invariance(known, algorithm, num_steps=20)


@pytest.mark.slow
def test_a_row_given_twice_keeps_the_law(x64):
    """On the ellipse the factor √det G would otherwise count twice, and E[x²] be 5.67 instead of 4.5."""
    known = CASES["ellipse"][0]
    g = known.problem.equality
    twice = og.Problem(known.problem.logdensity_fn, [g, lambda x: 2 * g(x)])
    starts = known.exact(jax.random.key(2000 + SEED), 6000)
    algorithm = og.chmc(twice, 0.5, num_integration_steps=3)
    with pytest.warns(og.ConstraintWarning, match="some rows say the same"):
        trace = og.sample(SEED, twice, starts, algorithm=algorithm, num_warmup=0, num_samples=20, progress=False)
    check_ends(known, starts, trace["x"][:, -1], trace.sample_stats["is_accepted"].mean())


def half_normals(d=20, mean=0.0):
    """N(mean, 1) in every coordinate, cut at 0."""
    problem = og.Problem(lambda x: -0.5 * jnp.sum((x - mean) ** 2), inequality=lambda x: -x)
    cut = stats.truncnorm(-mean, np.inf, loc=mean)
    exact = lambda key, n: jnp.asarray(cut.rvs((n, d), random_state=np.random.default_rng(SEED)), float)
    moments = {
        "x₀": Moment(lambda x: x[0], float(cut.mean())),
        "Σx²": Moment(lambda x: jnp.sum(x**2), d * float(cut.moment(2))),
        "Σx": Moment(jnp.sum, d * float(cut.mean())),
    }
    return KnownProblem("half-normals", problem, d, exact, exact, moments, exact)


def sphere_orthant(d=6):
    problem = og.Problem(lambda x: 0.0, lambda x: jnp.sum(x**2) - 1, lambda x: -x)

    def exact(key, n):
        x = jnp.abs(jax.random.normal(key, (n, d)))
        return x / jnp.linalg.norm(x, axis=1, keepdims=True)

    moments = {
        "Σx": Moment(jnp.sum, d * float(special.gamma(d / 2) / np.sqrt(np.pi) / special.gamma((d + 1) / 2))),
        "(Σx)²": Moment(lambda x: jnp.sum(x) ** 2, 1 + 2 * (d - 1) / np.pi),
        "Σx⁴": Moment(lambda x: jnp.sum(x**4), 3 / (d + 2)),
    }
    return KnownProblem("orthant of a sphere", problem, d, exact, exact, moments, exact)


WALLS = {
    "orthant": (half_normals, 0.5, 3, None),
    "pressed orthant": (lambda: half_normals(10, -2.0), 0.15, 4, None),
    "orthant of a sphere": (sphere_orthant, 0.35, 3, None),
    "orthant of a sphere, dense": (sphere_orthant, 0.35, 3, np.eye(6) + 0.3),
}


WALLS_GATE = {("orthant", "float32"), ("orthant of a sphere, dense", "float64")}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if (name, dtype) in WALLS_GATE else pytest.mark.slow)
        for name in WALLS
        for dtype in ("float32", "float64")
    ],
)
def test_the_law_stays_between_many_walls(name, dtype, request):
    if dtype == "float64":
        request.getfixturevalue("x64")
    make, step_size, num_steps, mass = WALLS[name]
    known = make()
    algorithm = og.chmc(known.problem, step_size, num_integration_steps=num_steps, inverse_mass=mass)
    check_invariance(known, algorithm, num_chains=1000)


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="negative control: another mean is another law")
def test_another_law_between_walls_is_seen():
    """Draws with mean 0.2, moved by the kernel of the orthant above, which is not compiled again."""
    make, step_size, num_steps, _ = WALLS["orthant"]
    other = dataclasses.replace(half_normals(mean=0.2), problem=make().problem)
    algorithm = og.chmc(other.problem, step_size, num_integration_steps=num_steps)
    check_invariance(other, algorithm, num_chains=1000)


@pytest.mark.slow
@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="negative control: bounces change the volume on curved sets"
)
def test_forgetting_the_volume_is_seen(x64, monkeypatch):
    module = sys.modules["ogradient.samplers.walls"]
    monkeypatch.setattr(module, "_log_size", jnp.zeros_like)
    known = sphere_orthant()
    algorithm = og.chmc(known.problem, 0.8, num_integration_steps=2)
    check_invariance(known, algorithm, num_chains=20_000, num_steps=20)


PRESSED, CURVATURE = 100.0, 0.5
SHAPE = np.array([1e-4, 0.02, 0.02, 0.02])  # variances of the layer, more or less


def tangent(x):
    return jnp.sum(x[1:3] ** 2)


def depth(x):
    return -x[0] - 0.5 * CURVATURE * tangent(x)


# log π = 100 x₀ − ½(x₁² + x₂²) under x₀ + ¼(x₁² + x₂²) ≤ 0 and x₃ = sin x₁: a layer 0.01 thick along a curved boundary.
LAYER = og.Problem(
    lambda x: PRESSED * x[0] - 0.5 * tangent(x),
    equality=lambda x: x[3] - jnp.sin(x[1]),
    inequality=lambda x: -depth(x),
)


def layer(pressed):
    """Exact draws and moments of the layer under some pressure, with the problem under 100."""
    variance = 1 / (1 + pressed * CURVATURE)

    def exact(key, n):
        first, second = jax.random.split(key)
        x = jnp.sqrt(variance) * jax.random.normal(first, (n, 2))
        deep = jax.random.exponential(second, (n,)) / pressed
        return jnp.stack([-0.5 * CURVATURE * jnp.sum(x**2, axis=1) - deep, x[:, 0], x[:, 1], jnp.sin(x[:, 0])], axis=1)

    moments = {
        "depth": Moment(depth, 1 / pressed),
        "depth²": Moment(lambda x: depth(x) ** 2, 2 / pressed**2),
        "x₁²": Moment(lambda x: x[1] ** 2, variance),
        "x₂²": Moment(lambda x: x[2] ** 2, variance),
        "x₁²x₂²": Moment(lambda x: x[1] ** 2 * x[2] ** 2, variance**2),
        "x₁² depth": Moment(lambda x: x[1] ** 2 * depth(x), variance / pressed),
    }
    return problems.KnownProblem("layer", LAYER, 4, exact, exact, moments, exact=exact)


def check_layer(*, pressed=PRESSED, step_size=0.5, num_steps=4, mass=SHAPE, num_chains=3000):
    known = layer(pressed)
    starts = known.exact(jax.random.key(3000 + SEED), num_chains)
    algorithm = og.chmc(LAYER, step_size, num_integration_steps=num_steps, inverse_mass=mass)
    ends, accepted = walk(algorithm, starts, 20)
    if accepted <= 0.3:
        pytest.fail("too few moves to see anything")  # no AssertionError: a negative control must fail by its law
    before, after = values_of(known, starts), values_of(known, ends)
    for name, moment in known.moments.items():
        forgotten = np.corrcoef(before[name], after[name])[0, 1] < 0.5
        if not forgotten:
            pytest.fail(f"{name} has hardly changed")
        limit = stats.norm.ppf(1 - ALARM / 2) * after[name].std(ddof=1) / np.sqrt(num_chains)
        error = abs(after[name].mean() - moment.value)
        assert error < limit, f"{name}: {after[name].mean():.4g}, truth {moment.value:.4g} ± {limit:.2g}"


UNSCALED = {"step_size": 0.01, "mass": None, "num_chains": 6000}


@pytest.mark.parametrize(
    "steps",
    [
        {},
        pytest.param(UNSCALED | {"num_steps": 8}, marks=pytest.mark.slow),
        pytest.param(UNSCALED | {"num_steps": 16}, marks=pytest.mark.slow),
    ],
)
def test_the_law_stays_in_a_thin_layer_along_a_boundary(steps, x64):
    check_layer(**steps)


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="negative control: a fifth more pressure is another layer"
)
def test_another_layer_is_seen(x64):
    """Draws under a fifth more pressure, moved by the kernel of the layer above, which is not compiled again."""
    check_layer(pressed=1.2 * PRESSED)


MICI = {  # problem, moment, its gap between the measures, our step size, steps
    "ellipse": (problems.ellipse, "x²", 1.02, 0.5, 4),
    "torus_b": (lambda measure: problems.torus("b", measure), "cos φ", 0.25, 0.3, 4),
    "cubic": (problems.cubic, "x₂²", 1.66, 0.8, 4),
}


WEIGHTS = np.array([1 / 9, 1.0])
ELLIPSE = [  # its potential with gradient, and g with its derivatives
    lambda q: 0.0,
    lambda q: np.zeros(2),
    lambda q: np.array([0.5 * (WEIGHTS @ q**2 - 1)]),
    lambda q: (WEIGHTS * q)[None],
    lambda q: np.diag(WEIGHTS),
]


def mici_means(known, moment, step_size, num_steps, num_chains=16, num_samples=300):
    """Means of a moment per chain, by mici's constrained HMC with derivatives from JAX, or those of JAX by hand."""
    import mici

    problem = known.problem
    functions = [
        lambda q: -problem.logdensity(q),
        jax.grad(lambda q: -problem.logdensity(q)),
        problem.equality_value,
        jax.jacobian(problem.equality_value),
        jax.hessian(lambda q: problem.equality_value(q)[0]),
    ]
    functions = [jax.jit(f) for f in functions]
    if known.name == "ellipse":  # a call from Python to JAX takes far longer than these few numbers
        for by_hand, function in zip(ELLIPSE, functions, strict=True):
            np.testing.assert_allclose(by_hand(np.array([1.7, -0.6])), function(jnp.array([1.7, -0.6])), atol=1e-14)
        functions = ELLIPSE
    potential, gradient, constraint, jacobian, hessian = functions
    system = mici.systems.DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=lambda q: float(potential(q)),
        grad_neg_log_dens=lambda q: np.asarray(gradient(q)),
        constr=lambda q: np.asarray(constraint(q)),
        jacob_constr=lambda q: np.asarray(jacobian(q)),
        mhp_constr=lambda q: lambda m: m[0] @ np.asarray(hessian(q)),
        dens_wrt_hausdorff=problem.measure == "hausdorff",
    )
    integrator = mici.integrators.ConstrainedLeapfrogIntegrator(system, step_size=step_size)
    sampler = mici.samplers.StaticMetropolisHMC(system, integrator, np.random.default_rng(SEED), n_step=num_steps)
    starts = list(np.asarray(known.exact(jax.random.key(SEED + 7), num_chains)))
    keep = {"trace_funcs": [lambda state: {"x": state.pos}], "display_progress": False, "n_worker": 1}
    result = sampler.sample_chains(0, num_samples, starts, **keep)
    function = jax.jit(jax.vmap(moment.function))
    return np.array([np.mean(function(jnp.asarray(chain))) for chain in result.traces["x"]])


@pytest.mark.parametrize("measure", ["conditional", pytest.param("hausdorff", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["ellipse", pytest.param("torus_b", marks=pytest.mark.slow), pytest.param("cubic", marks=pytest.mark.slow)]
)
def test_mici_agrees(name, measure, x64, lenient_promotion):
    build, label, gap, step_size, num_steps = MICI[name]
    known = build(measure)
    algorithm = og.chmc(known.problem, step_size, num_integration_steps=num_steps)
    starts = known.start_on(jax.random.key(SEED), 64)
    trace = og.sample(SEED, known.problem, starts, algorithm=algorithm, num_samples=400, progress=False)
    ours = np.asarray(trace.apply(known.moments[label].function)).mean(axis=1)
    theirs = mici_means(known, known.moments[label], step_size, num_steps)
    error = np.hypot(*(m.std(ddof=1) / np.sqrt(len(m)) for m in (ours, theirs)))
    assert 6 * error < 0.9 * gap, "the other measure must be out of reach"
    assert abs(ours.mean() - theirs.mean()) < 6 * error
