"""Strict JAX everywhere: no silent broadcasting between ranks, no silent mixing of dtypes."""

import gc
import math
import signal
from pathlib import Path

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Most of the time goes into compiling the same programs again and again: compiled ones are kept, for all workers.
cache = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
jax.config.update("jax_compilation_cache_dir", str(cache))
# Another cache, of GPUs, whose folder would be part of what a program is known by.
jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# Programs need not say which lines of Python they come from.
jax.config.update("jax_include_full_tracebacks_in_locations", False)
jax.config.update("jax_traceback_in_locations_limit", 0)
# Tracing makes many objects that live long: looking for cycles among them takes a twentieth of the time.
gc.set_threshold(200_000, 20, 100)
settings.register_profile("gate", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("gate")


QUICK_FOLDERS = ("unit", "contract", "integration", "interop")
compiled_now = {"quick": False}


@pytest.fixture(autouse=True, scope="module")
def programs(request):
    """How a module's programs are compiled, and how long they are kept.

    Mechanics (`QUICK_FOLDERS`) do not need LLVM's optimisations, most of the time of compiling a large program.
    Modules whose results depend on roundings, or whose runs are long, are marked `optimised`; all tests of laws are compiled as
    users' programs are.
    """
    quick = request.path.parent.name in QUICK_FOLDERS and not request.node.get_closest_marker("optimised")
    if quick != compiled_now["quick"]:
        jax.clear_caches()  # nothing compiled the other way may answer
        jax.config.update("jax_disable_most_optimizations", quick)
        compiled_now["quick"] = quick
    yield
    # A compiled program keeps memory and memory maps, of which a process may have 65,530. Small modules can share programs.
    if memory_maps() > 8_000:
        jax.clear_caches()


def memory_maps():
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:  # a system that does not tell
        return math.inf


@pytest.fixture
def lenient_promotion():
    """For other people's code, which mixes dtypes and ranks itself: our strictness is not theirs."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def ctrl_c():
    """Python's own handler of Ctrl-C, which shells take from jobs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
