"""The command line: `ogradient list | run | data | bench`."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ogradient._version import __version__
from ogradient.experiments import EXPERIMENTS
from ogradient.problems import PROBLEMS
from ogradient.samplers import SAMPLERS
from ogradient.status import ConvergenceWarning, SamplingError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Sampling under hard constraints."
)
run_app = typer.Typer(no_args_is_help=True, help="Run an experiment and write its folder.")
app.add_typer(run_app, name="run")
console = Console(width=None if sys.stdout.isatty() else 120)  # a pipe has no width of its own


def _writable(context: typer.Context, out: Path) -> Path:
    """Refuse, before anything is computed, a folder that the results could not be written to."""
    place = out / (context.info_name or "")  # where the experiment writes
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"results will come here")
    except OSError as error:
        raise typer.BadParameter(f"cannot write into {out}: {place}: {error.strerror or error}.") from None
    return out


Chains = Annotated[int, typer.Option(min=2, help="Independent chains (the paper has 50).")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")]
Out = Annotated[Path, typer.Option(callback=_writable, help="Folder to write into.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Data = Annotated[
    Path | None, typer.Option(help="Folder with the raw tables; by default OGRADIENT_DATA, or a download of Adult.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer rows, steps and seeds: a minute or two on two cores.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps per run, in place of the paper's.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each sampler, in place of 3.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Sampling under hard constraints."""
    if version:
        console.print(f"ogradient {__version__} (jax {jax.__version__}, {jax.devices()[0].device_kind})")
        raise typer.Exit


@app.command("list")
def list_things(what: Annotated[str, typer.Argument(help="samplers, problems, experiments, or all")] = "all") -> None:
    """What there is: samplers, problems with known answers, experiments."""
    first_line = lambda function: (function.__doc__ or "").strip().splitlines()[0]
    tables: dict[str, Mapping[str, str]] = {
        "samplers": {name: first_line(function) for name, function in SAMPLERS.items()},
        "problems": {name: first_line(function) for name, function in PROBLEMS.items()},
        "experiments": EXPERIMENTS,
    }
    if what != "all" and what not in tables:
        raise typer.BadParameter(f"{what!r} is none of {', '.join(tables)}, all.")
    for title, entries in tables.items():
        if what in ("all", title):
            show([{"name": name, "what": text} for name, text in entries.items()], title)


@run_app.command("synthetic")
def run_synthetic(
    sampler: Annotated[
        str | None, typer.Option(help="o_langevin, o_svgd, chmc, clangevin, langevin or svgd; all by default.")
    ] = None,
    start: Annotated[str | None, typer.Option(help="on or off the set; both by default.")] = None,
    chains: Chains = 500,
    steps: Annotated[int, typer.Option(min=1, help="Iterations; the paper has 5,000 (on) and 8,000 (off).")] = 20_000,
    seed: Seed = 0,
    out: Out = Path("results"),
    quiet: Quiet = False,
) -> None:
    """The paper's cubic: energy distance and |g| against iterations, from on and off the set."""
    from ogradient.experiments import synthetic

    samplers = _choice("sampler", sampler, tuple(synthetic.SETTINGS))
    config = synthetic.Config(samplers, _choice("start", start, synthetic.STARTS), chains, steps, seed)
    with jax.enable_x64(True):
        _finish("synthetic", *synthetic.run(config, out, progress=not quiet))


@run_app.command("hyperparameters")
def run_hyperparameters(
    chains: Chains = 500,
    steps: Annotated[int, typer.Option(min=1, help="Iterations.")] = 8000,
    seed: Seed = 0,
    out: Out = Path("results"),
    quiet: Quiet = False,
) -> None:
    """O-Langevin on the cubic from off the set, for several alpha and beta."""
    from ogradient.experiments import hyperparameters

    with jax.enable_x64(True):
        _finish(
            "hyperparameters",
            *hyperparameters.run(hyperparameters.Config(chains, steps, seed), out, progress=not quiet),
        )


@run_app.command("runtime")
def run_runtime(
    chains: Chains = 100,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="For each of our samplers; mici's get four times that.")
    ] = 5.0,
    peers: Annotated[bool, typer.Option(help="Run mici's samplers too, where it is installed.")] = True,
    seed: Seed = 0,
    out: Out = Path("results"),
    quiet: Quiet = False,
) -> None:
    """Energy distance on the cubic against seconds, with mici's samplers beside ours."""
    from ogradient.experiments import runtime

    with jax.enable_x64(True):
        _finish("runtime", *runtime.run(runtime.Config(chains, seconds, peers, seed), out, progress=not quiet))


@run_app.command("theory")
def run_theory(
    particles: Annotated[int, typer.Option(min=2, help="Particles, and chains.")] = 100,
    steps: Annotated[int, typer.Option(min=10, help="Iterations.")] = 20_000,
    seed: Seed = 0,
    out: Out = Path("results"),
    quiet: Quiet = False,
) -> None:
    """Decay of |g| against the predicted rates, and of the Stein discrepancy, for O-SVGD and O-Langevin."""
    from ogradient.experiments import theory

    with jax.enable_x64(True):
        _finish("theory", *theory.run(theory.Config(particles, steps, seed), out, progress=not quiet))


@run_app.command("problem")
def run_problem(
    name: Annotated[str, typer.Argument(help="See `ogradient list problems`.")],
    sampler: Annotated[
        str | None, typer.Option(help="chmc, clangevin, o_langevin or o_svgd; all that apply by default.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="conditional or hausdorff, where the problem has a choice.")
    ] = None,
    chains: Chains = 64,
    samples: Annotated[int, typer.Option(min=10, help="Draws kept per chain.")] = 1000,
    particles: Annotated[int, typer.Option(min=2, help="Particles of o_svgd.")] = 200,
    seed: Seed = 0,
    out: Out = Path("results"),
    quiet: Quiet = False,
) -> None:
    """Any problem with a known answer, with any sampler, scored against its truth."""
    from ogradient.experiments import problem

    _choice("problem", name, tuple(PROBLEMS))
    samplers = _choice("sampler", sampler, problem.SAMPLERS)
    config = problem.Config(name, samplers, measure, chains, samples, particles, seed)
    try:
        problem.build(name, measure, samplers)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with jax.enable_x64(True):
        _finish(name, *problem.run(config, out, progress=not quiet))


@run_app.command("measure")
def run_measure(
    chains: Chains = 100,
    samples: Annotated[int, typer.Option(min=10, help="Draws kept per chain.")] = 200,
    seed: Seed = 0,
    out: Out = Path("results"),
    quiet: Quiet = False,
) -> None:
    """One torus as the zero set of two functions, in both measures."""
    from ogradient.experiments import measure

    with jax.enable_x64(True):
        _finish("measure", *measure.run(measure.Config(chains, samples, seed), out, progress=not quiet))


def _add_experiment_on_data(name: str) -> None:
    """A command for an experiment that follows samplers along training, on a real table."""

    def command(
        data: Data = None,
        quick: Quick = False,
        steps: Steps = None,
        seeds: Seeds = None,
        out: Out = Path("results"),
        quiet: Quiet = False,
    ) -> None:
        module = importlib.import_module(f"ogradient.experiments.{name}")
        _run_on_data(name, module, data, quick, out, quiet, steps=steps, seeds=seeds)

    run_app.command(name, help=EXPERIMENTS[name])(command)


for _name in ("income", "moment", "loan", "tradeoff"):
    _add_experiment_on_data(_name)


@run_app.command("reference")
def run_reference(
    data: Data = None, quick: Quick = False, seed: Seed = 0, out: Out = Path("results"), quiet: Quiet = False
) -> None:
    """O-Langevin against exact draws: posterior means of constrained logistic regressions on both tables."""
    from ogradient.experiments import reference

    _run_on_data("reference", reference, data, quick, out, quiet, seed=seed)


@app.command("data")
def show_data(
    name: Annotated[str | None, typer.Argument(help="adult or lending; none lists them.")] = None,
    data: Data = None,
) -> None:
    """Load a table as the experiments do, and say what is in it and where it came from; or say which tables there are."""
    from ogradient.datasets import DATASETS, whereabouts

    if name is None:
        for known in DATASETS:
            console.print(f"{known}: {escape(whereabouts(known, data))}", soft_wrap=True, highlight=False)
        return
    _choice("dataset", name, tuple(DATASETS))
    with _plain_errors():
        dataset = DATASETS[name](data)
    splits = {"train": dataset.train, "test": dataset.test}
    rows: list[dict[str, Any]] = []
    for part, split in splits.items():
        row: dict[str, Any] = {"part": part, "rows": len(split.label), "features": split.features.shape[1]}
        row["label 1"] = f"{100 * split.label.mean():.1f} %"
        if split.sensitive is not None:
            row["sensitive 1"] = f"{100 * split.sensitive.mean():.1f} %"
        if split.rule is not None:
            row |= {f"rule {k}": int((split.rule == k).sum()) for k in (1, 2)}
        rows.append(row)
    show(rows, name)
    for file, facts in dataset.provenance["files"].items():
        console.print(f"{file}: {facts['rows']:,} rows, sha256 {facts['sha256']}", soft_wrap=True, highlight=False)


def _run_on_data(
    name: str, module: Any, data: Path | None, quick: bool, out: Path, quiet: bool, **settings: int | None
) -> None:
    """An experiment on real tables, with its own setting or the quick one, some of it replaced."""
    given = {key: value for key, value in settings.items() if value is not None}
    config = dataclasses.replace(module.QUICK if quick else module.Config(), **given)
    with _plain_errors():
        _finish(name, *module.run(config, out, data=data, progress=not quiet))


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What is wrong with the data, or with a setting, in one sentence instead of a traceback."""
    try:
        yield
    except (OSError, ImportError, ValueError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


@app.command("bench")
def bench(only: Annotated[str | None, typer.Argument(help="One benchmark by name; all by default.")] = None) -> None:
    """Speed, as ratios measured in one run (needs a source checkout: the peers are development dependencies)."""
    path = Path(__file__).parents[2] / "benchmarks" / "speed.py"
    if not path.exists():
        raise typer.BadParameter("the benchmarks live in the source checkout: clone it and run `make bench`.")
    spec = importlib.util.spec_from_file_location("ogradient_benchmarks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = _choice("benchmark", only, tuple(module.BENCHMARKS))
    show([row for name in names for row in module.BENCHMARKS[name]()], "speed")


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """A table on the terminal."""
    from ogradient.experiments.folder import format_number

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    cells = [[format_number(value) for value in row.values()] for row in rows]
    for column, texts in zip(rows[0], zip(*cells, strict=True), strict=True):
        words = isinstance(rows[0][column], str) and not any(character.isdigit() for character in rows[0][column])
        # Numbers are never cut; where the terminal is narrow, names wrap.
        width = None if words else max(len(part) for text in texts for part in text.split(" ± "))
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right", min_width=width)
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table, crop=False)
    console.print()


def _choice(name: str, given: str | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    if given is not None and given not in allowed:
        raise typer.BadParameter(f"{name} {given!r} is none of {', '.join(allowed)}.")
    return allowed if given is None else (given,)


def _finish(title: str, rows: Sequence[Mapping[str, Any]], figure: Path) -> None:
    console.print()
    show(rows, title)
    console.print(f"figure: {figure}\nreport: {figure.with_name('report.html')}", soft_wrap=True, highlight=False)


def main() -> None:
    """Entry point of the `ogradient` command."""
    warnings.simplefilter(
        "ignore", ConvergenceWarning
    )  # experiments look at short runs, and report R-hat where it matters
    try:
        app()
    except SamplingError as error:
        console.print(f"[bold red]sampling failed:[/] {error}", highlight=False)
        sys.exit(1)
