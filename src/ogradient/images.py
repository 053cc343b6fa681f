"""Images for the experiment on networks: CIFAR-10, SVHN, and the digits that come with scikit-learn.

Raw files are read from a folder (the argument `folder`, or the environment variable OGRADIENT_DATA); without one they are
downloaded once into the user's cache. Digits need neither.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ogradient.extras import need
from ogradient.tablefiles import download, locate, read, root_of

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
CIFAR_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
CIFAR_REMEDY = (
    f"Put the six .bin files of {CIFAR_URL} (or their .gz) into a folder or its subfolder cifar10, and name it: "
    "OGRADIENT_DATA=FOLDER, folder=..., or --data FOLDER on the command line."
)
CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
SVHN_FILE = "test_32x32.mat"
SVHN_URL = "http://ufldl.stanford.edu/housenumbers/test_32x32.mat"
SVHN_SHA256 = "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"
SVHN_REMEDY = (
    f"Put test_32x32.mat from {SVHN_URL} into a folder or its subfolder svhn, and name it: OGRADIENT_DATA=FOLDER, folder=..., "
    "or --data FOLDER on the command line."
)
SIDE = 32
IMAGES = ("cifar10", "svhn", "digits")  # what `describe` knows
STRANGE_DIGITS = (8, 9)  # classes that a classifier of digits never sees


@dataclass(frozen=True, eq=False)
class Images:
    """Images of some classes: `image` (n, height, width, channels), uint8, and `label` (n,), int32."""

    image: np.ndarray
    label: np.ndarray

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images to learn from, to judge by, and of no class that is learnt (`outside`), and where they came from."""

    name: str
    train: Images
    test: Images
    outside: Images | None
    provenance: dict[str, Any]


def cifar10(
    folder: str | os.PathLike[str] | None = None, *, progress: bool = False, verify: bool = True
) -> ImageDataset:
    """CIFAR-10 (Krizhevsky 2009): 50,000 images of 32 × 32 pixels in ten classes for training, and 10,000 for testing.

    Args:
        folder: where the six .bin files of the binary release lie (or their .gz), or a folder `cifar10` with them. None: the
            environment variable OGRADIENT_DATA, and where that is unset a download of 170 MB into the user's cache.
        progress: whether a download shows its progress.
        verify: whether files must be the originals, by their sha256.
    """
    root = root_of(folder)
    remedy = f"{CIFAR_REMEDY} Without a folder they are downloaded."
    archive = _cifar_archive(progress) if root is None else None
    parts, files = {}, {}
    for name, expected in CIFAR_SHA256.items():
        if archive is not None:
            path, content = Path(name), archive[name]
            digest = hashlib.sha256(content).hexdigest()
        else:
            assert root is not None
            path = locate(root, "cifar10", [name], remedy)
            content, digest = read(path)
        if verify and digest != expected:
            raise ValueError(
                f"{path} is not the original {name}: its sha256 is {digest}, expected {expected}. {remedy}"
            )
        parts[name], files[name] = _cifar_part(path, content, remedy), {"sha256": digest}
    train = [part for name, part in parts.items() if name.startswith("data_batch")]
    together = Images(np.concatenate([p.image for p in train]), np.concatenate([p.label for p in train]))
    provenance = {"source": CIFAR_URL, "files": files, "verified": bool(verify)}
    return ImageDataset("cifar10", together, parts["test_batch.bin"], None, provenance)


def svhn(
    folder: str | os.PathLike[str] | None = None, *, progress: bool = False, verify: bool = True
) -> tuple[Images, dict[str, Any]]:
    """The test images of SVHN (Netzer and others 2011), house numbers of 32 × 32 pixels; and where they came from.

    Args:
        folder: where `test_32x32.mat` lies, or a folder `svhn` with it. None: the environment variable OGRADIENT_DATA, and where
            that is unset a download of 64 MB into the user's cache.
        progress: whether a download shows its progress.
        verify: whether the file must be the original, by its sha256. Copies with fewer images are read without.
    """
    from scipy.io import loadmat

    root, name = root_of(folder), SVHN_FILE
    remedy = f"{SVHN_REMEDY} Without a folder it is downloaded."
    fetched = lambda: download(SVHN_URL, SVHN_SHA256, name, progress, SVHN_REMEDY)
    path = fetched() if root is None else locate(root, "svhn", [name], remedy)
    content, digest = read(path)
    if verify and digest != SVHN_SHA256:
        raise ValueError(f"{path} is not the original {name}: its sha256 is {digest}, expected {SVHN_SHA256}. {remedy}")
    try:
        found = loadmat(io.BytesIO(content))  # type: ignore[arg-type]
        image, label = np.moveaxis(found["X"], 3, 0), found["y"].ravel() % 10  # the file writes 10 for the digit 0
    except Exception as error:  # of many kinds, by what is wrong with the file
        raise ValueError(f"{path} cannot be read as {name} ({type(error).__name__}: {error}). {remedy}") from None
    images = Images(np.ascontiguousarray(image, np.uint8), label.astype(np.int32))
    return images, {
        "source": SVHN_URL,
        "files": {name: {"sha256": digest, "images": len(images)}},
        "verified": bool(verify),
    }


def digits(seed: int = 0) -> ImageDataset:
    """The 8 × 8 digits of scikit-learn: 0 to 7, a fifth for training and the others for testing; 8 and 9 are outside.

    A fifth (288 images), since with more there is hardly anything left to tell samplers apart by.
    """
    datasets = need("sklearn.datasets", "digits need scikit-learn, which has them", "experiments")
    image, label = datasets.load_digits(return_X_y=True)
    image, label = image.reshape(-1, 8, 8, 1).astype(np.uint8), label.astype(np.int32)
    strange = np.isin(label, STRANGE_DIGITS)
    known = np.random.default_rng(seed).permutation(np.flatnonzero(~strange))
    cut = len(known) // 5
    pick = lambda rows: Images(image[rows], label[rows])
    provenance = {"source": "scikit-learn, load_digits", "seed": seed, "outside": list(STRANGE_DIGITS)}
    return ImageDataset("digits", pick(known[:cut]), pick(known[cut:]), pick(np.flatnonzero(strange)), provenance)


def describe(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """What is in images, a row for each part, and where they came from, a line for each file."""
    if name == "svhn":
        only, provenance = svhn(folder)
        parts = {"test": only}
    else:
        data = cifar10(folder) if name == "cifar10" else digits()
        parts, provenance = {"train": data.train, "test": data.test}, data.provenance
        parts |= {} if data.outside is None else {"outside": data.outside}
    rows = []
    for part, images in parts.items():
        count = np.unique(images.label, return_counts=True)[1]
        size = " × ".join(map(str, images.image.shape[1:]))
        sizes = {"fewest of a class": int(count.min()), "most of a class": int(count.max())}
        rows.append({"part": part, "images": len(images), "size": size, "classes": len(count)} | sizes)
    lines = [f"{file}: sha256 {facts['sha256']}" for file, facts in provenance.get("files", {}).items()]
    return rows, lines or [provenance["source"]]


def channel_statistics(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every channel of images (n, ..., channels) of bytes, float32.

    They come from how often each of the 256 values occurs: all pixels as numbers would take eight times the memory of the images.
    """
    channels, values = image.shape[-1], np.arange(256.0)
    count = np.zeros((channels, 256))
    for start in range(0, len(image), 500):
        part = image[start : start + 500]
        count += [np.bincount(part[..., c].ravel(), minlength=256) for c in range(channels)]
    share = count / count.sum(axis=1, keepdims=True)
    mean = share @ values
    spread = np.sqrt(np.sum(share * (values - mean[:, None]) ** 2, axis=1))
    return mean.astype(np.float32), spread.astype(np.float32)


def _cifar_part(path: Path, content: bytes, remedy: str) -> Images:
    """One file of the binary release: a byte of label, then 32 × 32 of red, of green and of blue, for each image."""
    row = 1 + 3 * SIDE * SIDE
    if not content or len(content) % row:
        raise ValueError(f"{path} has {len(content)} bytes, no whole number of images. {remedy}")
    table = np.frombuffer(content, np.uint8).reshape(-1, row)
    image = table[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Images(np.ascontiguousarray(image), table[:, 0].astype(np.int32))


def _cifar_archive(progress: bool) -> dict[str, bytes]:
    path = download(CIFAR_URL, CIFAR_ARCHIVE_SHA256, CIFAR_ARCHIVE, progress, CIFAR_REMEDY)
    with tarfile.open(path) as archive:
        members = {Path(member.name).name: member for member in archive.getmembers()}
        return {name: archive.extractfile(members[name]).read() for name in CIFAR_SHA256}  # type: ignore[union-attr]
