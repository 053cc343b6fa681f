"""What momentum of whole moves does to the law of O-Langevin, on problems with known answers, and what it does to |g|.

    python benchmarks/memory.py                  # two problems, both measures
    python benchmarks/memory.py torus_b          # one of them

A step covers η/(1−μ) of time, and rows of one time are compared: with momentum μ the step size η is that time times 1−μ. The
error is that of the moment in the column, ± its standard error over chains that start from exact draws; float64.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np

import ogradient as og
from ogradient.keys import as_key
from ogradient.problems import PROBLEMS

MOMENTS = {"torus_b": "cos φ", "ellipse": "y²"}
CHAINS, LENGTH = 2048, 25.0
TIMES, MOMENTA = (0.02, 0.01, 0.005), (0.0, 0.5, 0.9)


def run(known, moment, momentum, time, seed=0):
    """Error of the moment with its standard error, mean |g| and mean g, of one setting."""
    algorithm = og.o_langevin(known.problem, time * (1 - momentum), momentum=momentum)
    trace = og.sample(
        seed,
        known.problem,
        known.exact(as_key(seed + 1), CHAINS),
        algorithm=algorithm,
        num_warmup=int(4 / time),
        num_samples=int(LENGTH / time) // 4,
        thinning=4,
        progress=False,
    )
    means = np.asarray(trace.apply(known.moments[moment].function), float).mean(axis=1)
    g = np.asarray(trace.sample_stats["equality"])
    return means.mean() - known.moments[moment].value, means.std(ddof=1) / CHAINS**0.5, np.abs(g).mean(), g.mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(MOMENTS), choices=list(MOMENTS))
    jax.config.update("jax_enable_x64", True)
    print("| problem | moment | time of a step | μ | error | mean abs(g) | mean g |\n|---|---|---|---|---|---|---|")
    for name in parser.parse_args().problems:
        for measure in ("conditional", "hausdorff"):
            known = PROBLEMS[name](measure=measure)
            for time in TIMES:
                for momentum in MOMENTA:
                    error, se, size, mean = run(known, MOMENTS[name], momentum, time)
                    row = (f"{name}, {measure}", MOMENTS[name], time, momentum, f"{error:.4f} ± {se:.4f}")
                    print("| " + " | ".join(map(str, row)) + f" | {size:.1e} | {mean:.1e} |", flush=True)


if __name__ == "__main__":
    main()
