"""What `measure` means: one torus as the zero set of two functions, sampled in both measures.

Form a, (√(x²+y²)−R)² + z² − r², has ‖∇g‖ constant on the set, and form b, (‖x‖²+R²−r²)² − 4R²(x²+y²), has not. The Hausdorff law
is uniform by area whichever function describes the set. The conditional law p(x | g(x) = 0) asks how thick the layer |g| < ε
is: in form b it is thinner on the outside, and the draws are uniform in the angle round the tube instead.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ogradient.experiments.folder import write_folder
from ogradient.keys import as_key
from ogradient.plots import COLOURS, draw_tori
from ogradient.problem import Measure
from ogradient.problems import torus
from ogradient.runner import sample

FORMS = ("a", "b")


@dataclass(frozen=True)
class Config:
    """Everything that decides the result."""

    chains: int = 100
    samples: int = 200
    seed: int = 0


def run(config: Config, out: Path, *, progress: bool = True) -> tuple[list[dict[str, Any]], Path]:
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
            rows.append(
                {
                    "g": form,
                    "measure": measure,
                    "E cos φ": float(means.mean()),
                    "±": float(means.std(ddof=1) / np.sqrt(len(means))),
                    "truth": moment.value,
                    "max |g|": float(np.abs(trace.sample_stats["equality"]).max()),
                }
            )
    path = write_folder(
        out / "measure",
        title="One torus, two functions, two measures",
        config={"experiment": "measure", **asdict(config)},
        metrics={"table": rows},
        rows=rows,
        figure=draw_tori(draws, area=lambda phi: (1 + 0.5 * np.cos(phi)) / (2 * np.pi), colours=COLOURS),
        notes=[(__doc__ or "").partition("\n\n")[2].strip()],
        traces=traces,
    )
    return rows, path
