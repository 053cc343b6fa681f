"""Images per second of O-Langevin through og.sample's own loop, against plain SGD with momentum in one compiled loop.

    python benchmarks/images.py                              # ResNet-18 at width 64, batch 128: for a GPU
    python benchmarks/images.py --width 8 --batch 32 --steps 4   # for a CPU
    python benchmarks/images.py --chains 4

Random images of CIFAR's shapes on the device, crops and flips inside the step. SGD trains one network, og.sample `--chains` of
them. All three are timed in turns, three times; the best of each counts. Compiling is not in the times.
"""

from __future__ import annotations

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import ogradient as og
from ogradient.experiments.images import Config, Task, cross_entropy, problems_of
from ogradient.experiments.networks import crop_and_flip, resnet18
from ogradient.images import ImageDataset, Images

ROWS = 10_000


def sgd(task, config, steps):
    """Plain SGD with momentum: a function that trains so many steps and returns the weights."""
    data = {"image": jnp.asarray(task.dataset.train.image), "label": jnp.asarray(task.dataset.train.label)}

    @jax.jit
    def train(p, v, data, key):
        def step(i, carry):
            p, v = carry
            rows, change = jax.random.split(jax.random.fold_in(key, i))
            chosen = jax.random.randint(rows, (config.batch,), 0, ROWS)
            batch = task.augment(change, jax.tree.map(lambda leaf: leaf[chosen], data))
            gradient = jax.grad(lambda p: cross_entropy(task.network, p, batch))(p)
            v = jax.tree.map(lambda v, g, p: config.momentum * v - config.rate * (g + config.decay * p), v, gradient, p)
            return jax.tree.map(jnp.add, p, v), v

        return jax.lax.fori_loop(0, steps, step, (p, v))

    p = task.network.start(jax.random.key(0))
    v = jax.tree.map(jnp.zeros_like, p)
    return lambda: jax.block_until_ready(train(p, v, data, jax.random.key(1)))


def sampled(task, config, steps, correction):
    """O-Langevin through og.sample: a function that goes on for so many steps."""
    _, problem = problems_of(task, config)
    algorithm = og.o_langevin(
        problem,
        config.rate / ROWS,
        alpha=ROWS / config.rate,
        max_pull=ROWS,
        momentum=config.momentum,
        temperature=config.temperature,
        correction=correction,
    )
    run = {"algorithm": algorithm, "num_warmup": 0, "num_samples": 1, "thinning": steps, "progress": False}
    state = [og.sample(0, problem, jax.jit(task.network.start), num_chains=config.particles, **run)]

    def more():
        before = state[0].provenance["seconds"]
        state[0] = og.sample(0, problem, resume=state[0], **run).last(1)
        return state[0].provenance["seconds"] - before

    return more


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--chains", type=int, default=2)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    config = Config(batch=arguments.batch, width=arguments.width, particles=arguments.chains)
    rng = np.random.default_rng(0)
    image, label = rng.integers(0, 256, (ROWS, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, ROWS).astype(np.int32)
    dataset = ImageDataset("random", Images(image, label), Images(image[:10], label[:10]), None, {})
    network = resnet18(np.full(3, 120, np.float32), np.full(3, 60, np.float32), width=arguments.width)
    task = Task(dataset, network, lambda key, batch: batch | {"image": crop_and_flip(key, batch["image"])})
    one, many = arguments.steps * arguments.batch, arguments.steps * arguments.batch * arguments.chains
    methods = {
        "plain SGD, momentum": (sgd(task, config, arguments.steps), one),
        "og.o_langevin, momentum": (sampled(task, config, arguments.steps, "none"), many),
        "the same, one Hutchinson probe": (sampled(task, config, arguments.steps, "hutchinson"), many),
    }
    best = dict.fromkeys(methods, 0.0)
    for repetition in range(4):  # the first compiles
        for name, (function, images) in methods.items():
            began = time.perf_counter()
            seconds = function()
            # What og.sample counts is its loop: not the look at the trace that it goes on from.
            seconds = seconds if isinstance(seconds, float) else time.perf_counter() - began
            best[name] = max(best[name], images / seconds) if repetition else 0.0
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, width {arguments.width}, batch {arguments.batch}\n")
    print("| method | images/s | of SGD |\n|---|---|---|")
    for name, speed in best.items():
        print(f"| {name} | {speed:,.0f} | {speed / best['plain SGD, momentum']:.2f} |")


if __name__ == "__main__":
    main()
