"""The compiled part of a run: a chunk of steps of all chains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ogradient.keys import step_keys
from ogradient.posterior import with_batch
from ogradient.problem import Position, Problem
from ogradient.samplers.base import is_ensemble, step_for
from ogradient.status import Status
from ogradient.stein import over_particles

MOST_STEPS = 2**31 - 1  # of one chunk: devices count with 32 bits


@partial(jax.jit, static_argnums=(1, 2))
def run_chunk(
    problem: Problem,
    step: Callable,
    capacity: int,
    key: Array,
    states: Any,
    begin: Array,
    steps: Array,
    row_end: Array,
    thinning: Array,
    batches: Any,
) -> tuple[Any, Any, Array]:
    """`steps` steps of all chains: their states, the rows kept, and statuses counted per chain.

    `begin` is the lower word of the first step, for the keys. All other counts are relative to it, so that a run may be
    longer than 32 bits count: `row_end` is how many steps it takes to the end of the first row. Counts and the data of the
    problem are arguments of the compiled function, so one compilation serves a run, and any later run of the same problem and
    algorithm. `batches` are (the place of the first step in the lot, the lot), where a batch_fn brings them.
    """

    def body(i: Array, carry: Any) -> Any:
        states, rows, counts = carry
        past = i - row_end  # -1 is the last step of the first row
        kept = (past >= -1) & ((past + 1) % thinning == 0)
        current = problem
        if batches is not None:
            current = with_batch(problem, jax.tree.map(lambda leaf: leaf[batches[0] + i], batches[1]))
        states, row, status = step_and_observe(current, step, key, states, begin + i.astype(jnp.uint32), kept)
        # Every step writes its row; the last step of a row wins, so nothing is branched on or stored twice.
        at = jnp.maximum(1 + past // thinning, 0)
        rows = jax.tree.map(lambda all, one: lax.dynamic_update_index_in_dim(all, one, at, 0), rows, row)
        return states, rows, counts + jax.nn.one_hot(status, len(Status), dtype=jnp.int32)

    seen = problem if batches is None else with_batch(problem, problem.source.data)
    _, row, _ = jax.eval_shape(partial(step_and_observe, seen, step, key), states, begin)
    rows = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row)
    counts = jnp.zeros((jax.tree.leaves(states)[0].shape[0], len(Status)), jnp.int32)
    return lax.fori_loop(0, steps, body, (states, rows, counts))


def step_and_observe(
    problem: Problem, step: Callable, key: Array, states: Any, t: Array, kept: Array | bool = True
) -> tuple[Any, dict[str, Any], Array]:
    """One step of all chains: states, what a kept draw leaves in the trace, and statuses.

    A draw leaves its position, its constraint values, and the info's other numbers per chain. Constraint values are
    computed here, for kept draws only: the compiler then drops the info's own.
    """
    num_chains = jax.tree.leaves(states)[0].shape[0]
    keys = step_keys(key, num_chains, t)
    ensemble = is_ensemble(step)
    together = None if ensemble else problem.chains_together
    current = step_for(step, problem)
    before = getattr(states, "iteration", None)
    states, info = over_particles(lambda argument: current(*argument), (keys, states), together)
    if before is not None and jnp.issubdtype(before.dtype, jnp.integer):
        # Past 2³¹ the count that schedules look at would turn negative: it stays at the largest.
        full = before == jnp.iinfo(before.dtype).max
        states = states._replace(iteration=jnp.where(full, before, states.iteration))
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
    status = fields.get("status", jnp.zeros((num_chains,), jnp.int32))
    return states, {"position": states.position, "stats": constraint | numbers}, status


def rows_before(step: int, warmup: int, thinning: int) -> int:
    """How many rows are complete before an absolute step."""
    return max(step - warmup, 0) // thinning


def steps_to_row_end(step: int, warmup: int, thinning: int) -> int:
    """How many steps from an absolute step on complete the row that is being made, the warm-up before it included."""
    return max(warmup - step, 0) + thinning - max(step - warmup, 0) % thinning
