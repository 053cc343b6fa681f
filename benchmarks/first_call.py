"""How long the default call on the ellipse takes in a fresh process, with 16 chains: first call, second call, and with the cache.

    python benchmarks/first_call.py                        # this version
    python benchmarks/first_call.py --before PATH/TO/src   # and another one, in turns
    python benchmarks/first_call.py --compiling            # seconds of XLA in a first call of og.chmc, on larger problems too

Each number is the best of three processes. Importing is not counted. Programs are those that XLA compiled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = """
import json, sys, time, warnings
import jax, ogradient as og
warnings.simplefilter("ignore")
programs = []
note = lambda event, _, **__: programs.append(event) if event.endswith("backend_compile_duration") else None
jax.monitoring.register_event_duration_secs_listener(note)
problem = og.problems.ellipse().problem
starts = jax.block_until_ready(jax.random.normal(jax.random.key(0), (16, 2)))
result = []
for seed in (0, 1):
    programs.clear()
    began = time.perf_counter()
    og.sample(seed, problem, starts, progress=False)
    result.append((time.perf_counter() - began, len(programs)))
print(json.dumps(result))
"""


# Landing, the check of the starts and the kernel, compiled and run for two steps.
COMPILING = """
import sys, warnings
import jax, jax.numpy as jnp, numpy as np, ogradient as og
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
def regression():
    x = rng.normal(size=(1000, 20)).astype(np.float32)
    group, label = (x[:, 0] > 0).astype(np.float32), (x[:, 1] > 0).astype(np.float32)
    return og.posterior(
        lambda w: -0.5 * jnp.sum(w**2),
        lambda w, batch: jnp.sum(batch[1] * (batch[0] @ w) - jax.nn.softplus(batch[0] @ w)),
        (x, label, group - group.mean()),
        equality=lambda w, batch: jnp.mean(batch[2] * jax.nn.sigmoid(batch[0] @ w)),
    ), 0.1 * rng.normal(size=(16, 20))
def known(problem):
    return problem.problem, problem.start_on(jax.random.key(0), 16)
problem, starts = {
    "ellipse": lambda: known(og.problems.ellipse()),
    "SO(5)": lambda: known(og.problems.orthogonal(5)),
    "transport, d = 2,000, m = 50": lambda: known(og.problems.transport(2000, 50)),
    "fair regression": regression,
}[sys.argv[1]]()
starts = jax.block_until_ready(jnp.asarray(starts, jnp.float32))
seconds = []
note = lambda event, value, **_: seconds.append(value) if event.endswith("backend_compile_duration") else None
jax.monitoring.register_event_duration_secs_listener(note)
algorithm = og.chmc(problem, 1e-3, num_integration_steps=2)
og.sample(0, problem, starts, algorithm=algorithm, num_warmup=0, num_samples=2, progress=False, throw=False)
print(sum(seconds))
"""
CASES = ("ellipse", "SO(5)", "transport, d = 2,000, m = 50", "fair regression")


def run(code, source, *arguments, **more):
    """What a fresh process prints last."""
    environment = os.environ | {"PYTHONPATH": str(source), "JAX_ENABLE_COMPILATION_CACHE": "false"} | more
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compiling(sources):
    """A table of seconds that XLA takes, the best of three processes."""
    print(f"| problem | {' | '.join(sources)} |\n|{'---|' * (1 + len(sources))}")
    for case in CASES:
        best = dict.fromkeys(sources, float("inf"))
        for _ in range(3):
            for name, source in sources.items():
                best[name] = min(best[name], run(COMPILING, source, case))
        print(f"| {case} | {' | '.join(f'{seconds:.2f} s' for seconds in best.values())} |", flush=True)


def measure(source, cache=None):
    """((seconds, programs) of the first call, of the second) in a fresh process."""
    more = {}
    if cache is not None:
        more = {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_COMPILATION_CACHE_DIR": str(cache)}
        more |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return run(CODE, source, **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the src folder of another version")
    parser.add_argument("--compiling", action="store_true", help="seconds of XLA alone, on four problems")
    arguments = parser.parse_args()
    here = Path(__file__).parents[1] / "src"
    sources = {"this version": here} | ({"before": arguments.before} if arguments.before else {})
    if arguments.compiling:
        compiling(sources)
        return
    with tempfile.TemporaryDirectory() as cache:
        measure(here, cache)
        kept = min(measure(here, cache)[0][0] for _ in range(3))
    results = {name: [] for name in sources}
    for _ in range(3):
        for name, source in sources.items():
            results[name].append(measure(source))
    print("| version | first call | programs | second call | programs |\n|---|---|---|---|---|")
    for name, runs in results.items():
        (first, programs), (second, more) = (min(call) for call in zip(*(map(tuple, run) for run in runs), strict=True))
        print(f"| {name} | {first:.2f} s | {programs} | {second:.2f} s | {more} |")
    print(f"| this version, programs of an earlier process | {kept:.2f} s | | | |")


if __name__ == "__main__":
    main()
