"""A regression under a constraint on its rows, in memory or batch by batch: what the tests of og.posterior share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og

N, B = 40, 8
X = jax.random.normal(jax.random.key(0), (N, 3))
Y = X @ jnp.array([1.0, -0.5, 0.2]) + 0.3 * jax.random.normal(jax.random.key(1), (N,))
STARTS = jnp.array([[1.0, 0.2, -0.1], [0.3, -1.0, 0.5], [-0.4, 0.3, 1.2]])
STARTS = STARTS / jnp.sqrt(jnp.mean((STARTS @ X.T) ** 2, axis=1, keepdims=True))  # on the set of all rows
W = jnp.array([-1.0, 1.0, 1.0])  # off it, and far from where the score is 0

SAME_ROWS = pytest.mark.filterwarnings("ignore:the constraint sees")
prior = lambda w: -0.5 * jnp.sum(w**2)
likelihood = lambda w, batch: -0.5 * jnp.sum((batch[1] - batch[0] @ w) ** 2)
size = lambda w, batch: jnp.mean((batch[0] @ w) ** 2) - 1.0  # curved, so that r is at work
below = lambda w, batch: jnp.mean(batch[0] @ w) - 1.0
both = lambda w, batch: (likelihood(w, batch), size(w, batch), below(w, batch))


def make(**changes):
    arguments = {"logprior_fn": prior, "loglikelihood_fn": likelihood, "data": (X, Y), "equality": size} | changes
    return og.posterior(**arguments)


def run(problem, algorithm, starts=STARTS, **changes):
    arguments = {"num_warmup": 0, "num_samples": 20, "progress": False} | changes
    return og.sample(0, problem, starts, algorithm=algorithm, **arguments)


def steps(algorithm, start=STARTS[0], count=6):
    """Positions of one chain, without what og.sample does around it."""

    def step(state, t):
        state, _ = algorithm.step(jax.random.fold_in(jax.random.key(0), t), state)
        return state, state.position

    return np.asarray(jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(count)))(algorithm.init(start))[1])


def zero(w):
    return 0 * w[0]


def total(w, rows):
    return jnp.sum(rows)


def mean_row(w, rows):
    return jnp.mean(rows) + w[0]


def numbered(**changes):
    """Rows 0 … N−1 whose sum is the likelihood and whose mean is g: what a step saw is there to read."""
    return og.posterior(zero, total, jnp.arange(1.0 * N), equality=mean_row, **changes)


def seen(problem, num_keys=4000):
    """Mean row of the likelihood's batch and of the constraint's, by step key."""
    rows, constraint_rows = _seen(problem, jax.random.split(jax.random.key(2), num_keys))
    return np.asarray(rows, float), np.asarray(constraint_rows, float)


@jax.jit
def _seen(problem, keys):
    here = jnp.zeros(1)
    look = lambda key: (problem.view(key).logdensity(here) / N, problem.view(key).equality_value(here)[0])
    return jax.vmap(look)(keys)


def fetch(step):
    rows = np.random.default_rng(step).integers(0, N, B)
    return np.asarray(X)[rows], np.asarray(Y)[rows]


def fed(batch_fn=fetch, **changes):
    return make(**{"data": batch_fn, "num_rows": N} | changes)


KINDS = {"batch_fn": lambda **changes: fed(**changes), "minibatches": lambda **changes: make(batch_size=B, **changes)}
