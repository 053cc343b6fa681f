"""At the door: look at the starts once, before any loop, and say what is wrong and what to do about it."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.geometry import frame_at, steer
from ogradient.problem import Position, Problem
from ogradient.status import ConstraintWarning

NEWTON_STEPS = 24


def check_positions(problem: Problem, positions: Position, *, ensemble: bool = False) -> Position:
    """Positions of all chains as arrays with the chains first (then the particles); functions checked on one of them."""
    leaves, structure = jax.tree.flatten(positions)
    if not leaves:
        raise ValueError("initial_positions is empty; give an array of shape (chains, d) or a pytree of such arrays.")
    arrays = []
    for leaf in leaves:
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise ValueError(f"initial_positions has a leaf that is no array of numbers: {error}") from None
        if array.ndim == 0:
            raise ValueError(
                "every leaf of initial_positions needs the chains as its first axis; got a scalar leaf. A nested list is "
                "a pytree of scalars: wrap it in jnp.array, and add an axis for a single chain: x0[None]."
            )
        arrays.append(array)
    counts = sorted({array.shape[0] for array in arrays})
    if len(counts) > 1:
        raise ValueError(f"the leaves of initial_positions disagree on the number of chains (first axis): {counts}.")
    if counts == [0]:
        raise ValueError("initial_positions has no chain: its first axis is empty.")
    positions = jax.tree.unflatten(structure, arrays)
    if ensemble:
        shapes = {array.shape[:2] for array in arrays}
        if any(len(shape) < 2 for shape in shapes) or len(shapes) > 1 or 0 in next(iter(shapes)):
            raise ValueError(
                "an ensemble sampler needs starts with axes (ensembles, particles, ...) in every leaf; got leading axes "
                f"{sorted(shapes)}. Add an axis for a single ensemble: x0[None]."
            )
    problem.check(jax.tree.map(lambda leaf: leaf[0, 0] if ensemble else leaf[0], positions))
    return positions


def check_start(
    problem: Problem, positions: Position, settings: dict[str, Any], *, constrained: bool, ensemble: bool = False
) -> None:
    """Evaluate the problem at the starts: finite? constraint constant, squared, unattainable? pull too strong?

    Args:
        problem: what is sampled.
        positions: checked starts of all chains.
        settings: of the algorithm (step_size, alpha, beta).
        constrained: whether the algorithm uses the constraint, so that its faults matter.
        ensemble: whether a second axis holds the particles.
    """
    if ensemble:
        _check_particles(positions, settings)
        positions = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), positions)
    report = jax.tree.map(np.asarray, _inspect_all(problem, positions, constrained))
    for name, argument in (("logdensity", "logdensity_fn"), ("score", "the gradient of logdensity_fn")):
        _refuse_non_finite(argument, report[name])
    if not constrained:
        return
    values, norms = report["values"], report["norms"]  # (chains, 1 + NEWTON_STEPS, m)
    _refuse_non_finite("equality", values[:, 0])
    _refuse_non_finite("the gradient of equality", norms[:, 0])
    flat = np.flatnonzero(np.all(norms[:, 0] == 0, axis=0))
    if flat.size:
        raise ValueError(
            f"the gradient of equality[{flat[0]}] is zero at every start: either it does not depend on the position, or "
            "the starts sit on a critical point of it. Check the function, or start elsewhere."
        )
    _warn_squared(values)
    _warn_unattainable(values, norms, report["size"])
    _warn_capped(values[:, 0], settings)


@partial(jax.jit, static_argnums=(0, 2))
def _inspect_all(problem: Problem, positions: Position, constrained: bool) -> dict[str, Array]:
    return jax.vmap(lambda position: _inspect(problem, position, constrained))(positions)


def _inspect(problem: Problem, position: Position, constrained: bool) -> dict[str, Array]:
    x, logdensity, constraint, _ = problem.flatten(position)
    value, score = jax.value_and_grad(logdensity)(x)
    report = {"logdensity": value, "score": jnp.sum(jnp.abs(score))}
    if not constrained:
        return report

    def newton(x: Array, _: None) -> tuple[Array, tuple[Array, Array, Array]]:
        frame = frame_at(constraint, x)
        seen = (frame.value, jnp.linalg.norm(frame.jacobian, axis=1), jnp.linalg.norm(x))
        return x + steer(frame, jnp.zeros_like(x), -frame.value), seen

    _, (values, norms, size) = lax.scan(newton, x, length=NEWTON_STEPS + 1)
    return report | {"values": values, "norms": norms, "size": size}


def _refuse_non_finite(what: str, values: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(values.reshape(values.shape[0], -1)).all(axis=1))
    if bad.size:
        raise ValueError(
            f"{what} is not finite at the start of {bad.size} of {values.shape[0]} chains (the first is chain {bad[0]}). "
            "Start where it is, or rewrite it so that it is finite there."
        )


def _check_particles(positions: Position, settings: dict[str, Any]) -> None:
    """Particles that coincide move as one; a single one has no median distance."""
    flat = np.concatenate(
        [np.asarray(leaf).reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(positions)], axis=2
    )
    n = flat.shape[1]
    if n == 1 and settings["rkhs_kernel"].bandwidth is None:
        raise ValueError(
            "one particle has no median distance; use more particles, or give a bandwidth: og.rbf(bandwidth=1.0)."
        )
    distinct = min(len(np.unique(ensemble, axis=0)) for ensemble in flat)
    if distinct < n:
        _warn(
            f"only {distinct} of {n} particles have distinct starts; those that coincide feel the same forces and will stay "
            "together. Start them apart, for instance by adding noise."
        )


def _warn_squared(values: np.ndarray) -> None:
    """Newton on c² halves c, so g falls by exactly 4 each step; on a regular constraint it falls ever faster."""
    early = values[:, 5:14]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = early[:, 1:] / early[:, :-1]
    squared = np.all((early > 0).all(axis=1) & (np.abs(ratios - 0.25) < 0.02).all(axis=1), axis=0)
    if squared.any():
        _warn(
            f"equality[{np.flatnonzero(squared)[0]}] looks like a square, g = c(x)**2: its gradient vanishes on the set, "
            "so the tangent directions are undefined there. Pass c itself."
        )


def _warn_unattainable(values: np.ndarray, norms: np.ndarray, size: np.ndarray) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.abs(values) / norms / (1 + size[..., None])
    best = np.nanmin(np.where(np.isfinite(distance), distance, np.inf), axis=1)  # (chains, m)
    missed = np.flatnonzero((best > 1e-3).all(axis=0) & (np.abs(values).min(axis=1) > 0).all(axis=0))
    if missed.size:
        k = missed[0]
        _warn(
            f"equality[{k}] could not be brought to 0 from any start: the smallest |g| in {NEWTON_STEPS} Newton steps was "
            f"{np.nanmin(np.abs(values[..., k])):.3g}. If it is a loss that cannot be 0, pass a level: "
            "g = loss(x) - level; if it can be 0, start nearer to the set."
        )


def _warn_capped(value: np.ndarray, settings: dict[str, Any]) -> None:
    if "alpha" not in settings:
        return
    step_size, alpha, beta = settings["step_size"], settings["alpha"], settings["beta"]
    step_size = 1.0 if step_size is None else step_size  # an optimiser's own: the landing is then one Newton step
    eta = float(step_size(jnp.zeros((), jnp.int32))) if callable(step_size) else float(step_size)
    factor = (1.0 if alpha is None else alpha * eta) * np.abs(value) ** beta
    largest = float(np.max(factor))
    if largest > 1 + 1e-6:
        enough = (1 / eta if alpha is None else alpha) / largest
        _warn(
            f"alpha * step_size * |g|**beta is {largest:.3g} at the start; a step with more than 1 overshoots the set, so it "
            f"is capped at 1 (one Newton step). Use alpha <= {enough:.3g} to have the rate you ask for from the first step on."
        )


def _warn(message: str) -> None:
    warnings.warn(message, ConstraintWarning, stacklevel=4)
