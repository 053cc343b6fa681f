"""`og.posterior`: a prior, a likelihood and constraints over data, whole or in minibatches, as a `Problem`.

The batch of a step is drawn inside the compiled loop from the step's key, so that runs repeat to the bit. Sums over rows stay
unbiased under N/B. A constraint does not: ĝ of a batch enters as J⁺ψ(ĝ) and D, which are not linear in it. What is then
obeyed is near {E ĝ = 0}, off by the size of the batch's noise in g; a larger constraint batch, or all rows, removes that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from ogradient.problem import Measure, Problem
from ogradient.problem.data import Batch, Data, Model, as_arrays, count_rows
from ogradient.problem.functions import Position, as_functions, shapes_of

DataFunctions = Callable[[Position, Any], Any] | Sequence[Callable[[Position, Any], Any]]


def posterior(
    logprior_fn: Callable[[Position], Any],
    loglikelihood_fn: Callable[[Position, Batch], Any] | None = None,
    data: Batch | Callable[[int], Batch] = None,
    *,
    equality: DataFunctions | None = None,
    inequality: DataFunctions | None = None,
    measure: Measure = "conditional",
    support: Any = None,
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
            makes a minibatch stand for all rows is applied here, not by you. None: data enter by the constraint alone. On
            the set {loss = level} a likelihood exp(−N·loss) is a constant: nothing is lost, and a backward pass saved.
        data: a pytree of arrays, rows first, such as `(X, y)`; or, for data larger than memory, a function
            `batch_fn(step)` that returns the batch of an absolute step, always of the same shapes. `og.sample` calls it ahead of
            time in a thread; all chains share the batch of a step.
        equality: g(position, batch), wanted 0, or a list of such; averages over rows, usually.
        inequality: h(position, batch), wanted ≤ 0, in the same form.
        measure: as in `og.Problem`.
        support: as in `og.Problem`.
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
    if joint_fn is not None and loglikelihood_fn is not None:
        raise ValueError("give loglikelihood_fn, or joint_fn in its place; not both.")
    if joint_fn is None and loglikelihood_fn is None and equality is None and inequality is None:
        raise ValueError(
            "nothing here sees the data: give loglikelihood_fn (or joint_fn), or a constraint on the data, such as a level of "
            "a loss."
        )
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
        num_rows=rows,
        batch_size=None if batch_size == rows else batch_size,
        constraint_batch_size=None
        if constraint_batch_size == rows and batch_size in (None, rows)
        else constraint_batch_size,
        batch_fn=batch_fn,
        joint_kinds=() if joint_fn is None else tuple(joint_kinds),
    )
    return _problem(Data(model, arrays), measure, support)


def _problem(data: Data, measure: Measure, support: Any = None) -> Problem:
    """A problem whose functions are those of the data's model."""
    model = data.model
    part = lambda kind: model.joint_fn if kind in model.joint_kinds else None
    equality, inequality = model.equalities or part("equality"), model.inequalities or part("inequality")
    return Problem(None, equality, inequality, measure, support, data)


def with_batch(problem: Problem, batch: Batch) -> Problem:
    """A problem over data with other arrays in their place, of the same structure: the batch of a step, or new data."""
    if problem.data is None:
        raise ValueError("with_batch is for problems of og.posterior; this one has no data.")
    model = problem.data.model
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(batch)):
        batch = as_arrays(batch)
    row = lambda tree: (jax.tree.structure(tree), [leaf.shape[1:] for leaf in jax.tree.leaves(tree)])
    if row(batch) != row(problem.data.rows):
        raise ValueError(
            f"the batch must be of the structure of the problem's data, {shapes_of(problem.data.rows)}; got {shapes_of(batch)}."
        )
    if model.batch_fn is not None:
        return _with(problem, dataclasses.replace(model, fed=True), batch)
    rows, size = count_rows(batch), model.constraint_batch_size
    if (model.batch_size or 0) > rows or (size not in (None, model.num_rows) and size > rows):
        raise ValueError(f"the batch has {rows} rows, fewer than the batch sizes of the problem.")
    size = rows if size == model.num_rows else size
    return _with(problem, dataclasses.replace(model, num_rows=rows, constraint_batch_size=size), batch)


def _with(problem: Problem, model: Model, rows: Batch) -> Problem:
    return dataclasses.replace(problem, data=Data(model, rows))


def _positive(name: str, value: Any, meaning: str) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive whole number ({meaning}); got {value!r}.")
    return int(value)
