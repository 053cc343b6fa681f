"""The paper's study of α and β (its appendix): O-Langevin on the cubic from off the set, η = 0.01.

α ∈ {1, 10, 100} at β = 0, and β ∈ {0, ½, 1} at α = 1. Larger α lands sooner and stays closer; larger β lands sooner from
far away and stays farther off. At α = 1 the pull αη = 0.01 is weak: hundreds of iterations to land.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from ogradient.experiments import options
from ogradient.experiments.folder import Outcome, write_folder
from ogradient.experiments.synthetic import Floor, Truth, truth_of_cubic
from ogradient.keys import as_key
from ogradient.plots import draw_curves, new_figure
from ogradient.run.sample import sample
from ogradient.samplers import o_langevin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOAT64 = True
STEP_SIZE = 0.01
STUDIES = {"alpha": [(1.0, 0.0), (10.0, 0.0), (100.0, 0.0)], "beta": [(1.0, 0.0), (1.0, 0.5), (1.0, 1.0)]}
Curve = dict[str, list[float]]  # iterations, energy and violation


@dataclass(frozen=True)
class Config:
    """Everything that decides the result."""

    chains: int = options.chains(500)
    steps: int = options.option(8000, "Iterations.", min=1)
    seed: int = options.seed()


def run(config: Config, out: Path, *, progress: bool = True) -> Outcome:
    """Run all settings, write the folder, return the table and the path of the figure."""
    truth = truth_of_cubic(config.chains, config.seed)
    starts = truth.known.start_off(as_key(config.seed + 3), config.chains)
    pairs = dict.fromkeys(pair for study in STUDIES.values() for pair in study)
    results = {pair: follow(truth, starts, *pair, config, progress) for pair in pairs}
    rows = [row for _, row in results.values()]
    curves = {pair: curve for pair, (curve, _) in results.items()}
    return rows, write_folder(
        out / "hyperparameters" / "o_langevin",
        title="Hyperparameters of O-Langevin",
        config={"experiment": "hyperparameters", "step_size": STEP_SIZE, **asdict(config)},
        metrics={
            "noise_floor": truth.floor._asdict(),
            "curves": [{"alpha": alpha, "beta": beta, **curve} for (alpha, beta), curve in curves.items()],
        },
        rows=rows,
        figure=draw(curves, truth.floor),
        notes=["From off the set. |g| is averaged over chains, and in the table over the last tenth of the run."],
    )


def follow(
    truth: Truth, starts: Array, alpha: float, beta: float, config: Config, progress: bool
) -> tuple[Curve, dict[str, Any]]:
    """One pair of α and β: energy distance and mean |g| along the run, and the row of the table."""
    known, distance, floor = truth
    algorithm = o_langevin(known.problem, STEP_SIZE, alpha=alpha, beta=beta)
    settings: dict[str, Any] = {"num_warmup": 0, "num_samples": config.steps, "progress": progress}
    trace = sample(config.seed, known.problem, starts, algorithm=algorithm, **settings)
    iterations = sorted(set(np.geomspace(1, config.steps, 60).astype(int)))
    mean_g = np.abs(trace.sample_stats["equality"]).mean(axis=(0, 2))
    first_g = np.abs(jax.vmap(known.problem.equality_value)(starts)).mean()
    curve: Curve = {
        "iterations": [0, *map(int, iterations)],
        "energy": [distance(np.asarray(starts)), *(distance(trace["x"][:, t - 1]) for t in iterations)],
        "violation": [float(first_g), *(float(mean_g[t - 1]) for t in iterations)],
    }
    below = np.flatnonzero(mean_g < 0.1)
    row = {
        "alpha": alpha,
        "beta": beta,
        "energy distance": float(np.mean([distance(trace["x"][:, i]) for i in range(-min(5, config.steps), 0)])),
        "exact draws": floor.mean,
        "mean |g|": float(mean_g[-max(config.steps // 10, 1) :].mean()),
        "mean |g| < 0.1 at": int(below[0]) + 1 if below.size else None,
    }
    return curve, row


def draw(curves: Mapping[tuple[float, float], Curve], floor: Floor) -> Figure:
    """Energy distance and mean |g|, a column for α and one for β."""
    figure, axes = new_figure(2, 2)
    columns = {
        "alpha": (lambda alpha, _: f"α = {alpha:g}", "β = 0"),
        "beta": (lambda _, beta: f"β = {beta:g}", "α = 1"),
    }
    for column, (name, (label, fixed)) in enumerate(columns.items()):
        for row, (key, ylabel) in enumerate((("energy", "energy distance"), ("violation", "mean |g|"))):
            lines = {
                label(*pair): (np.maximum(curves[pair]["iterations"], 0.7), np.maximum(curves[pair][key], 1e-4))
                for pair in STUDIES[name]
            }
            title, band = f"{fixed}, starting off the set", floor if key == "energy" else None
            draw_curves(axes[row, column], lines, ylabel, title, floor=band)
    return figure
