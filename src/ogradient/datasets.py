"""Real tables for the experiments: income with a sensitive attribute (Adult), loans with logic rules (Lending Club).

No data comes with the package. Raw files are read from a folder (the argument `folder`, or the environment variable
OGRADIENT_DATA); without one, Adult is downloaded once into the user's cache. Lending Club needs an account somewhere, so
its file has to be put in place by hand.

The loan rules stand in for those of the paper, "not employed" and "employed for over 15 years". Every public copy of the
table ends its field `emp_length` at "10+ years", so 10 years or more stands in for over 15, and "not employed" is read off
"n/a" or "< 1 year":

- rule 1, must be rejected: grade G, and `emp_length` n/a or under a year;
- rule 2, must be approved: grade A, and `emp_length` 10+ years.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ogradient.extras import need
from ogradient.images import CIFAR_ARCHIVE, CIFAR_SHA256, SVHN_FILE, cifar10, digits, svhn  # noqa: F401, datasets as well
from ogradient.tablefiles import as_numbers, download, locate, parse, read, refuse_empty, root_of

if TYPE_CHECKING:
    import pandas as pd

ADULT_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
# Of the uncompressed files.
ADULT_SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
ADULT_COLUMNS = ["age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"]
ADULT_COLUMNS += ["relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"]
ADULT_COLUMNS += ["income"]
ADULT_CATEGORIES = ["workclass", "marital-status", "occupation", "relationship", "race", "native-country"]
ADULT_NUMBERS = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
ADULT_REMEDY = (
    f"Put adult.data and adult.test (or their .gz) from {ADULT_URL} into a folder and name it: OGRADIENT_DATA=FOLDER, "
    "folder=..., or --data FOLDER on the command line."
)

LENDING_FILES = ("lending_club_2007_2011.csv", "LoanStats3a.csv")
LENDING_CATEGORIES = ["grade", "emp_length", "term", "home_ownership", "verification_status", "purpose"]
LENDING_AMOUNTS = ["loan_amnt", "installment", "annual_inc", "revol_bal"]  # skewed, so their logarithm is used
LENDING_NUMBERS = [*LENDING_AMOUNTS, "int_rate", "dti", "delinq_2yrs", "inq_last_6mths", "mths_since_last_delinq"]
LENDING_NUMBERS += ["mths_since_last_record", "open_acc", "pub_rec", "revol_util", "total_acc", "pub_rec_bankruptcies"]
# The column of months since an event, and the column that counts the events.
LENDING_EVENTS = {"mths_since_last_delinq": "delinq_2yrs", "mths_since_last_record": "pub_rec"}
GRADES = list("ABCDEFG")
EMPLOYMENT = ["n/a", "< 1 year", "1 year", *(f"{years} years" for years in range(2, 10)), "10+ years"]
RULES = {
    1: "must be rejected: grade G, emp_length n/a or < 1 year",
    2: "must be approved: grade A, emp_length 10+ years",
}
LENDING_REMEDY = (
    "Lending Club cannot be downloaded without an account. Get its public loan statistics 2007-2011, the table "
    "LoanStats3a (also the rows up to December 2011 of the Kaggle copy wordsforthewise/lending-club), save it as "
    f"{' or '.join(LENDING_FILES)} (or their .gz) in a folder or in its subfolder lending, and name the folder: "
    "OGRADIENT_DATA=FOLDER, folder=..., or --data FOLDER on the command line."
)


@dataclass(frozen=True, eq=False)
class Split:
    """Rows for training or for testing.

    Attributes:
        features: (n, p), float32.
        label: (n,), float32, 0 or 1.
        sensitive: (n,), float32, 0 or 1, where the data has a sensitive attribute (Adult: 1 is male, 0 is female).
        rule: (n,), int32, where the data has rules (Lending Club: 0 none, 1 must be rejected, 2 must be approved).
    """

    features: np.ndarray
    label: np.ndarray
    sensitive: np.ndarray | None = None
    rule: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table ready for a model, and where it came from.

    Attributes:
        name: `"adult"` or `"lending"`.
        train: rows to learn from; all statistics used in the features are theirs.
        test: rows to judge by.
        feature_names: of the columns of `features`; `"column=level"` for a column of zeros and ones.
        provenance: files with the sha256 of their uncompressed content, row counts, seed, columns. Fit for JSON.
    """

    name: str
    train: Split
    test: Split
    feature_names: tuple[str, ...]
    provenance: dict[str, Any]


def adult(
    folder: str | os.PathLike[str] | None = None,
    *,
    num_train: int = 20_000,
    seed: int = 0,
    progress: bool = False,
    verify: bool = True,
) -> Dataset:
    """UCI Adult (census income): label 1 is an income over 50,000 dollars, and sex is the sensitive attribute.

    Rows with an unknown value ("?") are dropped. The categories are those of the training file; one that only the test
    file knows becomes zeros. Numbers are standardised by the training rows. Capital gain and loss are taken as they are:
    a logistic regression does better with them than with their logarithms. `education` is left out because
    `education-num` says the same, and `sex` because it is kept apart as `sensitive`.

    Args:
        folder: where `adult.data` and `adult.test` (or their .gz) lie, or a folder `adult` with them. None: the
            environment variable OGRADIENT_DATA, and where that is unset a download into the user's cache.
        num_train: how many rows of the training file to draw, without replacement. The test file is used whole.
        seed: of that draw.
        progress: whether a download shows its progress.
        verify: whether the files must be the originals, by their sha256.
    """
    import pandas as pd

    if not isinstance(num_train, int | np.integer):
        raise ValueError(f"num_train must be a whole number, how many rows to draw; got {num_train!r}.")
    root, remedy = root_of(folder), f"{ADULT_REMEDY} Without a folder they are downloaded."
    tables, files = [], {}
    for name, expected in ADULT_SHA256.items():
        path = _download(name, progress) if root is None else locate(root, "adult", [name], remedy)
        content, digest = read(path)
        if verify and digest != expected:
            why = f"its sha256 is {digest}, expected {expected}. Download it again from {ADULT_URL}{name}."
            raise ValueError(f"{path} is not the original {name}: {why}")
        # The test file opens with a line "|1x3 Cross validator".
        options = {"names": ADULT_COLUMNS, "skipinitialspace": True, "na_values": "?", "comment": "|"}
        table = parse(path, content, remedy, low_memory=False, **options)
        complete = table.dropna()
        refuse_empty(path, len(complete))
        numbers = {column: as_numbers(path, complete[column].astype(str)) for column in ADULT_NUMBERS}
        files[name] = _record(digest, len(table), len(complete))
        tables.append(complete.assign(**numbers))
    available = len(tables[0])
    if not 1 <= num_train <= available:
        limits = f"1 and {available}, the complete rows of adult.data"
        raise ValueError(f"num_train must lie between {limits}; got {num_train!r}.")
    drawn = np.random.default_rng(seed).permutation(available)[:num_train]
    # Those of the whole file, so that they are the same for every seed.
    levels = {column: sorted(set(tables[0][column])) for column in ADULT_CATEGORIES}
    table = pd.concat([tables[0].iloc[drawn], tables[1]])
    train = np.arange(len(table)) < num_train
    features, names = _design(table, levels, {column: table[column].to_numpy() for column in ADULT_NUMBERS}, {}, train)
    # The test file writes ">50K.".
    label = table["income"].str.rstrip(".").eq(">50K").to_numpy(np.float32)
    sensitive = table["sex"].eq("Male").to_numpy(np.float32)
    provenance = {
        "source": ADULT_URL,
        "files": files,
        "seed": int(seed),
        "rows": {"train": int(num_train), "test": len(tables[1])},
        "columns_left_out": ["education", "sex (kept apart as the sensitive attribute)"],
        "verified": bool(verify),
    }
    parts = _split(train, features=features, label=label, sensitive=sensitive)
    return Dataset("adult", *parts, names, provenance)


def lending(folder: str | os.PathLike[str] | None = None, *, seed: int = 0, test_share: float = 0.2) -> Dataset:
    """Lending Club loans issued 2007-2011: label 1 is a loan repaid; `rule` marks loans whose answer is prescribed.

    Only what was known when the loan was asked for is used: nothing paid, recovered or reported later. Also left out are
    the amounts funded and the issue date, `sub_grade` and `addr_state`, and columns that are (almost) constant, which
    would become a handful of huge values. Amounts of money enter by their logarithm; numbers are standardised by the
    training rows. A missing number becomes the training median, with a column of its own that says so where many are
    missing. In months since an event, missing means never; so does a 0 without any event, as the first loans have it.

    Args:
        folder: where `lending_club_2007_2011.csv` or `LoanStats3a.csv` (or .gz) lies, or a folder `lending` with it.
            None: the environment variable OGRADIENT_DATA.
        seed: of the split into training and test rows.
        test_share: part of the rows for testing, the same among the rows of each rule.

    Copies of this table differ, so its sha256 is not checked; it goes into the provenance.
    """
    root = root_of(folder)
    if root is None:
        raise FileNotFoundError(f"no folder was given and OGRADIENT_DATA is not set. {LENDING_REMEDY}")
    if not 0 < test_share < 1:
        raise ValueError(f"test_share must lie between 0 and 1; got {test_share!r}.")
    path = locate(root, "lending", LENDING_FILES, LENDING_REMEDY)
    content, digest = read(path)
    # The original has a line above its header.
    start = content.rfind(b"\n", 0, max(content.find(b"loan_amnt"), 0)) + 1
    needed = ["loan_status", *LENDING_CATEGORIES, *LENDING_NUMBERS]
    table = parse(path, content[start:], LENDING_REMEDY, dtype=str, usecols=lambda column: column in needed)
    missing = [column for column in needed if column not in table.columns]
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}. {LENDING_REMEDY}")
    status = table["loan_status"].fillna("")
    # Other loans are unfinished, or a footer.
    table = table[status.str.endswith(("Fully Paid", "Charged Off"))]
    refuse_empty(path, len(table))
    label = table["loan_status"].str.endswith("Fully Paid").to_numpy(np.float32)
    table = table.assign(emp_length=table["emp_length"].fillna("n/a"))
    table = table.assign(term=table["term"].str.extract(r"(\d+)", expand=False))
    unemployed = table["grade"].eq("G") & table["emp_length"].isin(["n/a", "< 1 year"])
    veteran = table["grade"].eq("A") & table["emp_length"].eq("10+ years")
    rule = (1 * unemployed + 2 * veteran).to_numpy(np.int32)
    touched = {number: int(np.sum(rule == number)) for number in RULES}
    for number, text in RULES.items():
        if touched[number] < 2:
            raise ValueError(
                f"rule {number} ({text}) touches {touched[number]} of the {len(rule)} rows of {path}; it needs at "
                "least two, one for training and one for testing. Use the whole table."
            )
    train = _stratified(rule, test_share, seed)
    known = {"grade": GRADES, "emp_length": EMPLOYMENT}
    levels = {column: known.get(column, sorted(set(table[column].dropna()))) for column in LENDING_CATEGORIES}
    numbers = {column: as_numbers(path, table[column]) for column in LENDING_NUMBERS}
    for months, count in LENDING_EVENTS.items():
        numbers[months][(numbers[months] == 0) & (numbers[count] == 0)] = np.nan
    flags = {f"{months}=never": np.isnan(numbers[months]) for months in LENDING_EVENTS}
    flags["pub_rec_bankruptcies=missing"] = np.isnan(numbers["pub_rec_bankruptcies"])
    numbers |= {column: np.log1p(numbers[column]) for column in LENDING_AMOUNTS}
    features, names = _design(table, levels, numbers, flags, train)
    provenance = {
        "source": "Lending Club, loan statistics 2007-2011 (LoanStats3a)",
        "files": {path.name.removesuffix(".gz"): _record(digest, len(status), len(table))},
        "seed": int(seed),
        "test_share": float(test_share),
        "rows": {"train": int(train.sum()), "test": int((~train).sum())},
        "rules": {str(number): {"text": text, "rows": touched[number]} for number, text in RULES.items()},
        "columns_used": needed,
    }
    parts = _split(train, features=features, label=label, rule=rule)
    return Dataset("lending", *parts, names, provenance)


DATASETS: dict[str, Callable[..., Dataset]] = {"adult": adult, "lending": lending}
# All of a dataset's files are needed, each under any of its names.
FILES: dict[str, list[Sequence[str]]] = {"adult": [[name] for name in ADULT_SHA256], "lending": [LENDING_FILES]}
FILES |= {"cifar10": [[name] for name in CIFAR_SHA256], "svhn": [[SVHN_FILE]], "digits": []}
# What a download leaves in the cache.
CACHED = {"adult": [*ADULT_SHA256], "cifar10": [CIFAR_ARCHIVE], "svhn": [SVHN_FILE]}


def whereabouts(name: str, folder: str | os.PathLike[str] | None = None) -> str:
    """Whether the files of a dataset are there, and where they are looked for, as text. Nothing is read or downloaded."""
    if not FILES[name]:
        return "comes with scikit-learn"
    root = root_of(folder)
    if root is not None:
        try:
            return "found, " + ", ".join(str(locate(root, name, names, "")) for names in FILES[name])
        except FileNotFoundError:
            return f"not found; looked in {root / name} and {root}"
    if name not in CACHED:
        return "not found; no folder was given and OGRADIENT_DATA is not set"
    try:
        cache = Path(need("pooch", "the datasets need", "experiments").os_cache("ogradient"))
    except ImportError as error:
        return f"not found; no folder was given and OGRADIENT_DATA is not set, and for a download {error}"
    paths = [cache / file for file in CACHED[name]]
    if all(path.is_file() for path in paths):
        return "found, " + ", ".join(map(str, paths))
    return f"not found; it is downloaded into {cache} when it is first needed"


def _download(name: str, progress: bool) -> Path:
    return download(ADULT_URL + name, ADULT_SHA256[name], name, progress, ADULT_REMEDY)


def _record(digest: str, rows: int, kept: int) -> dict[str, Any]:
    """What the provenance says of a file."""
    return {"sha256": digest, "rows": rows, "rows_dropped": rows - kept}


def _stratified(strata: np.ndarray, test_share: float, seed: int) -> np.ndarray:
    """Which rows are for training: the same share of every stratum, and at least one row of it on each side."""
    rng = np.random.default_rng(seed)
    train = np.ones(len(strata), bool)
    for stratum in np.unique(strata):
        rows = rng.permutation(np.flatnonzero(strata == stratum))
        train[rows[: np.clip(round(test_share * len(rows)), 1, len(rows) - 1)]] = False
    return train


def _split(train: np.ndarray, **arrays: np.ndarray) -> tuple[Split, Split]:
    """Training and test rows of all arrays. Refuses a label or an attribute of one value, which teaches a model nothing."""
    for part, rows in (("training", train), ("test", ~train)):
        for name, what in (("label", "label"), ("sensitive", "sensitive attribute")):
            values = arrays.get(name, np.arange(len(train)))[rows]
            if np.all(values == values[0]):
                raise ValueError(
                    f"the {what} has one value, {values[0]:g}, in all {len(values)} {part} rows, so there is nothing to "
                    "compare. Use more rows, another seed, or the whole table."
                )
    pick = lambda rows: Split(**{name: values[rows] for name, values in arrays.items()})
    return pick(train), pick(~train)


Columns = dict[str, np.ndarray]


def _design(
    table: pd.DataFrame, levels: dict[str, list[str]], numbers: Columns, flags: Columns, train: np.ndarray
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Zeros and ones for every level and flag, then the numbers: gaps filled and scaled by the training rows alone."""
    columns = {f"{column}={level}": table[column].eq(level) for column in levels for level in levels[column]} | flags
    for name, values in numbers.items():
        filled = np.where(np.isnan(values), np.nanmedian(values[train]), values)
        spread = filled[train].std()
        columns[name] = (filled - filled[train].mean()) / (spread if spread > 0 else 1.0)
    features = np.stack([np.asarray(values, np.float32) for values in columns.values()], axis=1)
    bad = [name for index, name in enumerate(columns) if not np.isfinite(features[:, index]).all()]
    if bad:
        raise ValueError(f"the columns {', '.join(bad)} hold values that are no finite numbers. Get the table again.")
    return features, tuple(columns)
