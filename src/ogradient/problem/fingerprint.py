"""What the code of the user's functions says, as a few digits: to notice that a run is continued with other functions."""

from __future__ import annotations

import dataclasses
import dis
import functools
import types
import zlib
from collections.abc import Iterator
from typing import Any, TypeGuard

import numpy as np

LARGE = 2**20  # bytes of an array in a module from which on its shape stands for it
_PLAIN = str | bytes | int | float | complex | None


def fingerprint(function: Any) -> str:
    """Eight digits of a function's code, of values it closes over, and of functions, numbers and arrays of its own module.

    Names of local variables, comments and docstrings do not count, nor do variables that the function itself changes. Two
    functions with the same digits may still differ, in what they get from elsewhere; other digits mean that something was
    rewritten, or that a value is another.

    >>> fingerprint(lambda x: 2 * x) == fingerprint(lambda y: 2 * y), fingerprint(lambda x: 2 * x) == fingerprint(lambda x: 3 * x)
    (True, False)
    """
    total = 0
    for part in _parts(function, set()):
        total = zlib.crc32(part, total)
    return f"{total:08x}"


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    value = getattr(value, "__wrapped__", value)  # what jax.jit and functools.wraps are made around
    if id(value) in seen:
        return
    if isinstance(value, functools.partial):
        yield from _parts((value.func, *value.args, *sorted(value.keywords.items())), seen)
    elif isinstance(value, types.FunctionType):
        seen.add(id(value))
        yield from _code(value.__code__, value.__doc__, seen)
        # What a function itself changes (a count of calls, say) is not what it says.
        changed = set(_names(value.__code__, "STORE_DEREF", "STORE_GLOBAL"))
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if name not in changed:
                yield from _parts(_content(cell), seen)
        yield from _parts((value.__defaults__, value.__kwdefaults__), seen)
        for name in dict.fromkeys(_names(value.__code__, "LOAD_GLOBAL", "LOAD_NAME")):
            known = value.__globals__.get(name)
            own = isinstance(known, types.FunctionType) and known.__module__ == value.__module__
            if own or (name not in changed and known is not None and isinstance(known, _PLAIN)):
                yield from _parts(known, seen)
            elif name not in changed and _is_array(known):
                # Data in a module may be large, and this is asked in every call.
                small = known.size * known.dtype.itemsize <= LARGE
                yield from _parts(known, seen) if small else (f"{known.dtype}{known.shape}".encode(),)
    elif isinstance(value, types.MethodType):
        yield from _parts((value.__func__, value.__self__), seen)
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, list | dict):
        # Numbers in them change as a program runs (a count of calls, say); arrays and functions are what it computes with.
        items = value if isinstance(value, list) else [value[key] for key in sorted(value, key=repr)]
        yield from _parts(tuple(item for item in items if not isinstance(item, _PLAIN)), seen)
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_value(value):
        seen.add(id(value))
        yield type(value).__qualname__.encode()
        yield from _parts(tuple(getattr(value, field.name) for field in dataclasses.fields(value)), seen)
    elif _is_array(value):
        array = np.ascontiguousarray(value)
        yield f"{array.dtype}{array.shape}".encode() + array.tobytes()
    else:
        yield getattr(value, "__qualname__", type(value).__qualname__).encode()


def _is_array(value: Any) -> TypeGuard[Any]:
    return hasattr(value, "__array__") and hasattr(value, "dtype")


def _is_value(value: Any) -> bool:
    """Whether a dataclass is one of settings: frozen, and equal to another with equal fields."""
    parameters = type(value).__dataclass_params__
    return bool(parameters.frozen and parameters.eq)


def _names(code: types.CodeType, *operations: str) -> Iterator[str]:
    """The names that operations of some kinds have in a function, and in those inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in operations:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant, *operations)


def _code(code: types.CodeType, doc: str | None, seen: set[int]) -> Iterator[bytes]:
    yield code.co_code + repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant, None, seen)
        elif isinstance(constant, frozenset):
            yield repr(sorted(constant, key=repr)).encode()
        elif constant is not None and constant != doc:  # a function without a docstring has None in its place
            yield repr(constant).encode()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
