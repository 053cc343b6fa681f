"""Hashes of draws, to compare two versions of the library bit by bit: every sampler, both precisions, with and without data.

    python benchmarks/bits.py > before.txt     # at one commit
    python benchmarks/bits.py > after.txt      # at another; then: diff before.txt after.txt

Settings are explicit, so that no warm-up plays a part. Only public names are used.
"""

import hashlib
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ogradient as og

warnings.simplefilter("ignore")
d = 3


def plain(inequality=False):
    return og.Problem(
        lambda x: -0.5 * jnp.sum((x - 0.3) ** 2) + 0.1 * jnp.sum(x**3) / (1 + jnp.sum(x**2)),
        lambda x: x[0] ** 2 + 2 * x[1] ** 2 + 0.5 * x[2] ** 2 - 1,
        (lambda x: x[0] - 0.8) if inequality else None,
    )


def with_data(**sizes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, d))
    y = (X[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(float)
    return og.posterior(
        lambda w: -0.5 * jnp.sum(w**2),
        lambda w, batch: jnp.sum(jax.nn.log_sigmoid((2 * batch["y"] - 1) * (batch["X"] @ w))),
        {"X": X.astype(np.float32), "y": y.astype(np.float32)},
        equality=lambda w, batch: jnp.mean(batch["X"][:, 1] * jax.nn.sigmoid(batch["X"] @ w)),
        **sizes,
    )


def cases():
    problems = {"plain": plain(), "walls": plain(inequality=True), "data": with_data()}
    batches = {"batches": with_data(batch_size=20, constraint_batch_size=40)}
    decay = og.power_decay(0.01)
    chains = {
        "o_langevin": lambda p: og.o_langevin(p, 0.01),
        "o_langevin, hutchinson": lambda p: og.o_langevin(p, decay, alpha=20.0, correction="hutchinson"),
        "o_langevin, none, warm": lambda p: og.o_langevin(p, 0.01, beta=0.5, correction="none", temperature=0.7),
        "o_kinetic": lambda p: og.o_kinetic(p, 0.1),
        "o_kinetic, all settings": lambda p: og.o_kinetic(
            p, decay, friction=2.0, alpha=20.0, beta=0.5, temperature=0.7
        ),
        "langevin": lambda p: og.langevin(p, 0.01),
    }
    exact = {
        "chmc": lambda p: og.chmc(p, 0.2, num_integration_steps=4),
        "chmc, all settings": lambda p: og.chmc(
            p, 0.2, num_integration_steps=3, inverse_mass=np.array([1.0, 0.5, 2.0]), jitter=0.2
        ),
        "chmc, chord": lambda p: og.chmc(p, 0.1, refreshment=0.5, projection="chord"),
        "clangevin": lambda p: og.clangevin(p, 0.2),
    }
    particles = {
        "o_svgd": lambda p: og.o_svgd(p, 0.1),
        "o_svgd, adam": lambda p: og.o_svgd(
            p, optimizer=optax.adam(0.05), rkhs_kernel=og.imq(), correction="hutchinson"
        ),
        "svgd": lambda p: og.svgd(p, 0.1),
        "control_langevin": lambda p: og.control_langevin(p, 0.01),
    }
    for where, problem in (problems | batches).items():
        for name, make in (chains | ({} if where == "batches" else exact) | particles).items():
            yield f"{name} / {where}", problem, make(problem), name in particles


def main():
    for x64 in (False, True):
        with jax.enable_x64(x64):
            for name, problem, algorithm, ensemble in cases():
                shape = (2, 8, d) if ensemble else (4, d)
                starts = 0.5 * jax.random.normal(jax.random.key(1), shape)
                trace = og.sample(
                    7,
                    problem,
                    starts,
                    algorithm=algorithm,
                    num_warmup=5,
                    num_samples=20,
                    thinning=2,
                    progress=False,
                    throw=False,
                )
                digest = hashlib.sha256(np.ascontiguousarray(trace["x"]).tobytes()).hexdigest()[:16]
                rough = np.abs(trace["x"].astype(float)).mean()
                print(f"{trace['x'].dtype} | {name} | {digest} | {rough:.5f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
