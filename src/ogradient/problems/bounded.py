"""Sets with a boundary: inequalities alone, and together with equalities."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem import Measure, Problem
from ogradient.problems.draws import at_height, expectation, inverse_cdf, rejection, uniform_sphere
from ogradient.problems.known import KnownProblem, Moment, coordinate, means_and_variances, square_about, unsuitable_in


def spherical_cap(dim: int = 3, level: float = 0.3) -> KnownProblem:
    """The part x₁ ≥ c of the unit sphere, uniform: an equality and an inequality. d = 3: E[x₁] = (1 + c)/2."""
    if not -1 < level < 1:
        raise ValueError(f"level must lie between -1 and 1; got {level!r}.")
    # Along t = x₁ the area element is (1 − t²)^{(d−3)/2}.
    grid = np.linspace(level, 1, 200_001)
    density = np.maximum(1 - grid**2, 0.0) ** ((dim - 3) / 2)
    mean, square = expectation(grid, density, lambda t: t), expectation(grid, density, np.square)
    exact = lambda key, n: at_height(inverse_cdf(grid, density), key, n, dim)
    problem = Problem(lambda x: 0.0, equality=lambda x: jnp.sum(x**2) - 1, inequality=lambda x: level - x[0])
    start_off = lambda key, n: 2 * jax.random.normal(key, (n, dim))
    moments = {"x_1": Moment(coordinate(0), mean), "x_1²": Moment(square_about(0), square)}
    moments["x_2"] = Moment(coordinate(1), 0.0)
    return KnownProblem("spherical_cap", problem, dim, exact, start_off, moments, exact)


def interval() -> KnownProblem:
    """N(0, 1) on [1, 3]: the smallest problem with a boundary, and no equality."""
    problem = Problem(lambda x: -0.5 * jnp.sum(x**2), inequality=lambda x: jnp.stack([1 - x[0], x[0] - 3]))
    exact = lambda key, n: jax.random.truncated_normal(key, 1.0, 3.0, (n, 1))
    start_off = lambda key, n: 2 + 1.5 * jax.random.normal(key, (n, 1))
    moments = {"x": Moment(coordinate(0), 1.510050), "var x": Moment(square_about(0, 1.510050), 0.173453)}
    return KnownProblem("interval", problem, 1, exact, start_off, moments, exact)


def disc() -> KnownProblem:
    """N((2, 2), ¼I) in the unit disc: a curved boundary that most of the mass is pressed against."""
    logdensity = lambda x: -2 * jnp.sum((x - 2.0) ** 2)

    def exact(key: Array, n: int) -> Array:
        """Rejection from the uniform law: the density is highest at (1, 1)/√2."""
        radius_key, direction_key, accept_key = jax.random.split(key, 3)
        radius = jnp.sqrt(jax.random.uniform(radius_key, (80 * n, 1)))
        points = radius * uniform_sphere(direction_key, 80 * n, 2)
        return rejection(accept_key, points, jax.vmap(logdensity)(points) + 4 * (2 - math.sqrt(0.5)) ** 2, n)

    problem = Problem(logdensity, inequality=lambda x: jnp.sum(x**2) - 1)
    start_off = lambda key, n: 2 * jax.random.normal(key, (n, 2))
    moments = {"x_1": Moment(coordinate(0), 0.594783), "x_1²": Moment(square_about(0), 0.398811)}
    moments["x_1 x_2"] = Moment(lambda x: x[0] * x[1], 0.324463)
    return KnownProblem("disc", problem, 2, exact, start_off, moments, exact)


def dirichlet(dim: int = 20) -> KnownProblem:
    """Dirichlet(α) on the simplex Σx = 1, x ≥ 0, with α from 2 to 5. Below 10⁻⁴ log x is continued as a straight line."""
    alpha = np.linspace(2.0, 5.0, dim)
    total, edge = alpha.sum(), 1e-4

    def logdensity(x: Array) -> Array:
        safe = jnp.maximum(x, edge)
        return jnp.sum(jnp.asarray(alpha - 1, x.dtype) * (jnp.log(safe) + jnp.minimum(x - edge, 0.0) / edge))

    exact = lambda key, n: jax.random.dirichlet(key, jnp.asarray(alpha), (n,))
    steep = "near a face the drift is as steep as 1/x; steps short enough there go nowhere elsewhere"
    unsuitable = {"o_langevin": steep, "o_kinetic": steep} | unsuitable_in(dim - 1)
    problem = Problem(logdensity, equality=lambda x: jnp.sum(x) - 1, inequality=lambda x: -x)
    start_off = lambda key, n: jax.random.uniform(key, (n, dim), minval=0.5 / dim, maxval=4 / dim)
    mean = alpha / total
    moments = means_and_variances((0, dim - 1), mean, mean * (1 - mean) / (total + 1), first=1)
    return KnownProblem("dirichlet", problem, dim, exact, start_off, moments, exact, unsuitable)


def cone(measure: Measure = "conditional") -> KnownProblem:
    """The cone g = x² + y² − z² with 0 < z < 1, flat log π: ∇g vanishes at the vertex, which the conditional law does not avoid.

    Exact kernels keep the law, but refuse nearly every move beside the vertex: some chains stay there for long.
    """
    # The area is ∝ z dz. ‖∇g‖ is ∝ z, so that conditionally z is uniform.
    by_area = measure == "hausdorff"

    def exact(key: Array, n: int) -> Array:
        height_key, angle_key = jax.random.split(key)
        u = jax.random.uniform(height_key, (n,))
        z = jnp.sqrt(u) if by_area else u
        angle = 2 * jnp.pi * jax.random.uniform(angle_key, (n,))
        return jnp.stack([z * jnp.cos(angle), z * jnp.sin(angle), z], axis=-1)

    rarely = "single steps enter and leave the neighbourhood of the vertex too rarely"
    vertex = "the flow reaches the vertex, where the tangent plane jumps; use the exact kernels"
    unsuitable = dict.fromkeys(("o_langevin", "o_kinetic", "o_svgd"), vertex)
    unsuitable |= {} if by_area else {"clangevin": rarely}
    equality, inequality = lambda x: x[0] ** 2 + x[1] ** 2 - x[2] ** 2, lambda x: jnp.stack([-x[2], x[2] - 1])
    problem = Problem(lambda x: 0.0, equality=equality, inequality=inequality, measure=measure)
    start_off = lambda key, n: exact(key, n) * jnp.array([[1.4, 1.4, 0.9]]) + 0.1 * jax.random.normal(key, (n, 3))
    mean, square = (2 / 3, 1 / 2) if by_area else (1 / 2, 1 / 3)
    moments = {"z": Moment(coordinate(2), mean), "z²": Moment(square_about(2), square)}
    moments["x"] = Moment(coordinate(0), 0.0)
    return KnownProblem("cone", problem, 3, exact, start_off, moments, exact, unsuitable)


def quadratic_poly(measure: Measure = "conditional") -> KnownProblem:
    """N(0, I) on the curve x⁴y² + x² + y = 1, where x³ − y³ ≤ 1: one connected piece of a curve with two turns."""
    truth = (-0.13165, 0.52354, 0.41847, 0.49457) if measure == "conditional" else (-0.24004, 0.31742, 0.55881, 0.42362)
    # The curve is a quadratic in y, real up to |x| = widest; x = widest · sin t passes its turns smoothly.
    # The roots are those in x².
    widest = math.sqrt(max(root.real for root in np.roots([4, -4, 0, -1]) if abs(root.imag) < 1e-12))

    def point(t: Array) -> tuple[Array, Array]:
        x = widest * jnp.sin(t)
        square_root = jnp.sqrt(jnp.maximum(1 - 4 * x**4 * (x**2 - 1), 0.0))
        upper = 2 * (1 - x**2) / (1 + square_root)
        lower = -(1 + square_root) / (2 * jnp.maximum(x**4, 1e-12))
        return x, jnp.where(jnp.cos(t) >= 0, upper, lower)

    def density() -> tuple[np.ndarray, np.ndarray]:
        t = np.linspace(-np.pi, np.pi, 400_001)[1:-1]
        x, y = (np.asarray(v, np.float64) for v in point(jnp.asarray(t)))
        length = np.hypot(np.gradient(x, t), np.gradient(y, t))
        slope = np.hypot(4 * x**3 * y**2 + 2 * x, 2 * x**4 * y + 1)
        inside = x**3 - y**3 <= 1
        weight = np.exp(-0.5 * (x**2 + y**2)) * length / (slope if measure == "conditional" else 1)
        return t, np.where(inside, weight, 0.0)

    def exact(key: Array, n: int) -> Array:
        return jnp.stack(point(inverse_cdf(*density())(key, n)), axis=-1)

    equality = lambda x: x[0] ** 4 * x[1] ** 2 + x[0] ** 2 + x[1] - 1
    inequality = lambda x: x[0] ** 3 - x[1] ** 3 - 1
    problem = Problem(lambda x: -0.5 * jnp.sum(x**2), equality=equality, inequality=inequality, measure=measure)
    start_off = lambda key, n: exact(key, n) + 0.3 * jax.random.normal(key, (n, 2))
    functions = {"x": coordinate(0), "y": coordinate(1), "x²": square_about(0), "y²": square_about(1)}
    moments = {name: Moment(functions[name], value) for name, value in zip(functions, truth, strict=True)}
    return KnownProblem("quadratic_poly", problem, 2, exact, start_off, moments, exact)
