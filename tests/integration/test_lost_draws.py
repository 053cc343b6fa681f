"""Whatever ends a run, at whatever moment: the draws that were kept are delivered, and can be gone on from."""

import os
import signal
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.interrupts import Interrupts
from ogradient.run import loop

pytestmark = pytest.mark.usefixtures("ctrl_c")
KNOWN = og.problems.cubic()
PROBLEM = KNOWN.problem
ALGORITHM = og.o_langevin(PROBLEM, 0.01)
STARTS = KNOWN.start_off(jax.random.key(1), 3)
side = lambda x: x[0] > 0


def run(**changes):
    arguments = {"algorithm": ALGORITHM, "num_warmup": 7, "num_samples": 20, "thinning": 3, "progress": False} | changes
    return og.sample(0, PROBLEM, arguments.pop("starts", STARTS), **arguments)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(text="interrupted"):
    return pytest.warns(RuntimeWarning, match=text)


# Ctrl-C


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_while_the_trace_is_put_together(times, monkeypatch):
    assemble = loop.Run.trace

    def pressed(self, *arguments, **options):
        for _ in range(times):
            press()
        return assemble(self, *arguments, **options)

    monkeypatch.setattr(loop.Run, "trace", pressed)
    with interrupted("Ctrl-C came when the draws were made already"):
        trace = run()
    monkeypatch.undo()
    np.testing.assert_array_equal(trace["x"], run()["x"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_while_the_first_is_dealt_with(monkeypatch):
    chunk, assemble = loop.Run._chunk, loop.Run.trace
    monkeypatch.setattr(loop.Run, "_chunk", lambda self, *a: (press() if self.done >= 40 else None, chunk(self, *a))[1])
    monkeypatch.setattr(loop.Run, "trace", lambda self, *a, **k: (press(), assemble(self, *a, **k))[1])
    with interrupted("interrupted: 17 draws"):
        trace = run(chunk_size=20)
    monkeypatch.undo()
    np.testing.assert_array_equal(run(num_samples=3, resume=trace)["x"], run()["x"])


def test_ctrl_c_at_any_line_of_a_chunk():
    """The chunk is finished, and counts."""
    code, whole = loop.Run._chunk.__code__, run()

    def pressed_at(number):
        lines = []

        def at_line(frame, event, _):
            if event == "line" and frame.f_locals.get("done", frame.f_locals["self"].done) == 40:
                lines.append(1)
                if len(lines) == number:
                    press()
            return at_line

        sys.settrace(lambda frame, *_: at_line if frame.f_code is code else None)
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                trace = run(chunk_size=20)
        finally:
            sys.settrace(None)
        return trace, len(lines) >= number, [str(w.message) for w in seen]

    for number in range(1, 100):
        trace, was_pressed, said = pressed_at(number)
        if not was_pressed:
            break
        assert [text.partition(":")[0] for text in said] == ["interrupted"]
        assert trace.num_draws == 17
        resumed = run(num_samples=20 - trace.num_draws, resume=trace)
        np.testing.assert_array_equal(resumed["x"], whole["x"])
        np.testing.assert_array_equal(resumed.status_counts, whole.status_counts)
    assert number > 15


def test_ctrl_c_while_compiling_says_that_nothing_was_kept(monkeypatch):
    monkeypatch.setattr(loop, "capacity_of", lambda *_: press())
    with pytest.raises(og.SamplingError, match="before any draw was kept"):
        run()


def test_a_batch_fn_that_hangs_is_given_up_at_the_second_ctrl_c():
    rows, hang, entered = np.ones((8, 1), np.float32), threading.Event(), threading.Event()

    def batch_fn(step):
        if step >= 70:
            entered.set()
            hang.wait(60)
        return rows

    def user():
        entered.wait(60)
        time.sleep(0.3)
        press()
        time.sleep(0.3)
        press()

    problem = og.posterior(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, x: -0.5 * jnp.sum((x - w[None]) ** 2), batch_fn, num_rows=80
    )
    threading.Thread(target=user).start()
    with interrupted("interrupted: 64 draws"):
        trace = og.sample(
            0, problem, jnp.zeros((2, 1)), algorithm=og.langevin(problem, 1e-3), num_warmup=0, progress=False
        )
    hang.set()
    assert trace.num_draws == 64


def test_other_handlers_and_other_threads_are_left_alone():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with Interrupts() as interrupts:
            press()
        assert (seen, interrupts.waiting) == ([1], 0)
    finally:
        signal.signal(signal.SIGINT, before)
    traces = []
    thread = threading.Thread(target=lambda: traces.append(run()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(traces[0]["x"], run()["x"])


def test_ctrl_c_waits_and_raises_once_where_it_is_allowed():
    with Interrupts() as interrupts:
        press()
        assert interrupts.waiting == 1
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            raise AssertionError
        try:
            with interrupts.allowed():
                press()
        except KeyboardInterrupt:
            press()
        assert interrupts.waiting == 1
    with pytest.raises(KeyboardInterrupt):
        press()


# Errors


@pytest.mark.parametrize(
    "error", [MemoryError("no room"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED"), SystemExit(3), OSError()]
)
def test_an_error_after_the_first_draw_keeps_the_draws(error, monkeypatch):
    chunk = loop.Run._chunk

    def failing(self, steps, capacity):
        if self.done >= 40:
            raise error
        return chunk(self, steps, capacity)

    monkeypatch.setattr(loop.Run, "_chunk", failing)
    with pytest.raises(
        og.SamplingError, match=rf"{type(error).__name__}: .* Stopped after step 40; .*resume"
    ) as caught:
        run(chunk_size=20)
    monkeypatch.undo()
    assert caught.value.__cause__ is error
    np.testing.assert_array_equal(run(num_samples=9, resume=caught.value.trace)["x"], run()["x"])


def test_an_error_before_the_first_draw_is_raised_as_it_is(monkeypatch):
    def failing(self, steps, capacity):
        raise MemoryError("no room")

    monkeypatch.setattr(loop.Run, "_chunk", failing)
    with pytest.raises(MemoryError, match="no room"):
        run()


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), GeneratorExit("over")], ids=repr)
def test_whatever_batch_fn_raises_leaves_the_draws_before_it(error):
    rows = np.ones((8, 1), np.float32)

    def batch_fn(step):
        if step == 70:
            raise error
        return rows

    problem = og.posterior(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, x: -0.5 * jnp.sum((x - w[None]) ** 2), batch_fn, num_rows=80
    )
    with pytest.raises(
        og.SamplingError, match=rf"batch_fn\(70\) failed with {type(error).__name__}.*step 70"
    ) as caught:
        og.sample(0, problem, jnp.zeros((2, 1)), algorithm=og.langevin(problem, 1e-3), num_warmup=0, progress=False)
    assert caught.value.trace.num_draws == 70
    assert caught.value.__cause__ is error


def test_warnings_turned_into_errors_carry_the_draws(monkeypatch):
    assemble = loop.Run.trace
    monkeypatch.setattr(loop.Run, "trace", lambda self, *a, **k: (press(), assemble(self, *a, **k))[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", og.ConvergenceWarning)  # the run is short on purpose
        with pytest.raises(RuntimeWarning, match="Ctrl-C") as caught:
            run()
    assert caught.value.trace.num_draws == 20


# Labels of components


def test_resuming_a_trace_with_components():
    whole = run(component_fn=side)
    part = run(num_samples=12, component_fn=side)
    resumed = run(num_samples=8, resume=part, component_fn=side)
    np.testing.assert_array_equal(resumed.sample_stats["component"], whole.sample_stats["component"])
    np.testing.assert_array_equal(resumed["x"], whole["x"])
    with pytest.warns(RuntimeWarning, match="component in sample_stats of the resumed trace: left out"):
        resumed = run(num_samples=8, resume=part)
    assert "component" not in resumed.sample_stats
    np.testing.assert_array_equal(resumed["x"], whole["x"])


def test_resuming_a_trace_with_numbers_of_the_users_own():
    part = run(num_samples=12)
    part.sample_stats["mine"] = np.zeros((3, 12))
    with pytest.warns(RuntimeWarning, match="mine in sample_stats of the resumed trace: left out"):
        resumed = run(num_samples=8, resume=part)
    np.testing.assert_array_equal(resumed["x"], run()["x"])
    assert set(resumed.sample_stats) == {"lp", "equality", "status"}


def test_a_component_fn_that_cannot_be_used_is_refused_before_the_run():
    def broken(x):
        raise TypeError("my own mistake")

    with pytest.raises(TypeError, match="my own mistake"):
        run(component_fn=broken)
    for wrong in (lambda x: x, lambda x: {"a": x[0]}, lambda x: jax.lax.complex(x[0], x[1])):
        with pytest.raises(ValueError, match="component_fn must return one number or truth value"):
            run(component_fn=wrong)


def test_a_component_fn_that_fails_at_the_end_costs_its_labels_only():
    calls = []

    def fails_later(x):
        calls.append(1)
        if len(calls) > 1:
            raise TypeError("my own mistake")
        return side(x)

    with pytest.warns(RuntimeWarning, match="component_fn ended in TypeError: my own mistake. The draws are whole"):
        trace = run(component_fn=fails_later)
    assert "component" not in trace.sample_stats
    np.testing.assert_array_equal(trace["x"], run()["x"])


# Counts


@pytest.mark.parametrize("kind", [np.int64, np.uint8, int])
def test_counts_of_any_integer_type_can_be_saved(kind, tmp_path):
    counts = {"num_warmup": kind(7), "num_samples": kind(20), "thinning": kind(3), "chunk_size": kind(9)}
    trace = run(**counts)
    loaded = og.load(trace.save(tmp_path / "trace.zarr"))
    assert loaded.provenance["num_warmup"] == 7
    np.testing.assert_array_equal(loaded["x"], run()["x"])


@pytest.mark.parametrize("name", ["num_warmup", "num_samples", "thinning", "chunk_size"])
@pytest.mark.parametrize("value", [True, 2.0, "2", -1, np.float64(3)])
def test_what_is_no_count_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be a whole number of at least"):
        run(**{name: value})


def test_a_run_that_is_interrupted_in_its_warm_up_goes_on(monkeypatch, tmp_path):
    """With the settings that were found, to the bits of a run that was not; also from disk."""
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), lambda x: x[0] ** 2 + 3 * x[1] ** 2 - 1)
    starts = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    settings = {"num_warmup": 100, "num_samples": 20, "chunk_size": 10, "progress": False}
    whole = og.sample(0, problem, starts, **settings)
    chunk = loop.Run._chunk
    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "_chunk", lambda self, *a: (press() if self.done >= 40 else None, chunk(self, *a))[1])
        with pytest.raises(og.SamplingError, match="interrupted after step .* of the warm-up") as caught:
            og.sample(0, problem, starts, **settings)
    early = caught.value.trace
    assert early.num_draws == 0
    with pytest.raises(ValueError, match="no draws"):
        early.summary()
    for trace in (early, og.load(early.save(tmp_path / "early"))):
        resumed = og.sample(0, problem, resume=trace, num_samples=20, progress=False)
        np.testing.assert_array_equal(resumed["x"], whole["x"])
        assert resumed.provenance["settings"] == whole.provenance["settings"]
