"""`og.sample`: a host loop over compiled chunks of steps, mapped over chains.

The key of step t of chain c is fold_in(fold_in(key, c), t), with t counted from the very first step, so neither chunk
sizes nor resuming change a draw. Between chunks the host shows progress, collects draws and looks at statuses.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient._version import __version__
from ogradient.checks import bring_inside, check_positions, check_start, land_starts, warn_if_separate
from ogradient.choose import check_name, choose
from ogradient.diagnostics.mixing import warn_if_unmixed
from ogradient.feed import BatchError, Feed, batch_fn_of
from ogradient.posterior import describe_data, with_batch
from ogradient.problem import Position, Problem
from ogradient.samplers import SAMPLERS
from ogradient.samplers.base import SamplingAlgorithm, describe, is_ensemble, is_exact, plain_settings, step_for
from ogradient.status import SamplingError, Status, warn
from ogradient.stein import over_particles
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
        seed: an integer, or a typed key from `jax.random.key`.
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
            orthogonal group): kept in `sample_stats["component"]`, with a warning when chains stay in different ones.
        throw: raise `SamplingError` (with the draws so far) when a chain meets non-finite numbers; False warns and goes on.

    Returns:
        A `Trace` with arrays of axes (chain, draw, ...), or (ensemble, draw, particle, ...).

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> starts = jax.random.normal(jax.random.key(1), (8, 2))
    >>> trace = og.sample(0, problem, starts, algorithm=og.o_langevin(problem, 0.01), num_samples=500)
    >>> trace["x"].shape, bool(trace.summary().loc["|equality[0]|", "mean"] < 0.05)
    ((8, 500, 2), True)
    """
    for name, value, least in (
        ("num_warmup", num_warmup, 0),
        ("num_samples", num_samples, 1),
        ("thinning", thinning, 1),
    ):
        if not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, or None; got {chunk_size!r}.")
    key = _as_key(seed)
    if resume is None:
        done = 0
        chosen, states = _begin(problem, initial_positions, algorithm, key, tolerance, progress)
    else:
        if not isinstance(resume, Trace):
            raise ValueError(f"resume must be a trace; got {type(resume).__name__}. og.load(path) reads a saved one.")
        chosen, states, num_warmup, done = _continue(resume, problem, initial_positions, algorithm, key, thinning)
        thinning = resume.provenance["thinning"]

    run = _Run(problem, chosen, key, num_warmup, thinning, states, done)
    # Whether the settings were found here, so that no one blames the user for them.
    run.tuned = resume.provenance.get("tuned", False) if resume else algorithm is None or isinstance(algorithm, str)
    total = num_warmup + ((resume.num_draws if resume else 0) + num_samples) * thinning
    started = time.perf_counter()
    try:
        interrupted = run.advance(total, chunk_size, progress, stop_when_bad=throw)
    finally:
        run.close()
    trace = run.trace(seed, resume, seconds=time.perf_counter() - started)
    trace = _deliver(trace, run, interrupted, throw)
    if component_fn is not None:
        trace.sample_stats["component"] = np.asarray(trace.apply(component_fn))
    if not warn_if_separate(trace) and not trace.ensemble:
        warn_if_unmixed(trace.variables, problem, trace.position)
    return trace


class _Run:
    """The moving parts of one call: states of all chains, draws collected on the host, statuses counted."""

    def __init__(
        self,
        problem: Problem,
        algorithm: SamplingAlgorithm,
        key: Array,
        warmup: int,
        thinning: int,
        states: Any,
        done: int,
    ) -> None:
        self.problem, self.algorithm, self.key = problem, algorithm, key
        self.warmup, self.thinning, self.done = warmup, thinning, done
        self.num_chains = jax.tree.leaves(states)[0].shape[0]
        # XLA may round a batch of one differently from a larger one: a lone chain gets a silent companion. An ensemble
        # is a batch already.
        lonely = self.num_chains == 1 and not is_ensemble(algorithm.step)
        self.states = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), states) if lonely else states
        self.feed = None if batch_fn_of(problem) is None else Feed(problem)
        self.failure: BatchError | None = None
        self.tuned = False
        self.rows: list[Any] = []
        self.counts = np.zeros((self.num_chains, len(Status)), np.int64)

    def advance(self, total: int, chunk_size: int | None, progress: bool, *, stop_when_bad: bool) -> bool:
        """Run to absolute step `total`; True if the user interrupted."""
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
            try:
                while self.done < total:
                    longest = max(self.warmup - self.done, 0) + (capacity - 1) * self.thinning
                    steps = min(length, longest, total - self.done)
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
                        return False
            except KeyboardInterrupt:
                return True
            except BatchError as failure:
                self.failure = failure
        return False

    def close(self) -> None:
        """Stop fetching batches ahead."""
        if self.feed is not None:
            self.feed.close()

    def _chunk(self, steps: int, capacity: int) -> float | None:
        before = _rows_before(self.done, self.warmup, self.thinning)
        scalars = (jnp.int32(v) for v in (self.done, steps, self.warmup, self.thinning))
        batches = None if self.feed is None else self.feed.batches
        arguments = (self.key, self.states, *scalars, batches)
        states, rows, counts = _run_chunk(self.problem, self.algorithm.step, capacity, *arguments)
        jax.block_until_ready(states)
        self.states, self.done = states, self.done + steps
        kept = _rows_before(self.done, self.warmup, self.thinning) - before
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[:kept, : self.num_chains].copy(), rows)
        self.counts += np.asarray(counts)[: self.num_chains]
        if kept:
            self.rows.append(rows)
        value = rows["stats"].get("equality")
        return None if value is None or value.size == 0 else float(np.abs(value).max())

    def _capacity(self) -> int:
        seen = self.problem if self.feed is None else with_batch(self.problem, self.problem.source.data)
        row = jax.eval_shape(partial(_step_and_observe, seen, self.algorithm.step, self.key), self.states, jnp.int32(0))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(row))
        return int(np.clip(CHUNK_BYTES // max(size, 1), 1, CHUNK_ROWS)) + 1  # one more for a row begun, not finished

    def trace(self, seed: int | Array, resume: Trace | None, *, seconds: float) -> Trace | None:
        """All draws so far, those of the resumed trace first; None if there are none."""
        pieces = (
            [jax.tree.map(lambda *leaves: np.moveaxis(np.concatenate(leaves), 0, 1), *self.rows)] if self.rows else []
        )
        counts = self.counts
        if resume is not None:
            position = in_order_of(resume, self.states.position)
            pieces.insert(0, {"position": position, "stats": resume.sample_stats})
            counts, seconds = counts + resume.status_counts, seconds + resume.provenance["seconds"]
        if not pieces:
            return None
        draws = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1) if len(leaves) > 1 else leaves[0], *pieces)
        name, _ = describe(self.algorithm)
        provenance = {
            "algorithm": name,
            "settings": plain_settings(self.algorithm),
            "tuned": self.tuned,
            "ensemble": is_ensemble(self.algorithm.step),
            "seed": int(seed) if isinstance(seed, int | np.integer) else None,
            "key": np.asarray(jax.random.key_data(self.key)).tolist(),
            "measure": self.problem.measure,
            "data": describe_data(self.problem),
            "num_warmup": self.warmup,
            "thinning": self.thinning,
            "num_steps": self.done,
            "seconds": round(seconds, 3),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"ogradient": __version__, "jax": jax.__version__, "python": platform.python_version()},
            "device": jax.devices()[0].device_kind,
        }
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[: self.num_chains], self.states)
        return Trace(draws["position"], draws["stats"], counts, provenance, state, self.problem)


@partial(jax.jit, static_argnums=(1, 2))
def _run_chunk(
    problem: Problem,
    step: Callable,
    capacity: int,
    key: Array,
    states: Any,
    begin: Array,
    steps: Array,
    warmup: Array,
    thinning: Array,
    batches: Any,
) -> tuple[Any, Any, Array]:
    """Steps `begin` to `begin + steps` of all chains: their states, the rows kept, and statuses counted per chain.

    All counts and the data of the problem are arguments of the compiled function, so one compilation serves a run, and any
    later run of the same problem and algorithm. `batches` are those of the steps, and of which step the first is, where a
    batch_fn brings them.
    """
    first = _rows_before(begin, warmup, thinning)

    def body(i: Array, carry: Any) -> Any:
        states, rows, counts = carry
        t = begin + i
        kept = (t >= warmup) & ((t + 1 - warmup) % thinning == 0)
        current = problem
        if batches is not None:
            current = with_batch(problem, jax.tree.map(lambda leaf: leaf[t - batches[0]], batches[1]))
        states, row, status = _step_and_observe(current, step, key, states, t, kept)
        # Every step writes its row; the last step of a row wins, so nothing is branched on or stored twice.
        at = _rows_before(t, warmup, thinning) - first
        rows = jax.tree.map(lambda all, one: lax.dynamic_update_index_in_dim(all, one, at, 0), rows, row)
        return states, rows, counts + jax.nn.one_hot(status, len(Status), dtype=jnp.int32)

    seen = problem if batches is None else with_batch(problem, problem.source.data)
    _, row, _ = jax.eval_shape(partial(_step_and_observe, seen, step, key), states, begin)
    rows = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row)
    counts = jnp.zeros((jax.tree.leaves(states)[0].shape[0], len(Status)), jnp.int32)
    return lax.fori_loop(0, steps, body, (states, rows, counts))


def _step_and_observe(
    problem: Problem, step: Callable, key: Array, states: Any, t: Array, kept: Array | bool = True
) -> tuple[Any, dict[str, Any], Array]:
    """One step of all chains: states, what a kept draw leaves in the trace, and statuses.

    A draw leaves its position, its constraint values, and the info's other numbers per chain. Constraint values are
    computed here, for kept draws only: the compiler then drops the info's own.
    """
    chains = jnp.arange(jax.tree.leaves(states)[0].shape[0])
    keys = jax.vmap(lambda c: jax.random.fold_in(jax.random.fold_in(key, c), t))(chains)
    ensemble = is_ensemble(step)
    together = None if ensemble else problem.chains_together
    current = step_for(step, problem)
    states, info = over_particles(lambda argument: current(*argument), (keys, states), together)
    constraint = {}
    if problem.constrained:

        def value(key: Array, position: Position) -> dict[str, Array]:
            view = problem.view(key)  # the batch that the step saw
            return (jax.vmap(view.constraint_value) if ensemble else view.constraint_value)(position)

        values = lambda position: over_particles(lambda argument: value(*argument), (keys, position), together)
        zeros = lambda p: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(values, p))
        constraint = lax.cond(kept, values, zeros, states.position)
    fields = info._asdict() if hasattr(info, "_asdict") else {}
    numbers = {name: v for name, v in fields.items() if isinstance(v, jax.Array) and v.ndim == 1}
    status = fields.get("status", jnp.zeros(chains.shape, jnp.int32))
    return states, {"position": states.position, "stats": constraint | numbers}, status


def _rows_before(step: Any, warmup: Any, thinning: Any) -> Any:
    """How many rows are complete before an absolute step."""
    return (jnp.maximum(step - warmup, 0) if isinstance(step, jax.Array) else max(step - warmup, 0)) // thinning


def _as_key(seed: int | Array) -> Array:
    if isinstance(seed, int | np.integer):
        return jax.random.key(int(seed))
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.shape == ():
        return seed
    raise ValueError(f"seed must be an integer or one typed key from jax.random.key; got {seed!r}.")


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


def _continue(
    resume: Trace,
    problem: Problem,
    positions: Position,
    algorithm: SamplingAlgorithm | str | None,
    key: Array,
    thinning: int,
) -> tuple[SamplingAlgorithm, Any, int, int]:
    past = resume.provenance
    if problem.measure != past["measure"]:
        raise ValueError(
            f"resume continues a run in the {past['measure']} measure; the problem given has {problem.measure}."
        )
    if np.asarray(jax.random.key_data(key)).tolist() != past["key"]:
        raise ValueError(f"resume continues the run of seed {past['seed']}; pass the same seed (or key).")
    if thinning not in (1, past["thinning"]):
        raise ValueError(f"resume continues a run with thinning={past['thinning']}; got thinning={thinning}.")
    if algorithm is None or algorithm == past["algorithm"]:  # its name stands for the settings of the trace
        settings = {k: np.asarray(v) if isinstance(v, list) else v for k, v in past["settings"].items()}
        if past["algorithm"] not in SAMPLERS or resume.ensemble or isinstance(settings["step_size"], str):
            raise ValueError(
                f"resume continues a run of {past['algorithm']} with {past['settings']}; pass that algorithm again."
            )
        algorithm = SAMPLERS[past["algorithm"]](problem, **settings)
    if isinstance(algorithm, str):
        raise ValueError(f"resume continues a run of {past['algorithm']}; got algorithm={algorithm!r}.")
    name, now = describe(algorithm)[0], plain_settings(algorithm)
    if name != past["algorithm"] or now != past["settings"]:
        raise ValueError(
            f"resume continues a run of {past['algorithm']} with {past['settings']}; the algorithm given is {name} with {now}."
        )
    if positions is None and past.get("custom_containers"):
        raise ValueError(
            "the position was a container that is not saved (a NamedTuple, say): give initial_positions as well."
        )
    if past.get("data", (data := describe_data(problem))) != data:
        raise ValueError(
            f"resume continues a run on the data {past['data']}; the problem given has {data}. To go on with other data, start a "
            "run from the last positions instead."
        )
    draws = resume.position if positions is None else in_order_of(resume, positions)
    last = jax.tree.map(lambda leaf: leaf[:, -1], draws)
    _check_same_constraint(resume, problem, last)
    wanted = jax.eval_shape(jax.vmap(algorithm.init), last)
    leaves, expected = jax.tree.leaves(resume.state), jax.tree.leaves(wanted)
    found = [jnp.asarray(leaf) for leaf in leaves]
    if [(leaf.shape, leaf.dtype) for leaf in found] != [(leaf.shape, leaf.dtype) for leaf in expected] or any(
        now.dtype != leaf.dtype for now, leaf in zip(found, leaves, strict=True)
    ):
        raise ValueError(
            "the state in the trace does not fit the algorithm. Was the run made in another precision? "
            "(jax_enable_x64 must be as it was.)"
        )
    return algorithm, jax.tree.unflatten(jax.tree.structure(wanted), found), past["num_warmup"], past["num_steps"]


def _check_same_constraint(resume: Trace, problem: Problem, last: Position) -> None:
    """The constraint at the last draws must be what the trace says, or it is another one."""
    if problem.stochastic or not problem.constrained:
        return
    value = jax.vmap(problem.constraint_value)
    now = jax.jit(jax.vmap(value) if resume.ensemble else value)(jax.tree.map(jnp.asarray, last))
    for kind, values in now.items():
        past = resume.sample_stats.get(kind)
        if past is None or past[:, -1].shape != values.shape:
            raise ValueError(f"resume continues a run whose {kind} had another shape, or none; pass the same problem.")
        change = float(np.max(np.abs(past[:, -1] - np.asarray(values)) / (1 + np.abs(past[:, -1]))))
        if not change <= np.sqrt(np.finfo(values.dtype).eps):
            raise ValueError(
                f"{kind} at the last draws of the trace differs from what it was by {change:.2g}: resume needs the problem, and "
                "the data, of the run it continues."
            )


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
        kept = "no draw was kept yet"
        if trace is not None:
            kept = "the draws so far are in the exception's .trace, and og.sample(..., resume=error.trace) goes on from there"
        raise SamplingError(f"{run.failure} Stopped after step {run.done:,}; {kept}.", trace) from run.failure.__cause__
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


def _progress_bar(total: int, done: int, label: str, show: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=done, desc=label, unit="step", disable=not show, delay=1.0, leave=False)
