"""Programs compiled with `compilation.QUICK` against XLA's default: seconds to compile and to run, in turns.

python benchmarks/quick_compile.py
"""

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import ogradient as og
from ogradient import compilation

warnings.simplefilter("ignore")


def regression(rows=5000, dim=50):
    """A logistic regression whose predictions have no covariance with a group."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, dim)).astype(np.float32)
    data = {"X": X, "y": (X @ rng.normal(size=dim) > 0).astype(np.float32), "s": rng.random(rows).astype(np.float32)}

    def likelihood(w, batch):
        z = batch["X"] @ w
        return jnp.sum(batch["y"] * z - jax.nn.softplus(z))

    covariance = lambda w, batch: jnp.mean((batch["s"] - 0.5) * jax.nn.sigmoid(batch["X"] @ w))
    return og.posterior(lambda w: -0.5 * jnp.sum(w**2), likelihood, data, equality=covariance)


def main():
    known, model = og.problems.transport(200, 5), regression()
    problem, starts, zeros = known.problem, lambda n: known.start_off(jax.random.key(0), n), jnp.zeros((8, 50))
    cases = {
        "o_svgd, 500 particles, d = 200": (problem, starts(500)[None], og.o_svgd(problem, 0.01), 10),
        "o_langevin, 64 chains, d = 200": (problem, starts(64), og.o_langevin(problem, 1e-3), 300),
        "o_kinetic, 64 chains, d = 200": (problem, starts(64), og.o_kinetic(problem, 0.04), 300),
        "chmc, 16 chains, d = 200": (problem, starts(16), og.chmc(problem, 0.1, num_integration_steps=3), 60),
        "o_langevin, 5,000 rows": (model, zeros, og.o_langevin(model, 1e-5), 60),
        "chmc, 5,000 rows": (model, zeros, og.chmc(model, 1e-2, num_integration_steps=3), 10),
    }
    compiled = []
    note = lambda event, seconds, **_: compiled.append(seconds) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(note)
    print("| case | compile: quick, default [s] | run: quick, default [s] | ratio of runs |\n|---|---|---|---|")
    for name, (target, positions, algorithm, draws) in cases.items():
        compiling, running = {}, {True: [], False: []}
        for repetition in range(4):
            for quick in (True, False):
                compilation._Compiled.known = quick
                compiled.clear()
                began = time.perf_counter()
                settings = {"num_warmup": 0, "num_samples": draws, "progress": False, "throw": False}
                og.sample(0, target, positions, algorithm=algorithm, **settings)
                if repetition == 0:
                    compiling[quick] = sum(compiled)
                else:
                    running[quick].append(time.perf_counter() - began)
        quick, default = min(running[True]), min(running[False])
        compile_times = f"{compiling[True]:.2f}, {compiling[False]:.2f}"
        print(f"| {name} | {compile_times} | {quick:.3f}, {default:.3f} | {quick / default:.2f} |", flush=True)


if __name__ == "__main__":
    main()
