"""The experiment on images: its networks, its files, a run that is cut, and what its table says of small digits."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.io import savemat

import ogradient as og
from ogradient.experiments import images
from ogradient.experiments.networks import averages_over, crop_and_flip, resnet18, small
from ogradient.images import CIFAR_SHA256, cifar10, digits, svhn

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


def test_digits_keep_strangers_apart():
    data = digits()
    assert set(data.train.label) == set(data.test.label) == set(range(8))
    assert set(data.outside.label) == {8, 9}
    assert len(data.train) + len(data.test) + len(data.outside) == 1797


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


def test_a_run_that_is_cut_ends_with_the_metrics_of_one_that_is_not(tmp_path, monkeypatch):
    config = images.Config(**SHORT)
    images.run(config, tmp_path / "whole", progress=False)
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
        images.run(config, tmp_path / "cut", progress=False)
    monkeypatch.undo()
    assert saves[-1].exists()
    rows, figure = images.run(config, tmp_path / "cut", progress=False)
    assert not saves[-1].exists(), "what is done needs no checkpoint"
    runs = [json.loads((tmp_path / name / "images" / "metrics.json").read_text())["runs"] for name in ("whole", "cut")]
    for part in ("particles", "average", "reliability", "confidence", "loss"):
        assert runs[0]["o_langevin"][part] == runs[1]["o_langevin"][part]
    assert len(runs[1]["o_langevin"]["loss"]) == 3
    assert figure.exists()
    again, _ = images.run(config, tmp_path / "cut", progress=False)  # nothing is computed twice
    assert again == rows


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
