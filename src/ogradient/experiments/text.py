"""Numbers in tables, on the terminal and in reports."""

from __future__ import annotations

from typing import Any


def format_number(value: Any) -> str:
    """Numbers as people read them; everything else as it is."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else str(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
