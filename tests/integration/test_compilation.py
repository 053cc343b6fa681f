"""Compiled programs are kept where they may be, and never in the way."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from ogradient import compilation


@pytest.fixture
def unset(monkeypatch):
    """As in a fresh process; the settings of the tests come back afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    monkeypatch.setattr(compilation, "_silence_false_alarms", lambda: None)
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compilation.cache_folder()
    assert folder.parent == tmp_path / "ogradient"
    assert folder.name.startswith("compiled-")
    assert folder == compilation.cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert tmp_path / "home" in compilation.cache_folder().parents


def test_programs_are_kept_without_a_folder_being_made_early(unset, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = compilation.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_set_stays(unset, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    assert compilation.keep_compiled_programs() == tmp_path / "mine"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")


@pytest.mark.parametrize("obstacle", ["file", "rights", "no home"])
def test_a_folder_that_cannot_be_written_is_no_error(unset, monkeypatch, tmp_path, obstacle):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if obstacle == "file":
        (tmp_path / "cache").write_text("mine")
    elif obstacle == "rights":
        monkeypatch.setattr("os.access", lambda *args: False)
    else:

        def homeless():
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", homeless)
    assert compilation.keep_compiled_programs() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_a_second_process_finds_the_programs_and_says_nothing(tmp_path):
    code = """
import jax, jax.numpy as jnp
from ogradient.compilation import keep_compiled_programs
keep_compiled_programs()
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
print(float(jax.jit(lambda x: jnp.sum(jnp.sin(x) @ x.T))(jnp.ones((3, 3)))), len(hits))
"""
    places = {"XDG_CACHE_HOME": str(tmp_path)}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TF_CPP"))}
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept | places)
        for _ in range(2)
    ]
    (first, none), (second, some) = (run.stdout.split() for run in runs)
    assert first == second
    assert int(none) == 0 < int(some)
    assert [run.stderr for run in runs] == ["", ""]
