"""Going on from a trace: the same run, or a refusal that names the difference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.mapping import over_draws
from ogradient.problem import Problem
from ogradient.problem.fingerprint import fingerprint
from ogradient.problem.functions import Position
from ogradient.run.loop import versions
from ogradient.samplers import SAMPLERS
from ogradient.samplers.base import SamplingAlgorithm, kernel_of, plain_settings
from ogradient.status import warn
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
        algorithm = algorithm_of(resume, problem)
    if isinstance(algorithm, str):
        raise ValueError(f"resume continues a run of {past['algorithm']}; got algorithm={algorithm!r}.")
    kernel = kernel_of(algorithm)
    name, now = kernel.name, plain_settings(algorithm)
    if name != past["algorithm"] or now != past["settings"]:
        raise ValueError(
            f"resume continues a run of {past['algorithm']} with {past['settings']}; the algorithm given is {name} with {now}."
        )
    if positions is None and past.get("custom_containers"):
        raise ValueError(
            "the position was a container that is not saved (a NamedTuple, say): give initial_positions as well."
        )
    before, data = past.get("data"), None if problem.data is None else problem.data.describe()
    # Traces of earlier versions have another sum, over some of the rows.
    if (before is None) != (data is None) or (before and any(before.get(k, v) != v for k, v in (data or {}).items())):
        raise ValueError(
            f"resume continues a run on the data {before}; the problem given has {data}. To go on with other data, start a "
            "run from the last positions instead."
        )
    draws = resume.position if positions is None else in_order_of(resume, positions)
    if resume.state is None or not jax.tree.leaves(resume.state):
        raise ValueError(
            "the trace has no state to go on from: the run failed inside a chunk that computed in place. Start a run from the "
            "last draws instead: jax.tree.map(lambda leaf: leaf[:, -1], trace.position)."
        )
    leaves, structure = jax.tree.leaves(resume.state), jax.tree.structure(draws)
    if resume.num_draws:
        last = jax.tree.map(lambda leaf: leaf[:, -1], draws)
        _check_same_constraint(resume, problem, last)
    else:  # stopped in its warm-up: the positions are the first part of the state
        last = jax.tree.unflatten(structure, leaves[: len(jax.tree.leaves(draws))])
    wanted = jax.eval_shape(jax.vmap(kernel.init), last)
    expected = jax.tree.leaves(wanted)
    found = [jnp.asarray(leaf) for leaf in leaves]
    if [(leaf.shape, leaf.dtype) for leaf in found] != [(leaf.shape, leaf.dtype) for leaf in expected] or any(
        now.dtype != leaf.dtype for now, leaf in zip(found, leaves, strict=True)
    ):
        raise ValueError(
            "the state in the trace does not fit the algorithm. Was the run made in another precision? "
            "(jax_enable_x64 must be as it was.)"
        )
    _warn_if_other(past, problem)
    return algorithm, jax.tree.unflatten(jax.tree.structure(wanted), found), past["num_warmup"], past["num_steps"]


def _warn_if_other(past: dict[str, Any], problem: Problem) -> None:
    """Say what differs from the run that is continued, where the draws may still be of the same law."""
    then, now = past.get("versions", {}), versions()
    changed = [
        f"{name} {then[name]} (now {now[name]})"
        for name in ("ogradient", "jax")
        if then.get(name, now[name]) != now[name]
    ]
    if changed:
        warn(f"resume continues a run made with {', '.join(changed)}: its draws may round otherwise from here on.")
    minor = lambda version: version.get("python", "").split(".")[:2]
    if "functions" not in past or minor(then) != minor(now):  # compiled code is another in another Python
        return
    functions = {name: fingerprint(function) for name, function in problem.functions.items()}
    rewritten = [name for name in past["functions"] if functions.get(name) != past["functions"][name]]
    if rewritten:
        warn(
            f"resume continues a run with other code in {', '.join(rewritten)}. If the log density is another, the draws before "
            "and after are of two laws: start a run from the last positions instead."
        )


def algorithm_of(trace: Trace, problem: Problem) -> SamplingAlgorithm:
    """The algorithm of a trace with its settings, for a problem."""
    past = trace.provenance
    settings = {k: np.asarray(v) if isinstance(v, list) else v for k, v in past["settings"].items()}
    plain = all(not isinstance(settings.get(name), str) for name in ("step_size", "optimizer", "rkhs_kernel"))
    if past["algorithm"] not in SAMPLERS or not plain:
        raise ValueError(
            f"the trace is of a run of {past['algorithm']} with {past['settings']}, which cannot be made from its record; pass "
            "that algorithm again."
        )
    return SAMPLERS[past["algorithm"]](problem, **settings)


def _particle_values(problem: Problem, position: Position) -> dict[str, Array]:
    return jax.vmap(problem.constraint_value)(position)


def _check_same_constraint(resume: Trace, problem: Problem, last: Position) -> None:
    """The constraint at the last draws must be what the trace says, or it is another one."""
    if problem.stochastic or not problem.constrained:
        return
    now = over_draws(_particle_values if resume.ensemble else Problem.constraint_value, problem, last)
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
