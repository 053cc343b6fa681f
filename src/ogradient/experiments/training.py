"""What the experiments on real tables share: models, following samplers along training, and curves with standard errors.

Every run of one sampler with one seed is kept in `<folder>/runs/`, so that a killed experiment goes on where it stopped, and
one that was computed elsewhere only has its figure drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.datasets import Dataset
from ogradient.evaluation import evaluate
from ogradient.experiments.folder import write_atomically
from ogradient.plots import COLOURS, draw_curves, new_figure
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.run.sample import sample
from ogradient.samplers import SamplingAlgorithm
from ogradient.samplers.base import kernel_of, plain_settings
from ogradient.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOGETHER = 8  # draws whose predictions are computed together


class Classifier(NamedTuple):
    """A model of a binary label: where its parameters start, and the logit of each row."""

    start: Callable[[Array], Position]
    logit: Callable[[Position, Array], Array]


def mlp(inputs: int, hidden: int = 50, activation: Callable[[Array], Array] = jax.nn.relu) -> Classifier:
    """A network of two layers, with `hidden` units between them; with ReLU, the paper's model of incomes."""

    def start(key: Array) -> Position:
        first, second = jax.random.split(key)
        return {
            "w1": jax.random.normal(first, (inputs, hidden)) / inputs**0.5,
            "b1": jnp.zeros(hidden),
            "w2": jax.random.normal(second, (hidden,)) / hidden**0.5,
            "b2": jnp.zeros(()),
        }

    logit = lambda p, rows: activation(rows @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return Classifier(start, logit)


def logistic(inputs: int) -> Classifier:
    """Logistic regression: the paper's model of loans."""
    start = lambda key: {"w": 0.1 * jax.random.normal(key, (inputs,)), "b": jnp.zeros(())}
    return Classifier(start, lambda p, rows: rows @ p["w"] + p["b"])


def normal_prior(position: Position) -> Array:
    """Log density of N(0, 1) for every parameter, up to a constant."""
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))  # type: ignore[return-value]


def bernoulli(logit: Array, label: Array, weight: Array | float = 1.0) -> Array:
    """Log likelihood of labels, summed over rows: Σ w [y z − log(1 + e^z)]."""
    return jnp.sum(weight * (label * logit - jax.nn.softplus(logit)))


class Entry(NamedTuple):
    """One line of a figure: its label, the problem, and the algorithm that samples it."""

    label: str
    problem: Problem
    algorithm: SamplingAlgorithm


@dataclass(frozen=True)
class Run:
    """One entry with one seed. Arrays of `train` and `test` have axes (particle, checkpoint), `constraint` one more."""

    iterations: np.ndarray
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    average: dict[str, float]  # metrics of the model average on the test rows, at the end
    constraint: np.ndarray
    about: dict[str, Any]  # settings, seed, data, device and time


def follow(
    entries: Sequence[Entry],
    model: Classifier,
    dataset: Dataset,
    folder: Path,
    config: Any,
    progress: bool,
    **data: Any,
) -> dict[str, list[Run]]:
    """All entries with all seeds. Runs that are in the folder already, made with the same settings, are read.

    `config` has particles, steps, checkpoints and seeds. There are at most so many checkpoints, evenly spaced back from the
    last step. `data` is what else decides the runs.
    """
    runs: dict[str, list[Run]] = {}
    for entry in entries:
        for seed in range(config.seeds):
            about = {
                "label": entry.label,
                "sampler": kernel_of(entry.algorithm).name,
                "settings": plain_settings(entry.algorithm),
                "seed": seed,
                **{name: getattr(config, name) for name in ("particles", "steps", "checkpoints")},
                "data": dataset.provenance | data,
            }
            name = entry.label.replace(" ", "_").replace("/", "_")
            path = folder / "runs" / f"{name}-{seed}.json"
            record = read_record(path, about)
            if record is None or record["iterations"][-1] != config.steps:
                if progress:
                    print(f"{entry.label}, seed {seed}: {config.steps:,} steps", flush=True)
                record = _record(entry, model, dataset, about)
                write_record(path, record)
            runs.setdefault(entry.label, []).append(_as_run(record))
    return runs


def read_record(path: Path, about: dict[str, Any]) -> dict[str, Any] | None:
    """A run that was kept, if it is there and was made with these settings."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    wanted = json.loads(json.dumps(about))
    return record if {key: record["about"].get(key) for key in wanted} == wanted else None


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Keep a run for `read_record`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(record))


def _record(entry: Entry, model: Classifier, dataset: Dataset, about: dict[str, Any]) -> dict[str, Any]:
    """One run, JSON-able: metrics along it on the training and test rows, and the values of the constraint."""
    keys = jax.random.split(jax.random.key(1000 + about["seed"]), about["particles"])
    starts = jax.vmap(model.start)(keys)
    begin = jax.tree.map(lambda leaf: leaf[None], starts) if kernel_of(entry.algorithm).ensemble else starts
    run = partial(sample, about["seed"], entry.problem, begin, algorithm=entry.algorithm, progress=False)
    # One step first, so that the time of the run is without compiling.
    run(num_warmup=0, num_samples=1)
    thinning = -(-about["steps"] // about["checkpoints"])
    kept, rest = divmod(about["steps"], thinning)
    trace = run(num_warmup=rest, num_samples=kept, thinning=thinning)
    trace = with_start(trace, starts, entry.problem)
    predict = lambda position, rows: jax.nn.sigmoid(model.logit(position, rows))
    found = {}
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        probability = by_particle(trace, trace.apply(predict, jnp.asarray(split.features), batch_size=TOGETHER))
        judge = partial(evaluate, label=split.label, sensitive=split.sensitive, rule=split.rule)
        found[name] = judge(probability).per_sample
        if name == "test":
            average = judge(probability[:, -1]).model_average
    return {
        "about": about | {key: trace.provenance[key] for key in ("seconds", "device")},
        "iterations": [0, *range(rest + thinning, about["steps"] + 1, thinning)],
        **{name: {k: digits(v) for k, v in metrics.items()} for name, metrics in found.items()},
        "average": average,
        "constraint": digits(by_particle(trace, np.concatenate(list(trace.sample_stats.values()), axis=-1))),
    }


def with_start(trace: Trace, starts: Position, problem: Problem) -> Trace:
    """The trace with the starts (particles first) as its first draw, so that curves begin at iteration 0."""
    lead = (None, None) if trace.ensemble else (slice(None), None)
    put = lambda draws, first: np.concatenate([np.asarray(first)[lead], draws], axis=1)
    values = jax.jit(lambda problem, starts: jax.vmap(problem.constraint_value)(starts))(problem, starts)
    stats = {kind: put(trace.sample_stats[kind], value) for kind, value in values.items()}
    return replace(trace, position=jax.tree.map(put, trace.position, starts), sample_stats=stats)


def by_particle(trace: Trace, values: np.ndarray) -> np.ndarray:
    """Values of all draws with axes (particle or chain, draw, ...)."""
    return np.moveaxis(values[0], 1, 0) if trace.ensemble else values


def digits(values: np.ndarray) -> Any:
    """Numbers as nested lists for JSON, to six significant digits."""
    return [digits(v) for v in values] if np.ndim(values) else float(f"{float(values):.6g}")


def _as_run(record: dict[str, Any]) -> Run:
    train, test = ({name: np.asarray(values) for name, values in record[split].items()} for split in ("train", "test"))
    iterations, constraint = (np.asarray(record[name]) for name in ("iterations", "constraint"))
    return Run(iterations, train, test, record["average"], constraint, record["about"])


Summary = tuple[float, float]  # mean and standard error over seeds
CurveOf = Callable[[Run], np.ndarray]  # a number per checkpoint


def curve(runs: Sequence[Run], value: CurveOf) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Iterations, mean and standard error over seeds of a number per checkpoint."""
    values = np.stack([value(run) for run in runs])
    error = values.std(axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.zeros(values.shape[1])
    return runs[0].iterations, values.mean(axis=0), error


def at_end(runs: Sequence[Run], value: CurveOf) -> Summary:
    """Mean and standard error over seeds of that number at the last checkpoint."""
    _, mean, error = curve(runs, value)
    return float(mean[-1]), float(error[-1])


def over_particles_mean(split: str, name: str) -> CurveOf:
    """The mean of a metric over particles, per checkpoint."""
    return lambda run: getattr(run, split)[name].mean(axis=0)


def plus_minus(summary: Summary, form: str = ".4f") -> str:
    """A number and its standard error over seeds, as text; of one seed the number alone."""
    return f"{summary[0]:{form}}" + (f" ± {summary[1]:{form}}" if summary[1] else "")


def draw_panels(runs: Mapping[str, Sequence[Run]], curves: Mapping[str, CurveOf], log: Sequence[str]) -> Figure:
    """Four curves of all entries along training, those named in `log` on a logarithmic axis, with one legend below."""
    figure, axes = new_figure(2, 2, width=4.8, height=3.2)
    colours = dict(zip(runs, COLOURS, strict=False))
    for axis, (name, value) in zip(axes.flat, curves.items(), strict=True):
        # The start is far from everything that follows, and on a linear axis would hide it.
        begin = 0 if name in log else 1
        lines = {label: tuple(part[begin:] for part in curve(mine, value)) for label, mine in runs.items()}
        draw_curves(axis, lines, name, colours=colours, log_x=False, log_y=name in log, legend=False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def origin(dataset: Dataset, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Where the data came from, and on what the runs were computed; the figure may have been drawn elsewhere."""
    devices = sorted({run.about["device"] for mine in runs.values() for run in mine})
    return {"data": dataset.provenance, "computed on": devices}


def as_metrics(runs: Mapping[str, Sequence[Run]], curves: Mapping[str, CurveOf]) -> dict[str, Any]:
    """The numbers behind a figure: every curve of every entry, with standard errors over seeds."""
    table: dict[str, Any] = {}
    for label, mine in runs.items():
        table[label] = {"about": [run.about for run in mine]}
        for name, value in curves.items():
            numbers = zip(("iterations", "mean", "standard_error"), curve(mine, value), strict=True)
            table[label][name] = {key: np.asarray(v, float).tolist() for key, v in numbers}
    return table
