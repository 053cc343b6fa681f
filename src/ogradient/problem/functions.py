"""The user's functions: taken in, compared, called, and what they return checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Position = Any  # any pytree of floating-point arrays
Functions = tuple[Callable[..., Any], ...]


class _Identity:
    """Something that cannot be hashed (a callable that holds arrays, say): the same only if it is the very object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __call__(self, *arguments: Any) -> Any:
        return self.value(*arguments)


def hashable(value: Any) -> Any:
    """A function, or a stand-in for one that cannot be hashed: compiled programs are found by it."""
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return value


def same_key(*parts: Any) -> tuple:
    """A hashable stand-in for functions and settings: equal where all of them are, by value where they have one."""

    def one(part: Any) -> Any:
        return tuple(one(item) for item in part) if isinstance(part, tuple) else hashable(part)

    return one(parts)


def as_functions(kind: str, given: Any) -> tuple[Callable[..., Any], ...]:
    """One function, a list of them or None, as a tuple."""
    functions = () if given is None else (given,) if callable(given) else given
    if not isinstance(functions, tuple | list) or not all(callable(f) for f in functions):
        raise ValueError(f"{kind} must be a function, or a list of functions; got {given!r}.")
    return tuple(functions)


def dtype_of(position: Position) -> Any:
    """The dtype that the leaves of a position have together."""
    return jnp.result_type(*jax.tree.leaves(position))


def as_positions(positions: Position) -> Position:
    """All leaves as arrays of one precision, the widest: in a narrower leaf x would lose its last digits at each step."""
    positions = jax.tree.map(jnp.asarray, positions)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(positions)}
    if len(dtypes) < 2 or not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
        return positions
    widest = max(dtypes, key=lambda dtype: jnp.finfo(dtype).bits)
    return jax.tree.map(lambda leaf: leaf.astype(widest), positions)


def first_of(positions: Position) -> Position:
    """The first of many positions, on the host where it can be looked at."""
    return jax.tree.map(lambda leaf: leaf[0] if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)[0], positions)


def leaf_names(tree: Position) -> list[str]:
    """A name for every leaf: its path with dots between, or `x` for a bare array."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".").replace("/", "_") or "x" for path in paths]
    while len(set(names)) < len(names):
        names = [name if names.count(name) == 1 else f"{name}.{i}" for i, name in enumerate(names)]
    return names


def stack(values: Sequence[Any], position: Position) -> Array:
    """What several functions returned at a position, as one flat array of its dtype."""
    dtype = dtype_of(position)
    rows = [jnp.ravel(jnp.asarray(value, dtype)) for value in values]
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
