"""The same laws and the same speed ratios on whatever device JAX finds: run it on an accelerator.

Needs jax, numpy and optax only: `PYTHONPATH=src python benchmarks/device.py`.
"""

from __future__ import annotations

import time

import jax
import numpy as np
from speed import stepper

import ogradient as og


def check(name, means, truth, budget):
    error = abs(means.mean() - truth)
    limit = 5 * means.std(ddof=1) / np.sqrt(len(means)) + budget
    print(f"{name}: {means.mean():.4f} ± {means.std(ddof=1) / np.sqrt(len(means)):.4f}, truth {truth:.4f}", end="")
    print("" if error < limit else "   WRONG")
    return bool(error < limit)


def laws():
    """Moments of O-Langevin, O-kinetic, CHMC and O-SVGD, off-set starts."""
    good = []
    known = og.problems.ellipse()
    starts = known.start_off(jax.random.key(0), 4096)
    for name, algorithm in {
        "o_langevin": og.o_langevin(known.problem, 0.02),
        "o_kinetic": og.o_kinetic(known.problem, 0.2),
        "chmc": og.chmc(known.problem, 0.5, num_integration_steps=4),
    }.items():
        trace = og.sample(
            0, known.problem, starts, algorithm=algorithm, num_warmup=2000, num_samples=200, thinning=5, progress=False
        )
        means = (trace["x"][..., 0].astype(float) ** 2).mean(axis=1)
        good.append(
            check(f"ellipse, {name}, E[x²]", means, 4.5, {"o_langevin": 0.06, "o_kinetic": 0.05}.get(name, 0.0))
        )
    cap = og.problems.spherical_cap(3, 0.3)
    starts = cap.start_off(jax.random.key(1), 4096)
    for name, algorithm in {
        "o_langevin": og.o_langevin(cap.problem, 0.002),
        "o_kinetic": og.o_kinetic(cap.problem, 0.1),
        "clangevin": og.clangevin(cap.problem, 0.4),
    }.items():
        trace = og.sample(
            0, cap.problem, starts, algorithm=algorithm, num_warmup=2000, num_samples=200, thinning=5, progress=False
        )
        assert trace.sample_stats["inequality"].max() <= 0
        good.append(check(f"cap, {name}, E[x₁]", trace["x"][..., 0].astype(float).mean(axis=1), 0.65, 0.006))
    starts = cap.start_off(jax.random.key(2), 4 * 200).reshape(4, 200, 3)
    trace = og.sample(
        0, cap.problem, starts, algorithm=og.o_svgd(cap.problem, 0.1), num_warmup=5000, num_samples=1, progress=False
    )
    good.append(check("cap, o_svgd, E[x₁] of 4 ensembles", trace["x"][:, -1, :, 0].mean(axis=1), 0.65, 0.01))
    distance = og.energy_distance(trace["x"][0, -1], cap.exact(jax.random.key(3), 2000))
    ksd = og.orthogonal_ksd(cap.problem, cap.exact(jax.random.key(4), 800))
    print(f"energy distance of 200 particles {float(distance):.4f}; KSD⊥ of exact draws p = {ksd.p_value:.3f}")
    return all(good) and float(distance) < 0.01 and ksd.p_value > 0.001


def speed():
    """Microseconds per step, of everything at once and per chain."""
    cubic, transport, group = og.problems.cubic(), og.problems.transport(100_000, 1), og.problems.orthogonal(11)
    cases = {
        "o_langevin, cubic, 50 chains": (og.o_langevin(cubic.problem, 0.01), cubic.start_on(jax.random.key(0), 50)),
        "o_langevin, cubic, 100,000 chains": (
            og.o_langevin(cubic.problem, 0.01),
            cubic.start_on(jax.random.key(0), 100_000),
        ),
        "o_kinetic, cubic, 100,000 chains": (
            og.o_kinetic(cubic.problem, 0.1),
            cubic.start_on(jax.random.key(0), 100_000),
        ),
        "o_kinetic, transport d = 100,000, 64 chains": (
            og.o_kinetic(transport.problem, 0.1),
            transport.start_off(jax.random.key(0), 64),
        ),
        "o_langevin, transport d = 100,000, 64 chains": (
            og.o_langevin(transport.problem, 0.01, correction="hutchinson"),
            transport.start_off(jax.random.key(0), 64),
        ),
        "langevin, transport d = 100,000, 64 chains": (
            og.langevin(transport.problem, 0.01),
            transport.start_off(jax.random.key(0), 64),
        ),
        "chmc, SO(11), 1,024 chains": (
            og.chmc(group.problem, 0.2, num_integration_steps=1, projection="chord"),
            group.start_on(jax.random.key(0), 1024),
        ),
        "o_svgd, cubic, 10,000 particles": (
            og.o_svgd(cubic.problem, 0.1, block_size=1000),
            cubic.start_on(jax.random.key(0), 10_000)[None],
        ),
    }
    for name, (algorithm, starts) in cases.items():
        began = time.perf_counter()
        seconds = stepper(algorithm, starts)
        compiled = time.perf_counter() - began
        steps = int(min(max(1.0 / seconds(3), 3), 3000))
        best = min(seconds(steps) for _ in range(3))
        print(f"{name}: {1e6 * best:,.1f} µs per step, compiled in {compiled:.1f} s", flush=True)


if __name__ == "__main__":
    print(jax.devices()[0].device_kind, jax.__version__)
    fine = laws()
    speed()
    print("all laws right" if fine else "SOMETHING IS WRONG")
    raise SystemExit(not fine)
