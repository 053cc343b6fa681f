"""Checkpoints: the same call goes on where a process ended, to the bits; what is of another call, or damaged, is refused."""

import errno
import json
import signal
import threading
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient import storage
from ogradient.run import checkpoint, loop
from ogradient.warmup import stages

KNOWN = og.problems.cubic()
PROBLEM = KNOWN.problem
ALGORITHM = og.o_langevin(PROBLEM, 0.01)
STARTS = KNOWN.start_off(jax.random.key(1), 3)
ELLIPSE = og.problems.ellipse()
ON = ELLIPSE.start_off(jax.random.key(0), 8)


def run(path=None, **changes):
    arguments = {"algorithm": ALGORITHM, "num_warmup": 7, "num_samples": 20, "thinning": 3, "chunk_size": 5} | changes
    problem, starts = arguments.pop("problem", PROBLEM), arguments.pop("starts", STARTS)
    kept = {} if path is None else {"checkpoint": path, "checkpoint_every": 0}
    return og.sample(arguments.pop("seed", 0), problem, starts, **kept, progress=False, **arguments)


def default(path=None, **changes):
    return run(path, problem=ELLIPSE.problem, starts=ON, algorithm=None, num_warmup=None, thinning=1, **changes)


def same(trace, other):
    jax.tree.map(np.testing.assert_array_equal, trace.position, other.position)
    jax.tree.map(np.testing.assert_array_equal, trace.sample_stats, other.sample_stats)
    np.testing.assert_array_equal(trace.status_counts, other.status_counts)
    for mine, theirs in zip(jax.tree.leaves(trace.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for name in ("settings", "num_steps", "num_warmup", "thinning", "tuned", "key"):
        assert trace.provenance[name] == other.provenance[name]


@pytest.fixture(autouse=True)
def saving_after_every_chunk(monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)


class Killed(BaseException):
    """What no code of ours catches."""


def killed_at(monkeypatch, call):
    """The call of so many chunks (windows of tuning, and chunks of the run) ends the process, as it were."""
    calls, original, window = [], loop.Run._chunk, stages.Windows.run

    def count():
        calls.append(1)
        if len(calls) == call:
            raise Killed

    def chunk(self, *arguments):
        count()
        return original(self, *arguments)

    def run_window(self, *arguments, **options):
        count()
        return window(self, *arguments, **options)

    monkeypatch.setattr(loop.Run, "_chunk", chunk)
    monkeypatch.setattr(stages.Windows, "run", run_window)
    # A process that is gone writes nothing more.
    monkeypatch.setattr(checkpoint.Checkpoint, "save", unless_killed(calls, call, checkpoint.Checkpoint.save))
    monkeypatch.setattr(checkpoint.Journal, "flush", unless_killed(calls, call, checkpoint.Journal.flush))


def unless_killed(calls, call, method):
    return lambda self, *arguments: None if len(calls) >= call else method(self, *arguments)


@pytest.mark.parametrize("call", [1, 2, 3, 7, 13])
def test_a_run_that_was_killed_goes_on_to_the_bits_of_an_unbroken_one(call, tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        killed_at(context, call)
        with pytest.raises((Killed, og.SamplingError)):
            run(tmp_path / "run")
    chunks, original = [], loop.Run._chunk
    monkeypatch.setattr(loop.Run, "_chunk", lambda self, *a: [chunks.append(a[0]), original(self, *a)][1])
    same(run(tmp_path / "run"), run())
    unbroken = 14  # chunks of 5 steps that make 67
    assert sum(1 for steps in chunks if steps) == unbroken - max(call - 2, 0) + unbroken


def test_killed_again_and_again_in_tuning_and_after(tmp_path, monkeypatch):
    whole, deaths = default(), 0
    for call in (2, 5, 3, 1, 4, 6, 2, 20, 3, 2):
        with monkeypatch.context() as context:
            killed_at(context, call)
            try:
                trace = default(tmp_path / "run")
                break
            except (Killed, og.SamplingError):
                deaths += 1
    else:
        trace = default(tmp_path / "run")
    assert deaths > 5
    same(trace, whole)


def test_windows_of_tuning_are_not_run_twice(tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        killed_at(context, 6)
        with pytest.raises((Killed, og.SamplingError)):
            default(tmp_path / "run")
    ran, original = [], stages.run_chunk
    monkeypatch.setattr(stages, "run_chunk", lambda *a: [ran.append(1), original(*a)][1])
    stages.run_chunk.prepare = original.prepare
    default(tmp_path / "run")
    first = len(ran)
    default()
    assert len(ran) - first == first + 5


def test_what_is_finished_is_returned_and_what_is_to_be_longer_goes_on(tmp_path, monkeypatch):
    first = run(tmp_path / "run", num_samples=8)
    with monkeypatch.context() as context:
        context.setattr(loop.Run, "_chunk", lambda *_: pytest.fail("nothing is left to compute"))
        same(run(tmp_path / "run", num_samples=8), first)
    same(run(tmp_path / "run"), run())
    assert not list((tmp_path / "run").glob("window*"))
    assert len(list((tmp_path / "run").glob("state*"))) == 1


def test_supports_particles_and_stops_in_warm_up(tmp_path, monkeypatch):
    simplex = og.Problem(lambda w: jnp.sum(jnp.log(w) * 2), support=og.simplex)
    starts = jnp.full((4, 3), 1 / 3)
    hmc = {"problem": simplex, "starts": starts, "algorithm": og.chmc(simplex, 0.3), "thinning": 1}
    particles = {
        "algorithm": og.o_svgd(PROBLEM, 0.05),
        "starts": KNOWN.start_off(jax.random.key(2), 10).reshape(2, 5, 2),
    }
    for number, changes in enumerate((hmc, particles, {"num_warmup": 40})):
        with monkeypatch.context() as context:
            killed_at(context, 4)
            with pytest.raises((Killed, og.SamplingError)):
                run(tmp_path / str(number), **changes)
        same(run(tmp_path / str(number), **changes), run(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "seed was"),
        ({"thinning": 2}, "thinning was 3, and is 2 now"),
        ({"num_warmup": 8}, "num_warmup was 7, and is 8 now"),
        ({"starts": STARTS + 1}, "initial_positions are others"),
        ({"algorithm": og.o_langevin(PROBLEM, 0.02)}, "algorithm was"),
        ({"algorithm": "o_langevin"}, "algorithm was"),
    ],
)
def test_a_checkpoint_of_another_call_is_refused(changes, said, tmp_path):
    run(tmp_path / "run", num_samples=1)
    with pytest.raises(ValueError, match=f"is of another run: {said}.*remove the folder"):
        run(tmp_path / "run", **changes)
    other = og.Problem(lambda x: -jnp.sum(x**2), equality=PROBLEM.equality)
    with pytest.raises(ValueError, match="logdensity_fn is another function, or has other values in it"):
        run(tmp_path / "run", problem=other, algorithm=og.o_langevin(other, 0.01))
    with pytest.raises(ValueError, match="leave out resume"):
        run(tmp_path / "run", resume=run())


def test_damage_is_seen(tmp_path):
    path, whole = tmp_path / "run", run(num_samples=4)
    run(path, num_samples=4)
    header = json.loads((path / checkpoint.HEADER).read_text())
    parts = {part["file"]: len(part["crc32"]) for part in (*header["pieces"], header["state"])}
    assert set(parts) == {file.name for file in path.glob("*.npz")}
    for name in (*parts, checkpoint.HEADER):
        file = path / name
        content = file.read_bytes()
        numbers = storage.read_arrays(file, parts[name])[0].tobytes() if name in parts else b"num_steps"
        at = content.index(numbers)
        for damaged in (content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], content[: len(content) // 2]):
            file.write_bytes(damaged)
            with pytest.raises(ValueError, match=f"{name} is damaged"):
                run(path, num_samples=4)
        file.write_bytes(content)
    same(run(path, num_samples=4), whole)
    (path / checkpoint.HEADER).write_text(json.dumps(signed(header | {"format": 99})))
    with pytest.raises(ValueError, match="written by a newer ogradient"):
        run(path, num_samples=4)


def signed(header):
    """A header with the sum that belongs to it."""
    rest = {key: value for key, value in header.items() if key != "crc32"}
    return rest | {"crc32": zlib.crc32(json.dumps(rest, sort_keys=True).encode())}


def test_a_full_disk_keeps_the_last_checkpoint_and_the_draws(tmp_path, monkeypatch):
    writes, original = [], storage.write_arrays

    def full(path, arrays):
        writes.append(path)
        if len(writes) > 8:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(path, arrays)

    with monkeypatch.context() as context:
        context.setattr(checkpoint, "write_arrays", full)
        with pytest.raises(og.SamplingError, match="cannot be written.*No space left.*the same call goes on") as error:
            run(tmp_path / "run")
    assert error.value.trace.num_draws > 0
    same(run(tmp_path / "run"), run())


def test_what_is_no_checkpoint_stays_as_it_is(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds notes.txt and is no checkpoint"):
        run(tmp_path)
    with pytest.raises(FileExistsError, match="is a file"):
        run(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match="checkpoint must be the path of a folder"):
        run(3)
    with pytest.raises(ValueError, match="checkpoint_every must be seconds"):
        og.sample(0, PROBLEM, STARTS, algorithm=ALGORITHM, checkpoint=tmp_path / "run", checkpoint_every=-1.0)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    run(tmp_path / "run", num_samples=1)
    lock = storage.lock_folder(tmp_path / "run")
    with pytest.raises(BlockingIOError, match="another process is writing to"):
        run(tmp_path / "run")
    lock.close()
    run(tmp_path / "run")


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_return_the_draws(which, tmp_path, monkeypatch):
    original, calls = loop.Run._chunk, []

    def signalled(self, *arguments):
        calls.append(1)
        if len(calls) == 9:
            signal.raise_signal(which)
        return original(self, *arguments)

    # A shell makes jobs in the background deaf to Ctrl-C.
    usual = signal.default_int_handler if which == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(which, usual)
    with monkeypatch.context() as context:
        context.setattr(loop.Run, "_chunk", signalled)
        with pytest.warns(RuntimeWarning, match="interrupted: 11 draws"):
            part = og.sample(
                0,
                PROBLEM,
                STARTS,
                algorithm=ALGORITHM,
                num_warmup=7,
                num_samples=20,
                thinning=3,
                chunk_size=5,
                progress=False,
                checkpoint=tmp_path / "run",
            )
    assert signal.getsignal(which) is usual
    signal.signal(which, before)
    assert part.num_draws == 11
    same(run(tmp_path / "run"), run())


def test_saving_takes_a_small_part_of_the_time(tmp_path, monkeypatch):
    saved, original = [], checkpoint.Checkpoint.save

    def slow(self, *arguments):
        saved.append(1)
        original(self, *arguments)
        self.took = 1000.0

    monkeypatch.setattr(checkpoint.Checkpoint, "save", slow)
    monkeypatch.setattr(checkpoint, "SHARE", 0.05)
    run(tmp_path / "run")
    assert len(saved) == 2  # the first one, and the last


def test_other_threads_take_no_signals(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(run(tmp_path / "run")))
    thread.start()
    thread.join()
    same(found[0], run())
