"""Matrix products are traced in full precision: on recent GPUs the default has three digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient import chunk

pytestmark = pytest.mark.optimised

A = np.ones((2, 3), np.float32)
PROBLEM = og.Problem(lambda x: -0.5 * x @ (A.T @ (A @ x)), lambda x: A @ x - 1)


def precisions(function, *arguments):
    """How precise the products of a function are asked to be."""
    found = set()

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                found.add(str(equation.params["precision"]))
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(jax.make_jaxpr(function)(*arguments).jaxpr)
    return found


def test_the_users_products_and_ours():
    algorithm = og.chmc(PROBLEM, 0.1)
    states = chunk.start(algorithm.step.kernel, jnp.ones((2, 3)))
    parameters, pace = chunk.arguments_of(algorithm.step.kernel, algorithm.step.parameters, states.position)

    def steps(states):
        return chunk.many_steps(
            PROBLEM,
            algorithm.step.kernel,
            2,
            parameters,
            pace,
            jax.random.key(0),
            states,
            np.uint32(0),
            *[np.int32(1)] * 3,
            None,
        )

    assert all("HIGHEST" in one for one in precisions(steps, states))
    assert all("HIGHEST" in one for one in precisions(lambda x: og.land(PROBLEM, x), jnp.ones((2, 3))))
    state = algorithm.init(jnp.ones(3))
    assert all("HIGHEST" in one for one in precisions(lambda s: algorithm.step(jax.random.key(0), s), state))


def test_who_asks_for_less_gets_it():
    with jax.default_matmul_precision("tensorfloat32"):
        assert not any("HIGHEST" in one for one in precisions(PROBLEM.logdensity, jnp.ones(3)))
