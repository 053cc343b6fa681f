"""What a run leaves behind: `trace.zarr`, `metrics.json`, `config.json`, `figure.png`, `report.html`, written atomically."""

from __future__ import annotations

import base64
import html
import io
import json
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ogradient._version import __version__
from ogradient.experiments.text import format_number
from ogradient.extras import require
from ogradient.storage import write_atomically
from ogradient.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Every experiment draws a figure in the end. Better to miss matplotlib now than after an hour of sampling.
require("matplotlib", "the experiments need", "experiments")

Rows = Sequence[Mapping[str, Any]]
Outcome = tuple[list[dict[str, Any]], Path]  # what an experiment returns: the rows of its table, the path of its figure


def write_folder(
    folder: Path,
    *,
    title: str,
    config: Mapping[str, Any],
    rows: Rows,
    figure: Figure,
    metrics: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    traces: Mapping[str, Trace] | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a run's folder and return the path of its figure.

    Args:
        folder: created if need be.
        title: of the report.
        config: every setting, enough to repeat the run; versions and device are added.
        rows: a short table, one mapping per row. It stands in the report, and in the metrics as "table".
        figure: saved as PNG and embedded in the report.
        metrics: the numbers behind the figure, JSON-able.
        notes: sentences a reader of the report should know.
        traces: by file name without `.zarr`.
        extra: other files by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (extra or {}).items():
        write_atomically(folder / name, content)
    settings = {
        **config,
        "ogradient": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "precision": str(jnp.result_type(float)),
    }
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(folder / "config.json", json.dumps(settings, indent=1))
    write_atomically(folder / "metrics.json", json.dumps({"table": rows, **(metrics or {})}, indent=1))
    write_atomically(folder / "figure.png", buffer.getvalue())
    write_atomically(folder / "report.html", render_report(title, settings, rows, buffer.getvalue(), notes))
    for name, trace in (traces or {}).items():
        trace.save(folder / f"{name}.zarr", overwrite=True)
    return folder / "figure.png"


def render_report(title: str, config: Mapping[str, Any], rows: Rows, png: bytes, notes: Sequence[str]) -> str:
    """One self-contained HTML page: table, figure, notes, settings."""
    escape = lambda value: html.escape(format_number(value))
    header = "".join(f"<th>{escape(key)}</th>" for key in (rows[0] if rows else {}))
    kind = lambda value: ' class="number"' if re.match(r"[-−+]?\d", format_number(value)) else ""
    cells = lambda row: "".join(f"<td{kind(value)}>{escape(value)}</td>" for value in row.values())
    body = "".join(f"<tr>{cells(row)}</tr>" for row in rows)
    settings = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in config.items())
    remarks = "".join(f"<p>{escape(note)}</p>" for note in notes)
    image = base64.b64encode(png).decode()
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}"
        "table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:left}"
        ".number{white-space:nowrap}.wide{overflow-x:auto}.wide th,.wide td{padding:.25em .6em}"
        "td{overflow-wrap:anywhere}.wide td{overflow-wrap:normal}.wide td:first-child{min-width:11em}"
        "img{max-width:100%}details{margin-top:2em}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
        f'<h1>{escape(title)}</h1><div class="wide"><table><tr>{header}</tr>{body}</table></div>{remarks}'
        f'<img alt="{escape(title)}" src="data:image/png;base64,{image}">'
        f"<details><summary>Settings</summary><table>{settings}</table></details></html>\n"
    )
