"""A function is called affine only if it is, and the usual ways to write bounds are recognised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogradient.geometry import is_affine

A = jnp.arange(12.0).reshape(3, 4)
AFFINE = {
    "bounds": lambda x: -x,
    "box": lambda x: jnp.concatenate([x - 1, -1 - x]),
    "matrix": lambda x: A @ x - 1,
    "numpy": lambda x: x @ np.ones(4) - 1.0,
    "einsum": lambda x: jnp.einsum("ij,j", A, x),
    "mapped": lambda x: jax.vmap(lambda row: row @ x)(A),
    "stacked": lambda x: jnp.stack([x[0] - 1, 1 - x[1]]),
    "listed": lambda x: jnp.array([x[0] - x[1], x[2]]),
    "sum": lambda x: jnp.sum(x) - 1,
    "mean": lambda x: jnp.mean(x) / 3,
    "weighted": lambda x: jnp.average(x, weights=jnp.arange(4.0)),
    "differences": lambda x: jnp.diff(x),
    "trace": lambda x: jnp.trace(x.reshape(2, 2)),
    "indexed": lambda x: x[jnp.array([0, 2])],
    "masked": lambda x: jnp.where(jnp.arange(4) > 1, x, -x),
    "set": lambda x: x.at[0].set(0.0),
    "compiled": jax.jit(lambda x: 2 * x + 1),
    "recomputed": jax.checkpoint(lambda x: 2 * x),
    "constant": lambda x: jnp.ones(2),
}
BENT = {
    "square": lambda x: x**2,
    "product": lambda x: x[:2] * x[2:],
    "inner": lambda x: x @ x,
    "quotient": lambda x: x / x[0],
    "inverse": lambda x: 1 / x,
    "absolute": jnp.abs,
    "steps": lambda x: x + jnp.floor(x),
    "whole": lambda x: x + x.astype(int).astype(float),
    "sign": jnp.sign,
    "branch": lambda x: jnp.where(x > 0, x, 2 * x),
    "condition": lambda x: jax.lax.cond(x[0] > 0, lambda a: a, lambda a: -a, x),
    "largest": jnp.max,
    "clipped": lambda x: jnp.clip(x, 0, 1),
    "sorted": jnp.sort,
    "taken": lambda x: x[x[0].astype(int)],
    "placed": lambda x: x.at[jnp.argmax(x)].set(0.0),
    "compiled": jax.jit(lambda x: x * x),
    "relu": jax.nn.relu,
    "length": jnp.linalg.norm,
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_functions_are_recognised(name):
    assert is_affine(AFFINE[name], jnp.zeros(4))


@pytest.mark.parametrize("name", BENT)
def test_others_never_are(name):
    assert not is_affine(BENT[name], jnp.zeros(4))


def test_constants_may_be_traced():
    assert jax.jit(lambda a: jnp.asarray(is_affine(lambda x: a * x, jnp.zeros(3))))(2.0)
