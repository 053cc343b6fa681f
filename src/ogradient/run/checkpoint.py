"""Checkpoints of a run: what the same call needs to go on where a process ended, to the bits of an unbroken one.

A folder of files that are written once and never changed, and a header that names them, replaced as one. Whatever ends a process,
the header on disk names whole files. While settings are tuned, the windows of the warm-up are kept (`Journal`), and a call that
begins again is given their results in turn. Then each save adds the draws since the one before, and the state of all chains.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.interrupts import Interrupts
from ogradient.mapping import over_draws
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.run.asked import REMEDY, difference
from ogradient.run.loop import Run, versions
from ogradient.storage import checksum, lock_folder, read_arrays, write_arrays, write_atomically
from ogradient.trace import Trace

FORMAT = 1
HEADER, LOCK = "checkpoint.json", ".lock"
# What is written here, half-written files included.
OURS = re.compile(
    r"\.lock|checkpoint\.json|(draws|state|window)-\d+\.npz|\.(checkpoint\.json|(draws|state|window)-\d+\.npz)\.partial-.*"
)
SHARE = 0.05  # of a run's time that saving may take


class CheckpointError(OSError):
    """The disk does not take a checkpoint."""


class Checkpoint:
    """The checkpoint of one call, in a folder that no other process writes to meanwhile.

    `asked` is what the call is of, by name of argument; a folder of another call is refused.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any], every: float) -> None:
        self.path, self.every, self.asked = path, every, json.loads(json.dumps(asked))
        self.header: dict[str, Any] = {"format": FORMAT, "asked": self.asked, "windows": [], "pieces": [], "draws": 0}
        self.header |= {"state": None, "versions": versions()}
        self.found = 0  # draws that were there before this call
        self.counts, self.seconds = np.zeros(1, np.int64), 0.0  # likewise
        self.last, self.started, self.took = 0.0, 0.0, 0.0  # of saving
        self.journal = Journal(self)

    def __enter__(self) -> Checkpoint:
        if self.path.exists() and not (self.path / HEADER).exists():
            foreign = sorted(entry.name for entry in self.path.iterdir() if not OURS.fullmatch(entry.name))
            if foreign:
                raise FileExistsError(f"{self.path} holds {foreign[0]} and is no checkpoint; give another path.")
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = lock_folder(self.path)
        try:
            self._read_header()
            self._sweep()
        except BaseException:
            self.lock.close()
            raise
        self.last = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            # What ends the call is what matters, also where the disk takes no more.
            with Interrupts(), suppress(OSError):
                self.journal.flush()
        finally:
            self.lock.close()
            if not (self.path / HEADER).exists():
                # Nothing came of it, not even a folder.
                with suppress(OSError):
                    (self.path / LOCK).unlink()
                    self.path.rmdir()

    def _read_header(self) -> None:
        """What is there, if anything is; an error if it is of another call, or damaged."""
        file = self.path / HEADER
        if not file.exists():
            return
        try:
            found = json.loads(file.read_text("utf-8"))
            text = json.dumps({key: value for key, value in found.items() if key != "crc32"}, sort_keys=True)
            whole = found["crc32"] == zlib.crc32(text.encode())
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}). {REMEDY}") from error
        if not whole:
            raise ValueError(f"{file} is damaged: it differs from what was written. {REMEDY}")
        if found["format"] > FORMAT:
            raise ValueError(
                f"{self.path} was written by a newer ogradient (format {found['format']}). Update. {REMEDY}"
            )
        for name in {**self.asked, **found["asked"]}:
            then, now = found["asked"].get(name), self.asked.get(name)
            if then != now:
                raise ValueError(f"{self.path} is of another run: {difference(name, then, now)}. {REMEDY}")
        # Windows of another version may be others.
        self.header = found if found["versions"] == versions() else found | {"windows": [], "versions": versions()}
        self.found = found["draws"]

    def trace(self, problem: Problem, positions: Position) -> Trace | None:
        """The draws so far and the state to go on from; None where chains have not begun, or only their tuning has."""
        if self.header["state"] is None:
            return None
        state = self._read(self.header["state"])
        about, names = self.header["about"], self.header["stats"]
        structure = jax.tree.structure({"position": positions, "stats": dict.fromkeys(names, 0)})
        pieces = [self._read(piece) for piece in self.header["pieces"]]
        # The draw is the first axis of a piece, as chunks deliver them.
        whole = [np.moveaxis(np.concatenate(column), 0, 1) for column in zip(*pieces, strict=True)]
        rows = jax.tree.unflatten(structure, whole)
        self.counts, self.seconds = state[0], about["seconds"]
        trace = Trace(rows["position"], rows["stats"], state[0], dict(about), state[1:], problem)
        _check_same_density(self.path, trace, problem)
        return trace

    def after_chunk(self, run: Run) -> None:
        """Save, if it is time."""
        if self.due():
            self.save(run)

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self.last >= max(self.every, self.took / SHARE)

    def save(self, run: Run) -> None:
        """Write what is new of a run, then the header.

        What is new is what the header does not have: whatever breaks in between, no draw is written twice.
        """
        self.started = time.monotonic()
        states, done, counts, pieces = run.progress
        state, header = run.placement.chains(states), dict(self.header)
        # After an error inside a chunk that computed in place there is no state, and what was saved before it stands.
        if state is None or (header["state"] is not None and done == header["about"]["num_steps"]):
            return
        new, skipped = [], self.found
        for rows in run.sink.pieces[:pieces]:
            if skipped >= header["draws"]:
                new.append(rows)
            skipped += _length(rows)
        if new:
            added = [jax.tree.map(lambda *leaves: np.concatenate(leaves), *new)]
        else:
            added = [] if header["pieces"] else [jax.tree.map(lambda leaf: np.moveaxis(leaf, 1, 0), run.nothing())]
        header["pieces"] = header["pieces"] + [self._write(f"draws-{done}", jax.tree.leaves(rows)) for rows in added]
        for rows in added:
            header |= {"stats": sorted(rows["stats"]), "draws": header["draws"] + _length(rows)}
        header["state"] = self._write(f"state-{done}", [counts + self.counts, *jax.tree.leaves(state)])
        header |= {"about": run.provenance(self.seconds + run.seconds), "windows": []}
        self.write_header(header)

    def _write(self, name: str, arrays: list[Any]) -> dict[str, Any]:
        """A file of arrays, and what the header says of it."""
        arrays = [np.asarray(array) for array in arrays]
        file = f"{name}.npz"
        with _Explained(self.path):
            write_arrays(self.path / file, arrays)
        return {"file": file, "dtypes": [str(a.dtype) for a in arrays], "crc32": [checksum(a) for a in arrays]}

    def write_header(self, header: dict[str, Any]) -> None:
        """Replace the header, and remove what it no longer names."""
        text = json.dumps({key: value for key, value in header.items() if key != "crc32"}, sort_keys=True)
        header = json.loads(text)
        with _Explained(self.path):
            write_atomically(self.path / HEADER, json.dumps(header | {"crc32": zlib.crc32(text.encode())}))
        self.header = header
        self._sweep()
        self.last = time.monotonic()
        self.took = self.last - self.started

    def _sweep(self) -> None:
        """Remove files of ours that the header does not name, such as those that killed processes left half written."""
        parts = (*self.header["windows"], *self.header["pieces"], self.header["state"])
        known = {HEADER, LOCK, *(part["file"] for part in parts if part)}
        for entry in self.path.iterdir():
            if OURS.fullmatch(entry.name) and entry.name not in known:
                with suppress(OSError):
                    entry.unlink()

    def _read(self, part: dict[str, Any]) -> list[np.ndarray]:
        file = self.path / part["file"]
        try:
            arrays = read_arrays(file, len(part["crc32"]))
            # Files of NumPy do not know the numbers that JAX has beside its own.
            arrays = [
                a if str(a.dtype) == n else a.view(jnp.dtype(n)) for a, n in zip(arrays, part["dtypes"], strict=True)
            ]
        except Exception as error:
            raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}). {REMEDY}") from error
        if [checksum(array) for array in arrays] != part["crc32"]:
            raise ValueError(f"{file} is damaged: its numbers differ from those that were written. {REMEDY}")
        return arrays


class Journal:
    """What windows of the warm-up have found, in the order in which they ran: read from the checkpoint, and written to it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.next = checkpoint, 0
        self.added: list[tuple[list[Any], list[np.ndarray]] | None] = []  # by this call; None when they are on disk
        self.first: int | None = None  # where in the header the first of them is

    def read(self, which: list[Any]) -> list[np.ndarray] | None:
        """What the next window, told by `which`, has found in an earlier call; None where it has not run."""
        keep = self.checkpoint
        windows = keep.header["windows"]
        if self.first is not None or self.next >= len(windows):
            return None
        if windows[self.next]["which"] != which:
            # It was another one: this and what follows is run anew.
            keep.header = keep.header | {"windows": windows[: self.next]}
            return None
        self.next += 1
        return keep._read(windows[self.next - 1])

    def add(self, which: list[Any], found: list[Any]) -> None:
        """Keep what a window has found; on disk when it is time."""
        self.first = self.next if self.first is None else self.first
        self.added.append((which, [np.asarray(array) for array in found]))
        if self.checkpoint.due():
            self.flush()

    def flush(self) -> None:
        """Write what the header does not have, unless the tuning it is of is over."""
        keep = self.checkpoint
        if self.first is None or keep.header["state"] is not None:
            return
        keep.started, windows = time.monotonic(), list(keep.header["windows"])
        there = len(windows) - self.first
        new = [entry for entry in self.added[there:] if entry is not None]
        if not new:
            return
        for which, arrays in new:
            windows.append(keep._write(f"window-{len(windows)}", arrays) | {"which": which})
        keep.write_header(keep.header | {"windows": windows})
        self.added = [None] * (len(windows) - self.first)


class _Explained:
    """Says of an error of the disk what it means for the checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise CheckpointError(
                error.errno,
                f"the checkpoint at {self.path} cannot be written ({error.strerror or error}). What it held before is whole: "
                "when the disk takes it again, the same call goes on from there",
            ) from error


def _length(rows: Any) -> int:
    return len(jax.tree.leaves(rows["position"])[0])


def _check_same_density(path: Path, trace: Trace, problem: Problem) -> None:
    """Log π at the last draws must be what it was: functions can get at values that nobody sees in them."""
    if trace.num_draws == 0 or "lp" not in trace.sample_stats:
        return
    last = jax.tree.map(lambda leaf: leaf[:, -1], trace.position)
    function = _particle_densities if trace.ensemble else Problem.logdensity
    now, then = np.asarray(over_draws(function, problem, last)), trace.sample_stats["lp"][:, -1]
    fine = np.abs(now - then) <= np.sqrt(np.finfo(now.dtype).eps) * (1 + np.abs(then))
    if now.shape != then.shape or not np.all(fine | (now == then) | (np.isnan(now) & np.isnan(then))):
        raise ValueError(
            f"{path} is of another run: the log density has other values at its last draws than it had. {REMEDY}"
        )


def _particle_densities(problem: Problem, position: Position) -> Array:
    return jax.vmap(problem.logdensity)(position)
