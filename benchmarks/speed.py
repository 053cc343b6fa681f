"""Speed, as ratios measured in one run: the machine's mood cancels. `ogradient bench` prints the table.

Each number is the best of several repetitions, taken in turns, so that a disturbance hits both sides alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ogradient as og


def stepper(algorithm, starts):
    """A compiled function of the number of steps, all chains together; returns the seconds it took."""
    chains, key = jnp.arange(starts.shape[0]), jax.random.key(0)

    @jax.jit
    def run(states, steps):
        def body(t, states):
            keys = jax.vmap(lambda c: jax.random.fold_in(jax.random.fold_in(key, c), t))(chains)
            return jax.vmap(algorithm.step)(keys, states)[0]

        return lax.fori_loop(0, steps, body, states)

    states = jax.vmap(algorithm.init)(starts)
    jax.block_until_ready(run(states, 1))

    def seconds(steps):
        began = time.perf_counter()
        jax.block_until_ready(run(states, steps))
        return (time.perf_counter() - began) / steps

    return seconds


def in_turns(repetitions, **timers):
    """Best seconds of each timer, measured in turns."""
    return {
        name: min(times)
        for name, times in zip(
            timers, zip(*([t() for t in timers.values()] for _ in range(repetitions)), strict=True), strict=True
        )
    }


def row(what, ours, theirs, peer, target, *, speedup=False):
    ratio = theirs / ours if speedup else ours / theirs
    met = ratio >= target if speedup else ratio <= target
    return {
        "what": what,
        "ours [µs]": round(1e6 * ours, 1),
        "peer": peer,
        "peer [µs]": round(1e6 * theirs, 1),
        "ratio": float(f"{ratio:.3g}"),
        "wanted": f"{'≥' if speedup else '≤'} {target:,}",
        "met": "yes" if met else "NO",
    }


def cubic():
    """One iteration of 50 chains on the paper's cubic: against og.langevin and mici's constrained Langevin."""
    known = og.problems.cubic()
    starts = known.start_on(jax.random.key(1), 50)
    ours, plain = (stepper(a, starts) for a in (og.o_langevin(known.problem, 0.01), og.langevin(known.problem, 0.01)))
    mici = mici_langevin(np.asarray(starts, float))
    best = in_turns(7, ours=lambda: ours(20_000), plain=lambda: plain(20_000), mici=lambda: mici(2))
    what = "cubic, 50 chains"
    return [
        row(what, best["ours"], best["plain"], "og.langevin", 2),
        row(what, best["ours"], best["mici"], "mici CLangevin", 2000, speedup=True),
    ]


def mici_langevin(starts):
    """mici's constrained Langevin (one RATTLE step of 0.3), conditional measure, hand-written derivatives."""
    import mici

    def neg_log_dens(q):
        return 0.5 * ((q[0] + q[1] ** 3) ** 2 + q[1] ** 2)

    def grad_neg_log_dens(q):
        c = q[0] + q[1] ** 3
        return np.array([c, 3 * q[1] ** 2 * c + q[1]])

    def mhp_constr(q):
        return lambda m: np.array([0.0, 6 * q[1] * m[0, 1]])

    system = mici.systems.DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=neg_log_dens,
        constr=lambda q: np.array([q[0] + q[1] ** 3]),
        jacob_constr=lambda q: np.array([[1.0, 3 * q[1] ** 2]]),
        mhp_constr=mhp_constr,
        grad_neg_log_dens=grad_neg_log_dens,
        dens_wrt_hausdorff=False,
    )
    integrator = mici.integrators.ConstrainedLeapfrogIntegrator(system, step_size=0.3)
    transition = mici.transitions.MetropolisStaticIntegrationTransition(system, integrator, n_step=1)
    rng = np.random.default_rng(0)

    def seconds(iterations):
        states = [mici.states.ChainState(pos=q.copy(), mom=None, dir=1) for q in starts]
        began = time.perf_counter()
        for _ in range(iterations):
            for i, state in enumerate(states):
                state.mom = system.sample_momentum(state, rng)
                states[i], _ = transition.sample(state, rng)
        return (time.perf_counter() - began) / iterations

    return seconds


def transport():
    """One iteration at d = 100,000, m = 1, one Hutchinson probe, against og.langevin on the same density."""
    known = og.problems.transport(100_000, 1)
    starts = known.start_off(jax.random.key(1), 1)
    algorithms = {
        "ours": og.o_langevin(known.problem, 0.01, correction="hutchinson"),
        "plain": og.langevin(known.problem, 0.01),
    }
    timers = {name: stepper(algorithm, starts) for name, algorithm in algorithms.items()}
    best = in_turns(7, **{name: lambda t=t: t(100) for name, t in timers.items()})
    return [row("transport, d = 100,000", best["ours"], best["plain"], "og.langevin", 2)]


def particles():
    """O-SVGD: one exact iteration of 50 particles in 2 dimensions, and 1,000 in 100 against blackjax.svgd."""
    import blackjax
    import optax

    known = og.problems.cubic()
    starts = known.start_on(jax.random.key(1), 50)[None]
    kernels = {"median": og.rbf(), "fixed": og.rbf(1.0)}
    small = {
        name: stepper(og.o_svgd(known.problem, 0.5, rkhs_kernel=kernel), starts) for name, kernel in kernels.items()
    }
    best = in_turns(5, **{name: lambda t=t: t(5000) for name, t in small.items()})
    rows = [
        row("O-SVGD n = 50, median", best["median"], 150e-6, "a limit", 1),
        row("O-SVGD n = 50, fixed h", best["fixed"], 20e-6, "a limit", 1),
    ]

    known = og.problems.transport(100, 1)
    starts = known.start_off(jax.random.key(1), 1000)
    ours = stepper(og.o_svgd(known.problem, 0.1, correction="exact"), starts[None])
    theirs = blackjax.svgd(jax.grad(known.problem.logdensity), optax.sgd(0.1))
    run = jax.jit(lambda state, steps: lax.fori_loop(0, steps, lambda _, s: theirs.step(s), state))
    state = theirs.init(starts, {"length_scale": 1.0})
    jax.block_until_ready(run(state, 1))

    def peer():
        began = time.perf_counter()
        jax.block_until_ready(run(state, 2))
        return (time.perf_counter() - began) / 2

    best = in_turns(3, ours=lambda: ours(5), peer=peer)
    return [*rows, row("O-SVGD n = 1,000, d = 100", best["ours"], best["peer"], "blackjax.svgd", 0.3)]


def importing():
    """`import ogradient` against `import jax`, each in a fresh interpreter."""

    def seconds(module):
        code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        output = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
        )
        return float(output.stdout)

    best = in_turns(5, ours=lambda: seconds("ogradient"), jax=lambda: seconds("jax"))
    return [row("import ogradient", best["ours"], best["jax"], "import jax", 1.5)]


BENCHMARKS = {"cubic": cubic, "transport": transport, "particles": particles, "import": importing}
