"""O-Langevin against an exact sampler on real data: posterior means of ten functionals of constrained logistic regressions.

Adult with zero covariance between sex and prediction, and Lending Club with both rules at their levels. Parameters are written
as w = ŵ + C u, with ŵ the mode of the unconstrained posterior and C Cᵀ its inverse Hessian, so that one step size serves all
directions of u; the conditional law does not depend on the parametrisation. `chmc`, exact on the set, is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.datasets import Dataset, Split, adult, lending
from ogradient.experiments import options
from ogradient.experiments.folder import Outcome, write_folder
from ogradient.experiments.income import covariance
from ogradient.experiments.loan import LEVELS, rule_losses
from ogradient.experiments.training import (
    Classifier,
    bernoulli,
    digits,
    logistic,
    normal_prior,
    read_record,
    write_record,
)
from ogradient.keys import as_key
from ogradient.plots import COLOURS, new_figure
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.problem.posterior import posterior
from ogradient.run.sample import sample
from ogradient.samplers import o_langevin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA_HELP = "Folder with the tables of Adult and of Lending Club; by default OGRADIENT_DATA."
Draws = dict[str, np.ndarray]  # functionals by sampler, (chain, draw, functional)
Functional = Callable[[Position, Any], Array]  # of u and the test rows
COEFFICIENTS = 5  # the largest ones, among the functionals
# A difference may have so many Monte Carlo errors, and so many standard deviations of the posterior: the step size's bias.
LIMIT, BIAS = 4.0, 0.05


@dataclass(frozen=True)
class Config:
    """Everything that decides the result."""

    rows: int = 20_000
    chains: int = 16
    samples: int = 2000
    step_size: float = 0.02
    thinning: int = 20
    seed: int = options.seed()


QUICK = Config(rows=2000, chains=4, samples=500, thinning=10)


@dataclass(frozen=True)
class Task:
    """A constrained logistic regression in coordinates u, and the functionals of it that are compared."""

    problem: Problem
    functionals: dict[str, Functional]
    dim: int


def newton_mode(features: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode of the unconstrained posterior (weights, then intercept), and C with C Cᵀ its inverse Hessian."""
    design = np.column_stack([features, np.ones(len(features))]).astype(np.float64)
    w = np.zeros(design.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-design @ w))
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.eye(len(w))
        w = w + np.linalg.solve(hessian, design.T @ (label - p) - w)
    return w, np.linalg.inv(np.linalg.cholesky(hessian)).T


def build(dataset: Dataset, rows: int, seed: int) -> Task:
    """The task of a dataset, on `rows` of its training rows drawn at random."""
    train = subset(dataset.train, rows, seed)
    model = logistic(train.features.shape[1])
    mode, root = newton_mode(train.features, train.label)
    centre, scale = jnp.asarray(mode, jnp.float32), jnp.asarray(root, jnp.float32)

    def parameters(u: Array) -> Position:
        w = centre + scale @ u
        return {"w": w[:-1], "b": w[-1]}

    logit = lambda u, batch: model.logit(parameters(u), batch["features"])
    prior = lambda u: normal_prior(parameters(u))
    if dataset.train.sensitive is not None:

        def joint(u: Array, batch: dict[str, Array]) -> tuple[Array, Array]:
            z = logit(u, batch)
            return bernoulli(z, batch["label"]), covariance(z, batch["group"])

        problem = posterior(prior, data=arrays(train), joint_fn=joint)
    else:
        losses = rule_losses(model, dataset.train)
        equality = lambda u, batch: losses(parameters(u)) - jnp.asarray(LEVELS)
        likelihood = lambda u, batch: bernoulli(logit(u, batch), batch["label"])
        problem = posterior(prior, likelihood, arrays(train), equality=equality)
    return Task(problem, functionals(model, parameters, mode, dataset), len(mode))


def subset(split: Split, rows: int, seed: int) -> Split:
    """Some rows at random, all if there are no more."""
    chosen = np.random.default_rng(seed).permutation(len(split.label))[:rows]
    pick = lambda values: None if values is None else values[chosen]
    return Split(split.features[chosen], split.label[chosen], pick(split.sensitive), pick(split.rule))


def arrays(split: Split) -> dict[str, np.ndarray]:
    """Features, labels and groups: the sensitive attribute, or whether a row is under a rule."""
    group = split.sensitive if split.sensitive is not None else np.asarray(split.rule, np.float32)
    return {"features": split.features, "label": split.label, "group": group}


def functionals(model: Classifier, parameters: Callable, mode: np.ndarray, dataset: Dataset) -> dict[str, Functional]:
    """Ten numbers of a draw that a user would report."""
    logit = lambda u, rows: model.logit(parameters(u), rows["features"])
    probability = lambda u, rows: jax.nn.sigmoid(logit(u, rows))
    first, second = ("women", "men") if dataset.train.sensitive is not None else ("no rule", "a rule")
    mean_where = lambda mask, values: jnp.sum(mask * values) / jnp.sum(mask)
    chosen = {
        "test log likelihood": lambda u, rows: bernoulli(logit(u, rows), rows["label"]) / rows["label"].shape[0],
        "mean probability": lambda u, rows: jnp.mean(probability(u, rows)),
        f"mean probability, {first}": lambda u, rows: mean_where(rows["group"] == 0, probability(u, rows)),
        f"mean probability, {second}": lambda u, rows: mean_where(rows["group"] > 0, probability(u, rows)),
        "‖w‖²": lambda u, rows: jnp.sum(parameters(u)["w"] ** 2),
    }
    for index in np.argsort(-np.abs(mode[:-1]))[:COEFFICIENTS]:
        name = f"w[{dataset.feature_names[index]}]"
        chosen[name] = partial(lambda i, u, rows: parameters(u)["w"][i], int(index))
    return chosen


def compute(config: Config, out: Path, datasets: Mapping[str, Dataset], *, progress: bool = True) -> dict[str, Draws]:
    """The functionals of all draws, per task and sampler; those already in the folder are read."""
    found = {}
    for name, dataset in datasets.items():
        path = out / "reference" / "runs" / f"{name}.json"
        about = {"config": asdict(config), "data": dataset.provenance}
        record = read_record(path, about)
        if record is None:
            values, facts = draw(build(dataset, config.rows, config.seed), dataset.test, config, progress=progress)
            record = {"about": about | facts, "values": {sampler: digits(v) for sampler, v in values.items()}}
            write_record(path, record)
        found[name] = {sampler: np.asarray(v, np.float64) for sampler, v in record["values"].items()}
    return found


def draw(task: Task, test: Split, config: Config, *, progress: bool) -> tuple[Draws, dict[str, Any]]:
    """Both samplers: the functionals of their draws with axes (chain, draw, functional), and how the runs went."""
    starts = jax.random.normal(as_key(config.seed + 1), (config.chains, task.dim))
    both = partial(sample, config.seed, task.problem, starts, num_samples=config.samples, progress=progress)
    algorithm, warmup = o_langevin(task.problem, config.step_size), int(20 / config.step_size)
    traces = {
        "chmc": both(algorithm="chmc"),
        "o_langevin": both(algorithm=algorithm, num_warmup=warmup, thinning=config.thinning),
    }
    rows_of = {name: jnp.asarray(values) for name, values in arrays(test).items()}
    every = lambda u, rows: jnp.stack([function(u, rows) for function in task.functionals.values()])
    facts = {
        name: {
            "max |g|": float(np.abs(trace.sample_stats["equality"]).max()),
            **{key: trace.provenance[key] for key in ("seconds", "device", "settings")},
        }
        for name, trace in traces.items()
    }
    return {name: trace.apply(every, rows_of, batch_size=8) for name, trace in traces.items()}, facts


def compare(names: Sequence[str], values: Draws) -> list[dict[str, Any]]:
    """Means, Monte Carlo errors and the difference of every functional."""
    from arviz_stats.base import array_stats

    table = []
    for k, name in enumerate(names):
        draws = {sampler: value[..., k] for sampler, value in values.items()}
        error = {s: float(array_stats.mcse(d, chain_axis=0, draw_axis=1, method="mean")) for s, d in draws.items()}
        mean = {sampler: float(draw.mean()) for sampler, draw in draws.items()}
        sd, difference = float(draws["chmc"].std()), mean["o_langevin"] - mean["chmc"]
        monte_carlo = float(np.hypot(error["chmc"], error["o_langevin"]))
        row = {"functional": name, "chmc": mean["chmc"], "o_langevin": mean["o_langevin"], "sd": sd}
        row |= {"difference / sd": difference / sd, "Monte Carlo error / sd": monte_carlo / sd}
        row["within"] = "yes" if abs(difference) <= LIMIT * monte_carlo + BIAS * sd else "NO"
        table.append(row)
    return table


def run(config: Config, out: Path, *, data: Path | None = None, verify: bool = True, progress: bool = True) -> Outcome:
    """Both tasks, written to the folder; the table and the path of the figure."""
    datasets = {"income": adult(data, num_train=config.rows, verify=verify), "loan": lending(data)}
    found = compute(config, out, datasets, progress=progress)
    rows: list[dict[str, Any]] = []
    for name, dataset in datasets.items():
        # The task is built again for the names: that is cheap, nothing is sampled.
        names = build(dataset, config.rows, config.seed).functionals
        rows += [{"task": name} | row for row in compare(list(names), found[name])]
    provenance = {name: dataset.provenance for name, dataset in datasets.items()}
    return rows, write_folder(
        out / "reference",
        title="O-Langevin against exact draws, on real data",
        config={"experiment": "reference", **asdict(config), "limit": LIMIT, "bias": BIAS, "data": provenance},
        rows=rows,
        figure=draw_differences(rows),
        notes=[
            f"'Within' says that the means differ by at most {LIMIT:g} Monte Carlo errors plus {BIAS:g} standard deviations of "
            f"the posterior, the bias granted to the step size {config.step_size:g}."
        ],
    )


def draw_differences(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Differences of means in standard deviations, a panel per task, with what Monte Carlo errors and bias allow in grey."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = new_figure(1, len(tasks), width=5.2, height=3.6)
    for axis, task in zip(axes[0], tasks, strict=True):
        mine = [row for row in rows if row["task"] == task]
        at = np.arange(len(mine))[::-1]
        differences, errors = (
            np.array([row[f"{key} / sd"] for row in mine]) for key in ("difference", "Monte Carlo error")
        )
        allowed = LIMIT * errors + BIAS
        axis.barh(at, 2 * allowed, left=-allowed, height=0.7, color="0.9")
        axis.errorbar(differences, at, xerr=2 * errors, fmt="o", markersize=4, color=COLOURS[0])
        axis.axvline(0, color="0.55", linewidth=1, linestyle="--")
        axis.set_yticks(at, [row["functional"] for row in mine], fontsize=7)
        axis.set_xlabel("difference of means / sd (bars: 2 Monte Carlo errors)", fontsize=8)
        axis.set_title(task, fontsize=10)
    return figure
