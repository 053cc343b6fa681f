"""The experiment on images: its networks, its files, a run that is cut, and what its table says of small digits."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.io import savemat
from typer.testing import CliRunner

import ogradient as og
from ogradient import storage
from ogradient.cli import app
from ogradient.experiments import images
from ogradient.experiments.networks import averages_over, crop_and_flip, resnet18, small
from ogradient.images import CIFAR_SHA256, channel_statistics, cifar10, digits, svhn
from ogradient.run.loop import Run
from ogradient.samplers.base import settings_of

pytestmark = pytest.mark.usefixtures("lenient_promotion")
RNG = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path):
    """Files in the formats of CIFAR-10 and SVHN, of few images."""
    for place in ("cifar10", "svhn"):
        (tmp_path / place).mkdir()
    for name in CIFAR_SHA256:
        rows = RNG.integers(0, 256, (20, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(20) % 10
        (tmp_path / "cifar10" / name).write_bytes(rows.tobytes())
    image = RNG.integers(0, 256, (32, 32, 3, 30), dtype=np.uint8)
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": image, "y": np.arange(30)[:, None] % 10 + 1})
    return tmp_path


def test_cifar_as_its_files_have_it(folder):
    data = cifar10(folder, verify=False)
    assert (data.train.image.shape, data.test.image.shape) == ((100, 32, 32, 3), (20, 32, 32, 3))
    raw = np.frombuffer((folder / "cifar10" / "data_batch_2.bin").read_bytes(), np.uint8).reshape(20, 3073)
    assert data.train.label[23] == raw[3, 0]
    np.testing.assert_array_equal(data.train.image[23, 5, 7], raw[3, 1 + 5 * 32 + 7 :: 1024][:3])  # red, green, blue
    with pytest.raises(ValueError, match="data_batch_1.bin is not the original data_batch_1.bin: its sha256 is"):
        cifar10(folder)
    (folder / "cifar10" / "test_batch.bin").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="test_batch.bin has 100 bytes, no whole number of images"):
        cifar10(folder, verify=False)
    (folder / "cifar10" / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"test_batch.bin is missing.*Without a folder they are downloaded"):
        cifar10(folder, verify=False)


def test_svhn_as_its_file_has_it(folder):
    found, about = svhn(folder, verify=False)
    assert found.image.shape == (30, 32, 32, 3)
    assert found.label[9] == 0, "the file writes 10 for the digit 0"
    assert about["files"]["test_32x32.mat"]["images"] == 30
    with pytest.raises(ValueError, match="is not the original test_32x32.mat"):
        svhn(folder)
    (folder / "svhn" / "test_32x32.mat").write_bytes(b"no matrix")
    with pytest.raises(ValueError, match="cannot be read as test_32x32.mat"):
        svhn(folder, verify=False)


def test_the_task_of_cifar_has_its_files_and_strangers(folder):
    task = images.task_of(images.Config(width=2), folder, verify=False)
    assert (len(task.dataset.train), len(task.dataset.test), len(task.dataset.outside)) == (100, 20, 30)
    with pytest.raises(ValueError, match="is not the original"):
        images.task_of(images.Config(), folder)


def test_the_command_line_says_what_is_in_images(folder, monkeypatch):
    call = lambda name: CliRunner().invoke(app, ["data", name, "--data", str(folder)])
    assert call("cifar10").exit_code == call("svhn").exit_code == 1, "not the originals"
    assert "sha256" in call("cifar10").output
    digest = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()
    sums = {name: digest(folder / "cifar10" / name) for name in CIFAR_SHA256}
    monkeypatch.setattr("ogradient.images.CIFAR_SHA256", sums)
    monkeypatch.setattr("ogradient.images.SVHN_SHA256", digest(folder / "svhn" / "test_32x32.mat"))
    words = {name: " ".join(call(name).output.split()) for name in ("cifar10", "svhn", "digits")}
    assert "train 100 32 × 32 × 3 10 10 10 test 20 32 × 32 × 3 10 2 2" in words["cifar10"]
    assert f"test_batch.bin: sha256 {sums['test_batch.bin']}" in words["cifar10"]
    assert "test 30 32 × 32 × 3 10 3 3 test_32x32.mat: sha256" in words["svhn"]
    assert "outside 354 8 × 8 × 1 2 174 180 scikit-learn, load_digits" in words["digits"]


def test_digits_keep_strangers_apart():
    data = digits()
    assert set(data.train.label) == set(data.test.label) == set(range(8))
    assert set(data.outside.label) == {8, 9}
    assert (len(data.train), len(data.test), len(data.outside)) == (288, 1155, 354)


def test_resnet_has_the_weights_that_it_is_known_for():
    network = resnet18(np.zeros(3, np.float32), np.ones(3, np.float32))
    weights = jax.eval_shape(network.start, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(weights)) == 11_173_962


@pytest.mark.parametrize("kind", [pytest.param("resnet18", marks=pytest.mark.slow), "small"])
def test_averages_of_a_batch_predict_as_the_batch_does(kind):
    shape = (8, 32, 32, 3) if kind == "resnet18" else (8, 8, 8, 1)
    statistics = (np.full(3, 120, np.float32), np.full(3, 60, np.float32))
    network = resnet18(*statistics, width=2) if kind == "resnet18" else small(64, 8)
    p, x = network.start(jax.random.key(0)), jnp.asarray(RNG.integers(0, 256, shape, dtype=np.uint8))
    by_batch = jax.jit(network.logits)(p, x)
    averages = jax.jit(lambda p, x: averages_over(network, p, x, 8))(p, x)
    by_average = jax.jit(network.logits)(p, x, averages)
    np.testing.assert_allclose(by_batch, by_average, atol=1e-4)
    one = jax.jit(network.logits)(p, x[:1], averages)  # an image by itself
    np.testing.assert_allclose(one, by_average[:1], atol=1e-4)
    assert np.abs(by_batch).max() > 0.1


def test_crops_are_windows_of_the_padded_image_half_of_them_mirrored():
    image = RNG.integers(1, 256, (200, 6, 6, 2), dtype=np.uint8)
    changed = np.asarray(crop_and_flip(jax.random.key(0), jnp.asarray(image), by=2))
    assert changed.dtype == np.uint8
    padded = np.pad(image, ((0, 0), (2, 2), (2, 2), (0, 0)))
    mirrored = 0
    for row, new in enumerate(changed):
        windows = [padded[row, i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
        plain = any(np.array_equal(new, window) for window in windows)
        turned = any(np.array_equal(new, window[:, ::-1]) for window in windows)
        assert plain or turned
        mirrored += turned
    assert 60 < mirrored < 140


SHORT = {"on": "digits", "samplers": ("o_langevin",), "epochs": 6, "particles": 2, "batch": 64, "every": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The record of a run that nothing cuts."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return run_to_the_end(tmp_path_factory.mktemp("whole"))


def run_to_the_end(out):
    """One record of a short run."""
    images.run(images.Config(**SHORT), out, progress=False)
    (record,) = json.loads((out / "images" / "metrics.json").read_text())["runs"]["o_langevin"]
    return record


def checkpoints(out):
    return sorted(path.name.partition(".zarr")[2] for path in (out / "images" / "runs").glob("*.zarr"))


def assert_same(record, other):
    for part in ("particles", "average", "reliability", "confidence", "loss"):
        assert record[part] == other[part]
    assert len(record["loss"]) == SHORT["epochs"] // SHORT["every"]


def test_a_run_that_is_cut_after_a_checkpoint_ends_as_one_that_is_not(whole, tmp_path, monkeypatch):
    saves = []

    def cut(trace, *arguments, **more):
        path = save(trace, *arguments, **more)
        saves.append(path)
        if len(saves) == 2:
            raise KeyboardInterrupt
        return path

    save = og.Trace.save
    monkeypatch.setattr(og.Trace, "save", cut)
    with pytest.raises(KeyboardInterrupt):
        run_to_the_end(tmp_path)
    monkeypatch.undo()
    assert saves[-1].exists()
    record = run_to_the_end(tmp_path)
    assert not saves[-1].exists(), "what is done needs no checkpoint"
    assert_same(record, whole)
    monkeypatch.setattr(images, "sample", None)  # nothing is computed twice
    assert run_to_the_end(tmp_path) == record


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("chunk", "kept"),
    [
        pytest.param(1, 0, id="in the first segment"),
        pytest.param(2, 1, id="at the end of the first"),
        pytest.param(3, 1, id="in the second"),
        pytest.param(6, 3, id="at the end of the last"),
    ],
)
def test_ctrl_c_while_sampling_loses_no_segment(chunk, kept, whole, tmp_path, monkeypatch, capsys):
    """Every segment has two chunks here. A whole one is kept."""
    calls, advance, real = [], Run.advance, Run._chunk

    def pressed(run, steps, capacity):
        calls.append(steps)
        if steps and sum(map(bool, calls)) == chunk:
            os.kill(os.getpid(), signal.SIGINT)
        return real(run, steps, capacity)

    monkeypatch.setattr(Run, "_chunk", pressed)
    monkeypatch.setattr(Run, "advance", lambda run, total, size, *rest, **more: advance(run, total, 5, *rest, **more))
    with pytest.raises(KeyboardInterrupt):
        images.run(images.Config(**SHORT), tmp_path, progress=True)
    assert [steps for steps in calls if steps] == ([5, 3] * 3)[:chunk]
    assert "the same command goes on" in capsys.readouterr().out
    found = [og.load(path) for path in (tmp_path / "images" / "runs").glob("*.zarr")]
    assert [len(trace.provenance["seen"]["loss"]) for trace in found] == [kept] * (kept > 0)
    monkeypatch.undo()
    assert_same(run_to_the_end(tmp_path), whole)
    assert checkpoints(tmp_path) == []


def test_a_run_that_goes_wrong_says_so_and_is_not_taken_for_an_interrupted_one(tmp_path):
    with pytest.raises(og.SamplingError, match="NON_FINITE"):
        images.run(images.Config(**SHORT | {"rate": 1e30, "samplers": ("sgld",)}), tmp_path, progress=False)


def test_a_run_that_is_killed_while_it_judges_is_judged_by_the_next(whole, tmp_path, monkeypatch):
    def killed(*arguments):
        raise SystemExit

    monkeypatch.setattr(images, "judge", killed)
    with pytest.raises(SystemExit):
        run_to_the_end(tmp_path)
    monkeypatch.undo()
    assert checkpoints(tmp_path) == [""]
    monkeypatch.setattr(images, "sample", None)  # all segments are there
    assert_same(run_to_the_end(tmp_path), whole)
    assert checkpoints(tmp_path) == []


def test_a_run_that_is_killed_once_its_record_is_there_leaves_nothing_behind(whole, tmp_path, monkeypatch):
    def killed(path, record):
        real(path, record)
        raise SystemExit

    real = images.write_record
    monkeypatch.setattr(images, "write_record", killed)
    with pytest.raises(SystemExit):
        run_to_the_end(tmp_path)
    assert checkpoints(tmp_path) == [""]
    monkeypatch.undo()
    assert_same(run_to_the_end(tmp_path), whole)
    assert checkpoints(tmp_path) == []


def test_a_run_that_is_killed_between_the_two_renames_of_a_checkpoint_goes_on_from_it(whole, tmp_path, monkeypatch):
    def killed(trace, path, **more):
        save(trace, path, **more)
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        path.rename(path.with_name(f".{path.name}.old-{storage._host()}-{dead.pid}-0123abcd"))
        raise SystemExit

    save, seen, sample = og.Trace.save, [], images.sample
    monkeypatch.setattr(og.Trace, "save", killed)
    with pytest.raises(SystemExit):
        run_to_the_end(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(images, "sample", lambda **run: seen.append(run["resume"]) or sample(**run))
    with pytest.warns(RuntimeWarning, match="a process was killed while it replaced it"):
        record = run_to_the_end(tmp_path)
    assert len(seen) == 2
    assert None not in seen
    assert_same(record, whole)
    assert not [path for path in (tmp_path / "images" / "runs").iterdir() if path.suffix != ".json"]


@pytest.mark.parametrize(
    ("epochs", "every", "plan"),
    [
        (60, 10, (40, 6, 1)),
        (60, 60, (240, 1, 1)),
        (60, 100, (240, 1, 1)),
        (11, 10, (4, 11, 10)),
        (62, 10, (8, 31, 5)),
        (1, 1, (4, 1, 1)),
    ],
)
def test_a_run_has_as_many_epochs_as_were_asked_for(epochs, every, plan):
    config = images.Config(**SHORT | {"epochs": epochs, "every": every})
    found = images.plan_of(config, 288)
    assert found == plan
    assert found.steps * found.segments == epochs * (288 // 64)


def test_checkpoints_come_as_often_as_asked_where_segments_are_shorter(tmp_path, monkeypatch):
    saved, save = [], og.Trace.save
    monkeypatch.setattr(
        og.Trace,
        "save",
        lambda trace, path, **more: saved.append(trace.provenance["num_steps"]) or save(trace, path, **more),
    )
    images.run(images.Config(**SHORT | {"epochs": 5, "every": 2}), tmp_path, progress=False)
    assert saved == [8, 16, 20]


def test_starts_and_steps_have_keys_of_their_own(tmp_path, monkeypatch):
    """The keys of chains are fold_in(seed, chain), which split gives as well."""
    keys = []
    monkeypatch.setattr(
        images, "small", lambda *shape: (net := small(*shape))._replace(start=lambda key: noted(net, key))
    )

    def noted(net, key):
        jax.debug.callback(lambda data: keys.append(tuple(data.tolist())), jax.random.key_data(key))
        return net.start(key)

    images.run(images.Config(**SHORT | {"epochs": 1}), tmp_path, progress=False)
    chains = [jax.random.fold_in(jax.random.key(0), c) for c in range(100)]
    assert len(set(keys)) == SHORT["particles"]
    assert not {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in chains} & set(keys)


def test_the_speed_is_that_of_segments_that_compiled_nothing(whole):
    seen = {"seconds": [0.5, 4.0, 2.0, 1.0], "compiled": [True, False, False, True]}
    assert images.speed(seen, 100) == 50
    assert images.speed({"seconds": [0.5], "compiled": [True]}, 100) is None
    assert images.speed({"seconds": [3.0, 0.0], "compiled": [True, False]}, 100) is None
    assert whole["images per second"] > 0


def test_several_seeds_have_mean_and_range_in_the_table(whole, tmp_path):
    config = images.Config(**SHORT | {"seeds": 2})
    (row,), _ = images.run(config, tmp_path, progress=False)
    records = json.loads((tmp_path / "images" / "metrics.json").read_text())["runs"]["o_langevin"]
    assert_same(records[0], whole)
    nll = [-record["average"]["log_likelihood"] for record in records]
    assert nll[0] != nll[1]
    assert row["NLL"] == f"{np.mean(nll):.3f} ({min(nll):.3f}–{max(nll):.3f})"
    single = 100 * np.concatenate([record["particles"]["auroc_probability"] for record in records])
    assert row["single: AUROC"] == f"{single.min():.2f}–{single.max():.2f}"


def test_the_sampler_with_second_derivatives_runs_where_it_is_named():
    assert images.PROBE not in images.Config().samplers
    config, task = images.Config(**SHORT), images.task_of(images.Config(**SHORT), None)
    made = [
        images.algorithm_of(name, *images.problems_of(task, config), config, 288, 8)
        for name in ("o_langevin", images.PROBE)
    ]
    assert [settings_of(algorithm)["correction"] for algorithm in made] == ["none", "hutchinson"]


def test_statistics_of_channels_without_a_copy_in_numbers():
    image = RNG.integers(0, 256, (1203, 32, 32, 3), dtype=np.uint8)
    image[..., 1] //= 7
    pixels = image.reshape(-1, 3).astype(float)
    tracemalloc.start()
    mean, sd = channel_statistics(image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(sd, pixels.std(axis=0), rtol=1e-6)
    assert peak < pixels.nbytes / 3


@pytest.mark.slow
def test_the_path_of_cifar_on_a_few_images(folder, tmp_path):
    config = images.Config(epochs=2, particles=2, batch=50, width=2, every=2, samplers=("o_svgd",))
    rows, figure = images.run(config, tmp_path, data=folder, verify=False, progress=False)
    assert rows[0]["paper: error, ECE, AUROC"] == "4.92 / 0.77 / 94.69"
    assert figure.exists()


@pytest.mark.statistical
def test_on_digits_cold_samplers_and_levels_beat_langevin_at_temperature_one(tmp_path):
    """The paper's ranking as far as so few images show it: SGLD is worst by far, and O-Langevin as good as what is tempered."""
    names = ("sgld", "tempered_sgld", "o_langevin", "o_svgd", "o_kinetic")
    config = images.Config(**SHORT | {"samplers": names, "epochs": 60, "particles": 4, "every": 60})
    rows, _ = images.run(config, tmp_path, progress=False)
    table = {row["sampler"]: row for row in rows}
    for name in names[1:]:
        assert table[name]["NLL"] < 0.7 * table["sgld"]["NLL"]
        assert table[name]["ECE"] < 0.5 * table["sgld"]["ECE"]
        assert table[name]["error"] < table["sgld"]["error"]
        assert table[name]["error"] < table["tempered_sgld"]["error"] + 1.0
        assert table[name]["AUROC"] > 88


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rate": 0.0}, "rate must be positive"), ({"momentum": 1.0}, "momentum must lie in"), ({"decay": -1.0}, "decay")],
)
def test_settings_of_which_nothing_can_come_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        images.check(images.Config(**SHORT | changes))
