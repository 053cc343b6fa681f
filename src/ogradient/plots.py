"""What the figures of several experiments share. Nothing is shown or saved here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ogradient.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C", "#882255")
Curve = tuple[Any, ...]  # iterations, values and, if there are several runs, standard errors; any sequences


def new_figure(rows: int, columns: int, *, width: float = 4.0, height: float = 3.2) -> tuple[Figure, np.ndarray]:
    """A figure and its axes as a (rows, columns) array, independent of any global plotting state."""
    require("matplotlib", "figures need", "plots")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=150)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def draw_curves(
    axis: Axes,
    curves: Mapping[str, Curve],
    ylabel: str,
    title: str = "",
    *,
    colours: Mapping[str, str] | None = None,
    log_x: bool = True,
    log_y: bool = True,
    floor: tuple[float, float, float] | None = None,
    legend: bool = True,
) -> None:
    """Named curves against the iteration; `floor` is (low, mean, high) of what exact draws would show.

    A name with a comma in it is a variant of another curve, and dashed.
    """
    if floor is not None:
        low, mean, high = floor
        axis.axhspan(low, high, color="0.9", zorder=0)
        axis.axhline(mean, color="0.55", linewidth=1, linestyle="--", zorder=1, label="exact draws (5–95 %)")
    for index, (name, (x, y, *error)) in enumerate(curves.items()):
        colour = (colours or {}).get(name, COLOURS[index % len(COLOURS)])
        axis.plot(x, y, color=colour, linewidth=1.5, linestyle="--" if "," in name else "-", label=name)
        for e in error:
            axis.fill_between(x, np.asarray(y) - e, np.asarray(y) + e, color=colour, alpha=0.2, linewidth=0)
    axis.set_xscale("log" if log_x else "linear")
    axis.set_yscale("log" if log_y else "linear")
    axis.set_xlabel("iteration", fontsize=9)
    axis.set_ylabel(ylabel, fontsize=9)
    axis.set_title(title, fontsize=10)
    if legend:
        axis.legend(fontsize=7, framealpha=0.75, edgecolor="none")
