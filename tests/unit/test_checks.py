"""Bad input gets an error or a warning that names the argument and the remedy, before anything runs."""

import sys
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ogradient as og

STARTS = jnp.array([[-10.0, 1.0], [3.0, -1.0]])
gaussian = lambda x: -0.5 * jnp.sum(x**2)
curve = lambda x: x[0] + x[1] ** 3


def run(problem, starts=STARTS, **settings):
    algorithm = og.o_langevin(problem, settings.pop("step_size", 0.01), **settings)
    return og.sample(0, problem, starts, algorithm=algorithm, num_warmup=0, num_samples=3, progress=False)


class Inside(Exception):
    """The door is passed."""


def enter(problem, starts=STARTS, algorithm=None):
    """What og.sample does at its door, and no step: the steps would take longest to compile."""
    algorithm = algorithm or og.o_langevin(problem, 0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["ogradient.run.sample"], "Run", Mock(side_effect=Inside))
        with pytest.raises(Inside):
            og.sample(0, problem, starts, algorithm=algorithm, num_warmup=0, num_samples=3, progress=False)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ({}, "initial_positions is empty"),
        (jnp.zeros((0, 2)), "no chain"),
        (jnp.zeros((4, 0)), "position is empty"),
        (jnp.array(1.0), "chains as its first axis"),
        ([[1.0, 2.0], [3.0, 4.0]], "chains as its first axis; got a scalar leaf"),
        (np.array([[1.0, 2.0], [3.0]], dtype=object), "no array of numbers"),
        ({"a": jnp.zeros((2, 1)), "b": jnp.zeros((3, 1))}, r"disagree on the number of chains.*\[2, 3\]"),
        (jnp.array([[1, 2]]), "floating-point"),
        ("nonsense", "no array of numbers"),
        (None, "initial_positions is missing"),
    ],
)
def test_bad_starts(starts, message):
    with pytest.raises(ValueError, match=message):
        run(og.Problem(gaussian, curve), starts)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (og.Problem(lambda x: x, curve), "logdensity_fn must return a scalar"),
        (og.Problem(lambda x: jnp.log(-jnp.sum(x**2)), curve), "logdensity_fn is not finite at the start of 2 of 2"),
        (
            og.Problem(lambda x: jnp.sqrt(x[0] + 10) + gaussian(x), curve),
            "gradient of logdensity_fn is not finite .* 1 of 2",
        ),
        (
            og.Problem(gaussian, lambda x: jnp.log(x[0])),
            r"equality is not finite .* 1 of 2 chains \(the first is number 0\)",
        ),
        (og.Problem(gaussian, lambda x: jnp.array([x[0], jnp.nan])), "equality is not finite"),
        (og.Problem(gaussian, lambda x: 3.0), "does not depend on the position"),
        (og.Problem(gaussian, [curve, lambda x: 0 * x[0]]), r"equality\[1\] is zero at every start"),
    ],
)
def test_bad_functions(problem, message):
    with pytest.raises(ValueError, match=message):
        run(problem)


@pytest.mark.parametrize("name", ["o_langevin", "o_kinetic"])
def test_no_constraint_is_refused_with_the_remedy(name):
    with pytest.raises(ValueError, match=f"{name} needs a constraint .* pass equality"):
        getattr(og, name)(og.Problem(gaussian), 0.1)
    with pytest.raises(ValueError, match=f"{name} needs a constraint .* leave out the name"):
        og.sample(0, og.Problem(gaussian), STARTS, algorithm=name)
    with pytest.raises(ValueError, match="max_active must be a whole number of at least 1"):
        getattr(og, name)(og.Problem(gaussian, curve), 0.1, max_active=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_size": 0.0}, "step_size must be one finite, positive number"),
        ({"step_size": np.nan}, "step_size must be"),
        ({"step_size": "small"}, "step_size must be"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"beta": 2.0}, r"beta must lie in \[0, 1\]"),
        ({"correction": "exakt"}, "correction must be one of"),
        ({"num_probes": 0}, "num_probes must be at least 1"),
        ({"temperature": 0.0}, "temperature must be"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        run(og.Problem(gaussian, curve), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_size": 0.0}, "step_size must be one finite, positive number"),
        ({"friction": 0.0}, "friction must be one finite, positive number"),
        ({"friction": np.inf}, "friction must be"),
        ({"friction": "weak"}, "friction must be"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"beta": 2.0}, r"beta must lie in \[0, 1\]"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"max_pull": 0.0}, "max_pull must be"),
        ({"max_active": 1.5}, "max_active must be a whole number"),
    ],
)
def test_bad_settings_of_o_kinetic(settings, message):
    with pytest.raises(ValueError, match=message):
        og.o_kinetic(og.Problem(gaussian, curve), settings.pop("step_size", 0.1), **settings)


@pytest.mark.parametrize("momentum", [None, "x", 1.0, -0.1, np.nan, np.array([0.1, 0.2])])
def test_what_is_no_share_of_a_move_is_refused(momentum):
    for make in (og.langevin, og.o_langevin, og.o_svgd):
        with pytest.raises(ValueError, match=r"momentum is the share of a move that the next one keeps, in \[0, 1\)"):
            make(og.Problem(gaussian, curve), 0.1, momentum=momentum)


def test_a_bound_per_time_needs_a_time():
    for name in ("alpha", "max_pull"):
        with pytest.raises(ValueError, match=f"{name} means {name} \\* step_size per step"):
            og.o_svgd(og.Problem(gaussian, curve), optimizer=optax.adam(0.1), **{name: 1.0})


@pytest.mark.parametrize("make", [og.langevin, og.o_langevin, og.o_kinetic])
def test_a_temperature_is_not_for_the_jacobian_of_a_support(make):
    problem = og.Problem(lambda x: -x[0] - x[1] ** 2, equality=lambda x: x[1] - 1, support=og.positive)
    with pytest.raises(ValueError, match="temperature=2.0 with support= would temper the Jacobian"):
        make(problem, 0.1, temperature=2.0)
    make(problem, 0.1, temperature=1.0)


def test_a_schedule_may_end_at_nothing(lenient_promotion):
    problem = og.Problem(gaussian, curve)
    algorithm = og.o_kinetic(problem, optax.cosine_decay_schedule(0.05, 5))
    trace = og.sample(0, problem, STARTS, algorithm=algorithm, num_warmup=0, num_samples=20, progress=False)
    assert trace.problems() == {}
    np.testing.assert_array_equal(trace["x"][:, 6:], np.repeat(trace["x"][:, 5:6], 14, axis=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1"),
        ({"num_warmup": -1}, "num_warmup must be"),
        ({"thinning": 1.5}, "thinning must be"),
        ({"chunk_size": 0}, "chunk_size must be"),
    ],
)
def test_bad_run_lengths(arguments, message):
    problem = og.Problem(gaussian, curve)
    with pytest.raises(ValueError, match=message):
        og.sample(0, problem, STARTS, **arguments)


@pytest.mark.parametrize("seed", ["zero", 1.5, jnp.zeros(2, jnp.uint32)])
def test_bad_seed(seed):
    with pytest.raises(ValueError, match="seed must be an integer or one typed key"):
        og.sample(seed, og.Problem(gaussian, curve), STARTS)


def test_a_squared_constraint_is_noticed():
    with pytest.warns(og.ConstraintWarning, match=r"equality\[0\] looks like a square.*Pass c itself"):
        enter(og.Problem(gaussian, lambda x: curve(x) ** 2))


@pytest.mark.parametrize("loss", [lambda x: jnp.sum(x**2) + 1, lambda x: jnp.cosh(x[0]) + x[1] ** 2])
def test_an_unattainable_constraint_is_noticed(loss):
    with pytest.warns(og.ConstraintWarning, match="could not be brought to 0 .* pass a level"):
        enter(og.Problem(gaussian, loss), STARTS + 0.5)


@pytest.mark.parametrize(
    "equality",
    [
        curve,
        lambda x: jnp.sum(x**2) - 1,
        lambda x: x[0] ** 3 - 1,
        lambda x: 1e-3 * (x[0] - 5),
    ],
)
def test_good_constraints_raise_no_alarm(equality, recwarn):
    run(og.Problem(gaussian, equality))
    assert not [w for w in recwarn if w.category is not og.ConvergenceWarning]  # the run is short on purpose


def test_two_good_constraints_raise_no_alarm(recwarn):
    equality = lambda x: jnp.array([x[0] ** 2 + 2 * x[1] ** 2 + x[2] ** 2 - 1, x[0] - x[1]])
    run(og.Problem(gaussian, equality), jnp.ones((3, 3)))
    assert not [w for w in recwarn if issubclass(w.category, og.ConstraintWarning)]


@pytest.mark.parametrize("settings", [{"alpha": 1000.0}, {"beta": 0.5}, {"alpha": 50.0, "beta": 1.0}])
def test_a_pull_beyond_one_newton_step_is_capped_with_a_warning(settings):
    with pytest.warns(og.ConstraintWarning, match="capped at 1"):
        trace = run(og.Problem(gaussian, curve), **settings)
    assert np.isfinite(trace["x"]).all()
    assert np.abs(trace.sample_stats["equality"][:, -1]).max() < 2  # Newton steps at most: they land


def test_schedules_are_accepted(recwarn):
    trace = run(og.Problem(gaussian, curve), step_size=optax.exponential_decay(0.01, 10, 0.5))
    assert np.isfinite(trace["x"]).all()
    assert not [w for w in recwarn if w.category is not og.ConvergenceWarning]  # the run is short on purpose


def test_a_redundant_row_is_reported_not_fatal():
    with pytest.warns(og.ConstraintWarning, match="RANK_DEFICIENT.*drop the redundant ones"):
        trace = run(og.Problem(gaussian, [curve, lambda x: 2 * curve(x)]))
    assert trace.problems() == {og.Status.RANK_DEFICIENT: 6}


def test_every_status_has_a_remedy():
    assert all(status.remedy for status in og.Status)


sphere = lambda x: jnp.sum(x**2) - 1
MANY = jnp.array([[1.7, -0.4], [0.3, 2.0], [-1.1, 0.9], [2.2, 1.4]])


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (og.Problem(gaussian, lambda x: sphere(x) ** 2), r"equality\[0\] looks like a square"),
        (og.Problem(gaussian, lambda x: jnp.sum(x**2) + 0.5), "If it is a loss that cannot be 0, pass a level"),
        (og.Problem(gaussian, [lambda x: x[0] - 1, lambda x: 2 * x[0] - 2]), "some rows say the same"),
        (
            og.Problem(gaussian, [lambda x: x[0] - 1, lambda x: x[0] + 1]),
            r"equality\[0\] and equality\[1\] contradict each other",
        ),
        (og.Problem(gaussian, sphere, lambda x: 5 - x[0]), r"if you meant h\(x\) >= 0, pass -h"),
        (og.Problem(gaussian, inequality=lambda x: jnp.stack([x[0] - 1, 2 - x[0]])), "may contradict each other"),
        (og.Problem(gaussian, inequality=lambda x: sphere(x) ** 2), "is an equality; pass it"),
    ],
)
def test_degenerate_constraints_are_named_at_the_door(problem, message):
    with pytest.warns(og.ConstraintWarning, match=message) as caught:
        enter(problem, MANY)
    assert all(warning.filename == __file__ for warning in caught), "the warning points at the user's line"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (og.Problem(gaussian, curve, lambda x: 0 * x[0] - 1), r"gradient of inequality\[0\] is zero at every start"),
        (og.Problem(gaussian, curve, lambda x: jnp.log(-1 - x[0] ** 2)), "inequality is not finite at the start"),
        (og.Problem(gaussian, curve, lambda x: "no number"), "must return a scalar or an array"),
    ],
)
def test_bad_inequalities(problem, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run(problem, MANY)


def test_a_crossing_of_the_set_is_found_in_the_draws():
    """∇(x₀x₁) vanishes where the two lines meet."""
    problem = og.Problem(gaussian, lambda x: x[0] * x[1])
    kept = {"num_warmup": 200, "num_samples": 1000, "progress": False}
    trace = og.sample(0, problem, MANY, algorithm=og.o_langevin(problem, 0.01), **kept)
    assert og.diagnose(trace)["gradient"].level == "doubtful"
    assert "use og.chmc" in og.diagnose(trace)["gradient"].text
    smooth = og.problems.ellipse()
    trace = og.sample(0, smooth.problem, MANY, algorithm=og.o_langevin(smooth.problem, 0.01), **kept)
    assert og.diagnose(trace)["gradient"].level == "fine"


def test_an_inequality_far_from_every_draw_is_told():
    problem = og.Problem(gaussian, sphere, lambda x: x[0] - 50)
    trace = run(problem, MANY)
    assert "inequality[0] was never near its boundary" in og.diagnose(trace)["inequality"].text


def test_a_likelihood_that_averages_over_rows_is_noticed():
    rows = jnp.arange(1.0, 21.0)
    build = lambda reduce: og.posterior(
        lambda x: -0.5 * jnp.sum(x**2), lambda x, y: -0.5 * reduce((y - x[0]) ** 2), rows, equality=lambda x, y: x[1]
    )
    look = lambda problem: enter(problem, jnp.ones((2, 2)), og.langevin(problem, 1e-3))
    with pytest.warns(og.ConstraintWarning, match="loglikelihood_fn .* average"):
        look(build(jnp.mean))
    look(build(jnp.sum))
    joint = og.posterior(lambda x: 0.0, data=rows, joint_fn=lambda x, y: (-0.5 * jnp.mean((y - x[0]) ** 2), x[1]))
    with pytest.warns(og.ConstraintWarning, match="joint_fn .* average"):
        look(joint)
    against_all = build(lambda terms: jnp.sum(terms[:, None] * jnp.ones_like(terms)[None]))
    with pytest.warns(og.ConstraintWarning, match=r"four times .* The data have shapes \[20\]; use y.ravel"):
        look(against_all)
    weights = jnp.linspace(0.0, 1.0, 20)  # of these rows: it cannot take others, and need not
    look(build(lambda terms: jnp.sum(weights * terms)))


@pytest.mark.parametrize(
    ("equality", "message"),
    [
        (lambda x: 1.0 + 0.0 * x[0], "gradient of equality.0. is zero at every start"),
        (lambda x: jnp.log(x[0] - 50), "equality is not finite"),
    ],
)
def test_moments_that_cannot_be_constrained_are_refused(equality, message):
    problem = og.Problem(gaussian, equality)
    with pytest.raises(ValueError, match=message):
        og.sample(0, problem, MANY[None], algorithm=og.control_langevin(problem, 0.01), num_warmup=0, num_samples=1)
