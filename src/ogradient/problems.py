"""Problems with known answers, for testing samplers: ours, and anyone's.

Each function returns a `KnownProblem`: the `Problem` in the measure asked for, starts on and off the set, exact draws
where there is a way to make them, and moments with their true values. `PROBLEMS` lists them all.

>>> import jax, ogradient as og
>>> known = og.problems.ellipse(measure="hausdorff")
>>> known.moments["x²"].value
3.476396
>>> starts = known.start_off(jax.random.key(0), 8)      # eight chains, anywhere
>>> starts.shape
(8, 2)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.problem import Measure, Problem

Draw = Callable[[Array, int], Array]  # (key, n) -> (n, d)


class Moment(NamedTuple):
    """A function of one position, and its true expectation."""

    function: Callable[[Array], Array]
    value: float


@dataclass(frozen=True)
class KnownProblem:
    """A problem, where to start it, and what the answer is."""

    name: str
    problem: Problem
    dim: int
    start_on: Draw
    start_off: Draw
    moments: dict[str, Moment]
    exact: Draw | None = field(default=None)  # independent draws of the law itself


def cubic(measure: Measure = "conditional") -> KnownProblem:
    """The paper's: g = x₁ + x₂³, log π = −½[(x₁ + x₂³)² + x₂²]. Conditional law: x₂ ~ N(0,1), x₁ = −x₂³."""
    phi = lambda x: x[0] + x[1] ** 3
    on_curve = lambda y: jnp.stack([-(y**3), y], axis=-1)
    problem = Problem(lambda x: -0.5 * (phi(x) ** 2 + x[1] ** 2), equality=phi, measure=measure)
    # E[x₂²] of the Hausdorff law: arc length on the curve is √(1 + 9y⁴) dy.
    second, sixth, cosine = (1.0, 15.0, math.exp(-0.5)) if measure == "conditional" else (2.65990, 92.03833, None)
    moments = {"x₂": Moment(lambda x: x[1], 0.0), "x₂²": Moment(lambda x: x[1] ** 2, second)}
    moments["x₁²"] = Moment(lambda x: x[0] ** 2, sixth)
    if cosine is not None:
        moments["cos x₂"] = Moment(lambda x: jnp.cos(x[1]), cosine)
    return KnownProblem(
        name="cubic",
        problem=problem,
        dim=2,
        start_on=lambda key, n: on_curve(-2 + 0.1 * jax.random.normal(key, (n,))),
        start_off=lambda key, n: jnp.array([[-10.0, 1.0]]) + 0.1 * jax.random.normal(key, (n, 2)),
        moments=moments,
        exact=(lambda key, n: on_curve(jax.random.normal(key, (n,)))) if measure == "conditional" else _cubic_hausdorff,
    )


def _cubic_hausdorff(key: Array, n: int) -> Array:
    """Inverse of the distribution function of x₂ on a fine grid: density ∝ e^{−y²/2} √(1 + 9y⁴)."""
    grid = np.linspace(-12, 12, 200_001)
    cumulative = np.cumsum(np.exp(-0.5 * grid**2) * np.sqrt(1 + 9 * grid**4))
    y = jnp.interp(jax.random.uniform(key, (n,)), jnp.asarray(cumulative / cumulative[-1]), jnp.asarray(grid))
    return jnp.stack([-(y**3), y], axis=-1)


def transport(dim: int = 50, num_constraints: int = 5) -> KnownProblem:
    """Any size: y = φ(x), y_i = x_i + sin(x_{i+1}), y_d = x_d, log π = −½‖y‖², g = y_{1:m}. Then y_{m+1:d} ~ N(0, I)."""
    if not 1 <= num_constraints < dim:
        raise ValueError(f"num_constraints must lie between 1 and dim - 1; got {num_constraints} and dim={dim}.")
    m = num_constraints

    def phi(x: Array) -> Array:
        return x + jnp.concatenate([jnp.sin(x[1:]), jnp.zeros_like(x[:1])])

    def inverse(y: Array) -> Array:
        def back(following: Array, y_i: Array) -> tuple[Array, Array]:
            x_i = y_i - jnp.sin(following)
            return x_i, x_i

        _, rest = lax.scan(back, y[-1], y[:-1], reverse=True)
        return jnp.concatenate([rest, y[-1:]])

    def exact(key: Array, n: int) -> Array:
        free = jax.random.normal(key, (n, dim - m))
        return jax.vmap(inverse)(jnp.concatenate([jnp.zeros_like(free, shape=(n, m)), free], axis=1))

    coordinates = lambda i: lambda x: phi(x)[i]
    return KnownProblem(
        name="transport",
        # g needs the first m + 1 coordinates only; taking the slice first keeps its derivatives cheap at any d.
        problem=Problem(lambda x: -0.5 * jnp.sum(phi(x) ** 2), equality=lambda x: phi(x[: m + 1])[:m]),
        dim=dim,
        start_on=exact,
        start_off=lambda key, n: 2 * jax.random.normal(key, (n, dim)),
        moments={
            "y_{m+1}": Moment(coordinates(m), 0.0),
            "y_{m+1}²": Moment(lambda x: phi(x)[m] ** 2, 1.0),
            "‖y_{m+1:}‖²/(d−m)": Moment(lambda x: jnp.mean(phi(x)[m:] ** 2), 1.0),
            "cos y_d": Moment(lambda x: jnp.cos(x[-1]), math.exp(-0.5)),
        },
        exact=exact,
    )


def affine_gaussian(dim: int = 5, num_constraints: int = 2, seed: int = 0) -> KnownProblem:
    """N(μ, Σ) given A x = b, with μ, Σ, A, b drawn from `seed`. Gaussian again; both measures agree and r = 0."""
    rng = np.random.default_rng(seed)
    mean, spread = rng.normal(size=dim), rng.normal(size=(dim, dim)) / math.sqrt(dim)
    covariance = spread @ spread.T + 0.5 * np.eye(dim)
    matrix, level = rng.normal(size=(num_constraints, dim)), rng.normal(size=num_constraints)
    gain = covariance @ matrix.T @ np.linalg.inv(matrix @ covariance @ matrix.T)
    new_mean = mean + gain @ (level - matrix @ mean)
    new_covariance = covariance - gain @ matrix @ covariance
    values, vectors = np.linalg.eigh(new_covariance)
    root = vectors * np.sqrt(np.where(np.arange(dim) < num_constraints, 0, values))  # the constraint takes m directions
    precision = np.linalg.inv(covariance)
    exact = lambda key, n: jnp.asarray(new_mean)[None] + jax.random.normal(key, (n, dim)) @ jnp.asarray(root.T)
    return KnownProblem(
        name="affine_gaussian",
        problem=Problem(
            lambda x: (
                -0.5
                * (x - jnp.asarray(mean, x.dtype))
                @ jnp.asarray(precision, x.dtype)
                @ (x - jnp.asarray(mean, x.dtype))
            ),
            equality=lambda x: jnp.asarray(matrix, x.dtype) @ x - jnp.asarray(level, x.dtype),
        ),
        dim=dim,
        start_on=exact,
        start_off=lambda key, n: 3 * jax.random.normal(key, (n, dim)),
        moments={f"x_{i}": Moment(_coordinate(i), float(new_mean[i])) for i in range(dim)}
        | {f"var x_{i}": Moment(_square_about(i, new_mean[i]), float(new_covariance[i, i])) for i in range(dim)},
        exact=exact,
    )


def _coordinate(i: int) -> Callable[[Array], Array]:
    return lambda x: x[i]


def _square_about(i: int, centre: float) -> Callable[[Array], Array]:
    return lambda x: (x[i] - float(centre)) ** 2


def ellipse(measure: Measure = "conditional") -> KnownProblem:
    """g = ½(x²/9 + y² − 1), flat log π: the smallest problem on which the two measures differ."""
    horizontal, vertical = (4.5, 0.5) if measure == "conditional" else (3.476396, 0.613734)

    def exact(key: Array, n: int) -> Array:
        # The conditional law is uniform in the parameter angle t; the Hausdorff law has density √(9 sin² t + cos² t) in it.
        grid = np.linspace(0, 2 * np.pi, 100_001)
        density = np.ones_like(grid) if measure == "conditional" else np.sqrt(9 * np.sin(grid) ** 2 + np.cos(grid) ** 2)
        cumulative = np.concatenate([[0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        angle = jnp.interp(jax.random.uniform(key, (n,)), jnp.asarray(cumulative / cumulative[-1]), jnp.asarray(grid))
        return jnp.stack([3 * jnp.cos(angle), jnp.sin(angle)], axis=-1)

    return KnownProblem(
        name="ellipse",
        problem=Problem(lambda x: 0.0, equality=lambda x: 0.5 * (x[0] ** 2 / 9 + x[1] ** 2 - 1), measure=measure),
        dim=2,
        start_on=exact,
        start_off=lambda key, n: jnp.array([[3.0, 2.0]]) + jax.random.normal(key, (n, 2)),
        moments={
            "x": Moment(lambda x: x[0], 0.0),
            "x²": Moment(lambda x: x[0] ** 2, horizontal),
            "y²": Moment(lambda x: x[1] ** 2, vertical),
        },
        exact=exact,
    )


def torus(form: str = "b", measure: Measure = "conditional") -> KnownProblem:
    """One torus (R = 1, r = ½) as the zero set of two functions; flat log π. The acid test of `measure`.

    Form "a", (√(x²+y²)−R)² + z² − r²: ‖∇g‖ is constant on the set, both measures are the area.
    Form "b", (‖x‖²+R²−r²)² − 4R²(x²+y²): the conditional law is uniform in both angles, the Hausdorff law is the area.
    """
    if form not in ("a", "b"):
        raise ValueError(f"form must be 'a' or 'b'; got {form!r}.")
    big, small = 1.0, 0.5
    functions = {
        "a": lambda x: (jnp.hypot(x[0], x[1]) - big) ** 2 + x[2] ** 2 - small**2,
        "b": lambda x: (jnp.sum(x**2) + big**2 - small**2) ** 2 - 4 * big**2 * (x[0] ** 2 + x[1] ** 2),
    }
    by_area = form == "a" or measure == "hausdorff"

    def exact(key: Array, n: int) -> Array:
        round_key, tube_key, accept_key = jax.random.split(key, 3)
        theta = 2 * jnp.pi * jax.random.uniform(round_key, (n,))
        # By area the tube angle φ has density ∝ 1 + (r/R) cos φ: a fair coin flips a proposal to the other side.
        phi = 2 * jnp.pi * jax.random.uniform(tube_key, (n,))
        if by_area:
            inward = jax.random.uniform(accept_key, (n,)) * 2 > 1 + (small / big) * jnp.cos(phi)
            phi = jnp.where(inward, jnp.pi - phi, phi)
        radius = big + small * jnp.cos(phi)
        return jnp.stack([radius * jnp.cos(theta), radius * jnp.sin(theta), small * jnp.sin(phi)], axis=-1)

    tube = lambda x: (jnp.hypot(x[0], x[1]) - big) / small
    return KnownProblem(
        name=f"torus_{form}",
        problem=Problem(lambda x: 0.0, equality=functions[form], measure=measure),
        dim=3,
        start_on=exact,
        start_off=lambda key, n: exact(key, n) * jnp.array([[1.5, 1.5, 1.8]]),
        moments={
            "cos φ": Moment(tube, 0.25 if by_area else 0.0),
            "x²+y²": Moment(lambda x: x[0] ** 2 + x[1] ** 2, 1.375 if by_area else 1.125),
            "z²": Moment(lambda x: x[2] ** 2, 0.125),
        },
        exact=exact,
    )


def torus_a(measure: Measure = "conditional") -> KnownProblem:
    """`torus("a")`: ‖∇g‖ is constant on the set, so both measures are the area."""
    return torus("a", measure)


def torus_b(measure: Measure = "conditional") -> KnownProblem:
    """`torus("b")`, a polynomial: conditional is uniform in both angles, Hausdorff is the area."""
    return torus("b", measure)


def von_mises_fisher(dim: int = 10, concentration: float = 10.0) -> KnownProblem:
    """The unit sphere with log π = κ μᵀx. E[μᵀx] = I_{d/2}(κ)/I_{d/2−1}(κ)."""
    ratio = _bessel_ratio(dim / 2, concentration)
    return KnownProblem(
        name="von_mises_fisher",
        problem=Problem(lambda x: concentration * x[0], equality=lambda x: jnp.sum(x**2) - 1),
        dim=dim,
        start_on=lambda key, n: _uniform_sphere(key, n, dim),
        start_off=lambda key, n: 2 * jax.random.normal(key, (n, dim)) / math.sqrt(dim),
        moments={
            "μᵀx": Moment(lambda x: x[0], ratio),
            "(μᵀx)²": Moment(lambda x: x[0] ** 2, 1 - (dim - 1) / concentration * ratio),
            "x_d": Moment(lambda x: x[-1], 0.0),
        },
    )


def bingham() -> KnownProblem:
    """The sphere in three dimensions with log π = xᵀ diag(0, 2, 5) x: two opposite modes, both to be visited."""
    weights = (0.0, 2.0, 5.0)
    truth = (0.1151698, 0.1952702, 0.6895600)

    def exact(key: Array, n: int) -> Array:
        """Rejection from the uniform law: the density is at most e⁵."""
        rounds = 60
        direction_key, accept_key = jax.random.split(key)
        points = _uniform_sphere(direction_key, n * rounds, 3)
        log_ratio = jnp.sum(jnp.asarray(weights)[None] * points**2, axis=1) - max(weights)
        accepted = jnp.log(jax.random.uniform(accept_key, (n * rounds,))) < log_ratio
        return points[jnp.argsort(~accepted, stable=True)[:n]]

    return KnownProblem(
        name="bingham",
        problem=Problem(lambda x: jnp.sum(jnp.asarray(weights, x.dtype) * x**2), equality=lambda x: jnp.sum(x**2) - 1),
        dim=3,
        start_on=lambda key, n: _uniform_sphere(key, n, 3),
        start_off=lambda key, n: 2 * jax.random.normal(key, (n, 3)),
        moments={f"x_{i + 1}²": Moment(_square_about(i, 0.0), truth[i]) for i in range(3)}
        | {"x_3": Moment(_coordinate(2), 0.0)},
        exact=exact,
    )


def orthogonal(n: int = 4) -> KnownProblem:
    """Rotations: n×n matrices with X Xᵀ = I and det X = 1, uniform (Haar); d = n², m = n(n+1)/2, positions flattened."""
    upper = tuple(index.astype(np.int32) for index in np.triu_indices(n))  # int32 in either precision
    matrix = lambda x: x.reshape(n, n)

    def exact(key: Array, count: int) -> Array:
        def one(key: Array) -> Array:
            q, r = jnp.linalg.qr(jax.random.normal(key, (n, n)))
            q = q * jnp.sign(jnp.diagonal(r))[None]
            return q.at[0].multiply(jnp.sign(jnp.linalg.det(q))).reshape(-1)

        return jax.vmap(one)(jax.random.split(key, count))

    return KnownProblem(
        name="orthogonal",
        problem=Problem(lambda x: 0.0, equality=lambda x: (matrix(x) @ matrix(x).T - jnp.eye(n, dtype=x.dtype))[upper]),
        dim=n * n,
        start_on=exact,
        start_off=lambda key, count: jnp.eye(n).reshape(1, -1) + 0.3 * jax.random.normal(key, (count, n * n)),
        moments={
            "trace": Moment(lambda x: jnp.trace(matrix(x)), 0.0),
            "trace²": Moment(lambda x: jnp.trace(matrix(x)) ** 2, 1.0),
            "trace⁴": Moment(lambda x: jnp.trace(matrix(x)) ** 4, 4.0 if n == 4 else 3.0),
            "x_1²": Moment(_square_about(0, 0.0), 1 / n),
        },
        exact=exact,
    )


def spherical_cap(dim: int = 3, level: float = 0.3) -> KnownProblem:
    """The part x₁ ≥ c of the unit sphere, uniform: an equality and an inequality. d = 3: E[x₁] = (1 + c)/2."""
    if not -1 < level < 1:
        raise ValueError(f"level must lie between -1 and 1; got {level!r}.")
    # Along t = x₁ the area element is (1 − t²)^{(d−3)/2}.
    grid = np.linspace(level, 1, 200_001)
    density = np.maximum(1 - grid**2, 0.0) ** ((dim - 3) / 2)
    mean, square = (float(np.trapezoid(grid**k * density, grid) / np.trapezoid(density, grid)) for k in (1, 2))
    cumulative = np.concatenate([[0], np.cumsum(0.5 * (density[1:] + density[:-1]))])

    def exact(key: Array, n: int) -> Array:
        height_key, direction_key = jax.random.split(key)
        t = jnp.interp(
            jax.random.uniform(height_key, (n,)), jnp.asarray(cumulative / cumulative[-1]), jnp.asarray(grid)
        )[:, None]
        return jnp.concatenate([t, jnp.sqrt(1 - t**2) * _uniform_sphere(direction_key, n, dim - 1)], axis=1)

    return KnownProblem(
        name="spherical_cap",
        problem=Problem(lambda x: 0.0, equality=lambda x: jnp.sum(x**2) - 1, inequality=lambda x: level - x[0]),
        dim=dim,
        start_on=exact,
        start_off=lambda key, n: 2 * jax.random.normal(key, (n, dim)),
        moments={
            "x_1": Moment(_coordinate(0), mean),
            "x_1²": Moment(_square_about(0, 0.0), square),
            "x_2": Moment(_coordinate(1), 0.0),
        },
        exact=exact,
    )


def _uniform_sphere(key: Array, n: int, dim: int) -> Array:
    z = jax.random.normal(key, (n, dim))
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


def _bessel_ratio(order: float, argument: float) -> float:
    """I_ν(κ)/I_{ν−1}(κ) by its continued fraction, 1/(2ν/κ + 1/(2(ν+1)/κ + …)), evaluated from the far end."""
    value = 0.0
    for k in range(500, -1, -1):
        value = 1 / (2 * (order + k) / argument + value)
    return value


PROBLEMS: dict[str, Callable[..., KnownProblem]] = {
    "cubic": cubic,
    "transport": transport,
    "affine_gaussian": affine_gaussian,
    "ellipse": ellipse,
    "torus_a": torus_a,
    "torus_b": torus_b,
    "von_mises_fisher": von_mises_fisher,
    "bingham": bingham,
    "orthogonal": orthogonal,
    "spherical_cap": spherical_cap,
}
