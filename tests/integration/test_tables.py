"""The experiments on real tables, run small on fabricated ones."""

import dataclasses
import json

import numpy as np
import pytest
from fake_tables import write_fake_adult, write_fake_lending
from typer.testing import CliRunner

from ogradient import chunk, datasets
from ogradient.cli import app
from ogradient.experiments import income, loan, moment, reference, tradeoff, training

pytestmark = pytest.mark.usefixtures("lenient_promotion")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write_fake_adult(folder)
    write_fake_lending(folder)
    return folder


@pytest.fixture
def few(monkeypatch):
    """Two samplers are enough to see that the machinery works."""
    for module, labels in ((income, ("o_langevin", "langevin", "o_svgd", "svgd")), (loan, ("o_svgd", "langevin"))):
        chosen = lambda *args, full=module.entries, keep=labels: [e for e in full(*args) if e.label in keep]
        monkeypatch.setattr(module, "entries", chosen)


SMALL = income.Config(rows=300, particles=3, hidden=4, steps=6, checkpoints=3, seeds=2)


def test_income_leaves_its_folder_and_is_read_again(tables, few, tmp_path, monkeypatch):
    rows, figure = income.run(SMALL, tmp_path, data=tables, verify=False, progress=False)
    smooth = ["o_langevin, tanh, paper's alpha", "o_langevin, tanh, paper's alpha, no second order"]
    assert [row["sampler"] for row in rows] == ["o_langevin", "o_svgd", "langevin", "svgd", *smooth]
    assert figure.exists()
    metrics = json.loads((figure.parent / "metrics.json").read_text("utf-8"))
    curve = metrics["curves"]["o_langevin"]["test accuracy"]
    assert curve["iterations"] == [0, 2, 4, 6]
    assert len(curve["mean"]) == len(curve["standard_error"]) == 4
    assert max(curve["standard_error"]) > 0  # seeds differ

    def refuse(*args, **kwargs):
        raise AssertionError("sampled again")

    monkeypatch.setattr(training, "sample", refuse)
    again, _ = income.run(SMALL, tmp_path, data=tables, verify=False, progress=False)
    assert again == rows
    with pytest.raises(AssertionError, match="sampled again"):
        income.run(dataclasses.replace(SMALL, steps=12), tmp_path, data=tables, verify=False, progress=False)
    # a run cut short leaves no file, a damaged one is made again
    damaged = next((tmp_path / "income" / "runs").glob("*.json"))
    damaged.write_text("{", "utf-8")
    with pytest.raises(AssertionError, match="sampled again"):
        income.run(SMALL, tmp_path, data=tables, verify=False, progress=False)


@pytest.mark.parametrize(("steps", "checkpoints", "iterations"), [(1, 3, [0, 1]), (8, 3, [0, 5, 8])])
def test_as_many_steps_as_asked_for(tables, tmp_path, monkeypatch, steps, checkpoints, iterations):
    made = []
    keep = lambda *args, **options: made.append(actual(*args, **options)) or made[-1]
    actual = training.sample
    monkeypatch.setattr(training, "sample", keep)
    monkeypatch.setattr(
        loan, "entries", lambda *args, full=loan.entries: [e for e in full(*args) if e.label == "langevin"]
    )
    config = loan.Config(particles=2, steps=steps, checkpoints=checkpoints, seeds=1)
    _, figure = loan.run(config, tmp_path, data=tables, progress=False)
    curve = json.loads((figure.parent / "metrics.json").read_text("utf-8"))["curves"]["langevin"]
    assert curve["test accuracy"]["iterations"] == iterations
    assert [len(curve["test accuracy"][name]) for name in ("mean", "standard_error")] == [len(iterations)] * 2
    trace = made[-1]
    assert trace.provenance["num_steps"] == curve["about"][0]["steps"] == steps
    np.testing.assert_array_equal(trace.state.iteration, steps)
    np.testing.assert_array_equal(trace.state.position["w"], trace.position["w"][:, -1])
    assert f"after {steps} steps" in figure.with_name("report.html").read_text("utf-8")

    path = next((tmp_path / "loan" / "runs").glob("*.json"))
    record = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(record | {"iterations": [0, steps + 1]}), "utf-8")  # not what was asked for: made again
    loan.run(config, tmp_path, data=tables, progress=False)
    assert json.loads(path.read_text("utf-8"))["iterations"] == iterations


def test_the_time_of_a_run_is_without_compiling(tables, few, tmp_path, monkeypatch):
    compiled, actual = [], training.sample

    def watched(*args, **options):
        before = chunk.run_chunk._cache_size()
        trace = actual(*args, **options)
        compiled.append((chunk.run_chunk._cache_size() - before, trace.provenance["seconds"]))
        return trace

    monkeypatch.setattr(training, "sample", watched)
    runs = loan.compute(loan.Config(2, 8, 3, 1), tmp_path, datasets.lending(tables), progress=False)
    assert [count for count, _ in compiled] == [1, 0, 1, 0]
    assert [mine[0].about["seconds"] for mine in runs.values()] == [seconds for _, seconds in compiled[1::2]]


def test_loan_has_both_rules_at_their_levels(tables, few, tmp_path):
    config = loan.Config(particles=3, steps=90, checkpoints=3, seeds=1)
    rows, _ = loan.run(config, tmp_path, data=tables, progress=False)
    assert [row["sampler"] for row in rows] == ["o_svgd", "langevin"]
    assert rows[0]["max |loss − level|"] < 1e-2 < rows[1]["max |loss − level|"]
    assert rows[0]["rule 1, train %"] < rows[1]["rule 1, train %"]
    assert "[" in rows[0]["rule 1, test %"]  # with its interval


def test_rule_losses_are_cross_entropies_of_the_prescribed_answers():
    model = training.logistic(1)
    split = datasets.Split(np.array([[1.0], [-2.0], [9.0]], np.float32), np.ones(3), rule=np.array([1, 2, 0]))
    position = {"w": np.ones(1, np.float32), "b": np.float32(0.0)}
    np.testing.assert_allclose(loan.rule_losses(model, split)(position), np.log1p(np.exp([1.0, 2.0])), rtol=1e-6)


def test_moment_compares_the_mean_with_every_draw(tables, tmp_path):
    rows, _ = moment.run(
        dataclasses.replace(SMALL, steps=60, seeds=1), tmp_path, data=tables, verify=False, progress=False
    )
    assert [row["sampler"] for row in rows] == ["o_langevin", "control_langevin"]
    assert rows[0]["max |covariance|"] < rows[1]["max |covariance|"]


@pytest.mark.slow
def test_tradeoff_keeps_the_covariance_within_its_level(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(tradeoff, "LEVELS", (0.0, 0.01))
    monkeypatch.setattr(tradeoff, "MODELS", ("logistic",))
    config = tradeoff.Config(rows=300, particles=3, hidden=3, steps=40, seeds=1)
    rows, _ = tradeoff.run(config, tmp_path, data=tables, verify=False, progress=False)
    largest = {row["model"]: row["max |cov|"] for row in rows}
    assert set(largest) == {f"logistic, {level}" for level in ("g = 0", "|g| ≤ 0.01", "unconstrained")}
    assert all(value < 0.01 + 1e-6 for label, value in largest.items() if "≤" in label)


def test_the_mode_of_the_reference_is_one(tables):
    train = datasets.adult(tables, num_train=300, verify=False).train
    mode, root = reference.newton_mode(train.features, train.label)
    design = np.column_stack([train.features, np.ones(300)])
    p = 1 / (1 + np.exp(-design @ mode))
    np.testing.assert_allclose(design.T @ (train.label - p) - mode, 0, atol=1e-8)
    hessian = (design * (p * (1 - p))[:, None]).T @ design + np.eye(len(mode))
    np.testing.assert_allclose(root.T @ hessian @ root, np.eye(len(mode)), atol=1e-8)


@pytest.mark.parametrize("name", ["adult", "lending"])
def test_the_reference_has_ten_functionals(tables, name):
    dataset = datasets.adult(tables, num_train=300, verify=False) if name == "adult" else datasets.lending(tables)
    task = reference.build(dataset, 200, 0)
    assert len(task.functionals) == 10
    rows = {key: value[:50] for key, value in reference.arrays(dataset.test).items()}
    assert all(np.isfinite(f(np.zeros(task.dim, np.float32), rows)) for f in task.functionals.values())


def test_the_comparison_sees_a_difference():
    rng = np.random.default_rng(0)
    exact, same = rng.normal(size=(2, 8, 500, 1))
    good = reference.compare(["x"], {"chmc": exact, "o_langevin": same})
    bad = reference.compare(["x"], {"chmc": exact, "o_langevin": same + 0.3})
    assert (good[0]["within"], bad[0]["within"]) == ("yes", "NO")


@pytest.mark.slow
def test_reference_runs(tables, tmp_path):
    config = reference.Config(rows=200, chains=4, samples=100, thinning=5)
    rows, figure = reference.run(config, tmp_path, data=tables, verify=False, progress=False)
    assert len(rows) == 20
    assert figure.exists()


def test_the_command_line_says_what_is_in_a_table(tables):
    result = CliRunner().invoke(app, ["data", "lending", "--data", str(tables)])
    assert result.exit_code == 0
    assert "rule 1" in result.output


def test_the_command_line_says_which_tables_there_are(tables, tmp_path, monkeypatch):
    result = CliRunner().invoke(app, ["data", "--data", str(tables)])
    assert result.exit_code == 0
    assert f"adult: found, {tables / 'adult' / 'adult.data'}, {tables / 'adult' / 'adult.test'}\n" in result.output
    assert f"lending: found, {tables / 'lending' / 'lending_club_2007_2011.csv'}\n" in result.output
    (tmp_path / "adult.data").write_text("", "utf-8")  # one of two files
    output = CliRunner().invoke(app, ["data", "--data", str(tmp_path)]).output
    missing = ("adult", "lending", "cifar10", "svhn")
    assert [f"{name}: not found; looked in {tmp_path / name} and {tmp_path}" for name in missing] + [
        "digits: comes with scikit-learn"
    ] == output.splitlines()
    monkeypatch.setenv("OGRADIENT_DATA", str(tables))
    assert CliRunner().invoke(app, ["data"]).output == result.output


@pytest.mark.parametrize("command", [["data", "adult"], ["run", "income", "--quick"], ["run", "loan", "--quick"]])
def test_a_missing_table_is_one_sentence(command, tmp_path):
    result = CliRunner().invoke(app, [*command, "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "error:" in result.output
    assert "--data FOLDER" in result.output
    assert "Traceback" not in result.output


def test_another_adult_is_refused_by_its_checksum(tables):
    result = CliRunner().invoke(app, ["run", "income", "--quick", "--data", str(tables)])
    assert result.exit_code == 1
    assert "sha256" in result.output
