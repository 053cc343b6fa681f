"""Checkpoints: what is the same call and what is not, and what a finished one gives back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ogradient as og
from ogradient.run import checkpoint
from ogradient.warmup import chmc

STARTS = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
PLAIN = og.Problem(lambda x: -0.5 * jnp.sum(x**2))
CUBIC = og.problems.cubic().problem
SCALE, CENTRE = 1.0, jnp.zeros(2)


def run(path, problem=PLAIN, starts=STARTS, make=lambda p: og.langevin(p, 0.01), **changes):
    arguments = {"num_warmup": 5, "num_samples": 20, "chunk_size": 6, "progress": False} | changes
    algorithm = arguments.pop("algorithm", make)
    algorithm = algorithm(problem) if callable(algorithm) and not hasattr(algorithm, "step") else algorithm
    return og.sample(0, problem, starts, algorithm=algorithm, checkpoint=path, checkpoint_every=0, **arguments)


@pytest.fixture(autouse=True)
def saving_after_every_chunk(monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)


def of_a_global(number, array):
    names = {"jnp": jnp, "scale": number, "centre": jnp.full(2, array)}
    exec("def logdensity(x): return -0.5 * jnp.sum((x - centre) ** 2) / scale", names)
    return og.Problem(names["logdensity"])


def of_a_dict(number):
    settings = {"scale": number}
    return og.Problem(lambda x: -0.5 * jnp.sum(x**2) / settings["scale"])


class ForeignState(NamedTuple):
    position: jax.Array


class Model:
    def __init__(self, number):
        self.number = number

    def logdensity(self, x):
        return -0.5 * jnp.sum(x**2) / self.number

    __call__ = logdensity


def of_a_support(support):
    return og.Problem(lambda x: -0.5 * jnp.sum(x**2), support=support)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (of_a_global(1.0, 0.0), of_a_global(5.0, 0.0)),
        (of_a_global(1.0, 0.0), of_a_global(1.0, 3.0)),
        (of_a_dict(1.0), of_a_dict(5.0)),
        (og.Problem(Model(1.0).logdensity), og.Problem(Model(5.0).logdensity)),
        (og.Problem(Model(1.0)), og.Problem(Model(5.0))),
        (of_a_support(og.positive), of_a_support(og.interval(0.0, 2.0))),
        (of_a_support(og.interval(0.0, 2.0)), of_a_support(og.interval(0.0, 2.5))),
    ],
)
def test_another_law_is_refused(one, other, tmp_path):
    # Both supports have 0 at 1.
    starts = np.ones((8, 2), np.float32)
    run(tmp_path, one, starts)
    with pytest.raises(ValueError, match="is of another run: .*remove the folder"):
        run(tmp_path, other, starts)


def test_what_a_function_counts_is_not_what_it_says(tmp_path):
    calls, cache = 0, None

    def logdensity(x):
        nonlocal calls, cache
        calls, cache = calls + 1, jnp.ones(2) if cache is None else cache
        return -0.5 * jnp.sum(x**2)

    problem = og.Problem(logdensity)
    first = run(tmp_path, problem)
    assert calls > 0
    np.testing.assert_array_equal(run(tmp_path, problem)["x"], first["x"])


def test_settings_that_are_functions_and_algorithms_from_elsewhere(tmp_path):
    bent = lambda t, late=0.01: jnp.where((t > 10) & (t < 100), late, 0.01)
    run(tmp_path / "one", make=lambda p: og.langevin(p, bent))
    with pytest.raises(ValueError, match="algorithm was"):
        run(tmp_path / "one", make=lambda p: og.langevin(p, lambda t: bent(t, 0.02)))

    def foreign(step_size):
        def step(key, state):
            x = state.position + step_size * jax.random.normal(key, state.position.shape)
            return state._replace(position=x), ()

        return og.SamplingAlgorithm(lambda position, rng_key=None: ForeignState(position), step)

    run(tmp_path / "two", algorithm=foreign(0.1))
    run(tmp_path / "two", algorithm=foreign(0.1))
    with pytest.raises(ValueError, match="algorithm was"):
        run(tmp_path / "two", algorithm=foreign(3.0))


def test_precision_names_and_keys_are_part_of_a_call(tmp_path):
    starts = STARTS.astype(np.float64)
    run(tmp_path / "x", starts=starts)
    with jax.enable_x64(True), pytest.raises(ValueError, match="is of another run"):
        run(tmp_path / "x", starts=starts)
    density = lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
    problem = og.Problem(density)
    run(tmp_path / "names", problem, {"a": STARTS})
    with pytest.raises(ValueError, match="initial_positions are others"):
        run(tmp_path / "names", problem, {"b": STARTS})
    run(tmp_path / "tolerance", CUBIC, algorithm="o_kinetic", tolerance=np.float32(0.05))
    run(tmp_path / "tolerance", CUBIC, algorithm="o_kinetic", tolerance=float(np.float32(0.05)))


def test_a_finished_call_gives_back_all_that_it_gave(tmp_path, monkeypatch):
    label = lambda x: x[0] > 0
    with pytest.warns(og.ConvergenceWarning):
        first = run(tmp_path, component_fn=label)
    monkeypatch.setattr(checkpoint.Run, "_chunk", lambda *_: pytest.fail("nothing is left to compute"))
    with pytest.warns(og.ConvergenceWarning):
        second = run(tmp_path, component_fn=label)
    assert jax.tree.structure(first.state) == jax.tree.structure(second.state)
    jax.tree.map(np.testing.assert_array_equal, first.sample_stats, second.sample_stats)
    with pytest.raises(ValueError, match="has 20 draws already, more than num_samples=7"):
        run(tmp_path, num_samples=7)


def test_a_run_that_failed_fails_again(tmp_path):
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2) + jnp.where(x[0] > 1.8, jnp.nan, 0.0))
    starts = np.zeros((8, 2), np.float32)
    said = []
    for _ in range(3):
        with pytest.raises(og.SamplingError, match="NON_FINITE") as error:
            run(tmp_path, problem, starts, make=lambda p: og.langevin(p, 0.05), num_samples=200)
        said.append((str(error.value), error.value.trace.num_draws))
    assert len(set(said)) == 1
    with pytest.warns(RuntimeWarning, match="NON_FINITE"):
        trace = run(tmp_path, problem, starts, make=lambda p: og.langevin(p, 0.05), num_samples=200, throw=False)
    assert trace.num_draws == 200


def test_files_of_others_stay(tmp_path):
    (tmp_path / "mine").mkdir()
    np.savez(tmp_path / "mine" / "data.npz", a=np.ones(3))
    with pytest.raises(FileExistsError, match="holds data.npz"):
        run(tmp_path / "mine")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["data.npz"]
    path = tmp_path / "run"
    run(path, num_samples=10)
    for name in ("data.npz", "state-of-things.npz", "notes.lock"):
        (path / name).write_bytes(b"mine")
    left = path / ".draws-7.npz.partial-host-1-00000000"
    left.write_bytes(b"what a killed process left")
    run(path)
    assert {"data.npz", "state-of-things.npz", "notes.lock"} <= {file.name for file in path.iterdir()}
    assert not left.exists()


def test_a_call_that_is_refused_leaves_no_folder(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="algorithm"):
        run(tmp_path / "a", algorithm="no such sampler")
    with pytest.raises((TypeError, ValueError), match="array"):
        run(tmp_path / "b", starts=object())
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("HOME", str(tmp_path))
    run("~/deep/run")
    assert (tmp_path / "deep" / "run" / checkpoint.HEADER).exists()


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("tuned", [False, True])
def test_an_exception_right_after_the_header_writes_nothing_twice(tuned, at, tmp_path, monkeypatch):
    call = {"problem": og.problems.ellipse().problem, "num_warmup": None, "algorithm": None} if tuned else {}
    whole = run(tmp_path / "whole", **call)
    sweeps, original = [], checkpoint.Checkpoint._sweep

    def broken(self):
        sweeps.append(1)
        if len(sweeps) == 1 + at:  # the first is at the door
            raise KeyboardInterrupt
        original(self)

    with monkeypatch.context() as context:
        context.setattr(checkpoint.Checkpoint, "_sweep", broken)
        with pytest.raises(KeyboardInterrupt) if tuned else pytest.warns(RuntimeWarning, match="interrupted"):
            run(tmp_path / "run", **call)
    trace = run(tmp_path / "run", **call)
    np.testing.assert_array_equal(trace["x"], whole["x"])
    assert trace.provenance["settings"] == whole.provenance["settings"]


def test_no_memory_for_a_checkpoint_keeps_the_draws(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError("none left")

    with monkeypatch.context() as context:
        context.setattr(checkpoint, "write_arrays", full)
        with pytest.raises(og.SamplingError, match="none left.*the same call goes on") as error:
            run(tmp_path)
    assert error.value.trace.num_draws > 0


def test_windows_of_another_version_are_run_anew(tmp_path, monkeypatch):
    ellipse = og.problems.ellipse().problem
    call = {"problem": ellipse, "num_warmup": None, "algorithm": None}

    def killed_in_tuning(path):
        with monkeypatch.context() as context:
            original, windows = checkpoint.Journal.add, []

            def add(self, *arguments):
                original(self, *arguments)
                windows.append(1)
                if len(windows) == 8:
                    raise KeyboardInterrupt

            context.setattr(checkpoint.Journal, "add", add)
            with pytest.raises(KeyboardInterrupt):
                run(path, **call)

    killed_in_tuning(tmp_path / "one")
    monkeypatch.setattr(chmc, "METRIC_WINDOWS", (20, 30, 40, 60))
    whole = run(tmp_path / "whole", **call)
    trace = run(tmp_path / "one", **call)
    np.testing.assert_array_equal(trace["x"], whole["x"])
    killed_in_tuning(tmp_path / "two")
    other = checkpoint.versions() | {"ogradient": "0.0.1"}
    monkeypatch.setattr(checkpoint, "versions", lambda: other)
    monkeypatch.setattr(checkpoint.Checkpoint, "_read", lambda *_: pytest.fail("of another version"))
    run(tmp_path / "two", **call)


@pytest.mark.usefixtures("lenient_promotion")
def test_numbers_that_numpy_does_not_know(tmp_path):
    optimizer = optax.adam(0.05, mu_dtype=jnp.bfloat16)
    call = {"make": lambda p: og.o_svgd(p, optimizer=optimizer), "problem": CUBIC, "starts": STARTS[None]}
    run(tmp_path / "part", **call, num_samples=10)
    np.testing.assert_array_equal(run(tmp_path / "part", **call)["x"], run(tmp_path / "whole", **call)["x"])


def test_the_share_counts_all_that_is_written(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    original, took = checkpoint.write_arrays, []

    def slow(path, arrays):
        now[0] += 1.0
        original(path, arrays)

    write = checkpoint.Checkpoint.write_header

    def noted(self, header):
        write(self, header)
        took.append(self.took)

    monkeypatch.setattr(checkpoint, "write_arrays", slow)
    monkeypatch.setattr(checkpoint.Checkpoint, "write_header", noted)
    run(tmp_path)
    assert took
    assert min(took[1:]) == 2.0  # draws and state
