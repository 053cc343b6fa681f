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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

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
    # A link stays a link.
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # What a killed process had renamed gets its name back, unless another one did it.
        for left in _left_over(path, "old")[-1:]:
            with suppress(OSError):
                os.rename(left, path)
    _check(path, check)
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
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        raise
    # Even where nothing has the name now: another writer is between its two renames, and has this one's folder.
    shutil.rmtree(old, ignore_errors=True)
    partials, olds = _left_over(path, "partial"), _left_over(path, "old")
    # Looked for before the name is looked at. Where nothing has the name, another writer was killed between its two renames, and
    # one of them is all there is.
    for left in partials + (olds if path.exists() else []):
        shutil.rmtree(left, ignore_errors=True)


def find_folder(path: Path) -> tuple[Path, bool] | None:
    """Where a folder is, and whether a process left it there that was killed while replacing it; None where it is nowhere."""
    real, patience, missing = Path(os.path.realpath(path)), 20, 0
    for attempt in range(patience):
        left = _hidden(real, "old")
        if real.exists():
            return path, False
        if left and (_is_dead(left[-1]) or attempt == patience - 1):
            return left[-1], True
        # A folder can change its name between two looks, but hardly three times.
        missing = 0 if left else missing + 1
        if missing == 3:
            break
        # A live process may be between its two renames.
        time.sleep(0.02)
    return None


def _swap(partial: Path, path: Path, old: Path, check: Callable[[Path], None]) -> None:
    """Give `partial` the name `path`; what had that name is called `old` after. On an error all is as it was."""
    try:
        while not _renamed(partial, path):
            _check(path, check)
            # Another writer may have been faster, after this one had renamed the folder that was there.
            if old.exists():
                shutil.rmtree(old, ignore_errors=True)
            # Another writer may be between its two renames.
            with suppress(FileNotFoundError):
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
        # Another writer may have moved it away since.
        full = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if full or (error.errno in (errno.ENOTDIR, errno.EACCES) and path.exists()):
            return False
        raise
    return True


def _check(path: Path, check: Callable[[Path], None]) -> None:
    """Call `check` with what has the name, if anything has. A complaint counts only of what stayed there all the while."""
    while (before := identity(path)) is not None:
        try:
            check(path)
        except OSError:
            if identity(path) == before:
                raise
        else:
            return


def identity(path: Path) -> tuple[int, int, int] | None:
    """What tells a folder from another one that gets its name later; None where there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    # The number of a folder that is removed may soon be another one's.
    return about.st_dev, about.st_ino, about.st_ctime_ns


def _remove_for_good(folder: Path) -> None:
    """Remove a folder that other threads may still be writing to, which would make it anew."""
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)
        if not folder.exists():
            return


def _left_over(path: Path, what: str) -> list[Path]:
    """Hidden folders of processes on this machine that no longer run, the oldest first."""
    return [entry for entry in _hidden(path, what) if _is_dead(entry)]


def _hidden(path: Path, what: str) -> list[Path]:
    """Hidden folders of any process, the oldest first."""
    found = {}
    with suppress(OSError):
        for entry in path.parent.iterdir():
            if entry.name.startswith(f".{path.name}.{what}-"):
                found[entry] = 0.0
                with suppress(OSError):
                    found[entry] = entry.stat().st_mtime
    return sorted(found, key=found.__getitem__)


def _is_dead(hidden: Path) -> bool:
    """Whether the process that a hidden folder belongs to no longer runs; False where that cannot be known."""
    # Earlier versions named the process only, not the machine.
    match = re.search(r"\.(?:partial|old)-(?:([^-]*)-)?(\d+)(?:-[0-9a-f]{8})?$", hidden.name)
    if match is None or match[1] not in (None, _host()) or os.name != "posix":
        return False
    try:
        os.kill(int(match[2]), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _host() -> str:
    """A name of this machine that fits into file names."""
    return "".join(c for c in socket.gethostname() if c.isalnum())[:32] or "host"


def _sync(folder: Path) -> None:
    """Have the disk hold all of a folder. Before that, a power cut could leave its name and not its bytes."""
    for place, _, files in os.walk(folder):
        for name in files:
            _sync_one(Path(place) / name)
        _sync_one(Path(place))


def _sync_one(path: Path) -> None:
    # On other systems folders cannot be opened.
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Write a file of arrays, in their order, beside its name, and rename it when all of it is on the disk."""
    partial = beside(path, "partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, *arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_arrays(path: Path, count: int) -> list[np.ndarray]:
    """The arrays of a file; an error if it is not what was written."""
    with np.load(path, allow_pickle=False) as file:
        return [file[f"arr_{i}"] for i in range(count)]


def lock_folder(path: Path) -> IO[str]:
    """Keep other processes from writing to a folder until what is returned is closed, or this process ends."""
    file = open(path / ".lock", "a+")  # noqa: SIM115, the caller closes it
    # Other systems have no such locks.
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise BlockingIOError(
                errno.EAGAIN, f"another process is writing to {path}; wait for it, or give another path"
            ) from None
        except OSError:
            # File systems without locks.
            pass
    return file
