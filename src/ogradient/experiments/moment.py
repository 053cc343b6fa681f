"""Constraining every draw against constraining their mean (the paper's appendix): O-Langevin and control_langevin on Adult.

Both ensembles are asked for no covariance between sex and prediction: O-Langevin of every particle, control_langevin of their
mean, positive and negative covariances cancelling.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from ogradient.datasets import Dataset, adult
from ogradient.experiments.folder import Outcome, write_folder
from ogradient.experiments.income import DATA_HELP, LANGEVIN_STEP, PULL, QUICK, Config, fair_problem
from ogradient.experiments.training import Entry, Run, as_metrics, at_end, curve, follow, mlp, origin
from ogradient.plots import draw_curves, new_figure
from ogradient.samplers import control_langevin, o_langevin

__all__ = ["DATA_HELP", "QUICK", "Config", "compute", "run"]

CURVES = {
    "|mean covariance|": lambda run: np.abs(run.train["covariance"].mean(axis=0)),
    "mean |covariance|": lambda run: np.abs(run.train["covariance"]).mean(axis=0),
    "max |covariance|": lambda run: np.abs(run.train["covariance"]).max(axis=0),
    "largest test CV score": lambda run: run.test["cv_score"].max(axis=0),
    "test accuracy": lambda run: run.test["accuracy"].mean(axis=0),
}


def compute(config: Config, out: Path, dataset: Dataset, *, progress: bool = True) -> dict[str, list[Run]]:
    """All runs; those already in the folder are read."""
    model = mlp(dataset.train.features.shape[1], config.hidden)
    problem, eta = fair_problem(model, dataset.train), LANGEVIN_STEP / len(dataset.train.label)
    algorithms = {
        "o_langevin": o_langevin(problem, eta, alpha=PULL / eta),
        "control_langevin": control_langevin(problem, eta, alpha=PULL / eta),
    }
    entries = [Entry(label, problem, algorithm) for label, algorithm in algorithms.items()]
    return follow(entries, model, dataset, out / "moment", config, progress, hidden=config.hidden)


def run(config: Config, out: Path, *, data: Path | None = None, verify: bool = True, progress: bool = True) -> Outcome:
    """Run what is missing, write the folder, return the table and the path of the figure."""
    dataset = adult(data, num_train=config.rows, progress=progress, verify=verify)
    runs = compute(config, out, dataset, progress=progress)
    rows = [
        {"sampler": label} | {name: at_end(mine, value)[0] for name, value in CURVES.items()}
        for label, mine in runs.items()
    ]
    figure, axes = new_figure(1, 2, width=4.8, height=3.4)
    for axis, name in zip(axes.flat, ("|mean covariance|", "max |covariance|"), strict=True):
        lines = {label: curve(mine, CURVES[name]) for label, mine in runs.items()}
        draw_curves(axis, lines, f"{name} over the particles", log_x=False)
    largest = {label: at_end(mine, CURVES["max |covariance|"])[0] for label, mine in runs.items()}
    ratio = largest["control_langevin"] / largest["o_langevin"]
    return rows, write_folder(
        out / "moment",
        title="Every draw, or their mean",
        config={"experiment": "moment", **asdict(config), **origin(dataset, runs)},
        metrics={"curves": as_metrics(runs, CURVES)},
        rows=rows,
        figure=figure,
        notes=[
            f"At the end, mean over {config.seeds} seeds, on the training rows. The largest |covariance| of a particle is "
            f"{ratio:.0f} times as large where only the mean is constrained.",
        ],
    )
