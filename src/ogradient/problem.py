"""What is sampled: a log density, constraints, and the measure meant by "given the constraint"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

Position = Any  # any pytree of floating-point arrays
Functions = Callable[[Position], Any] | Sequence[Callable[[Position], Any]]
Measure = Literal["conditional", "hausdorff"]
LARGE_BATCH = 2**18  # bytes


@dataclass(frozen=True, eq=False)
class Problem:
    """A density restricted to g(x) = 0 (and h(x) ≤ 0).

    Args:
        logdensity_fn: log π of one position (any pytree of float arrays), a scalar, up to a constant.
        equality: g, wanted 0: a function of one position that returns a scalar or an array, or a list of such functions.
        inequality: h, wanted ≤ 0, in the same form.
        measure: which law on the set {g = 0} is meant, with J the Jacobian of g.
            `"conditional"`: π/√det(J Jᵀ) against surface area. This is p(x | g(x) = 0) of Bayes' rule.
            `"hausdorff"`: π itself against surface area.

    >>> import jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> float(problem.equality_fn(jnp.array([1.0, 1.0]))[0])
    2.0
    """

    logdensity_fn: Callable[[Position], Any]
    equality: Functions | None = None
    inequality: Functions | None = None
    measure: Measure = "conditional"
    source: Any = field(default=None, repr=False)  # data and what is done with them; set by `og.posterior`
    _equalities: tuple[Callable[[Position], Any], ...] = field(init=False, repr=False)
    _inequalities: tuple[Callable[[Position], Any], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.logdensity_fn):
            raise ValueError(
                f"logdensity_fn must be a function of a position; got {type(self.logdensity_fn).__name__}."
            )
        if self.measure not in get_args(Measure):
            raise ValueError(f"measure must be 'conditional' or 'hausdorff'; got {self.measure!r}.")
        for kind, name in (("equality", "_equalities"), ("inequality", "_inequalities")):
            functions = as_functions(kind, getattr(self, kind))
            object.__setattr__(self, name, functions)
            object.__setattr__(self, kind, getattr(self, kind) if functions else None)  # an empty list is none

    def __repr__(self) -> str:
        kinds = [kind for kind in ("equality", "inequality") if getattr(self, kind) is not None]
        what = "Problem" if self.source is None else f"posterior over {self.source}"
        return f"<{what} with {' and '.join(kinds) or 'no constraint'}, {self.measure} measure>"

    @property
    def stochastic(self) -> bool:
        """Whether a step sees a random part of the data, rather than all of them."""
        return self.source is not None and self.source.model.stochastic

    def view(self, key: Array | None) -> Problem:
        """The problem as one step sees it: with the batch that the step's key draws. Without batches, itself."""
        return self.source.view(key) if self.stochastic else self

    @property
    def whole(self) -> bool:
        """Whether the functions here are of all the data; not where those come batch by batch."""
        return self.source is None or self.source.model.batch_fn is None or self.source.model.fed

    def check_whole(self) -> None:
        """Refuse, with the remedy, data that come batch by batch: no call has all of them to judge by."""
        if not self.whole:
            raise ValueError(
                "the data come batch by batch, and no call has all of them: pass og.with_batch(problem, rows), with the rows to "
                "judge by."
            )

    @property
    def draws_together(self) -> int | None:
        """Of how many draws functions are computed together in diagnostics: data take memory for each; None is all."""
        return None if self.source is None else 16

    @property
    def chains_together(self) -> int | None:
        """How many chains or particles a step moves together; None is all.

        On a CPU one at a time where a batch is large: what a chain computes of it then stays in the cache, which is up to twice
        as fast as all chains side by side.
        """
        large = self.source is not None and self.source.batch_bytes > LARGE_BATCH
        return 1 if large and jax.default_backend() == "cpu" else None

    @property
    def constrained(self) -> bool:
        """Whether any equality or inequality was given."""
        return bool(self._equalities or self._inequalities)

    def logdensity(self, position: Position) -> Array:
        """Log π at one position, as a scalar of the position's dtype."""
        return jnp.asarray(self.logdensity_fn(position), _dtype(position))

    def equality_fn(self, position: Position) -> Array:
        """All equality functions at one position, flattened to shape (m,)."""
        return _stack(self._equalities, position)

    def inequality_fn(self, position: Position) -> Array:
        """All inequality functions at one position, flattened to shape (p,)."""
        return _stack(self._inequalities, position)

    def constraint_value(self, position: Position) -> dict[str, Array]:
        """`{"equality": (m,), "inequality": (p,)}` at one position; a kind that was not given is left out."""
        kinds = (("equality", self._equalities), ("inequality", self._inequalities))
        return {kind: _stack(functions, position) for kind, functions in kinds if functions}

    def flatten(self, position: Position) -> tuple[Array, Callable[[Array], Array], Callable[[Array], Array], Callable]:
        """The problem in flat coordinates: x of shape (d,), log density and g as functions of x, and the way back."""
        x, unravel = ravel_pytree(position)
        return x, lambda x: self.logdensity(unravel(x)), lambda x: self.equality_fn(unravel(x)), unravel

    def check(self, position: Position) -> None:
        """Check shapes and dtypes of one position and of what the functions return there, without computing.

        An exception raised inside a user's function passes through with the user's own traceback, and a note of the shapes.
        """
        leaves = jax.tree.leaves(position)
        if not leaves or sum(jnp.size(leaf) for leaf in leaves) == 0:
            raise ValueError("the position is empty; give at least one float array with at least one element.")
        for leaf in leaves:
            dtype = jnp.result_type(leaf)
            if not jnp.issubdtype(dtype, jnp.floating):
                raise ValueError(
                    f"positions must be real floating-point arrays; got a leaf of dtype {dtype}. "
                    "Convert it, for instance with jnp.asarray(x, float)."
                )
            if jnp.finfo(dtype).bits < 32:
                raise ValueError(
                    f"positions need at least 32 bits; got a leaf of dtype {dtype}, in which small moves would be rounded away. "
                    "Keep the position in float32 and cast inside your functions."
                )
        if self.source is not None:
            self.source.check(position)
        with calling("logdensity_fn", position):
            jax.eval_shape(lambda p: checked("logdensity_fn", self.logdensity_fn(p), scalar=True), position)
        for kind, functions in (("equality", self._equalities), ("inequality", self._inequalities)):
            for index, function in enumerate(functions):
                name = kind if len(functions) == 1 else f"{kind}[{index}]"
                with calling(name, position):
                    jax.eval_shape(lambda p, f=function, n=name: checked(n, f(p), scalar=False), position)
        dim, rows = sum(jnp.size(leaf) for leaf in leaves), jax.eval_shape(self.equality_fn, position).shape[0]
        if rows > dim:
            raise ValueError(
                f"equality returns {rows} values but the position has only {dim} coordinates, "
                "so they cannot all be independent. Drop the redundant ones; average those of single rows of data (jnp.mean)."
            )


# Compiled functions take a problem as an argument: its data then are arrays like any others, and not written into the program.
jax.tree_util.register_pytree_node(
    Problem,
    lambda problem: ((), problem) if problem.source is None else ((problem.source.data,), problem.source.model),
    lambda kept, children: kept if isinstance(kept, Problem) else kept.problem(children[0]),
)


def as_functions(kind: str, given: Any) -> tuple[Callable[..., Any], ...]:
    """One function, a list of them or None, as a tuple."""
    functions = () if given is None else (given,) if callable(given) else given
    if not isinstance(functions, tuple | list) or not all(callable(f) for f in functions):
        raise ValueError(f"{kind} must be a function, or a list of functions; got {given!r}.")
    return tuple(functions)


def _dtype(position: Position) -> Any:
    return jnp.result_type(*jax.tree.leaves(position))


def as_positions(positions: Position) -> Position:
    """All leaves as arrays of one precision, the widest: in a narrower leaf x would lose its last digits at each step."""
    positions = jax.tree.map(jnp.asarray, positions)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(positions)}
    if len(dtypes) < 2 or not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
        return positions
    widest = max(dtypes, key=lambda dtype: jnp.finfo(dtype).bits)
    return jax.tree.map(lambda leaf: leaf.astype(widest), positions)


def _stack(functions: tuple[Callable[[Position], Any], ...], position: Position) -> Array:
    dtype = _dtype(position)
    rows = [jnp.ravel(jnp.asarray(function(position), dtype)) for function in functions]
    return rows[0] if len(rows) == 1 else jnp.concatenate(rows) if rows else jnp.zeros((0,), dtype)


@contextmanager
def calling(name: str, position: Position, batch: Any = None) -> Iterator[None]:
    """An error inside a user's function keeps its traceback and gets a note: what was called, with what shapes."""
    try:
        yield
    except Exception as error:
        what = f"{name}(position)" if batch is None else f"{name}(position, batch) with batch {shapes_of(batch)} and"
        error.add_note(
            f"This happened in {what}{' with' if batch is None else ''} one position (one chain) {shapes_of(position)}."
        )
        raise


def shapes_of(tree: Any) -> str:
    """Shapes of all leaves of a pytree, by name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ", ".join(f"{jax.tree_util.keystr(path)}{list(jnp.shape(leaf))}" for path, leaf in leaves) or "nothing"


def checked(name: str, value: Any, *, scalar: bool) -> Array:
    """What a user's function returned, as an array; refused if it is not what the library can use."""
    wanted = "a scalar" if scalar else "a scalar or an array"
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must return {wanted}; got {type(value).__name__}: {value!r}.") from None
    if not (jnp.issubdtype(array.dtype, jnp.floating) or isinstance(value, int)):
        raise ValueError(f"{name} must return {wanted} of real floating-point numbers; got dtype {array.dtype}.")
    if scalar and array.shape != ():
        raise ValueError(
            f"{name} must return a scalar for one position; got shape {array.shape}. "
            "Sum over the terms (jnp.sum), and do not add a chain axis: the library maps over chains."
        )
    if array.size == 0:
        raise ValueError(f"{name} must return at least one value; got shape {array.shape}.")
    return array
