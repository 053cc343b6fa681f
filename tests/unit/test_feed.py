"""Batches of a function: made once, in order, under the caller's settings, checked, and never after the run is over."""

import contextvars
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.problem.feed import BatchError, Feed
from ogradient.run import loop

N, B = 40, 8
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -0.5, 0.2])).astype(np.float32)
STARTS = rng.normal(size=(3, 3)).astype(np.float32)

prior = lambda w: -0.5 * jnp.sum(w**2)
likelihood = lambda w, batch: -0.5 * jnp.sum((batch[1] - batch[0] @ w) ** 2)


def fetch(step):
    rows = np.random.default_rng(step).integers(0, N, B)
    return X[rows], Y[rows]


def fed(batch_fn=fetch, likelihood=likelihood):
    return og.posterior(prior, likelihood, batch_fn, num_rows=N)


CURRENT = [fetch]  # what the problem below takes its batches from: one compilation serves many tests
PROBLEM = fed(lambda step: CURRENT[0](step))
ALGORITHM = og.langevin(PROBLEM, 0.003)


def run(source=fetch, starts=STARTS, **changes):
    """Draws of a problem, or of the problem above with batches from a function."""
    if callable(source):
        CURRENT[0], problem, algorithm = source, PROBLEM, ALGORITHM
    else:
        problem, algorithm = source, og.langevin(source, 0.003)
    arguments = {"num_warmup": 0, "num_samples": 20, "progress": False} | changes
    return og.sample(0, problem, starts, algorithm=algorithm, **arguments)


def changed(step, change):
    return lambda t: change(*fetch(t)) if t == step else fetch(t)


def fail(*batch):
    raise OSError("disk gone")


def spoil(x, y):
    x[3:5, 1] = np.nan, np.inf
    return x, y


SPOILT = r"batch_fn\({step}\)\[0\] has NaN or infinite values in 2 of 8 rows \(the first is row 3\)"
DIFFERS = r"batch_fn\({step}\) differs in structure, shape or dtype from batch_fn\(0\): "
FAILURES = {
    "error": (fail, r"batch_fn\({step}\) failed with OSError: disk gone\."),
    "not finite": (spoil, SPOILT),
    "too large": (lambda x, y: (x * 1e300, y), r"batch_fn\({step}\)\[0\] has NaN or infinite values in 8 of 8 rows"),
    "rows": (lambda x, y: (x[:-1], y[:-1]), DIFFERS + r".*float32\[7, 3\], float32\[7\] instead of .*float32\[8, 3\]"),
    "dtype": (lambda x, y: (x, y.astype(int)), DIFFERS + r".*int32\[8\] instead of"),
    "structure": (lambda x, y: [x, y], DIFFERS + r"PyTreeDef\(\[\*, \*\]\).* instead of PyTreeDef\(\(\*, \*\)\)"),
    "text": (lambda x, y: (x, y.astype(str)), DIFFERS),
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", FAILURES)
def test_a_batch_that_cannot_be_used_leaves_the_draws_before_it(kind):
    change, message = FAILURES[kind]
    with pytest.raises(
        og.SamplingError, match=message.format(step=70) + r".*Stopped after step 70; .*\.trace"
    ) as caught:
        run(changed(70, change), num_samples=90)
    trace = caught.value.trace
    assert trace.num_draws == 70
    assert isinstance(caught.value.__cause__, OSError) == (kind == "error")
    np.testing.assert_array_equal(run(fetch, None, num_samples=20, resume=trace)["x"], run(num_samples=90)["x"])


@pytest.mark.parametrize("change", [fail, spoil])
@pytest.mark.parametrize("step", [1, 4, 5])
def test_a_batch_that_cannot_be_used_before_any_draw_was_kept(change, step):
    message = rf"batch_fn\({step}\).* Stopped after step {step}; no draw was kept yet"
    with pytest.raises(og.SamplingError, match=message) as caught:
        run(changed(step, change), num_warmup=5, thinning=2)
    assert caught.value.trace.num_draws == 0


LIMITS = {  # of what is fetched or kept together
    "one": {"problem.feed.FEED_STEPS": 1},
    "five": {"problem.feed.FEED_STEPS": 5},
    "few bytes": {"problem.feed.FEED_BYTES": 1},
    "large draws": {"chunk.CHUNK_BYTES": 200},  # of which only a few fit into the buffer of a chunk
    "as it is": {},
}


@pytest.mark.parametrize(
    ("limits", "chunk_size"),
    [
        ("one", None),
        ("five", None),
        ("five", 3),
        ("few bytes", None),
        ("large draws", None),
        ("as it is", 1),
        ("as it is", 7),
    ],
)
def test_neither_lots_nor_chunks_change_draws_or_calls(limits, chunk_size, monkeypatch):
    calls, threads = [], set()

    def batch_fn(step):
        calls.append(step)
        threads.add(threading.current_thread().name)
        return fetch(step)

    whole = run(num_samples=80)
    for name, value in LIMITS[limits].items():
        monkeypatch.setattr(f"ogradient.{name}", value)
    np.testing.assert_array_equal(run(batch_fn, num_samples=80, chunk_size=chunk_size)["x"], whole["x"])
    assert calls == list(range(80))
    assert threads == {"ogradient-feed_0"}


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_no_batch_is_made_but_for_the_steps_of_the_run(chunk_size):
    calls = []
    batch_fn = lambda step: (calls.append(step), fetch(step))[1]
    part = run(batch_fn, num_warmup=5, num_samples=40, thinning=2, chunk_size=chunk_size)
    assert set(calls) == set(range(85))
    calls.clear()
    run(batch_fn, None, num_samples=3, thinning=2, resume=part, chunk_size=chunk_size)
    assert set(calls) == set(range(85, 91))


def test_batch_fn_may_fill_the_same_array_again_and_again():
    x, y = (leaf.copy() for leaf in fetch(0))

    def batch_fn(step):
        x[:], y[:] = fetch(step)
        return x, y

    np.testing.assert_array_equal(run(batch_fn)["x"], run()["x"])


def test_the_next_lot_is_on_the_device_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr("ogradient.problem.feed.FEED_STEPS", 4)
    CURRENT[0] = fetch
    feed = Feed(PROBLEM)
    feed.start(2, 9)
    assert feed.left(2) == 4
    lot, end, failure = feed.coming.result(timeout=30)
    assert (end, failure) == (9, None)
    for leaf, *expected in zip(lot, *(fetch(t) for t in (6, 7, 8)), strict=True):
        assert isinstance(leaf, jax.Array)
        np.testing.assert_array_equal(leaf[:3], expected)
    assert (feed.left(4), feed.left(6), feed.left(8)) == (2, 3, 1)
    feed.close()


# The end of a run


class Gate:
    """A batch_fn whose calls are counted, and held up from one step on until the gate opens."""

    def __init__(self, step):
        self.step, self.calls, self.now, self.most = step, 0, 0, 0
        self.reached, self.opened, self.lock = threading.Event(), threading.Event(), threading.Lock()

    def __call__(self, step):
        with self.lock:
            self.calls, self.now = self.calls + 1, self.now + 1
            self.most = max(self.most, self.now)
        if step >= self.step:
            self.reached.set()
            assert self.opened.wait(30)
        with self.lock:
            self.now -= 1
        return fetch(step)


def stop_when_reached(monkeypatch, gate, error):
    """The first chunk after the gate is reached ends in an error; the gate opens once the feed is told to stop."""
    chunk, close = loop.Run._chunk, Feed.close

    def failing(self, steps, capacity):
        result = chunk(self, steps, capacity)
        if steps and not gate.opened.is_set():
            assert gate.reached.wait(30)
            raise error
        return result

    def closing(self, *arguments):
        threading.Thread(target=lambda: (self.stop.wait(30), gate.opened.set())).start()
        close(self, *arguments)

    monkeypatch.setattr(loop.Run, "_chunk", failing)
    monkeypatch.setattr(Feed, "close", closing)


def feeding():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ogradient-feed")]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space")], ids=["Ctrl-C", "error"])
def test_no_call_of_batch_fn_outlives_the_run(error, monkeypatch):
    gate = Gate(70)  # in the second lot, while the first is used
    stop_when_reached(monkeypatch, gate, error)
    if isinstance(error, KeyboardInterrupt):
        with pytest.warns(RuntimeWarning, match="interrupted: 64 draws"):
            trace = run(gate, num_samples=1000)
    else:
        with pytest.raises(og.SamplingError, match="OSError: no space. Stopped after step 64") as caught:
            run(gate, num_samples=1000)
        assert caught.value.__cause__ is error
        trace = caught.value.trace
    assert (gate.now, gate.calls, feeding()) == (0, 71, [])
    time.sleep(0.02)
    assert gate.calls == 71
    resumed = run(gate, None, num_samples=20, resume=trace)
    np.testing.assert_array_equal(resumed["x"], run(num_samples=84)["x"])
    assert gate.most == 1


def test_no_call_of_batch_fn_outlives_a_sampling_error():
    calls = []
    steep = lambda w, batch: jnp.where(batch[1][0] == 7, jnp.nan, 1.0) * likelihood(w, batch)
    seven = lambda t: (fetch(t)[0], np.full(B, 7 if t == 70 else 0, np.float32))
    problem = fed(lambda t: (calls.append(t), seven(t))[1], steep)
    with pytest.raises(og.SamplingError, match="NON_FINITE"):
        run(problem, num_samples=10_000, chunk_size=8)
    made = len(calls)
    assert feeding() == []
    time.sleep(0.02)
    assert len(calls) == made < 300


# The caller's settings


def test_batch_fn_sees_the_precision_of_the_caller():
    seen = set()

    def batch_fn(step):
        x = jax.random.normal(jax.random.key(step), (B, 3))
        seen.add(x.dtype)
        return x, x[:, 0]

    with jax.enable_x64(True):
        problem = fed(batch_fn)
        trace = run(problem, STARTS.astype(float))
        assert seen == {np.dtype("float64")}
        lot = Feed(problem)
        lot.start(0, 3)
        lot.left(0)
        np.testing.assert_array_equal(lot.batches[1][0][2], batch_fn(2)[0])
        lot.close()
        single = fed(lambda t: tuple(leaf.astype(jnp.float32 if t == 3 else float) for leaf in batch_fn(t)))
        with pytest.raises(og.SamplingError, match=r"batch_fn\(3\) differs .*float32.* instead of .*float64"):
            run(single, STARTS.astype(float))
    assert trace["x"].dtype == np.float64


def test_batch_fn_sees_the_other_settings_of_the_caller():
    who, seen = contextvars.ContextVar("who", default="nobody"), []

    def batch_fn(step):
        config = jax.config
        now = config.jax_default_device, config.jax_default_prng_impl, config.jax_numpy_rank_promotion
        seen.append((who.get(), *now, config.jax_debug_nans, np.geterr()["over"]))
        return fetch(step)

    device = jax.devices()[-1]
    who.set("me")
    with (
        jax.default_device(device),
        jax.default_prng_impl("rbg"),
        jax.numpy_rank_promotion("warn"),
        jax.debug_nans(True),
    ):
        CURRENT[0] = batch_fn
        with np.errstate(over="raise"):
            feed = Feed(PROBLEM)
            feed.start(0, 3)
        assert feed.left(0) == 3
        feed.close()
    assert set(seen) == {("me", device, "rbg", "warn", True, "raise")}


# Containers


class Rows:
    """A container that == tells apart by identity."""

    def __init__(self, x, y):
        self.x, self.y = x, y


jax.tree_util.register_pytree_with_keys(
    Rows,
    lambda rows: (((jax.tree_util.GetAttrKey("x"), rows.x), (jax.tree_util.GetAttrKey("y"), rows.y)), None),
    lambda _, leaves: Rows(*leaves),
)


def test_batches_in_a_container_without_equality():
    problem = fed(lambda t: Rows(*CURRENT[0](t)), lambda w, batch: likelihood(w, (batch.x, batch.y)))
    expected = run()
    np.testing.assert_array_equal(run(problem)["x"], expected["x"])
    CURRENT[0] = changed(5, spoil)
    with pytest.raises(og.SamplingError, match=r"batch_fn\(5\)\.x has NaN .*first is row 3"):
        run(problem)


def test_half_precision_and_whole_numbers_are_checked_as_well():
    def batch_fn(step):
        x = jnp.asarray(fetch(step)[0], jnp.bfloat16)
        return {"x": x.at[2].set(jnp.nan) if step == 5 else x, "n": np.arange(B) + step}

    feed = Feed(fed(batch_fn, lambda w, batch: 0.0))
    feed.start(0, 20)
    assert feed.left(0) == 5
    np.testing.assert_array_equal(feed.batches[1]["n"][:5], np.arange(B) + np.arange(5)[:, None])
    with pytest.raises(BatchError, match=r"batch_fn\(5\)\['x'\] has NaN or infinite values in 1 of 8 rows .* row 2"):
        feed.left(5)
    feed.close()
