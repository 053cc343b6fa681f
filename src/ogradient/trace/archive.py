"""Groups of named arrays and a header in a Zarr folder: safe names, and a checksum for everything that is read back."""

from __future__ import annotations

import json
import os
import re
import unicodedata
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ogradient.status import warn
from ogradient.storage import checksum, find_folder, identity, write_folder_atomically

if TYPE_CHECKING:
    import xarray as xr

FORMAT = 2  # of the folder on disk; format 1 had no checksums
HEADER, HEADER_CHECKSUM = "ogradient", "ogradient_crc32"
LONGEST_NAME = 100  # bytes; file systems take 255, and dimensions add some
DAMAGED = "Restore it from a copy, or run again with the same seed."

OWN_FILES = re.compile(
    r"zarr\.json|(?P<group>posterior|sample_stats|state)/(zarr\.json|(?P<array>[^/]+)/(zarr\.json|c(/\d+)*))"
)

Arrays = dict[str, np.ndarray]


def names_on_disk(names: Iterable[str]) -> dict[str, str]:
    """What each variable is called on disk: its own name where every file system takes it, else a number.

    Names are compared as file systems may compare them, without regard to case or to how accents are encoded.
    """
    names = list(names)
    like = [unicodedata.normalize("NFKC", name).casefold() for name in names]

    def plain(name: str, folded: str) -> bool:
        fits = re.fullmatch(r"\w([\w.\- ]*\w)?", name) and len(name.encode(errors="replace")) <= LONGEST_NAME
        # The first axis of a variable x is called `x_dim_0`.
        taken = folded == "zarr.json" or re.search(r"_dim_\d+$|^variable_\d+$", folded)
        return bool(fits) and not taken and like.count(folded) == 1

    pairs = enumerate(zip(names, like, strict=True))
    return {name: name if plain(name, folded) else f"variable_{i}" for i, (name, folded) in pairs}


def write(
    path: Path, tree: xr.DataTree, names: Mapping[str, Mapping[str, str]], header: dict[str, Any], *, overwrite: bool
) -> None:
    """Write a tree of groups; `names` are those on disk of the variables that are called differently, by group."""
    sums, coordinates = {}, {}
    for group, node in tree.children.items():
        values = {str(name): array.values for name, array in node.dataset.data_vars.items()}
        sums[group] = {name: {**_kind(value), "crc32": checksum(value)} for name, value in values.items()}
        coordinates[group] = [str(name) for name in node.dataset.coords]
    aliases = {group: {alias: name for name, alias in some.items() if alias != name} for group, some in names.items()}
    text = json.dumps({"format": FORMAT, **header, "arrays": sums, "coordinates": coordinates, "names": aliases})
    tree.attrs = {HEADER: text, HEADER_CHECKSUM: zlib.crc32(text.encode())}

    def check(there: Path) -> None:
        if there.is_dir() and not any(there.iterdir()):
            return
        if not is_archive(there):
            why = f"{there} exists and is no trace; give another path, so that nothing of yours is overwritten."
        elif not overwrite:
            why = f"there is a trace at {there} already; give another path, or overwrite=True to replace it."
        elif (foreign := _foreign(there)) is not None:
            lost = "which is no part of the trace and would be lost"
            why = f"{there} holds {foreign}, {lost}; move it away, or give another path."
        else:
            return
        raise FileExistsError(why)

    write_folder_atomically(path, lambda folder: tree.to_zarr(folder, mode="w-", consolidated=False), check)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """The header, and the arrays of every group under their own names; an error if a byte differs from what was written."""
    for _ in range(10):
        if (place := find_folder(path)) is None:
            raise FileNotFoundError(f"no trace at {path}.")
        found, left_over = place
        which = identity(found)
        try:
            if not is_archive(found):
                raise ValueError(f"{path} is not a folder that Trace.save wrote.")
            header, groups = _read(found)
        except Exception as error:
            if which is None or identity(found) != which:
                # Another process replaced it meanwhile: read the new one.
                continue
            if isinstance(error, ValueError) and any(str(name) in str(error) for name in (path, found)):
                raise
            raise ValueError(f"{found} is damaged ({type(error).__name__}: {error}). {DAMAGED}") from error
        if left_over:
            before = f"This is the trace from before, found at {found}; the next save puts it back."
            warn(f"{path} is missing: a process was killed while it replaced it. {before}", RuntimeWarning)
        return header, groups
    raise OSError(f"{path} is replaced faster than it can be read.")


def is_archive(path: Path) -> bool:
    """Whether a folder was written here."""
    return _attributes(path) is not None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    import zarr

    attributes = _attributes(path) or {}
    text = attributes[HEADER]
    given = attributes.get(HEADER_CHECKSUM)
    whole = given == zlib.crc32(text.encode())
    header = json.loads(text) if whole or given is None else {}
    if header.get("format", 0) > FORMAT:
        raise ValueError(f"{path} was written by a newer ogradient (format {header['format']}); update to read it.")
    if not whole and header.get("format") != 1:
        raise ValueError(f"{path} is damaged: its header differs from what was saved. {DAMAGED}")
    root = zarr.open_group(path, mode="r")
    sums, names = header.get("arrays"), header.get("names", {})
    groups: dict[str, Arrays] = {}
    for group in sums or [name for name, _ in root.groups()]:
        node: Any = root[group]
        arrays, real = sums[group] if sums else dict.fromkeys(_variables(node)), names.get(group, {})
        groups[group] = {real.get(name, name): _array(path, group, name, node[name], arrays[name]) for name in arrays}
    return header, groups


def _array(path: Path, group: str, name: str, stored: Any, expected: dict[str, Any] | None) -> np.ndarray:
    """One array, checked against what was expected of it where that is known."""
    if expected is not None and _kind(stored) != {key: expected[key] for key in ("dtype", "shape")}:
        raise ValueError(f"{path} is damaged: {group}/{name} has another shape or dtype than was saved. {DAMAGED}")
    value = np.asarray(stored[...])
    if expected is not None and checksum(value) != expected["crc32"]:
        what = f"the numbers in {group}/{name} differ from those that were saved (checksum)"
        raise ValueError(f"{path} is damaged: {what}. {DAMAGED}")
    return value


def _variables(node: Any) -> list[str]:
    """The arrays of a group that are no coordinates, for format 1. A coordinate has its own name as its only dimension."""
    return [name for name, array in node.arrays() if list(array.metadata.dimension_names or ()) != [name]]


def _kind(array: Any) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": list(array.shape)}


def _attributes(path: Path) -> dict[str, Any] | None:
    try:
        attributes = json.loads((path / "zarr.json").read_text("utf-8"))["attributes"]
        return attributes if isinstance(attributes[HEADER], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _foreign(path: Path) -> str | None:
    """A file in the folder that was not written here, if there is one."""
    try:
        header = json.loads((_attributes(path) or {})[HEADER])
        known = {group: {*header["arrays"][group], *header["coordinates"][group]} for group in header["arrays"]}
    except (KeyError, TypeError, ValueError):
        # Of format 1, or damaged: judge by the pattern alone.
        known = None
    for place, _, files in os.walk(path):
        for name in files:
            file = (Path(place) / name).relative_to(path).as_posix()
            match = OWN_FILES.fullmatch(file)
            array = match and match["array"]
            if match is None or (array and known is not None and array not in known.get(match["group"], ())):
                return file
    return None
