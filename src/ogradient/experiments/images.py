"""Bayesian networks on images (the paper's prior-agnostic networks): g(x) = loss − level, and nothing else of the data.

Where the loss is at a level the likelihood exp(−N·loss) is a constant: D∇loss = 0, and a step takes one backward pass, as plain
SGD. What is left along the level set is the prior N(0, 1/(N·decay)), that is, weight decay.

All samplers have one time unit: a step η = rate/N moves Langevin's weights by rate·∇loss. The O-samplers replace the likelihood's
pull N∇loss by λ∇loss with λ = min(g/(η‖∇g‖²), N): a Polyak step that is never longer than that of SGD. All but O-kinetic
remember moves (momentum), the pull among them; O-kinetic's own momentum stays along the set, so that its pull may be as strong as
what others add up. Second derivatives are dropped, as in the paper.

Four particles, crops and flips inside the compiled step, a cosine schedule. Predictions are those of the particles' mean
probability, with the averages of batch normalisation computed anew for each particle. A run may be cut at any time: the same
command goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ogradient.experiments import options
from ogradient.experiments.folder import Outcome, write_folder
from ogradient.experiments.image_report import draw, judge, row
from ogradient.experiments.networks import Network, crop_and_flip, resnet18, small
from ogradient.experiments.training import read_record, write_record
from ogradient.images import ImageDataset, cifar10, digits, svhn
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.problem.posterior import posterior
from ogradient.run.sample import sample
from ogradient.samplers import SamplingAlgorithm, langevin, o_kinetic, o_langevin, o_svgd, svgd
from ogradient.samplers.base import kernel_of, plain_settings
from ogradient.status import ConstraintWarning
from ogradient.trace import Trace, load

SAMPLERS = ("sgld", "tempered_sgld", "svgd", "o_langevin", "o_svgd", "o_kinetic")


@dataclass(frozen=True)
class Config:
    """Everything that decides the result."""

    on: str = options.option("cifar10", "The images.", choices=("cifar10", "digits"))
    samplers: tuple[str, ...] = options.several(SAMPLERS, "Only this sampler.", name="sampler")
    epochs: int = options.option(60, "Passes over as many images as there are for training, for each particle.", min=1)
    particles: int = options.option(4, "Networks that are averaged.", min=2)
    batch: int = options.option(128, "Images in each step.", min=2)
    rate: float = options.option(0.1, "How far a step goes along the gradient of the loss, at first.")
    momentum: float = options.option(0.9, "Share of a move that the next one keeps.")
    decay: float = options.option(5e-4, "Weight decay; the prior's precision is this times the number of images.")
    temperature: float = options.option(2.5e-4, "Of all but sgld, whose is 1.")
    level: float = options.option(0.0, "Of the loss, on a batch.")
    width: int = options.option(64, "Channels of the first stage of ResNet-18.", min=1)
    seed: int = options.seed()
    every: int = options.option(10, "Epochs from one checkpoint to the next.", min=1)

    @property
    def title(self) -> str:
        """Of the table."""
        return f"images: {self.on}, {self.particles} particles, {self.epochs} epochs"


QUICK = Config(on="digits", epochs=60, batch=64, every=60)


def check(config: Config) -> None:
    """Refuse settings of which nothing can come."""
    for name in ("rate", "decay", "temperature"):
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} must be positive; got {getattr(config, name)}.")
    if not 0 <= config.momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1); got {config.momentum}.")


class Task(NamedTuple):
    """What is learnt, and by which network."""

    dataset: ImageDataset
    network: Network
    augment: Callable[[Array, Any], Any] | None


def task_of(config: Config, data: Path | None, *, verify: bool = True, progress: bool = False) -> Task:
    """The images and their network."""
    if config.on == "digits":
        dataset = digits()
        return Task(dataset, small(64, 8), None)
    dataset, (outside, about) = (
        cifar10(data, progress=progress, verify=verify),
        svhn(data, progress=progress, verify=verify),
    )
    dataset = ImageDataset("cifar10", dataset.train, dataset.test, outside, dataset.provenance | {"outside": about})
    pixels = dataset.train.image.reshape(-1, 3)
    mean, sd = (getattr(np, name)(pixels, axis=0, dtype=np.float64).astype(np.float32) for name in ("mean", "std"))
    augment = lambda key, batch: batch | {"image": crop_and_flip(key, batch["image"])}
    return Task(dataset, resnet18(mean, sd, width=config.width), augment)


def cross_entropy(network: Network, p: Position, batch: Any) -> Array:
    """The mean loss of a batch."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(network.logits(p, batch["image"]), batch["label"]))


def problems_of(task: Task, config: Config) -> tuple[Problem, Problem]:
    """The posterior, and the prior where the loss is at a level."""
    network, rows = task.network, len(task.dataset.train)
    data = {"image": task.dataset.train.image, "label": task.dataset.train.label}
    prior = lambda p: -0.5 * config.decay * rows * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
    shared: dict[str, Any] = {"data": data, "batch_size": config.batch, "augment": task.augment}
    plain = posterior(prior, lambda p, batch: -len(batch["label"]) * cross_entropy(network, p, batch), **shared)
    level = lambda p, batch: cross_entropy(network, p, batch) - config.level
    # That the constraint sees a batch of its own is meant, and said so.
    on_level = posterior(prior, None, equality=level, measure="hausdorff", constraint_batch_size=config.batch, **shared)
    return plain, on_level


def algorithm_of(
    name: str, plain: Problem, on_level: Problem, config: Config, rows: int, steps: int
) -> SamplingAlgorithm:
    """A sampler of the table, with the settings that all share."""
    eta, n, mu, cold = config.rate / rows, config.particles, config.momentum, config.temperature
    cosine = partial(optax.cosine_decay_schedule, decay_steps=steps)
    pulled = {"correction": "none", "max_pull": rows, "momentum": mu}
    if name in ("sgld", "tempered_sgld"):
        return langevin(plain, cosine(eta), momentum=mu, temperature=1.0 if name == "sgld" else cold)
    if name == "svgd":  # its velocity is a mean over particles
        return svgd(plain, optimizer=optax.sgd(cosine(n * eta), momentum=mu))
    if name == "o_langevin":
        return o_langevin(on_level, cosine(eta), alpha=1 / eta, temperature=cold, **pulled)  # type: ignore[arg-type]
    if name == "o_svgd":
        many = pulled | {"max_pull": rows / n}
        return o_svgd(on_level, cosine(n * eta), alpha=1 / (n * eta), **many)  # type: ignore[arg-type]
    h = math.sqrt(
        eta
    )  # a kick of its momentum is then a step of the others. Half of the pull comes with each half of a step.
    forget = -math.log(mu) / h if mu > 0 else 10 / h
    return o_kinetic(on_level, cosine(h), friction=forget, max_pull=rows * h / (1 - mu), temperature=cold)


def follow(name: str, task: Task, config: Config, folder: Path, progress: bool) -> dict[str, Any]:
    """One sampler to its end: a record of what its networks are worth. What was computed before is read."""
    rows = len(task.dataset.train)
    per_epoch = max(rows // config.batch, 1)
    segments = -(-config.epochs // config.every)
    every = -(-config.epochs // segments) * per_epoch
    plain, on_level = problems_of(task, config)
    algorithm = algorithm_of(name, plain, on_level, config, rows, segments * every)
    about = {"sampler": name, "settings": plain_settings(algorithm), "data": task.dataset.provenance}
    about |= {key: value for key, value in asdict(config).items() if key != "samplers"}
    mark = f"{name}-{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"
    record, checkpoint = read_record(folder / "runs" / f"{mark}.json", about), folder / "runs" / f"{mark}.zarr"
    if record is not None:
        return record
    trace, seen = train(
        algorithm,
        plain if name in ("sgld", "tempered_sgld", "svgd") else on_level,
        task,
        config,
        checkpoint,
        every,
        segments,
        progress,
    )
    record = {
        "about": about,
        **judge(task.dataset, task.network, networks_of(trace)),
        "loss": seen["loss"],
        "seconds": seen["seconds"],
    }
    record |= {
        "images per second": config.particles * every * config.batch / min(seen["seconds"]),
        "device": seen["device"],
    }
    write_record(folder / "runs" / f"{mark}.json", record)
    shutil.rmtree(checkpoint, ignore_errors=True)
    return record


def train(
    algorithm: SamplingAlgorithm,
    problem: Problem,
    task: Task,
    config: Config,
    checkpoint: Path,
    every: int,
    segments: int,
    progress: bool,
) -> tuple[Trace, dict[str, Any]]:
    """The chain of segments of a run, from its last checkpoint on: the trace of the last one, and what was seen on the way."""
    log = checkpoint.with_suffix(".log.json")
    trace, seen = None, {"loss": [], "seconds": []}  # type: ignore[var-annotated]
    if checkpoint.exists():
        trace, seen = load(checkpoint), json.loads(log.read_text("utf-8"))
    done = 0 if trace is None else trace.provenance["num_steps"] // every
    seen = {key: seen[key][:done] for key in ("loss", "seconds")}
    starts = None
    if trace is None:
        starts = jax.vmap(task.network.start)(jax.random.split(jax.random.key(config.seed), config.particles))
        starts = jax.tree.map(lambda leaf: leaf[None], starts) if kernel_of(algorithm).ensemble else starts
    for segment in range(done, segments):
        before = 0.0 if trace is None else trace.provenance["seconds"]
        # A loss is never 0, and here it need not be.
        warnings.filterwarnings("ignore", "equality.* could not be brought to 0", ConstraintWarning)
        trace = sample(
            config.seed,
            problem,
            starts,
            algorithm=algorithm,
            num_warmup=0,
            num_samples=1,
            thinning=every,
            resume=trace,
            progress=progress,
        ).last(1)
        starts = None
        loss = (
            float(np.mean(trace.sample_stats["equality"])) + config.level
            if "equality" in trace.sample_stats
            else math.nan
        )
        seen["loss"].append(None if math.isnan(loss) else loss)
        seen["seconds"].append(trace.provenance["seconds"] - before)
        if segment + 1 < segments:
            write_record(log, seen)
            trace.save(checkpoint, overwrite=True)
    assert trace is not None
    log.unlink(missing_ok=True)
    return trace, seen | {"device": trace.provenance["device"]}


def networks_of(trace: Trace) -> Position:
    """The networks of the last draw, particles first."""
    return jax.tree.map(lambda leaf: leaf[0, -1] if trace.ensemble else leaf[:, -1], trace.position)


def run(config: Config, out: Path, *, data: Path | None = None, verify: bool = True, progress: bool = True) -> Outcome:
    """Run what is missing, write the folder, return the table and the path of the figure."""
    folder, task = out / "images", task_of(config, data, verify=verify, progress=progress)
    records = {}
    for name in config.samplers:
        if progress:
            print(f"{name}: {config.particles} networks, {config.epochs} epochs", flush=True)
        records[name] = follow(name, task, config, folder, progress)
    rows = [row(name, record, paper=config.on == "cifar10") for name, record in records.items()]
    settings = {"experiment": "images", **asdict(config), "data": task.dataset.provenance}
    return rows, write_folder(
        folder,
        title=f"Networks on {config.on}, at a level of the loss",
        config=settings | {"computed on": sorted({record["device"] for record in records.values()})},
        metrics={"runs": records},
        rows=rows,
        figure=draw(records),
        notes=notes(config),
    )


def notes(config: Config) -> list[str]:
    """What a reader should know."""
    outside = "images of SVHN" if config.on == "cifar10" else "the digits 8 and 9, which no network has seen"
    return [
        f"Averages over {config.particles} networks of {config.epochs} epochs each; 'single' is the range of the networks "
        f"alone. AUROC tells test images from {outside} by the largest probability, by entropy and by the largest logit.",
        f"Temperature {config.temperature:g} for all but sgld, whose is 1. The settings were chosen on the same images; rate, "
        "momentum and decay are usual ones of SGD.",
    ]
