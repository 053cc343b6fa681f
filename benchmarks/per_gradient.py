"""Effective draws per gradient of the samplers of single chains, on every problem with a known answer.

    python benchmarks/per_gradient.py                     # all problems, both measures where they differ
    python benchmarks/per_gradient.py torus_b ellipse     # some of them

A row has ESS per 1,000 gradients of each sampler, and of those near the set (o_langevin, o_kinetic) the bias and the mean |g|.
Settings are found in warm-up, 64 chains start off the set, float64. A gradient is one of log π; a step of an exact sampler takes
one at each point of its trajectory. The bias is the largest error of a known moment in standard deviations of that moment under
the law, ± its Monte Carlo error; ESS is ArviZ's, of the worst of coordinates and known moments.
"""

from __future__ import annotations

import argparse
import inspect
import warnings

import jax
import numpy as np
from arviz_stats.base import array_stats

import ogradient as og
from ogradient.experiments.problem import build, prepare, thinning_of
from ogradient.experiments.synthetic import REFERENCE
from ogradient.keys import as_key
from ogradient.problems import PROBLEMS
from ogradient.samplers.base import kernel_of
from ogradient.warmup.choose import TUNED

CHAINS, LENGTHS, FINER, SHORTEST = 64, 200, 8, 1000
NEAR = ("o_langevin", "o_kinetic")


def run(known, sampler, seed=0):
    """One sampler on one problem: ESS per 1,000 gradients, and as text the bias and mean |g|."""
    key = as_key(seed)
    reference = np.asarray(known.exact(as_key(seed + 1), REFERENCE))
    starts = known.start_off(jax.random.fold_in(key, 1), CHAINS)
    algorithm, positions = prepare(known, sampler, starts, key, reference, False)
    exact = kernel_of(algorithm).obeys == "exact"
    # Of near samplers draws are kept more often than they forget, so that none that counts is thrown away.
    steps = thinning_of(algorithm, reference)
    every = max(1, steps // FINER)
    draws = SHORTEST if exact else max(SHORTEST, LENGTHS * steps // every)
    trace = og.sample(
        seed,
        known.problem,
        positions,
        algorithm=algorithm,
        num_warmup=20 * steps,
        num_samples=draws,
        thinning=every,
        progress=False,
    )
    gradients = CHAINS * draws * every
    if exact:
        gradients = int(np.sum(trace.sample_stats["n_steps"] + 1))
    values = {name: np.asarray(trace.apply(moment.function), float) for name, moment in known.moments.items()}
    scalars = [*np.moveaxis(np.asarray(trace["x"], float), -1, 0), *values.values()]
    ess = min(array_stats.ess(v, chain_axis=0, draw_axis=1) for v in scalars if np.ptp(v) > 0)
    bias = error = 0.0
    for name, moment in known.moments.items():
        sd = float(np.std(jax.vmap(moment.function)(reference)))
        means = values[name].mean(axis=1)
        off = abs(means.mean() - moment.value) / sd
        if off > bias:
            bias, error = off, means.std(ddof=1) / np.sqrt(CHAINS) / sd
    g = trace.sample_stats.get("equality")
    violation = "–" if g is None else f"{np.abs(g).mean():.0e}"
    return 1000 * ess / gradients, f"{bias:.3f} ± {error:.3f}", violation


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    columns = ("problem", *TUNED, *(f"bias, {name}" for name in NEAR), *(f"mean abs(g), {name}" for name in NEAR))
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in arguments.problems:
        choice = "measure" in inspect.signature(PROBLEMS[name]).parameters
        for measure in ("conditional", "hausdorff") if choice else (None,):
            known = build(name, measure)
            found = {sampler: run(known, sampler) for sampler in TUNED if sampler not in known.unsuitable}
            efficiency = (f"{found[sampler][0]:.3g}" if sampler in found else "–" for sampler in TUNED)
            rest = (found[sampler][part] if sampler in found else "–" for part in (1, 2) for sampler in NEAR)
            label = name if measure is None else f"{name}, {measure}"
            print("| " + " | ".join((label, *efficiency, *rest)) + " |", flush=True)


if __name__ == "__main__":
    main()
