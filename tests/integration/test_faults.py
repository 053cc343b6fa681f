"""The faults of docs/reliability.md, a few times each; `python benchmarks/faults.py` does them many times."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("ogradient_faults", ROOT / "benchmarks" / "faults.py")
faults = importlib.util.module_from_spec(spec)
spec.loader.exec_module(faults)

pytestmark = pytest.mark.usefixtures("lenient_promotion")  # as a user would run them
QUICK = {
    "kill while saving": 3,
    "flipped bytes": 30,
    "missing files": 3,
    "threads": 3,
    "full disk": 2,
    "read-only folder": 1,
    "checkpoint, kill": 2,
    "checkpoint, full disk": 2,
    "checkpoint, flipped bytes": 10,
}
SLOW = {"kill while running": 3, "Ctrl-C": 5, "processes": 1, "not finite": 6, "batch_fn": 1, "long runs": 1}


def test_every_fault_is_tried():
    assert set(QUICK) | set(SLOW) == set(faults.FAULTS)


@pytest.mark.parametrize(
    ("name", "trials"), [*QUICK.items(), *(pytest.param(*fault, marks=pytest.mark.slow) for fault in SLOW.items())]
)
def test_nothing_that_was_kept_is_lost(name, trials):
    row = faults.inflict(name, trials, seed=1)
    assert row.fine == row.trials >= trials, row


def test_the_table_in_the_docs_has_no_loss():
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    rows = re.findall(r"^\| .* \| (\d+) \| (\d+) \| .*\|$", page, flags=re.M)
    assert len(rows) == len(faults.FAULTS)
    assert all(trials == fine for trials, fine in rows)
