"""The paper's study of α and β (its appendix): O-Langevin on the cubic from off the set, η = 0.01.

α ∈ {1, 10, 100} at β = 0, and β ∈ {0, ½, 1} at α = 1. Larger α lands sooner and stays closer; larger β lands sooner from
far away and stays farther off. At α = 1 the pull αη = 0.01 is weak: hundreds of iterations to land.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ogradient.experiments import options
from ogradient.experiments.folder import write_folder
from ogradient.experiments.synthetic import distance_to_truth, noise_floor
from ogradient.keys import as_key
from ogradient.plots import draw_curves, new_figure
from ogradient.problems import cubic
from ogradient.run.sample import sample
from ogradient.samplers import o_langevin

FLOAT64 = True
STEP_SIZE = 0.01
STUDIES = {"alpha": [(1.0, 0.0), (10.0, 0.0), (100.0, 0.0)], "beta": [(1.0, 0.0), (1.0, 0.5), (1.0, 1.0)]}


@dataclass(frozen=True)
class Config:
    """Everything that decides the result."""

    chains: int = options.chains(500)
    steps: int = options.option(8000, "Iterations.", min=1)
    seed: int = options.seed()


def run(config: Config, out: Path, *, progress: bool = True) -> tuple[list[dict[str, Any]], Path]:
    """Run all settings, write the folder, return the table and the path of the figure."""
    known = cubic()
    distance = distance_to_truth(known, config.seed)
    floor = noise_floor(known, distance, config.chains, config.seed)
    starts = known.start_off(as_key(config.seed + 3), config.chains)
    first_g = float(np.abs(jax.vmap(known.problem.equality_value)(starts)).mean())
    curves: dict[tuple[float, float], dict[str, list[float]]] = {}
    rows = []
    for alpha, beta in dict.fromkeys(pair for study in STUDIES.values() for pair in study):
        algorithm = o_langevin(known.problem, STEP_SIZE, alpha=alpha, beta=beta)
        trace = sample(
            config.seed,
            known.problem,
            starts,
            algorithm=algorithm,
            num_warmup=0,
            num_samples=config.steps,
            progress=progress,
        )
        at = sorted(set(np.geomspace(1, config.steps, 60).astype(int)))
        mean_g = np.abs(trace.sample_stats["equality"]).mean(axis=(0, 2))
        energy = [distance(trace["x"][:, t - 1]) for t in at]
        start_energy = distance(np.asarray(starts))
        curves[alpha, beta] = {
            "iterations": [0, *map(int, at)],
            "energy": [start_energy, *energy],
            "violation": [first_g, *(float(mean_g[t - 1]) for t in at)],
        }
        late = mean_g[-max(config.steps // 10, 1) :]
        below = np.flatnonzero(mean_g < 0.1)
        rows.append(
            {
                "alpha": alpha,
                "beta": beta,
                "energy distance": float(
                    np.mean([distance(trace["x"][:, i]) for i in range(-min(5, config.steps), 0)])
                ),
                "exact draws": floor[1],
                "mean |g|": float(late.mean()),
                "mean |g| < 0.1 at": int(below[0]) + 1 if below.size else None,
            }
        )
    figure = draw(curves, floor)
    metrics = {
        "noise_floor": dict(zip(("q05", "mean", "q95"), floor, strict=True)),
        "curves": [{"alpha": a, "beta": b, **curve} for (a, b), curve in curves.items()],
        "table": rows,
    }
    path = write_folder(
        out / "hyperparameters" / "o_langevin",
        title="Hyperparameters of O-Langevin",
        config={"experiment": "hyperparameters", "step_size": STEP_SIZE, **asdict(config)},
        metrics=metrics,
        rows=rows,
        figure=figure,
        notes=["From off the set. |g| is averaged over chains, and in the table over the last tenth of the run."],
    )
    return rows, path


def draw(curves: dict[tuple[float, float], dict[str, list[float]]], floor: tuple[float, float, float]) -> Any:
    """Energy distance and mean |g|, a column for α and one for β."""
    figure, axes = new_figure(2, 2)
    for column, (name, study) in enumerate(STUDIES.items()):
        fixed = "β = 0" if name == "alpha" else "α = 1"
        label = lambda pair, n=name: f"α = {pair[0]:g}" if n == "alpha" else f"β = {pair[1]:g}"
        for row, (key, ylabel) in enumerate((("energy", "energy distance"), ("violation", "mean |g|"))):
            lines = {
                label(p): (np.maximum(curves[p]["iterations"], 0.7), np.maximum(curves[p][key], 1e-4)) for p in study
            }
            draw_curves(
                axes[row, column],
                lines,
                ylabel=ylabel,
                title=f"{fixed}, starting off the set",
                floor=floor if key == "energy" else None,
            )
    return figure
