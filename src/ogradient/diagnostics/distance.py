"""How far draws are from {g = 0}, in lengths that mean something there.

Draws of a sampler that obeys near the set are off by about η/R, a step's variance over the radius of curvature. The set itself
leaves its tangent plane by about σ²/R among the draws, σ their spread along it. So off/bend ≈ η/σ² is small, whatever the
unit of x, however many dimensions there are and however flat the set is. Draws that ignore g are off by what π allows them, and
on a flat set, where bend = 0, every distance beyond roundings is too far.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.geometry import frame_at, landing
from ogradient.mapping import draws_together, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position

NEWTON_STEPS = 3
ROUNDINGS = 256  # of the terms of J x: closer than that is on the set
BENT = 250  # draws whose tangent planes are compared with the others


class Distance(NamedTuple):
    """Lengths per draw and row of g, and the values of g."""

    value: np.ndarray  # g, (n, m)
    norms: np.ndarray  # ‖∇g_k‖, (n, m)
    share: float  # nine in ten draws are within this share of the spread of all coordinates
    off: np.ndarray  # (m,): |g_k|/‖∇g_k‖ of nine in ten draws
    bend: np.ndarray  # (m,): how far the set leaves its own tangent plane among the draws, along ∇g_k
    against_bend: np.ndarray  # (m,): off over bend, nine in ten draws; 0 where off is at rounding level


def distance_to_set(problem: Problem, draws: Position) -> Distance:
    """Distances of draws (n, ...) from the set, against their spread and against the bend of the set."""
    x, value, norms, off, whole, rounding = (np.asarray(part, np.float64) for part in _distances(problem, draws))
    spread = np.sqrt(x.var(axis=0).sum())
    share = float(np.quantile(whole, 0.9) / spread) if spread > 0 else np.inf
    chosen = np.linspace(0, len(x) - 1, min(BENT, len(x))).astype(int)
    bend = np.asarray(_bends(problem, jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], draws)), np.float64)
    far = np.where(off > ROUNDINGS * rounding, off, 0.0)[chosen]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(far > 0, far / bend, 0.0)
    nine = lambda values: np.quantile(values, 0.9, axis=0, method="higher")  # which leaves infinities alone
    return Distance(value, norms, share, nine(off), np.sqrt(np.mean(bend**2, axis=0)), nine(ratio))


@jax.jit
def _distances(problem: Problem, draws: Position) -> tuple[Array, ...]:
    def one(position: Position) -> tuple[Array, ...]:
        x, _, constraint, _ = problem.flatten(position)
        frame = frame_at(constraint, x)
        norms = jnp.linalg.norm(frame.jacobian, axis=1)
        safe = jnp.where(norms > 0, norms, 1.0)
        rounding = jnp.finfo(x.dtype).eps * (jnp.abs(frame.jacobian) @ jnp.abs(x)) / safe
        rounding = jnp.maximum(rounding, jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x)))
        whole = jnp.linalg.norm(landing(frame, alpha=1.0))
        return x, frame.value, norms, jnp.abs(frame.value) / safe, whole, rounding

    return over_particles(one, jax.tree.map(jnp.asarray, draws), draws_together(problem))


@jax.jit
def _bends(problem: Problem, draws: Position) -> Array:
    """(n, m): root mean square over j of n_k(x_i)·(y_j − y_i), with y the draws brought nearer to the set by Newton steps."""

    def one(position: Position) -> tuple[Array, Array]:
        x, _, constraint, _ = problem.flatten(position)
        jacobian = frame_at(constraint, x).jacobian
        for _ in range(NEWTON_STEPS):
            x = x + landing(frame_at(constraint, x), alpha=1.0)
        norms = jnp.linalg.norm(jacobian, axis=1, keepdims=True)
        return x, jacobian / jnp.where(norms > 0, norms, 1.0)

    y, normals = over_particles(one, jax.tree.map(jnp.asarray, draws), draws_together(problem))

    def bend(argument: tuple[Array, Array]) -> Array:
        here, rows = argument
        return jnp.sqrt(jnp.mean(((y - here[None]) @ rows.T) ** 2, axis=0))

    return over_particles(bend, (y, normals), 32)
