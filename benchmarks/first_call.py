"""How long the default call on the ellipse takes in a fresh process, with 16 chains: first call, second call, and with the cache.

    python benchmarks/first_call.py                        # this version
    python benchmarks/first_call.py --before PATH/TO/src   # and another one, in turns

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


def measure(source, cache=None):
    """((seconds, programs) of the first call, of the second) in a fresh process."""
    environment = os.environ | {"PYTHONPATH": str(source), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    if cache is not None:
        environment |= {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_COMPILATION_CACHE_DIR": str(cache)}
        environment |= {
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the src folder of another version")
    arguments = parser.parse_args()
    here = Path(__file__).parents[1] / "src"
    sources = {"this version": here} | ({"before": arguments.before} if arguments.before else {})
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
