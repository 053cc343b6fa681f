"""Ours and every installed peer on the same problems, by the same measure. `ogradient bench --peers` runs it.

Every measurement has a process of its own, so that the first call is a first call, and one that fails or takes too long costs
one row. Methods take turns: all of them in the first repetition, then all of them again. Rows are kept as they come, and a
run that is started again goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from peer_methods import METHODS, Setting
from peer_problems import CASES, WITH_DATA, build
from provenance import commit, machine, versions

from ogradient.experiments.text import format_number
from ogradient.plots import COLOURS, new_figure
from ogradient.storage import write_atomically

HERE = Path(__file__).parent
# Numbers of a measurement, and their titles in the table.
COLUMNS = {
    "cold_s": "cold [s]",
    "warm_s": "warm [s]",
    "compile_s": "compile [s]",
    "ess": "ESS",
    "ess_per_s_cold": "ESS/s cold",
    "ess_per_gradient": "ESS/gradient",
    "rhat": "R-hat",
    "max_g": "max |g|",
    "max_h": "max h",
    "z": "error/SE",
    "peak_mb": "MB",
}


@dataclass(frozen=True)
class Options:
    """What to run, and where the results go."""

    out: Path
    problems: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    setting: Setting = field(default_factory=Setting)
    repeat: int = 3
    limit: float = 900.0  # seconds of one measurement
    data: Path | None = None

    def chosen(self) -> tuple[list[str], list[str]]:
        """Names of problems and methods; all that can be run by default. Refuses names that there are none of."""
        problems = [*CASES, *([] if self.data is None else WITH_DATA)]
        for kind, given, known in (("problem", self.problems, problems), ("method", self.methods, METHODS)):
            for name in given:
                if name not in known:
                    raise ValueError(f"{kind} {name!r} is none of {'; '.join(known)}.")
        return list(self.problems) or problems, list(self.methods) or list(METHODS)


class Job(NamedTuple):
    """One measurement."""

    problem: str
    method: str
    repetition: int


def jobs_of(options: Options) -> tuple[list[Job], list[str]]:
    """All measurements in their order, and a line on each method that is left out."""
    problems, methods = options.chosen()
    missing = [name for name in methods if not METHODS[name].installed]
    left_out = [f"{name}: {METHODS[name].package} is not installed" for name in missing]
    jobs = []
    for problem in problems:
        case = build(problem, options.data)
        reasons = {name: METHODS[name].unsuitable(case) for name in methods if name not in missing}
        left_out += [f"{name} on {problem}: {why}" for name, why in reasons.items() if why]
        suitable = [name for name, why in reasons.items() if not why]
        jobs += [Job(problem, name, r) for r in range(options.repeat) for name in suitable]
    return jobs, left_out


def run(options: Options, say=print) -> tuple[list[dict], Path]:
    """Measure what is not yet in the file; say the table of each problem when it is done; return all rows and the figure."""
    jobs, left_out = jobs_of(options)
    for line in left_out:
        say(f"left out: {line}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "peers.json"
    record = read_record(file)
    mine = lambda: [row for row in record["runs"] if row["asked"] == list(options.setting)]
    for problem, group in groupby(enumerate(jobs, 1), key=lambda numbered: numbered[1].problem):
        for number, job in group:
            if not is_done(job, mine(), options.limit):
                row = {**job._asdict(), "asked": list(options.setting), "limit": options.limit, "commit": commit()}
                row |= in_a_process(job, options)
                record["runs"].append(row)
                write_atomically(file, json.dumps(record, indent=1))
                say(f"[{number}/{len(jobs)}] {line_of(row)}")
        say("\n".join(["", problem, *aligned(table([row for row in mine() if row["problem"] == problem])), ""]))
    figure = options.out / "peers.png"
    draw(table(mine()), figure)
    return table(mine()), figure


def is_done(job: Job, runs: list[dict], limit: float) -> bool:
    """Whether a measurement is there. What failed is tried again, but not what took too long in any repetition."""
    same = [run for run in runs if (run["problem"], run["method"]) == job[:2]]
    slow = any(run["error"] == "too long" and run["limit"] >= limit for run in same)
    return slow or any(run["repetition"] == job.repetition and not run["error"] for run in same)


def read_record(file: Path) -> dict:
    """The rows so far. Those of another machine, or of other versions, are not to be mixed with new ones."""
    about = {"machine": machine(), "versions": versions()}
    if not file.exists():
        return {**about, "runs": []}
    record = json.loads(file.read_text("utf-8"))
    for kind, now in about.items():
        if record[kind] != now:
            raise ValueError(f"{file} was made with another {kind}: {record[kind]}, now {now}. Choose another --out.")
    return record


def in_a_process(job: Job, options: Options) -> dict:
    """The numbers of one measurement, or what went wrong, as `error`."""
    task = {**job._asdict(), "setting": options.setting, "data": None if options.data is None else str(options.data)}
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, str(HERE / "peers.py"), "--one", json.dumps(task)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return {"error": "too long"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]}
    return {"error": None, **json.loads(done.stdout.splitlines()[-1])}


def measure_one(task: dict) -> dict:
    """What the process of one measurement does."""
    from peer_measure import measure

    case = build(task["problem"], task["data"])
    return measure(METHODS[task["method"]], case, Setting(*task["setting"]), task["repetition"])


def line_of(row) -> str:
    name = f"{row['problem']}, {row['method']}"
    if row["error"]:
        return f"{name}: {row['error']}"
    return f"{name}: cold {row['cold_s']:.1f} s, warm {row['warm_s']:.2f} s, ESS {row['ess']:,.0f}, {row['ess_per_s']:,.0f}/s"


def table(runs: list[dict]) -> list[dict]:
    """A row for each method on each problem: medians over the repetitions, and the range of ESS per second."""
    rows = []
    for problem, method in dict.fromkeys((run["problem"], run["method"]) for run in runs):
        mine = [run for run in runs if (run["problem"], run["method"]) == (problem, method)]
        good = [run for run in mine if not run["error"]]
        row = {"problem": problem, "method": method, "runs": len(good)}
        if not good:
            rows.append({**row, "error": mine[-1]["error"]})
            continue
        for name in (*COLUMNS, "ess_per_s"):
            values = [run[name] for run in good if run[name] is not None]
            row[name] = statistics.median(values) if values else None
        speeds = [run["ess_per_s"] for run in good]
        rows.append({**row, "setting": good[0]["setting"], "low": min(speeds), "high": max(speeds), "error": None})
    return rows


def shown(row) -> dict[str, str]:
    """The texts of a row."""
    if row["error"]:
        return {"method": row["method"], "setting": row["error"]}
    number = lambda name: "–" if row[name] is None else format_number(float(row[name]))
    texts = {
        "method": row["method"],
        "setting": row["setting"],
        "ESS/s": number("ess_per_s"),
        "range": f"{number('low')}–{number('high')}",
    }
    return texts | {title: number(name) for name, title in COLUMNS.items()}


def aligned(rows: list[dict]) -> list[str]:
    """A table in plain text, as wide as it needs to be: words to the left, numbers to the right."""
    texts = [shown(row) for row in rows]
    titles = max(texts, key=len, default={"method": "", "setting": ""})
    lines = [dict(zip(titles, titles, strict=True)), *texts]
    # The words of a failed row may run over.
    width = {title: max(len(line[title]) for line in lines if len(line) == len(titles)) for title in titles}
    width["method"] = max(len(line["method"]) for line in lines)
    return [
        "  ".join(
            text.ljust(width[k]) if k in ("method", "setting") else text.rjust(width[k]) for k, text in line.items()
        )
        for line in lines
    ]


def draw(rows: list[dict], path: Path) -> None:
    """Bars of ESS per second of a second call, with their range, a panel for each problem; hatched where the law is off.

    A law is called off beyond five standard errors in a known moment. R-hat above 1.05 is hatched too: such ESS mean little.
    """
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    if not problems:
        return
    columns = min(3, len(problems))
    figure, axes = new_figure(-(-len(problems) // columns), columns, width=4.4, height=2.4)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(METHODS)}
    for axis in axes.flat[len(problems) :]:
        axis.set_visible(False)
    for axis, problem in zip(axes.flat, problems, strict=False):
        mine = [row for row in rows if row["problem"] == problem and row.get("ess_per_s")]
        for place, row in enumerate(reversed(mine)):
            doubtful = (row["z"] or 0) > 5 or row["rhat"] is None or row["rhat"] > 1.05
            speed = row["ess_per_s"]
            error = [[speed - row["low"]], [row["high"] - speed]]
            hatch = "////" if doubtful else None
            axis.barh(
                place, speed, xerr=error, color=colours[row["method"]], hatch=hatch, edgecolor="white", ecolor="0.4"
            )
        axis.set_yticks(range(len(mine)), [row["method"] for row in reversed(mine)], fontsize=7)
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")
        if mine:
            # Bars begin at a power of ten below the shortest.
            axis.set_xlim(left=10 ** math.floor(math.log10(min(row["low"] or row["ess_per_s"] for row in mine) / 2)))
        axis.set_title(problem.replace("_", " "), fontsize=9)
        axis.set_xlabel("worst ESS per second, second call", fontsize=7)
    figure.savefig(path)


def markdown(rows: list[dict]) -> Iterator[str]:
    """The table for the documentation."""
    texts = [{"problem": row["problem"], **shown(row)} for row in rows]
    titles = list(max(texts, key=len))
    yield "| " + " | ".join(title.replace("|", "\\|") for title in titles) + " |"
    yield "|" + "---|" * len(titles)
    for line in texts:
        yield "| " + " | ".join(line.get(title, "") for title in titles) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", type=json.loads, help="one measurement, as the table asks for it")
    parser.add_argument("--markdown", type=Path, help="print the table of a file for the documentation")
    arguments = parser.parse_args()
    if arguments.markdown:
        runs = json.loads(arguments.markdown.read_text("utf-8"))["runs"]
        print(*markdown(table(runs)), sep="\n")
    elif arguments.one:
        print(json.dumps(measure_one(arguments.one)))
    else:
        parser.error("use `ogradient bench --peers`")


if __name__ == "__main__":
    main()
