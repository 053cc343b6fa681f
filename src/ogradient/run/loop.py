"""The host loop of a run: chunks of steps, progress, and draws handed to a sink.

The key of step t of chain c is fold_in(fold_in(key, c), t), with t counted from the very first step, so neither chunk
sizes nor resuming change a draw. (Every 2³² steps t begins anew, with another key.) Nothing comes to the host but kept draws and
counts of statuses.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from ogradient._version import __version__
from ogradient.chunk import (
    MOST_STEPS,
    arguments_of,
    capacity_of,
    row_shapes,
    rows_before,
    steps_to_row_end,
)
from ogradient.interrupts import Interrupts
from ogradient.keys import split_step
from ogradient.pace import Pace
from ogradient.problem import Problem
from ogradient.problem.feed import Feed
from ogradient.problem.fingerprint import fingerprint
from ogradient.progress import ProgressBar
from ogradient.run.placement import Placement
from ogradient.run.sink import Memory
from ogradient.samplers.base import (
    Kernel,
    SamplingAlgorithm,
    kernel_of,
    parameters_of,
    plain_settings,
    settings_of,
)
from ogradient.status import Status
from ogradient.trace import Trace, in_order_of

CHUNK_SECONDS = 0.5  # how long a chunk should take: the grain of progress and of Ctrl-C


class Progress(NamedTuple):
    """How far a run has come."""

    states: Any  # of all chains, after the last step
    done: int  # steps, from the very first one on
    counts: np.ndarray  # of statuses, (chain, status)
    pieces: int  # of `Run.sink` that were made by then


class Run:
    """The moving parts of one call: states of all chains, draws collected on the host, statuses counted."""

    def __init__(
        self,
        problem: Problem,
        algorithm: SamplingAlgorithm,
        seed: int | Array,
        key: Array,
        warmup: int,
        thinning: int,
        states: Any,
        done: int,
    ) -> None:
        self.problem, self.kernel, self.key = problem, kernel_of(algorithm), key
        self.warmup, self.thinning = warmup, thinning
        self.step_size = settings_of(algorithm).get("step_size")
        # Before the run: what a setting or the data cannot say of themselves is noticed while there is nothing to lose.
        self.about = {
            "algorithm": self.kernel.name,
            "settings": plain_settings(algorithm),
            "ensemble": self.kernel.ensemble,
            "obeys": self.kernel.obeys,
            "seed": int(seed) if isinstance(seed, int | np.integer) else None,
            "key": np.asarray(jax.random.key_data(key)).tolist(),
            "measure": problem.measure,
            "data": None if problem.data is None else problem.data.describe(),
            "functions": {name: fingerprint(function) for name, function in problem.functions.items()},
            "num_warmup": warmup,
            "thinning": thinning,
        }
        self.placement = Placement(states, ensemble=self.kernel.ensemble)
        states = self.placement.states
        self.parameters, self.pace = arguments_of(self.kernel, parameters_of(algorithm), states.position)
        self.feed = None if problem.batch_fn is None else Feed(problem)
        self.failure: BaseException | None = None
        self.tuned = False
        self.sink = Memory()
        self.started = time.perf_counter()
        self.progress = Progress(states, done, np.zeros((self.num_chains, len(Status)), np.int64), 0)

    @property
    def num_chains(self) -> int:
        """How many chains the user gave."""
        return self.placement.num_chains

    @property
    def done(self) -> int:
        """Steps made, from the very first one on."""
        return self.progress.done

    @property
    def counts(self) -> np.ndarray:
        """Statuses of the steps of this call, (chain, status)."""
        return self.progress.counts

    @property
    def seconds(self) -> float:
        """Since the run was made."""
        return time.perf_counter() - self.started

    def advance(
        self,
        total: int,
        chunk_size: int | None,
        progress: bool,
        interrupts: Interrupts,
        *,
        stop_when_bad: bool,
        after_chunk: Callable[[Run], None] | None = None,
    ) -> None:
        """Run to absolute step `total`; whatever is raised on the way, all chunks before it are kept.

        Ctrl-C waits for the end of a chunk, and of what is to be done after it.
        """
        with ProgressBar(total, self.done, self.kernel.name, self.step_size, show=progress) as bar:
            capacity = capacity_of(*self._fixed(), self.key, self.progress.states)
            if self.feed is not None:
                self.feed.start(self.done, total)
            with interrupts.held():
                self._chunk(0, capacity)  # no step yet: it only compiles
            length = chunk_size or (32 if self.feed is None else self.feed.length)
            while self.done < total:
                longest = max(self.warmup - self.done, 0) + (capacity - 1) * self.thinning
                # A chunk has one key for all of its steps, which changes every 2³² steps.
                steps = min(length, longest, total - self.done, MOST_STEPS, 2**32 - self.done % 2**32)
                if self.feed is not None:
                    steps = min(steps, self.feed.left(self.done))
                started = time.perf_counter()
                with interrupts.held():
                    largest = self._chunk(steps, capacity)
                    per_step = (time.perf_counter() - started) / steps
                    if after_chunk is not None:
                        after_chunk(self)
                if chunk_size is None and self.feed is None:
                    length = max(1, min(int(CHUNK_SECONDS / per_step), 8 * length))
                bad = int(self.counts[:, Status.NON_FINITE].sum())
                bar.update(steps, warmup=self.done < self.warmup, largest=largest, non_finite=bad)
                if bad and stop_when_bad:
                    return

    def close(self, give_up: Callable[[], bool]) -> None:
        """Stop fetching batches ahead."""
        if self.feed is not None:
            self.feed.close(give_up)

    def _chunk(self, steps: int, capacity: int) -> float | None:
        states, done, counts, pieces = self.progress
        key, begin = split_step(self.key, done)
        row_end = steps_to_row_end(done, self.warmup, self.thinning)
        scalars = (np.int32(min(v, MOST_STEPS)) for v in (steps, row_end, self.thinning))
        batches = None
        if self.feed is not None:
            first, lot = self.feed.batches
            batches = np.int32(done - first), lot
        problem, kernel, parameters, pace = self._fixed()
        arguments = (parameters, pace, key, states, begin, *scalars, batches)
        states, rows, more, _ = self.placement.run_chunk(problem, kernel, capacity, *arguments)
        kept = rows_before(done + steps, self.warmup, self.thinning) - rows_before(done, self.warmup, self.thinning)
        counts = counts + self.placement.chains(more)
        jax.block_until_ready(states)
        largest = None
        if kept:
            rows["stats"].pop("steering", None)
            rows = self.placement.rows(rows, kept)
            self.sink.append(rows)
            value = rows["stats"].get("equality")
            largest = None if value is None or value.size == 0 else float(np.abs(value).max())
        # One assignment: what ends a chunk midway finds all of it, or nothing.
        self.progress = Progress(states, done + steps, counts, pieces + bool(kept))
        return largest

    def _fixed(self) -> tuple[Problem, Kernel, dict[str, Any], Pace | None]:
        return self.problem, self.kernel, self.parameters, self.pace

    def trace(self, resume: Trace | None) -> Trace:
        """All draws so far, those of the resumed trace first. There may be none; the states are there to go on from."""
        states, _, counts, pieces = self.progress
        made, seconds = self.sink.draws(pieces), self.seconds
        parts = [] if made is None else [made]
        if resume is not None:
            parts.insert(0, {"position": in_order_of(resume, states.position), "stats": resume.sample_stats})
            counts, seconds = counts + resume.status_counts, seconds + resume.provenance["seconds"]
        if not parts:
            parts = [self.nothing()]
        # A resumed trace may have numbers that steps do not make: labels of components, or what the user added.
        shared = set.intersection(*(set(part["stats"]) for part in parts))
        parts = [part | {"stats": {k: v for k, v in part["stats"].items() if k in shared}} for part in parts]
        draws = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1) if len(leaves) > 1 else leaves[0], *parts)
        state = self.placement.chains(states)
        return Trace(draws["position"], draws["stats"], counts, self.provenance(seconds), state, self.problem)

    def provenance(self, seconds: float) -> dict[str, Any]:
        """How the draws so far were made."""
        return self.about | {
            "tuned": self.tuned,
            "num_steps": self.done,
            "seconds": round(seconds, 3),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "device": jax.devices()[0].device_kind,
        }

    def nothing(self) -> Any:
        """No draws, with the axes that draws would have."""
        row = row_shapes(*self._fixed(), self.key, self.progress.states)
        row["stats"].pop("steering", None)
        return jax.tree.map(lambda leaf: np.zeros((self.num_chains, 0, *leaf.shape[1:]), leaf.dtype), row)


def versions() -> dict[str, str]:
    """What a run is made with."""
    return {"ogradient": __version__, "jax": jax.__version__, "python": platform.python_version()}
