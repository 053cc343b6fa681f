"""Figures from tables and draws. Every function returns a matplotlib `Figure`; nothing is shown or saved here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
Curve = tuple[Any, Any]  # iterations and values, any sequences


def new_figure(rows: int, columns: int, *, width: float = 4.0, height: float = 3.2) -> tuple[Figure, np.ndarray]:
    """A figure and its axes as a (rows, columns) array, independent of any global plotting state."""
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
    *,
    ylabel: str,
    title: str = "",
    colours: Mapping[str, str] | None = None,
    log_x: bool = True,
    log_y: bool = True,
    floor: tuple[float, float, float] | None = None,
) -> None:
    """Named curves against the iteration; `floor` is (low, mean, high) of what exact draws would show."""
    if floor is not None:
        low, mean, high = floor
        axis.axhspan(low, high, color="0.9", zorder=0)
        axis.axhline(mean, color="0.55", linewidth=1, linestyle="--", zorder=1, label="exact draws (5–95 %)")
    for index, (name, (x, y)) in enumerate(curves.items()):
        colour = (colours or {}).get(name, COLOURS[index % len(COLOURS)])
        axis.plot(x, y, color=colour, linewidth=1.5, label=name)
    axis.set_xscale("log" if log_x else "linear")
    axis.set_yscale("log" if log_y else "linear")
    axis.set_xlabel("iteration", fontsize=9)
    axis.set_ylabel(ylabel, fontsize=9)
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=7, frameon=False)


def draw_samples(
    axis: Axes,
    logdensity: Callable[[np.ndarray, np.ndarray], Any],
    constraint: Callable[[np.ndarray, np.ndarray], Any],
    samples: Mapping[str, np.ndarray],
    *,
    limits: tuple[float, float, float, float],
    title: str = "",
    colours: Mapping[str, str] | None = None,
) -> None:
    """Two-dimensional draws over the density, with the curve g = 0."""
    x, y = np.meshgrid(np.linspace(limits[0], limits[1], 300), np.linspace(limits[2], limits[3], 300))
    density = np.exp(np.asarray(logdensity(x, y)))
    axis.contourf(x, y, density, levels=np.linspace(0.02, 1.0, 8) * density.max(), cmap="Greys", alpha=0.6, zorder=0)
    axis.contour(x, y, np.asarray(constraint(x, y)), levels=[0.0], colors="0.25", linewidths=1, zorder=1)
    axis.plot([], [], color="0.25", linewidth=1, label="g = 0")
    for index, (name, draws) in enumerate(samples.items()):
        colour = (colours or {}).get(name, COLOURS[index % len(COLOURS)])
        axis.scatter(draws[:, 0], draws[:, 1], s=6, color=colour, alpha=0.6, linewidths=0, label=name, zorder=2 + index)
    axis.set_xlim(limits[:2])
    axis.set_ylim(limits[2:])
    axis.set_xlabel("x₁", fontsize=9)
    axis.set_ylabel("x₂", fontsize=9)
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=7, frameon=False, loc="upper right")


def animate_samples(
    logdensity: Callable[[np.ndarray, np.ndarray], Any],
    constraint: Callable[[np.ndarray, np.ndarray], Any],
    frames: Sequence[np.ndarray],
    titles: Sequence[str],
    *,
    limits: tuple[float, float, float, float],
    milliseconds: int = 150,
) -> bytes:
    """Two-dimensional draws over the density, one picture per frame, as the bytes of a GIF. The last frame stays a while."""
    from io import BytesIO

    from PIL import Image

    figure, axes = new_figure(1, 1, width=3.6, height=2.8)
    axis = axes[0, 0]
    draw_samples(axis, logdensity, constraint, {"": frames[0]}, limits=limits)
    axis.get_legend().remove()
    dots, pictures = axis.collections[-1], []
    for points, title in zip(frames, titles, strict=True):
        dots.set_offsets(points)
        axis.set_title(title, fontsize=9)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        pictures.append(Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE, colors=64))
    durations = [milliseconds] * (len(pictures) - 1) + [2000]
    out = BytesIO()
    pictures[0].save(out, format="GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0)
    return out.getvalue()
