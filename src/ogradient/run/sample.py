"""`og.sample`: check the starts, tune or land where that is asked for, run the loop, and deliver what it made.

Whatever ends a run, the chunks before it are delivered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jax import Array

from ogradient.chunk import start
from ogradient.diagnostics.mixing import warn_if_unmixed
from ogradient.interrupts import Interrupts
from ogradient.keys import as_key
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.run.asked import asked_of, check_every, path_of
from ogradient.run.checkpoint import Checkpoint, CheckpointError
from ogradient.run.components import check_component, label_components
from ogradient.run.coordinates import sample_in_free_coordinates
from ogradient.run.deliver import deliver
from ogradient.run.loop import Run
from ogradient.run.resume import algorithm_of, continue_run
from ogradient.run.separate import warn_if_separate
from ogradient.samplers.base import BoundStep, SamplingAlgorithm, kernel_of, settings_of
from ogradient.start.inspect import check_start
from ogradient.start.landing import bring_inside, land_starts
from ogradient.start.positions import check_positions, many_starts
from ogradient.status import Status, warn
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
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
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
        checkpoint: a folder that the run is saved to, so that the same call goes on where a process ended (killed, SIGTERM,
            Ctrl-C, a full disk), tuning included, to the bits of an unbroken run. With more `num_samples` it goes on from the
            end; with as many as there are it returns them. A folder of another call is refused, with the difference.
        checkpoint_every: seconds from one save to the next; more where saving takes a twentieth of the time.
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
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
        )
    if isinstance(algorithm, Trace):
        algorithm = algorithm_of(algorithm, problem)
    options: dict[str, Any] = {
        "num_warmup": num_warmup,
        "thinning": thinning,
        "tolerance": tolerance,
        "target_accept": target_accept,
    }
    finish = partial(
        _sample,
        seed,
        key,
        problem,
        initial_positions,
        algorithm,
        **options,
        progress=progress,
        chunk_size=chunk_size,
        throw=throw,
        component_fn=component_fn,
    )
    if checkpoint is None:
        return finish(num_samples=num_samples, resume=resume, keep=None)
    if resume is not None:
        raise ValueError("checkpoint goes on by itself from what it finds in its folder; leave out resume.")
    asked = asked_of(problem, key, initial_positions, algorithm, **options)
    with Checkpoint(path_of(checkpoint), asked, check_every(checkpoint_every)) as keep:
        found = keep.trace(problem, initial_positions)
        left = num_samples - (0 if found is None else found.num_draws)
        if left < 0:
            raise ValueError(
                f"{keep.path} has {num_samples - left} draws already, more than num_samples={num_samples}: ask for at least as "
                "many, or give another path."
            )
        return finish(num_samples=left, resume=found, keep=keep)


def _sample(
    seed: int | Array,
    key: Array,
    problem: Problem,
    initial_positions: Position,
    algorithm: SamplingAlgorithm | str | None,
    *,
    num_warmup: int | None,
    num_samples: int,
    thinning: int,
    tolerance: float | None,
    target_accept: float | None,
    progress: bool,
    chunk_size: int | None,
    throw: bool,
    component_fn: Callable[[Position], Any] | None,
    resume: Trace | None,
    keep: Checkpoint | None,
) -> Trace:
    """`sample`, with all that was given looked at."""
    if resume is None:
        done, journal = 0, None if keep is None else keep.journal
        limits = {"tolerance": tolerance, "target_accept": target_accept}
        chosen, states, enough = _begin(problem, initial_positions, algorithm, key, limits, progress, journal)
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
    # From here on Ctrl-C ends the run, and loses nothing that it kept.
    with Interrupts(terminate=keep is not None) as interrupts:
        interrupted = False
        try:
            with interrupts.allowed():
                after_chunk = None if keep is None else keep.after_chunk
                # One that failed is as it was left, and one that was finished is not compiled again.
                failed = keep is not None and resume is not None and throw and resume.problems().get(Status.NON_FINITE)
                if not failed and (run.done < total or keep is None):
                    run.advance(total, chunk_size, progress, interrupts, stop_when_bad=throw, after_chunk=after_chunk)
        except KeyboardInterrupt:
            interrupted = True
        except BaseException as error:
            run.failure = error
        run.close(give_up=lambda: interrupts.waiting > 0)
        if keep is not None and not isinstance(run.failure, CheckpointError):
            try:
                keep.save(run)
            except Exception as error:
                run.failure = run.failure or error
        trace = run.trace(resume)
        try:
            trace = deliver(trace, run, interrupted, throw, kept=keep is not None)
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
    limits: dict[str, float | None],
    progress: bool,
    journal: Any,
) -> tuple[SamplingAlgorithm, Any, int]:
    """Check the starts, tune where that is asked for, land where the algorithm needs it: algorithm, states, steps of warm-up."""
    if positions is None:
        raise ValueError("initial_positions is missing: give starts with the chains as their first axis.")
    if algorithm is None or isinstance(algorithm, str):
        check_name(algorithm)
        positions = check_positions(problem, positions)
        found = choose(problem, positions, key, algorithm, progress=progress, journal=journal, **limits)
        states = start(kernel_of(found.algorithm), found.positions)
        return found.algorithm, states, found.found.get("num_warmup", NUM_WARMUP)
    kernel = kernel_of(algorithm)
    positions = check_positions(problem, positions, ensemble=kernel.ensemble)
    if isinstance(algorithm.step, BoundStep) and algorithm.step.problem is not problem:
        raise ValueError(
            "the algorithm was built for another problem than the one given; pass the same object to both."
        )
    if limits["tolerance"] is not None:
        raise ValueError(
            "tolerance is for settings that are tuned here: pass algorithm='o_kinetic' or 'o_langevin', or none."
        )
    if limits["target_accept"] is not None:
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
