"""Bayesian networks on images (the paper's prior-agnostic networks): g(x) = loss − level, and nothing else of the data.

Where the loss is at a level the likelihood exp(−N·loss) is a constant: D∇loss = 0, and a step takes one backward pass, as plain
SGD. What is left along the level set is the prior N(0, 1/(N·decay)), that is, weight decay.

All samplers have one time unit: a step η = rate/N moves Langevin's weights by rate·∇loss. The O-samplers replace the likelihood's
pull N∇loss by λ∇loss with λ = min(g/(η‖∇g‖²), N): a Polyak step that is never longer than that of SGD. All but O-kinetic
remember moves (momentum), the pull among them; O-kinetic's own momentum stays along the set, so that its pull may be as strong as
what others add up. Second derivatives are dropped, as in the paper; `o_langevin_probe` has them, by one Hutchinson probe.

Four particles, crops and flips inside the compiled step, a cosine schedule. Predictions are those of the particles' mean
probability, with the averages of batch normalisation computed anew for each particle.

A run may be cut at any time: the same command goes on from its last checkpoint. A checkpoint is one trace, and what was seen on
the way is in its provenance: neither can be there without the other.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
from ogradient.experiments.image_report import FEW, PAPER_DIFFERS, draw, judge, row
from ogradient.experiments.networks import Network, crop_and_flip, resnet18, small
from ogradient.experiments.training import read_record, write_record
from ogradient.images import ImageDataset, channel_statistics, cifar10, digits, svhn
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.problem.posterior import posterior
from ogradient.run.sample import sample
from ogradient.samplers import SamplingAlgorithm, langevin, o_kinetic, o_langevin, o_svgd, svgd
from ogradient.samplers.base import plain_settings
from ogradient.status import ConstraintWarning, SamplingError
from ogradient.trace import Trace, load

SAMPLERS = ("sgld", "tempered_sgld", "svgd", "o_langevin", "o_svgd", "o_kinetic")
# With the second derivatives that the others drop. It is not among those that run by default.
PROBE = "o_langevin_probe"
DATA_HELP = "Folder with the files of CIFAR-10 and SVHN; by default OGRADIENT_DATA, or a download. Digits need none."


@dataclass(frozen=True)
class Config:
    """Everything that decides the result."""

    on: str = options.option(
        "cifar10", "The images: cifar10, or digits, which --quick takes.", choices=("cifar10", "digits")
    )
    samplers: tuple[str, ...] = options.option(
        SAMPLERS,
        f"Only this sampler. {PROBE} runs where it is named: O-Langevin with second derivatives by one Hutchinson probe.",
        choices=(*SAMPLERS, PROBE),
        name="sampler",
    )
    epochs: int = options.option(60, "Passes over as many images as there are for training, for each particle.", min=1)
    particles: int = options.option(4, "Networks that are averaged.", min=2)
    batch: int = options.option(128, "Images in each step.", min=2)
    rate: float = options.option(0.1, "How far a step goes along the gradient of the loss, at first.")
    momentum: float = options.option(0.9, "Share of a move that the next one keeps.")
    decay: float = options.option(5e-4, "Weight decay; the prior's precision is this times the number of images.")
    temperature: float = options.option(
        2.5e-4, "Of tempered_sgld, o_langevin and o_kinetic; sgld has 1, and svgd and o_svgd have none."
    )
    level: float = options.option(0.0, "Of the loss, on a batch.")
    width: int = options.option(64, "Channels of the first stage of ResNet-18.", min=1)
    seed: int = options.seed()
    seeds: int = options.option(
        1, "Runs of each sampler, each with the next seed; the table has mean and range.", min=1
    )
    every: int = options.option(
        10,
        "At most so many epochs from one checkpoint to the next. A run is made in equal segments: their length is the largest "
        "number up to this that divides the epochs.",
        min=1,
    )

    @property
    def title(self) -> str:
        """Of the table."""
        seeds = f", {self.seeds} seeds: mean (range)" if self.seeds > 1 else ""
        return f"images: {self.on}, {self.particles} particles, {self.epochs} epochs{seeds}"


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
    mean, sd = channel_statistics(dataset.train.image)
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
    if name in ("o_langevin", PROBE):
        pulled |= {"correction": "none" if name == "o_langevin" else "hutchinson"}
        return o_langevin(on_level, cosine(eta), alpha=1 / eta, temperature=cold, **pulled)  # type: ignore[arg-type]
    if name == "o_svgd":
        many = pulled | {"max_pull": rows / n}
        return o_svgd(on_level, cosine(n * eta), alpha=1 / (n * eta), **many)  # type: ignore[arg-type]
    h = math.sqrt(
        eta
    )  # a kick of its momentum is then a step of the others. Half of the pull comes with each half of a step.
    forget = -math.log(mu) / h if mu > 0 else 10 / h
    return o_kinetic(on_level, cosine(h), friction=forget, max_pull=rows * h / (1 - mu), temperature=cold)


class Plan(NamedTuple):
    """How a run is divided. All segments have one length, since a run that goes on keeps its thinning."""

    steps: int  # of a segment
    segments: int
    between: int  # segments from one checkpoint to the next


def plan_of(config: Config, rows: int) -> Plan:
    """Segments of as many epochs as divide all of them, and no more than come between two checkpoints."""
    per_epoch = max(rows // config.batch, 1)
    length = max(k for k in range(1, min(config.every, config.epochs) + 1) if config.epochs % k == 0)
    return Plan(length * per_epoch, config.epochs // length, config.every // length)


def follow(
    name: str, task: Task, problems: tuple[Problem, Problem], config: Config, folder: Path, progress: bool
) -> list[dict[str, Any]]:
    """One sampler to its end with every seed: records of what its networks are worth. What was computed before is read."""
    rows = len(task.dataset.train)
    plan = plan_of(config, rows)
    algorithm = algorithm_of(name, *problems, config, rows, plan.steps * plan.segments)
    problem = problems[0] if name in ("sgld", "tempered_sgld", "svgd") else problems[1]
    records = []
    for seed in range(config.seed, config.seed + config.seeds):
        about: dict[str, Any] = {
            "sampler": name,
            "settings": plain_settings(algorithm),
            "data": task.dataset.provenance,
        }
        about |= {key: value for key, value in asdict(config).items() if key not in ("samplers", "seeds")}
        about["seed"] = seed
        mark = f"{name}-{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"
        path, checkpoint = folder / "runs" / f"{mark}.json", folder / "runs" / f"{mark}.zarr"
        record = read_record(path, about)
        if record is None:
            if progress:
                print(f"{name}, seed {seed}: {config.particles} networks, {config.epochs} epochs", flush=True)
            trace, seen = train(seed, algorithm, problem, task.network, config, plan, checkpoint, progress)
            record = {"about": about, **judge(task.dataset, task.network, networks_of(trace))}
            record |= {key: seen[key] for key in ("loss", "seconds")}
            record |= {"images per second": speed(seen, config.particles * plan.steps * config.batch)}
            record |= {"device": trace.provenance["device"]}
            write_record(path, record)
        # Not before the record is there: whatever ends the process, the next one finds the one or the other.
        shutil.rmtree(checkpoint, ignore_errors=True)
        records.append(record)
    return records


def train(
    seed: int,
    algorithm: SamplingAlgorithm,
    problem: Problem,
    network: Network,
    config: Config,
    plan: Plan,
    checkpoint: Path,
    progress: bool,
) -> tuple[Trace, dict[str, Any]]:
    """The segments of a run, from its last checkpoint on: the trace of the last one, and what was seen on the way.

    Ctrl-C ends it as KeyboardInterrupt, after a checkpoint if a segment is whole.
    """
    trace: Trace | None = None
    seen: dict[str, list[Any]] = {"loss": [], "seconds": [], "compiled": []}
    with suppress(FileNotFoundError):
        # It looks where a process that was killed while it replaced the checkpoint left the one from before.
        trace = load(checkpoint)
        seen = trace.provenance["seen"]
    began = len(seen["loss"])
    for segment in range(began, plan.segments):
        before = 0.0 if trace is None else trace.provenance["seconds"]
        trace, stopped = go_on(
            trace,
            seed=seed,
            problem=problem,
            # Keys of starts are others than those of steps.
            initial_positions=jax.jit(network.start) if trace is None else None,
            num_chains=config.particles,
            algorithm=algorithm,
            thinning=plan.steps,
            progress=progress,
        )
        whole = trace.provenance["num_steps"] == (segment + 1) * plan.steps
        if whole:
            value = trace.sample_stats.get("equality")
            seen["loss"].append(None if value is None else float(np.mean(value[:, -1])) + config.level)
            seen["seconds"].append(trace.provenance["seconds"] - before)
            seen["compiled"].append(segment == began)
            trace = trace.last(1)
            trace = replace(trace, provenance=trace.provenance | {"seen": seen})
            # The last one too: judging takes its time.
            if stopped or (segment + 1) % plan.between == 0 or segment + 1 == plan.segments:
                trace.save(checkpoint, overwrite=True)
        if stopped or not whole:
            raise KeyboardInterrupt
    assert trace is not None
    return trace, seen


def go_on(trace: Trace | None, **run: Any) -> tuple[Trace, bool]:
    """One more segment of a run, and whether Ctrl-C came meanwhile, which `sample` answers with a warning and what it has."""
    with warnings.catch_warnings():
        # A loss is never 0, and here it need not be.
        warnings.filterwarnings("ignore", "equality.* could not be brought to 0", ConstraintWarning)
        warnings.filterwarnings("error", "interrupted|Ctrl-C came", RuntimeWarning)
        try:
            return sample(**run, num_warmup=0, num_samples=1, resume=trace), False
        except RuntimeWarning as warning:
            return warning.trace, True  # type: ignore[attr-defined]
        except SamplingError as error:
            # Before the first draw there is nothing to go on with, and its advice is for callers in Python.
            if not str(error).startswith("interrupted"):
                raise
            raise KeyboardInterrupt from None


def speed(seen: dict[str, list[Any]], images: int) -> float | None:
    """Images per second of the fastest segment that compiled nothing; None where there was none, or none that took time."""
    took = [seconds for seconds, compiled in zip(seen["seconds"], seen["compiled"], strict=True) if not compiled]
    return images / min(took) if took and min(took) > 0 else None


def networks_of(trace: Trace) -> Position:
    """The networks of the last draw, particles first."""
    return jax.tree.map(lambda leaf: leaf[0, -1] if trace.ensemble else leaf[:, -1], trace.position)


def run(config: Config, out: Path, *, data: Path | None = None, verify: bool = True, progress: bool = True) -> Outcome:
    """Run what is missing, write the folder, return the table and the path of the figure."""
    folder, task = out / "images", task_of(config, data, verify=verify, progress=progress)
    problems = problems_of(task, config)
    try:
        records = {name: follow(name, task, problems, config, folder, progress) for name in config.samplers}
    except KeyboardInterrupt:
        if progress:
            print("stopped: the same command goes on from the last checkpoint", flush=True)
        raise
    rows = [row(name, mine, paper=config.on == "cifar10") for name, mine in records.items()]
    settings = {"experiment": "images", **asdict(config), "data": task.dataset.provenance}
    devices = sorted({record["device"] for mine in records.values() for record in mine})
    return rows, write_folder(
        folder,
        title=f"Networks on {config.on}, at a level of the loss",
        config=settings | {"computed on": devices},
        metrics={"runs": records},
        rows=rows,
        figure=draw({name: mine[0] for name, mine in records.items()}),
        notes=notes(config),
    )


def notes(config: Config) -> list[str]:
    """What a reader should know."""
    outside = "images of SVHN" if config.on == "cifar10" else "the digits 8 and 9, which no network has seen"
    seeds = f" Numbers are means over {config.seeds} seeds, with their range; the figure is of the first." * (
        config.seeds > 1
    )
    return [
        f"Averages over {config.particles} networks of {config.epochs} epochs each; 'single' is the range of the networks "
        f"alone. AUROC tells test images from {outside} by the largest probability, by entropy and by the largest logit.{seeds}",
        f"In the figure hollow bars are shares of fewer than {FEW} images.",
        f"Temperature {config.temperature:g} for tempered_sgld, o_langevin and o_kinetic, 1 for sgld; svgd and o_svgd have none. "
        "The settings were chosen on the same images; rate, momentum and decay are usual ones of SGD.",
        "images/s is that of the fastest segment after the first, which compiles; where there is one segment there is no number.",
        *([PAPER_DIFFERS] if config.on == "cifar10" else []),
    ]
