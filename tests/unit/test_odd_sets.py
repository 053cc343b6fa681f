"""Sets and starts that a run cannot do justice to: refused, or said in a warning."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og

circle = lambda x: jnp.sum(x**2) - 1


def test_a_small_component_keeps_its_chain_and_that_is_said():
    centre, small = jnp.array([3.0, 0.0]), 0.002
    equality = lambda x: circle(x) * (jnp.sum((x - centre) ** 2) / small**2 - 1)
    problem = og.Problem(lambda x: 0.0, equality)
    angle = jnp.linspace(0.0, 6.0, 15)
    starts = jnp.concatenate(
        [centre[None] + jnp.array([[small, 0.0]]), jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)]
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trace = og.sample(0, problem, starts, num_samples=200, progress=False)
    assert any("1 of 16 chains (the first is chain 0) do not move at the step size" in str(w.message) for w in said)
    assert np.all(np.linalg.norm(trace["x"][0] - np.asarray(centre), axis=-1) < 2 * small)
    assert np.all(np.abs(np.linalg.norm(trace["x"][1:], axis=-1) - 1) < 1e-3)


def test_digits_that_log_density_does_not_have_are_said():
    problem = og.Problem(lambda x: 1e7 - 0.5 * jnp.sum(x**2), lambda x: x[0] + x[1])
    algorithm = og.chmc(problem, 0.5)
    with pytest.warns(og.ConstraintWarning, match="float32 resolves no more than 1.2 of it"):
        og.sample(0, problem, jnp.ones((4, 3)), algorithm=algorithm, num_samples=10, num_warmup=0, progress=False)


@pytest.mark.parametrize(
    ("equality", "scale", "message"),
    [
        (
            lambda x: jnp.sum((x - 1e6) ** 2) - 1,
            1.0,
            r"equality\[0\] cannot be resolved in float32 at \|x\| = 1.*Shift the coordinates",
        ),
        (lambda x: jnp.sum(x**2) ** 2 - 1e-40, 1e-10, "too small for float32. Choose units"),
        (lambda x: jnp.sum(x**2) - 1e-42, 1e-21, "too small for float32. Choose units|gradient of equality.* is zero"),
        (lambda x: jnp.stack([circle(x), x[0] - x[1], x[2]]), 1.0, "the set is of dimension zero, single points"),
    ],
)
@pytest.mark.parametrize("algorithm", [None, "o_langevin", "o_kinetic"])
def test_sets_that_are_not_there_are_refused(equality, scale, message, algorithm):
    problem = og.Problem(lambda x: 0.0, equality)
    starts = scale * jax.random.normal(jax.random.key(0), (8, 3)) + (1e6 if "resolved" in message else 0)
    with pytest.raises(ValueError, match=message):
        og.sample(0, problem, starts, algorithm=algorithm, num_samples=10, progress=False)


def test_a_single_start_is_not_taken_for_chains_of_scalars():
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), inequality=lambda x: jnp.sum(x**2) - 1)
    with pytest.raises(ValueError, match=r"can be read as 3 chains of scalars, and as one start.*x0\[None\]"):
        og.sample(0, problem, jnp.array([0.1, 0.2, 0.3]), num_samples=10, progress=False)
    scalars = og.Problem(lambda x: -0.5 * x**2, inequality=lambda x: 1 - x)
    trace = og.sample(
        0, scalars, jnp.array([1.1, 1.2, 1.3]), algorithm=og.chmc(scalars, 0.5), num_samples=10, progress=False
    )
    assert trace["x"].shape == (3, 10)


def test_falling_back_on_another_sampler_is_said_without_progress():
    """A set that is nowhere smooth on the scale of any step: chmc has nothing to follow."""
    rough = lambda x: x[0] + 1e-3 * jnp.sin(1e6 * x[1])
    problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), rough)
    starts = jax.random.normal(jax.random.key(0), (4, 2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trace = og.sample(0, problem, starts, num_samples=5, num_warmup=0, progress=False)
    assert trace.provenance["algorithm"] == "o_kinetic"
    assert any("near the set, not on it" in str(w.message) for w in said)
