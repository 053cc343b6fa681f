"""How often `og.diagnose` is right: its level on right laws, its power on wrong ones. The tables of docs/verdicts.md.

    python benchmarks/verdicts.py --jobs 16 --out results/verdicts.jsonl   # a line per case; goes on where it stopped
    python benchmarks/verdicts.py --out results/verdicts.jsonl --table     # print the tables

`--only REGEX` takes the cases whose names match, `--list` prints the names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHAINS, DRAWS, SEEDS = 32, 1000, 3
TRIALS = 20  # of every wrong kind
BATCH = 4  # cases per process
MEASURES = ("cubic", "ellipse", "torus_b", "quadratic_poly")  # on which the two measures differ
WITH_EQUALITY = (
    "cubic",
    "affine_gaussian",
    "ellipse",
    "torus_a",
    "torus_b",
    "von_mises_fisher",
    "bingham",
    "orthogonal",
)


def names() -> list[str]:
    """kind/what/who/seed of every case."""
    import ogradient as og
    from ogradient.experiments.problem import SAMPLERS

    right = [
        f"right/{name}/{sampler}/{seed}"
        for name, build in og.problems.PROBLEMS.items()
        for sampler in SAMPLERS
        if sampler not in build().unsuitable
        for seed in range(SEEDS)
    ]
    hard = [f"hard/{what}/{seed}" for what in HARD for seed in range(SEEDS)]
    wrong = [f"wrong/{what}/{seed}" for what in WRONG for seed in range(TRIALS)]
    return right + hard + wrong


def run(case: str) -> dict:
    """One verdict."""
    started = time.perf_counter()
    import jax

    import ogradient as og

    warnings.simplefilter("ignore", og.ConvergenceWarning)
    warnings.simplefilter("ignore", og.ConstraintWarning)
    kind, *rest, seed = case.split("/")
    with jax.enable_x64("float64" in case):
        trace, problem = right(*rest, int(seed)) if kind == "right" else (HARD | WRONG)[rest[0]](int(seed))
        sampled = time.perf_counter() - started
        diagnosis = og.diagnose(trace, problem)
    findings = {f.subject: [f.level, f.text] for f in diagnosis.findings}
    seconds = time.perf_counter() - started
    return {"case": case, "ok": diagnosis.ok, "findings": findings, "sampled": sampled, "seconds": seconds}


def right(name: str, sampler: str, seed: int):
    """A problem of the library under a sampler, as `ogradient run problem` prepares it."""
    import jax
    import numpy as np

    import ogradient as og
    from ogradient.experiments.problem import PARTICLE_STEPS, _thinning, prepare

    known = og.problems.PROBLEMS[name]()
    key = jax.random.fold_in(jax.random.key(seed), 1)
    starts = known.start_off(key, 200 if sampler == "o_svgd" else CHAINS)
    if sampler in ("chmc", "clangevin"):
        thinning = (
            20 if sampler == "clangevin" else 1
        )  # a single step moves little: 1,000 of them are too few to rely on
        trace = og.sample(
            seed, known.problem, starts, algorithm=sampler, num_samples=DRAWS, thinning=thinning, progress=False
        )
        return trace, known.problem
    reference = np.asarray(known.exact(jax.random.key(seed + 1), 2000))
    algorithm, initial = prepare(known, sampler, starts, jax.random.key(seed), reference, False)
    if sampler == "o_svgd":
        settings = {"num_warmup": PARTICLE_STEPS, "num_samples": 1}
    else:
        thinning = _thinning(algorithm, reference)
        settings = {"num_warmup": 20 * thinning, "num_samples": DRAWS, "thinning": thinning}
    return og.sample(seed, known.problem, initial, algorithm=algorithm, progress=False, **settings), known.problem


def as_trace(problem, draws):
    """Draws (chain, draw, d) from elsewhere, as a trace."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import ogradient as og

    draws = np.asarray(draws)
    values = jax.jit(jax.vmap(jax.vmap(problem.constraint_value)))(jnp.asarray(draws))
    counts = np.zeros((len(draws), len(og.Status)), int)
    counts[:, 0] = draws.shape[1]
    stats = {kind: np.asarray(value) for kind, value in values.items()}
    return og.Trace(draws, stats, counts, {"algorithm": "draws", "ensemble": False}, None, problem)


def pick(names_, seed):
    return names_[seed % len(names_)]


def exact_run(problem, starts, seed, **settings):
    import ogradient as og

    return og.sample(seed, problem, starts, algorithm="chmc", num_samples=DRAWS, progress=False, **settings)


def known_of(name, **arguments):
    import ogradient as og

    return og.problems.PROBLEMS[name](**arguments)


def starts_of(known, seed, n=CHAINS):
    import jax

    return known.start_off(jax.random.fold_in(jax.random.key(seed), 1), n)


# Right laws that were once called wrong.


def independent_draws(seed):
    known = known_of(pick(("ellipse", "torus_b", "sphere_affine"), seed))
    import jax

    draws = known.exact(jax.random.key(seed), CHAINS * DRAWS).reshape(CHAINS, DRAWS, -1)
    return as_trace(known.problem, draws), known.problem


def dependent_500(seed):
    """Exact draws of N(0, I) in 500 dimensions, given 5 curved constraints: autoregressive along each chain."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    known = known_of("transport", dim=500, num_constraints=5)
    rng = np.random.default_rng(seed)
    free = np.empty((CHAINS, DRAWS // 2, 495))
    free[:, 0] = rng.normal(size=(CHAINS, 495))
    for t in range(1, DRAWS // 2):
        free[:, t] = 0.9 * free[:, t - 1] + np.sqrt(1 - 0.81) * rng.normal(size=(CHAINS, 495))
    x = np.empty((CHAINS, DRAWS // 2, 500))  # y = φ(x) solved from the end
    y = np.concatenate([np.zeros((CHAINS, DRAWS // 2, 5)), free], axis=2)
    x[..., -1] = y[..., -1]
    for i in range(498, -1, -1):
        x[..., i] = y[..., i] - np.sin(x[..., i + 1])
    return as_trace(
        known.problem, jnp.asarray(x, jnp.float32) + 0 * jax.random.normal(jax.random.key(0), ())
    ), known.problem


def default_500(seed):
    known = known_of("transport", dim=500, num_constraints=5)
    return exact_run(known.problem, starts_of(known, seed), seed), known.problem


def few_accepted(seed):
    """Chains that move in 0.14 of their draws, to an exact draw; the others repeat the one before."""
    import jax
    import numpy as np

    known = known_of(pick(("von_mises_fisher", "ellipse", "sphere_affine"), seed))
    exact = np.asarray(known.exact(jax.random.key(seed), CHAINS * DRAWS)).reshape(CHAINS, DRAWS, -1)
    moves = np.random.default_rng(seed).random((CHAINS, DRAWS)) < 0.14
    last = np.maximum.accumulate(np.where(moves, np.arange(DRAWS), 0), axis=1)
    return as_trace(known.problem, np.take_along_axis(exact, last[..., None], axis=1)), known.problem


def four_chains(seed):
    known = known_of(pick(("ellipse", "torus_b", "von_mises_fisher"), seed))
    return exact_run(known.problem, starts_of(known, seed, 4), seed), known.problem


def duplicate_rows(seed):
    import ogradient as og

    known = known_of("ellipse")
    problem = og.Problem(known.problem.logdensity_fn, [known.problem.equality] * 2)
    return exact_run(problem, starts_of(known, seed), seed), problem


def fixed_coordinate(seed):
    import jax
    import jax.numpy as jnp

    import ogradient as og

    problem = og.Problem(lambda x: 3 * x[1], lambda x: jnp.stack([jnp.sum(x**2) - 1, x[0] - 0.3]))
    starts = jax.random.normal(jax.random.key(seed), (CHAINS, 4))
    return exact_run(problem, starts, seed), problem


def jump_exact(seed):
    import jax

    problem = _jumping()
    return exact_run(problem, jax.random.normal(jax.random.key(seed), (CHAINS, 3)), seed), problem


HARD = {
    "independent draws": independent_draws,
    "dependent draws, d = 500": dependent_500,
    "default call, d = 500": default_500,
    "few moves accepted": few_accepted,
    "four chains": four_chains,
    "rows given twice": duplicate_rows,
    "a coordinate the constraint fixes": fixed_coordinate,
    "a jump in log π, exact sampler": jump_exact,
}


# Wrong laws.


def other_measure(seed):
    name = pick(MEASURES, seed)
    wrong, known = known_of(name, measure="hausdorff"), known_of(name)
    return exact_run(wrong.problem, starts_of(known, seed), seed), known.problem


def correction_dropped(seed):
    import jax

    import ogradient as og
    from ogradient.warmup.near import tune_o_langevin

    known = known_of(pick(("cubic", "ellipse", "torus_b"), seed))
    starts = starts_of(known, seed)
    step = tune_o_langevin(jax.random.key(seed), known.problem, starts).step_size
    algorithm = og.o_langevin(known.problem, step, correction="none")
    settings = {"algorithm": algorithm, "num_warmup": 4000, "num_samples": DRAWS, "thinning": 50, "progress": False}
    return og.sample(seed, known.problem, starts, **settings), known.problem


BIASED = {"ellipse": 0.5, "von_mises_fisher": 0.04, "cubic": 0.15, "torus_b": 0.05, "bingham": 0.15}


def biased_step(seed):
    """O-Langevin with steps that shift some moment by more than a tenth of its standard deviation."""
    import ogradient as og

    name = pick(tuple(BIASED), seed)
    known = known_of(name)
    algorithm = og.o_langevin(known.problem, BIASED[name])
    settings = {"algorithm": algorithm, "num_warmup": 2000, "num_samples": DRAWS, "thinning": 20, "progress": False}
    return og.sample(seed, known.problem, starts_of(known, seed), throw=False, **settings), known.problem


def stuck_chain(seed):
    import dataclasses

    known = known_of(pick(("ellipse", "torus_b", "von_mises_fisher", "affine_gaussian", "spherical_cap"), seed))
    trace = exact_run(known.problem, starts_of(known, seed), seed)
    x = trace["x"].copy()
    x[seed % CHAINS] = x[seed % CHAINS, :1]
    return dataclasses.replace(trace, position=x), known.problem


def slow_chain(seed):
    """One chain that moves, but within a hundredth of where it should go."""
    import dataclasses

    known = known_of(pick(("ellipse", "torus_b", "von_mises_fisher", "affine_gaussian", "spherical_cap"), seed))
    trace = exact_run(known.problem, starts_of(known, seed), seed)
    slow = og_sample_slow(known, seed)
    x = trace["x"].copy()
    x[seed % CHAINS] = slow[seed % len(slow)]
    return dataclasses.replace(trace, position=x), known.problem


def og_sample_slow(known, seed):
    import jax

    import ogradient as og

    starts = known.exact(jax.random.key(seed), 4)
    settings = {
        "algorithm": og.clangevin(known.problem, 1e-4),
        "num_warmup": 0,
        "num_samples": DRAWS,
        "progress": False,
    }
    return og.sample(seed, known.problem, starts, **settings)["x"]


def _ignored(seed, name):
    import jax

    import ogradient as og

    if seed % 5 == 0:
        import jax.numpy as jnp

        problem = og.Problem(lambda x: -0.5 * (x[0] ** 2 + (x[1] / 100) ** 2), lambda x: x[0])
        draws = jax.random.normal(jax.random.key(seed), (CHAINS, DRAWS, 2)) * jnp.array([[[1.0, 100.0]]])
        trace = as_trace(problem, draws)
    else:
        known = known_of(pick(("affine_gaussian", "von_mises_fisher", "ellipse", "torus_a"), seed))
        inner = known.problem
        # A prior, so that it has a law without g.
        problem = og.Problem(lambda x: inner.logdensity_fn(x) - 0.5 * (x @ x), inner.equality)
        algorithm = og.langevin(problem, 0.05)
        settings = {"algorithm": algorithm, "num_samples": DRAWS, "thinning": 20, "progress": False}
        trace = og.sample(seed, problem, starts_of(known, seed), **settings)
    trace.provenance["algorithm"] = name
    return trace, problem


def ignored(seed):
    return _ignored(seed, "langevin")


def ignored_foreign(seed):
    """The same draws from a sampler that the library does not know."""
    return _ignored(seed, "nuts")


def wide(seed):
    """Variance × 1.3: the law of log π/1.3."""
    import ogradient as og

    known = known_of(pick(("affine_gaussian", "transport", "cubic", "von_mises_fisher"), seed))
    inner = known.problem
    hot = og.Problem(lambda x: inner.logdensity_fn(x) / 1.3, inner.equality, measure=inner.measure)
    return exact_run(hot, starts_of(known, seed), seed), inner


def _bingham_weights(seed):
    """Weights 0.7 and 0.3 of two opposite modes, which should be equal."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    known = known_of("bingham")
    draws = np.array(known.exact(jax.random.key(seed), CHAINS * DRAWS).reshape(CHAINS, DRAWS, 3))
    rng = np.random.default_rng(seed)
    sign = np.where(rng.random((CHAINS, DRAWS)) < 0.7, 1, -1)
    draws[..., 2] = np.abs(draws[..., 2]) * sign
    return as_trace(known.problem, jnp.asarray(draws)), known.problem


def joined_modes(seed):
    """Two opposite modes between which the density falls to e⁻⁵ and e⁻³ of its height."""
    return _bingham_weights(seed)


def near_modes(seed):
    """A circle with log π = ½ cos 2θ: between its two modes the density falls to e⁻¹ of its height."""
    import jax.numpy as jnp
    import numpy as np

    import ogradient as og

    problem = og.Problem(lambda x: 0.5 * (x[0] ** 2 - x[1] ** 2), lambda x: jnp.sum(x**2) - 1)
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * rng.random(8 * CHAINS * DRAWS)
    angle = angle[rng.random(angle.size) < np.exp(0.5 * np.cos(2 * angle) - 0.5)][: CHAINS * DRAWS].reshape(
        CHAINS, DRAWS
    )
    side = np.where(rng.random((CHAINS, DRAWS)) < 0.7, 1, -1)
    draws = np.stack([side * np.abs(np.cos(angle)), np.sin(angle)], axis=-1)
    return as_trace(problem, jnp.asarray(draws, jnp.float32)), problem


def far_modes(seed):
    """Two circles, weights 0.7 and 0.3 of equal ones, every chain in both: no gradient connects them."""
    import numpy as np

    return _two_circles(seed, np.random.default_rng(seed + 7).random((CHAINS, DRAWS)) < 0.7)


def far_modes_by_chain(seed):
    """The same, but as a sampler would leave them: every chain in one circle."""
    import numpy as np

    return _two_circles(seed, (np.arange(CHAINS) < 22)[:, None])


def missed_component(seed):
    return _two_circles(seed, True)


def _two_circles(seed, first):
    import jax.numpy as jnp
    import numpy as np

    import ogradient as og

    problem = og.Problem(
        lambda x: 0.0, lambda x: (jnp.sum(x**2) - 1) * ((x[0] - 5) ** 2 + x[1] ** 2 - 1), measure="hausdorff"
    )
    angle = 2 * np.pi * np.random.default_rng(seed).random((CHAINS, DRAWS))
    draws = np.stack([np.cos(angle) + 5 * (1 - np.asarray(first)), np.sin(angle)], axis=-1)
    return as_trace(problem, jnp.asarray(draws, jnp.float32)), problem


def half_a_set(seed):
    """A connected set of which the chains have seen one half: as many at the edge as further in."""
    import jax
    import numpy as np

    known = known_of(pick(("ellipse", "torus_b", "bingham"), seed))
    draws = np.array(known.exact(jax.random.key(seed), CHAINS * DRAWS).reshape(CHAINS, DRAWS, -1))
    draws[..., -1] = np.abs(draws[..., -1])
    return as_trace(known.problem, draws), known.problem


def unconverged(seed):
    import ogradient as og

    known = known_of(pick(("ellipse", "torus_b", "von_mises_fisher", "cubic", "affine_gaussian"), seed))
    algorithm = og.o_langevin(known.problem, 1e-4)
    settings = {"algorithm": algorithm, "num_warmup": 100, "num_samples": 200, "progress": False}
    return og.sample(seed, known.problem, starts_of(known, seed), **settings), known.problem


def particles_early(seed):
    import ogradient as og

    known = known_of(pick(("ellipse", "torus_b", "cubic"), seed))
    settings = {"algorithm": og.o_svgd(known.problem, 0.01), "num_warmup": 20, "num_samples": 1, "progress": False}
    return og.sample(seed, known.problem, starts_of(known, seed, 200)[None], **settings), known.problem


def _jumping():
    import jax.numpy as jnp

    import ogradient as og

    return og.Problem(lambda x: jnp.where(x[0] > 0, 2.0, 0.0), lambda x: jnp.sum(x**2) - 1)


def jump(seed):
    import jax

    import ogradient as og

    problem = _jumping()
    starts = jax.random.normal(jax.random.key(seed), (CHAINS, 3))
    settings = {"algorithm": og.o_langevin(problem, 0.01), "num_samples": DRAWS, "thinning": 30, "progress": False}
    return og.sample(seed, problem, starts, **settings), problem


WRONG = {
    "other measure": other_measure,
    "correction dropped": correction_dropped,
    "biased step": biased_step,
    "variance × 1.3": wide,
    "constraint ignored, og.langevin": ignored,
    "constraint ignored, unknown sampler": ignored_foreign,
    "one stuck chain": stuck_chain,
    "one slow chain": slow_chain,
    "unconverged": unconverged,
    "unconverged particles": particles_early,
    "a jump in log π, O-Langevin": jump,
    "half of a connected set": half_a_set,
    "wrong weights, modes that overlap": near_modes,
    "wrong weights, modes hardly joined": joined_modes,
    "wrong weights, far apart, a chain in each": far_modes_by_chain,
    "wrong weights, far apart, chains in both": far_modes,
    "missed component": missed_component,
}
UNSEEN = ("wrong weights, modes hardly joined", "wrong weights, far apart, chains in both", "missed component")


def table(path: Path) -> str:
    """The tables in Markdown."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    groups = defaultdict(list)
    for row in rows:
        kind, what, *_ = row["case"].split("/")
        groups[kind, what].append(row)
    lines = []
    for kind, head in (("right", "right law"), ("hard", "right, and once called wrong"), ("wrong", "wrong law")):
        chosen = {what: rows for (k, what), rows in groups.items() if k == kind}
        flagged = "not fine" if kind != "wrong" else "noticed"
        lines += [f"| {head} | runs | {flagged} | by |", "|---|---|---|---|"]
        count = total = 0
        for what, cases in chosen.items():
            caught = [row for row in cases if not row.get("ok", False)]
            by = defaultdict(int)
            for row in caught:
                for subject, (level, _) in row.get("findings", {"error": ["bad", ""]}).items():
                    by[subject] += level in ("bad", "doubtful")
            reasons = ", ".join(f"{s} {n}" for s, n in sorted(by.items(), key=lambda item: -item[1]) if n)
            lines.append(f"| {what} | {len(cases)} | {len(caught)} | {reasons or '–'} |")
            if what not in UNSEEN:
                count, total = count + len(caught), total + len(cases)
        lines += [f"| **all{' that can be seen' if kind == 'wrong' else ''}** | {total} | {count} | |", ""]
    ratio = sorted(row["seconds"] - row["sampled"] for row in rows if "sampled" in row)
    lines.append(
        f"og.diagnose took {ratio[len(ratio) // 2]:.1f} s in the middle of {len(ratio)} cases, compilation included."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/verdicts.jsonl"))
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cases", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cases:
        for case in arguments.cases:
            print(json.dumps(attempt(case), ensure_ascii=False), flush=True)
        return
    if arguments.table:
        print(table(arguments.out))
        return
    done = set()
    if arguments.out.exists():
        done = {json.loads(line)["case"] for line in arguments.out.read_text("utf-8").splitlines()}
    cases = [case for case in names() if re.search(arguments.only, case) and case not in done]
    if arguments.list:
        print("\n".join(cases))
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    batches = [cases[i : i + BATCH] for i in range(0, len(cases), BATCH)]
    with arguments.out.open("a", encoding="utf-8") as file, ThreadPoolExecutor(arguments.jobs) as pool:
        for done in [pool.submit(elsewhere, batch, file) for batch in batches]:
            done.result()


def elsewhere(cases: list[str], file) -> None:
    """A few cases in a process of their own, on one core; every row is written as it comes."""
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = os.environ | {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--cases", *cases]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment) as process:
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            file.write(line)
            file.flush()
            row = json.loads(line)
            bad = {s: t for s, (level, t) in row.get("findings", {}).items() if level in ("bad", "doubtful")}
            print(f"{row['case']}: {'fine' if row['ok'] else bad or row['error']}", file=sys.stderr, flush=True)


def attempt(case: str) -> dict:
    try:
        return run(case)
    except Exception as error:  # a case that breaks is a row of its own
        return {"case": case, "ok": False, "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
