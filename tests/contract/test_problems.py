"""Every problem in the table has starts, truths that its exact draws confirm, and functions the library accepts."""

import inspect

import jax
import numpy as np
import pytest
from scipy import stats

from ogradient import problems

CASES = [
    (name, measure)
    for name, build in problems.PROBLEMS.items()
    for measure in (["conditional", "hausdorff"] if "measure" in inspect.signature(build).parameters else [None])
]
everyone = pytest.mark.parametrize(("name", "measure"), CASES)


def build(name, measure):
    return problems.PROBLEMS[name](**({} if measure is None else {"measure": measure}))


@everyone
def test_starts_and_documentation(name, measure, x64):
    known = build(name, measure)
    assert known.name == name
    assert problems.PROBLEMS[name].__doc__
    g, h = (jax.jit(jax.vmap(f)) for f in (known.problem.equality_value, known.problem.inequality_value))
    on, off = known.start_on(jax.random.key(0), 5), known.start_off(jax.random.key(0), 5)
    assert on.shape == off.shape == (5, known.dim)
    known.problem.check(on[0])
    assert np.abs(g(on)).max(initial=0) < 1e-12
    assert np.all(h(on) <= 0)
    violated = np.concatenate([np.abs(g(off)), np.maximum(h(off), 0)], axis=1)
    assert violated.mean() > 0.02


@everyone
def test_exact_draws_lie_on_the_set_and_confirm_the_moments(name, measure, x64):
    known = build(name, measure)
    n = 20_000 if name in ("bingham", "disc", "dirichlet") else 100_000
    draws = known.exact(jax.random.key(1), n)
    functions = {label: moment.function for label, moment in known.moments.items()}
    check = lambda x: (known.problem.equality_value(x), known.problem.inequality_value(x))
    g, h = jax.jit(jax.vmap(check))(draws)
    assert np.abs(g).max(initial=0) < 1e-12
    assert np.all(h <= 0)
    all_values = jax.jit(jax.vmap(lambda x: {label: function(x) for label, function in functions.items()}))(draws)
    for label, moment in known.moments.items():
        values = np.asarray(all_values[label])
        error = values.std() / np.sqrt(n)
        assert abs(values.mean() - moment.value) < stats.norm.ppf(1 - 0.5e-6) * error + 6e-6, label


def test_von_mises_fisher_ratios_are_those_of_bessel_functions():
    from scipy.special import ive

    for dim, kappa in [(3, 5.0), (10, 10.0), (100, 50.0)]:
        known = problems.von_mises_fisher(dim, kappa)
        assert known.moments["μᵀx"].value == pytest.approx(ive(dim / 2, kappa) / ive(dim / 2 - 1, kappa), rel=1e-12)


def test_bad_arguments():
    with pytest.raises(ValueError, match="form must be"):
        problems.torus("c")
    with pytest.raises(ValueError, match="num_constraints must lie"):
        problems.transport(5, 5)
