"""The algorithm of a run that names none, or only its name: land, tune, and say what was chosen and why."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from jax import Array, random

from ogradient.checks import bring_inside, check_start, land_starts
from ogradient.problem import Position, Problem
from ogradient.samplers import chmc, clangevin, o_langevin
from ogradient.samplers.base import SamplingAlgorithm, check_positive
from ogradient.status import warn
from ogradient.tuning import CHMCTuning, tune_chmc, tune_o_langevin

TUNED = ("chmc", "clangevin", "o_langevin")
JITTER = 0.2  # of the step of a tuned chmc
LEAST_ACCEPTANCE = 0.2  # of a tuned chmc; below, its moves fail for reasons that tuning cannot mend


def check_name(name: str | None) -> None:
    """Refuse a name whose settings are not found here."""
    if name is not None and name not in TUNED:
        raise ValueError(
            f"algorithm must be an algorithm, such as og.o_svgd(problem, 0.1), or one of the names {TUNED} whose settings are "
            f"found in warm-up; got {name!r}."
        )


def choose(
    problem: Problem,
    positions: Position,
    key: Array,
    name: str | None,
    *,
    tolerance: float | None,
    progress: bool,
) -> tuple[SamplingAlgorithm, Position]:
    """The algorithm with its settings, and where its chains start."""
    if not problem.constrained:
        raise ValueError(
            "the problem has no constraint, and og.sample tunes constrained samplers only: pass equality=... or inequality=... "
            "to it, or algorithm=og.langevin(problem, step_size) to sample without."
        )
    if problem.stochastic:
        raise ValueError(
            "settings are found in warm-up only with all the data in every step; with minibatches give them: "
            "algorithm=og.o_langevin(problem, step_size, alpha=0.1 / step_size), and all rows to the constraint where you can: "
            "og.posterior(..., constraint_batch_size=N)."
        )
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    positions = bring_inside(problem, positions)
    check_start(problem, positions, {}, constrained=True)
    key = random.fold_in(key, 2**32 - 1)
    reason = "asked for"
    if name != "o_langevin":
        landed = land_starts(problem, positions)
        if name == "clangevin":
            tuned = tune_chmc(key, problem, landed, trajectories=(1,))
            _warn_stuck(tuned)
            _say(f"clangevin: step_size={tuned.step_size:.3g}, diagonal metric, {_accepted(tuned)}", progress)
            return clangevin(problem, tuned.step_size, inverse_mass=np.asarray(tuned.inverse_mass)), tuned.positions
        tuned = tune_chmc(key, problem, landed)
        if name == "chmc" or tuned.acceptance_rate > LEAST_ACCEPTANCE:
            steps, mass = tuned.num_integration_steps, np.asarray(tuned.inverse_mass)
            _say(
                f"chmc, exact on the set: step_size={tuned.step_size:.3g}, num_integration_steps={steps}, jitter={JITTER}, "
                + ("" if tuned.boundary_step is None else f"boundary_step={tuned.boundary_step:.3g}, ")
                + f"diagonal metric, {_accepted(tuned)}",
                progress,
            )
            settings: dict[str, Any] = {"num_integration_steps": steps, "inverse_mass": mass, "jitter": JITTER}
            _warn_stuck(tuned)
            algorithm = chmc(problem, tuned.step_size, boundary_step=tuned.boundary_step, **settings)
            return algorithm, tuned.positions
        reason = f"chmc accepts only {tuned.acceptance_rate:.2f} of its moves here"
    eta, violation = tune_o_langevin(key, problem, positions, tolerance=tolerance)
    _say(
        f"o_langevin, near the set: step_size={eta:.3g}, alpha={1 / eta:.3g}, beta=0, mean |g| {violation:.2g} ({reason})",
        progress,
    )
    if name is None:
        warn(
            f"the draws are near the set, not on it, and their law is off by O(step_size): {reason}, so og.sample runs "
            f"o_langevin with step_size={eta:.3g} (mean |g| {violation:.2g}). To insist, pass algorithm='chmc'; this "
            "warning does not come with algorithm='o_langevin'."
        )
    return o_langevin(problem, eta, alpha=1 / eta), positions


def _warn_stuck(tuned: CHMCTuning) -> None:
    """Chains that keep their places although they do not move: the others cannot speak for the part of the set they are in."""
    stuck = np.flatnonzero(tuned.stuck)
    if stuck.size:
        warn(
            f"{stuck.size} of {tuned.stuck.size} chains (the first is chain {stuck[0]}) do not move at the step size that suits "
            "the others. They may be in a much smaller part of the set, or in a corner of it. Their draws stay where they are, "
            "so look at R-hat; a smaller step size, og.chmc(problem, ...), moves them too."
        )


def _accepted(tuned: CHMCTuning) -> str:
    return f"acceptance {tuned.acceptance_rate:.2f}"


def _say(text: str, progress: bool) -> None:
    if progress:
        print(f"og.sample chose {text}.", file=sys.stderr)
