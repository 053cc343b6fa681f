"""`og.posterior`: a prior, a likelihood and constraints over data, whole or in minibatches, as a `Problem`.

log π(x) = log prior(x) + (N/B) log likelihood(x, batch),   g(x) = equality(x, batch)

The batch of a step is drawn inside the compiled loop from the step's key, so that runs repeat to the bit. Sums over rows stay
unbiased under N/B. A constraint does not: ĝ of a batch enters as J⁺ψ(ĝ) and D, which are not linear in it. What is then
obeyed is near {E ĝ = 0}, off by the size of the batch's noise in g; a larger constraint batch, or all rows, removes that.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem import Measure, Position, Problem, as_functions, calling, checked, shapes_of
from ogradient.storage import checksum

DataFunctions = Callable[[Position, Any], Any] | Sequence[Callable[[Position, Any], Any]]
Batch = Any  # any pytree of arrays, with the rows as the first axis of every leaf
CHECKSUM_BYTES = 2**26  # of data that are summed together
BATCH = 0x62617463  # folded into a step's key for its batch, so that noise and probes have other random numbers


@dataclass(frozen=True, eq=False)
class Model:
    """What the user gave, apart from the data: static in compiled functions."""

    logprior_fn: Callable[[Position], Any]
    loglikelihood_fn: Callable[[Position, Batch], Any] | None
    equalities: tuple[Callable[[Position, Batch], Any], ...]
    inequalities: tuple[Callable[[Position, Batch], Any], ...]
    joint_fn: Callable[[Position, Batch], Any] | None
    augment: Callable[[Array, Batch], Batch] | None
    measure: Measure
    num_rows: int
    batch_size: int | None  # None: all rows
    constraint_batch_size: int | None  # None: the rows of the likelihood
    batch_fn: Callable[[int], Batch] | None
    fed: bool = False  # whether the data at hand are the batch of one step, from batch_fn
    joint_kinds: tuple[str, ...] = ()  # what joint_fn returns after the log likelihood

    @cached_property
    def stochastic(self) -> bool:
        """Whether steps see different data."""
        partial = self.batch_size is not None or self.batch_fn is not None
        return partial or self.constraint_batch_size is not None or self.augment is not None

    @property
    def noisy_constraint(self) -> bool:
        """Whether steps see different constraints."""
        rows = self.constraint_batch_size or self.batch_size
        return self.batch_fn is not None or self.augment is not None or rows not in (None, self.num_rows)

    def problem(self, data: Batch) -> Problem:
        """The problem over all rows of `data`; what a step sees of it is its `view`."""
        scale = self.num_rows / count_rows(data) if self.batch_fn is not None else 1.0
        return self.bind(data, data, scale, Source(self, data))

    def bind(self, batch: Batch, constraint_batch: Batch, scale: float, source: Source | None = None) -> Problem:
        """The problem with its functions of data bound to batches."""
        joint = self.joint_fn
        if joint is not None:
            # All parts call joint_fn on the same batch; the compiler computes what they share once.
            likelihood = lambda x: joint(x, batch)[0]
            part = lambda kind: lambda x: joint(x, batch)[1 + self.joint_kinds.index(kind)]
            equality, inequality = (part(k) if k in self.joint_kinds else None for k in ("equality", "inequality"))
        else:
            assert self.loglikelihood_fn is not None
            likelihood = lambda x: self.loglikelihood_fn(x, batch)  # type: ignore[misc]
            equality, inequality = (  # type: ignore[assignment]
                [lambda x, f=f: f(x, constraint_batch) for f in functions]
                for functions in (self.equalities, self.inequalities)
            )
        logdensity = lambda x: self.logprior_fn(x) + scale * likelihood(x)
        return Problem(logdensity, equality, inequality, self.measure, source)


@dataclass(frozen=True, eq=False)
class Source:
    """A model and its data: all rows, or the rows of one step where a batch_fn brings them."""

    model: Model
    data: Batch

    def __str__(self) -> str:
        model = self.model
        batch = (
            f"{count_rows(self.data)} from batch_fn" if model.batch_fn else model.batch_size and f"{model.batch_size}"
        )
        sizes = [
            batch and f"{batch} in each step",
            model.constraint_batch_size and f"{model.constraint_batch_size} for constraints",
        ]
        return ", ".join([f"{model.num_rows:,} rows", *(size for size in sizes if size)])

    def view(self, key: Array | None) -> Problem:
        """The problem with the batches that a step's key draws."""
        model, data = self.model, self.data
        if model.batch_fn is not None and not model.fed:
            raise ValueError(
                "with data=batch_fn the batch of a step is brought by og.sample. To drive a step yourself, build it for one "
                "batch: og.langevin(og.with_batch(problem, batch_fn(t)), ...)."
            )
        if key is None:
            raise ValueError("a step on minibatches needs a random key; got None.")
        keys = jax.random.split(jax.random.fold_in(key, BATCH), 4)
        rows = count_rows(data)
        batch = self._draw(keys[0], keys[1], model.batch_size)
        size = model.constraint_batch_size
        constraint_batch = batch if size is None else self._draw(keys[2], keys[3], None if size == rows else size)
        return model.bind(batch, constraint_batch, model.num_rows / count_rows(batch))

    @cached_property
    def crc32(self) -> str:
        """A sum over all bytes of the data, and over their shapes and dtypes. 1 GB on a CPU takes 0.3 seconds.

        From a GPU in blocks of rows: JAX would keep a copy of an array that was brought as a whole.
        """
        total, whole = 0, jax.default_backend() == "cpu"
        for leaf in jax.tree.leaves(self.data):
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
        rows = self.model.batch_size or count_rows(self.data)
        return sum(rows * leaf.size // leaf.shape[0] * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.data))

    def _draw(self, rows_key: Array, augment_key: Array, size: int | None) -> Batch:
        batch = self.data
        if size is not None:
            chosen = jax.random.randint(rows_key, (size,), 0, count_rows(batch))
            batch = jax.tree.map(lambda leaf: leaf[chosen], batch)
        return batch if self.model.augment is None else self.model.augment(augment_key, batch)

    def check(self, position: Position) -> None:
        """Shapes and dtypes of what the user's functions return on one position, each under its own name."""
        model, data = self.model, self.data
        rows = count_rows(data) if model.batch_size is None else model.batch_size
        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), data)
        if model.augment is not None:
            batch = self._check_augmented(batch)
        with calling("logprior_fn", position):
            jax.eval_shape(lambda p: checked("logprior_fn", model.logprior_fn(p), scalar=True), position)
        joint, likelihood = model.joint_fn, model.loglikelihood_fn
        if likelihood is not None:
            with calling("loglikelihood_fn", position, batch):
                jax.eval_shape(lambda p, b: checked("loglikelihood_fn", likelihood(p, b), scalar=True), position, batch)
        elif joint is not None:
            with calling("joint_fn", position, batch):
                jax.eval_shape(lambda p, b: self._check_joint(joint(p, b)), position, batch)
        for kind, functions in (("equality", model.equalities), ("inequality", model.inequalities)):
            for function in functions:
                with calling(kind, position, batch):
                    jax.eval_shape(lambda p, b, f=function, k=kind: checked(k, f(p, b), scalar=False), position, batch)

    def _check_augmented(self, batch: Batch) -> Batch:
        """Evaluations on all the data take rows as they are, so functions must be able to take both."""
        assert self.model.augment is not None
        changed = jax.eval_shape(self.model.augment, jax.random.key(0), batch)
        like = lambda tree: (jax.tree.structure(tree), [(leaf.shape[1:], leaf.dtype) for leaf in jax.tree.leaves(tree)])
        if like(changed) != like(batch):
            raise ValueError(
                "augment must return rows of the same structure, shapes and dtypes as those of data, which are also used without "
                "it (by og.diagnose, say). Convert or normalise before og.posterior, or inside your functions; got "
                f"{shapes_of(changed)} from {shapes_of(batch)}."
            )
        return changed

    def _check_joint(self, values: Any) -> Array:
        kinds = self.model.joint_kinds
        returned = tuple(values) if isinstance(values, tuple | list) else (values,)
        if len(returned) <= len(kinds) or any(v is not None for v in returned[1 + len(kinds) :]):
            raise ValueError(
                f"joint_fn must return (loglikelihood, {', '.join(kinds)}), as joint_kinds says; got {len(returned)} values."
            )
        return checked("the first value of joint_fn", returned[0], scalar=True)


def posterior(
    logprior_fn: Callable[[Position], Any],
    loglikelihood_fn: Callable[[Position, Batch], Any] | None = None,
    data: Batch | Callable[[int], Batch] = None,
    *,
    equality: DataFunctions | None = None,
    inequality: DataFunctions | None = None,
    measure: Measure = "conditional",
    batch_size: int | None = None,
    constraint_batch_size: int | None = None,
    joint_fn: Callable[[Position, Batch], Any] | None = None,
    joint_kinds: Sequence[str] = ("equality",),
    augment: Callable[[Array, Batch], Batch] | None = None,
    num_rows: int | None = None,
) -> Problem:
    """A Bayesian model over data, with constraints: a `Problem` for every sampler here.

    Args:
        logprior_fn: log prior of one position.
        loglikelihood_fn: log likelihood of one position and a batch, summed over the rows of the batch. The factor N/B that
            makes a minibatch stand for all rows is applied here, not by you.
        data: a pytree of arrays, rows first, such as `(X, y)`; or, for data larger than memory, a function
            `batch_fn(step)` that returns the batch of an absolute step, always of the same shapes. `og.sample` calls it ahead of
            time in a thread; all chains share the batch of a step.
        equality: g(position, batch), wanted 0, or a list of such; averages over rows, usually.
        inequality: h(position, batch), wanted ≤ 0, in the same form.
        measure: as in `og.Problem`.
        batch_size: rows drawn at each step, with replacement, anew for every chain; None: all.
        constraint_batch_size: rows drawn for the constraints alone, more of them than for the likelihood, or N for all. A
            constraint on a batch is obeyed only up to the batch's noise, and that noise biases the draws (it enters ψ(g)
            and D, not linearly). None: the rows of the likelihood.
        joint_fn: `(position, batch) -> (loglikelihood, equality)` from one forward pass, in place of the functions above.
            Constraints then see the likelihood's batch.
        joint_kinds: what joint_fn returns after the log likelihood: ("equality",), ("inequality",), or both in that order.
        augment: `augment(key, batch)`, applied to every batch that a step draws: random flips and crops, say. Starts are checked
            and landed, and draws judged, on the rows as they are, so it must not normalise or convert.
        num_rows: N, where `data` is a function and cannot tell.

    With all the data in every step (`batch_size=None`) the problem is exact, and every sampler takes it. With minibatches use
    og.o_langevin, og.o_svgd, og.langevin (then SGLD) or og.svgd. Constraint values in the trace are those of the step's batch;
    `og.constraint_violation(problem, trace.pooled)` has all the data.

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> X = jax.random.normal(jax.random.key(0), (200, 3))
    >>> y = (X[:, 0] > 0).astype(float)
    >>> logit = lambda w, X: X @ w
    >>> problem = og.posterior(
    ...     logprior_fn=lambda w: -0.5 * jnp.sum(w**2),
    ...     loglikelihood_fn=lambda w, batch: jnp.sum(jax.nn.log_sigmoid((2 * batch[1] - 1) * logit(w, batch[0]))),
    ...     data=(X, y),
    ...     equality=lambda w, batch: jnp.mean(batch[0][:, 1] * jax.nn.sigmoid(logit(w, batch[0]))),   # blind to column 1
    ... )
    >>> trace = og.sample(0, problem, jnp.zeros((4, 3)), num_samples=200, progress=False)
    >>> bool(abs(trace.sample_stats["equality"]).max() < 1e-5)
    True
    """
    batch_fn = data if callable(data) else None
    if batch_fn is not None:
        rows = _positive("num_rows", num_rows, "how many rows batch_fn draws from, so that a batch can stand for all")
        for name, value in (("batch_size", batch_size), ("constraint_batch_size", constraint_batch_size)):
            if value is not None:
                raise ValueError(f"{name} is for data in memory; batch_fn decides the size of its batches itself.")
        data = batch_fn(0)
    arrays = as_arrays(data)
    if batch_fn is not None and count_rows(arrays) > rows:
        raise ValueError(
            f"num_rows is {rows}, fewer than the {count_rows(arrays)} rows of batch_fn(0); it counts all rows."
        )
    if batch_fn is None:
        rows = count_rows(arrays)
        if num_rows not in (None, rows):
            raise ValueError(f"num_rows is {num_rows} but the data have {rows} rows; leave it out.")
    for name, size in (("batch_size", batch_size), ("constraint_batch_size", constraint_batch_size)):
        if size is not None and _positive(name, size, "rows per step") > rows:
            raise ValueError(f"{name} must be at most the number of rows, {rows}; got {size}. None takes all rows.")
    if not callable(logprior_fn):
        raise ValueError(f"logprior_fn must be a function of a position; got {type(logprior_fn).__name__}.")
    for name, function in (("loglikelihood_fn", loglikelihood_fn), ("joint_fn", joint_fn), ("augment", augment)):
        if function is not None and not callable(function):
            raise ValueError(f"{name} must be a function; got {type(function).__name__}.")
    if (joint_fn is None) == (loglikelihood_fn is None):
        raise ValueError("give loglikelihood_fn, or joint_fn in its place; not both, and not neither.")
    if joint_fn is not None and (equality is not None or inequality is not None or constraint_batch_size is not None):
        raise ValueError(
            "joint_fn returns the log likelihood and the constraints of one batch: leave out equality, inequality and "
            "constraint_batch_size, or use loglikelihood_fn."
        )
    if joint_fn is not None and tuple(joint_kinds) not in (("equality",), ("inequality",), ("equality", "inequality")):
        raise ValueError(
            f"joint_kinds must be ('equality',), ('inequality',) or both in that order; got {joint_kinds!r}."
        )
    model = Model(
        logprior_fn=logprior_fn,
        loglikelihood_fn=loglikelihood_fn,
        equalities=as_functions("equality", equality),
        inequalities=as_functions("inequality", inequality),
        joint_fn=joint_fn,
        augment=augment,
        measure=measure,
        num_rows=rows,
        batch_size=None if batch_size == rows else batch_size,
        constraint_batch_size=None
        if constraint_batch_size == rows and batch_size in (None, rows)
        else constraint_batch_size,
        batch_fn=batch_fn,
        joint_kinds=() if joint_fn is None else tuple(joint_kinds),
    )
    return model.problem(arrays)


def with_batch(problem: Problem, batch: Batch) -> Problem:
    """A problem over data with other arrays in their place, of the same structure: the batch of a step, or new data."""
    if problem.source is None:
        raise ValueError("with_batch is for problems of og.posterior; this one has no data.")
    model = problem.source.model
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(batch)):
        batch = as_arrays(batch)
    row = lambda tree: (jax.tree.structure(tree), [leaf.shape[1:] for leaf in jax.tree.leaves(tree)])
    if row(batch) != row(problem.source.data):
        raise ValueError(
            f"the batch must be of the structure of the problem's data, {shapes_of(problem.source.data)}; got {shapes_of(batch)}."
        )
    if model.batch_fn is not None:
        return dataclasses.replace(model, fed=True).problem(batch)
    rows, size = count_rows(batch), model.constraint_batch_size
    if (model.batch_size or 0) > rows or (size not in (None, model.num_rows) and size > rows):
        raise ValueError(f"the batch has {rows} rows, fewer than the batch sizes of the problem.")
    size = rows if size == model.num_rows else size
    return dataclasses.replace(model, num_rows=rows, constraint_batch_size=size).problem(batch)


def describe_data(problem: Problem) -> dict[str, Any] | None:
    """What a trace keeps of a problem's data, to tell them from others: sizes, and a sum over all bytes."""
    if problem.source is None:
        return None
    model = problem.source.model
    about = {
        "rows": model.num_rows,
        "batch_size": model.batch_size,
        "constraint_batch_size": model.constraint_batch_size,
    }
    return about | {"batch_fn": model.batch_fn is not None, "crc32": problem.source.crc32}


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


def _positive(name: str, value: Any, meaning: str) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive whole number ({meaning}); got {value!r}.")
    return int(value)
