"""What a trace alone shows: how its steps ended, whether every chain moves, whether the chains agree."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from ogradient.diagnostics.mixing import FEWEST, RHAT_BAD, RHAT_LIMIT, Screen, fixed_scalars, scalar_name, worst_mixing
from ogradient.problem import Problem
from ogradient.status import Status
from ogradient.trace import Trace

Level = Literal["fine", "doubtful", "bad", "unknown"]

ESS_LIMIT = 400
MANY_REFUSED = 0.5  # the fraction of moves that a solver, or the check of reversibility, may refuse
STUCK = 0.02  # a chain is stuck that moves in a smaller fraction of its draws, or in a twentieth of what others do


class Finding(NamedTuple):
    """One thing looked at: what, how it stands, and a sentence with the numbers."""

    subject: str
    level: Level
    text: str


def status_finding(trace: Trace) -> Finding:
    """How the steps ended. Refused moves are part of exact sampling, unless they are most of them."""
    total, problems = int(trace.status_counts.sum()), trace.problems()
    if not problems:
        return Finding("status", "fine", f"all {total:,} steps went well.")
    refused = {c: n for c, n in problems.items() if c in (Status.SOLVER_DIVERGED, Status.NOT_REVERSIBLE)}
    faults = {c: n for c, n in problems.items() if c not in refused}
    level: Level = "bad" if Status.NON_FINITE in faults else "doubtful"
    notes = []
    if Status.RANK_DEFICIENT in faults and not trace.status_counts[:, Status.OK].any():
        # At every step: rows that depend on each other everywhere.
        del faults[Status.RANK_DEFICIENT]
        notes.append("rows of the constraint repeat each other at every step; the redundant ones only cost time")
    if refused:
        fraction = sum(refused.values()) / total
        names = ", ".join(f"{Status(code).name} {count:,}" for code, count in refused.items())
        moves = f"{percent(fraction)} of {total:,} moves were refused"
        if fraction > MANY_REFUSED:
            hard = (
                "the set is hard to follow where the chains are (sharp bends, singular points, a constraint with little "
                "precision): look at og.land from several starts, use jax_enable_x64, or og.o_kinetic"
            )
            remedy = hard if trace.provenance.get("tuned") else "use a smaller step"
            return Finding("status", level, f"{moves} ({names}): {remedy}.")
        notes.append(f"{moves} on the way ({names}), which is part of exact sampling")
    if not faults:
        text = "; ".join(notes)
        return Finding("status", "fine", f"{text[0].upper()}{text[1:]}.")
    named = [f"{count:,} of {total:,} {Status(code).name}: {Status(code).remedy}" for code, count in faults.items()]
    return Finding("status", level, "; ".join(named + notes) + ".")


def movement_finding(trace: Trace) -> Finding:
    """A chain that stands still tells nothing of the law, and R-hat of many chains hardly sees it."""
    if trace.num_draws < 2:
        return Finding("movement", "unknown", "one draw per chain shows none.")
    moved = np.zeros((trace.num_chains, trace.num_draws - 1), bool)
    for value in trace.variables.values():
        for chain, here in enumerate(value.reshape(*value.shape[:2], -1)):
            moved[chain] |= (here[1:] != here[:-1]).any(axis=1)
    moving = moved.mean(axis=1)
    stuck = np.flatnonzero(moving < max(STUCK, np.median(moving) / 20))
    if stuck.size:
        first = f"chain {stuck[0]} in {percent(moving[stuck[0]])} of its draws"
        step = "" if trace.provenance.get("tuned") else "use a smaller step, or "
        who = f"{stuck.size} of {trace.num_chains} chains hardly move ({first})"
        return Finding("movement", "bad", f"{who}: {step}start them elsewhere, or leave them out.")
    return Finding("movement", "fine", f"every chain moves, in at least {percent(moving.min())} of its draws.")


def mixing_findings(trace: Trace, seen: Screen | None, problem: Problem | None) -> list[Finding]:
    """R-hat and ESS of the worst scalars; those that the constraint fixes are left out."""
    both = lambda level, text: [Finding(subject, level, text) for subject in ("R-hat", "ESS")]
    if seen is None:
        reason = (
            "not given for particles: they are one interacting ensemble, not a Markov chain, so "
            "there is no autocorrelation to judge. Compare independent ensembles, and look at the law below."
        )
        return both("unknown", reason)
    fixed = fixed_scalars(problem, trace.position, seen)
    mixing = worst_mixing(trace.variables, seen, fixed)
    if mixing is None:
        few = f"needs at least {FEWEST} draws per chain that move; there are {trace.num_draws}."
        return both("doubtful", few)
    name = lambda index: scalar_name(trace.variables, int(index))
    # What does not move and is not fixed: no chain tells anything about it.
    idle = np.flatnonzero(seen.still & ~fixed)
    if idle.size and problem is not None:
        text = f"{name(idle[0])} moves in no chain, though the constraint does not fix it: is the step far too small?"
        return both("doubtful", text)
    many = mixing.ess > ESS_LIMIT
    rhat = f"largest {mixing.rhat:.3f} (of {name(mixing.rhat_of)})"
    if mixing.rhat < RHAT_LIMIT or (mixing.by_chance and many):
        level: Level = "fine"
        rhat += "." if mixing.rhat < RHAT_LIMIT else ", no more than chains of this length differ by chance."
    else:
        level = "bad" if mixing.rhat > RHAT_BAD else "doubtful"
        rhat += "; the chains disagree: run longer."
    held = np.flatnonzero(fixed)
    if held.size:
        more = f" and {held.size - 1} more are" if held.size > 1 else " is"
        rhat += f" {name(held[0])}{more} fixed by the constraint."
    ess = f"smallest {mixing.ess:,.0f} (of {name(mixing.ess_of)})" + (
        "." if many else f"; below {ESS_LIMIT}: run longer."
    )
    return [Finding("R-hat", level, rhat), Finding("ESS", "fine" if many else "doubtful", ess)]


def percent(fraction: float) -> str:
    """A fraction of 1 as text, in percent."""
    return f"{100 * fraction:.0f} %" if fraction >= 0.095 else f"{100 * fraction:.2g} %"
