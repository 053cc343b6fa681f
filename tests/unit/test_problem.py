import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og

X = jnp.array([1.0, 2.0, 3.0])
flat = lambda x: 0.0


@pytest.mark.parametrize(
    ("equality", "expected"),
    [
        (lambda x: x[0], [1.0]),
        (lambda x: x[:2], [1.0, 2.0]),
        (lambda x: x[:2].reshape(1, 2), [1.0, 2.0]),
        ([lambda x: x[0], lambda x: x[1:]], [1.0, 2.0, 3.0]),
    ],
)
def test_equalities_of_any_form_become_one_vector(equality, expected):
    np.testing.assert_array_equal(og.Problem(flat, equality).equality_value(X), expected)


def test_constraint_value_has_the_kinds_that_were_given():
    problem = og.Problem(flat, lambda x: x[0], inequality=[lambda x: x[1], lambda x: -x])
    value = problem.constraint_value(X)
    assert {k: v.shape for k, v in value.items()} == {"equality": (1,), "inequality": (4,)}
    assert og.Problem(flat).constraint_value(X) == {}


def test_positions_are_any_pytree():
    problem = og.Problem(lambda p: -jnp.sum(p["w"] ** 2) - p["b"] ** 2, lambda p: jnp.sum(p["w"]) - p["b"])
    position = {"w": jnp.ones((2, 2)), "b": jnp.array(1.0)}
    problem.check(position)
    x, logdensity, constraint, unravel = problem.flatten(position)
    assert x.shape == (5,)
    assert float(logdensity(x)) == -5
    assert constraint(x).tolist() == [3.0]
    assert unravel(x)["w"].shape == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logdensity_fn": 3.0}, "logdensity_fn must be a function"),
        ({"logdensity_fn": flat, "equality": 3.0}, "equality must be a function"),
        ({"logdensity_fn": flat, "equality": [flat, 1]}, "equality must be a function"),
        ({"logdensity_fn": flat, "measure": "area"}, "measure must be 'conditional' or 'hausdorff'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        og.Problem(**arguments)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (og.Problem(lambda x: x), r"logdensity_fn must return a scalar.*shape \(3,\)"),
        (og.Problem(lambda x: "no"), "logdensity_fn must return a scalar; got str"),
        (og.Problem(lambda x: None), "logdensity_fn must return a scalar; got NoneType"),
        (og.Problem(lambda x: jax.lax.complex(x[0], x[1])), "real floating-point"),
        (og.Problem(flat, lambda x: "no"), "equality must return a scalar or an array; got str"),
        (og.Problem(flat, lambda x: x > 0), "equality must return .* real floating-point"),
        (og.Problem(flat, [lambda x: x[0], lambda x: x[:0]]), r"equality\[1\] must return at least one value"),
        (og.Problem(flat, lambda x: jnp.concatenate([x, x])), "returns 6 values but the position has only 3"),
    ],
)
def test_wrong_results_are_named_before_any_loop(problem, message):
    with pytest.raises(ValueError, match=message):
        problem.check(X)


def test_an_error_in_the_users_function_is_left_alone():
    def broken(x):
        raise KeyError("my own mistake")

    with pytest.raises(KeyError, match="my own mistake"):
        og.Problem(broken).check(X)


@pytest.mark.parametrize("position", [{}, jnp.zeros((0,)), jnp.arange(3)])
def test_positions_must_be_floats(position):
    with pytest.raises(ValueError, match="empty|floating-point"):
        og.Problem(flat).check(position)


def test_half_precision_is_refused_and_empty_lists_are_none():
    with pytest.raises(ValueError, match="at least 32 bits"):
        og.Problem(flat).check(jnp.ones(3, jnp.bfloat16))
    problem = og.Problem(flat, equality=lambda x: x[0], inequality=[])
    assert problem.inequality is None
    assert og.Problem(flat, equality=[]).equality is None
