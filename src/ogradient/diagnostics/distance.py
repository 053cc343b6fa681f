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

from ogradient.compilation import compiled
from ogradient.diagnostics.mixing import evenly_spaced
from ogradient.geometry import frame_at, landing
from ogradient.mapping import draws_together, over_draws, over_particles
from ogradient.problem import Problem
from ogradient.problem.functions import Position

NEWTON_STEPS = 3
ROUNDINGS = 256  # of the terms of J x: closer than that is on the set
BENT = 250  # draws whose tangent planes are compared with the others


class Distance(NamedTuple):
    """How far draws are from the set: values and lengths per draw and row of g, and what nine in ten draws have."""

    value: np.ndarray  # g, (n, m)
    norms: np.ndarray  # ‖∇g_k‖, (n, m)
    of_spread: float  # nine in ten draws are within this fraction of the spread of all coordinates
    off: np.ndarray  # (m,): |g_k|/‖∇g_k‖ of nine in ten draws
    bend: np.ndarray  # (m,): how far the set leaves its own tangent plane among the draws, along ∇g_k
    against_bend: np.ndarray  # (m,): off over bend, nine in ten draws; 0 where off is at rounding level


def distance_to_set(problem: Problem, draws: Position) -> Distance:
    """Distances of draws (n, ...) from the set, against their spread and against the bend of the set."""
    parts = over_draws(_distances, problem, draws)
    x, value, norms, off, whole, rounding = (np.asarray(part, np.float64) for part in parts)
    spread = np.sqrt(x.var(axis=0).sum())
    of_spread = float(np.quantile(whole, 0.9) / spread) if spread > 0 else np.inf
    far, some = evenly_spaced((np.where(off > ROUNDINGS * rounding, off, 0.0), draws), BENT)
    bend = np.asarray(_bends(problem, some), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(far > 0, far / bend, 0.0)
    # The method "higher" leaves infinities alone.
    nine_in_ten = lambda values: np.quantile(values, 0.9, axis=0, method="higher")
    return Distance(value, norms, of_spread, nine_in_ten(off), np.sqrt(np.mean(bend**2, axis=0)), nine_in_ten(ratio))


def _distances(problem: Problem, position: Position) -> tuple[Array, ...]:
    """Of one draw: x, g, ‖∇g_k‖, |g_k|/‖∇g_k‖, the length of a Newton step, and what roundings make of |g_k|/‖∇g_k‖."""
    x, _, constraint, _ = problem.flatten(position)
    frame = frame_at(constraint, x)
    norms = jnp.linalg.norm(frame.jacobian, axis=1)
    safe = jnp.where(norms > 0, norms, 1.0)
    rounding = jnp.finfo(x.dtype).eps * (jnp.abs(frame.jacobian) @ jnp.abs(x)) / safe
    rounding = jnp.maximum(rounding, jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x)))
    whole = jnp.linalg.norm(landing(frame, alpha=1.0))
    return x, frame.value, norms, jnp.abs(frame.value) / safe, whole, rounding


@compiled
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
