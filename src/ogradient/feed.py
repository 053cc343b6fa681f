"""Batches that the user's `batch_fn(step)` makes, brought to the device ahead of the steps that use them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax import dtypes

from ogradient.problem import Problem

FEED_BYTES = 128 * 2**20  # of batches of one chunk; twice that is on the device while the next ones are fetched
FEED_STEPS = 64


def batch_fn_of(problem: Problem) -> Callable[[int], Any] | None:
    """The user's batch_fn, where the data come from one."""
    return None if problem.source is None else problem.source.model.batch_fn


class Feed:
    """Batches by absolute step, stacked for one chunk at a time; the next chunk is fetched in a thread meanwhile."""

    def __init__(self, problem: Problem) -> None:
        batch_fn = batch_fn_of(problem)
        assert batch_fn is not None
        self.batch_fn, self.like = batch_fn, jax.tree.map(np.asarray, problem.source.data)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(self.like))
        self.length = int(np.clip(FEED_BYTES // max(size, 1), 1, FEED_STEPS))
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ogradient-feed")
        self.ready: dict[int, Any] = {}
        self.fetching: Future | None = None

    def take(self, begin: int, steps: int, total: int) -> Any:
        """Batches of steps `begin` to `begin + steps`, first axis `length` whatever `steps` is (one compilation)."""
        if self.fetching is not None:
            self.fetching.result()  # so that one thread at a time calls batch_fn, and each step once
        end = begin + steps
        self._fetch(begin, end)
        batches = [self.ready.pop(step) for step in range(begin, end)] or [self.like]
        self.fetching = self.pool.submit(self._fetch, end, min(end + self.length, total))
        short = self.length - len(batches)
        return jax.device_put(jax.tree.map(lambda *leaves: np.stack([*leaves, *[leaves[-1]] * short]), *batches))

    def close(self) -> None:
        """Fetch no more."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            if step not in self.ready:
                self.ready[step] = self._batch(step)

    def _batch(self, step: int) -> Any:
        batch = jax.tree.map(np.asarray, self.batch_fn(step))
        describe = lambda tree: jax.tree.map(
            lambda leaf: (leaf.shape, str(dtypes.canonicalize_dtype(leaf.dtype))), tree
        )
        if describe(batch) != describe(self.like):
            raise ValueError(
                f"batch_fn({step}) differs in structure, shape or dtype from batch_fn(0): {describe(batch)} instead of "
                f"{describe(self.like)}. Every batch must look the same; drop a last, smaller one."
            )
        return batch
