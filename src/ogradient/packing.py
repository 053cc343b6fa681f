"""Positions of many arrays, held as one array while a chunk of steps runs.

Samplers compute with flat coordinates: each step puts the arrays of a position side by side, and cuts the new one up again. A
compiler drops both where the loop carries flat coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ogradient.problem.functions import Position


@dataclass(frozen=True)
class Packing:
    """How a position of several arrays is one array: in the order of `ravel_pytree`, along the last axis."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, position: Position, leading: int) -> Packing | None:
        """That of positions with so many leading axes; None where there is nothing to gain: one array, or several dtypes."""
        leaves, structure = jax.tree.flatten(position)
        if len(leaves) < 2 or len({leaf.dtype for leaf in leaves}) > 1:
            return None
        return cls(structure, tuple(leaf.shape[leading:] for leaf in leaves))

    def pack(self, position: Position) -> Array:
        """Positions with any leading axes as one array (..., d)."""
        leaves = jax.tree.leaves(position)
        lead = leaves[0].shape[: leaves[0].ndim - len(self.shapes[0])]
        return jnp.concatenate([leaf.reshape(*lead, -1) for leaf in leaves], axis=-1)

    def unpack(self, flat: Array) -> Position:
        """The way back."""
        ends, leaves = 0, []
        for shape in self.shapes:
            begin, ends = ends, ends + math.prod(shape)
            leaves.append(flat[..., begin:ends].reshape(*flat.shape[:-1], *shape))
        return jax.tree.unflatten(self.structure, leaves)
