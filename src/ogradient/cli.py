"""The command line: `ogradient list | run | data | bench`. The commands of `run` are made from the table of experiments."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NoReturn

import jax

from ogradient._version import __version__
from ogradient.compilation import keep_compiled_programs
from ogradient.diagnostics import DIAGNOSTICS
from ogradient.experiments import EXPERIMENTS
from ogradient.experiments.options import configure, options_of, reads_data
from ogradient.experiments.text import format_number
from ogradient.extras import MissingExtraError, require
from ogradient.problems import PROBLEMS
from ogradient.samplers import SAMPLERS
from ogradient.status import ConvergenceWarning, SamplingError

try:
    import typer
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from typer.core import TyperGroup
except ModuleNotFoundError:
    for package in ("typer", "rich"):
        require(package, "the command line needs", "cli")
    raise


class Experiments(TyperGroup):
    """A command for each row of the table, built when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The rows."""
        return list(EXPERIMENTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command of a row."""
        if cmd_name in EXPERIMENTS:
            return command_of(cmd_name)
        # Here the message looks for what was meant.
        names: Any = dict.fromkeys(EXPERIMENTS)
        self.commands = names
        return None


app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Sampling under hard constraints."
)
run_app = typer.Typer(cls=Experiments, no_args_is_help=True, help="Run an experiment and write its folder.")
app.add_typer(run_app, name="run")
# A pipe has no width of its own.
console = Console(width=None if sys.stdout.isatty() else 120)


def _writable(context: typer.Context, out: Path) -> Path:
    """Refuse, before anything is computed, a folder that the results could not be written to."""
    # The experiment writes into the folder of its name, or the nearest one above that is there.
    place = out / (context.info_name or "")
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"results will come here")
    except OSError as error:
        raise typer.BadParameter(f"cannot write into {out}: {place}: {error.strerror or error}.") from None
    return out


Out = Annotated[Path, typer.Option(callback=_writable, help="Folder to write into.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder with the raw files; by default OGRADIENT_DATA, or a download of what can be downloaded."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer rows, steps and seeds: a minute or two on two cores.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Sampling under hard constraints."""
    if version:
        console.print(f"ogradient {__version__} (jax {jax.__version__}, {jax.devices()[0].device_kind})")
        raise typer.Exit


@app.command("list")
def list_things(
    what: Annotated[str, typer.Argument(help="samplers, diagnostics, problems, experiments, or all")] = "all",
) -> None:
    """What there is: samplers, diagnostics, problems with known answers, experiments."""
    tables: dict[str, Mapping[str, Any]] = {"samplers": SAMPLERS, "diagnostics": DIAGNOSTICS}
    tables |= {"problems": PROBLEMS, "experiments": EXPERIMENTS}
    help_of = lambda row: row.help if hasattr(row, "help") else (row.__doc__ or "").strip().splitlines()[0]
    if what != "all" and what not in tables:
        raise typer.BadParameter(f"{what!r} is none of {', '.join(tables)}, all.")
    for title, table in tables.items():
        if what in ("all", title):
            show([{"name": name, "what": help_of(row)} for name, row in table.items()], title)


@run_app.callback()
def set_up_runs(
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Do not keep compiled programs for the next run in the user's cache.")
    ] = False,
) -> None:
    """Run an experiment and write its folder."""
    if no_cache:
        jax.config.update("jax_enable_compilation_cache", False)
    else:
        keep_compiled_programs()


def command_of(name: str) -> Any:
    """The command of an experiment, with the fields of its `Config` as options."""
    row, one = EXPERIMENTS[name], typer.Typer(add_completion=False)
    try:
        module = importlib.import_module(row.module)
    except MissingExtraError as error:
        # The command is listed, and says what it lacks.
        lacking = str(error)
        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        one.command(name, help=row.help, context_settings=anything)(lambda: _fail(lacking))
        return typer.main.get_command(one)

    def command(*, out: Path, quiet: bool, quick: bool = False, **given: Any) -> None:
        folder = {"data": given.pop("data")} if reads_data(module) else {}
        try:
            config = configure(module, given, quick=quick)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        precision = jax.enable_x64(True) if getattr(module, "FLOAT64", False) else nullcontext()
        # Without raw files a ValueError is a fault of ours, and its traceback is wanted.
        with precision, _plain_errors(OSError, ImportError, *([ValueError] if folder else [])):
            rows, figure = module.run(config, out, progress=not quiet, **folder)
        console.print()
        show(rows, getattr(config, "title", name))
        _say(f"figure: {figure}\nreport: {figure.with_name('report.html')}")

    parameters = list(_parameters(module))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    one.command(name, help=row.help)(command)
    return typer.main.get_command(one)


def _parameters(module: ModuleType) -> Iterator[inspect.Parameter]:
    """The parameters of an experiment's command: those of its `Config`, among those that all have."""

    def parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)

    if reads_data(module):
        yield parameter("data", Annotated[Path | None, typer.Option(help=module.DATA_HELP)], None)
    if hasattr(module, "QUICK"):
        yield parameter("quick", Quick, False)
    for option in options_of(module):
        kind = option.type | None if option.default is None else option.type
        about = (typer.Argument if option.positional else typer.Option)(min=option.min, help=option.help)
        default = inspect.Parameter.empty if option.default is MISSING else option.default
        yield parameter(option.name, Annotated[kind, about], default)
    yield parameter("out", Out, Path("results"))
    yield parameter("quiet", Quiet, False)


@app.command("data")
def show_data(
    name: Annotated[
        str | None, typer.Argument(help="adult, lending, cifar10, svhn or digits; none lists them.")
    ] = None,
    data: Data = None,
) -> None:
    """Load data as the experiments do, and say what is in them and where they came from; or say which there are."""
    from ogradient.datasets import FILES, whereabouts
    from ogradient.images import IMAGES, describe

    if name is None:
        for known in FILES:
            _say(f"{known}: {escape(whereabouts(known, data))}")
        return
    _chosen("dataset", name, FILES)
    with _plain_errors(OSError, ImportError, ValueError):
        rows, lines = describe(name, data) if name in IMAGES else _describe_table(name, data)
    show(rows, name)
    _say("\n".join(lines))


def _describe_table(name: str, data: Path | None) -> tuple[list[dict[str, Any]], list[str]]:
    """What is in a table, a row for each part, and where it came from, a line for each file."""
    from ogradient.datasets import DATASETS

    dataset, rows = DATASETS[name](data), []
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        row: dict[str, Any] = {"part": part, "rows": len(split.label), "features": split.features.shape[1]}
        row["label 1"] = f"{100 * split.label.mean():.1f} %"
        if split.sensitive is not None:
            row["sensitive 1"] = f"{100 * split.sensitive.mean():.1f} %"
        if split.rule is not None:
            row |= {f"rule {k}": int((split.rule == k).sum()) for k in (1, 2)}
        rows.append(row)
    files = dataset.provenance["files"].items()
    return rows, [f"{file}: {facts['rows']:,} rows, sha256 {facts['sha256']}" for file, facts in files]


def _say(text: str) -> None:
    """A line on the terminal, neither wrapped nor coloured by its content."""
    console.print(text, soft_wrap=True, highlight=False)


@contextmanager
def _plain_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into one sentence instead of a traceback: the machine, the data or a setting is wrong."""
    try:
        yield
    except kinds as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    """Say what is wrong, and exit."""
    _say(f"[bold red]error:[/] {escape(message)}")
    raise typer.Exit(1) from None


@app.command("bench")
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Benchmarks, `floor` for kernels against bare functions, or problems with --peers; all by default."
        ),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Our default and every installed peer on the same problems.")
    ] = False,
    method: Annotated[list[str] | None, typer.Option(help="With --peers: only this method; may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="With --peers or floor: folder of the numbers.")] = Path("results/bench"),
    chains: Annotated[int, typer.Option(min=2, help="With --peers: chains of each method.")] = 16,
    draws: Annotated[int, typer.Option(min=10, help="With --peers: draws of each chain.")] = 1000,
    warmup: Annotated[int, typer.Option(min=10, help="With --peers: warm-up steps of each chain.")] = 1000,
    repeat: Annotated[int, typer.Option(min=1, help="With --peers: repetitions, with a seed each.")] = 3,
    limit: Annotated[float, typer.Option(min=1, help="With --peers: seconds that one measurement may take.")] = 600,
    data: Data = None,
) -> None:
    """Speed, as ratios measured in one run (needs a source checkout: the peers are development dependencies)."""
    if peers:
        module = _benchmarks("peers")
        setting = module.Setting(chains, draws, warmup)
        options = module.Options(out, tuple(names or ()), tuple(method or ()), setting, repeat, limit, data)
        with _plain_errors(ValueError, OSError, ImportError):
            _, figure = module.run(options, lambda line: _say(escape(line)))
        _say(f"numbers: {figure.with_name('peers.json')}\nfigure: {figure}")
    elif names == ["floor"]:
        module = _benchmarks("floor")
        rows, fits = module.run(out, _say)
        show(rows, "a step against its bare evaluations")
        show(fits, "exponents of time in d, m, and n chains or particles")
        _say("\n".join([f"more than {module.LIMIT} times the floor at d ≥ 100:", *module.above(rows)]))
    else:
        table = _benchmarks("speed").BENCHMARKS
        chosen = [_chosen("benchmark", name, table)[0] for name in names] if names else list(table)
        for name in chosen:
            show(table[name](), name)


def _benchmarks(name: str) -> ModuleType:
    """A module of the folder `benchmarks`."""
    folder = Path(__file__).parents[2] / "benchmarks"
    if not folder.exists():
        raise typer.BadParameter("the benchmarks live in the source checkout: clone it and run `make bench`.")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """A table on the terminal."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    cells = [[format_number(value) for value in row.values()] for row in rows]
    for column, texts in zip(rows[0], zip(*cells, strict=True), strict=True):
        text = isinstance(rows[0][column], str)
        # Numbers are never cut. Where the terminal is narrow, text without digits wraps, between its words.
        wraps = text and not any(character.isdigit() for character in rows[0][column])
        width = max(len(part) for cell in texts for part in cell.split(None if wraps else " ± ") or [""])
        table.add_column(column, justify="left" if text else "right", min_width=width)
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table, crop=False)
    console.print()


def _chosen(kind: str, given: str | None, allowed: Iterable[str]) -> list[str]:
    """The name that was given, or all that are allowed."""
    if given is not None and given not in allowed:
        raise typer.BadParameter(f"{kind} {given!r} is none of {', '.join(allowed)}.")
    return list(allowed) if given is None else [given]


def main() -> None:
    """Entry point of the `ogradient` command."""
    # Experiments look at short runs, and report R-hat where it matters.
    warnings.simplefilter("ignore", ConvergenceWarning)
    try:
        app()
    except SamplingError as error:
        console.print(f"[bold red]sampling failed:[/] {escape(str(error))}", highlight=False)
        sys.exit(1)
