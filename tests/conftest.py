"""Strict JAX everywhere: no silent broadcasting between ranks, no silent mixing of dtypes."""

import gc
import os
import signal
from pathlib import Path

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Most of the time goes into compiling the same programs again and again: compiled ones are kept, by each worker for itself.
cache = Path(__file__).parents[1] / ".pytest_cache" / "compiled" / os.environ.get("PYTEST_XDIST_WORKER", "alone")
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# Tracing makes many objects that live long: looking for cycles among them takes a twentieth of the time.
gc.set_threshold(200_000, 20, 100)
settings.register_profile("gate", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("gate")


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Every compiled program keeps memory maps, of which a process may have 65,530; a thousand tests in one would need more."""
    yield
    jax.clear_caches()


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
