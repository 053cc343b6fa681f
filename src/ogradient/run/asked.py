"""What a call is of, so that a checkpoint of another one is told from it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem import Problem
from ogradient.problem.fingerprint import fingerprint
from ogradient.problem.functions import Position, leaf_names
from ogradient.run.loop import versions
from ogradient.samplers.base import BoundStep, kernel_of, plain_settings, settings_of
from ogradient.storage import checksum

REMEDY = "Give another path, or remove the folder to begin anew."
SHOWN = 120  # characters of a value in a message


def asked_of(problem: Problem, key: Array, positions: Position, algorithm: Any, **options: Any) -> dict[str, Any]:
    """What makes a call the same as another, JSON-able, by name of argument."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(positions)]
    starts = [
        [n, list(v.shape), str(v.dtype), checksum(np.asarray(v))]
        for n, v in zip(leaf_names(positions), leaves, strict=True)
    ]
    functions = dict(problem.functions) | ({} if problem.batch_fn is None else {"batch_fn": problem.batch_fn})
    if hasattr(algorithm, "step"):
        settings = settings_of(algorithm)
        about = [kernel_of(algorithm).name, plain_settings(algorithm)]
        own = {k: fingerprint(v) for k, v in settings.items() if callable(v)}
        if not isinstance(algorithm.step, BoundStep):
            own = {"init": fingerprint(algorithm.init), "step": fingerprint(algorithm.step)}
        algorithm = [*about, own]
    number = lambda value: value if isinstance(value, str | int | None) else float(value)
    return {
        "seed": [str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key)).tolist()],
        "initial_positions": starts,
        "algorithm": algorithm,
        "measure": problem.measure,
        # Compiled code is another in another Python.
        "problem": [versions()["python"].rsplit(".", 1)[0], {name: fingerprint(f) for name, f in functions.items()}],
        "data": None if problem.data is None else problem.data.describe(),
        "jax_enable_x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        **{name: number(value) for name, value in options.items()},
    }


def difference(name: str, then: Any, now: Any) -> str:
    """How an argument differs, in words."""
    if name == "problem" and then and now:
        if then[0] != now[0]:
            return f"it was made with Python {then[0]}, and this is {now[0]}"
        changed = [kind for kind in {**then[1], **now[1]} if then[1].get(kind) != now[1].get(kind)]
        return f"{', '.join(changed)} is another function, or has other values in it"
    if name == "initial_positions":
        return "initial_positions are others"
    short = lambda value: text if len(text := json.dumps(value)) <= SHOWN else text[:SHOWN] + "…"
    return f"{name} was {short(then)}, and is {short(now)} now"


def check_every(seconds: Any) -> float:
    """Seconds between two checkpoints, of a user."""
    if not isinstance(seconds, int | float | np.number) or isinstance(seconds, bool) or not seconds >= 0:
        raise ValueError(f"checkpoint_every must be seconds, at least 0; got {seconds!r}.")
    return float(seconds)


def path_of(path: Any) -> Path:
    """The folder that a user gave."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"checkpoint must be the path of a folder; got {path!r}.")
    found = Path(path).expanduser()
    if found.exists() and not found.is_dir():
        raise FileExistsError(f"checkpoint={str(found)!r} is a file; give the path of a folder.")
    return found
