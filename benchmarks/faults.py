"""Rough handling, many times over: kills, Ctrl-C, full disks, flipped bytes, long runs; and what was lost.

    python benchmarks/faults.py                       # the table of docs/reliability.md, in Markdown; about fifteen minutes
    python benchmarks/faults.py --trials 3 --only "kill while saving" "flipped bytes"

Kills and Ctrl-C hit processes of their own, at moments drawn uniformly from their lives. Compiled programs are kept in a
folder, so that such a process takes a few seconds. Full disks and read-only folders are small file systems in memory, which only
root can mount; others get a limit on the size of files, and a path below a file.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ogradient as og
from ogradient.chunk import rows_before

DRAWS = 400
LENGTH: dict[str, Any] = {"num_warmup": 100, "num_samples": 1000, "progress": False}
KNOWN = og.problems.ellipse()
SAMPLERS = {
    "o_langevin": 0.01,
    "o_kinetic": 0.1,
    "langevin": 0.01,
    "o_svgd": 0.05,
    "svgd": 0.05,
    "chmc": 0.1,
    "clangevin": 0.1,
    "control_langevin": 0.01,
}
ENSEMBLES = ("o_svgd", "svgd", "control_langevin")


class Row(NamedTuple):
    """One line of the table."""

    what: str
    trials: int
    fine: int
    seen: str


def starts() -> jax.Array:
    return KNOWN.start_off(jax.random.key(1), 4)


def constant(trace: og.Trace, value: float) -> og.Trace:
    """The trace with all draws equal to a number, so that a mixture of two would show."""
    return dataclasses.replace(trace, position=jax.tree.map(lambda leaf: np.full_like(leaf, value), trace.position))


def short_trace(num_samples: int = 50) -> og.Trace:
    algorithm = og.o_langevin(KNOWN.problem, 0.01)
    return og.sample(
        0, KNOWN.problem, starts(), algorithm=algorithm, num_warmup=5, num_samples=num_samples, progress=False
    )


def same_prefix(trace: og.Trace, whole: og.Trace) -> bool:
    n = trace.num_draws
    stats = [(trace.sample_stats[k], whole.sample_stats[k][:, :n]) for k in whole.sample_stats]
    return all(np.array_equal(a, b) for a, b in [(trace["x"], whole["x"][:, :n]), *stats])


# Processes that are handled roughly


def child_saving(path: Path, slow: str) -> None:
    """Save over one path again and again; `slow` gives kills a chance to come between two renames."""
    trace, rename = og.load(path), os.rename
    first = path.parent / f"first-{os.getpid()}.zarr"

    def slowly(*arguments: Any) -> None:
        rename(*arguments)
        time.sleep(0.03)

    if slow == "slow":
        os.rename = slowly  # type: ignore[assignment]
    trace.save(first)  # which takes longer: modules are imported
    shutil.rmtree(first)
    print("ready", flush=True)
    for value in range(1, 1000):
        constant(trace, value).save(path, overwrite=True)
        print(value, flush=True)


def child_running(path: Path, _: str) -> None:
    """A run that is saved every twenty draws."""
    algorithm = og.chmc(KNOWN.problem, 0.3, num_integration_steps=3)
    run = lambda **more: og.sample(0, KNOWN.problem, algorithm=algorithm, num_samples=20, progress=False, **more)
    trace = run(initial_positions=starts(), num_warmup=10)
    trace.save(path)
    print("ready", flush=True)
    while trace.num_draws < DRAWS:
        trace = run(resume=trace)
        trace.save(path, overwrite=True)
        print(trace.num_draws, flush=True)


def child_interrupted(path: Path, _: str) -> None:
    """The default call, tuned, and its trace saved, as one would write it; then what it had kept, and what came out."""
    from ogradient.run import loop

    runs, chunk = [], loop.Run._chunk

    def noted(self: Any, *arguments: Any) -> Any:
        runs[:] = [self]
        return chunk(self, *arguments)

    loop.Run._chunk = noted  # type: ignore[method-assign]
    warnings.simplefilter("ignore")
    trace, ended, saved = None, [], False
    print("ready", flush=True)
    for _ in range(5):
        try:
            if not ended:
                try:
                    trace = og.sample(0, KNOWN.problem, starts(), chunk_size=1, **LENGTH)
                    ended.append("returned")
                except og.SamplingError as error:
                    trace = error.trace
                    ended.append("SamplingError")
            if trace is not None and not saved:
                trace.save(path, overwrite=True)
                saved = True
            break
        except KeyboardInterrupt:
            ended.append("KeyboardInterrupt")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kept = rows_before(runs[0].done, runs[0].warmup, runs[0].thinning) if runs else 0
    print(json.dumps({"kept": kept, "ended": ended}), flush=True)


def with_checkpoint(path: Path, **more: Any) -> og.Trace:
    """The default call, tuned, saved as often as can be."""
    from ogradient.run import checkpoint

    length = LENGTH | {"num_warmup": None, "num_samples": 4000} | more
    share, checkpoint.SHARE = checkpoint.SHARE, 1e9
    try:
        return og.sample(0, KNOWN.problem, starts(), **length, checkpoint=path, checkpoint_every=0)
    finally:
        checkpoint.SHARE = share


def child_with_checkpoint(path: Path, _: str) -> None:
    """A call that goes on from its checkpoint, if there is one."""
    print("ready", flush=True)
    with_checkpoint(path)
    print("done", flush=True)


CHILDREN = {
    "saving": child_saving,
    "running": child_running,
    "interrupted": child_interrupted,
    "checkpoint": child_with_checkpoint,
}


class Child:
    """A process that does one of the above; `lines` are what it has printed."""

    def __init__(self, kind: str, path: Path, option: str, cache: Path) -> None:
        cached = {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join([str(Path(og.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", kind, str(path), option],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **cached},
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the process {kind} ended before it began")
        self.began = time.perf_counter()

    def wait(self) -> float:
        """Read what it prints until it ends; how long that took since it was ready."""
        assert self.process.stdout is not None
        self.lines = self.process.stdout.read().splitlines()
        self.process.wait()
        return time.perf_counter() - self.began

    def strike(self, delay: float, *signals: int) -> None:
        """Send signals after a delay, a twentieth of a second apart."""
        time.sleep(delay)
        for number in signals:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            time.sleep(0.05 if len(signals) > 1 else 0)
        self.wait()


class Setting(NamedTuple):
    """How often, with which random moments, and where."""

    trials: int
    rng: np.random.Generator
    folder: Path
    cache: Path


def load_quietly(path: Path) -> tuple[og.Trace, bool]:
    """A trace, and whether it was found under another name."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return og.load(path), bool(seen)


# The faults


def kill_while_saving(setting: Setting) -> Row:
    fine = found = hidden = 0
    source = short_trace()
    for trial in range(setting.trials):
        path = setting.folder / f"kill-{trial}" / "t.zarr"
        constant(source, 0).save(path)
        child = Child("saving", path, "slow" if trial % 2 else "fast", setting.cache)
        child.strike(setting.rng.uniform(0, 0.6), signal.SIGKILL)
        trace, other_name = load_quietly(path)
        values = np.unique(trace["x"])
        reported = max([int(line) for line in child.lines], default=0)
        fine += len(values) == 1 and values[0] >= reported
        found += other_name
        hidden += len(list(path.parent.iterdir())) > 1
        constant(source, -1).save(path, overwrite=True)
        fine -= [entry.name for entry in path.parent.iterdir()] != ["t.zarr"]
    seen = (
        f"the trace from before or the new one, whole; {found} times found under its hidden name. {hidden} kills left hidden "
        "folders, which the next save swept"
    )
    return Row("kill −9 while saving over a trace", setting.trials, fine, seen)


def kill_while_running(setting: Setting) -> Row:
    whole_path = setting.folder / "whole" / "t.zarr"
    duration = Child("running", whole_path, "", setting.cache).wait()
    whole, fine, draws = og.load(whole_path), 0, []
    for trial in range(setting.trials):
        path = setting.folder / f"run-{trial}" / "t.zarr"
        child = Child("running", path, "", setting.cache)
        child.strike(setting.rng.uniform(0, duration), signal.SIGKILL)
        trace, _ = load_quietly(path)
        reported = max([int(line) for line in child.lines], default=20)
        fine += trace.num_draws >= reported and same_prefix(trace, whole)
        draws.append(trace.num_draws)
    seen = f"all draws of the last save ({min(draws)} to {max(draws)} of {DRAWS}), bit for bit those of an unbroken run"
    return Row("kill −9 in a run that saves every 20 draws", setting.trials, fine, seen)


def interrupt(setting: Setting) -> Row:
    whole_path, fine = setting.folder / "whole" / "interrupt.zarr", 0
    Child("interrupted", setting.folder / "whole" / "first.zarr", "", setting.cache).wait()  # compiles
    duration = Child("interrupted", whole_path, "", setting.cache).wait()
    whole = og.load(whole_path)
    outcomes = {"before any draw was kept": 0, "draws delivered in part": 0, "run complete": 0}
    for trial in range(setting.trials):
        path = setting.folder / f"interrupt-{trial}" / "t.zarr"
        child = Child("interrupted", path, "", setting.cache)
        child.strike(setting.rng.uniform(0, duration), *[signal.SIGINT] * (1 + (trial % 5 == 4)))
        report = json.loads(child.lines[-1]) if child.lines else {"kept": -1, "ended": ["no report"]}
        if not path.exists():
            fine += report["kept"] == 0 and report["ended"][0] in ("KeyboardInterrupt", "SamplingError")
            outcomes["before any draw was kept"] += 1
            continue
        trace = og.load(path)
        good = trace.num_draws == report["kept"] and same_prefix(trace, whole)
        if (left := LENGTH["num_samples"] - trace.num_draws) > 0:
            trace = og.sample(0, KNOWN.problem, resume=trace, num_samples=left, progress=False)
            outcomes["draws delivered in part"] += 1
        else:
            outcomes["run complete"] += 1
        fine += good and same_prefix(trace, whole)
    if setting.trials >= 10 and min(outcomes.values()) == 0:
        raise RuntimeError(f"the moments do not cover the run: {outcomes}")
    seen = ", ".join(f"{name}: {count}" for name, count in outcomes.items())
    what = "Ctrl-C (every fifth time twice) at a random moment from tuning to saving"
    return Row(what, setting.trials, fine, f"{seen}. All that was kept was delivered, and resumed to the same bits")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Any:
    """A file system in memory; None where this user cannot mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    try:
        yield folder if mounted.returncode == 0 else None
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)


@contextlib.contextmanager
def small_files(size: int) -> Any:
    """No file may be larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def kill_with_checkpoint(setting: Setting) -> Row:
    duration = Child("checkpoint", setting.folder / "whole", "", setting.cache).wait()
    whole = with_checkpoint(setting.folder / "whole")  # is read, not run again
    path, fine, mine, runs, where = setting.folder / "run-0", 0, 0, 1, {"tuning": 0, "sampling": 0}
    while sum(where.values()) < setting.trials:
        child = Child("checkpoint", path, "", setting.cache)
        # Later ones have less to do.
        child.strike(setting.rng.uniform(0, duration / 2), signal.SIGKILL)
        if child.lines != ["done"]:
            mine += 1
            header = path / "checkpoint.json"
            sampling = header.exists() and json.loads(header.read_text("utf-8"))["state"] is not None
            where["sampling" if sampling else "tuning"] += 1
            continue
        fine += mine * same_prefix(with_checkpoint(path), whole)
        path, runs, mine = setting.folder / f"run-{runs}", runs + 1, 0
    Child("checkpoint", path, "", setting.cache).wait()
    fine += mine * same_prefix(with_checkpoint(path), whole)
    times = f"{where['tuning']} times in tuning and {where['sampling']} after it"
    seen = f"{times}; all {runs} runs ended in the bits of an unbroken one"
    return Row("kill −9 in a call with a checkpoint, which is then made again", setting.trials, fine, seen)


def full_disk_with_checkpoint(setting: Setting) -> Row:
    whole, fine, how = with_checkpoint(setting.folder / "whole"), 0, "a full file system of 400 kB"
    for trial in range(setting.trials):
        with small_disk(setting.folder / f"disk-{trial}", "400k") as disk:
            path = (disk or setting.folder / f"files-{trial}") / "run"
            limit: Any = contextlib.nullcontext()
            if disk is None:
                limit, how = small_files(int(setting.rng.integers(1000, 30_000))), "files of limited size"
            else:
                (disk / "other").write_bytes(bytes(int(setting.rng.integers(0, 350_000))))
            written = False
            with limit, contextlib.suppress(OSError, og.SamplingError):
                with_checkpoint(path, num_samples=10_000)
                written = True
            moved = setting.folder / f"moved-{trial}"
            if path.exists():
                shutil.copytree(path, moved)
            fine += not written and same_prefix(whole, with_checkpoint(moved, num_samples=4000))
    seen = f"an error that says so; with space again, the same call ended in the bits of an unbroken run ({how})"
    return Row("a full disk under a checkpoint", setting.trials, fine, seen)


def flip_bytes(
    setting: Setting, files: list[Path], look: Callable[[], bool], named: Callable[[Path], str]
) -> tuple[int, int]:
    """Change a byte of a file, look, and put it back: how often all was as it should be, and how often an error said so."""
    fine = raised = 0
    for _ in range(setting.trials):
        file = files[setting.rng.integers(len(files))]
        whole = file.read_bytes()
        broken = bytearray(whole)
        broken[setting.rng.integers(len(whole))] ^= int(setting.rng.integers(1, 256))
        file.write_bytes(broken)
        try:
            fine += look()
        except ValueError as error:
            fine += named(file) in str(error)
            raised += 1
        file.write_bytes(whole)
    return fine, raised


def flipped_bytes_of_a_checkpoint(setting: Setting) -> Row:
    path = setting.folder / "flip"
    trace = with_checkpoint(path, num_samples=50)
    files = sorted(file for file in path.iterdir() if file.stat().st_size)
    look = lambda: same_prefix(with_checkpoint(path, num_samples=50), trace)
    fine, raised = flip_bytes(setting, files, look, lambda file: file.name)
    seen = f"{raised} errors that name the file; the others were between its arrays, and nothing was lost"
    return Row("one byte of a checkpoint changed", setting.trials, fine, seen)


def full_disk(setting: Setting) -> Row:
    small, large, fine, how = short_trace(20), short_trace(20_000), 0, "a full file system of 400 kB"
    for trial in range(setting.trials):
        with small_disk(setting.folder / f"disk-{trial}", "400k") as disk:
            path = (disk or setting.folder / f"files-{trial}") / "t.zarr"
            small.save(path)
            limit: Any = contextlib.nullcontext()
            if disk is None:
                limit, how = small_files(int(setting.rng.integers(1000, 30_000))), "files of limited size"
            else:
                (disk / "other").write_bytes(bytes(int(setting.rng.integers(0, 150_000))))
            with limit:
                try:
                    large.save(path, overwrite=True)
                except OSError:
                    left = {entry.name for entry in path.parent.iterdir()} - {"other"}
                    fine += same_prefix(og.load(path), small) and left == {"t.zarr"}
    return Row(
        "save on a full disk", setting.trials, fine, f"OSError; the trace from before whole, nothing left over ({how})"
    )


def read_only(setting: Setting) -> Row:
    trace, fine, trials = short_trace(20), 0, 2
    with small_disk(setting.folder / "fixed", "1m") as disk:
        path = (disk or setting.folder / "writable") / "t.zarr"
        trace.save(path)
        if disk:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        else:
            (setting.folder / "file").write_text("")
        for target in (path, path.with_name("new.zarr")) if disk else (setting.folder / "file" / n for n in "ab"):
            try:
                trace.save(target, overwrite=True)
            except OSError:
                fine += same_prefix(og.load(path), trace)
    return Row("save into a read-only folder", trials, fine, "OSError; what is there can be read")


def flipped_bytes(setting: Setting) -> Row:
    trace = short_trace()
    path = trace.save(setting.folder / "flip" / "t.zarr")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    fine, raised = flip_bytes(setting, files, lambda: same_prefix(og.load(path), trace), lambda _: path.name)
    seen = f"{raised} errors that name the folder and mostly the array; the others were in coordinates, and loaded as saved"
    return Row("one byte of a saved trace changed", setting.trials, fine, seen)


def missing_files(setting: Setting) -> Row:
    trace = short_trace()
    path = trace.save(setting.folder / "miss" / "t.zarr")
    files, fine, raised = sorted(file for file in path.rglob("*") if file.is_file()), 0, 0
    chosen = setting.rng.permutation(len(files))[: setting.trials]
    for index in chosen:
        for content in (None, b"", files[index].read_bytes()[: files[index].stat().st_size // 2]):
            whole = files[index].read_bytes()
            files[index].unlink()
            if content is not None:
                files[index].write_bytes(content)
            try:
                fine += same_prefix(og.load(path), trace)
            except ValueError as error:
                fine += "t.zarr" in str(error)
                raised += 1
            files[index].write_bytes(whole)
    seen = f"{raised} errors that name the folder; the others were coordinates, and loaded as saved"
    return Row("one file of a saved trace missing, empty or cut in half", 3 * len(chosen), fine, seen)


def concurrent_threads(setting: Setting) -> Row:
    trace, fine, errors = short_trace(), 0, []

    def save(path: Path, value: int) -> None:
        try:
            constant(trace, value).save(path, overwrite=True)
        except BaseException as error:
            errors.append(error)

    for trial in range(setting.trials):
        path = setting.folder / f"threads-{trial}" / "t.zarr"
        threads = [threading.Thread(target=save, args=(path, value)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = len(np.unique(og.load(path)["x"])) == 1
        fine += whole and [entry.name for entry in path.parent.iterdir()] == ["t.zarr"]
    seen = "one of the four traces, whole, and nothing else"
    return Row("four threads save to one path", setting.trials, fine - len(errors), seen)


def concurrent_processes(setting: Setting) -> Row:
    trials, fine, reads = max(setting.trials // 10, 1), 0, 0
    for trial in range(trials):
        path = setting.folder / f"processes-{trial}" / "t.zarr"
        constant(short_trace(), 0).save(path)
        children = [Child("saving", path, "fast", setting.cache) for _ in range(3)]
        end, whole = time.perf_counter() + 3, True
        while time.perf_counter() < end:
            whole &= len(np.unique(og.load(path)["x"])) == 1
            reads += 1
        for child in children:
            child.strike(0, signal.SIGKILL)
        saves = sum(len(child.lines) for child in children)
        trace, _ = load_quietly(path)
        fine += whole and saves > 10 and len(np.unique(trace["x"])) == 1
    seen = f"each of {reads} reads meanwhile, and the end after a kill of all three, one whole trace"
    return Row("three processes save to one path for three seconds", trials, fine, seen)


def not_finite(setting: Setting) -> Row:
    """Every sampler, with NaN, inf and −inf in log density and constraint: at the starts, and in a part of space."""
    values = (jnp.nan, jnp.inf, -jnp.inf)
    cases = [(name, kind, value, at) for name in SAMPLERS for kind in ("logdensity", "equality") for value in values
             for at in ("start", "later") if not (kind == "equality" and name in ("langevin", "svgd"))]  # fmt: skip
    if setting.trials < 50:
        cases = [cases[i] for i in setting.rng.permutation(len(cases))[: 2 * setting.trials]]
    fine = refused = stopped = rejected = 0
    for name, kind, value, at in cases:
        bad = (lambda x: x[0] > -10) if at == "start" else (lambda x: x[0] > 0.5)
        spoil = lambda f, mine, kind=kind, value=value, bad=bad: (
            (lambda x: jnp.where(bad(x), value, f(x))) if mine == kind else f
        )
        logdensity = spoil(lambda x: -0.5 * jnp.sum(x**2) + x[0], "logdensity")
        problem = og.Problem(logdensity, spoil(lambda x: jnp.sum(x**2) - 1, "equality"))
        algorithm = og.SAMPLERS[name](problem, 3 * SAMPLERS[name])
        begin = jnp.stack([-jnp.cos(jnp.linspace(-1.0, 1, 6)), jnp.sin(jnp.linspace(-1.0, 1, 6))], axis=1)
        begin = begin[None] if name in ENSEMBLES else begin
        trace = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                trace = og.sample(0, problem, begin, algorithm=algorithm, num_warmup=0, num_samples=300, progress=False)
                rejected += 1
            except og.SamplingError as error:
                trace = error.trace
                stopped += 1
            except ValueError as error:
                fine += at == "start" and "not finite" in str(error)
                refused += 1
                continue
        # An unadjusted sampler notices in its next step that it is where log π or g is not finite: one draw there may be OK.
        okay = trace.sample_stats["status"] == og.Status.OK
        unnoticed = (trace["x"][..., 0] > 0.5) & (okay[..., None] if name in ENSEMBLES else okay)
        moved = len(np.unique(trace["x"][0], axis=0)) > 3
        fine += at == "later" and moved and np.isfinite(trace["x"]).all() and (unnoticed.sum(axis=1) <= 1).all()
    seen = (
        f"at the start: refused with the argument's name ({refused}); later: stopped, with finite draws and a status for "
        f"those that are not before it ({stopped}), or such moves refused ({rejected})"
    )
    return Row("NaN, inf, −inf in log density or constraint, every sampler", len(cases), fine, seen)


def batch_functions(setting: Setting) -> Row:
    """A batch_fn that fails at step 70, in every way."""
    rows = np.ones((8, 1), np.float32)

    def failing(error: BaseException) -> Callable[[], Any]:
        def call() -> Any:
            raise error

        return call

    errors = (OSError("gone"), SystemExit(1), KeyboardInterrupt(), MemoryError(), StopIteration())
    ways = [failing(error) for error in errors] + [lambda: rows * np.nan, lambda: rows[:3], lambda: None]
    likelihood = lambda w, x: -0.5 * jnp.sum((x - w[None]) ** 2)
    fine = 0
    for way in ways:
        batch_fn = lambda step, way=way: way() if step == 70 else rows
        problem = og.posterior(lambda w: -0.5 * jnp.sum(w**2), likelihood, batch_fn, num_rows=80)
        try:
            og.sample(0, problem, jnp.zeros((2, 1)), algorithm=og.langevin(problem, 1e-3), num_warmup=0, progress=False)
        except og.SamplingError as error:
            fine += error.trace.num_draws == 70
    what = "batch_fn fails: errors, SystemExit, NaN, other shapes"
    return Row(what, len(ways), fine, "SamplingError with all draws before that step")


def long_runs(setting: Setting) -> Row:
    """Runs that go on from a trace that says it has made almost 2³¹, 2³² or 3·2³² steps."""
    fine = trials = 0
    for name in SAMPLERS:
        algorithm = og.SAMPLERS[name](KNOWN.problem, SAMPLERS[name])
        begin = KNOWN.start_on(jax.random.key(0), 6)
        run = lambda algorithm=algorithm, **more: og.sample(
            0, KNOWN.problem, algorithm=algorithm, progress=False, num_samples=10, **more
        )
        trace = run(initial_positions=begin[None] if name in ENSEMBLES else begin, num_warmup=0)
        for step in (2**31, 2**32, 3 * 2**32):
            state = trace.state._replace(iteration=np.full_like(trace.state.iteration, min(step - 5, 2**31 - 5)))
            moved = {"num_steps": step - 5, "num_warmup": step - 15}
            late = dataclasses.replace(trace, provenance=trace.provenance | moved, state=state)
            whole, parts = run(resume=late), run(resume=late, chunk_size=3)
            values = whole.apply(KNOWN.problem.equality_value)
            moving = len(np.unique(whole["x"].reshape(whole.num_chains, 20, -1)[0], axis=0)) > 12
            right = np.allclose(whole.sample_stats["equality"], values, atol=1e-4)
            fine += right and moving and same_prefix(parts, whole) and whole.provenance["num_steps"] == step + 5
            trials += 1
    seen = "all draws, their constraint values, and the same bits for any chunks"
    return Row("runs past 2³¹, 2³² and 3·2³² steps, every sampler", trials, fine, seen)


FAULTS: dict[str, Callable[[Setting], Row]] = {
    "kill while saving": kill_while_saving,
    "kill while running": kill_while_running,
    "Ctrl-C": interrupt,
    "checkpoint, kill": kill_with_checkpoint,
    "checkpoint, full disk": full_disk_with_checkpoint,
    "checkpoint, flipped bytes": flipped_bytes_of_a_checkpoint,
    "full disk": full_disk,
    "read-only folder": read_only,
    "flipped bytes": flipped_bytes,
    "missing files": missing_files,
    "threads": concurrent_threads,
    "processes": concurrent_processes,
    "not finite": not_finite,
    "batch_fn": batch_functions,
    "long runs": long_runs,
}


def inflict(name: str, trials: int, seed: int = 0, cache: Path | None = None) -> Row:
    """One fault, so many times where that number is free."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(trials, np.random.default_rng(seed), Path(folder), cache or Path(folder) / "compiled")
        return FAULTS[name](setting)


def main() -> None:
    """The table, or one of the processes for it."""
    if sys.argv[1:2] == ["--child"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make jobs in the background deaf to Ctrl-C
        kind, path, option = sys.argv[2:]
        CHILDREN[kind](Path(path), option)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=50, help="of each fault whose number is free")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cache = Path(tempfile.mkdtemp())
    print("| what was done | times | as it should be | what was seen |\n|---|---|---|---|")
    failed = False
    for name in arguments.only:
        row = inflict(name, arguments.trials, arguments.seed, cache)
        failed |= row.fine != row.trials
        print(f"| {row.what} | {row.trials} | {row.fine} | {row.seen} |", flush=True)
    shutil.rmtree(cache, ignore_errors=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
