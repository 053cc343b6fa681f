"""Curves and surfaces in two and three dimensions, on which the two measures differ (or pointedly do not)."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem import Measure, Problem
from ogradient.problems.draws import inverse_cdf
from ogradient.problems.known import KnownProblem, Moment, coordinate, square_about

BIG, SMALL = 1.0, 0.5  # the radii R and r of the torus


def cubic(measure: Measure = "conditional") -> KnownProblem:
    """The paper's: g = x₁ + x₂³, log π = −½[(x₁ + x₂³)² + x₂²]. Conditional law: x₂ ~ N(0,1), x₁ = −x₂³."""
    phi = lambda x: x[0] + x[1] ** 3
    on_curve = lambda y: jnp.stack([-(y**3), y], axis=-1)
    problem = Problem(lambda x: -0.5 * (phi(x) ** 2 + x[1] ** 2), equality=phi, measure=measure)
    # In the Hausdorff law the density of x₂ is ∝ e^{−y²/2} √(1 + 9y⁴): arc length on the curve is √(1 + 9y⁴) dy.
    second, sixth = (1.0, 15.0) if measure == "conditional" else (2.65990, 92.03833)
    moments = {"x₂": Moment(coordinate(1), 0.0), "x₂²": Moment(square_about(1), second)}
    moments["x₁²"] = Moment(square_about(0), sixth)
    if measure == "conditional":
        moments["cos x₂"] = Moment(lambda x: jnp.cos(x[1]), math.exp(-0.5))

    def exact(key: Array, n: int) -> Array:
        if measure == "conditional":
            return on_curve(jax.random.normal(key, (n,)))
        grid = np.linspace(-12, 12, 200_001)
        return on_curve(inverse_cdf(grid, np.exp(-0.5 * grid**2) * np.sqrt(1 + 9 * grid**4))(key, n))

    start_on = lambda key, n: on_curve(-2 + 0.1 * jax.random.normal(key, (n,)))
    start_off = lambda key, n: jnp.array([[-10.0, 1.0]]) + 0.1 * jax.random.normal(key, (n, 2))
    return KnownProblem("cubic", problem, 2, start_on, start_off, moments, exact)


def ellipse(measure: Measure = "conditional") -> KnownProblem:
    """The ellipse g = ½(x²/9 + y² − 1), flat log π: the smallest problem on which the two measures differ."""
    horizontal, vertical = (4.5, 0.5) if measure == "conditional" else (3.476396, 0.613734)

    def exact(key: Array, n: int) -> Array:
        # The conditional law is uniform in the parameter angle t; the Hausdorff law has density √(9 sin² t + cos² t) in it.
        grid = np.linspace(0, 2 * np.pi, 100_001)
        density = np.ones_like(grid) if measure == "conditional" else np.sqrt(9 * np.sin(grid) ** 2 + np.cos(grid) ** 2)
        angle = inverse_cdf(grid, density)(key, n)
        return jnp.stack([3 * jnp.cos(angle), jnp.sin(angle)], axis=-1)

    problem = Problem(lambda x: 0.0, equality=lambda x: 0.5 * (x[0] ** 2 / 9 + x[1] ** 2 - 1), measure=measure)
    start_off = lambda key, n: jnp.array([[3.0, 2.0]]) + jax.random.normal(key, (n, 2))
    moments = {"x": Moment(coordinate(0), 0.0), "x²": Moment(square_about(0), horizontal)}
    moments["y²"] = Moment(square_about(1), vertical)
    return KnownProblem("ellipse", problem, 2, exact, start_off, moments, exact)


def torus(form: str = "b", measure: Measure = "conditional") -> KnownProblem:
    """One torus (R = 1, r = ½) as the zero set of two functions; flat log π. The acid test of `measure`.

    Form "a", (√(x²+y²)−R)² + z² − r²: ‖∇g‖ is constant on the set, both measures are the area.
    Form "b", (‖x‖²+R²−r²)² − 4R²(x²+y²): the conditional law is uniform in both angles, the Hausdorff law is the area.
    """
    if form not in ("a", "b"):
        raise ValueError(f"form must be 'a' or 'b'; got {form!r}.")
    functions = {
        "a": lambda x: (jnp.hypot(x[0], x[1]) - BIG) ** 2 + x[2] ** 2 - SMALL**2,
        "b": lambda x: (jnp.sum(x**2) + BIG**2 - SMALL**2) ** 2 - 4 * BIG**2 * (x[0] ** 2 + x[1] ** 2),
    }
    by_area = form == "a" or measure == "hausdorff"

    # By area the tube angle φ has density ∝ 1 + (r/R) cos φ.
    wave = lambda theta, cosine: SMALL / BIG * cosine
    exact = lambda key, n: _points_of_torus(key, n, wave if by_area else None)
    problem = Problem(lambda x: 0.0, equality=functions[form], measure=measure)
    start_off = lambda key, n: exact(key, n) * jnp.array([[1.5, 1.5, 1.8]])
    moments = {
        "cos φ": Moment(_cosine_in_tube, 0.25 if by_area else 0.0),
        "x²+y²": Moment(lambda x: x[0] ** 2 + x[1] ** 2, 1.375 if by_area else 1.125),
        "z²": Moment(square_about(2), 0.125),
    }
    return KnownProblem(f"torus_{form}", problem, 3, exact, start_off, moments, exact)


def _points_of_torus(key: Array, n: int, wave: Callable[[Array, Array], Array] | None) -> Array:
    """Points (n, 3). Their angles θ round the axis and φ round the tube have density ∝ 1 + wave(θ, cos φ), or 1.

    A wave must be odd in cos φ.
    """
    round_key, tube_key, accept_key = jax.random.split(key, 3)
    theta, phi = (2 * jnp.pi * jax.random.uniform(k, (n,)) for k in (round_key, tube_key))
    if wave is not None:
        # A proposal that is not accepted goes to the other side, φ to π − φ, where the density is 1 − wave.
        flip = jax.random.uniform(accept_key, (n,)) * 2 > 1 + wave(theta, jnp.cos(phi))
        phi = jnp.where(flip, jnp.pi - phi, phi)
    radius = BIG + SMALL * jnp.cos(phi)
    return jnp.stack([radius * jnp.cos(theta), radius * jnp.sin(theta), SMALL * jnp.sin(phi)], axis=-1)


def _cosine_in_tube(x: Array) -> Array:
    """The cosine of the angle φ round the tube, on the torus; beyond ±1 off it."""
    return (jnp.hypot(x[0], x[1]) - BIG) / SMALL


def torus_a(measure: Measure = "conditional") -> KnownProblem:
    """`torus("a")`: ‖∇g‖ is constant on the set, so both measures are the area."""
    return torus("a", measure)


def torus_b(measure: Measure = "conditional") -> KnownProblem:
    """`torus("b")`, a polynomial: conditional is uniform in both angles, Hausdorff is the area."""
    return torus("b", measure)


def mici_torus() -> KnownProblem:
    """The torus of mici's README: form a, density against area ∝ (1 + 0.9 sin 4θ cos φ)/(1 + (r/R) cos φ)."""
    wave = lambda theta, cosine: jnp.sin(4 * theta) * cosine

    def logdensity(x: Array) -> Array:
        theta, cosine = jnp.arctan2(x[1], x[0]), jnp.clip(_cosine_in_tube(x), -1.1, 1.1)
        return jnp.log1p(0.9 * wave(theta, cosine)) - jnp.log1p(SMALL / BIG * cosine)

    exact = lambda key, n: _points_of_torus(key, n, lambda theta, cosine: 0.9 * wave(theta, cosine))
    start_off = lambda key, n: exact(key, n) * jnp.array([[1.1, 1.1, 1.4]])
    problem = Problem(logdensity, equality=torus("a").problem.equality)
    moments = {
        "sin 4θ cos φ": Moment(lambda x: wave(jnp.arctan2(x[1], x[0]), _cosine_in_tube(x)), 0.225),
        "cos φ": Moment(_cosine_in_tube, 0.0),
        "z²": Moment(square_about(2), 0.125),
    }
    return KnownProblem("mici_torus", problem, 3, exact, start_off, moments, exact)
