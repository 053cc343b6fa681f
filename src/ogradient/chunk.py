"""The compiled part of a run: a chunk of steps of all chains. Warm-up and run use the same one.

The problem's data, the parameters of the kernel and all counts are arguments of the compiled function, so one compilation serves
warm-up and run, and any later run with an equal kernel and equal functions on data of the same shapes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.compilation import compiled
from ogradient.keys import step_keys
from ogradient.mapping import chains_together, over_particles
from ogradient.pace import Pace, follow, own_steps
from ogradient.packing import Packing
from ogradient.problem import Problem
from ogradient.problem.functions import Position, dtype_of
from ogradient.problem.posterior import with_batch
from ogradient.samplers.base import Kernel
from ogradient.status import Status

MOST_STEPS = 2**31 - 1  # of one chunk: devices count with 32 bits
CHUNK_BYTES = 32 * 2**20  # draws of one chunk that stay on the device
# And how many at most. It does not follow num_samples, so that runs of any length share a compilation.
CHUNK_ROWS = 4096
IN_PLACE_BYTES = 2**26  # states from this size on have no second copy


@compiled(static_argnums=0)
def start(kernel: Kernel, positions: Position) -> Any:
    """The states of all chains at their positions."""
    return jax.vmap(kernel.init)(positions)


def with_companion(states: Any) -> Any:
    """Two chains in place of one: XLA may round a batch of one differently from a larger one."""
    return jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), states)


def many_steps(
    problem: Problem,
    kernel: Kernel,
    capacity: int,
    parameters: dict[str, Any],
    pace: Pace | None,
    key: Array,
    states: Any,
    begin: Array,
    steps: Array,
    row_end: Array,
    thinning: Array,
    batches: Any,
) -> tuple[Any, Any, Array, Pace | None]:
    """`steps` steps of all chains: their states, the rows kept, statuses counted per chain, and the pace.

    `begin` is the lower word of the first step, for the keys. All other counts are relative to it, so that a run may be
    longer than 32 bits count: `row_end` is how many steps it takes to the end of the first row. `batches` are (the place of the
    first step in the lot, the lot), where a batch_fn brings them.
    """
    packing = packing_of(kernel, states)

    def body(i: Array, carry: Any) -> Any:
        states, rows, counts, pace = carry
        past = i - row_end  # -1 is the last step of the first row
        kept = (past >= -1) & ((past + 1) % thinning == 0)
        current = problem
        if batches is not None:
            current = with_batch(problem, jax.tree.map(lambda leaf: leaf[batches[0] + i], batches[1]))
        t = begin + i.astype(jnp.uint32)
        step = (current, kernel, parameters, pace, key, states, t, kept, packing)
        states, row, status, pace = step_and_observe(*step)
        # Small rows are written at every step, the last one of a row wins, and nothing is branched on. Large ones when kept.
        at = jnp.maximum(1 + past // thinning, 0)
        write = lambda rows: jax.tree.map(
            lambda all, one: lax.dynamic_update_index_in_dim(all, one, at, 0), rows, _unpacked(packing, row)
        )
        rows = lax.cond(kept, write, lambda rows: rows, rows) if large(rows) else write(rows)
        return states, rows, counts + jax.nn.one_hot(status, len(Status), dtype=jnp.int32), pace

    row = row_shapes(problem, kernel, parameters, pace, key, states)
    rows = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row)
    counts = jnp.zeros((jax.tree.leaves(states)[0].shape[0], len(Status)), jnp.int32)
    if packing is not None:
        states = states._replace(position=packing.pack(states.position))
    states, rows, counts, pace = lax.fori_loop(0, steps, body, (states, rows, counts, pace))
    return _unpacked(packing, states), rows, counts, pace


run_chunk = compiled(many_steps, static_argnums=(1, 2))
# The same with the memory of the states given to their successors: there is one copy of them, and the caller's is gone.
run_chunk_in_place = compiled(many_steps, static_argnums=(1, 2), donate_argnames="states")


def large(states: Any) -> bool:
    """Whether a second copy of the states would be felt."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(states)) >= IN_PLACE_BYTES


def packing_of(kernel: Kernel, states: Any) -> Packing | None:
    """How the loop holds the positions of states as one array; None: as they are."""
    known = hasattr(states, "_replace") and hasattr(states, "position")
    return Packing.of(states.position, 2 if kernel.ensemble else 1) if known and large(states) else None


def _unpacked(packing: Packing | None, held: Any) -> Any:
    """States, or a row, with positions as the user has them."""
    if packing is None:
        return held
    if isinstance(held, dict):
        return held | {"position": packing.unpack(held["position"])}
    return held._replace(position=packing.unpack(held.position))


def row_shapes(
    problem: Problem, kernel: Kernel, parameters: dict[str, Any], pace: Pace | None, key: Array, states: Any
) -> dict[str, Any]:
    """Shapes and dtypes of what one kept draw of all chains leaves."""
    if problem.batch_fn is not None and problem.data is not None:
        problem = with_batch(problem, problem.data.rows)
    arguments = (problem, kernel, parameters, pace, key, states, np.uint32(0), np.bool_(True))
    return step_and_observe.eval_shape(*arguments)[1]


def capacity_of(*arguments: Any) -> int:
    """How many rows of `row_shapes(*arguments)` a chunk holds: one more than it may keep, for a row begun and not finished."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(row_shapes(*arguments)))
    return int(np.clip(CHUNK_BYTES // max(size, 1), 1, CHUNK_ROWS)) + 1


# Compiled only as a part of a chunk. Tracing it is most of what Python does for a chunk, and jit remembers the trace: its
# shapes are asked for first, and the chunk then finds it.
@partial(jax.jit, static_argnums=(1, 8), inline=True)
def step_and_observe(
    problem: Problem,
    kernel: Kernel,
    parameters: dict[str, Any],
    pace: Pace | None,
    key: Array,
    states: Any,
    t: Array,
    kept: Array,
    packing: Packing | None = None,
) -> tuple[Any, dict[str, Any], Array, Pace | None]:
    """One step of all chains: states, what a kept draw leaves in the trace, statuses, and the pace.

    With a packing the positions are one array, here and in what comes out.

    A draw leaves its position, log π and the constraint values there, and the info's other numbers per chain, under ArviZ's
    names where it has one. Log π and constraint values are computed here, for kept draws only: the compiler then drops the
    info's own.
    """
    num_chains = jax.tree.leaves(states)[0].shape[0]
    keys = step_keys(key, num_chains, t)
    together = None if kernel.ensemble else chains_together(problem, states.position)
    before = getattr(states, "iteration", None)
    own: dict[str, Array] = {}
    shorter = None
    if pace is not None:  # each chain has a step size of its own in warm-up
        steps, shorter = own_steps(pace)
        own = {"step_size": jnp.broadcast_to(steps, (num_chains,))}

    def step(argument: tuple[Array, Any, dict[str, Array]]) -> tuple[Any, Any]:
        key, state, own = argument
        state, info = kernel.step(key, _unpacked(packing, state), problem, parameters | own)
        return (state if packing is None else state._replace(position=packing.pack(state.position))), info

    states, info = over_particles(step, (keys, states, own), together)
    if before is not None and jnp.issubdtype(before.dtype, jnp.integer):
        # Past 2³¹ the count that schedules look at would turn negative: it stays at the largest.
        full = before == jnp.iinfo(before.dtype).max
        states = states._replace(iteration=jnp.where(full, before, states.iteration))
    fields = info._asdict() if hasattr(info, "_asdict") else {}
    numbers = {name: v for name, v in fields.items() if isinstance(v, jax.Array) and v.ndim == 1}
    if pace is not None and shorter is not None:
        pace, numbers["steering"] = follow(pace, fields["steering"], shorter)
    status = fields.get("status", jnp.zeros((num_chains,), jnp.int32))
    if kernel.obeys == "exact":
        numbers["diverging"] = (status == Status.SOLVER_DIVERGED) | (status == Status.NON_FINITE)
    stats = _look(problem, kernel, keys, states.position, kept, together, packing) | numbers
    return states, {"position": states.position, "stats": stats}, status, pace


def _look(
    problem: Problem,
    kernel: Kernel,
    keys: Array,
    positions: Any,
    kept: Array,
    together: int | None,
    packing: Packing | None,
) -> dict[str, Array]:
    """Log π as `lp`, and the constraint values, of all chains; zeros where no draw is kept.

    Constraints are of the batch that the step saw. Log π of a batch is mostly noise, and is left out.
    """

    def value(argument: tuple[Array, Position]) -> dict[str, Array]:
        key, position = argument
        view = problem.view(key)
        position = position if packing is None else packing.unpack(position)

        def one(position: Position) -> dict[str, Array]:
            density = {} if problem.stochastic else {"lp": view.logdensity(position)}
            return density | view.constraint_value(position)

        return (jax.vmap(one) if kernel.ensemble else one)(position)

    values = lambda positions: over_particles(value, (keys, positions), together)
    zeros = lambda p: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(values, p))
    return lax.cond(kept, values, zeros, positions)


def arguments_of(kernel: Kernel, parameters: dict[str, Any], positions: Position) -> tuple[dict[str, Any], Pace | None]:
    """Parameters and pace as a compiled chunk takes them.

    All numbers are NumPy's and of one dtype: then a number of Python's and an array are the same program, and nothing is compiled
    to convert them. The step size of a steered kernel is in its pace.
    """
    dtype = np.dtype(dtype_of(positions))
    as_number = lambda leaf: np.asarray(leaf, np.int32 if np.asarray(leaf).dtype.kind in "iub" else dtype)
    parameters = jax.tree.map(as_number, parameters)
    if not kernel.steered or "step_size" not in parameters:
        return parameters, None
    rest = {name: value for name, value in parameters.items() if name != "step_size"}
    return rest, pace_of(parameters["step_size"], positions, adapt=False, target=0.0)


def pace_of(step_size: Any, positions: Position, *, adapt: bool, target: float) -> Pace:
    """A pace that begins with a step size. All of it is NumPy's, so that nothing is compiled for it."""
    leaf, dtype = jax.tree.leaves(positions)[0], np.dtype(dtype_of(positions))
    number: Any = lambda value, dtype=dtype: np.asarray(value, dtype)
    log_step, refused = number(np.log(step_size)), number(np.zeros(leaf.shape[0]), np.int32)
    begin = number(step_size)
    return Pace(number(adapt, bool), number(target), begin, log_step, log_step, number(0), number(1), refused)


def rows_before(step: int, warmup: int, thinning: int) -> int:
    """How many rows are complete before an absolute step."""
    return max(step - warmup, 0) // thinning


def steps_to_row_end(step: int, warmup: int, thinning: int) -> int:
    """How many steps from an absolute step on complete the row that is being made, the warm-up before it included."""
    return max(warmup - step, 0) + thinning - max(step - warmup, 0) % thinning
