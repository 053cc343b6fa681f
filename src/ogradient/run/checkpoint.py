"""Checkpoints of a run: what the same call needs to go on where a process ended, to the bits of an unbroken one.

A folder of files that are written once and never changed, and a header that names them, replaced as one. Whatever ends a process,
the header on disk names whole files. While settings are tuned, the windows of the warm-up are kept (`Journal`), and a call that
begins again is given their results in turn. Then each save adds the draws since the one before, and the state of all chains.
"""

from __future__ import annotations

import json
import os
import platform
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax import Array

from ogradient.problem import Problem
from ogradient.problem.fingerprint import fingerprint
from ogradient.problem.functions import Position
from ogradient.run.loop import Run
from ogradient.samplers.base import kernel_of, plain_settings
from ogradient.storage import checksum, lock_folder, read_arrays, write_arrays, write_atomically
from ogradient.trace import Trace

FORMAT = 1
HEADER = "checkpoint.json"
SHARE = 0.05  # of a run's time that saving may take
REMEDY = "Give another path, or remove the folder to begin anew."
SHOWN = 120  # characters of a value in a message


class Checkpoint:
    """The checkpoint of one call, in a folder that no other process writes to meanwhile.

    `asked` is what the call is of, by name of argument; a folder of another call is refused.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any], every: float) -> None:
        self.path, self.every, self.asked = path, every, json.loads(json.dumps(asked))
        self.header: dict[str, Any] = {
            "format": FORMAT,
            "asked": self.asked,
            "windows": [],
            "pieces": [],
            "state": None,
        }
        self.written = 0  # pieces of the run's sink
        self.before, self.counts, self.seconds = 0, np.zeros(1, np.int64), 0.0  # of the calls before this one
        self.last, self.started, self.took = 0.0, 0.0, 0.0  # of saving
        self.journal = Journal(self)

    def __enter__(self) -> Checkpoint:
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = lock_folder(self.path)
        try:
            self._read_header()
        except BaseException:
            self.lock.close()
            raise
        self.last = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self.journal.flush()
        self.lock.close()

    def _read_header(self) -> None:
        """What is there, if anything is; an error if it is of another call, or damaged."""
        file = self.path / HEADER
        if not file.exists():
            foreign = sorted(entry.name for entry in self.path.iterdir() if not _is_ours(entry.name))
            if foreign:
                raise FileExistsError(f"{self.path} holds {foreign[0]} and is no checkpoint; give another path.")
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
        for name, now in self.asked.items():
            then = found["asked"].get(name)
            if then != now:
                raise ValueError(f"{self.path} is of another run: {_difference(name, then, now)}. {REMEDY}")
        self.header = found

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
        counts, leaves = state[0], state[1:]
        self.before, self.counts, self.seconds = about["num_steps"], counts, about["seconds"]
        return Trace(rows["position"], rows["stats"], counts, dict(about), leaves, problem)

    def after_chunk(self, run: Run) -> None:
        """Save, if it is time."""
        if self.due():
            self.save(run)

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self.last >= max(self.every, self.took / SHARE)

    def save(self, run: Run) -> None:
        """Write what is new of a run, then the header."""
        states, done, counts, pieces = run.progress
        state = run.placement.chains(states)
        # After an error inside a chunk that computed in place there is no state, and what was saved before it stands.
        if state is None or (done == self.before and self.header["state"] is not None):
            return
        new = run.sink.pieces[self.written : pieces]
        added = []
        if not new and not self.header["pieces"]:
            added = [jax.tree.map(lambda leaf: np.moveaxis(leaf, 1, 0), run.nothing())]
        elif new:
            added = [jax.tree.map(lambda *leaves: np.concatenate(leaves), *new)]
        header = dict(self.header)
        header["pieces"] = header["pieces"] + [self._write(f"draws-{done}", jax.tree.leaves(rows)) for rows in added]
        for rows in added:
            header["stats"] = sorted(rows["stats"])
        header["state"] = self._write(f"state-{done}", [counts + self.counts, *jax.tree.leaves(state)])
        header["about"] = run.provenance(self.seconds + run.seconds)
        header["windows"] = []
        self._write_header(header)
        self.written, self.before = pieces, done

    def _write(self, name: str, arrays: list[Any]) -> dict[str, Any]:
        """A file of arrays, and what the header says of it."""
        self.started = time.monotonic()
        arrays = [np.asarray(array) for array in arrays]
        file = f"{name}.npz"
        with self._explained():
            write_arrays(self.path / file, arrays)
        return {"file": file, "crc32": [checksum(array) for array in arrays]}

    def _write_header(self, header: dict[str, Any]) -> None:
        text = json.dumps({key: value for key, value in header.items() if key != "crc32"}, sort_keys=True)
        header = json.loads(text)
        with self._explained():
            write_atomically(self.path / HEADER, json.dumps(header | {"crc32": zlib.crc32(text.encode())}))
        self.header = header
        known = {part["file"] for part in (*header["windows"], *header["pieces"], header["state"]) if part}
        for entry in self.path.iterdir():
            if _is_ours(entry.name) and entry.name not in known and entry.suffix == ".npz":
                with suppress(OSError):
                    entry.unlink()
        self.last = time.monotonic()
        self.took = self.last - self.started

    def _explained(self) -> _Explained:
        return _Explained(self.path)

    def _read(self, part: dict[str, Any]) -> list[np.ndarray]:
        file = self.path / part["file"]
        try:
            arrays = read_arrays(file, len(part["crc32"]))
        except Exception as error:
            raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}). {REMEDY}") from error
        if [checksum(array) for array in arrays] != part["crc32"]:
            raise ValueError(f"{file} is damaged: its numbers differ from those that were written. {REMEDY}")
        return arrays


class Journal:
    """What windows of the warm-up have found, in the order in which they ran: read from the checkpoint, and written to it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.next, self.unsaved = checkpoint, 0, list[list[np.ndarray]]()

    def read(self) -> list[np.ndarray] | None:
        """What the next window has found in an earlier call; None where it has not run."""
        windows = self.checkpoint.header["windows"]
        if self.next >= len(windows):
            return None
        self.next += 1
        return self.checkpoint._read(windows[self.next - 1])

    def add(self, found: list[Any]) -> None:
        """Keep what a window has found; on disk when it is time."""
        self.unsaved.append([np.asarray(array) for array in found])
        if self.checkpoint.due():
            self.flush()

    def flush(self) -> None:
        """Write what is not on disk yet, unless the tuning it is of is over."""
        keep, first = self.checkpoint, self.next
        if not self.unsaved or keep.header["state"] is not None:
            return
        new = [keep._write(f"window-{first + i}", arrays) for i, arrays in enumerate(self.unsaved)]
        keep._write_header(keep.header | {"windows": keep.header["windows"] + new})
        self.next, self.unsaved = first + len(new), []


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
            raise OSError(
                error.errno,
                f"the checkpoint at {self.path} cannot be written ({error.strerror or error}). What it held before is whole: "
                "when the disk takes it again, the same call goes on from there",
            ) from error


def asked_of(problem: Problem, key: Array, positions: Position, algorithm: Any, **options: Any) -> dict[str, Any]:
    """What makes a call the same as another, JSON-able, by name of argument."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(positions)]
    if hasattr(algorithm, "step"):
        algorithm = [kernel_of(algorithm).name, plain_settings(algorithm)]
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "seed": np.asarray(jax.random.key_data(key)).tolist(),
        "initial_positions": [[list(leaf.shape), str(leaf.dtype), checksum(leaf)] for leaf in leaves],
        "algorithm": algorithm,
        "measure": problem.measure,
        # Compiled code is another in another Python.
        "problem": {python: {name: fingerprint(function) for name, function in problem.functions.items()}},
        "data": None if problem.data is None else problem.data.describe(),
        **options,
    }


def _difference(name: str, then: Any, now: Any) -> str:
    if name == "problem" and isinstance(then, dict) and then.keys() != now.keys():
        return f"it was made with Python {next(iter(then))}, and this is {next(iter(now))}"
    if name == "problem":
        (then,), (now,) = then.values(), now.values()
        changed = [kind for kind in {**then, **now} if then.get(kind) != now.get(kind)]
        return f"the code of {', '.join(changed)} is another"
    if name == "initial_positions":
        return "initial_positions are others"
    short = lambda value: text if len(text := json.dumps(value)) <= SHOWN else text[:SHOWN] + "…"
    return f"{name} was {short(then)}, and is {short(now)} now"


def _is_ours(name: str) -> bool:
    """Whether a file of that name may have been written here."""
    return name.endswith((".npz", ".lock")) or name.startswith(f".{HEADER}.partial") or ".npz.partial" in name


def check_every(seconds: Any) -> float:
    """Seconds between two checkpoints, of a user."""
    if not isinstance(seconds, int | float | np.number) or isinstance(seconds, bool) or not seconds >= 0:
        raise ValueError(f"checkpoint_every must be seconds, at least 0; got {seconds!r}.")
    return float(seconds)


def path_of(path: Any) -> Path:
    """The folder that a user gave."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"checkpoint must be the path of a folder; got {path!r}.")
    found = Path(path)
    if found.exists() and not found.is_dir():
        raise FileExistsError(f"checkpoint={str(found)!r} is a file; give the path of a folder.")
    return found
