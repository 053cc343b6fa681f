"""Speed, as ratios measured in one run: the machine's mood cancels. `ogradient bench` prints the table.

Each number is the best of several repetitions, taken in turns, so that a disturbance hits both sides alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mici_system import mici_system

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
    return per_step(lambda steps: run(states, steps))


def per_step(run):
    """Seconds per step of run(steps), after a first call that compiles."""
    jax.block_until_ready(run(1))

    def seconds(steps):
        began = time.perf_counter()
        jax.block_until_ready(run(steps))
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
    algorithms = {
        "ours": og.o_langevin(known.problem, 0.01),
        "kinetic": og.o_kinetic(known.problem, 0.1),
        "plain": og.langevin(known.problem, 0.01),
    }
    timers = {name: stepper(algorithm, starts) for name, algorithm in algorithms.items()}
    mici = mici_langevin(np.asarray(starts, float))
    best = in_turns(7, **{name: lambda t=t: t(20_000) for name, t in timers.items()}, mici=lambda: mici(2))
    what = "cubic, 50 chains"
    return [
        row(what, best["ours"], best["plain"], "og.langevin", 2),
        row(f"O-kinetic, {what}", best["kinetic"], best["plain"], "og.langevin", 7),
        row(what, best["ours"], best["mici"], "mici CLangevin", 2000, speedup=True),
    ]


def by_area(problem):
    """The same law where det G is constant on the set, without computing it."""
    return og.Problem(problem.logdensity_fn, problem.equality, measure="hausdorff")


def exact():
    """CHMC: the cubic with the paper's setting, mici's own README torus by effective draws, and SO(11)."""
    known = og.problems.cubic()
    starts = og.land(known.problem, known.start_on(jax.random.key(1), 50)).position
    ours = stepper(og.chmc(known.problem, 1.0, num_integration_steps=2), starts)
    mici = mici_langevin(np.asarray(starts, float), step_size=1.0, num_steps=2)
    best = in_turns(3, ours=lambda: ours(2000), mici=lambda: mici(2))
    rows = [row("CHMC, cubic, 50 chains", best["ours"], best["mici"], "mici CHMC", 300, speedup=True)]

    known = og.problems.mici_torus()
    problem = by_area(known.problem)
    torus = known.exact(jax.random.key(0), 50)
    algorithm = og.chmc(problem, 0.2, num_integration_steps=5)
    trace = og.sample(0, problem, torus, algorithm=algorithm, num_samples=1000, num_warmup=100, progress=False)
    per_draw = trace.summary(digits=None)["ess_bulk"].min() / (trace.num_chains * trace.num_draws)
    peer_per_draw, peer_seconds = mici_torus(np.asarray(torus[:4], float))
    seconds = stepper(algorithm, og.land(problem, torus).position)(1000) / 50
    rows.append(
        row(
            "CHMC, mici's torus, per effective draw",
            seconds / per_draw,
            peer_seconds / peer_per_draw,
            "mici CHMC",
            300,
            speedup=True,
        )
    )

    group = og.problems.orthogonal(11)
    flat = by_area(group.problem)
    rotations = og.land(flat, group.start_on(jax.random.key(2), 16)).position
    ours = stepper(og.chmc(flat, 0.2, num_integration_steps=1, projection="chord"), rotations)
    seconds = min(ours(50) for _ in range(3)) / 16
    return [*rows, row("CHMC, SO(11), a step of one of 16 chains", seconds, 1e-3, "a limit", 1)]


def mici_torus(starts, num_samples=150):
    """Effective draws per draw and seconds per draw of mici's constrained HMC on the same torus."""
    import mici
    from arviz_stats.base import array_stats

    # Both measures are the same law on this torus, and the Hausdorff one is cheaper.
    problem = by_area(og.problems.mici_torus().problem)
    with jax.enable_x64(True):
        system = mici_system(problem)
        integrator = mici.integrators.ConstrainedLeapfrogIntegrator(system, step_size=0.2)
        sampler = mici.samplers.StaticMetropolisHMC(system, integrator, np.random.default_rng(0), n_step=5)
        keep = {"trace_funcs": [lambda state: {"x": state.pos}], "display_progress": False, "n_worker": 1}
        sampler.sample_chains(0, 5, list(starts), **keep)
        began = time.perf_counter()
        result = sampler.sample_chains(0, num_samples, list(starts), **keep)
        seconds = (time.perf_counter() - began) / (num_samples * len(starts))
    draws = np.stack(result.traces["x"])
    ess = min(float(array_stats.ess(draws[..., i], chain_axis=0, draw_axis=1)) for i in range(3))
    return ess / (num_samples * len(starts)), seconds


def mici_langevin(starts, step_size=0.3, num_steps=1):
    """Mici's constrained HMC (Langevin: one RATTLE step of 0.3), conditional measure, hand-written derivatives."""
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
    integrator = mici.integrators.ConstrainedLeapfrogIntegrator(system, step_size=step_size)
    transition = mici.transitions.MetropolisStaticIntegrationTransition(system, integrator, n_step=num_steps)
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
        "kinetic": og.o_kinetic(known.problem, 0.1),
        "plain": og.langevin(known.problem, 0.01),
    }
    timers = {name: stepper(algorithm, starts) for name, algorithm in algorithms.items()}
    best = in_turns(7, **{name: lambda t=t: t(100) for name, t in timers.items()})
    what = "transport, d = 100,000"
    return [
        row(what, best["ours"], best["plain"], "og.langevin", 2),
        row(f"O-kinetic, {what}", best["kinetic"], best["plain"], "og.langevin", 2),
    ]


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


def landing():
    """og.land against optimistix's Gauss–Newton, the fastest of its solvers here, from 256 far starts."""
    import lineax
    import optimistix

    from ogradient.geometry.land import _land_all

    rows = []
    linear = lineax.AutoLinearSolver(well_posed=None)
    with jax.enable_x64(True):
        solver = optimistix.GaussNewton(rtol=1e-12, atol=1e-12, linear_solver=linear)
        for known, scale in (
            (og.problems.torus_b(), 5.0),
            (og.problems.von_mises_fisher(100, 50.0), 5.0),
            (og.problems.orthogonal(5), 2.0),
        ):
            problem, starts = known.problem, scale * jax.random.normal(jax.random.key(0), (256, known.dim))
            solve = lambda x, p=problem: (
                optimistix.least_squares(lambda y, _: p.equality_value(y), solver, x, throw=False, max_steps=100).value
            )
            calls = {"ours": lambda p=problem, x=starts: _land_all(p, x, 100).position}
            calls["theirs"] = partial(jax.jit(jax.vmap(solve)), starts)
            for name, call in calls.items():
                off = np.abs(jax.vmap(problem.equality_value)(call())).max()
                assert off < 1e-9, f"{name} did not land on {known.name}"
            best = in_turns(5, **{name: lambda c=call: seconds_of(c) for name, call in calls.items()})
            rows.append(row(f"land, {known.name}", best["ours"], best["theirs"], "optimistix GaussNewton", 1.5))
    return rows


def seconds_of(call):
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def inequalities():
    """O-Langevin and O-kinetic with 100 linear inequality rows at d = 1,000 against the step with the equality alone."""
    d, rows = 1000, 100
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(rows, d)) / np.sqrt(d), jnp.float32)
    sphere, gaussian = (lambda x: jnp.sum(x**2) - d), (lambda x: -0.5 * jnp.sum(x**2))
    plain = og.Problem(gaussian, equality=sphere)
    bounded = og.Problem(gaussian, equality=sphere, inequality=lambda x: matrix @ x - 1)
    starts = og.land(bounded, jax.random.normal(jax.random.key(0), (16, d))).position
    algorithms = {
        "ours": og.o_langevin(bounded, 1e-3, max_active=8),
        "alone": og.o_langevin(plain, 1e-3),
        "kinetic": og.o_kinetic(bounded, 0.045, max_active=8),
        "kinetic alone": og.o_kinetic(plain, 0.045),
    }
    timers = {name: stepper(algorithm, starts) for name, algorithm in algorithms.items()}
    best = in_turns(5, **{name: lambda t=t: t(300) for name, t in timers.items()})
    what = "100 inequalities, max_active=8"
    return [
        row(what, best["ours"], best["alone"], "equality alone", 4),
        row(f"O-kinetic, {what}", best["kinetic"], best["kinetic alone"], "equality alone", 6),
    ]


def default():
    """`og.sample(0, problem, x0)`, nothing else given, compilation included; R-hat and ESS as wanted of its draws."""
    cases = {
        "ellipse": og.problems.ellipse(),
        "torus b": og.problems.torus_b(),
        "von Mises–Fisher, d = 100": og.problems.von_mises_fisher(100, 50.0),
        "SO(5)": og.problems.orthogonal(5),
        "cubic": og.problems.cubic(),
    }
    rows = []
    for name, known in cases.items():
        starts = known.start_off(jax.random.key(0), 16)
        began = time.perf_counter()
        trace = og.sample(0, known.problem, starts, progress=False)
        seconds = time.perf_counter() - began
        table = trace.summary(digits=None)
        what = f"default call, {name}: R-hat {table['r_hat'].max():.3f}, ESS {table['ess_bulk'].min():,.0f}"
        rows.append(row(what, seconds, 60.0, "a limit", 1))
    return rows


def income():
    """One step of 10 chains of the paper's income network, 20,000 rows, as og.sample runs it: against og.langevin."""
    from ogradient.chunk import arguments_of, run_chunk
    from ogradient.datasets import Split
    from ogradient.experiments.income import covariance, fair_problem
    from ogradient.experiments.training import bernoulli, mlp, normal_prior

    rng, rows, chains = np.random.default_rng(0), 20_000, 10
    features = rng.normal(size=(rows, 86)).astype(np.float32)  # the numbers in the table do not matter here
    label, sensitive = ((rng.random(rows) < share).astype(np.float32) for share in (0.25, 0.67))
    model = mlp(86)
    starts = jax.vmap(model.start)(jax.random.split(jax.random.key(0), chains))
    joint = fair_problem(model, Split(features, label, sensitive))
    apart = og.posterior(
        normal_prior,
        lambda p, batch: bernoulli(model.logit(p, batch["features"]), batch["label"]),
        joint.data.rows,
        equality=lambda p, batch: covariance(model.logit(p, batch["features"]), batch["sensitive"]),
    )

    def timer(problem, algorithm):
        states = jax.vmap(algorithm.init)(starts)
        kernel = algorithm.step.kernel
        given = arguments_of(kernel, algorithm.step.parameters, starts)
        run = partial(run_chunk, problem, kernel, 3, *given, jax.random.key(0), states, jnp.uint32(0))
        row_end, thinning = jnp.int32(10**6), jnp.int32(1)  # no draw is kept

        return partial(per_step(lambda steps: run(jnp.int32(steps), row_end, thinning, None)), 5)

    eta = 1e-5
    timers = {
        "langevin": timer(apart, og.langevin(apart, eta)),
        "none": timer(apart, og.o_langevin(apart, eta, alpha=0.1 / eta, correction="none")),
        "joint_none": timer(joint, og.o_langevin(joint, eta, alpha=0.1 / eta, correction="none")),
        "probe": timer(apart, og.o_langevin(apart, eta, alpha=0.1 / eta)),
        "joint_probe": timer(joint, og.o_langevin(joint, eta, alpha=0.1 / eta)),
    }
    best = in_turns(10, **timers)
    compare = lambda what, name, target: row(what, best[name], best["langevin"], "og.langevin", target)
    return [
        compare("income network, no second order", "none", 1.4),
        compare("income network, no second order, joint function", "joint_none", 1.4),
        compare("income network, one probe", "probe", 2.8),
        compare("income network, one probe, joint function", "joint_probe", 2.8),
    ]


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


BENCHMARKS = {
    "cubic": cubic,
    "transport": transport,
    "inequalities": inequalities,
    "particles": particles,
    "exact": exact,
    "land": landing,
    "default": default,
    "income": income,
    "import": importing,
}
