"""What is compiled, and what is found again; and that nothing compiled keeps data alive."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ogradient as og
from ogradient import compilation

STARTS = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
DESCENT = optax.sgd(0.05)


@pytest.fixture
def compiled():
    """A list that grows by one with every program that XLA compiles."""
    programs = []
    note = lambda event, _, **__: programs.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(note)
    yield programs
    # The oldest jax has no such function; a listener that stays does no harm.
    getattr(jax.monitoring, "unregister_event_duration_listener", lambda _: None)(note)


def plain():
    """A problem of functions that no other test has, so that nothing is compiled for it yet."""
    return og.Problem(lambda x: -0.5 * jnp.sum((x - 0.2) ** 2), lambda x: x[0] ** 2 + 3 * x[1] ** 2 - 1)


def prior(w):
    return -0.5 * jnp.sum(w**2)


def likelihood(w, batch):
    return jnp.sum(jax.nn.log_sigmoid(batch["sign"] * (batch["X"] @ w)))


def parity(w, batch):
    return jnp.mean(batch["X"][:, 1] * jax.nn.sigmoid(batch["X"] @ w))


def rows(seed, n=40):
    rng = np.random.default_rng(seed)
    return {"X": rng.normal(size=(n, 2)).astype(np.float32), "sign": np.sign(rng.normal(size=n)).astype(np.float32)}


def model(seed=0, **sizes):
    return og.posterior(prior, likelihood, rows(seed), equality=parity, **sizes)


ALGORITHMS = {
    "default": lambda _: None,
    "o_langevin, tuned": lambda _: "o_langevin",
    "chmc": lambda p: og.chmc(p, 0.2, num_integration_steps=2),
    "clangevin": lambda p: og.clangevin(p, 0.2),
    "o_langevin": lambda p: og.o_langevin(p, 0.01),
    "o_langevin, decaying": lambda p: og.o_langevin(p, og.power_decay(0.01)),
    "o_kinetic": lambda p: og.o_kinetic(p, 0.1),
    "langevin": lambda p: og.langevin(p, 0.01),
    "o_svgd": lambda p: og.o_svgd(p, optimizer=DESCENT),
    "svgd": lambda p: og.svgd(p, 0.1),
    "control_langevin": lambda p: og.control_langevin(p, 0.01),
}


def run(seed, problem, make, **arguments):
    algorithm = make(problem)
    ensemble = algorithm is not None and not isinstance(algorithm, str) and algorithm.step.kernel.ensemble
    starts = STARTS[None] if ensemble else STARTS
    settings = {"num_warmup": 20, "num_samples": 120, "progress": False} | arguments
    return og.sample(seed, problem, starts, algorithm=algorithm, **settings)


SLOW = {"clangevin", "svgd"}  # chmc and o_svgd are like them


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else []) for n in ALGORITHMS])
def test_the_second_run_compiles_nothing(name, compiled):
    """Another seed, other counts, and an algorithm that is built anew."""
    problem = plain()
    run(0, problem, ALGORITHMS[name])
    assert compiled
    compiled.clear()
    run(1, problem, ALGORITHMS[name], num_samples=150, thinning=2)
    assert not compiled


@pytest.mark.parametrize("name", ["default", "o_langevin", "o_svgd"])
def test_other_data_of_the_same_shapes_compile_nothing(name, compiled):
    sizes = {} if name == "default" else {"batch_size": 10, "constraint_batch_size": 40}
    first = run(0, model(0, **sizes), ALGORITHMS[name], throw=False)
    compiled.clear()
    second = run(0, model(1, **sizes), ALGORITHMS[name], throw=False)
    assert not compiled
    assert not np.array_equal(first["x"], second["x"])


def test_the_first_default_call_compiles_its_kernel_once(compiled, caplog):
    with jax.log_compiles(True), caplog.at_level("WARNING"):
        run(0, plain(), ALGORITHMS["default"])
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if text.startswith("Compiling jit(many_steps)")]) == 1
    assert len(compiled) <= 10


def test_other_step_sizes_compile_nothing(compiled):
    problem = plain()
    for step_size in (0.1, 0.2):
        compiled.clear()
        run(0, problem, lambda p, s=step_size: og.o_langevin(p, s / 10, alpha=1 / s, temperature=s))
        run(0, problem, lambda p, s=step_size: og.chmc(p, s, num_integration_steps=int(s * 20)))
    assert not compiled


def test_equal_kernels_are_equal():
    problem = plain()
    assert og.chmc(problem, 0.1).step.kernel == og.chmc(problem, 0.7, num_integration_steps=3).step.kernel
    assert og.chmc(problem, 0.1).step.kernel != og.chmc(problem, 0.1, jitter=0.1).step.kernel
    assert og.o_svgd(problem, 0.1).step.kernel == og.o_svgd(problem, 0.2).step.kernel
    assert (
        og.o_langevin(problem, og.power_decay(0.1)).step.kernel
        == og.o_langevin(problem, og.power_decay(0.1)).step.kernel
    )


@pytest.mark.parametrize("sizes", [{}, {"batch_size": 10}])
def test_nothing_keeps_the_data_alive(sizes):
    problem = model(3, constraint_batch_size=40 if sizes else None, **sizes)
    make = ALGORITHMS["o_langevin" if sizes else "chmc"]
    trace = run(0, problem, make, throw=False)
    og.diagnose(trace)
    alive = [weakref.ref(leaf) for leaf in jax.tree.leaves(problem.data.rows)]
    del problem, trace
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_tune_once_and_sample_often(compiled):
    problem = plain()
    algorithm, positions, found = og.tune(0, problem, STARTS, progress=False)
    assert found["stuck_chains"] == []
    settings = {"num_warmup": 10, "num_samples": 100, "progress": False}
    trace = og.sample(1, problem, positions, algorithm=algorithm, **settings)
    compiled.clear()
    again = og.sample(1, problem, positions, algorithm=trace, **settings)  # the trace stands for its algorithm
    assert not compiled
    np.testing.assert_array_equal(again["x"], trace["x"])
    assert again.provenance["settings"] == trace.provenance["settings"]
    default = og.sample(0, problem, STARTS, num_samples=5, progress=False)
    assert default.provenance["settings"] == trace.provenance["settings"]


def test_a_function_around_a_step_hides_what_it_is():
    problem = plain()
    inner = og.chmc(problem, 0.2)
    around = og.SamplingAlgorithm(inner.init, lambda key, state: inner.step(key, state))
    with pytest.warns(og.ConstraintWarning, match="nothing is known of the algorithm <lambda>.*pass og.chmc"):
        trace = og.sample(0, problem, STARTS, algorithm=around, num_samples=5, num_warmup=0, progress=False)
    assert trace.obeys == trace.provenance["obeys"] == "unknown"


def test_callables_without_a_hash_are_compared_by_identity(compiled):
    class Density:
        __hash__ = None

        def __init__(self):
            self.centre = jnp.zeros(2)

        def __eq__(self, other):
            raise AssertionError("not to be asked")

        def __call__(self, x):
            return -jnp.sum((x - self.centre) ** 2)

    one, other = Density(), Density()
    for density in (one, other):
        problem = og.Problem(density, lambda x: x[0] - 1)
        run(0, problem, ALGORITHMS["langevin"])
    same = og.Problem(one, problem.equality)
    assert jax.tree.structure(same) != jax.tree.structure(problem)
    assert jax.tree.structure(same) == jax.tree.structure(og.Problem(one, problem.equality))


def test_settings_without_a_hash_run():
    class Decay:
        __hash__ = None

        def __call__(self, iteration):
            return jnp.asarray(0.01)

    problem = plain()
    assert run(0, problem, lambda p: og.langevin(p, Decay())).num_draws == 120
    assert run(0, problem, lambda p: og.svgd(p, 0.1, rkhs_kernel=og.rbf(jnp.float32(1.0)))).num_draws == 120


def test_programs_are_compiled_with_options_and_without_those_that_xla_does_not_know(monkeypatch):
    # Not every jaxlib knows the option of today; this one they all know.
    monkeypatch.setattr(compilation, "QUICK", {"xla_backend_optimization_level": 1})
    monkeypatch.setattr(compilation._Compiled, "known", True)
    double = compilation.compiled(lambda x: 2 * x)
    assert float(double(1.0)) == 2.0
    assert double.program is double.quick
    monkeypatch.setattr(compilation, "QUICK", {"xla_no_such_option": False})
    monkeypatch.setattr(compilation._Compiled, "known", True)
    triple = compilation.compiled(lambda x: 3 * x)
    assert float(triple(1.0)) == 3.0
    assert triple.program is triple.plain


def test_a_compiled_function_can_be_part_of_another():
    problem = plain()
    landed = jax.jit(lambda x: og.land(problem, x).position)(STARTS)
    np.testing.assert_allclose(landed, og.land(problem, STARTS).position, atol=1e-6)
    assert np.abs(jax.vmap(problem.equality_value)(landed)).max() < 1e-5


def test_a_program_that_is_prepared_is_compiled_once(compiled):
    double = compilation.compiled(lambda x: 2 * x + 0.123)
    double.prepare(np.float32(1.0))()
    assert len(compiled) == 1
    assert float(double(np.float32(1.0))) == pytest.approx(2.123)
    assert len(compiled) == 1


def test_what_cannot_be_prepared_says_so_when_it_is_called():
    def broken(x):
        raise RuntimeError("as the user has it")

    function = compilation.compiled(broken)
    function.prepare(1.0)()
    with pytest.raises(RuntimeError, match="as the user has it"):
        function(1.0)


def test_what_runs_once_is_compiled_quickly_where_it_is_given_little():
    function = compilation.compiled(jnp.sum, once=True)
    little, much = [jnp.zeros(10)], [jnp.zeros(compilation.LITTLE + 1)]
    if function.program is function.quick:  # on a CPU whose jaxlib knows the options
        assert function._program_for(little) is function.once
    assert function._program_for(much) is function.program
    assert jax.jit(function)(little[0]) == function(little[0]) == 0
