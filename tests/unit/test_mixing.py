"""R-hat and ESS of the worst scalars are ArviZ's, found without asking it about all; a run that has not mixed says so."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats

import ogradient as og
from ogradient.diagnostics.mixing import fixed_scalars, scalar_name, screen, worst_mixing
from ogradient.run.separate import warn_if_separate

KNOWN = og.problems.ellipse()
AXES = {"chain_axis": 0, "draw_axis": 1}


def autoregressive(rng, shape, rho):
    x = np.empty(shape)
    x[:, 0] = rng.normal(size=shape[::2])
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * rng.normal(size=shape[::2])
    return x


def a_trace(draws, problem=None, **stats):
    counts = np.zeros((len(draws), len(og.Status)), int)
    counts[:, 0] = draws.shape[1]
    return og.Trace(
        draws,
        stats,
        counts,
        {"algorithm": "draws", "ensemble": False, "obeys": "exact" if "is_accepted" in stats else "near"},
        None,
        problem,
    )


@pytest.mark.parametrize("kind", ["mean of a chain", "spread of a chain", "slow"])
def test_the_worst_scalars_are_found_among_many(kind):
    """One scalar in 300 is bad, in another leaf than the first: the numbers are those of ArviZ asked about every one."""
    rng = np.random.default_rng(0)
    x = autoregressive(rng, (8, 400, 300), 0.3)
    if kind == "mean of a chain":
        x[2, :, 217] += 2
    elif kind == "spread of a chain":
        x[2, :, 217] *= 0.05
    else:
        x[:, :, 217:218] = autoregressive(rng, (8, 400, 1), 0.95)
    variables = {"a": x[..., :100], "b": x[..., 100:].reshape(8, 400, 50, 4)}
    mixing = worst_mixing(variables, screen(variables), np.zeros(300, bool), most=10)
    rhats = [array_stats.rhat(x[..., i], **AXES, method="rank") for i in range(300)]
    sizes = [array_stats.ess(x[..., i], **AXES, method="bulk") for i in range(300)]
    assert mixing.rhat == pytest.approx(max(rhats), rel=1e-12)
    if kind != "spread of a chain":  # whose ESS is not the smallest
        assert mixing.ess == pytest.approx(min(sizes), rel=1e-12)
    assert mixing.by_chance == (kind == "slow")  # slow chains that agree: that is for the ESS to say
    assert scalar_name(variables, mixing.rhat_of) == "b[29, 1]"
    assert mixing.rhat_of == 217 == int(np.argmax(rhats))


def test_many_short_chains_that_agree_differ_by_chance():
    """64 chains, ESS about 1,300: R-hat is near 1 + 64/1300, though nothing is wrong."""
    rng = np.random.default_rng(1)
    verdicts = []
    for _ in range(20):
        variables = {"x": autoregressive(rng, (64, 400, 1), 0.9)}
        mixing = worst_mixing(variables, screen(variables), np.zeros(1, bool))
        assert 1.01 < mixing.rhat < 1.1
        verdicts.append(mixing.by_chance)
        variables["x"][5] = variables["x"][5] * 0.1 + 2.0  # one chain of its own
        assert not worst_mixing(variables, screen(variables), np.zeros(1, bool)).by_chance
    assert sum(verdicts) >= 19


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_the_constraint_fixes_is_left_out(dtype):
    """x₀ is 0 and x₁ is 0.3, up to roundings that differ between chains: R-hat was 6e15, in ten groups that never met."""
    with jax.enable_x64(dtype == "float64"):
        problem = og.Problem(
            lambda x: -0.5 * jnp.sum(x**2), lambda x: jnp.stack([x[0], x[1] - jnp.asarray(0.3, x.dtype)])
        )
        rng = np.random.default_rng(2)
        draws = rng.normal(size=(10, 200, 4)).astype(dtype)
        draws[..., 0] = rng.normal(size=(10, 1)) * 1e-17
        draws[..., 1] = np.asarray(0.3, dtype) * (1 + np.finfo(dtype).eps * rng.integers(-1, 2, size=(10, 1)))
        g = draws[..., :2] - np.array([0, 0.3], dtype)
        trace = a_trace(draws, problem, equality=g, is_accepted=np.ones((10, 200), bool))
        seen = screen(trace.variables)
        assert fixed_scalars(problem, trace.position, seen).tolist() == [True, True, False, False]
        assert not warn_if_separate(trace)
        diagnosis = og.diagnose(trace)
        assert diagnosis.ok, diagnosis
        assert "x[0] and 1 more are fixed by the constraint" in diagnosis["R-hat"].text
        # A coordinate that is just as still, but free, is not excused; nor is a small one that moves.
        draws[..., 2] = 0.25
        assert og.diagnose(a_trace(draws, problem, equality=g))["R-hat"].level == "doubtful"
        draws[..., 2] = rng.normal(size=(10, 200)) * 1e-6
        seen = screen({"x": draws})
        assert fixed_scalars(problem, draws, seen).tolist() == [True, True, False, False]
        assert not seen.still[2]


def test_groups_that_never_meet_are_still_told():
    draws = np.random.default_rng(3).normal(size=(10, 200, 2)) + np.where(np.arange(10) < 3, 50, 0)[:, None, None]
    with pytest.warns(og.ConstraintWarning, match="2 groups that never meet .of 7, 3 chains"):
        assert warn_if_separate(a_trace(draws, is_accepted=np.ones((10, 200), bool)))


def short_run(**arguments):
    algorithm = arguments.pop("algorithm", og.o_langevin(KNOWN.problem, 1e-3))
    starts = KNOWN.start_off(jax.random.key(0), arguments.pop("chains", 8))
    starts = starts[None] if arguments.pop("ensemble", False) else starts
    return og.sample(0, KNOWN.problem, starts, algorithm=algorithm, num_warmup=10, progress=False, **arguments)


def test_a_run_that_has_not_mixed_says_so_once():
    with pytest.warns(og.ConvergenceWarning) as told:
        short_run(num_samples=100)
    (message,) = [str(w.message) for w in told if w.category is og.ConvergenceWarning]
    assert "R-hat" in message
    assert "Run longer" in message
    assert "\n" not in message
    with pytest.warns(og.ConvergenceWarning, match="only 16 draws were kept"):
        short_run(num_samples=2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"algorithm": og.chmc(KNOWN.problem, 0.5, num_integration_steps=4), "num_samples": 500},
        {"algorithm": og.o_svgd(KNOWN.problem, 0.1), "num_samples": 5, "ensemble": True},
        {"num_samples": 2, "chains": 100},
    ],
    ids=["mixed", "particles", "many chains, one draw"],
)
def test_other_runs_say_nothing(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error", og.ConvergenceWarning)
        short_run(**arguments)
