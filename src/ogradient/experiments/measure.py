"""What `measure` means: one torus as the zero set of two functions, sampled in both measures.

Form a, (√(x²+y²)−R)² + z² − r², has ‖∇g‖ constant on the set, and form b, (‖x‖²+R²−r²)² − 4R²(x²+y²), has not. The Hausdorff law
is uniform by area whichever function describes the set. The conditional law p(x | g(x) = 0) asks how thick the layer |g| < ε
is: in form b it is thinner on the outside, and the draws are uniform in the angle round the tube instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from ogradient.experiments import options
from ogradient.experiments.folder import Outcome, write_folder
from ogradient.keys import as_key
from ogradient.plots import COLOURS, new_figure
from ogradient.problem import Measure
from ogradient.problems import torus
from ogradient.run.sample import sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOAT64 = True
FORMS = ("a", "b")


@dataclass(frozen=True)
class Config:
    """Everything that decides the result."""

    chains: int = options.chains(100)
    samples: int = options.samples(200)
    seed: int = options.seed()


def run(config: Config, out: Path, *, progress: bool = True) -> Outcome:
    """Sample, write the folder, return the table and the path of the figure."""
    draws, rows, traces = {}, [], {}
    for form in FORMS:
        for measure in get_args(Measure):
            known = torus(form, measure)
            starts = known.start_off(as_key(config.seed + 1), config.chains)
            trace = sample(config.seed, known.problem, starts, num_samples=config.samples, progress=progress)
            label = f"form {form}, {measure}"
            draws[label], traces[f"trace-{form}-{measure}"] = trace["x"].reshape(-1, 3), trace
            moment = known.moments["cos φ"]
            means = np.asarray(trace.apply(moment.function)).mean(axis=1)
            row = {"g": form, "measure": measure, "E cos φ": float(means.mean())}
            row |= {"±": float(means.std(ddof=1) / np.sqrt(len(means))), "truth": moment.value}
            row["max |g|"] = float(np.abs(trace.sample_stats["equality"]).max())
            rows.append(row)
    return rows, write_folder(
        out / "measure",
        title="One torus, two functions, two measures",
        config={"experiment": "measure", **asdict(config)},
        rows=rows,
        figure=draw(draws),
        notes=[(__doc__ or "").partition("\n\n")[2].strip()],
        traces=traces,
    )


def draw(draws: Mapping[str, np.ndarray]) -> Figure:
    """Draws (n, 3) on a torus of radii 1 and ½ from above, and the density of the angle φ round the tube (0 is outside)."""
    figure, axes = new_figure(2, len(draws), width=3.0, height=2.7)
    angles = np.linspace(-np.pi, np.pi, 200)
    by_area = (1 + 0.5 * np.cos(angles)) / (2 * np.pi)
    for column, (label, points) in enumerate(draws.items()):
        above, below = axes[:, column]
        above.scatter(points[::4, 0], points[::4, 1], s=1.5, color=COLOURS[column % 2], alpha=0.5, linewidths=0)
        above.set_aspect("equal")
        above.set_axis_off()
        above.set_title(label, fontsize=10)
        phi = np.arctan2(points[:, 2], np.hypot(points[:, 0], points[:, 1]) - 1)
        below.hist(phi, bins=40, range=(-np.pi, np.pi), density=True, color=COLOURS[column % 2], alpha=0.5)
        below.plot(angles, by_area, color="0.25", linewidth=1, label="by area")
        below.axhline(1 / (2 * np.pi), color="0.25", linewidth=1, linestyle=":", label="uniform in φ")
        below.set_ylim(0, 0.32)
        below.set_xticks([-np.pi, 0, np.pi], ["inside", "outside", "inside"])
        below.set_xlabel("angle φ round the tube", fontsize=8)
        below.legend(fontsize=7, frameon=False, loc="upper right")
    return figure
