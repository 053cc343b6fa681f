"""The loaders, on fabricated tables in the raw formats; on the real ones where OGRADIENT_DATA names their folder."""

import gzip
import json
import os
import subprocess
import sys
import traceback

import numpy as np
import pytest
from fake_tables import AFTER_OUTCOME, write_fake_adult, write_fake_lending

from ogradient.datasets import ADULT_NUMBERS, ADULT_SHA256, DATASETS, LENDING_NUMBERS, adult, lending, whereabouts

REAL = os.environ.get("OGRADIENT_DATA")


@pytest.fixture(autouse=True)
def _no_folder_from_outside(monkeypatch):
    monkeypatch.delenv("OGRADIENT_DATA", raising=False)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Read only; a test that changes a table writes its own."""
    return write_fake_lending(write_fake_adult(tmp_path_factory.mktemp("tables")))


def load_adult(folder, **options):
    return adult(folder, **{"num_train": 300, "verify": False} | options)


def edit(path, change):
    path.write_text(change(path.read_text("utf-8")), "utf-8")


def edit_column(path, column, change):
    """Replace the values of a column of the lending table by what `change(value, row)` gives."""
    header, *lines = path.read_text("utf-8").splitlines()
    place = header.split(",").index(column)
    rows = [line.split(",") for line in lines]
    for row in rows:
        row[place] = str(change(row[place], dict(zip(header.split(","), row, strict=True))))
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n", "utf-8")


def same(first, second):
    parts = [(getattr(first, part), getattr(second, part)) for part in ("train", "test")]
    return all(np.array_equal(a.features, b.features) and np.array_equal(a.label, b.label) for a, b in parts)


def column(data, part, name):
    return getattr(data, part).features[:, data.feature_names.index(name)]


def test_adult_has_86_features_and_sex_apart(tables):
    data = load_adult(tables)
    kept = [data.provenance["files"][name] for name in ("adult.data", "adult.test")]
    for split, rows in ((data.train, 300), (data.test, kept[1]["rows"] - kept[1]["rows_dropped"])):
        assert split.features.shape == (rows, 86)
        assert split.label.shape == split.sensitive.shape == (rows,)
        assert {split.features.dtype, split.label.dtype, split.sensitive.dtype} == {np.dtype(np.float32)}
        assert set(split.label) == set(split.sensitive) == {0.0, 1.0}
        assert split.rule is None
    counts = [sum(name.startswith(f"{column}=") for name in data.feature_names) for column in ("workclass", "race")]
    assert counts == [7, 5]
    assert not [name for name in data.feature_names if name.startswith(("sex", "income", "education="))]
    by_sex = [data.train.label[data.train.sensitive == value].mean() for value in (0, 1)]
    assert by_sex[0] < by_sex[1]


def test_adult_rows_with_a_question_mark_are_dropped(tmp_path):
    path = write_fake_adult(tmp_path) / "adult" / "adult.data"
    lines = path.read_text("utf-8").splitlines()
    unknown = sum("?" in line for line in lines)
    assert 0 < unknown < 100
    record = load_adult(tmp_path).provenance["files"]["adult.data"]
    assert (record["rows"], record["rows_dropped"]) == (600, unknown)
    assert load_adult(tmp_path, num_train=600 - unknown).train.features.shape[0] == 600 - unknown


def test_a_category_only_the_test_file_knows_becomes_zeros(tmp_path):
    path = write_fake_adult(tmp_path) / "adult" / "adult.test"
    edit(path, lambda text: text.replace("United-States", "Atlantis"))
    data = load_adult(tmp_path)
    countries = [index for index, name in enumerate(data.feature_names) if name.startswith("native-country=")]
    assert len(data.feature_names) == 86
    assert set(data.train.features[:, countries].sum(axis=1)) == {1.0}
    assert set(data.test.features[:, countries].sum(axis=1)) == {0.0, 1.0}


@pytest.mark.parametrize(("load", "numbers"), [(load_adult, ADULT_NUMBERS), (lending, LENDING_NUMBERS)])
def test_numbers_are_standardised_by_the_training_rows(tables, load, numbers):
    data = load(tables)
    for name in numbers:
        values = column(data, "train", name)
        assert abs(values.mean()) < 1e-5
        assert abs(values.std() - 1) < 1e-5
    assert any(abs(column(data, "test", name).mean()) > 0.01 for name in numbers)


def test_test_rows_do_not_change_the_training_features(tmp_path):
    before = load_adult(write_fake_adult(tmp_path))
    lines = (tmp_path / "adult" / "adult.test").read_text("utf-8").splitlines()
    kept = [line for line in lines if line.startswith(("|", "2", "3"))]  # by age
    (tmp_path / "adult" / "adult.test").write_text("\n".join(kept), "utf-8")
    after = load_adult(tmp_path)
    assert len(after.test.label) < len(before.test.label)
    np.testing.assert_array_equal(before.train.features, after.train.features)


def test_lending_features_and_rules(tables):
    data = lending(tables)
    assert data.train.features.shape == (len(data.train.label), 61)
    assert len(data.train.label) + len(data.test.label) == 800
    for split in (data.train, data.test):
        assert split.features.dtype == split.label.dtype == np.float32
        assert split.rule.dtype == np.int32
        assert split.sensitive is None
        assert np.isfinite(split.features).all()
        assert set(split.rule) == {0, 1, 2}
    for number in (1, 2):
        shares = [np.mean(split.rule == number) for split in (data.train, data.test)]
        assert shares[0] == pytest.approx(shares[1], abs=0.01)
    for part in ("train", "test"):
        rule, get = getattr(data, part).rule, lambda name, part=part: column(data, part, name) == 1
        jobless = get("emp_length=n/a") | get("emp_length=< 1 year")
        np.testing.assert_array_equal(rule == 1, get("grade=G") & jobless)
        np.testing.assert_array_equal(rule == 2, get("grade=A") & get("emp_length=10+ years"))


def test_lending_uses_nothing_known_only_after_the_outcome(tmp_path):
    path = write_fake_lending(tmp_path) / "lending" / "lending_club_2007_2011.csv"
    before = lending(tmp_path)
    late = [*AFTER_OUTCOME, "funded_amnt", "funded_amnt_inv", "sub_grade", "issue_d", "addr_state", "loan_status"]
    assert not [name for name in before.feature_names if name.split("=")[0] in late]
    for name in late[:-1]:
        edit_column(path, name, lambda value, row: "")
    assert same(before, lending(tmp_path))


def test_months_since_an_event_that_never_was(tmp_path):
    path = write_fake_lending(tmp_path) / "lending" / "lending_club_2007_2011.csv"
    before = lending(tmp_path)
    flags = column(before, "train", "mths_since_last_record=never")
    assert set(flags) == {0.0, 1.0}
    assert len(set(column(before, "train", "mths_since_last_record")[flags == 1])) == 1
    edit_column(path, "mths_since_last_record", lambda value, row: "" if row["pub_rec"] == "0" else value)
    assert same(before, lending(tmp_path))  # a 0 without a record is the same as nothing


def test_other_copies_of_the_lending_table(tmp_path):
    """The original has a line above its header, percent signs, "36 months", empty for n/a, and a footer."""
    path = write_fake_lending(tmp_path) / "lending" / "lending_club_2007_2011.csv"
    before = lending(tmp_path)
    for name, change in {
        "term": lambda value, row: f" {value} months",
        "int_rate": lambda value, row: f" {value}%",
        "revol_util": lambda value, row: f"{value}%" if value else "",
        "emp_length": lambda value, row: value.replace("n/a", ""),
    }.items():
        edit_column(path, name, change)
    footer = "Total amount funded: 1" + "," * path.read_text("utf-8").splitlines()[0].count(",")
    edit(path, lambda text: f"Notes offered by Prospectus\n{text}{footer}\n")
    path.rename(tmp_path / "LoanStats3a.csv")
    after = lending(tmp_path)
    assert same(before, after)
    assert after.provenance["files"]["LoanStats3a.csv"]["rows_dropped"] == 1


@pytest.mark.parametrize("load", [load_adult, lending])
def test_the_seed_decides(tables, load):
    first, again, other = load(tables, seed=0), load(tables, seed=0), load(tables, seed=1)
    assert same(first, again)
    assert not np.array_equal(first.train.features, other.train.features)
    assert first.feature_names == other.feature_names


@pytest.mark.parametrize(("load", "name"), [(load_adult, "adult"), (lending, "lending")])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
def test_layouts_of_the_folder(tables, tmp_path, monkeypatch, load, name, flat, compressed):
    place = tmp_path if flat else tmp_path / name
    place.mkdir(exist_ok=True)
    for path in (tables / name).iterdir():
        content = path.read_bytes()
        (place / (path.name + ".gz" * compressed)).write_bytes(gzip.compress(content) if compressed else content)
    monkeypatch.setenv("OGRADIENT_DATA", str(tmp_path))
    data, reference = load(None), load(str(tables))
    assert same(data, reference)
    assert data.provenance == reference.provenance == json.loads(json.dumps(data.provenance))
    assert str(tmp_path) not in json.dumps(data.provenance)
    assert data.name == name
    assert name in DATASETS


@pytest.mark.parametrize("load", [load_adult, lending])
def test_a_missing_file_is_named_with_the_places_and_the_remedy(tmp_path, load):
    with pytest.raises(
        FileNotFoundError, match="is missing; looked for .*OGRADIENT_DATA=FOLDER.*--data FOLDER"
    ) as caught:
        load(tmp_path / "nowhere")
    name = {"load_adult": "adult/adult.data", "lending": "lending/lending_club_2007_2011.csv"}[load.__name__]
    assert str(tmp_path / "nowhere" / f"{name}.gz") in str(caught.value)


def test_lending_without_a_folder_says_what_to_get():
    with pytest.raises(
        FileNotFoundError, match="LoanStats3a.*wordsforthewise/lending-club.*lending_club_2007_2011.csv"
    ):
        lending()


def test_a_file_that_is_not_the_original_is_refused(tables):
    with pytest.raises(ValueError, match=r"adult.data is not the original.*sha256 is .{64}, expected 5b00.*again from"):
        adult(tables)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"25, Private" * 99, mtime=0)[:-9]], ids=["other", "cut"]
)
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "adult.data.gz").write_bytes(content)
    with pytest.raises(ValueError, match="adult.data.gz is damaged"):
        load_adult(tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("long text " * 99), r"\(ConnectionError\)"),
        (ValueError("hash does not match"), "hash does not"),
    ],
)
def test_offline_is_one_clear_error(monkeypatch, error, reason):
    pooch = pytest.importorskip("pooch")

    def retrieve(*args, **kwargs):
        raise error

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(
        OSError, match=f"adult.data could not be downloaded .*{reason}.*OGRADIENT_DATA=FOLDER"
    ) as caught:
        adult()
    assert "During handling" not in "".join(traceback.format_exception(caught.value))


def test_without_a_folder_adult_comes_from_the_cache(tables, monkeypatch):
    pooch = pytest.importorskip("pooch")
    asked = []

    def retrieve(url, known_hash, fname, path, progressbar):
        asked.append((url, known_hash, str(path), progressbar))
        return str(tables / "adult" / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert same(load_adult(None, progress=True), load_adult(tables))
    assert [url.rpartition("/")[2] for url, *_ in asked] == ["adult.data", "adult.test"]
    for url, known_hash, path, progressbar in asked:
        assert url.startswith("https://archive.ics.uci.edu/ml/")
        assert known_hash.startswith("sha256:")
        assert "ogradient" in path
        assert progressbar is True


def test_a_missing_package_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"need pooch: pip install 'ogradient\[experiments\]'"):
        adult()


def test_importing_the_module_loads_nothing_heavy():
    code = "import sys, ogradient.datasets; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pandas", "sklearn", "pooch"} & set(modules)


@pytest.mark.parametrize(
    "text", ["", "|1x3 Cross validator\n", "39, ?, 7, HS-grad, 9, ?, ?, ?, ?, Male, 0, 0, 40, ?, >50K\n"]
)
def test_an_empty_adult_table(tmp_path, text):
    (write_fake_adult(tmp_path) / "adult" / "adult.test").write_text(text, "utf-8")
    with pytest.raises(ValueError, match="adult.test has no usable row"):
        load_adult(tmp_path)


@pytest.mark.parametrize("lines", [0, 1])
def test_an_empty_lending_table(tmp_path, lines):
    path = write_fake_lending(tmp_path) / "lending" / "lending_club_2007_2011.csv"
    edit(path, lambda text: "\n".join(text.splitlines()[:lines]))
    with pytest.raises(ValueError, match="has no usable row"):
        lending(tmp_path)


@pytest.mark.parametrize("num_train", [0, 601, 10**6])
def test_rows_that_are_not_there(tables, num_train):
    with pytest.raises(ValueError, match=rf"num_train must lie between 1 and 5\d\d, .*; got {num_train}"):
        load_adult(tables, num_train=num_train)


@pytest.mark.parametrize("num_train", [300.0, 0.5, "300", None])
def test_a_number_of_rows_that_is_not_whole(tables, num_train):
    with pytest.raises(ValueError, match=f"num_train must be a whole number.*got {num_train!r}"):
        load_adult(tables, num_train=num_train)
    assert len(load_adult(tables, num_train=np.int64(300)).train.label) == 300


MALFORMED = {
    "columns": lambda text: text + "1,2,3" + ",4" * 99 + "\n",
    "quote": lambda text: text + '"1,2\n',
    "bytes": lambda text: text + "caf\udce9\n",
}


@pytest.mark.parametrize(
    ("load", "file", "fault"),
    [
        (load_adult, "adult/adult.data", "columns"),
        (load_adult, "adult/adult.data", "bytes"),
        (load_adult, "adult/adult.test", "quote"),
        (lending, "lending/lending_club_2007_2011.csv", "quote"),
        (lending, "lending/lending_club_2007_2011.csv", "bytes"),
    ],
)
def test_a_malformed_table_is_named_with_the_remedy(tmp_path, load, file, fault):
    path = write_fake_lending(write_fake_adult(tmp_path)) / file
    path.write_bytes(MALFORMED[fault](path.read_text("utf-8")).encode("utf-8", "surrogateescape"))
    with pytest.raises(
        ValueError, match=r"cannot be read as a table \(.*OGRADIENT_DATA=FOLDER.*--data FOLDER"
    ) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert type(caught.value) is ValueError


def test_an_adult_table_with_a_header(tmp_path):
    path = write_fake_adult(tmp_path) / "adult" / "adult.data"
    edit(path, lambda text: ", ".join(["age", "a", "fnlwgt", *"bcdefghijklm"[:12]]) + "\n" + text)
    with pytest.raises(ValueError, match="the column age of .*adult.data is not numeric: .*'age'"):
        load_adult(tmp_path)


def test_whereabouts_without_a_folder(tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path)
    assert whereabouts("lending") == "not found; no folder was given and OGRADIENT_DATA is not set"
    assert whereabouts("adult") == f"not found; it is downloaded into {tmp_path} when it is first needed"
    for name in ADULT_SHA256:
        (tmp_path / name).touch()
    assert whereabouts("adult") == f"found, {tmp_path / 'adult.data'}, {tmp_path / 'adult.test'}"
    assert (
        whereabouts("cifar10")
        == whereabouts("svhn")
        == f"not found; it is downloaded into {tmp_path} when it is first needed"
    )
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    assert whereabouts("cifar10") == f"found, {tmp_path / 'cifar-10-binary.tar.gz'}"
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert "pip install" in whereabouts("adult")
    assert whereabouts("digits") == "comes with scikit-learn"


@pytest.mark.parametrize(("file", "part"), [("adult.data", "training"), ("adult.test", "test")])
def test_a_sensitive_attribute_with_one_value(tmp_path, file, part):
    edit(write_fake_adult(tmp_path) / "adult" / file, lambda text: text.replace(", Female,", ", Male,"))
    with pytest.raises(ValueError, match=rf"sensitive attribute has one value, 1, in all \d+ {part} rows"):
        load_adult(tmp_path)


def test_a_label_with_one_value(tmp_path):
    path = write_fake_lending(tmp_path) / "lending" / "lending_club_2007_2011.csv"
    edit_column(path, "loan_status", lambda value, row: "Fully Paid")
    with pytest.raises(ValueError, match="the label has one value"):
        lending(tmp_path)


@pytest.mark.parametrize(("rule", "grade"), [(1, "G"), (2, "A")])
def test_a_rule_that_touches_no_row(tmp_path, rule, grade):
    path = write_fake_lending(tmp_path) / "lending" / "lending_club_2007_2011.csv"
    edit_column(path, "grade", lambda value, row: value.replace(grade, "C"))
    with pytest.raises(ValueError, match=rf"rule {rule} \(must be .*\) touches 0 of the 800 rows"):
        lending(tmp_path)


def test_missing_columns_are_named(tmp_path):
    path = write_fake_lending(tmp_path) / "lending" / "lending_club_2007_2011.csv"
    edit(path, lambda text: text.replace("annual_inc", "income", 1).replace("dti", "ratio", 1))
    with pytest.raises(ValueError, match="lacks the columns annual_inc, dti. Lending Club"):
        lending(tmp_path)


@pytest.mark.parametrize("value", ["many", "inf"])
def test_a_number_that_is_none_is_named(tmp_path, value):
    path = write_fake_lending(tmp_path) / "lending" / "lending_club_2007_2011.csv"
    edit_column(path, "dti", lambda old, row: value if row["loan_amnt"] > "9" else old)
    with pytest.raises(ValueError, match="dti.*(is not numeric|no finite numbers)"), np.errstate(invalid="ignore"):
        lending(tmp_path)


@pytest.mark.parametrize("share", [0, 1, -0.2, float("nan")])
def test_a_share_outside_zero_to_one(tables, share):
    with pytest.raises(ValueError, match="test_share must lie between 0 and 1; got"):
        lending(tables, test_share=share)


@pytest.mark.skipif(not REAL, reason="OGRADIENT_DATA names no folder with the real tables")
def test_the_real_tables():
    income, loans = adult(REAL), lending(REAL)
    assert income.train.features.shape == (20_000, 86)
    assert income.test.features.shape == (15_060, 86)
    files = income.provenance["files"].values()
    assert [record["rows"] - record["rows_dropped"] for record in files] == [30_162, 15_060]
    rule = np.concatenate([loans.train.rule, loans.test.rule])
    assert [np.sum(rule == number) for number in (1, 2)] == [81, 2_312]
    assert len(rule) == 42_535
    assert loans.train.features.shape[1] == 61
    assert loans.test.label.mean() == pytest.approx(0.849, abs=0.01)
