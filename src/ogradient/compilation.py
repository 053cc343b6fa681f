"""Compiled programs, kept on disk from one process to the next."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

import jax

SHORTEST = 0.1  # seconds: what compiles faster is not worth a file


def keep_compiled_programs() -> Path | None:
    """Turn on JAX's persistent compilation cache, and return its folder; None where there is none that can be written.

    A place that is already set, by the environment variable JAX_COMPILATION_CACHE_DIR or in the program, stays as it is.
    JAX_ENABLE_COMPILATION_CACHE=false turns the cache off, as always.
    """
    given: str | None = getattr(jax.config, "jax_compilation_cache_dir", None)
    if given is not None:
        return Path(given)
    folder = cache_folder()
    if folder is None or not _writable(folder):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    return folder


def cache_folder() -> Path | None:
    """Where the user's compiled programs are: under XDG_CACHE_HOME, or else where the system keeps caches."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if given.is_absolute():  # a relative one is to be ignored, says its specification
            root = given
        elif sys.platform == "win32":
            root = Path(os.environ["LOCALAPPDATA"])
        else:
            root = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    except (KeyError, RuntimeError):  # a user without a home
        return None
    return root / "ogradient" / f"compiled-{_processor()}"


def _processor() -> str:
    """A short name of this kind of processor. Programs for another one, sharing the home folder, might not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        features = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def _writable(folder: Path) -> bool:
    """Whether the folder can be written, or made. Nothing is made yet."""
    try:
        while not os.path.lexists(folder):
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False
