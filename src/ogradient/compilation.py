"""Compiled programs: in less time on a CPU, and kept on disk from one process to the next."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

# XLA's older code generator for CPUs compiles in about two thirds of the time; programs run about as fast
# (benchmarks/quick_compile.py).
QUICK: dict[str, str | bool | int] = {"xla_cpu_use_fusion_emitters": False}
# Without LLVM's optimisations compiling takes half of that, and running twice as long: for what is run once, over little.
ONCE = QUICK | {"xla_backend_optimization_level": 0}
LITTLE = 10**5  # numbers


def compiled(function: Callable[..., Any] | None = None, *, once: bool = False, **settings: Any) -> Any:
    """`jax.jit(function, **settings)`, compiled with `QUICK` where JAX runs on a CPU and this jaxlib knows these options.

    The options belong to this function's programs alone: what else a process compiles is left as it is. A function that is
    called `once` in a run takes longer to compile than to run, unless it is given much.
    """
    if function is None:
        return functools.partial(compiled, once=once, **settings)
    return _Compiled(function, once, settings)


class _Compiled:
    """What `compiled` returns. Inside another compiled function it is a plain `jax.jit`: options belong to the outermost."""

    known = True  # whether this jaxlib knows the options, as far as is known

    def __init__(self, function: Callable[..., Any], once: bool, settings: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.plain = jax.jit(function, **settings)
        self.quick = jax.jit(function, compiler_options=dict(QUICK), **settings)
        self.once = jax.jit(function, compiler_options=dict(ONCE), **settings) if once else None

    @property
    def program(self) -> Any:
        """The function under `jax.jit`, with the options where they are of use."""
        return self.quick if _Compiled.known and jax.default_backend() == "cpu" else self.plain

    def _program_for(self, leaves: list[Any]) -> Any:
        """That for these arguments."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self.plain
        little = self.once is not None and sum(getattr(leaf, "size", 1) for leaf in leaves) <= LITTLE
        return self.once if little and self.program is self.quick else self.program

    def __getattr__(self, name: str) -> Any:
        # What `jax.jit` offers beside a call: lower, eval_shape, clear_cache, ...
        if name.startswith("__") or name in ("plain", "quick", "once"):
            raise AttributeError(name)
        return getattr(self.program, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            return self._program_for(jax.tree.leaves((arguments, named)))(*arguments, **named)
        except jax.errors.JaxRuntimeError as error:
            # XLA looks at options before it does anything.
            if "No such compile option" not in str(error):
                raise
            _Compiled.known = False
            return self.plain(*arguments, **named)

    def prepare(self, *arguments: Any) -> Callable[[], None]:
        """Compile the program for arguments of these shapes in a thread; returns what waits for it. Calls then find it compiled.

        The function is traced here, by the caller's thread: only XLA's work goes on beside what the caller does next. What cannot
        be compiled says so when it is called.
        """
        try:
            lowered = self.program.lower(*arguments)
        except Exception:
            return lambda: None

        def work() -> None:
            with contextlib.suppress(Exception):
                lowered.compile()

        thread = threading.Thread(target=work, name="ogradient-compile")
        thread.start()
        return thread.join


def keep_compiled_programs() -> Path | None:
    """Turn on JAX's persistent compilation cache, and return its folder; None where there is none that can be written.

    A place that is already set, by the environment variable JAX_COMPILATION_CACHE_DIR or in the program, stays as it is.
    JAX_ENABLE_COMPILATION_CACHE=false turns the cache off, as always.
    """
    if (given := getattr(jax.config, "jax_compilation_cache_dir", None)) is not None:
        return Path(given)
    folder = cache_folder()
    if folder is None or not _writable(folder):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # JAX keeps what took a second to compile. A run has many programs that take less, and all of it is a megabyte or two.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    _silence_false_alarms()
    return folder


def _silence_false_alarms() -> None:
    """Let XLA log only what is fatal, unless TF_CPP_MIN_LOG_LEVEL asks for something else (JAX sets it to 1).

    On some AMD processors XLA warns of every program it reads back that this machine lacks "prefer-no-gather". That is a hint to
    its compiler and no feature of a processor (openxla/xla, issue 44565). The folder is for one kind of processor anyway.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        # Another jaxlib may be made otherwise.
        with contextlib.suppress(ImportError, AttributeError):
            from jaxlib import utils

            utils.absl_set_min_log_level(3)


def cache_folder() -> Path | None:
    """Where the user's compiled programs are: under XDG_CACHE_HOME, or else where the system keeps caches."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # The specification says that a relative one is to be ignored.
        if given.is_absolute():
            root = given
        elif sys.platform == "win32":
            root = Path(os.environ["LOCALAPPDATA"])
        else:
            root = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    except (KeyError, RuntimeError):
        # A user without a home.
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
