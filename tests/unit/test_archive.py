"""A saved trace is whole, its own, and what was saved; or an error says what is wrong."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient import storage
from ogradient.trace import archive

flat = lambda p: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(p)])
PROBLEM = og.Problem(lambda p: -0.5 * jnp.sum(flat(p) ** 2), equality=lambda p: jnp.sum(flat(p)) - 1)


def make(positions, num_samples=5):
    algorithm = og.langevin(PROBLEM, 0.05)  # compiles fastest
    return og.sample(0, PROBLEM, positions, algorithm=algorithm, num_warmup=1, num_samples=num_samples, progress=False)


TRACE = make({"w": jnp.ones((4, 3)), "b": jnp.ones(4)}, num_samples=40)


def with_draws(value):
    """The trace with all its draws equal to a number."""
    return dataclasses.replace(TRACE, position=jax.tree.map(lambda leaf: np.full_like(leaf, value), TRACE.position))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def same(first, second):
    np.testing.assert_array_equal(first["w"], second["w"])
    np.testing.assert_array_equal(first.sample_stats["equality"], second.sample_stats["equality"])


def dead_process():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


# Saving


def test_a_trace_is_replaced_only_when_asked(tmp_path):
    path = with_draws(1).save(tmp_path / "t.zarr")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        with_draws(2).save(path)
    assert og.load(path)["w"].max() == 1
    assert og.load(with_draws(2).save(path, overwrite=True))["w"].max() == 2
    assert names_in(tmp_path) == ["t.zarr"]


@pytest.mark.parametrize(
    "name",
    ["notes.txt", "posterior/mine.npy", "posterior/extra/zarr.json", "log_likelihood/zarr.json", "posterior/w/c/x"],
)
def test_files_of_the_user_in_the_folder_of_a_trace_are_never_deleted(name, tmp_path):
    path = TRACE.save(tmp_path / "t.zarr")
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("keep me")
    with pytest.raises(FileExistsError, match=f"holds {name}, which is no part of the trace"):
        TRACE.save(path, overwrite=True)
    assert (path / name).read_text() == "keep me"
    assert names_in(tmp_path) == ["t.zarr"]


def test_a_trace_of_any_shape_replaces_itself(tmp_path):
    odd = make({"a b": jnp.ones((2, 1)), "X": jnp.ones(2), "x": jnp.ones((2, 2))})
    path = odd.save(tmp_path / "t.zarr")
    assert og.load(odd.save(path, overwrite=True)).num_draws == 5


@pytest.mark.parametrize("num_threads", [2, 6])
def test_threads_that_save_to_one_path_leave_one_whole_trace(num_threads, tmp_path):
    path, errors = tmp_path / "t.zarr", []

    def save(value):
        try:
            for _ in range(3):
                with_draws(value).save(path, overwrite=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(value,)) for value in range(num_threads)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():  # and while they do, a reader finds one of the whole traces
            assert len(np.unique(og.load(path)["w"])) == 1
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(np.unique(og.load(path)["w"])) == 1
    assert names_in(tmp_path) == ["t.zarr"]


def test_of_two_first_saves_without_overwrite_one_is_refused(tmp_path, monkeypatch):
    """The second trace appears while the first is written."""
    sync = storage._sync
    monkeypatch.setattr(
        storage, "_sync", lambda f: (monkeypatch.undo(), with_draws(2).save(tmp_path / "t.zarr"), sync(f))
    )
    with pytest.raises(FileExistsError, match="overwrite=True"):
        with_draws(1).save(tmp_path / "t.zarr")
    assert og.load(tmp_path / "t.zarr")["w"].max() == 2
    assert names_in(tmp_path) == ["t.zarr"]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t.zarr").symlink_to(tmp_path / "elsewhere")
    TRACE.save(tmp_path / "t.zarr")
    TRACE.save(tmp_path / "t.zarr", overwrite=True)
    assert (tmp_path / "t.zarr").is_symlink()
    same(og.load(tmp_path / "elsewhere"), TRACE)


# Kills


def killed_between_renames(tmp_path, owner=None):
    path = with_draws(1).save(tmp_path / "t.zarr")
    owner = owner or f"{storage._host()}-{dead_process()}-0123abcd"
    os.rename(path, tmp_path / f".t.zarr.old-{owner}")
    shutil.copytree(tmp_path / f".t.zarr.old-{owner}", tmp_path / f".t.zarr.partial-{owner}")
    return path


@pytest.mark.parametrize("early", [False, True], ids=["now", "earlier version"])
def test_a_trace_whose_replacement_was_killed_is_found(early, tmp_path):
    path = killed_between_renames(tmp_path, str(dead_process()) if early else None)
    with pytest.warns(RuntimeWarning, match="a process was killed while it replaced it"):
        assert og.load(path)["w"].max() == 1
    with pytest.raises(FileExistsError, match="overwrite=True"):  # it has been put back
        with_draws(2).save(path)
    assert og.load(path)["w"].max() == 1
    with_draws(2).save(path, overwrite=True)
    assert og.load(path)["w"].max() == 2
    assert names_in(tmp_path) == ["t.zarr"]


def test_the_only_copy_of_a_writer_killed_meanwhile_is_not_swept(tmp_path, monkeypatch):
    """Another writer renames the trace that was just saved, and is killed before it gives its own the name."""
    path, remove = with_draws(1).save(tmp_path / "t.zarr"), shutil.rmtree
    hidden = tmp_path / f".t.zarr.old-{storage._host()}-{dead_process()}-0123abcd"

    def meanwhile(folder, **options):
        if not hidden.exists() and path.exists():
            os.rename(path, hidden)
        remove(folder, **options)

    monkeypatch.setattr(storage.shutil, "rmtree", meanwhile)
    with_draws(2).save(path, overwrite=True)
    monkeypatch.undo()
    assert names_in(tmp_path) == [hidden.name]
    with pytest.warns(RuntimeWarning, match="a process was killed while it replaced it"):
        assert og.load(path)["w"].max() == 2
    with_draws(3).save(path, overwrite=True)
    assert names_in(tmp_path) == ["t.zarr"]


def test_what_live_processes_write_is_left_alone(tmp_path):
    mine = tmp_path / f".t.zarr.partial-{storage._host()}-{os.getpid()}-0123abcd"
    foreign = tmp_path / f".t.zarr.partial-elsewhere-{dead_process()}-0123abcd"
    left = tmp_path / f".t.zarr.partial-{storage._host()}-{dead_process()}-0123abcd"
    for folder in (mine, foreign, left):
        folder.mkdir()
    TRACE.save(tmp_path / "t.zarr")
    assert (mine.exists(), foreign.exists(), left.exists()) == (True, True, False)


def test_a_reader_waits_for_a_writer_between_its_two_renames(tmp_path):
    path = with_draws(1).save(tmp_path / "t.zarr")
    hidden = tmp_path / f".t.zarr.old-{storage._host()}-{os.getpid()}-0123abcd"
    os.rename(path, hidden)
    threading.Timer(0.1, lambda: os.rename(hidden, path)).start()
    assert og.load(path)["w"].max() == 1


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("moment", ["writing", "first rename", "second rename"])
def test_ctrl_c_while_saving_leaves_the_old_trace_or_the_new(moment, tmp_path, monkeypatch):
    path = with_draws(1).save(tmp_path / "t.zarr")
    rename, sync = os.rename, storage._sync

    def pressed_before(number):
        calls = []

        def call(*arguments):
            calls.append(1)
            if len(calls) == number:
                os.kill(os.getpid(), 2)
            return rename(*arguments)

        return call

    if moment == "writing":
        monkeypatch.setattr(storage, "_sync", lambda folder: (os.kill(os.getpid(), 2), sync(folder)))
    else:
        monkeypatch.setattr(os, "rename", pressed_before(2 if moment == "first rename" else 3))
    with pytest.raises(KeyboardInterrupt):
        with_draws(2).save(path, overwrite=True)
    monkeypatch.undo()
    assert og.load(path)["w"].max() == (1 if moment == "writing" else 2)
    assert names_in(tmp_path) == ["t.zarr"]


# Damage


def files_of(path):
    return sorted(file for file in path.rglob("*") if file.is_file())


def test_flipped_bytes_are_noticed(tmp_path):
    path = TRACE.save(tmp_path / "t.zarr")
    rng = np.random.default_rng(0)
    raised = 0
    for _ in range(60):
        file = rng.choice(files_of(path))
        content = bytearray(file.read_bytes())
        place = rng.integers(len(content))
        content[place] ^= 1 << rng.integers(8)
        whole = file.read_bytes()
        file.write_bytes(content)
        try:
            same(og.load(path), TRACE)  # in a coordinate, which is not read
        except ValueError as error:
            raised += str(path) in str(error)
        file.write_bytes(whole)
    assert raised > 20
    same(og.load(path), TRACE)


@pytest.mark.parametrize(("part", "array"), [("posterior", "w"), ("sample_stats", "equality"), ("state", "leaf_1")])
def test_a_missing_chunk_is_noticed_and_named(part, array, tmp_path):
    path = TRACE.save(tmp_path / "t.zarr")
    shutil.rmtree(path / part / array / "c")
    with pytest.raises(ValueError, match=rf"t.zarr is damaged: the numbers in {part}/{array} differ"):
        og.load(path)


def test_a_missing_array_and_a_changed_header_are_noticed(tmp_path):
    path = TRACE.save(tmp_path / "t.zarr")
    text = (path / "zarr.json").read_text("utf-8")
    (path / "zarr.json").write_text(text.replace(r"\"seed\": 0", r"\"seed\": 1"), "utf-8")
    assert text != (path / "zarr.json").read_text("utf-8")
    with pytest.raises(ValueError, match="its header differs from what was saved"):
        og.load(path)
    (path / "zarr.json").write_text(text.replace(archive.HEADER_CHECKSUM, "something_else"), "utf-8")
    with pytest.raises(ValueError, match="its header differs from what was saved"):
        og.load(path)
    (path / "zarr.json").write_text(text, "utf-8")
    shutil.rmtree(path / "posterior" / "b")
    with pytest.raises(ValueError, match="is damaged"):
        og.load(path)


def test_a_trace_of_a_newer_version_says_so(tmp_path, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(archive, "FORMAT", 3)
        path = TRACE.save(tmp_path / "t.zarr")
    with pytest.raises(ValueError, match="newer ogradient"):
        og.load(path)


def test_traces_without_checksums_are_read(tmp_path):
    path = TRACE.save(tmp_path / "t.zarr")
    about = json.loads((path / "zarr.json").read_text("utf-8"))
    header = json.loads(about["attributes"]["ogradient"])
    old = {key: header[key] for key in ("provenance", "structure", "custom_containers", "status_counts")}
    about["attributes"] = {"ogradient": json.dumps({"format": 1} | old)}
    (path / "zarr.json").write_text(json.dumps(about), "utf-8")
    loaded = og.load(path)
    same(loaded, TRACE)
    assert set(loaded.sample_stats) == set(TRACE.sample_stats)
    resumed = og.sample(0, PROBLEM, resume=loaded, algorithm=og.langevin(PROBLEM, 0.05), num_samples=2, progress=False)
    assert resumed.num_draws == 42
    same(og.load(TRACE.save(path, overwrite=True)), TRACE)


# Names

NAMES = {
    "axes": ["x", "x_dim_0", "x_dim_0_dim_0", "x_dim_0_"],
    "slashes": ["a/b", "a_b", "a", "c/0"],
    "dots": ["..", ".", ".hidden", "end.", "a.b"],
    "files": ["zarr.json", "c", "posterior", ".zgroup"],
    "case": ["x", "X", "é", "e\u0301", "θ"],
    "odd": ["", " ", "nul\0", "\ud800", "a\nb", "l" * 300, "variable_0", "variable_3"],
}


@pytest.mark.parametrize("kind", NAMES)
def test_variables_of_any_name_survive_the_disk(kind, tmp_path):
    import xarray as xr

    positions = {
        name: jnp.full((2, 3) if i % 2 else (2, 2), float(i), jnp.float32) for i, name in enumerate(NAMES[kind])
    }
    trace = make(positions)
    path = trace.save(tmp_path / "t.zarr")
    loaded = og.load(path)
    assert list(loaded.position) == list(trace.position)
    assert list(loaded.variables) == list(trace.variables)
    for name, draws in trace.variables.items():
        np.testing.assert_array_equal(loaded[name], draws)
    tree = trace.to_datatree()
    assert set(tree["posterior"].data_vars) == set(trace.variables)
    with xr.open_datatree(path, engine="zarr", consolidated=False) as stored:
        assert len(stored["posterior"].data_vars) == len(positions)
    on_disk = [name.casefold() for name in os.listdir(path / "posterior")]
    assert len(set(on_disk)) == len(on_disk)
    assert names_in(Path(tmp_path)) == ["t.zarr"]


def test_plain_names_are_those_on_disk():
    names = ["x", "layer.0.w", "0", "log-sigma", "a b", "θ"]
    assert archive.names_on_disk(names) == {name: name for name in names}


def test_names_stay_unique_when_numbers_make_them_equal():
    from ogradient.problem.functions import leaf_names

    names = leaf_names({"a": {"b": 1}, "a.b": 2, "a.b.0": 3})
    assert len(set(names)) == 3
