"""`og.sample`: check the starts, tune or land where that is asked for, run the loop, and deliver what it made.

Whatever ends a run, the chunks before it are delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from jax import Array

from ogradient.chunk import start
from ogradient.diagnostics.mixing import warn_if_unmixed
from ogradient.interrupts import Interrupts
from ogradient.keys import as_key
from ogradient.problem import Problem
from ogradient.problem.feed import BatchError
from ogradient.problem.functions import Position
from ogradient.run.components import check_component, label_components
from ogradient.run.coordinates import sample_in_free_coordinates
from ogradient.run.loop import Run
from ogradient.run.resume import algorithm_of, continue_run
from ogradient.run.separate import warn_if_separate
from ogradient.samplers.base import BoundStep, SamplingAlgorithm, kernel_of, settings_of
from ogradient.start.inspect import check_start
from ogradient.start.landing import bring_inside, land_starts
from ogradient.start.positions import check_positions, many_starts
from ogradient.status import SamplingError, Status, warn
from ogradient.trace import Trace
from ogradient.warmup.choose import check_name, choose

NUM_WARMUP = 1000  # steps, where nothing else is known


def sample(
    seed: int | Array,
    problem: Problem,
    initial_positions: Position | Callable[[Array], Position] = None,
    *,
    algorithm: SamplingAlgorithm | Trace | str | None = None,
    num_chains: int | None = None,
    spread: Any = None,
    num_warmup: int | None = None,
    num_samples: int = 1000,
    thinning: int = 1,
    tolerance: float | None = None,
    target_accept: float | None = None,
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
            back its structure to a loaded trace of custom containers. With `num_chains` one start for all; or a function
            of a key that draws one.
        algorithm: `og.o_langevin(problem, ...)` and its kin, or any algorithm under BlackJAX's contract. The names "chmc",
            "clangevin", "o_kinetic" and "o_langevin" have their settings tuned; None tunes `chmc`, exact on the set, or O-kinetic
            where that accepts too little. What was chosen is printed, and is in `trace.provenance["settings"]`. A trace stands
            for its own algorithm with its settings, for this problem: tune once, sample often (see also `og.tune`).
        num_chains: how many chains begin at one start, or are drawn from a function (8). Particles, for ensemble samplers.
        spread: standard deviation of Gaussian noise that is added to one start, for each chain: a number, or a pytree like a
            position. None: all chains begin at the same place, and part in warm-up.
        num_warmup: steps before the first draw; their draws are not kept (use 0 to keep everything). None is 1,000. Where the
            settings of an exact sampler are tuned here, which takes chains some hundred transitions, None is twenty
            autocorrelation times more, between 100 and 1,000.
        num_samples: draws to keep per chain.
        thinning: steps per kept draw; the others are never stored.
        tolerance: the largest mean |g| of a row of the constraint that a tuned O-Langevin or O-kinetic may have; its step size
            follows. Only where the settings are tuned here; `chmc` stays at rounding level whatever it is.
        target_accept: acceptance rate that warm-up tunes the step size of an exact sampler to; None is 0.85, or 0.8 with
            inequalities. Only where the settings are tuned here.
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
    num_warmup = None if num_warmup is None else _whole("num_warmup", num_warmup, 0)
    num_samples, thinning = _whole("num_samples", num_samples, 1), _whole("thinning", thinning, 1)
    chunk_size = None if chunk_size is None else _whole("chunk_size", chunk_size, 1)
    key = as_key(seed)
    if resume is None:
        num_chains = None if num_chains is None else _whole("num_chains", num_chains, 1)
        ensemble = hasattr(algorithm, "step") and kernel_of(algorithm).ensemble
        initial_positions = many_starts(key, initial_positions, num_chains, spread, ensemble=ensemble)
    if problem.support is not None:
        return sample_in_free_coordinates(
            sample,
            seed,
            problem,
            initial_positions,
            algorithm=algorithm,
            resume=resume,
            component_fn=component_fn,
            num_warmup=num_warmup,
            num_samples=num_samples,
            thinning=thinning,
            tolerance=tolerance,
            target_accept=target_accept,
            progress=progress,
            chunk_size=chunk_size,
            throw=throw,
        )
    if isinstance(algorithm, Trace):
        algorithm = algorithm_of(algorithm, problem)
    if resume is None:
        done = 0
        chosen, states, enough = _begin(problem, initial_positions, algorithm, key, tolerance, target_accept, progress)
        num_warmup = enough if num_warmup is None else num_warmup
    else:
        chosen, states, num_warmup, done = continue_run(resume, problem, initial_positions, algorithm, key, thinning)
        thinning = resume.provenance["thinning"]
    if component_fn is not None:
        check_component(component_fn, states.position, kernel_of(chosen).ensemble)

    run = Run(problem, chosen, seed, key, num_warmup, thinning, states, done)
    # Whether the settings were found here, so that no one blames the user for them.
    run.tuned = resume.provenance.get("tuned", False) if resume else algorithm is None or isinstance(algorithm, str)
    total = num_warmup + ((resume.num_draws if resume else 0) + num_samples) * thinning
    with Interrupts() as interrupts:  # from here on Ctrl-C ends the run, and loses nothing that it kept
        started, interrupted = time.perf_counter(), False
        try:
            with interrupts.allowed():
                run.advance(total, chunk_size, progress, interrupts, stop_when_bad=throw)
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
    target_accept: float | None,
    progress: bool,
) -> tuple[SamplingAlgorithm, Any, int]:
    """Check the starts, tune where that is asked for, land where the algorithm needs it: algorithm, states, steps of warm-up."""
    if positions is None:
        raise ValueError("initial_positions is missing: give starts with the chains as their first axis.")
    if algorithm is None or isinstance(algorithm, str):
        check_name(algorithm)
        positions = check_positions(problem, positions)
        limits = {"tolerance": tolerance, "target_accept": target_accept}
        found = choose(problem, positions, key, algorithm, progress=progress, **limits)
        states = start(kernel_of(found.algorithm), found.positions)
        return found.algorithm, states, found.found.get("num_warmup", NUM_WARMUP)
    kernel = kernel_of(algorithm)
    positions = check_positions(problem, positions, ensemble=kernel.ensemble)
    if isinstance(algorithm.step, BoundStep) and algorithm.step.problem is not problem:
        raise ValueError(
            "the algorithm was built for another problem than the one given; pass the same object to both."
        )
    if tolerance is not None:
        raise ValueError(
            "tolerance is for settings that are tuned here: pass algorithm='o_kinetic' or 'o_langevin', or none."
        )
    if target_accept is not None:
        raise ValueError("target_accept is for settings that are tuned here: pass algorithm='chmc', or none.")
    every_draw = kernel.obeys in ("exact", "near")  # is to obey, not a mean over particles
    constrained = every_draw or kernel.obeys == "mean"
    if kernel.obeys == "unknown" and problem.constrained:
        warn(
            f"nothing is known of the algorithm {kernel.name}: starts are left where they are, and whether its draws obey the "
            "constraint is only reported. The samplers of this library land and check; pass og.chmc(problem, ...) itself, say, "
            "not a function around its step."
        )
    positions = bring_inside(problem, positions, ensemble=kernel.ensemble) if every_draw else positions
    settings = settings_of(algorithm)
    check_start(problem, positions, settings, constrained=constrained, every_draw=every_draw, ensemble=kernel.ensemble)
    positions = land_starts(problem, positions) if kernel.obeys == "exact" else positions
    return algorithm, start(kernel, positions), NUM_WARMUP


def _deliver(trace: Trace, run: Run, interrupted: bool, throw: bool) -> Trace:
    counts = run.counts
    bad = np.flatnonzero(counts[:, Status.NON_FINITE])
    if bad.size:
        message = (
            f"{int(counts[:, Status.NON_FINITE].sum()):,} of {counts.sum():,} steps, in {bad.size} of "
            f"{run.num_chains} chains (the first is chain {bad[0]}), were NON_FINITE: {Status.NON_FINITE.remedy}."
        )
        if throw:
            kept = "the draws so far are in the exception's .trace" if trace.num_draws else "no draw was kept yet"
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
            "og.sample(..., resume=error.trace) goes on from there, with the settings that were found.",
            trace,
        )
    if interrupted:
        warn(
            f"interrupted: {trace.num_draws:,} draws per chain were kept. og.sample(..., resume=trace) goes on from there.",
            RuntimeWarning,
        )
    return trace


def _fail(failure: BaseException, trace: Trace, done: int) -> NoReturn:
    """Raise what ended the run, with the draws before it; an error before the first draw is raised as it is."""
    known = isinstance(failure, BatchError)
    if trace.num_draws == 0 and not known:
        raise failure
    text = str(failure) if known else f"{type(failure).__name__}: {str(failure) or 'no message'}."
    kept = "no draw was kept yet"
    if trace.num_draws:
        kept = "the draws so far are in the exception's .trace"
        kept += ", and og.sample(..., resume=error.trace) goes on from there" if trace.state is not None else ""
    raise SamplingError(f"{text} Stopped after step {done:,}; {kept}.", trace) from (
        failure.__cause__ if known else failure
    )
