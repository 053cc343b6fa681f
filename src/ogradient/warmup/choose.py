"""The algorithm of a run that names none, or only its name: land, tune, and say what was chosen and why."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from jax import Array, random

from ogradient.keys import as_key
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.progress import TuningBar
from ogradient.samplers import chmc, clangevin, o_kinetic, o_langevin
from ogradient.samplers.base import SamplingAlgorithm, check_positive, settings_of
from ogradient.samplers.chmc import CHMC
from ogradient.start.inspect import check_start
from ogradient.start.landing import bring_inside, land_starts
from ogradient.start.positions import check_positions, free_positions, many_starts
from ogradient.status import warn
from ogradient.warmup.chmc import CHMCTuning, tune_chmc
from ogradient.warmup.lengths import TRAJECTORIES
from ogradient.warmup.metric import kind_of
from ogradient.warmup.near import tune_o_kinetic, tune_o_langevin
from ogradient.warmup.stages import Journal, Windows

TUNED = ("chmc", "clangevin", "o_langevin", "o_kinetic")
NEAR = ("o_langevin", "o_kinetic")
FALLBACK = "o_kinetic"  # where the exact samplers accept too little
JITTER, LENGTH_JITTER = 0.2, 0.2  # of step and length of a tuned chmc
LEAST_ACCEPTANCE = 0.2  # of a tuned chmc; below, its moves fail for reasons that tuning cannot mend


def check_name(name: str | None) -> None:
    """Refuse a name whose settings are not found here."""
    if name is not None and name not in TUNED:
        raise ValueError(
            f"algorithm must be an algorithm, such as og.o_svgd(problem, 0.1), or one of the names {TUNED} whose settings are "
            f"found in warm-up; got {name!r}."
        )


class Tuned(NamedTuple):
    """What warm-up found: the algorithm with its settings, where its chains are, and the numbers behind it."""

    algorithm: SamplingAlgorithm
    positions: Position
    found: dict[str, Any]


def tune(
    seed: int | Array,
    problem: Problem,
    initial_positions: Position,
    *,
    algorithm: str | None = None,
    num_chains: int | None = None,
    spread: Any = None,
    tolerance: float | None = None,
    target_accept: float | None = None,
    progress: bool = True,
) -> Tuned:
    """Find an algorithm and its settings once, to sample with often.

    Args:
        seed: a whole number, or a typed key.
        problem: what to sample.
        initial_positions: starts, as in `og.sample`.
        algorithm: "chmc", "clangevin", "o_langevin" or "o_kinetic"; None chooses as og.sample does.
        num_chains: as in `og.sample`.
        spread: as in `og.sample`.
        tolerance: the largest mean |g| that a tuned O-Langevin or O-kinetic may have.
        target_accept: acceptance rate that the step size of an exact sampler is tuned to; None is 0.85, or 0.8 with inequalities.
        progress: print what was chosen.

    Returns:
        `(algorithm, positions, found)`: the algorithm for this problem, positions of the chains at the end of the search, and a
        dict of what it is based on (step size, acceptance rate, chains that do not move).

    >>> import jax, jax.numpy as jnp, ogradient as og
    >>> problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: x[0] + x[1] ** 3)
    >>> algorithm, positions, found = og.tune(0, problem, jnp.ones((8, 2)), progress=False)
    >>> trace = og.sample(1, problem, positions, algorithm=algorithm, num_warmup=0, num_samples=200)
    >>> bool(0.6 < found["acceptance_rate"] < 0.95), trace["x"].shape
    (True, (8, 200, 2))
    """
    check_name(algorithm)
    key = as_key(seed)
    starts = many_starts(key, initial_positions, num_chains, spread)
    positions = free_positions(problem, check_positions(problem, starts))
    limits: dict[str, Any] = {"tolerance": tolerance, "target_accept": target_accept}
    tuned = choose(problem.free, positions, key, algorithm, progress=progress, **limits)
    return tuned if problem.support is None else tuned._replace(positions=problem.support.to_user(tuned.positions))


def choose(
    problem: Problem,
    positions: Position,
    key: Array,
    name: str | None,
    *,
    tolerance: float | None,
    target_accept: float | None = None,
    progress: bool,
    journal: Journal | None = None,
) -> Tuned:
    """The algorithm with its settings, and where its chains start; positions are checked already."""
    if not problem.constrained and name in NEAR:
        raise ValueError(f"{name} needs a constraint and the problem has none: leave out the name, for HMC.")
    if problem.stochastic:
        raise ValueError(
            "settings are found in warm-up only with all the data in every step; with minibatches give them: "
            "algorithm=og.o_langevin(problem, step_size, alpha=0.1 / step_size), and all rows to the constraint where you can: "
            "og.posterior(..., constraint_batch_size=N)."
        )
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    if target_accept is not None:
        check_positive("target_accept", target_accept)
        if not target_accept < 1 or name in NEAR:
            raise ValueError(
                f"target_accept must lie below 1, and is for samplers that accept and reject; got {target_accept!r}."
            )
    key = random.fold_in(key, np.uint32(2**32 - 1))
    single, exact = name == "clangevin", name not in NEAR
    kernel = CHMC(single=True) if single else CHMC(jitter=JITTER, length_jitter=LENGTH_JITTER)
    with TuningBar(name or "chmc", show=progress) as bar:
        windows = Windows(key, problem, kernel, target_accept, bar if progress else None, journal)
        # The kernel takes longest to compile: meanwhile the starts are looked at, and landed.
        wait = windows.prepare(positions) if exact else None
        positions = bring_inside(problem, positions)
        check_start(problem, positions, {}, constrained=problem.constrained)
        landed = land_starts(problem, positions) if exact else positions
        if wait is not None:
            wait()
        tuned = tune_chmc(windows, landed, (1,) if single else TRAJECTORIES) if exact else None
    reason = "asked for"
    if tuned is not None:
        if name is not None or tuned.acceptance_rate > LEAST_ACCEPTANCE or not problem.constrained:
            _warn_stuck(tuned)
            return _exact(problem, tuned, single=single, progress=progress)
        reason = f"chmc accepts only {tuned.acceptance_rate:.2f} of its moves here"
    with TuningBar(name or FALLBACK, show=progress) as bar:
        tuned_near = _near(key, problem, positions, name or FALLBACK, tolerance, bar)
    step_size, violation = tuned_near.found["step_size"], tuned_near.found["mean_violation"]
    what = f"{name or FALLBACK}, near the set: step_size={step_size:.3g}"
    _say(f"{what}, {_other_settings(tuned_near.algorithm)}, mean |g| {violation:.2g} ({reason})", progress)
    if name is None:
        warn(
            f"the draws are near the set, not on it, and their law is off by O(step_size²): {reason}, so og.sample runs "
            f"{FALLBACK} with step_size={step_size:.3g} (mean |g| {violation:.2g}). To insist, pass algorithm='chmc'; this "
            f"warning does not come with algorithm='{FALLBACK}'."
        )
    return tuned_near


def _near(
    key: Array, problem: Problem, positions: Position, name: str, tolerance: float | None, bar: TuningBar
) -> Tuned:
    """A sampler near the set with the settings that were found."""
    if name == "o_kinetic":
        h, friction, violation = tune_o_kinetic(key, problem, positions, tolerance=tolerance, bar=bar)
        found = {"step_size": h, "friction": friction, "mean_violation": violation}
        return Tuned(o_kinetic(problem, h, friction=friction), positions, found)
    eta, violation, _ = tune_o_langevin(key, problem, positions, tolerance=tolerance, bar=bar)
    found = {"step_size": eta, "mean_violation": violation}
    return Tuned(o_langevin(problem, eta, alpha=1 / eta), positions, found)


def _other_settings(algorithm: SamplingAlgorithm) -> str:
    """Friction, or pull, as words."""
    settings = settings_of(algorithm)
    if "friction" in settings:
        return f"friction={settings['friction']:.3g}"
    return f"alpha={settings['alpha']:.3g}, beta=0"


def _exact(problem: Problem, tuned: CHMCTuning, *, single: bool, progress: bool) -> Tuned:
    """The exact sampler with the settings that were found."""
    step_size, mass, accepted = tuned.step_size, tuned.inverse_mass, f"acceptance {tuned.acceptance_rate:.2f}"
    kind = kind_of(mass)
    if single:
        _say(f"clangevin: step_size={step_size:.3g}, {kind} metric, {accepted}", progress)
        algorithm = clangevin(problem, step_size, inverse_mass=mass)
    else:
        steps = tuned.num_integration_steps
        where = "exact on the set" if problem.constrained else "HMC without a constraint"
        numbers = f"step_size={step_size:.3g}, num_integration_steps={steps}, jitter={JITTER}"
        _say(f"chmc, {where}: {numbers}, {kind} metric, {accepted}", progress)
        settings: dict[str, Any] = {"num_integration_steps": steps, "inverse_mass": mass}
        algorithm = chmc(problem, step_size, jitter=JITTER, length_jitter=LENGTH_JITTER, **settings)
    found = {
        "step_size": step_size,
        "acceptance_rate": tuned.acceptance_rate,
        "efficiency": tuned.efficiency,
        "num_warmup": tuned.num_warmup,
        "stuck_chains": np.flatnonzero(tuned.stuck).tolist(),
    }
    return Tuned(algorithm, tuned.positions, found)


def _warn_stuck(tuned: CHMCTuning) -> None:
    """Chains that keep their places although they do not move: the others cannot speak for the part of the set they are in."""
    stuck = np.flatnonzero(tuned.stuck)
    if stuck.size:
        warn(
            f"{stuck.size} of {tuned.stuck.size} chains (the first is chain {stuck[0]}) do not move at the step size that suits "
            "the others. They may be in a much smaller part of the set, or in a corner of it. Their draws stay where they are, "
            "so look at R-hat; a smaller step size, og.chmc(problem, ...), moves them too."
        )


def _say(text: str, progress: bool) -> None:
    if progress:
        print(f"og.sample chose {text}.", file=sys.stderr)
