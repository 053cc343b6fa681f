"""Packages that only a part of the library needs, and what to install when one is missing."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


class MissingExtraError(ImportError):
    """A package of an extra is not installed. The message is one line and says how to get it."""


def need(package: str, reason: str, extra: str) -> Any:
    """The package, imported. Raises as `require` does."""
    require(package, reason, extra)
    return importlib.import_module(package)


def require(package: str, reason: str, extra: str) -> None:
    """Raise where the package is not installed. Nothing is imported, so this is cheap.

    Args:
        package: by the name it is imported by.
        reason: how the message begins, such as "the datasets need".
        extra: the extra that brings the package.
    """
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise MissingExtraError(f"{reason} {package}: pip install 'ogradient[{extra}]'", name=package)
