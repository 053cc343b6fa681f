"""The command line leaves a whole folder, repeats itself, and says what is wrong with a call."""

import dataclasses
import io
import json
import sys
import types

import jax
import pytest
from rich.console import Console
from typer.testing import CliRunner

import ogradient as og
from ogradient import cli
from ogradient.cli import app
from ogradient.experiments import EXPERIMENTS, Experiment, folder, options
from ogradient.experiments.text import format_number
from ogradient.plots import new_figure
from ogradient.problems import PROBLEMS

FILES = {"config.json", "metrics.json", "figure.png", "report.html"}


pytestmark = pytest.mark.usefixtures("lenient_promotion")


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_list_shows_every_table():
    output = invoke("list").output
    for name in [*og.SAMPLERS, *og.DIAGNOSTICS, *PROBLEMS, *EXPERIMENTS]:
        assert name in output
    assert "cubic" not in invoke("list", "samplers").output.split()
    assert invoke("list", "nonsense").exit_code == 2


# Every option and its default as the help shows it: None where there is none.
TABLE_OPTIONS = {"data": None, "quick": None, "steps": None, "seeds": None}
OPTIONS = {
    "synthetic": {"sampler": None, "start": None, "chains": "500", "steps": "20000", "seed": "0"},
    "hyperparameters": {"chains": "500", "steps": "8000", "seed": "0"},
    "runtime": {"chains": "100", "seconds": "5.0", "peers": "peers", "no-peers": "peers", "seed": "0"},
    "theory": {"particles": "100", "steps": "20000", "seed": "0"},
    "problem": {
        "sampler": None,
        "measure": None,
        "chains": "64",
        "samples": "1000",
        "particles": "200",
        "seed": "0",
    },
    "measure": {"chains": "100", "samples": "200", "seed": "0"},
    "income": TABLE_OPTIONS,
    "moment": TABLE_OPTIONS,
    "loan": TABLE_OPTIONS,
    "tradeoff": TABLE_OPTIONS,
    "reference": {"data": None, "quick": None, "seed": "0"},
    # Those without a default are others with --quick.
    "images": {
        "data": None,
        "quick": None,
        "on": None,
        "sampler": None,
        "epochs": "60",
        "particles": "4",
        "batch": None,
        "rate": "0.1",
        "momentum": "0.9",
        "decay": "0.0005",
        "temperature": "0.00025",
        "level": "0.0",
        "width": "64",
        "seed": "0",
        "seeds": "1",
        "every": None,
    },
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_a_command_with_the_options_of_its_config(name):
    result = invoke("run", name, "--help")
    assert result.exit_code == 0
    words = " ".join(result.output.replace("│", " ").split())
    assert EXPERIMENTS[name].help in words
    found = {}
    for part in words.partition("Options")[2].split(" --")[1:]:
        option = part.split()[0]
        default = part.partition("[default: ")[2].partition("]")[0]
        found[option] = default if default not in ("", "None") else None
    if "no-peers" in found:  # both ways of a switch have one default
        found["peers"] = found["no-peers"]
    assert found == OPTIONS[name] | {"out": "results", "quiet": None, "help": None}


FILES_OF = {"income": "adult.data", "moment": "adult.data", "tradeoff": "adult.data", "loan": "Lending Club"}
FILES_OF |= {"reference": "Adult and of Lending Club", "images": "CIFAR-10 and SVHN"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_help_of_data_names_the_files_of_the_experiment(name):
    words = " ".join(invoke("run", name, "--help").output.replace("│", " ").split())
    assert ("--data" in words) == (name in FILES_OF)
    if name in FILES_OF:
        assert FILES_OF[name] in words.partition("--data")[2].partition("--quick")[0]
        assert ("Adult" in words or "adult.data" in words) == (name not in ("loan", "images"))


def make_toy():
    """An experiment as a contributor would write it, in one file."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        steps: int = options.option(5, "How far to count.", min=2)
        colours: tuple[str, ...] = options.option(
            ("red", "blue"), "red or blue; both by default.", choices=("red", "blue"), name="colour"
        )
        step_size: float = options.option(0.5, "Of a step.")
        hidden: int = 7
        seed: int = options.seed()

    def check(config):
        if config.steps == 13:
            raise ValueError("thirteen steps are too many.")

    def run(config, out, *, progress=True):
        rows = [{"colour": colour, "total": config.steps * config.step_size} for colour in config.colours]
        facts = {**dataclasses.asdict(config), "progress": progress}
        figure = new_figure(1, 1)[0]
        metrics = {"table": rows}
        return rows, folder.write_folder(
            out / "toy", title="Toy", config=facts, metrics=metrics, rows=rows, figure=figure
        )

    module = types.ModuleType("toy_experiment")
    module.__dict__.update(Config=Config, QUICK=Config(steps=2), run=run, check=check, FLOAT64=True)
    return module


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(sys.modules, "toy_experiment", make_toy())
    monkeypatch.setitem(EXPERIMENTS, "toy", Experiment("toy_experiment", "Counts colours."))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ([], {"steps": 5, "colours": ["red", "blue"], "progress": True, "precision": "float64", "hidden": 7}),
        (["--quick", "--quiet"], {"steps": 2, "progress": False, "seed": 0}),
        (["--quick", "--steps", 3, "--seed", 4], {"steps": 3, "seed": 4}),
        (["--colour", "blue", "--step-size", 0.25], {"colours": ["blue"], "step_size": 0.25}),
    ],
)
def test_an_experiment_is_one_file_and_one_row(toy, tmp_path, call, expected):
    result = invoke("run", "toy", *call, "--out", tmp_path)
    assert result.exit_code == 0
    assert "figure:" in result.output
    config = json.loads((tmp_path / "toy" / "config.json").read_text("utf-8"))
    assert config.items() >= expected.items()
    assert {p.name for p in (tmp_path / "toy").iterdir()} == FILES


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["--colour", "green"], "colour 'green' is none of red, blue."),
        (["--steps", 1], "--steps"),
        (["--steps", 13], "thirteen steps are too many."),
        (["--hidden", 3], "No such option: --hidden"),
        (["--data", "."], "No such option: --data"),
        (["--out", "file"], "cannot write into file"),
    ],
)
def test_a_new_experiment_refuses_bad_calls_as_the_others_do(toy, tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    result = invoke("run", "toy", *call)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_new_experiment_is_listed(toy):
    assert "Counts colours." in invoke("list", "experiments").output
    assert "Counts colours." in invoke("run", "--help").output
    help_of_toy = " ".join(invoke("run", "toy", "--help").output.split())
    assert "How far to count." in help_of_toy
    assert "hidden" not in help_of_toy
    assert "[default: 5]" not in help_of_toy  # --quick has another


def test_a_misspelt_experiment_is_recognised():
    result = invoke("run", "sinthetic")
    assert result.exit_code == 2
    assert "'synthetic'" in result.output


def test_an_error_of_an_experiment_without_tables_keeps_its_traceback(toy, monkeypatch, tmp_path):
    def broken(config, out, *, progress=True):
        raise ValueError("a fault of ours")

    monkeypatch.setattr(sys.modules["toy_experiment"], "run", broken)
    with pytest.raises(ValueError, match="a fault of ours"):
        invoke("run", "toy", "--out", tmp_path)

    def full(config, out, *, progress=True):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["toy_experiment"], "run", full)
    result = invoke("run", "toy", "--out", tmp_path)
    assert result.exit_code == 1
    assert "error: [Errno 28] No space left on device" in result.output


def test_runs_without_the_cache(toy, monkeypatch, tmp_path):
    kept = []
    monkeypatch.setattr("ogradient.cli.keep_compiled_programs", lambda: kept.append(True))
    invoke("run", "toy", "--out", tmp_path)
    assert kept == [True]
    try:
        assert invoke("run", "--no-cache", "toy", "--out", tmp_path).exit_code == 0
        assert kept == [True]
        assert not jax.config.jax_enable_compilation_cache
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


def test_synthetic_leaves_a_whole_folder_and_repeats(tmp_path):
    call = ["run", "synthetic", "--chains", 20, "--steps", 60, "--quiet", "--seed", 5]
    result = invoke(*call, "--out", tmp_path / "a")
    assert result.exit_code == 0
    assert "figure:" in result.output
    assert {p.name for p in (tmp_path / "a" / "synthetic").iterdir()} >= FILES
    mine = tmp_path / "a" / "synthetic" / "o_langevin"
    assert {p.name for p in mine.iterdir()} == FILES | {"trace-on.zarr", "trace-off.zarr"}
    assert (tmp_path / "a" / "synthetic" / "o_svgd" / "animation.gif").read_bytes()[:4] == b"GIF8"
    metrics, config = (json.loads((mine / f"{n}.json").read_text("utf-8")) for n in ("metrics", "config"))
    assert {c["start"] for c in metrics["curves"]} == {"on", "off"}
    assert config["seed"] == 5
    assert config["precision"] == "float64"
    assert og.load(mine / "trace-off.zarr")["x"].shape == (20, 6, 2)
    assert metrics["table"][1]["landed after"] < 20
    page = (mine / "report.html").read_text("utf-8")
    assert "data:image/png;base64," in page
    assert "energy distance" in page

    invoke(*call, "--out", tmp_path / "b", "--sampler", "o_langevin")
    again = json.loads((tmp_path / "b" / "synthetic" / "o_langevin" / "metrics.json").read_text("utf-8"))
    assert again["curves"] == metrics["curves"]


def test_synthetic_with_one_start_and_sampler(tmp_path):
    invoke(
        "run",
        "synthetic",
        "--sampler",
        "langevin",
        "--start",
        "on",
        "--chains",
        5,
        "--steps",
        3,
        "--quiet",
        "--out",
        tmp_path,
    )
    metrics = json.loads((tmp_path / "synthetic" / "metrics.json").read_text("utf-8"))
    assert [(c["sampler"], c["start"]) for c in metrics["curves"]] == [("langevin", "on")]


def test_hyperparameters(tmp_path):
    result = invoke("run", "hyperparameters", "--chains", 10, "--steps", 40, "--quiet", "--out", tmp_path)
    assert result.exit_code == 0
    table = json.loads((tmp_path / "hyperparameters" / "o_langevin" / "metrics.json").read_text("utf-8"))["table"]
    assert [(row["alpha"], row["beta"]) for row in table] == [(1, 0), (10, 0), (100, 0), (1, 0.5), (1, 1)]
    assert table[2]["mean |g|"] < table[1]["mean |g|"] < table[0]["mean |g|"]


def test_runtime(tmp_path):
    result = invoke("run", "runtime", "--chains", 6, "--seconds", 0.05, "--quiet", "--out", tmp_path)
    assert result.exit_code == 0
    curves = json.loads((tmp_path / "runtime" / "metrics.json").read_text("utf-8"))["curves"]
    assert {"o_langevin", "o_svgd", "chmc", "clangevin", "mici CHMC, conditional", "mici CLangevin, Hausdorff"} <= set(
        curves
    )
    assert all(len(c["seconds"]) == len(c["energy"]) >= 1 for c in curves.values())


@pytest.mark.slow
def test_theory(tmp_path):
    result = invoke("run", "theory", "--particles", 10, "--steps", 400, "--quiet", "--out", tmp_path)
    assert result.exit_code == 0
    metrics = json.loads((tmp_path / "theory" / "metrics.json").read_text("utf-8"))
    runs = [r for r in metrics["runs"] if r["sampler"] == "o_svgd"]
    assert [r["beta"] for r in runs] == [0, 0.5, 1]
    for r in runs[1:]:  # the power laws, once the start is forgotten
        assert r["max_abs_g"][-1] == pytest.approx(r["predicted"][-1], rel=0.2)
    floors = [row["mean |g|"] for row in metrics["table"] if row["sampler"] == "o_langevin"]
    assert floors[0] > floors[1] > floors[2]


def test_problem(tmp_path):
    call = ["run", "problem", "interval", "--sampler", "clangevin", "--chains", 8, "--samples", 60, "--quiet"]
    result = invoke(*call, "--out", tmp_path)
    assert result.exit_code == 0
    mine = tmp_path / "problem" / "interval"
    assert {p.name for p in mine.iterdir()} == FILES | {"trace-clangevin.zarr"}
    metrics = json.loads((mine / "metrics.json").read_text("utf-8"))
    assert metrics["table"][0]["max h₊"] == 0
    assert metrics["moments"]["clangevin"]["x"]["truth"] == pytest.approx(1.51005)
    assert metrics["settings"]["clangevin"]["step_size"] > 0


@pytest.mark.slow
def test_measure(tmp_path):
    assert invoke("run", "measure", "--chains", 40, "--samples", 200, "--quiet", "--out", tmp_path).exit_code == 0
    table = json.loads((tmp_path / "measure" / "metrics.json").read_text("utf-8"))["table"]
    assert [row["truth"] for row in table] == [0.25, 0.25, 0.0, 0.25]
    assert all(abs(row["E cos φ"] - row["truth"]) < 6 * row["±"] < 0.15 for row in table)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["nonsense"], "is none of cubic"),
        (["interval", "--sampler", "gibbs"], "is none of chmc"),
        (["interval", "--measure", "hausdorff"], "has one law only"),
        (["cone", "--sampler", "o_svgd"], "use the exact kernels"),
    ],
)
def test_bad_calls_of_problem_say_why(call, message, tmp_path):
    result = invoke("run", "problem", *call, "--out", tmp_path)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [["--sampler", "gibbs"], ["--start", "sideways"], ["--chains", 1], ["--steps", 0]])
def test_bad_calls_exit_with_usage(call, tmp_path):
    result = invoke("run", "synthetic", *call, "--out", tmp_path)
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["file", "file/deeper", "taken", "no/rights"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_run(out, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "synthetic").write_text("mine")
    if out == "no/rights":  # which the owner of a machine cannot lack

        def refused(**_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("tempfile.TemporaryFile", refused)
    result = invoke("run", "synthetic", "--out", tmp_path / out)
    assert result.exit_code == 2
    assert "cannot write into" in " ".join(result.output.replace("│", " ").split())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_checks_its_folder_and_its_seed(name, tmp_path):
    (tmp_path / "file").write_text("mine")
    words = ["run", name] + ["cubic"] * (name == "problem")
    result = invoke(*words, "--out", tmp_path / "file")
    assert result.exit_code == 2
    assert "cannot write into" in " ".join(result.output.replace("│", " ").split())
    if "--seed " in invoke("run", name, "--help").output:
        result = invoke(*words, "--seed", -1, "--out", tmp_path)
        assert result.exit_code == 2
        assert "--seed" in result.output


def test_seeds_of_any_size(tmp_path):
    call = ["run", "synthetic", "--sampler", "langevin", "--start", "on", "--chains", 4, "--steps", 2, "--quiet"]
    curves = {}
    for seed in (0, 2**32, 2**70):
        assert invoke(*call, "--seed", seed, "--out", tmp_path / str(seed)).exit_code == 0
        curves[seed] = json.loads((tmp_path / str(seed) / "synthetic" / "metrics.json").read_text("utf-8"))["curves"]
    assert curves[0] != curves[2**32] != curves[2**70] != curves[0]
    assert invoke(*call, "--seed", -1, "--out", tmp_path).exit_code == 2


def test_files_are_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "metrics.json"
    folder.write_atomically(target, "old")
    with pytest.raises(TypeError):
        folder.write_atomically(target, 3)
    assert target.read_text("utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.json"]


def test_a_narrow_terminal_cuts_no_word(monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(cli, "console", Console(width=40, file=text))
    row = {
        "sampler": "tempered_sgld",
        "a": "2.94 (2.86–3.03)",
        "b": "1.08 (0.83–1.38)",
        "c": None,
        "what": "some words",
    }
    cli.show([row], "title")
    words = text.getvalue().split()
    assert {"tempered_sgld", "(2.86–3.03)", "1.08", "–", "some", "words"} <= set(words)


def test_numbers_read_well():
    values = [None, True, 3, 12345, 0.012345, 30412.7, "text"]
    assert [format_number(v) for v in values] == ["–", "True", "3", "12,345", "0.0123", "30,413", "text"]


def test_numbers_of_a_report_stay_on_one_line():
    row = {
        "sampler": "o_langevin, no second order",
        "a": "0.8225 ± 0.0002",
        "b": -0.5,
        "c": "−1.2 [0, 3]",
        "d": 12,
        "e": None,
    }
    page = folder.render_report("title", {"data": {"text": 1}}, [row], b"", [])
    assert [f'<td class="number">{text}</td>' in page for text in ("0.8225 ± 0.0002", "-0.5", "−1.2 [0, 3]", "12")] == [
        True
    ] * 4
    assert "<td>o_langevin, no second order</td>" in page
    assert '<div class="wide"><table><tr><th>sampler</th>' in page
    assert ".number{white-space:nowrap}.wide{overflow-x:auto}" in page
