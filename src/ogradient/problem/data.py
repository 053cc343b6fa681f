"""Data of a problem, and what a step sees of them.

log π(x) = log prior(x) + (N/B) log likelihood(x, batch),   g(x) = equality(x, batch)

`Model` holds the user's functions of (position, batch) and the sizes: static in compiled programs, and equal for equal parts.
`Data` adds the arrays, which are arguments of compiled programs. A step asks for `data.seen_by(key)`: the same model with the
rows that the key draws.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem.functions import Functions, Position, calling, checked, same_key, shapes_of, stack
from ogradient.storage import checksum

Batch = Any  # any pytree of arrays, with the rows as the first axis of every leaf
CHECKSUM_BYTES = 2**26  # of data that are summed together
BATCH = 0x62617463  # folded into a step's key for its batch, so that noise and probes have other random numbers


@dataclass(frozen=True, eq=False)
class Model:
    """What the user gave, apart from the data: static in compiled functions, and equal where all parts are."""

    logprior_fn: Callable[[Position], Any]
    loglikelihood_fn: Callable[[Position, Batch], Any] | None
    equalities: Functions
    inequalities: Functions
    joint_fn: Callable[[Position, Batch], Any] | None
    augment: Callable[[Array, Batch], Batch] | None
    num_rows: int
    batch_size: int | None  # None: all rows
    constraint_batch_size: int | None  # None: the rows of the likelihood
    batch_fn: Callable[[int], Batch] | None
    fed: bool = False  # whether the data at hand are the batch of one step, from batch_fn
    joint_kinds: tuple[str, ...] = ()  # what joint_fn returns after the log likelihood

    @cached_property
    def _key(self) -> tuple:
        return same_key(*(getattr(self, name) for name in self.__dataclass_fields__))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def stochastic(self) -> bool:
        """Whether steps see different data."""
        partial = self.batch_size is not None or self.batch_fn is not None
        return partial or self.constraint_batch_size is not None or self.augment is not None

    @property
    def noisy_constraint(self) -> bool:
        """Whether steps see different constraints."""
        rows = self.constraint_batch_size or self.batch_size
        return self.batch_fn is not None or self.augment is not None or rows not in (None, self.num_rows)

    def loglikelihood(self, position: Position, batch: Batch) -> Any:
        """The user's log likelihood, summed over the rows of the batch; 0 where data enter by constraints alone."""
        if self.joint_fn is not None:
            return self.joint_fn(position, batch)[0]
        return 0.0 if self.loglikelihood_fn is None else self.loglikelihood_fn(position, batch)

    def constraint(self, kind: str, position: Position, batch: Batch) -> Array:
        """All functions of one kind, "equality" or "inequality", as one flat array."""
        if self.joint_fn is not None:
            # All parts call joint_fn on the same batch; the compiler computes what they share once.
            parts = [
                self.joint_fn(position, batch)[1 + self.joint_kinds.index(k)] for k in self.joint_kinds if k == kind
            ]
            return stack(parts, position)
        functions = self.equalities if kind == "equality" else self.inequalities
        return stack([function(position, batch) for function in functions], position)

    def has(self, kind: str) -> bool:
        """Whether there is a constraint of that kind."""
        return bool(self.equalities if kind == "equality" else self.inequalities) or kind in self.joint_kinds


@dataclass(frozen=True, eq=False)
class Data:
    """A model and its arrays.

    `rows` are all rows, or those of one step where a batch_fn brings them. `batch` and `constraint_batch` are what a step's key
    has drawn of them; until then they are None, and functions see all rows.
    """

    model: Model
    rows: Batch
    batch: Batch | None = None
    constraint_batch: Batch | None = None

    def __str__(self) -> str:
        model = self.model
        batch = (
            f"{count_rows(self.rows)} from batch_fn" if model.batch_fn else model.batch_size and f"{model.batch_size}"
        )
        sizes = [
            batch and f"{batch} in each step",
            model.constraint_batch_size and f"{model.constraint_batch_size} for constraints",
        ]
        return ", ".join([f"{model.num_rows:,} rows", *(size for size in sizes if size)])

    def logdensity(self, position: Position) -> Any:
        """Log prior, and log likelihood scaled to all rows."""
        model, batch = self.model, self.rows if self.batch is None else self.batch
        whole = self.batch is None and model.batch_fn is None
        scale = 1.0 if whole else model.num_rows / count_rows(batch)
        return model.logprior_fn(position) + scale * model.loglikelihood(position, batch)

    def constraint(self, kind: str, position: Position) -> Array:
        """All constraints of one kind at one position."""
        batch = self.rows if self.constraint_batch is None else self.constraint_batch
        return self.model.constraint(kind, position, batch)

    def seen_by(self, key: Array | None) -> Data:
        """The data with the batches that a step's key draws; without batches, itself."""
        model = self.model
        if not model.stochastic or self.batch is not None:
            return self
        if model.batch_fn is not None and not model.fed:
            raise ValueError(
                "with data=batch_fn the batch of a step is brought by og.sample. To drive a step yourself, build it for one "
                "batch: og.langevin(og.with_batch(problem, batch_fn(t)), ...)."
            )
        if key is None:
            raise ValueError("a step on minibatches needs a random key; got None.")
        keys = jax.random.split(jax.random.fold_in(key, BATCH), 4)
        batch = self._draw(keys[0], keys[1], model.batch_size)
        size = model.constraint_batch_size
        all_rows = size == count_rows(self.rows)
        constraint_batch = batch if size is None else self._draw(keys[2], keys[3], None if all_rows else size)
        return replace(self, batch=batch, constraint_batch=constraint_batch)

    def _draw(self, rows_key: Array, augment_key: Array, size: int | None) -> Batch:
        batch = self.rows
        if size is not None:
            chosen = jax.random.randint(rows_key, (size,), 0, count_rows(batch))
            batch = jax.tree.map(lambda leaf: leaf[chosen], batch)
        return batch if self.model.augment is None else self.model.augment(augment_key, batch)

    @cached_property
    def crc32(self) -> str:
        """A sum over all bytes of the data, and over their shapes and dtypes. 1 GB on a CPU takes 0.3 seconds.

        From a GPU in blocks of rows: JAX would keep a copy of an array that was brought as a whole.
        """
        total, whole = 0, jax.default_backend() == "cpu"
        for leaf in jax.tree.leaves(self.rows):
            total = zlib.crc32(f"{leaf.dtype}{leaf.shape}".encode(), total)
            count = len(leaf)
            rows = count if whole else max(1, CHECKSUM_BYTES * count // max(leaf.nbytes, 1))
            for first in range(0, count, rows):
                block = leaf if whole else jax.lax.dynamic_slice_in_dim(leaf, first, min(rows, count - first))
                total = checksum(np.asarray(block), total)
        return f"{total:08x}"

    @property
    def batch_bytes(self) -> int:
        """How large the data are that a step sees."""
        rows = self.model.batch_size or count_rows(self.rows)
        return sum(rows * leaf.size // leaf.shape[0] * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.rows))

    def describe(self) -> dict[str, Any]:
        """What a trace keeps of the data, to tell them from others: sizes, and a sum over all bytes."""
        model = self.model
        about = {
            "rows": model.num_rows,
            "batch_size": model.batch_size,
            "constraint_batch_size": model.constraint_batch_size,
        }
        return about | {"batch_fn": model.batch_fn is not None, "crc32": self.crc32}

    def check(self, position: Position) -> None:
        """Shapes and dtypes of what the user's functions return on one position, each under its own name."""
        model = self.model
        rows = count_rows(self.rows) if model.batch_size is None else model.batch_size
        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), self.rows)
        if model.augment is not None:
            batch = _check_augmented(model.augment, batch)
        with calling("logprior_fn", position):
            jax.eval_shape(lambda p: checked("logprior_fn", model.logprior_fn(p), scalar=True), position)
        joint, likelihood = model.joint_fn, model.loglikelihood_fn
        if likelihood is not None:
            with calling("loglikelihood_fn", position, batch):
                jax.eval_shape(lambda p, b: checked("loglikelihood_fn", likelihood(p, b), scalar=True), position, batch)
        elif joint is not None:
            with calling("joint_fn", position, batch):
                jax.eval_shape(lambda p, b: _check_joint(model.joint_kinds, joint(p, b)), position, batch)
        for kind, functions in (("equality", model.equalities), ("inequality", model.inequalities)):
            for function in functions:
                with calling(kind, position, batch):
                    jax.eval_shape(lambda p, b, f=function, k=kind: checked(k, f(p, b), scalar=False), position, batch)


jax.tree_util.register_dataclass(Data, ("rows", "batch", "constraint_batch"), ("model",))


def _check_augmented(augment: Callable, batch: Batch) -> Batch:
    """Evaluations on all the data take rows as they are, so functions must be able to take both."""
    changed = jax.eval_shape(augment, jax.random.key(0), batch)
    like = lambda tree: (jax.tree.structure(tree), [(leaf.shape[1:], leaf.dtype) for leaf in jax.tree.leaves(tree)])
    if like(changed) != like(batch):
        raise ValueError(
            "augment must return rows of the same structure, shapes and dtypes as those of data, which are also used without "
            "it (by og.diagnose, say). Convert or normalise before og.posterior, or inside your functions; got "
            f"{shapes_of(changed)} from {shapes_of(batch)}."
        )
    return changed


def _check_joint(kinds: tuple[str, ...], values: Any) -> Array:
    returned = tuple(values) if isinstance(values, tuple | list) else (values,)
    if len(returned) <= len(kinds) or any(v is not None for v in returned[1 + len(kinds) :]):
        raise ValueError(
            f"joint_fn must return (loglikelihood, {', '.join(kinds)}), as joint_kinds says; got {len(returned)} values."
        )
    return checked("the first value of joint_fn", returned[0], scalar=True)


def count_rows(batch: Batch) -> int:
    """How many rows a batch has."""
    return int(jax.tree.leaves(batch)[0].shape[0])


def as_arrays(data: Batch) -> Batch:
    """The user's data as arrays with one number of rows; refused if empty, ragged, or not what JAX can hold."""
    if data is None:
        raise ValueError(
            "data is missing: give a pytree of arrays with the rows first, such as (X, y), or a batch_fn(step)."
        )
    # None would be no leaf at all, and a list of numbers a leaf for each.
    numbers = lambda node: isinstance(node, list) and not any(hasattr(item, "shape") for item in node)
    is_leaf = lambda node: node is None or hasattr(node, "__next__") or numbers(node)
    found = jax.tree_util.tree_leaves_with_path(data, is_leaf=is_leaf)
    arrays = [_as_array("data" + jax.tree_util.keystr(path), leaf) for path, leaf in found]
    if not arrays:
        raise ValueError("data has no arrays; give a pytree of them with the rows first, such as (X, y).")
    counts = [array.shape[0] for array in arrays]
    if len(set(counts)) > 1 or 0 in counts:
        rows = ", ".join(
            f"data{jax.tree_util.keystr(path)} {count}" for (path, _), count in zip(found, counts, strict=True)
        )
        raise ValueError(f"every leaf of data needs the same, positive number of rows (first axis); got {rows}.")
    return jax.tree.unflatten(jax.tree.structure(data, is_leaf=is_leaf), arrays)


def _as_array(name: str, leaf: Any) -> Array:
    """One leaf of the data, refused where JAX would quietly make something else of it."""
    kind = type(leaf).__name__
    if hasattr(leaf, "columns") and hasattr(leaf, "iloc"):
        raise ValueError(
            f"{name} is a {kind}: pass its columns as arrays, such as {{'X': df[names].to_numpy(), 'y': df['y'].to_numpy()}}."
        )
    if hasattr(leaf, "toarray"):
        raise ValueError(f"{name} is a sparse {kind}: pass {name}.toarray().")
    if isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
        raise ValueError(f"{name} is a masked array with masked values: drop or impute those rows first.")
    if isinstance(leaf, list):
        raise ValueError(f"{name} is a list of numbers: pass np.asarray(...) of it, with the rows first.")
    if leaf is None or hasattr(leaf, "__next__"):
        raise ValueError(
            f"{name} is {'None' if leaf is None else f'a {kind}'}; give arrays with the rows first, or a batch_fn(step)."
        )
    try:
        given = np.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array with the rows first; {error}") from None
    if given.ndim == 0:
        raise ValueError(f"{name} is a single {kind}; every leaf of data needs the rows as its first axis.")
    known = given.dtype.kind in "biufc" or given.dtype == jnp.bfloat16
    if not known or given.dtype in (np.longdouble, np.clongdouble):
        raise ValueError(f"{name} has dtype {given.dtype}; encode it as numbers first, such as float32.")
    with np.errstate(over="ignore"):  # seen below
        array = np.asarray(given, jax.dtypes.canonicalize_dtype(given.dtype))
    if jnp.issubdtype(array.dtype, jnp.inexact) and array.size:
        bad = np.flatnonzero(~np.isfinite(array).reshape(array.shape[0], -1).all(axis=1))
        if bad.size:
            raise ValueError(
                f"{name} has NaN or infinite values{'' if array.dtype == given.dtype else f' in {array.dtype}'} in {bad.size} of "
                f"{array.shape[0]} rows (the first is row {bad[0]}): drop or impute them first."
            )
    if given.dtype.kind in "iu" and not np.array_equal(array, given):
        raise ValueError(f"{name} has values too large for {array.dtype}; pass floats, or set jax_enable_x64.")
    return jnp.asarray(array)
