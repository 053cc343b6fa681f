"""Bounces: every leg is its own reverse, keeps the volume of phase space up to ℓ, and never leaves h ≤ 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.geometry import project
from ogradient.samplers.rattle import potential_of, trajectory
from ogradient.samplers.solver import place_at, reach
from ogradient.samplers.walls import Walls, _root_left, _upward_root, between_walls

D = 4
nothing = lambda x: jnp.zeros((0,), x.dtype)
sphere = lambda x: jnp.sum(x**2)[None] - 1
DENSE = np.linalg.cholesky(np.eye(D) + 0.3)
simplex = lambda x: jnp.sum(x)[None] - 2
CASES = {  # g, h, R, step size, whether ℓ is 0: where paths are straight, whatever the walls
    "simplex, dense": (simplex, lambda x: jnp.concatenate([-x, x - 1.7]), DENSE, 0.8, True),
    "orthant": (nothing, lambda x: -x, np.ones(D), 0.8, True),
    "orthant of a sphere": (sphere, lambda x: -x, np.ones(D), 0.4, False),
    "orthant of a sphere, dense": (sphere, lambda x: -x, DENSE, 0.4, False),
    "curved walls, dense": (nothing, lambda x: jnp.stack([jnp.sum(x**2) - 1.2, x[0] ** 2 - x[1]]), DENSE, 0.5, True),
}


def moves(name, num_steps=3, straight=False):
    """The paths from some starts, those from their ends with −p, and log |det| of the first, by differences."""
    constraint, bounds, root, step_size, _ = CASES[name]
    root, epsilon = jnp.asarray(root), jnp.asarray(step_size)
    m = constraint(jnp.ones(D)).size
    potential = potential_of(
        lambda x: 0.5 * jnp.sum(jnp.sin(2 * x)), constraint, root, measure="conditional", curved=True
    )
    advance = between_walls(Walls(constraint, bounds, root, "newton", straight), epsilon)
    # One compilation for all: batches of one size.
    run = jax.jit(jax.vmap(lambda x, p: trajectory(potential, advance, root, x, p, epsilon, jnp.int32(num_steps))))
    place = lambda x: place_at(constraint, root, x)

    def basis(x):
        return jnp.linalg.svd(place(x).frame.jacobian)[2][m:] if m else jnp.eye(D)

    def begin(key):
        x = jnp.abs(jax.random.normal(key, (D,))) + jnp.array([0.0, 0.5, 0.0, 0.0])
        x = x * 2 / jnp.sum(x) if name.startswith("simplex") else x / jnp.linalg.norm(x)
        return x, project(place(x).frame, jax.random.normal(jax.random.fold_in(key, 1), (D,)))

    def beside(x, p, shift):
        """A neighbour of a start, by a shift in coordinates of its tangent space."""
        along, kick = shift[: D - m] @ basis(x), shift[D - m :] @ basis(x)
        return reach(constraint, root, place(x), along, "newton").x, p + kick

    def seen(end, other):
        """Where a neighbour ends, in coordinates of the tangent space of the end."""
        inverse = jnp.linalg.inv(root) if root.ndim == 2 else jnp.diag(1 / root)
        ends = basis(end.x)
        return jnp.concatenate([ends @ (inverse @ (other.x - end.x)), ends @ (other.p - end.p)])

    x, p = jax.jit(jax.vmap(begin))(jax.random.split(jax.random.key(0), 40))
    there = run(x, p)
    back = run(there.end.x, -there.end.p)
    beside, seen = jax.jit(jax.vmap(beside, (0, 0, None))), jax.jit(jax.vmap(seen))
    shifts = [shift for one in 1e-6 * np.eye(2 * (D - m)) for shift in (one, -one)]
    ends = [seen(there.end, run(*beside(x, p, shift)).end) for shift in shifts]
    slopes = np.stack([(plus - minus) / 2e-6 for plus, minus in zip(ends[::2], ends[1::2], strict=True)], axis=1)
    return there, back, np.linalg.slogdet(slopes)[1]


WAYS = [("simplex, dense", True), ("orthant of a sphere, dense", False), ("curved walls, dense", False)]
SLOW_WAYS = [("orthant", True), ("orthant", False), ("simplex, dense", False), ("orthant of a sphere", False)]


@pytest.mark.parametrize(
    ("name", "straight"), [*WAYS, *(pytest.param(*way, marks=pytest.mark.slow) for way in SLOW_WAYS)]
)
def test_trajectories_that_bounce_are_reversible_and_keep_volume(name, straight, x64):
    constraint, bounds, _, _, flat = CASES[name]
    there, back, measured = moves(name, straight=straight)
    start, end, volume = there.start, there.end, there.volume
    fine = np.asarray(there.status) == og.Status.OK
    assert fine.mean() > 0.7
    np.testing.assert_array_equal(back.status[fine], og.Status.OK)
    assert np.mean(np.asarray(there.bounces)[fine] > 0) > 0.5
    assert float(jnp.max(jax.vmap(bounds)(end.x)[fine])) < 1e-12
    assert np.abs(jax.vmap(constraint)(end.x)[fine]).max(initial=0) < 1e-13
    np.testing.assert_allclose(back.end.x[fine], start.x[fine], atol=1e-9)
    np.testing.assert_allclose(back.end.p[fine], -start.p[fine], atol=1e-9)
    np.testing.assert_allclose(volume[fine], -back.volume[fine], atol=1e-9)
    # A neighbour that meets another wall has no derivative here: few do.
    errors = np.abs(np.asarray(measured - volume)[fine])
    assert np.median(errors) < 1e-7
    assert np.mean(errors < 1e-5) > 0.9
    assert np.abs(volume[fine]).max() < 1e-12 if flat else np.abs(volume[fine]).max() > 0.1


@pytest.mark.parametrize("name", ["simplex, dense", "orthant"])
def test_straight_legs_are_those_that_a_search_finds(name, x64):
    constraint, bounds, root, step_size, _ = CASES[name]
    root = jnp.asarray(root)
    potential = potential_of(lambda x: 0.0 * jnp.sum(x), constraint, root, measure="conditional", curved=False)

    def both(key):
        x, epsilon = jnp.abs(jax.random.normal(key, (D,))), jnp.asarray(5 * step_size)
        x, p = x * 2 / jnp.sum(x), jax.random.normal(jax.random.fold_in(key, 1), (D,))
        walls = (Walls(constraint, bounds, root, "newton", straight) for straight in (True, False))
        return [trajectory(potential, between_walls(one, epsilon), root, x, p, epsilon, 1) for one in walls]

    straight, searched = jax.jit(jax.vmap(both))(jax.random.split(jax.random.key(1), 200))
    np.testing.assert_array_equal(straight.status, og.Status.OK)
    # A start outside, or a corner, is all that they may see differently.
    fine = np.asarray(searched.status) == og.Status.OK
    assert fine.mean() > 0.9
    assert np.asarray(straight.bounces)[fine].mean() > 1
    np.testing.assert_array_equal(straight.bounces[fine], searched.bounces[fine])
    np.testing.assert_allclose(straight.end.x[fine], searched.end.x[fine], atol=1e-9)
    np.testing.assert_allclose(straight.end.p[fine], searched.end.p[fine], atol=1e-9)


def test_roots_of_the_quadratic():
    h, slope, bend = (
        jnp.array(v) for v in ([-1.0, -1, -1, -1, 0, -1], [1.0, -1, 1, 1, 1, 0], [0.0, 2, -4, -0.5, 0, 2])
    )
    expected = [1.0, (1 + 5**0.5) / 2, np.inf, None, 0.0, 1.0]
    found = np.asarray(_upward_root(h, slope, bend))
    for value, wanted in zip(found, expected, strict=True):
        if wanted is None:
            assert -1 + value - 0.25 * value**2 == pytest.approx(0, abs=1e-6)
        else:
            assert value == pytest.approx(wanted)
    np.testing.assert_allclose(_root_left(jnp.array([-1.0, -1.0, 1.0]), jnp.array([2.0, -1.0, 0.0])), [1, np.inf, 0])
