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
Curve = tuple[Any, ...]  # iterations, values and, if there are several runs, standard errors: any sequences


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


def draw_scores(
    axes: Sequence[Axes],
    exact: np.ndarray,
    scores: Mapping[str, tuple[np.ndarray, Mapping[str, tuple[float, float, float, float]]]],
    *,
    colours: Mapping[str, str],
    title: str = "",
) -> None:
    """Draws over exact ones, in the first two coordinates, and the errors of moments (mean, error, truth, sd) in their sd."""
    left, right = axes
    second = exact[:, 1] if exact.shape[1] > 1 else np.linspace(0, 1, len(exact))
    left.scatter(exact[:, 0], second, s=14, color="0.8", linewidths=0, label="exact")
    for index, (name, (draws, moments)) in enumerate(scores.items()):
        other = draws[:, 1] if draws.shape[1] > 1 else np.linspace(0, 1, len(draws))
        left.scatter(draws[:, 0], other, s=4, color=colours[name], alpha=0.6, linewidths=0, label=name)
        at = np.arange(len(moments)) + 0.8 * (index - (len(scores) - 1) / 2) / len(scores)
        mean, error, truth, sd = np.array(list(moments.values())).T
        bars = 3 * np.nan_to_num(error) / sd
        right.errorbar((mean - truth) / sd, at, xerr=bars, fmt="o", markersize=4, color=colours[name], label=name)
    names = list(next(iter(scores.values()))[1])
    right.axvline(0, color="0.55", linewidth=1, linestyle="--", zorder=0)
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.set_xlabel("error in standard deviations of the law (bars: 3 Monte Carlo errors)", fontsize=8)
    left.set_xlabel("x₁", fontsize=9)
    left.set_ylabel("x₂" if exact.shape[1] > 1 else "draw", fontsize=9)
    left.set_title(title, fontsize=10)
    left.legend(fontsize=7, frameon=False, markerscale=2)


def draw_tori(
    draws: Mapping[str, np.ndarray], *, area: Callable[[np.ndarray], np.ndarray], colours: Sequence[str]
) -> Figure:
    """Draws (n, 3) on a torus of radii 1 and ½ from above, and the density of the angle φ round the tube (0 is outside)."""
    figure, axes = new_figure(2, len(draws), width=3.0, height=2.7)
    angles = np.linspace(-np.pi, np.pi, 200)
    for column, (label, points) in enumerate(draws.items()):
        above, below = axes[:, column]
        above.scatter(points[::4, 0], points[::4, 1], s=1.5, color=colours[column % 2], alpha=0.5, linewidths=0)
        above.set_aspect("equal")
        above.set_axis_off()
        above.set_title(label, fontsize=10)
        phi = np.arctan2(points[:, 2], np.hypot(points[:, 0], points[:, 1]) - 1)
        below.hist(phi, bins=40, range=(-np.pi, np.pi), density=True, color=colours[column % 2], alpha=0.5)
        below.plot(angles, area(angles), color="0.25", linewidth=1, label="by area")
        below.axhline(1 / (2 * np.pi), color="0.25", linewidth=1, linestyle=":", label="uniform in φ")
        below.set_ylim(0, 0.32)
        below.set_xticks([-np.pi, 0, np.pi], ["inside", "outside", "inside"])
        below.set_xlabel("angle φ round the tube", fontsize=8)
        below.legend(fontsize=7, frameon=False, loc="upper right")
    return figure


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


def draw_differences(rows: Sequence[Mapping[str, Any]], *, limit: float, bias: float) -> Figure:
    """Differences of means in standard deviations, a panel per task, with what Monte Carlo errors and bias allow in grey."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = new_figure(1, len(tasks), width=5.2, height=3.6)
    for axis, task in zip(axes[0], tasks, strict=True):
        mine = [row for row in rows if row["task"] == task]
        at = np.arange(len(mine))[::-1]
        errors = np.array([row["Monte Carlo error / sd"] for row in mine])
        axis.barh(at, 2 * (limit * errors + bias), left=-(limit * errors + bias), height=0.7, color="0.9")
        axis.errorbar(
            [row["difference / sd"] for row in mine], at, xerr=2 * errors, fmt="o", markersize=4, color=COLOURS[0]
        )
        axis.axvline(0, color="0.55", linewidth=1, linestyle="--")
        axis.set_yticks(at, [row["functional"] for row in mine], fontsize=7)
        axis.set_xlabel("difference of means / sd (bars: 2 Monte Carlo errors)", fontsize=8)
        axis.set_title(task, fontsize=10)
    return figure
