"""How near a step of each kernel is to the least it could cost: `ogradient bench floor`.

The floor of a step is the time of the functions it must evaluate, compiled alone in the same run and measured in turns with it:
gradients of log π, values of g, Jacobians of g, Hessian-vector products of g, and for particles the products with their kernel
matrix. How many of each comes from the kernel's equations and, for exact kernels, from the iterations that its solver reports;
`forward_passes` counts what a step really evaluates, to hold these numbers to. The multiple is the time of a step over its floor.
Random numbers are apart: a step of a chain needs d of them, which can take longer than a cheap gradient.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from provenance import commit, machine, versions
from speed import in_turns, per_step, stepper

import ogradient as og
from ogradient.geometry.correction import hessian_sum
from ogradient.geometry.frame import value_and_jacobian
from ogradient.storage import write_atomically

LIMIT = 1.5  # a multiple above it is named
LEAST_SECONDS = 0.05  # that a measurement takes
STEPS = 3  # of a trajectory


class Size(NamedTuple):
    """The size of a problem, and of what is mapped over it: chains, or particles."""

    d: int = 1000
    m: int = 1
    n: int = 4


class Measured(NamedTuple):
    """One kernel at one size."""

    kernel: str
    problem: str
    size: Size
    counts: dict[str, float]  # evaluations per step and chain
    seconds: float
    floor: float
    noise: float  # seconds for the random numbers of a step

    @property
    def multiple(self) -> float:
        """The time of a step over that of its bare evaluations."""
        return self.seconds / self.floor

    @property
    def multiple_with_noise(self) -> float:
        """The same with the random numbers in the floor."""
        return self.seconds / (self.floor + self.noise)


def cheap(size: Size) -> og.Problem:
    """A log density of d numbers, each used once: nothing hides what a kernel does beside it."""
    return og.problems.transport(size.d, size.m).problem


def costly(size: Size) -> og.Problem:
    """Logistic regression on 256 rows, a group of which has its mean prediction fixed: matrix products, as in real models."""
    rng = np.random.default_rng(0)
    rows = jnp.asarray(rng.normal(size=(256, size.d)) / np.sqrt(size.d), jnp.float32)
    label = jnp.asarray(rng.random(256) < 0.5, jnp.float32)

    def logdensity(w):
        z = rows @ w
        return jnp.sum(label * z - jax.nn.softplus(z)) - 0.5 * jnp.sum(w**2)

    groups = rows.reshape(-1, 16, size.d)[: size.m]
    return og.Problem(logdensity, equality=lambda w: jnp.mean(jax.nn.sigmoid(groups @ w), axis=1) - 0.5)


PROBLEMS: dict[str, Callable[[Size], og.Problem]] = {"cheap": cheap, "costly": costly}


class Row(NamedTuple):
    """A kernel: how it is made, how many of each evaluation a step has, and whether it moves particles together."""

    make: Callable[[og.Problem], Any]
    # Of the mean number of solver iterations, to evaluations by kind.
    counts: Callable[[float], dict[str, float]]
    ensemble: bool = False


def exact_counts(steps: int, solver: str) -> Callable[[float], dict[str, float]]:
    """RATTLE: a gradient, a Jacobian and a Hessian-vector product at each point; and what the solver needs."""
    points = steps + 1

    def counts(iterations):
        count = {"gradient": points, "jacobian": points, "hessian-vector": points, "value": 1.0}
        count[solver] += iterations
        return count

    return counts


NEAR = {"gradient": 1, "jacobian": 1, "hessian-vector": 1, "value": 1}
KERNELS: dict[str, Row] = {
    "langevin": Row(lambda p: og.langevin(p, 1e-3), lambda _: {"gradient": 1, "value": 1}),
    "o_langevin": Row(lambda p: og.o_langevin(p, 1e-3, correction="hutchinson"), lambda _: NEAR),
    "o_langevin, no correction": Row(
        lambda p: og.o_langevin(p, 1e-3, correction="none"), lambda _: {"gradient": 1, "jacobian": 1, "value": 1}
    ),
    "o_kinetic": Row(
        lambda p: og.o_kinetic(p, 0.01), lambda _: {"gradient": 1, "jacobian": 2, "hessian-vector": 1, "value": 3}
    ),
    "clangevin": Row(lambda p: og.clangevin(p, 0.05, projection="newton"), exact_counts(1, "jacobian")),
    "chmc, broyden": Row(
        lambda p: og.chmc(p, 0.05, num_integration_steps=STEPS, projection="broyden"), exact_counts(STEPS, "value")
    ),
    "chmc, newton": Row(
        lambda p: og.chmc(p, 0.05, num_integration_steps=STEPS, projection="newton"), exact_counts(STEPS, "jacobian")
    ),
    "svgd": Row(lambda p: og.svgd(p, 0.01), lambda _: {"gradient": 1, "value": 1, "kernel": 1}, True),
    "o_svgd": Row(lambda p: og.o_svgd(p, 0.01, correction="hutchinson"), lambda _: NEAR | {"kernel": 1}, True),
    "control_langevin": Row(lambda p: og.control_langevin(p, 1e-3), lambda _: NEAR, True),
}


def bare_functions(problem: og.Problem) -> dict[str, Callable]:
    """The functions of one position (of all particles: "kernel") that floors are made of, each to an array like its argument."""
    constraint = problem.equality_value

    def products(x):
        # Distances, the kernel, and its products with two fields: all that a velocity of SVGD takes.
        squares = jnp.sum(x**2, axis=1)
        kernel = jnp.exp(-(squares[:, None] + squares[None] - 2 * x @ x.T) / x.shape[1])
        return kernel @ x + kernel @ (x + 1)

    def jacobian(x):
        value, rows = value_and_jacobian(constraint, x)
        return jnp.sum(rows, axis=0) + jnp.sum(value)

    def gradient(x):
        value, slope = jax.value_and_grad(problem.logdensity)(x)
        return slope + value

    def noise(x):
        # A key of its own each time, made from the position.
        return jax.random.normal(jax.random.key(lax.bitcast_convert_type(x[0], jnp.int32)), x.shape, x.dtype)

    def hessian_vector(x):
        return hessian_sum(constraint, x, jnp.ones((constraint(x).size, 1), x.dtype) * x[None])

    return {
        "gradient": gradient,
        "value": lambda x: jnp.sum(constraint(x)) + jnp.zeros_like(x[:1]),
        "jacobian": jacobian,
        "hessian-vector": hessian_vector,
        "kernel": products,
        "noise": noise,
    }


def repeated(function: Callable, starts: Any, together: bool) -> Callable[[int], float]:
    """Seconds per evaluation at all positions, of a compiled loop in which each evaluation waits for the one before."""
    each = function if together else jax.vmap(function)

    @jax.jit
    def run(x, times):
        # A part of the result that is too small to matter, and that no compiler can leave out.
        return lax.fori_loop(0, times, lambda _, x: x + 1e-12 * each(x), x)

    return per_step(lambda times: run(starts, times))


def enough(timer: Callable[[int], float]) -> Callable[[], float]:
    """The timer with so many repetitions that a measurement is long enough."""
    times = max(1, int(LEAST_SECONDS / max(timer(3), 1e-7)))
    return lambda: timer(times)


def measure(name: str, problem_name: str, size: Size, repetitions: int = 5) -> Measured:
    """A kernel and its bare functions, in turns."""
    row, problem = KERNELS[name], PROBLEMS[problem_name](size)
    starts = og.land(problem, 0.5 * jax.random.normal(jax.random.key(0), (size.n, size.d))).position
    algorithm = row.make(problem)
    counts = row.counts(solver_iterations(algorithm, starts))
    functions = bare_functions(problem)
    timers = {kind: enough(repeated(functions[kind], starts, kind == "kernel")) for kind in counts}
    # SVGD is deterministic.
    random = "kernel" not in counts
    if random:
        timers["noise"] = enough(repeated(functions["noise"], starts, False))
    timers["step"] = enough(stepper(algorithm, starts[None] if row.ensemble else starts))
    best = in_turns(repetitions, **timers)
    floor = sum(count * best[kind] for kind, count in counts.items())
    return Measured(name, problem_name, size, counts, best["step"], floor, best["noise"] if random else 0.0)


def solver_iterations(algorithm: Any, starts: Any, steps: int = 20) -> float:
    """Mean iterations of the solver in a transition; 0 for kernels without one."""
    if not hasattr(algorithm.step.kernel, "projection"):
        return 0.0

    @jax.jit
    def run(states):
        keys = jax.random.split(jax.random.key(1), (steps, len(starts)))
        return lax.scan(lambda s, k: jax.vmap(algorithm.step)(k, s), states, keys)[1].num_solver_iterations

    return float(np.mean(run(jax.vmap(algorithm.init)(starts))))


def forward_passes(name: str, problem: og.Problem, start: Any) -> Counter:
    """How often one step of one chain evaluates log π and g, counted while it runs.

    An identity that counts goes before each function. Derivatives pass it by, so that a gradient, a Jacobian or a
    Hessian-vector product counts as the one forward pass it takes.
    """
    counts: Counter = Counter()

    def counted(label, function):
        def tick(x):
            counts[label] += 1
            return x

        mark = jax.custom_jvp(
            lambda x: jax.pure_callback(tick, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")
        )
        mark.defjvp(lambda primals, tangents: (mark(*primals), tangents[0]))
        return lambda x: function(mark(x))

    watched = og.Problem(
        counted("log density", problem.logdensity), counted("equality", problem.equality_value), measure=problem.measure
    )
    algorithm = KERNELS[name].make(watched)
    state = algorithm.init(start)
    step = jax.jit(algorithm.step).lower(jax.random.key(0), state).compile()
    counts.clear()
    jax.block_until_ready(step(jax.random.key(0), state))
    return counts


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


SWEEPS: dict[str, list[Size]] = {
    "d": [Size(d=d) for d in (100, 1000, 10_000)],
    "m": [Size(m=m) for m in (1, 4, 16)],
    "n": [Size(n=n) for n in (1, 4, 16)],
}
PARTICLE_SWEEPS: dict[str, list[Size]] = {
    "d": [Size(d=d, n=50) for d in (100, 1000, 10_000)],
    "m": [Size(d=100, m=m, n=50) for m in (1, 4, 16)],
    "n": [Size(d=100, n=n) for n in (50, 200, 800)],
}


def run(out: Path, say: Callable[[str], None] = print) -> tuple[list[dict], list[dict]]:
    """Every kernel on every problem: rows by size, and fitted exponents of time. Both go into `out/floor.json`."""
    rows, fits = [], []
    for problem in PROBLEMS:
        for name, row in KERNELS.items():
            done: dict[Size, Measured] = {}
            fit: dict[str, Any] = {"kernel": name, "problem": problem}
            for variable, sizes in (PARTICLE_SWEEPS if row.ensemble else SWEEPS).items():
                # Sizes that two sweeps share are measured once.
                for size in sizes:
                    if size not in done:
                        done[size] = measure(name, problem, size)
                        say(f"{name}, {problem}, {size}: {done[size].multiple:.2f} times its floor")
                fit[variable] = round(
                    exponent([getattr(s, variable) for s in sizes], [done[s].seconds for s in sizes]), 2
                )
            rows += [shown(measured) for measured in done.values()]
            fits.append(fit)
            record = {"machine": machine(), "versions": versions(), "commit": commit(), "rows": rows, "exponents": fits}
            out.mkdir(parents=True, exist_ok=True)
            write_atomically(out / "floor.json", json.dumps(record, indent=1))
    return rows, fits


def shown(measured: Measured) -> dict[str, Any]:
    """A row of the table."""
    count = lambda kind: round(measured.counts.get(kind, 0), 1)
    return {
        "kernel": measured.kernel,
        "problem": measured.problem,
        **measured.size._asdict(),
        "∇": count("gradient"),
        "Hv": count("hessian-vector"),
        "J": count("jacobian"),
        "g": count("value"),
        "step [µs]": round(1e6 * measured.seconds, 1),
        "floor [µs]": round(1e6 * measured.floor, 1),
        "noise [µs]": round(1e6 * measured.noise, 1),
        "multiple": round(measured.multiple, 2),
        "with noise": round(measured.multiple_with_noise, 2),
    }


def above(rows: list[dict]) -> Iterator[str]:
    """Where a step takes more than it should."""
    for row in rows:
        if row["multiple"] > LIMIT and row["d"] >= 100:
            yield f"{row['kernel']} on {row['problem']}, d = {row['d']:,}, m = {row['m']}, n = {row['n']}: {row['multiple']}"
