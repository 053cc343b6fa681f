"""From anywhere to the set, to the last digits; and a clear report where that cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient import problems

pytestmark = pytest.mark.optimised

KNOWN = [
    problems.cubic(),
    problems.ellipse(),
    problems.torus("a"),
    problems.torus("b"),
    problems.von_mises_fisher(100, 50.0),
]
KNOWN += [
    problems.affine_gaussian(),
    problems.transport(50, 5),
    problems.orthogonal(5),
    problems.spherical_cap(10, 0.3),
]


GATE_IN_DOUBLE = {"cubic", "transport", "spherical_cap"}  # one row, many rows, and an inequality
CASES = [(known, "float32") for known in KNOWN] + [
    pytest.param(known, "float64", marks=[] if known.name in GATE_IN_DOUBLE else pytest.mark.slow) for known in KNOWN
]


@pytest.mark.parametrize(("known", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_every_start_lands_at_rounding_level(known, dtype, request):
    if dtype == "float64":
        request.getfixturevalue("x64")
    starts = known.start_off(jax.random.key(0), 40).astype(dtype)
    landing = og.land(known.problem, starts)
    assert landing.position.dtype == dtype
    assert not np.any(landing.status)
    assert landing.iterations.max() < 30
    x = np.asarray(landing.position, np.float64)
    g, J = known.problem.equality_value, jax.jacobian(known.problem.equality_value)
    g, J = (np.asarray(v, np.float64) for v in jax.jit(jax.vmap(lambda x: (g(x), J(x))))(landing.position))
    level = 8 * np.finfo(dtype).eps * np.einsum("nmd,nd->nm", np.abs(J), np.abs(x))
    assert np.all(np.abs(g) <= 2 * level + 1e-300)  # twice: g is summed in another order here
    assert np.all(landing.rank == J.shape[1])
    if known.problem.inequality is not None:
        assert np.all(jax.vmap(known.problem.inequality_value)(landing.position) <= 0)


def test_a_point_on_the_set_stays():
    on = jnp.array([[0.6, 0.8]])
    landing = og.land(og.Problem(lambda x: 0.0, lambda x: jnp.sum(x**2) - 1), on)
    np.testing.assert_array_equal(landing.position, on)
    assert int(landing.iterations[0]) == 1


def test_steps_are_of_minimum_norm():
    plane = og.Problem(lambda x: 0.0, lambda x: x[0] + x[1] - 2)
    np.testing.assert_allclose(og.land(plane, jnp.array([[1.0, -3.0, 7.0]])).position, [[3.0, -1.0, 7.0]], atol=1e-6)


def test_positions_may_be_pytrees_and_inequalities_alone():
    problem = og.Problem(lambda p: 0.0, inequality=[lambda p: p["a"] - 3, lambda p: 1 - p["a"]])
    landing = og.land(problem, {"a": jnp.array([-5.0, 2.0, 9.0])})
    assert not np.any(landing.status)
    assert landing.position["a"][1] == 2
    assert np.all((landing.position["a"] > 1.1) & (landing.position["a"] < 2.9)), "inside, not on the boundary"


@pytest.mark.parametrize(
    ("equality", "rank"),
    [(lambda x: x[0] ** 2 + 1, 1), (lambda x: jnp.array([x[0], x[0] + 1]), 1)],
    ids=["unreachable", "conflicting"],
)
def test_what_cannot_land_is_reported(equality, rank):
    problem = og.Problem(lambda x: -0.5 * x @ x, equality)
    starts = jnp.array([[3.0, 1.0], [-2.0, 0.5]])
    landing = og.land(problem, starts)
    assert np.all(landing.status == og.Status.SOLVER_DIVERGED)
    assert np.all(landing.rank <= rank)
    assert 0.4 < landing.residual.min() < 1.1
    with (
        pytest.warns(og.ConstraintWarning),
        pytest.raises(ValueError, match=r"could not be brought onto the set: .* residual is"),
    ):
        og.sample(0, problem, starts)


def test_no_constraint_is_refused():
    with pytest.raises(ValueError, match="land needs a problem with a constraint"):
        og.land(og.Problem(lambda x: 0.0), jnp.ones((2, 2)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_ask_for_too_much_depth_do_not_pass_for_noise(dtype, request):
    """Far from a simplex its faces ask for more depth than it has: they contradict g, and steps are made of roundings."""
    if dtype == "float64":
        request.getfixturevalue("x64")
    problem = og.Problem(lambda x: 0.0, equality=lambda x: jnp.sum(x) - 1, inequality=lambda x: -x)
    sizes = 10.0 ** jnp.linspace(-2, 2, 2000, dtype=dtype)[:, None]
    landed = og.land(problem, sizes * jax.random.uniform(jax.random.key(0), (2000, 5), dtype))
    assert not np.any(landed.status)
    assert jnp.max(jnp.abs(jnp.sum(landed.position, axis=1) - 1)) < 100 * jnp.finfo(dtype).eps
    assert jnp.min(landed.position) >= 0


def test_a_bounded_g_that_no_step_makes_smaller_is_no_landing():
    """Where it saturates the line search fails, and g differs from its linear prediction as roundings do."""
    rows = jax.random.normal(jax.random.key(1), (40, 6))
    g = lambda x: jnp.stack([jnp.mean(jnp.tanh(rows[20 * k : 20 * k + 20] @ x + 1 - 2 * k) ** 2) - 0.6 for k in (0, 1)])
    landing = og.land(og.Problem(lambda x: -0.5 * jnp.sum(x**2), g), jax.random.normal(jax.random.key(0), (2000, 6)))
    landed = np.asarray(landing.status == og.Status.OK)
    assert landed.mean() > 0.9
    assert np.abs(jax.vmap(g)(landing.position))[landed].max() < 1e-5
