"""Settings of an experiment that a user may change: declared in its `Config`, read by the command line."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints


class Option(NamedTuple):
    """One option of a command.

    A field that holds several of `choices` is set by naming one of them; by default it has them all.
    """

    name: str
    field: str
    type: Any
    default: Any  # MISSING: required; None: the field's own
    help: str
    min: float | None
    choices: tuple[str, ...]
    several: bool
    positional: bool


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    min: float | None = None,
    choices: Sequence[str] = (),
    name: str | None = None,
    positional: bool = False,
) -> Any:
    """A field of a `Config` that is an option of the command.

    Args:
        default: where the option is not given.
        help: one line on it.
        min: the least value allowed.
        choices: the values allowed.
        name: of the option; by default that of the field.
        positional: whether it is given by its place instead of by its name.
    """
    about = {"help": help, "min": min, "choices": tuple(choices), "positional": positional}
    return dataclasses.field(default=default, metadata={"option": about, "name": name})


def several(choices: Sequence[str], help: str, name: str) -> Any:
    """A field that holds all of `choices`; the option `name` leaves one of them."""
    return option(tuple(choices), help, choices=choices, name=name)


def chains(default: int) -> Any:
    """The option `--chains`."""
    return option(default, "Independent chains (the paper has 50).", min=2)


def samples(default: int) -> Any:
    """The option `--samples`."""
    return option(default, "Draws kept per chain.", min=10)


def seed() -> Any:
    """The option `--seed`."""
    return option(0, "The same seed gives the same numbers.", min=0)


def training_steps(default: int) -> Any:
    """The option `--steps` of an experiment on real data."""
    return option(default, "Steps per run, in place of the paper's.", min=1)


def training_seeds(default: int) -> Any:
    """The option `--seeds` of an experiment on real data."""
    return option(default, f"Runs of each sampler, in place of {default}.", min=1)


def options_of(module: ModuleType) -> list[Option]:
    """The options of an experiment, in the order of its fields. A default that `--quick` changes is left open (None)."""
    types, quick, found = get_type_hints(module.Config), getattr(module, "QUICK", None), []
    for field in dataclasses.fields(module.Config):
        about = field.metadata.get("option")
        if about is None:
            continue
        several = isinstance(field.default, tuple)
        depends = quick is not None and getattr(quick, field.name) != field.default
        default = None if several or depends else field.default
        kind = str if several else types[field.name]
        name = field.metadata["name"] or field.name
        found.append(Option(name, field.name, kind, default, several=several, **about))
    return found


def configure(module: ModuleType, given: Mapping[str, Any], *, quick: bool = False) -> Any:
    """The experiment's `Config` with the values given by option name. None leaves a field as it is.

    Raises:
        ValueError: for a value that is none of its choices, or settings that the experiment itself refuses.
    """
    values = {}
    for item in options_of(module):
        value = given.get(item.name)
        if value is None:
            continue
        if item.choices and value not in item.choices:
            what = item.field if item.positional else item.name
            raise ValueError(f"{what} {value!r} is none of {', '.join(item.choices)}.")
        values[item.field] = (value,) if item.several else value
    config = dataclasses.replace(module.QUICK, **values) if quick else module.Config(**values)
    if hasattr(module, "check"):
        module.check(config)
    return config


def reads_data(module: ModuleType) -> bool:
    """Whether the experiment reads raw files, from the folder `data`; its `DATA_HELP` says which."""
    return "data" in inspect.signature(module.run).parameters
