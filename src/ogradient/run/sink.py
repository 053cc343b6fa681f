"""Where kept draws go: the memory of the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class Memory:
    """Rows of draws, in pieces as chunks deliver them; the first axis of every leaf is the draw, the second the chain."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def __len__(self) -> int:
        return len(self.pieces)

    def append(self, rows: Any) -> None:
        """Keep the rows of a chunk."""
        self.pieces.append(rows)

    def draws(self, pieces: int) -> Any:
        """The first so many pieces as one, with the chains first; None if there are none."""
        if pieces == 0:
            return None
        return jax.tree.map(lambda *leaves: np.moveaxis(np.concatenate(leaves), 0, 1), *self.pieces[:pieces])
