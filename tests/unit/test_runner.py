"""og.sample: draws do not depend on chunks, resuming or company; nothing is lost when things go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.warmup import stages

KNOWN = og.problems.cubic()
PROBLEM = KNOWN.problem
ALGORITHM = og.o_langevin(PROBLEM, 0.01)
STARTS = KNOWN.start_off(jax.random.key(1), 3)


def run(**changes):
    arguments = {"algorithm": ALGORITHM, "num_warmup": 7, "num_samples": 20, "thinning": 3, "progress": False} | changes
    return og.sample(arguments.pop("seed", 0), PROBLEM, arguments.pop("starts", STARTS), **arguments)


@pytest.mark.parametrize("chunk_size", [1, 5, 13, 1000])
def test_chunk_size_never_changes_a_draw(chunk_size):
    reference, trace = run(), run(chunk_size=chunk_size)
    np.testing.assert_array_equal(trace["x"], reference["x"])
    np.testing.assert_array_equal(trace.sample_stats["equality"], reference.sample_stats["equality"])
    np.testing.assert_array_equal(trace.status_counts, reference.status_counts)


def test_small_buffers_never_change_a_draw(monkeypatch):
    reference = run()
    monkeypatch.setattr("ogradient.chunk.CHUNK_BYTES", 1)
    np.testing.assert_array_equal(run()["x"], reference["x"])


@pytest.mark.parametrize("first", [1, 12, 19])
def test_resuming_equals_running_through(first, tmp_path):
    whole = run()
    part = run(num_samples=first)
    for trace in (part, og.load(part.save(tmp_path / "part.zarr"))):
        resumed = run(num_samples=20 - first, resume=trace, starts=None)
        np.testing.assert_array_equal(resumed["x"], whole["x"])
        np.testing.assert_array_equal(resumed.sample_stats["equality"], whole.sample_stats["equality"])
        np.testing.assert_array_equal(resumed.status_counts, whole.status_counts)
        assert resumed.provenance["num_steps"] == whole.provenance["num_steps"] == 67


def test_schedules_resume_where_they_were():
    algorithm = og.o_langevin(PROBLEM, lambda t: 0.01 * (1.0 + t.astype(jnp.float32)) ** -0.55)
    whole = run(algorithm=algorithm)
    resumed = run(algorithm=algorithm, num_samples=8, resume=run(algorithm=algorithm, num_samples=12))
    np.testing.assert_array_equal(resumed["x"], whole["x"])


def test_resuming_refuses_another_run():
    trace = run(num_samples=2)
    with pytest.raises(ValueError, match="same seed"):
        run(resume=trace, seed=1)
    with pytest.raises(ValueError, match="thinning=3"):
        run(resume=trace, thinning=4)
    with pytest.raises(ValueError, match="o_langevin with .*'step_size': 0.01"):
        run(resume=trace, algorithm=og.o_langevin(PROBLEM, 0.02))
    with pytest.raises(ValueError, match="the algorithm given is langevin"):
        run(resume=trace, algorithm=og.langevin(PROBLEM, 0.01))
    with pytest.raises(ValueError, match=r"resume must be a trace; got str. og.load\(path\)"):
        run(resume="trace.zarr")
    shifted = og.Problem(PROBLEM.logdensity_fn, equality=lambda x: PROBLEM.equality(x) + 0.01)
    with pytest.raises(ValueError, match=r"equality at the last draws of the trace differs .* by 0.01"):
        og.sample(0, shifted, resume=trace, algorithm=og.o_langevin(shifted, 0.01))
    more = og.Problem(PROBLEM.logdensity_fn, PROBLEM.equality, inequality=lambda x: x[0] - 100)
    with pytest.raises(ValueError, match="inequality had another shape, or none"):
        og.sample(0, more, resume=trace, algorithm=og.o_langevin(more, 0.01))


def test_resuming_thins_as_before():
    trace = run(num_samples=4)
    assert trace.provenance["thinning"] == 3
    resumed = og.sample(
        0, PROBLEM, resume=trace, algorithm=og.o_langevin(PROBLEM, 0.01), num_samples=16, progress=False
    )
    np.testing.assert_array_equal(resumed["x"], run(num_samples=20)["x"])


def test_a_name_that_is_not_tuned_is_refused_before_anything_else():
    with pytest.raises(
        ValueError, match=r"algorithm must be an algorithm, such as og.o_svgd\(problem, 0.1\), or one of"
    ):
        og.sample(0, PROBLEM, STARTS[None], algorithm="o_svgd")


def test_resuming_refuses_another_precision(x64):
    with jax.enable_x64(False):
        trace = run(num_samples=2)
    double = run(num_samples=2, starts=STARTS.astype(jnp.float64))
    with jax.enable_x64(False), pytest.raises(ValueError, match="another precision"):
        run(resume=double, starts=None)
    assert trace["x"].dtype == np.float32
    assert double["x"].dtype == np.float64


def test_a_chain_does_not_depend_on_its_company():
    many = run(starts=KNOWN.start_off(jax.random.key(1), 3))
    two, one = run(starts=STARTS[:2]), run(starts=STARTS[:1])
    assert one["x"].shape == (1, 20, 2)
    np.testing.assert_array_equal(two["x"][0], one["x"][0])
    np.testing.assert_allclose(many["x"][:2], two["x"], rtol=1e-4, atol=1e-4)


def test_warm_up_and_thinning_pick_the_steps_they_say():
    everything = run(num_warmup=0, num_samples=67, thinning=1)
    np.testing.assert_array_equal(run()["x"], everything["x"][:, 7 + 2 :: 3][:, :20])


def test_keys_are_by_chain_and_absolute_step():
    trace = run(num_warmup=0, num_samples=2, thinning=1)
    state, step = ALGORITHM.init(STARTS[1]), jax.jit(ALGORITHM.step)
    for t in range(2):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), t)
        state, _ = step(key, state)
        np.testing.assert_allclose(trace["x"][1, t], state.position, rtol=1e-5)
    np.testing.assert_array_equal(run(seed=jax.random.key(0))["x"], run()["x"])
    assert not np.array_equal(run(seed=1)["x"], run()["x"])


def test_one_compilation_per_run():
    def traces(**arguments):
        calls = []

        def counted(x):
            calls.append(1)
            return PROBLEM.logdensity_fn(x)

        problem = og.Problem(counted, PROBLEM.equality)
        og.sample(0, problem, STARTS, algorithm=og.o_langevin(problem, 0.01), progress=False, **arguments)
        return len(calls)

    assert traces(num_samples=5, num_warmup=5) == traces(num_samples=300, num_warmup=50, thinning=2, chunk_size=7)


def test_stored_constraint_values_are_those_of_the_draws():
    trace = run()
    values = trace.apply(PROBLEM.equality_value)
    np.testing.assert_allclose(trace.sample_stats["equality"], values, atol=1e-5)
    assert set(trace.sample_stats) == {"lp", "equality", "status"}
    np.testing.assert_allclose(trace.sample_stats["lp"], trace.apply(PROBLEM.logdensity), rtol=1e-4, atol=1e-5)


def explosive(**arguments):
    problem = og.Problem(lambda x: jnp.sum(x**4), equality=lambda x: x[0] - x[1])
    algorithm = og.o_langevin(problem, 0.05)
    return og.sample(
        0, problem, STARTS, algorithm=algorithm, num_warmup=0, num_samples=200, progress=False, **arguments
    )


def test_a_blow_up_keeps_the_last_good_state_and_the_draws():
    with pytest.raises(
        og.SamplingError, match=r"NON_FINITE.*step size is too large \(halve it.*in the exception"
    ) as caught:
        explosive()
    trace = caught.value.trace
    assert trace.num_draws < 200
    assert np.isfinite(trace["x"]).all()
    assert og.Status.NON_FINITE in trace.problems()
    assert "NON_FINITE" in repr(trace)


def test_without_throw_it_warns_and_goes_on():
    with pytest.warns(RuntimeWarning, match="were NON_FINITE"):
        trace = explosive(throw=False)
    assert trace.num_draws == 200
    assert np.isfinite(trace["x"]).all()


def test_a_blow_up_in_warm_up_says_that_nothing_was_kept():
    problem = og.Problem(lambda x: jnp.sum(x**4), equality=lambda x: x[0] - x[1])
    with pytest.raises(og.SamplingError, match="no draw was kept yet") as caught:
        og.sample(0, problem, STARTS, algorithm=og.o_langevin(problem, 0.05), num_warmup=500, progress=False)
    assert caught.value.trace.num_draws == 0
    assert "0 draws" in repr(caught.value.trace)


def test_an_interrupt_returns_the_draws_so_far(monkeypatch):
    from ogradient.run import loop

    original, calls = loop.Run._chunk, []

    def interrupt_fourth(self, *arguments):
        calls.append(1)
        if len(calls) == 4:  # the first call only compiles
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(loop.Run, "_chunk", interrupt_fourth)
    with pytest.warns(RuntimeWarning, match="interrupted: 11 draws"):
        trace = run(chunk_size=20)
    np.testing.assert_array_equal(run(num_samples=9, resume=trace)["x"], run()["x"])


def test_progress_is_silent_when_told(capsys):
    run(progress=False)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_progress_shows_what_is_going_on(capsys, monkeypatch):
    from tqdm.auto import tqdm

    at_once = {"delay": 0, "mininterval": 0}
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **options: tqdm(**options | at_once))
    run(chunk_size=10, num_warmup=25, progress=True)
    shown = capsys.readouterr().err
    for word in ("o_langevin(0.01)", "compiling", "warm-up", "sampling, max |g|"):
        assert word in shown


def test_default_call_lands_tunes_and_samples_exactly(capsys):
    known = og.problems.ellipse()
    trace = og.sample(0, known.problem, known.start_off(jax.random.key(0), 16), num_samples=500)
    assert "og.sample chose chmc, exact on the set" in capsys.readouterr().err
    settings, table = trace.provenance["settings"], trace.summary()
    assert trace.provenance["algorithm"] == "chmc"
    assert 0.05 < settings["step_size"] < 5
    assert len(settings["inverse_mass"]) == 2
    assert 0.6 < trace.sample_stats["acceptance_rate"].mean() < 0.95
    assert table.loc["|equality[0]|", "max"] < 1e-5
    assert table["r_hat"].max() < 1.01
    assert table["ess_bulk"].min() > 400
    resumed = og.sample(0, known.problem, resume=trace, num_samples=5, progress=False)
    assert resumed.provenance["settings"] == settings


def test_resuming_refuses_another_measure():
    trace = run(num_samples=2)
    other = og.problems.cubic("hausdorff").problem
    with pytest.raises(ValueError, match="in the conditional measure"):
        og.sample(0, other, resume=trace, algorithm=og.o_langevin(other, 0.01))


def test_an_algorithm_of_another_problem_is_refused():
    other = og.problems.cubic().problem
    with pytest.raises(ValueError, match="built for another problem"):
        og.sample(0, other, STARTS, algorithm=ALGORITHM)


@pytest.mark.parametrize("name", ["o_langevin", "o_kinetic", "langevin", "o_svgd"])
def test_leaving_the_support_is_noticed(name):
    """Log π = −∞ for x < 0, with a gradient that stays finite there."""
    problem = og.Problem(lambda x: jnp.where(x[0] > 0, -x[0], -jnp.inf), equality=lambda x: x[1] - 1)
    starts = jax.random.uniform(jax.random.key(0), (1, 9, 2) if name == "o_svgd" else (9, 2), minval=0.01, maxval=0.1)
    with pytest.raises(og.SamplingError, match="left the support"):
        og.sample(
            0, problem, starts, algorithm=og.SAMPLERS[name](problem, 0.5), num_warmup=0, num_samples=300, progress=False
        )


@pytest.mark.parametrize("scale", [1e-2, 1e2])
def test_the_step_size_follows_the_scale_of_the_problem(scale):
    """X → s·x turns η into s²η, h into s·h and the friction into γ/s; rewriting g changes nothing. Powers of two, so within 4."""
    problem = og.Problem(
        lambda x: 0.8 * x[0] / scale, equality=lambda x: 100 * ((x[0] / scale) ** 2 / 9 + (x[1] / scale) ** 2 - 1)
    )
    from ogradient.warmup.near import tune_o_kinetic, tune_o_langevin

    starts = scale * jnp.array([[3.0, 1.0], [1.0, -2.0], [-4.0, 0.5]])
    eta = tune_o_langevin(jax.random.key(0), problem, starts).step_size
    assert 2**-11 <= eta / scale**2 <= 2**-6
    h, friction, _ = tune_o_kinetic(jax.random.key(0), problem, starts)
    assert 2**-4 <= h / scale <= 2**-1
    assert 0.5 <= friction * scale <= 2  # 1.1, 1 over the standard deviation of x


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("o_langevin", 1e-3), pytest.param("o_langevin", 1e-4, marks=pytest.mark.slow), ("o_kinetic", 1e-5)],
)
def test_a_tolerance_on_g_decides_the_step_size(name, tolerance, capsys):
    known = og.problems.ellipse()
    starts = known.start_off(jax.random.key(0), 16)
    keep = {"num_samples": 400, "progress": True}
    trace = og.sample(0, known.problem, starts, algorithm=name, tolerance=tolerance, **keep)
    settings, shown = trace.provenance["settings"], capsys.readouterr().err
    assert trace.provenance["algorithm"] == name
    assert f"step_size={settings['step_size']:.3g}, " in shown
    if name == "o_langevin":
        assert settings["alpha"] * settings["step_size"] == pytest.approx(1)
        assert f"alpha={settings['alpha']:.3g}, beta=0" in shown
    mean = np.abs(trace.sample_stats["equality"]).mean()
    assert tolerance / 4 < mean <= 1.1 * tolerance  # powers of two; the chains see more of the set than the warm-up did
    resumed = og.sample(0, known.problem, resume=trace, algorithm=name, num_samples=2, progress=False)
    assert resumed.num_draws == 402


def test_names_and_tolerances_that_cannot_be_meant():
    keep = {"progress": False}
    with pytest.raises(ValueError, match="tolerance must be one finite, positive number"):
        og.sample(0, PROBLEM, STARTS, tolerance=0.0, **keep)
    with pytest.raises(ValueError, match="tolerance is for settings that are tuned here"):
        og.sample(0, PROBLEM, STARTS, algorithm=ALGORITHM, tolerance=0.1, **keep)
    with pytest.raises(ValueError, match="resume continues a run of o_langevin; got algorithm='chmc'"):
        og.sample(0, PROBLEM, resume=run(num_samples=2, thinning=1), algorithm="chmc", **keep)


def test_tuning_shows_what_it_tries_and_finds_the_same(capsys, monkeypatch):
    from tqdm.auto import tqdm

    monkeypatch.setattr("tqdm.auto.tqdm", lambda **options: tqdm(**options | {"delay": 0, "mininterval": 0}))
    # A look after each transition.
    monkeypatch.setattr(stages, "AT_ONCE", 0.0)
    found = {
        show: og.tune(0, KNOWN.problem, KNOWN.start_off(jax.random.key(0), 8), progress=show)[1:]
        for show in (False, True)
    }
    jax.tree.map(np.testing.assert_array_equal, *found.values())
    shown = capsys.readouterr().err
    for word in ("tuning chmc", "compiling", "trajectories of 3 ×", "og.sample chose chmc"):
        assert word in shown
    near = og.tune(0, KNOWN.problem, KNOWN.start_off(jax.random.key(0), 8), algorithm="o_kinetic")
    assert "tuning o_kinetic: " in capsys.readouterr().err
    assert near.algorithm.step.kernel.name == "o_kinetic"
