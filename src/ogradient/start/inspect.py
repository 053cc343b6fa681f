"""Look at the starts once, before any loop, and say what is wrong and what to do about it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.compilation import compiled
from ogradient.geometry import frame_at, random_signs, row_lengths, steer, value_and_jacobian
from ogradient.geometry.land import land
from ogradient.precision import full_precision
from ogradient.problem import Problem
from ogradient.problem.functions import Position, first_of, shapes_of
from ogradient.status import Status, warn

NEWTON_STEPS = 24
TURNED = 0.25  # a gradient that turns by more within 8 roundings of x: the set is not resolved


def check_start(
    problem: Problem,
    positions: Position,
    settings: dict[str, Any],
    *,
    constrained: bool,
    every_draw: bool = True,
    ensemble: bool = False,
) -> None:
    """Evaluate the problem at the starts: finite? constraint constant, squared, unattainable? pull too strong?

    Args:
        problem: what is sampled.
        positions: checked starts of all chains.
        settings: of the algorithm (step_size, alpha, beta).
        constrained: whether the algorithm uses the constraint, so that its faults matter.
        every_draw: whether every draw is to obey it, not only their mean.
        ensemble: whether a second axis holds the particles.
    """
    if ensemble:
        if "rkhs_kernel" in settings:
            _check_particles(positions, settings)
        positions = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), positions)
    report = jax.tree.map(np.asarray, _inspect_all(problem, positions, constrained))
    who = "particles" if ensemble else "chains"
    for name, argument in (("logdensity", "logdensity_fn"), ("score", "the gradient of logdensity_fn")):
        _refuse_non_finite(argument, report[name], who)
    _warn_not_a_sum(problem, positions)
    if not constrained:
        return
    values, norms = report["values"], report["norms"]  # (chains, 1 + NEWTON_STEPS, m)
    kinds = {"equality": (values[:, 0], norms[:, 0]), "inequality": (report["bounds"], report["slopes"])}
    for kind, (value, norm) in kinds.items():
        _refuse_non_finite(kind, value, who)
        _refuse_non_finite(f"the gradient of {kind}", norm, who)
        flat = np.flatnonzero(np.all(norm == 0, axis=0))
        if flat.size:
            raise ValueError(
                f"the gradient of {kind}[{flat[0]}] is zero at every start: either it does not depend on the position, or "
                "the starts sit on a critical point of it, or it counts answers (p > 0.5), which has no gradient: use the "
                "probabilities. Check the function, or start elsewhere."
            )
    _warn_partial(problem)
    if problem.inequality is not None and every_draw:
        _warn_infeasible(problem, positions, report["bounds"])
    if problem.equality is None:
        return
    if every_draw:
        squared = _warn_squared(values, report["size"])
        _refuse_unresolved(report, ~squared)
        _refuse_points(problem, report["deficient"][:, -1], positions)
        _warn_unattainable(values, norms, report["size"], dependent=bool(report["deficient"][:, 0].all()))
    _warn_capped(values[:, 0], settings)


@compiled(once=True, static_argnums=2)
def _inspect_all(problem: Problem, positions: Position, constrained: bool) -> dict[str, Array]:
    with full_precision():
        return _inspect_each(problem, positions, constrained)


def _inspect_each(problem: Problem, positions: Position, constrained: bool) -> dict[str, Array]:
    if problem.data is None:
        return jax.vmap(lambda position: _inspect(problem, position, constrained))(positions)
    # On one batch, where there are batches. One chain at a time, since data take memory.
    view = problem if problem.batch_fn is not None else problem.view(jax.random.key(0))
    return lax.map(lambda position: _inspect(view, position, constrained), positions)


def _inspect(problem: Problem, position: Position, constrained: bool) -> dict[str, Array]:
    """What one start shows: log π, its score and, of the constraint, values and gradients along Newton steps from there."""
    x, logdensity, constraint, unravel = problem.flatten(position)
    value, score = jax.value_and_grad(logdensity)(x)
    report = {"logdensity": value, "score": jnp.sum(jnp.abs(score))}
    if not constrained:
        return report

    def newton(x: Array, _: None) -> tuple[Array, tuple[Array, ...]]:
        frame = frame_at(constraint, x)
        seen = (frame.value, row_lengths(frame.jacobian), row_lengths(x[None])[0], frame.deficient)
        return x + steer(frame, jnp.zeros_like(x), -frame.value), seen

    last, (values, norms, size, deficient) = lax.scan(newton, x, length=NEWTON_STEPS + 1)
    bounds, slopes = value_and_jacobian(lambda x: problem.inequality_value(unravel(x)), x)
    report |= {"bounds": bounds, "slopes": row_lengths(slopes)}
    report |= {"values": values, "norms": norms, "size": size, "deficient": deficient}
    # Where the starts land: how far the gradients turn within a few roundings of x, and the size of the terms of g.
    here, info = value_and_jacobian(constraint, last)[1], jnp.finfo(x.dtype)
    signs = random_signs(jax.random.key(0), (1, x.size), x.dtype)[0]
    there = value_and_jacobian(constraint, last + 8 * info.eps * jnp.abs(last) * signs)[1]
    scale = 1 / jnp.maximum(row_lengths(here), info.tiny)
    turned = row_lengths((there - here) * scale[:, None])
    return report | {"turned": turned, "terms": jnp.max(jnp.abs(last)) * row_lengths(here)}


def _warn_not_a_sum(problem: Problem, positions: Position) -> None:
    """Warn where a likelihood does not look like a sum over rows.

    For rows given twice a sum is twice as large, an average the same, and rows against rows four times as large. A likelihood
    that cannot take other rows than its own, because it holds weights of its own, say, is not looked at.
    """
    if problem.data is None:
        return
    model, data = problem.data.model, problem.data.rows
    once = jax.tree.map(lambda leaf: leaf[: model.batch_size], data)
    name = "loglikelihood_fn" if model.joint_fn is None else "joint_fn"
    try:
        once = once if model.augment is None else model.augment(jax.random.key(0), once)
        twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), once)
        single, double = (float(model.loglikelihood(first_of(positions), batch)) for batch in (once, twice))
    except Exception:
        # A user's function may raise anything on a batch of another size.
        return
    same = lambda factor: single != 0 and abs(double - factor * single) <= 1e-3 * abs(single)
    if same(1):
        warn(
            f"{name} has the same log likelihood for some rows and for those rows given twice: it seems to average over rows. "
            "Sum over them (jnp.sum): the factor N/B for minibatches is applied by og.posterior."
        )
    if same(4):
        warn(
            f"the log likelihood of {name} is four times as large for rows given twice, not twice: it seems to set all rows "
            f"against all rows, as arrays of shapes (N,) and (N, 1) do. The data have shapes {shapes_of(data)}; use y.ravel()."
        )


def _warn_partial(problem: Problem) -> None:
    """Warn of a constraint that sees the likelihood's few rows. With a batch size of its own it is meant."""
    model = None if problem.data is None else problem.data.model
    if model is None or model.batch_size is None:
        return
    if model.constraint_batch_size is not None or model.joint_fn is not None:
        return
    warn(
        f"the constraint sees {model.batch_size} of {model.num_rows} rows in each step. Draws obey the noise of those rows too, "
        "which biases them, throws them out of h <= 0, and can make chains diverge: pass "
        f"constraint_batch_size={model.num_rows} to og.posterior (all rows), or a size of your choice if you mean it."
    )


def _refuse_non_finite(what: str, values: np.ndarray, who: str) -> None:
    bad = np.flatnonzero(~np.isfinite(values.reshape(values.shape[0], -1)).all(axis=1))
    if bad.size:
        raise ValueError(
            f"{what} is not finite at the start of {bad.size} of {values.shape[0]} {who} (the first is number {bad[0]}). "
            "Start where it is, or rewrite it so that it is finite there."
        )


def _check_particles(positions: Position, settings: dict[str, Any]) -> None:
    """Warn of particles that coincide, which move as one; refuse a single one, which has no median distance."""
    leaves = [np.asarray(leaf).reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(positions)]
    flat = np.concatenate(leaves, axis=2)
    n = flat.shape[1]
    if n == 1 and settings["rkhs_kernel"].bandwidth is None:
        raise ValueError(
            "one particle has no median distance; use more particles, or give a bandwidth: og.rbf(bandwidth=1.0)."
        )
    distinct = min(len(np.unique(ensemble, axis=0)) for ensemble in flat)
    if distinct < n:
        warn(
            f"only {distinct} of {n} particles have distinct starts; those that coincide feel the same forces and will stay "
            "together. Start them apart, for instance by adding noise."
        )


def _warn_infeasible(problem: Problem, positions: Position, bounds: np.ndarray) -> None:
    """Warn where no start is inside and none can be brought there: rows of the wrong sign, in conflict, or never below 0."""
    if not (bounds > 0).any(axis=1).all():
        return
    landing = land(problem, positions)
    if (np.asarray(landing.status) == Status.OK).any():
        return
    best, rows = float(np.asarray(landing.residual).min()), np.flatnonzero((bounds > 0).all(axis=0))
    text = f"no start could be brought to where all constraints hold: the best residual is {best:.3g}. "
    if rows.size:
        sign = "is positive at every start; h(x) <= 0 is wanted: if you meant h(x) >= 0, pass -h. "
        text += f"inequality[{rows[0]}] {sign}"
    if best < 1e-6:
        text += "It is nearly 0: an inequality that is never below 0 is an equality; pass it (or its root, if a square) as one. "
    text += "Otherwise the" if rows.size else "The"
    warn(f"{text} constraints may contradict each other, or the starts be too far.")


def _refuse_unresolved(report: dict[str, np.ndarray], regular: np.ndarray) -> None:
    """Refuse a set that the precision does not resolve.

    Its gradients turn within the roundings of x, or its g is made of numbers too small to hold. Rows that are not `regular`
    have a gradient that vanishes on the set, and are not judged.
    """
    info = np.finfo(report["values"].dtype)
    turned, terms = np.median(report["turned"], axis=0), np.median(report["terms"], axis=0)
    size = np.median(report["size"][:, -1])
    if (rows := np.flatnonzero((turned > TURNED) & regular)).size:
        raise ValueError(
            f"equality[{rows[0]}] cannot be resolved in {info.dtype} at |x| = {size:.3g}: its gradient turns by "
            f"{100 * turned[rows[0]]:.0f} % within the roundings of x. Shift the coordinates so that the set is near 0, or use "
            "float64 (jax_enable_x64)."
        )
    small = (terms < info.tiny / info.eps) & (np.median(report["norms"][:, -1], axis=0) > 0) & regular & (size > 0)
    if (rows := np.flatnonzero(small)).size or 0 < size < np.sqrt(info.tiny):
        what = f"|x| is {size:.2g}"
        if rows.size:
            what = f"equality[{rows[0]}] is made of numbers of size {terms[rows[0]]:.2g}"
        units = "Choose units in which coordinates and constraints are of ordinary size."
        raise ValueError(f"{what} on the set, too small for {info.dtype}. {units}")


def _refuse_points(problem: Problem, deficient: np.ndarray, positions: Position) -> None:
    """Refuse as many independent rows as coordinates: single points are nothing to sample."""
    one = first_of(positions)
    dim, rows = problem.flatten(one)[0].size, jax.eval_shape(problem.equality_value, one).shape[0]
    if rows >= dim and not deficient.all():
        raise ValueError(
            f"equality has {rows} independent rows and the position {dim} coordinate{'s' * (dim > 1)}: the set is of dimension "
            "zero, single points, and there is nothing to sample. Drop a row. (For a single chain that starts at x0, pass "
            "x0[None].)"
        )


def _warn_squared(values: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Which rows are squares, with a warning.

    Newton on g = c² halves c, so that g falls by exactly 4 each step; a regular g falls ever faster. From far outside a small
    sphere it falls by 4 as well, but there x itself is halved.
    """
    early = values[:, 5:14]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = early[:, 1:] / early[:, :-1]
        shrinking = np.abs(size[:, 6:14] / size[:, 5:13] - 0.5) < 0.02
    ratios = np.where(shrinking[..., None], np.inf, ratios)
    # Most chains must show it: one may start where Newton's first steps go astray.
    squared = np.mean((early > 0).all(axis=1) & (np.abs(ratios - 0.25) < 0.02).all(axis=1), axis=0) > 0.5
    if squared.any():
        warn(
            f"equality[{np.flatnonzero(squared)[0]}] looks like a square, g = c(x)**2: its gradient vanishes on the set, "
            "so the tangent directions are undefined there. Pass c itself."
        )
    return squared


def _warn_unattainable(values: np.ndarray, norms: np.ndarray, size: np.ndarray, *, dependent: bool) -> None:
    """Warn of rows that Newton brings to 0 from no start, and of rows whose gradients are dependent at every start."""
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.abs(values) / norms / (1 + size[..., None])
    # Rows that contradict each other can each be 0 in passing: what counts is where Newton ends.
    distance = distance[:, -1:] if dependent else distance
    best = np.nanmin(np.where(np.isfinite(distance), distance, np.inf), axis=1)  # (chains, m)
    missed = np.flatnonzero((best > 1e-3).all(axis=0) & (np.abs(values).min(axis=1) > 0).all(axis=0))
    if missed.size > 1 and dependent:
        warn(
            f"equality[{missed[0]}] and equality[{missed[1]}] contradict each other: their gradients are parallel, and no start "
            "could be brought to where both are 0. Drop one of them, or correct its level."
        )
    elif missed.size:
        k = missed[0]
        warn(
            f"equality[{k}] could not be brought to 0 from any start: the smallest |g| in {NEWTON_STEPS} Newton steps was "
            f"{np.nanmin(np.abs(values[..., k])):.3g}. If it is a loss that cannot be 0, pass a level: "
            "g = loss(x) - level; if it can be 0, start nearer to the set."
        )
    elif dependent:
        warn(
            "the gradients of equality are dependent at every start (RANK_DEFICIENT): some rows say the same. The law is that of "
            "the rows without repetition; drop the redundant ones, which only cost time."
        )


def _warn_capped(value: np.ndarray, settings: dict[str, Any]) -> None:
    """Warn of a pull so strong at the starts that the sampler caps it."""
    if "alpha" not in settings:
        return
    eta, alpha, beta = _first_step_size(settings), settings["alpha"], settings["beta"]
    eta = eta / 2 if "friction" in settings else eta  # which pulls twice in a step
    largest = float(np.max((1.0 if alpha is None else alpha * eta) * np.abs(value) ** beta))
    if largest > 1 + 1e-6:
        enough = (1 / eta if alpha is None else alpha) / largest
        warn(
            f"alpha * step_size * |g|**beta is {largest:.3g} at the start; a step with more than 1 overshoots the set, so it "
            f"is capped at 1 (one Newton step). Use alpha <= {enough:.3g} to have the rate you ask for from the first step on."
        )


def _first_step_size(settings: dict[str, Any]) -> float:
    step_size = settings["step_size"]
    # None is that of an optimiser: the landing is then one Newton step.
    step_size = 1.0 if step_size is None else step_size
    return float(step_size(jnp.zeros((), jnp.int32))) if callable(step_size) else float(step_size)
