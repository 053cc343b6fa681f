"""Law tests with a known false-alarm rate.

Chains are independent, so their means are an independent sample: their average may differ from the truth by a Student-t
limit at alarm 1e-6, plus a stated budget for the O(η) bias of an unadjusted sampler. The limit itself must be small
enough (`resolution`) to see the effect that matters, and chains must have moved without bad statuses.
"""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import ogradient as og
from ogradient.keys import step_keys

ALARM = 1e-6
SEED = int(os.environ.get("OGRADIENT_LAW_SEED", "0"))  # the gate uses 0; other seeds were tried before a test came in


def chain_means(known, algorithm, *, num_chains=128, num_warmup, num_steps, thinning=10, start="off"):
    """Run chains; return the means of all moments per chain, after checking that nothing went wrong."""
    starts = getattr(known, f"start_{start}")(jax.random.key(1000 + SEED), num_chains)
    trace = og.sample(
        SEED,
        known.problem,
        starts,
        algorithm=algorithm,
        num_warmup=num_warmup,
        num_samples=num_steps // thinning,
        thinning=thinning,
        progress=False,
    )
    assert not trace.problems()
    assert np.all(np.std(trace["x"], axis=1).max(axis=-1) > 0), "a chain stands still"
    return {
        name: np.asarray(trace.apply(moment.function), float).mean(axis=1) for name, moment in known.moments.items()
    }


def discrepancy(means, truth):
    """Error of the mean of chain means, and its Student-t limit."""
    n = len(means)
    limit = stats.t.ppf(1 - ALARM / 2, n - 1) * means.std(ddof=1) / np.sqrt(n)
    return abs(means.mean() - truth), limit


def check_law(known, algorithm, *, bias, resolution, **run):
    """Assert every moment within its limit plus the bias budget; moments not named in `bias` are not tested."""
    means = chain_means(known, algorithm, **run)
    for name, budget in bias.items():
        error, limit = discrepancy(means[name], known.moments[name].value)
        assert limit < resolution[name], f"{name}: limit {limit:.3g} cannot see an effect of {resolution[name]:.3g}"
        assert error < limit + budget, f"{name}: error {error:.3g}, limit {limit:.3g}, bias budget {budget:.3g}"


def walk(algorithm, starts, num_steps):
    """Where chains are after so many steps, and the share of accepted moves.

    This is the kernel alone, with the keys that og.sample would give it. The program is found again for the same kernel and
    problem, whatever its step size, mass and the number of steps.
    """
    bound = algorithm.step
    states, accepted, worst = _walk(bound.kernel, bound.problem, bound.parameters, starts, num_steps)
    assert int(worst) == 0, f"status {int(worst)}: moves may be rejected, nothing else"
    return np.asarray(states.position), float(accepted) / num_steps


@partial(jax.jit, static_argnums=0)
def _walk(kernel, problem, parameters, starts, num_steps):
    def body(t, carry):
        states, accepted, worst = carry
        keys = step_keys(jax.random.key(SEED), len(starts), t.astype(jnp.uint32))
        states, info = jax.vmap(lambda key, state: kernel.step(key, state, problem, parameters))(keys, states)
        rejected = (info.status == 3) | (info.status == 4)
        status = jnp.where(rejected, 0, info.status).max().astype(jnp.int32)
        return states, accepted + jnp.mean(info.is_accepted, dtype=starts.dtype), jnp.maximum(worst, status)

    nothing = jnp.zeros((), starts.dtype), jnp.zeros((), jnp.int32)
    return jax.lax.fori_loop(0, num_steps, body, (jax.vmap(kernel.init)(starts), *nothing))
