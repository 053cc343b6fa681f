"""Folders on disk that are whole or not there: written beside their name, renamed, checked when read.

A folder `trace.zarr` is written as `.trace.zarr.partial-…` and renamed when it is whole. One that it replaces is called
`.trace.zarr.old-…` for the moment between two renames; after a kill in that moment it is found under that name. A rename never
replaces a folder that has something in it, so writers need no lock: who comes second renames once more.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from ogradient.interrupts import Interrupts


def checksum(array: np.ndarray, start: int = 0) -> int:
    """CRC-32 of the bytes of an array, which are not copied. 1 GB takes 0.3 seconds."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, start)


def beside(path: Path, what: str) -> Path:
    """A hidden name next to `path` that nobody else has; it says whose it is, so that others can tell what is left over."""
    return path.with_name(f".{path.name}.{what}-{_host()}-{os.getpid()}-{secrets.token_hex(4)}")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file beside its name and rename it: a reader sees the old one or the new one, never half of one."""
    partial = beside(path, "partial")
    try:
        with open(partial, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_folder_atomically(path: Path, write: Callable[[Path], object], check: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside `path`, and give it that name once it is whole and on the disk.

    `check` is called with the folder that is there already, if there is one, before and after the writing; it raises where that
    folder must stay. What dead processes left of earlier attempts is put back or swept.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    _put_back(path)
    if os.path.lexists(path):
        check(path)
    partial, old = beside(path, "partial"), beside(path, "old")
    try:
        write(partial)
        _sync(partial)
        with Interrupts() as interrupts:
            _swap(partial, path, old, check)
        if interrupts.waiting:
            raise KeyboardInterrupt
    except BaseException:
        _remove_for_good(partial)
        raise
    finally:
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
    for left in _left_over(path, "partial") + _left_over(path, "old"):
        shutil.rmtree(left, ignore_errors=True)


def find_folder(path: Path) -> tuple[Path, bool]:
    """Where a folder is: under its name, or where a process that was killed while replacing it left it (and then True)."""
    real, patience = Path(os.path.realpath(path)), 20
    for attempt in range(patience):
        left = _hidden(real, "old")
        if real.exists() or (attempt and not left):
            break
        if left and (_is_dead(left[-1]) or attempt == patience - 1):
            return left[-1], True
        time.sleep(0.02)  # a live process may be between its two renames
    return path, False


def _swap(partial: Path, path: Path, old: Path, check: Callable[[Path], None]) -> None:
    try:
        while not _renamed(partial, path):
            check(path)
            if old.exists():  # another writer was faster, after this one had made room
                shutil.rmtree(old, ignore_errors=True)
            with suppress(FileNotFoundError):  # another writer is between its two renames
                os.rename(path, old)
    except BaseException:
        if old.exists() and not path.exists():
            os.rename(old, path)
        raise
    _sync_one(path.parent)


def _renamed(folder: Path, path: Path) -> bool:
    """Give a folder its name; False where a file, or a folder with something in it, has that name."""
    try:
        os.rename(folder, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EACCES) and path.exists():
            return False
        raise
    return True


def _remove_for_good(folder: Path) -> None:
    """Remove a folder that other threads may still be writing to, which would make it anew."""
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)
        if not folder.exists():
            return


def _put_back(path: Path) -> None:
    """What a killed process had renamed gets its name back."""
    if not path.exists():
        for left in _left_over(path, "old")[-1:]:
            with suppress(OSError):  # another one did it
                os.rename(left, path)


def _left_over(path: Path, what: str) -> list[Path]:
    """Hidden folders of processes on this machine that no longer run, the oldest first."""
    return [entry for entry in _hidden(path, what) if _is_dead(entry)]


def _hidden(path: Path, what: str) -> list[Path]:
    try:
        found = [entry for entry in path.parent.iterdir() if entry.name.startswith(f".{path.name}.{what}-")]
    except OSError:
        return []
    return sorted(found, key=_changed)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _is_dead(hidden: Path) -> bool:
    """Whether the process that a hidden folder is of no longer runs; what cannot be known is taken for alive."""
    match = re.search(r"\.(?:partial|old)-(?:([^-]*)-)?(\d+)(?:-[0-9a-f]{8})?$", hidden.name)
    if (
        match is None or match[1] not in (None, _host()) or os.name != "posix"
    ):  # earlier versions named the process only
        return False
    try:
        os.kill(int(match[2]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _host() -> str:
    return "".join(c for c in socket.gethostname() if c.isalnum())[:32] or "host"


def _sync(folder: Path) -> None:
    """Have the disk hold all of a folder before it gets its name: else a power cut could leave the name and not the bytes."""
    for place, _, files in os.walk(folder):
        for name in files:
            _sync_one(Path(place) / name)
        _sync_one(Path(place))


def _sync_one(path: Path) -> None:
    if os.name == "posix":  # elsewhere folders cannot be opened
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
