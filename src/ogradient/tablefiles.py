"""Files of data: found or downloaded, read, parsed, and refused with a remedy where that cannot be done."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ogradient.extras import need

if TYPE_CHECKING:
    import pandas as pd


def root_of(folder: str | os.PathLike[str] | None) -> Path | None:
    """The folder that was given, or the one that OGRADIENT_DATA names."""
    given = os.environ.get("OGRADIENT_DATA") if folder is None else folder
    return Path(given).expanduser() if given else None


def locate(root: Path, subfolder: str, names: Sequence[str], remedy: str) -> Path:
    """The first of a file's names that is there, plain or compressed."""
    paths = [place / (name + end) for name in names for place in (root / subfolder, root) for end in ("", ".gz")]
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(f"{names[0]} is missing; looked for {', '.join(map(str, paths))}. {remedy}")


def download(url: str, sha256: str, name: str, progress: bool, remedy: str) -> Path:
    """A file from the network, kept in the user's cache under a name."""
    pooch = need("pooch", "the datasets need", "experiments")
    try:
        cache = pooch.os_cache("ogradient")
        return Path(pooch.retrieve(url, f"sha256:{sha256}", fname=name, path=cache, progressbar=progress))
    except (OSError, ValueError) as error:
        # OSError: no network, or no cache that can be written. ValueError: a wrong checksum.
        reason = str(error) if isinstance(error, ValueError) else error.strerror or type(error).__name__
        raise OSError(f"{url} could not be downloaded ({reason}). {remedy}") from None


def read(path: Path) -> tuple[bytes, str]:
    """The content of a file, uncompressed, and its SHA-256."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged ({error}). Get it again.") from None
    return content, hashlib.sha256(content).hexdigest()


def parse(path: Path, content: bytes, remedy: str, **options: Any) -> pd.DataFrame:
    """A table, or an error that says what to do."""
    import pandas

    try:
        return pandas.read_csv(io.BytesIO(content), **options)
    except pandas.errors.EmptyDataError:
        refuse_empty(path, 0)
        raise
    except (pandas.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a table ({str(error).strip()}). {remedy}") from None


def refuse_empty(path: Path, rows: int) -> None:
    """Refuse a table without rows."""
    if rows == 0:
        raise ValueError(f"{path} has no usable row: it is empty, or every row lacks a value. Get it again.")


def as_numbers(path: Path, column: pd.Series) -> np.ndarray:
    """A column of text as numbers; percent signs are left out."""
    try:
        return column.str.strip().str.rstrip("%").astype(float).to_numpy(float, copy=True)
    except ValueError as error:
        raise ValueError(f"the column {column.name} of {path} is not numeric: {error}. Get the table again.") from None
