"""The problems on which samplers are compared, and the coordinates in which NUTS can sample some of them.

`CASES` lists them. Hand-made coordinates z ∈ R^k are what somebody who knows the set would write down: a density of z, and the
position x of a z. Starts in them are N(0, I).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import peer_targets

import ogradient as og
from ogradient.problems.known import KnownProblem


class Coordinates(NamedTuple):
    """Free coordinates of a set: how many, the log density in them, and the position they stand for."""

    dim: int
    logdensity: Callable[[Any], Any]
    position: Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A problem, coordinates for NUTS if there are any, and what else methods need to know of it."""

    known: KnownProblem
    # A step for unadjusted Langevin dynamics, about a fiftieth of the smallest variance along the set.
    langevin_step: float
    coordinates: Coordinates | None = None
    # Where the library has a support for the set: the same law without a constraint, and starts (n, d) moved into the support.
    supported: og.Problem | None = None
    inside: Callable[[Any], Any] = lambda starts: starts


def half_square(z):
    return -0.5 * jnp.sum(z**2)


def unit(z):
    """A direction from a Gaussian vector, which is uniform on the sphere."""
    return z / jnp.linalg.norm(z)


def ellipse():
    # In the conditional law the parameter angle is uniform.
    position = lambda z: unit(z) * jnp.array([3.0, 1.0])
    return Case(og.problems.ellipse(), 0.01, Coordinates(2, half_square, position))


def von_mises_fisher(dim=100, concentration=50.0):
    known = og.problems.von_mises_fisher(dim, concentration)
    density = lambda z: half_square(z) + concentration * unit(z)[0]
    return Case(known, 2e-4, Coordinates(dim, density, unit))


def rotated_gaussian(dim=60):
    known, matrix = peer_targets.rotated_gaussian(dim)
    rows = len(matrix)
    centre = jnp.asarray(np.linalg.pinv(matrix) @ np.ones(rows), jnp.float32)
    null = jnp.asarray(np.linalg.svd(matrix)[2][rows:].T, jnp.float32)
    position = lambda z: centre + null @ z
    return Case(known, 0.02, Coordinates(dim - rows, lambda z: known.problem.logdensity(position(z)), position))


def stick_breaking(dim):
    """The uniform law on the simplex by Stan's stick-breaking: piece k is a share σ(z_k − log(d − k)) of what is left."""
    offset = jnp.log(jnp.arange(dim - 1, 0, -1.0))

    def pieces(z):
        log_share, log_rest = jax.nn.log_sigmoid(z - offset), jax.nn.log_sigmoid(offset - z)
        log_left = jnp.concatenate([jnp.zeros(1), jnp.cumsum(log_rest)])
        return log_share, log_rest, log_left

    def density(z):
        # dx_k/dz_k = left_k · share_k · (1 − share_k), and the Jacobian is triangular.
        log_share, log_rest, log_left = pieces(z)
        return jnp.sum(log_left[:-1] + log_share + log_rest)

    def position(z):
        log_share, _, log_left = pieces(z)
        return jnp.exp(jnp.concatenate([log_left[:-1] + log_share, log_left[-1:]]))

    return Coordinates(dim - 1, density, position)


def simplex(dim=30):
    supported = og.Problem(lambda x: jnp.zeros((), x.dtype), support=og.simplex)
    inside = lambda starts: starts / jnp.sum(starts, axis=1, keepdims=True)
    return Case(peer_targets.simplex(dim), 2e-5, stick_breaking(dim), supported, inside)


def half_normals(dim=20):
    density = lambda z: half_square(jnp.exp(z)) + jnp.sum(z)
    supported = og.Problem(half_square, support=og.positive)
    return Case(peer_targets.half_normals(dim), 0.01, Coordinates(dim, density, jnp.exp), supported)


def rotations(n=5):
    # The orthogonal factor of a Gaussian matrix has the uniform law; turning one row makes its determinant 1.
    def position(z):
        left, _, right = jnp.linalg.svd(z.reshape(n, n))
        rotation = left @ right
        return rotation.at[0].multiply(jnp.sign(jnp.linalg.det(rotation))).reshape(-1)

    return Case(og.problems.orthogonal(n), 5e-3, Coordinates(n * n, half_square, position))


def mici_torus():
    angles = lambda z: (jnp.arctan2(z[1], z[0]), jnp.arctan2(z[3], z[2]))

    def density(z):
        theta, phi = angles(z)
        return half_square(z) + jnp.log1p(0.9 * jnp.sin(4 * theta) * jnp.cos(phi))

    def position(z):
        theta, phi = angles(z)
        radius = 1 + 0.5 * jnp.cos(phi)
        return jnp.stack([radius * jnp.cos(theta), radius * jnp.sin(theta), 0.5 * jnp.sin(phi)])

    return Case(og.problems.mici_torus(), 2e-3, Coordinates(4, density, position))


def transport(dim, rows):
    known = og.problems.transport(dim, rows)

    def position(z):
        # x_i = y_i − sin x_{i+1}, from the last coordinate to the first.
        y = jnp.concatenate([jnp.zeros(rows), z])
        back = lambda following, y_i: (y_i - jnp.sin(following),) * 2
        return jnp.concatenate([jax.lax.scan(back, y[-1], y[:-1], reverse=True)[1], y[-1:]])

    return Case(known, 0.01, Coordinates(dim - rows, half_square, position))


def spherical_cap(dim=3, level=0.3):
    height = lambda z: level + (1 - level) * jax.nn.sigmoid(z[0])

    def density(z):
        t = height(z)
        log_slope = jax.nn.log_sigmoid(z[0]) + jax.nn.log_sigmoid(-z[0])
        return 0.5 * (dim - 3) * jnp.log(1 - t**2) + log_slope + half_square(z[1:])

    def position(z):
        t = height(z)
        return jnp.concatenate([t[None], jnp.sqrt(1 - t**2) * unit(z[1:])])

    return Case(og.problems.spherical_cap(dim, level), 2e-3, Coordinates(dim, density, position))


def bond_chain(atoms=30):
    known = peer_targets.bond_chain(atoms)

    def position(z):
        first, bonds = z[:3], z[3:].reshape(atoms - 1, 3)
        bonds = bonds / jnp.linalg.norm(bonds, axis=1, keepdims=True)
        return jnp.cumsum(jnp.concatenate([first[None], bonds]), axis=0).reshape(-1)

    # The radius of each z is free of the law, and Gaussian.
    density = lambda z: half_square(z[3:]) + known.problem.logdensity(position(z))
    return Case(known, 2e-3, Coordinates(3 * atoms, density, position))


CASES: dict[str, Callable[[], Case]] = {
    "ellipse": ellipse,
    "von_mises_fisher": von_mises_fisher,
    "rotated_gaussian": rotated_gaussian,
    "simplex": simplex,
    "half_normals": half_normals,
    "rotations": rotations,
    "mici_torus": mici_torus,
    "transport_100_1": lambda: transport(100, 1),
    "transport_100_10": lambda: transport(100, 10),
    "transport_1000_10": lambda: transport(1000, 10),
    "spherical_cap": spherical_cap,
    "quadratic_poly": lambda: Case(og.problems.quadratic_poly(), 2e-3),
    "bond_chain": bond_chain,
    "pressure": lambda: Case(peer_targets.pressure(), 5e-3),
}
# Needs a table, and is there only where one is given.
WITH_DATA: dict[str, Callable[[Any], Case]] = {"income": lambda data: Case(peer_targets.income(data), 0.01)}


def build(name, data=None):
    """The case of a name."""
    return CASES[name]() if name in CASES else WITH_DATA[name](data)
