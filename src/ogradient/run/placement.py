"""Where the states of a run live: on one device, in memory that the run may use again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ogradient.chunk import large, run_chunk, run_chunk_in_place, with_companion


class Placement:
    """All chains on one device.

    A lone chain gets a silent companion, since XLA may round a batch of one differently from a larger one; an ensemble is a
    batch already. Large states are computed in place, in a copy that is the run's own: not in the user's starts, nor in
    memory of NumPy.
    """

    def __init__(self, states: Any, *, ensemble: bool) -> None:
        self.num_chains = jax.tree.leaves(states)[0].shape[0]
        self.in_place = large(states)
        states = with_companion(states) if self.num_chains == 1 and not ensemble else states
        self.states = jax.tree.map(jnp.copy, states) if self.in_place else states

    def run_chunk(self, *arguments: Any) -> Any:
        """The compiled chunk. In place, it uses up the states that it is given."""
        return (run_chunk_in_place if self.in_place else run_chunk)(*arguments)

    def rows(self, rows: Any, kept: int) -> Any:
        """The first so many rows of all chains, on the host."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:kept, : self.num_chains].copy(), rows)

    def chains(self, tree: Any) -> Any:
        """What there is one of for each chain, on the host; None if an error inside a chunk took it."""
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(tree)):
            return None
        return jax.tree.map(lambda leaf: np.asarray(leaf)[: self.num_chains], tree)
