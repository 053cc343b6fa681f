"""Going on from a trace: the same run, or a refusal that names the difference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.posterior import describe_data
from ogradient.problem import Position, Problem
from ogradient.samplers import SAMPLERS
from ogradient.samplers.base import SamplingAlgorithm, describe, plain_settings
from ogradient.trace import Trace, in_order_of


def continue_run(
    resume: Trace,
    problem: Problem,
    positions: Position,
    algorithm: SamplingAlgorithm | str | None,
    key: Array,
    thinning: int,
) -> tuple[SamplingAlgorithm, Any, int, int]:
    """The algorithm, its states, the warm-up and the steps made by the trace; an error if anything given is of another run."""
    if not isinstance(resume, Trace):
        raise ValueError(f"resume must be a trace; got {type(resume).__name__}. og.load(path) reads a saved one.")
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
    before, data = past.get("data"), describe_data(problem)
    # Traces of earlier versions have another sum, over some of the rows.
    if (before is None) != (data is None) or (before and any(before.get(k, v) != v for k, v in (data or {}).items())):
        raise ValueError(
            f"resume continues a run on the data {before}; the problem given has {data}. To go on with other data, start a "
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
