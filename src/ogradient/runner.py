"""`og.sample`: a host loop over compiled chunks of steps, mapped over chains.

The key of step t of chain c is fold_in(fold_in(key, c), t), with t counted from the very first step, so neither chunk
sizes nor resuming change a draw. (Every 2³² steps t begins anew, with another key.) Between chunks the host shows progress,
collects draws and looks at statuses. Whatever ends a run, the chunks before it are delivered.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient._version import __version__
from ogradient.checks import bring_inside, check_positions, check_start, land_starts, warn_if_separate
from ogradient.choose import check_name, choose
from ogradient.chunk import MOST_STEPS, rows_before, run_chunk, step_and_observe, steps_to_row_end
from ogradient.components import check_component, label_components
from ogradient.diagnostics.mixing import warn_if_unmixed
from ogradient.feed import BatchError, Feed, batch_fn_of
from ogradient.interrupts import Interrupts
from ogradient.keys import as_key, split_step
from ogradient.posterior import describe_data, with_batch
from ogradient.problem import Position, Problem
from ogradient.resume import continue_run
from ogradient.samplers.base import SamplingAlgorithm, describe, is_ensemble, is_exact, plain_settings
from ogradient.status import SamplingError, Status, warn
from ogradient.trace import Trace, in_order_of

CHUNK_SECONDS = 0.5  # how long a chunk should take: the grain of progress and of Ctrl-C
CHUNK_BYTES = 32 * 2**20  # draws of one chunk that stay on the device,
CHUNK_ROWS = (
    4096  # and how many at most; it does not follow num_samples, so that runs of any length share a compilation
)


def sample(
    seed: int | Array,
    problem: Problem,
    initial_positions: Position = None,
    *,
    algorithm: SamplingAlgorithm | str | None = None,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    thinning: int = 1,
    tolerance: float | None = None,
    progress: bool = True,
    chunk_size: int | None = None,
    resume: Trace | None = None,
    throw: bool = True,
    component_fn: Callable[[Position], Any] | None = None,
) -> Trace:
    """Run chains and return their draws.

    Args:
        seed: a whole number of at least 0, of any size, or a typed key from `jax.random.key`.
        problem: what to sample.
        initial_positions: starts, with the chains as the first axis of every leaf; on the set or off it. For ensemble
            samplers (og.o_svgd, og.svgd) the axes are (ensembles, particles, ...). Not needed to resume, except to give
            back its structure to a loaded trace of custom containers.
        algorithm: `og.o_langevin(problem, ...)` and its kin, or any algorithm under BlackJAX's contract. The names "chmc",
            "clangevin" and "o_langevin" have their settings tuned; None tunes `chmc`, exact on the set, or O-Langevin where
            that accepts too little. What was chosen is printed, and is in `trace.provenance["settings"]`.
        num_warmup: steps before the first draw; their draws are not kept (use 0 to keep everything).
        num_samples: draws to keep per chain.
        thinning: steps per kept draw; the others are never stored.
        tolerance: the largest mean |g| of a row of the constraint that the tuned O-Langevin may have; its step size
            follows. Only where the settings are tuned here; `chmc` stays at rounding level whatever it is.
        progress: show a bar on runs over a second.
        chunk_size: steps per compiled call; None adapts it to half a second. It never changes a draw.
        resume: a trace to continue: `num_samples` more draws are appended to its own, with its warm-up and thinning. Pass the
            same seed, problem and algorithm.
        component_fn: a label of the part of the set a position is in, where the set is known to have several (det X > 0 on the
            orthogonal group): kept in `sample_stats["component"]`, with a warning when chains stay in different ones. Pass it
            again to resume. If it fails, that is a warning, and the labels are left out.
        throw: raise `SamplingError` (with the draws so far) when a chain meets non-finite numbers; False warns and goes on.

    Ctrl-C ends the run and returns the draws so far, with a warning. Any error that ends it after the first kept draw, in a
    `batch_fn` or for want of memory, is raised as a `SamplingError` whose `trace` has the draws, to go on from.

    Returns:
        A `Trace` with arrays of axes (chain, draw, ...), or (ensemble, draw, particle, ...).

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> starts = jax.random.normal(jax.random.key(1), (8, 2))
    >>> trace = og.sample(0, problem, starts, algorithm=og.o_langevin(problem, 0.01), num_samples=500)
    >>> trace["x"].shape, bool(trace.summary().loc["|equality[0]|", "mean"] < 0.05)
    ((8, 500, 2), True)
    """
    num_warmup = _whole("num_warmup", num_warmup, 0)
    num_samples, thinning = _whole("num_samples", num_samples, 1), _whole("thinning", thinning, 1)
    chunk_size = None if chunk_size is None else _whole("chunk_size", chunk_size, 1)
    key = as_key(seed)
    if resume is None:
        done = 0
        chosen, states = _begin(problem, initial_positions, algorithm, key, tolerance, progress)
    else:
        chosen, states, num_warmup, done = continue_run(resume, problem, initial_positions, algorithm, key, thinning)
        thinning = resume.provenance["thinning"]
    if component_fn is not None:
        check_component(component_fn, states.position, is_ensemble(chosen.step))

    run = _Run(problem, chosen, seed, key, num_warmup, thinning, states, done)
    # Whether the settings were found here, so that no one blames the user for them.
    run.tuned = resume.provenance.get("tuned", False) if resume else algorithm is None or isinstance(algorithm, str)
    total = num_warmup + ((resume.num_draws if resume else 0) + num_samples) * thinning
    with Interrupts() as interrupts:  # from here on Ctrl-C ends the run, and loses nothing that it kept
        started, interrupted = time.perf_counter(), False
        try:
            with interrupts.allowed():
                run.advance(total, chunk_size, progress, stop_when_bad=throw)
        except KeyboardInterrupt:
            interrupted = True
        except BaseException as error:
            run.failure = error
        run.close(give_up=lambda: interrupts.waiting > 0)
        trace = run.trace(resume, seconds=time.perf_counter() - started)
        try:
            trace = _deliver(trace, run, interrupted, throw)
            if component_fn is not None:
                label_components(trace, component_fn, interrupts)
            if resume is not None and (left := sorted(resume.sample_stats.keys() - trace.sample_stats.keys())):
                warn(
                    f"{', '.join(left)} in sample_stats of the resumed trace: left out, since steps do not make it.",
                    RuntimeWarning,
                )
            if not (warn_if_separate(trace) or trace.ensemble or interrupted):
                warn_if_unmixed(trace.variables, problem, trace.position)
            if interrupts.waiting and not interrupted:
                warn("Ctrl-C came when the draws were made already; all of them are in the trace.", RuntimeWarning)
        except Warning as warning:  # where the user has turned warnings into errors
            warning.trace = trace  # type: ignore[attr-defined]
            warning.add_note("The draws are in the exception's .trace.")
            raise
    return trace


class _Progress(NamedTuple):
    """How far a run has come."""

    states: Any  # of all chains, after the last step
    done: int  # steps, from the very first one on
    counts: np.ndarray  # of statuses, (chain, status)
    pieces: int  # of `_Run.rows` that were made by then


class _Run:
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
        self.problem, self.algorithm, self.key = problem, algorithm, key
        self.warmup, self.thinning = warmup, thinning
        self.num_chains = jax.tree.leaves(states)[0].shape[0]
        # Before the run: what a setting or the data cannot say of themselves is noticed while there is nothing to lose.
        self.about = {
            "algorithm": describe(algorithm)[0],
            "settings": plain_settings(algorithm),
            "ensemble": is_ensemble(algorithm.step),
            "seed": int(seed) if isinstance(seed, int | np.integer) else None,
            "key": np.asarray(jax.random.key_data(key)).tolist(),
            "measure": problem.measure,
            "data": describe_data(problem),
            "num_warmup": warmup,
            "thinning": thinning,
        }
        # XLA may round a batch of one differently from a larger one: a lone chain gets a silent companion. An ensemble
        # is a batch already.
        lonely = self.num_chains == 1 and not is_ensemble(algorithm.step)
        states = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), states) if lonely else states
        self.feed = None if batch_fn_of(problem) is None else Feed(problem)
        self.failure: BaseException | None = None
        self.tuned = False
        self.rows: list[Any] = []
        self.progress = _Progress(states, done, np.zeros((self.num_chains, len(Status)), np.int64), 0)

    @property
    def done(self) -> int:
        """Steps made, from the very first one on."""
        return self.progress.done

    @property
    def counts(self) -> np.ndarray:
        """Statuses of the steps of this call, (chain, status)."""
        return self.progress.counts

    def advance(self, total: int, chunk_size: int | None, progress: bool, *, stop_when_bad: bool) -> None:
        """Run to absolute step `total`; whatever is raised on the way, all chunks before it are kept."""
        name, settings = describe(self.algorithm)
        step_size = settings.get("step_size")
        label = name if step_size is None or callable(step_size) else f"{name}({step_size:.3g})"
        with _progress_bar(total, self.done, label, progress) as bar:
            bar.set_postfix_str("compiling")
            capacity = self._capacity()
            if self.feed is not None:
                self.feed.start(self.done, total)
            self._chunk(0, capacity)  # no step yet: it only compiles
            length = chunk_size or (32 if self.feed is None else self.feed.length)
            while self.done < total:
                longest = max(self.warmup - self.done, 0) + (capacity - 1) * self.thinning
                # A chunk has one key for all of its steps, which changes every 2³² steps.
                steps = min(length, longest, total - self.done, MOST_STEPS, 2**32 - self.done % 2**32)
                if self.feed is not None:
                    steps = min(steps, self.feed.left(self.done))
                started = time.perf_counter()
                largest = self._chunk(steps, capacity)
                if chunk_size is None and self.feed is None:
                    per_step = (time.perf_counter() - started) / steps
                    length = max(1, min(int(CHUNK_SECONDS / per_step), 8 * length))
                bad = int(self.counts[:, Status.NON_FINITE].sum())
                bar.set_postfix_str(
                    ("warm-up" if self.done < self.warmup else "sampling")
                    + ("" if largest is None else f", max |g| {largest:.2g}")
                    + (f", {bad} non-finite" if bad else "")
                )
                bar.update(steps)
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
        scalars = (jnp.int32(min(v, MOST_STEPS)) for v in (steps, row_end, self.thinning))
        batches = None
        if self.feed is not None:
            first, lot = self.feed.batches
            batches = jnp.int32(done - first), lot
        arguments = (key, states, begin, *scalars, batches)
        states, rows, more = run_chunk(self.problem, self.algorithm.step, capacity, *arguments)
        kept = rows_before(done + steps, self.warmup, self.thinning) - rows_before(done, self.warmup, self.thinning)
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[:kept, : self.num_chains].copy(), rows)
        counts = counts + np.asarray(more)[: self.num_chains]
        jax.block_until_ready(states)
        if kept:
            self.rows.append(rows)
        # One assignment: an interrupt finds the whole chunk, or nothing of it.
        self.progress = _Progress(states, done + steps, counts, pieces + bool(kept))
        value = rows["stats"].get("equality")
        return None if value is None or value.size == 0 else float(np.abs(value).max())

    def _capacity(self) -> int:
        seen = self.problem if self.feed is None else with_batch(self.problem, self.problem.source.data)
        observe = partial(step_and_observe, seen, self.algorithm.step, self.key)
        row = jax.eval_shape(observe, self.progress.states, jnp.uint32(0))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(row))
        return int(np.clip(CHUNK_BYTES // max(size, 1), 1, CHUNK_ROWS)) + 1  # one more for a row begun, not finished

    def trace(self, resume: Trace | None, *, seconds: float) -> Trace | None:
        """All draws so far, those of the resumed trace first; None if there are none."""
        states, done, counts, pieces = self.progress
        parts = [
            jax.tree.map(lambda *leaves: np.moveaxis(np.concatenate(leaves), 0, 1), *rows)
            for rows in [self.rows[:pieces]]
            if rows
        ]
        if resume is not None:
            parts.insert(0, {"position": in_order_of(resume, states.position), "stats": resume.sample_stats})
            counts, seconds = counts + resume.status_counts, seconds + resume.provenance["seconds"]
        if not parts:
            return None
        # A resumed trace may have numbers that steps do not make: labels of components, or what the user added.
        shared = set.intersection(*(set(part["stats"]) for part in parts))
        parts = [part | {"stats": {k: v for k, v in part["stats"].items() if k in shared}} for part in parts]
        draws = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1) if len(leaves) > 1 else leaves[0], *parts)
        provenance = self.about | {
            "tuned": self.tuned,
            "num_steps": done,
            "seconds": round(seconds, 3),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"ogradient": __version__, "jax": jax.__version__, "python": platform.python_version()},
            "device": jax.devices()[0].device_kind,
        }
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[: self.num_chains], states)
        return Trace(draws["position"], draws["stats"], counts, provenance, state, self.problem)


def _whole(name: str, value: Any, least: int) -> int:
    """A count that the user gave, as Python's own integer."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
    return int(value)


def _begin(
    problem: Problem,
    positions: Position,
    algorithm: SamplingAlgorithm | str | None,
    key: Array,
    tolerance: float | None,
    progress: bool,
) -> tuple[SamplingAlgorithm, Any]:
    """Check the starts, tune where that is asked for, land where the algorithm needs it: the algorithm and its states."""
    if positions is None:
        raise ValueError("initial_positions is missing: give starts with the chains as their first axis.")
    if algorithm is None or isinstance(algorithm, str):
        check_name(algorithm)
        positions = check_positions(problem, positions)
        algorithm, positions = choose(problem, positions, key, algorithm, tolerance=tolerance, progress=progress)
        return algorithm, jax.vmap(algorithm.init)(positions)
    ensemble, exact = is_ensemble(algorithm.step), is_exact(algorithm.step)
    positions = check_positions(problem, positions, ensemble=ensemble)
    if getattr(algorithm.step, "problem", problem) is not problem:
        raise ValueError(
            "the algorithm was built for another problem than the one given; pass the same object to both."
        )
    if tolerance is not None:
        raise ValueError("tolerance is for settings that are tuned here: pass algorithm='o_langevin', or none.")
    _, settings = describe(algorithm)
    every_draw = exact or "correction" in settings  # is to obey, not a mean over particles
    constrained = every_draw or "alpha" in settings
    positions = bring_inside(problem, positions, ensemble=ensemble) if every_draw else positions
    check_start(problem, positions, settings, constrained=constrained, every_draw=every_draw, ensemble=ensemble)
    return algorithm, jax.vmap(algorithm.init)(land_starts(problem, positions) if exact else positions)


def _deliver(trace: Trace | None, run: _Run, interrupted: bool, throw: bool) -> Trace:
    counts = run.counts
    bad = np.flatnonzero(counts[:, Status.NON_FINITE])
    if bad.size:
        message = (
            f"{int(counts[:, Status.NON_FINITE].sum()):,} of {counts.sum():,} steps, in {bad.size} of "
            f"{run.num_chains} chains (the first is chain {bad[0]}), were NON_FINITE: {Status.NON_FINITE.remedy}."
        )
        if throw:
            kept = "no draw was kept yet" if trace is None else "the draws so far are in the exception's .trace"
            raise SamplingError(f"{message} Stopped after step {run.done:,}; {kept}.", trace)
        warn(message, RuntimeWarning)
    if run.failure is not None:
        _fail(run.failure, trace, run.done)
    for status in (Status.RANK_DEFICIENT, Status.COLLAPSED):
        # Where no step at all was OK, the rows depend everywhere, and that was said at the door.
        always = status == Status.RANK_DEFICIENT and not counts[:, Status.OK].any()
        if (count := int(counts[:, status].sum())) and not always:
            message = f"{count:,} of {counts.sum():,} steps were {status.name}: {status.remedy}."
            warn(message)
    if trace is not None and "is_accepted" in trace.sample_stats:
        still = np.flatnonzero(~trace.sample_stats["is_accepted"].any(axis=1))
        if still.size and trace.num_draws >= 100:
            warn(
                f"{still.size} of {run.num_chains} chains (the first is chain {still[0]}) never moved: every move was rejected. "
                "Use a smaller step size."
            )
    if trace is None:
        raise SamplingError(f"interrupted after step {run.done:,} of the warm-up, before any draw was kept.")
    if interrupted:
        warn(
            f"interrupted: {trace.num_draws:,} draws per chain were kept. og.sample(..., resume=trace) goes on from there.",
            RuntimeWarning,
        )
    return trace


def _fail(failure: BaseException, trace: Trace | None, done: int) -> NoReturn:
    """Raise what ended the run, with the draws before it; an error before the first draw is raised as it is."""
    known = isinstance(failure, BatchError)
    if trace is None and not known:
        raise failure
    text = str(failure) if known else f"{type(failure).__name__}: {str(failure) or 'no message'}."
    kept = "no draw was kept yet"
    if trace is not None:
        kept = (
            "the draws so far are in the exception's .trace, and og.sample(..., resume=error.trace) goes on from there"
        )
    raise SamplingError(f"{text} Stopped after step {done:,}; {kept}.", trace) from (
        failure.__cause__ if known else failure
    )


def _progress_bar(total: int, done: int, label: str, show: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=done, desc=label, unit="step", disable=not show, delay=1.0, leave=False)
