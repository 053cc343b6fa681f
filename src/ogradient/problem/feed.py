"""Batches that the user's `batch_fn(step)` makes, brought to the device ahead of the steps that use them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from contextvars import copy_context
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes
from jax.tree_util import keystr, tree_flatten_with_path

from ogradient.problem import Problem

FEED_BYTES = 128 * 2**20  # of batches of one lot; two lots are on the device, and a third is being filled on the host
FEED_STEPS = 64
SETTINGS = (  # of JAX, where a context manager sets them for one thread only
    *("enable_x64", "default_device", "default_matmul_precision", "default_prng_impl", "enable_custom_prng"),
    *("legacy_prng_key", "threefry_partitionable", "numpy_dtype_promotion", "numpy_rank_promotion"),
    *("debug_nans", "debug_infs"),
)


class BatchError(Exception):
    """A batch that cannot be used. The message names its step; the cause is the user's own error, if there was one."""


class Feed:
    """Batches by absolute step, in lots of `length`: while one is used, a thread makes the next and puts it on the device.

    The thread makes every batch once and in order, under the settings (of JAX, and context variables) of the caller.
    """

    def __init__(self, problem: Problem) -> None:
        assert problem.batch_fn is not None
        assert problem.data is not None
        self.batch_fn = problem.batch_fn
        leaves = jax.tree.leaves(problem.data.rows)
        self.structure: Any = jax.tree.structure(problem.data.rows)
        self.like = [(leaf.shape, leaf.dtype) for leaf in leaves]
        size = sum(leaf.nbytes for leaf in leaves)
        self.length = int(np.clip(FEED_BYTES // max(size, 1), 1, FEED_STEPS))
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ogradient-feed")
        self.stop, self.context = Event(), copy_context()
        self.settings = {name: getattr(jax.config, f"jax_{name}", None) for name in SETTINGS}
        self.coming: Future[tuple[Any, int, BatchError | None]] | None = None
        self.failure: BatchError | None = None

    def start(self, begin: int, total: int) -> None:
        """Fetch the batches of steps `begin` to `total`; until the first `left`, `batches` has shapes only."""
        self.end, self.total = begin, total
        self.batches = begin, self._on_device(self._room())
        self._fetch()

    def left(self, step: int) -> int:
        """How many steps from `step` on have their batches in `batches`, (first step, lot); waits for a new lot if none."""
        if step == self.end and self.failure is None:
            assert self.coming is not None
            lot, self.end, self.failure = self.coming.result()
            self.batches = step, lot
            self._fetch()
        if step == self.end and self.failure is not None:
            raise self.failure
        return self.end - step

    def close(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Fetch no more: returns when the one call of batch_fn under way is over, or when it is given up."""
        self.stop.set()
        self.pool.shutdown(wait=False, cancel_futures=True)
        while self.coming is not None and not self.coming.done() and not give_up():
            wait([self.coming], timeout=0.05)
        if self.coming is None or self.coming.done():
            self.pool.shutdown(wait=True)

    def _fetch(self) -> None:
        if self.failure is None and self.end < self.total:
            end = min(self.end + self.length, self.total)
            self.coming = self.pool.submit(self.context.run, self._lot, self.end, end)

    def _lot(self, begin: int, end: int) -> tuple[Any, int, BatchError | None]:
        """In the thread: the batches from `begin` on, the step after the last, and why it is not `end`."""
        rows, failure = self._room(), None
        with ExitStack() as stack:
            for name, value in self.settings.items():
                if hasattr(jax, name):  # which of them are public changes from version to version
                    stack.enter_context(getattr(jax, name)(value))
            for step in range(begin, end):
                if self.stop.is_set():
                    return None, begin, None
                try:
                    self._fill([leaf[step - begin] for leaf in rows], step)
                except BatchError as error:
                    end, failure = step, error
                    break
            return self._on_device(rows), end, failure

    def _fill(self, rows: list[np.ndarray], step: int) -> None:
        try:
            found, structure = tree_flatten_with_path(self.batch_fn(step))
            leaves = [(path, np.asarray(leaf)) for path, leaf in found]
        except BaseException as error:  # SystemExit too: it would end the thread, and with it the run
            raise BatchError(f"batch_fn({step}) failed with {type(error).__name__}: {error}.") from error
        shapes = [(leaf.shape, dtypes.canonicalize_dtype(leaf.dtype)) for _, leaf in leaves]
        if structure != self.structure or shapes != self.like:
            raise BatchError(
                f"batch_fn({step}) differs in structure, shape or dtype from batch_fn(0): {_describe(structure, shapes)} instead "
                f"of {_describe(self.structure, self.like)}. Every batch must look the same; drop a last, smaller one."
            )
        for row, (path, leaf) in zip(rows, leaves, strict=True):
            row[...] = leaf
            if jnp.issubdtype(row.dtype, np.inexact) and not (finite := np.isfinite(row)).all():
                bad = np.flatnonzero(~finite.reshape(len(row), -1).all(axis=1))
                raise BatchError(
                    f"batch_fn({step}){keystr(path)} has NaN or infinite values in {bad.size} of {len(row)} rows (the first is "
                    f"row {bad[0]}): drop or impute them first."
                )

    def _room(self) -> list[np.ndarray]:
        return [np.empty((self.length, *shape), dtype) for shape, dtype in self.like]

    def _on_device(self, rows: list[np.ndarray]) -> Any:
        return jax.device_put(jax.tree.unflatten(self.structure, rows))


def _describe(structure: Any, shapes: list[tuple[tuple[int, ...], Any]]) -> str:
    return f"{structure} of {', '.join(f'{dtype}{list(shape)}' for shape, dtype in shapes)}"
