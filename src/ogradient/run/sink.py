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
        """The first so many pieces as one, with the chains first; None if there are none. The sink is empty then.

        Variable by variable, each of whose pieces is dropped as soon as it is part of the whole: large draws are in memory once.
        """
        if pieces == 0:
            return None
        structure = jax.tree.structure(self.pieces[0])
        columns = [list(column) for column in zip(*map(jax.tree.leaves, self.pieces[:pieces]), strict=True)]
        self.pieces = []
        whole = []
        while columns:
            whole.append(np.moveaxis(np.concatenate(columns.pop(0)), 0, 1))
        return jax.tree.unflatten(structure, whole)
