"""How much accuracy fairness costs: the covariance between sex and prediction held within |g| ≤ ε, for several ε, on Adult.

An inequality, so the law inside the band is the unconstrained posterior's. For a logistic regression and the paper's network.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ogradient.datasets import Dataset, adult
from ogradient.experiments import income
from ogradient.experiments.folder import Outcome, write_folder
from ogradient.experiments.income import LANGEVIN_STEP, PULL, fair_problem
from ogradient.experiments.training import Entry, Run, follow, logistic, mlp, origin
from ogradient.plots import COLOURS, new_figure
from ogradient.samplers import langevin, o_langevin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA_HELP = income.DATA_HELP
LEVELS = (0.0, 0.005, 0.01, 0.02, 0.03)
MODELS = ("logistic", "mlp")


@dataclass(frozen=True)
class Config(income.Config):
    """Everything that decides the result: as in the income experiment, with few checkpoints, since only the end is shown."""

    checkpoints: int = 4


QUICK = Config(rows=4000, steps=300, seeds=1)


def compute(config: Config, out: Path, dataset: Dataset, *, progress: bool = True) -> dict[str, dict[str, list[Run]]]:
    """All runs by model; those already in the folder are read."""
    inputs, eta = dataset.train.features.shape[1], LANGEVIN_STEP / len(dataset.train.label)
    found = {}
    for name in MODELS:
        model = logistic(inputs) if name == "logistic" else mlp(inputs, config.hidden)
        entries = []
        for level in LEVELS:
            problem = fair_problem(model, dataset.train, level)
            text = f"|g| ≤ {level:g}" if level else "g = 0"
            entries.append(Entry(f"{name}, {text}", problem, o_langevin(problem, eta, alpha=PULL / eta)))
        entries.append(Entry(f"{name}, unconstrained", entries[0].problem, langevin(entries[0].problem, eta)))
        found[name] = follow(entries, model, dataset, out / "tradeoff", config, progress, hidden=config.hidden)
    return found


def run(config: Config, out: Path, *, data: Path | None = None, verify: bool = True, progress: bool = True) -> Outcome:
    """Run what is missing, write the folder, return the table and the path of the figure."""
    dataset = adult(data, num_train=config.rows, progress=progress, verify=verify)
    found = compute(config, out, dataset, progress=progress)
    everything = {label: mine for runs in found.values() for label, mine in runs.items()}
    rows = [row(label, mine) for label, mine in everything.items()]
    return rows, write_folder(
        out / "tradeoff",
        title="Accuracy against fairness",
        config={"experiment": "tradeoff", **asdict(config), "levels": LEVELS, **origin(dataset, everything)},
        rows=rows,
        figure=draw(found),
        notes=[
            f"Means over {config.particles} particles and {config.seeds} seeds after {config.steps:,} steps, on the test rows; "
            "|cov| is on the training rows, which the constraint is about. The CV score counts predictions above ½, so no "
            "covariance does not mean a score of 0.",
            "The posterior presses against the band. O-Langevin's reflections keep draws about a step inside its edge, and the "
            "law itself is nearer to it: mean |cov| against the level shows by how much.",
        ],
    )


def row(label: str, runs: list[Run]) -> dict[str, Any]:
    """One line of the table: at the end, over particles and seeds."""
    covariance = np.abs([run.train["covariance"][:, -1] for run in runs])
    on_test = lambda name: float(np.mean([run.test[name][:, -1] for run in runs]))
    return {
        "model": label,
        "mean |cov|": float(covariance.mean()),
        "max |cov|": float(covariance.max()),
        "test CV": on_test("cv_score"),
        "test accuracy": on_test("accuracy"),
        "test log likelihood": on_test("log_likelihood"),
    }


def draw(found: dict[str, dict[str, list[Run]]]) -> Figure:
    """Test accuracy against CV score: a curve per model, a cloud of particles at every level."""
    figure, axes = new_figure(1, 1, width=6.0, height=4.0)
    axis = axes[0, 0]
    # Where the text stands: below the lower curve, above the upper one.
    beside: list[dict[str, Any]] = [{"xytext": (6, -9)}, {"xytext": (-6, 4), "ha": "right"}]
    for (name, runs), colour, place in zip(found.items(), COLOURS, beside, strict=False):
        means = []
        for mine in runs.values():
            x, y = (np.concatenate([run.test[k][:, -1] for run in mine]) for k in ("cv_score", "accuracy"))
            axis.scatter(x, y, s=5, color=colour, alpha=0.25, linewidths=0)
            means.append((x.mean(), y.mean()))
        x, y = np.array(means).T
        axis.plot(x, y, "o-", color=colour, markersize=5, linewidth=1.5, label=name)
        for (at, height), label in zip(means, runs, strict=True):
            text = label.rpartition(", ")[2]
            axis.annotate(text, (at, height), textcoords="offset points", fontsize=7, color=colour, **place)
    axis.set_xlabel("CV score on the test rows: |p(>50K | women) − p(>50K | men)|", fontsize=9)
    axis.set_ylabel("test accuracy", fontsize=9)
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    return figure
