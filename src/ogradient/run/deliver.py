"""What a run made, handed over: with a warning for what was noticed, or as the `trace` of the error that ended it."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ogradient.problem.feed import BatchError
from ogradient.run.checkpoint import CheckpointError
from ogradient.run.loop import Run
from ogradient.status import SamplingError, Status, warn
from ogradient.trace import Trace


def deliver(trace: Trace, run: Run, interrupted: bool, throw: bool, *, kept: bool) -> Trace:
    """The trace, or an error that has it. Where the call is `kept` in a checkpoint, what earlier ones met is its own."""
    counts = trace.status_counts if kept else run.counts
    bad = np.flatnonzero(counts[:, Status.NON_FINITE])
    if bad.size:
        message = (
            f"{int(counts[:, Status.NON_FINITE].sum()):,} of {counts.sum():,} steps, in {bad.size} of "
            f"{run.num_chains} chains (the first is chain {bad[0]}), were NON_FINITE: {Status.NON_FINITE.remedy}."
        )
        if throw:
            there = "the draws so far are in the exception's .trace" if trace.num_draws else "no draw was kept yet"
            raise SamplingError(f"{message} Stopped after step {run.done:,}; {there}.", trace)
        warn(message, RuntimeWarning)
    if run.failure is not None:
        _fail(run.failure, trace, run.done, kept)
    for status in (Status.RANK_DEFICIENT, Status.COLLAPSED):
        # Where no step at all was OK, the rows depend everywhere, and that was said at the door.
        always = status == Status.RANK_DEFICIENT and not counts[:, Status.OK].any()
        if (count := int(counts[:, status].sum())) and not always:
            message = f"{count:,} of {counts.sum():,} steps were {status.name}: {status.remedy}."
            warn(message)
    if trace.obeys == "exact":
        still = np.flatnonzero(~trace.sample_stats["is_accepted"].any(axis=1))
        if still.size and trace.num_draws >= 100:
            warn(
                f"{still.size} of {run.num_chains} chains (the first is chain {still[0]}) never moved: every move was rejected. "
                "Use a smaller step size."
            )
    if trace.num_draws == 0:
        raise SamplingError(
            f"interrupted after step {run.done:,} of the warm-up, before any draw was kept. "
            f"{_again('error.trace', kept)}, with the settings that were found.",
            trace,
        )
    if interrupted:
        warn(f"interrupted: {trace.num_draws:,} draws per chain were kept. {_again('trace', kept)}.", RuntimeWarning)
    return trace


def _again(trace: str, kept: bool) -> str:
    """How to go on."""
    return "The same call goes on from its checkpoint" if kept else f"og.sample(..., resume={trace}) goes on from there"


def _fail(failure: BaseException, trace: Trace, done: int, kept: bool) -> NoReturn:
    """Raise what ended the run, with the draws before it; an error before the first draw is raised as it is."""
    known = isinstance(failure, BatchError)
    if trace.num_draws == 0 and not known:
        raise failure
    text = str(failure) if known else f"{type(failure).__name__}: {str(failure) or 'no message'}."
    there = "no draw was kept yet"
    if trace.num_draws:
        there = "the draws so far are in the exception's .trace"
        # What cannot be written to a checkpoint says itself how to go on.
        silent = trace.state is None or isinstance(failure, CheckpointError)
        again = _again("error.trace", kept)
        there += "" if silent else f", and {again[0].lower() + again[1:]}"
    raise SamplingError(f"{text} Stopped after step {done:,}; {there}.", trace) from (
        failure.__cause__ if known else failure
    )
