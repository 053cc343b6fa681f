"""A trace in, a verdict in words out."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from ogradient.diagnostics import orthogonal_ksd
from ogradient.diagnostics.distance import Distance, distance_to_set
from ogradient.diagnostics.findings import Finding, Level, mixing_findings, movement_finding, percent, status_finding
from ogradient.diagnostics.jumps import largest_jump
from ogradient.diagnostics.mixing import Screen, evenly_spaced, screen
from ogradient.mapping import over_draws
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.trace import Trace
from ogradient.trace.coordinates import in_free_coordinates

KSD_DRAWS = 1000
KSD_LEVEL = 0.01
MANY_CHAINS = 32  # with so many, a chain is a group of the Stein test; fewer chains are cut into stretches
STRETCH = 10  # the least length of a stretch, in correlation times
FEWEST_GROUPS = 20  # with 12 the test at level 0.01 alarmed in 3 of 100 right runs
NEAR, FAR = 0.5, 1.0  # distances from the set, in units of how far the set bends away from its tangent plane
VANISHING = 0.02  # a gradient below this fraction of its median norm: the set is hardly smooth there
STREAMED = ", on the rows of each step; og.diagnose(trace, og.with_batch(problem, rows)) judges by rows of your choice."
PARTIAL = " Steps see only some rows and obey their noise too: give all of them, constraint_batch_size=N, or a weaker pull alpha."


@dataclass(frozen=True)
class Diagnosis:
    """All findings; print it. `ok` is True when none is bad or doubtful."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found wanting."""
        return all(finding.level in ("fine", "unknown") for finding in self.findings)

    def __getitem__(self, subject: str) -> Finding:
        return next(finding for finding in self.findings if finding.subject == subject)

    def __str__(self) -> str:
        untested = ", ".join(f.subject for f in self.findings if f.level == "unknown")
        fine = f"Nothing speaks against these draws{f'; not tested: {untested}' if untested else ''}."
        head = fine if self.ok else "Do not rely on these draws before looking into this:"
        return "\n".join([head, *(f"  {f.level:8s}  {f.subject}: {f.text}" for f in self.findings)])

    __repr__ = __str__


def diagnose(trace: Trace, problem: Problem | None = None) -> Diagnosis:
    """Say in words what is fine with a trace and what is not: statuses, constraint, R-hat and ESS, law along the set.

    Args:
        trace: of chains or of particles.
        problem: what was sampled; needed for a loaded trace, which no longer has its functions.

    >>> import jax, ogradient as og
    >>> known = og.problems.ellipse()
    >>> starts = known.start_off(jax.random.key(0), 32)
    >>> algorithm = og.o_langevin(known.problem, 0.02)
    >>> trace = og.sample(0, known.problem, starts, algorithm=algorithm, num_samples=4000, thinning=10)
    >>> print(og.diagnose(trace)["status"].text)
    all 1,312,000 steps went well.
    """
    problem = trace.problem if problem is None else problem
    if problem is not None and problem.support is not None:
        trace, problem = in_free_coordinates(trace, problem), problem.free
    streamed = problem is not None and not problem.whole
    # Only a problem that has all its data can judge draws.
    whole = None if streamed else problem
    findings = [status_finding(trace)]
    if "equality" in trace.sample_stats:
        distance = None if whole is None else distance_to_set(whole, _some(trace))
        findings.append(_constraint(trace, whole, distance, streamed=streamed))
        if distance is not None:
            findings.append(_gradients(trace, distance))
    if "inequality" in trace.sample_stats:
        findings.append(_feasibility(trace, whole, streamed=streamed))
    seen = None if trace.ensemble else screen(trace.variables)
    if seen is not None:
        findings.append(movement_finding(trace))
    findings += mixing_findings(trace, seen, whole)
    jump = None if whole is None else _jump(trace, whole)
    findings += [] if jump is None else [jump]
    findings.append(_law(trace, problem, seen, jumps=jump is not None and "jumps" in jump.text))
    return Diagnosis(tuple(findings))


def _last(trace: Trace) -> Position:
    """The draws to judge, along one axis: all draws of chains, the last ensemble of particles."""
    if not trace.ensemble:
        return trace.pooled
    return jax.tree.map(lambda leaf: leaf[:, -1].reshape((-1, *leaf.shape[3:])), trace.position)


def _some(trace: Trace) -> Position:
    """At most `KSD_DRAWS` of the draws to judge."""
    return evenly_spaced(_last(trace), KSD_DRAWS)


def _constraint(trace: Trace, problem: Problem | None, distance: Distance | None, *, streamed: bool) -> Finding:
    values = trace.sample_stats["equality"]
    if trace.obeys == "mean":
        mean, largest = np.abs(values[:, -1].mean(axis=1)).max(), np.abs(values[:, -1]).max()
        text = f"only the mean over particles is constrained: |E g| {mean:.2g}, max |g| {largest:.2g} of a particle."
        return Finding("constraint", "unknown", text)
    values = np.abs(values[:, -1] if trace.ensemble else values)
    numbers = f"mean |g| {values.mean():.2g}, max |g| {values.max():.2g}"
    if problem is None or distance is None:
        text = STREAMED if streamed else "; pass the problem to have that put into units of the draws."
        return Finding("constraint", "unknown", numbers + text)
    noisy = problem.noisy_constraint
    if noisy:
        # The values in the trace are those on the rows that a step saw.
        g = np.abs(distance.value)
        numbers = f"on all rows mean |g| {g.mean():.2g}, max |g| {g.max():.2g}"
    off, row = distance.of_spread, int(np.argmax(distance.against_bend))
    bent = float(distance.against_bend[row])
    level: Level = "fine" if off < 0.05 and bent < NEAR else "doubtful" if off < 0.25 and bent < FAR else "bad"
    where = f"nine in ten draws are within {percent(off)} of their spread from the set"
    if bent >= NEAR:
        where += (
            f"{', but' if off < 0.05 else ', and'} up to {distance.off[row]:.2g} along the normal of equality[{row}], while "
            f"the set bends away from its tangent plane by {distance.bend[row]:.2g} only: they hardly obey it"
        )
    if trace.obeys == "no":
        name = trace.provenance["algorithm"]
        text = f"{numbers}; og.{name} does not use the constraint, and {where}. Use og.chmc or og.o_kinetic."
        return Finding("constraint", "bad", text)
    advice = "" if level == "fine" else PARTIAL if noisy else " Use a smaller step size, or a larger alpha."
    return Finding("constraint", level, f"{numbers}; {where}.{advice}")


def _gradients(trace: Trace, distance: Distance) -> Finding:
    """A gradient that nearly vanishes at some draws marks a singular point of the set, a vertex or a crossing."""
    norms = distance.norms
    smallest = norms.min(axis=0) / np.maximum(np.median(norms, axis=0), np.finfo(norms.dtype).tiny)
    row = int(np.argmin(smallest))
    if smallest[row] > VANISHING:
        return Finding("gradient", "fine", f"that of equality is nowhere below {percent(smallest[row])} of its median.")
    text = (
        f"that of equality[{row}] falls to {percent(smallest[row])} of its median at some draws: the set has a singular point, "
        "a vertex or a crossing. "
    )
    if trace.obeys == "exact":
        return Finding("gradient", "fine", text + "Moves on it stay exact.")
    return Finding("gradient", "doubtful", text + "Steps near it are not to be trusted; use og.chmc.")


def _feasibility(trace: Trace, problem: Problem | None, *, streamed: bool) -> Finding:
    values = trace.sample_stats["inequality"]
    values = values[:, -1] if trace.ensemble else values
    noisy = problem is not None and problem.noisy_constraint
    if noisy:
        # The values in the trace are those on the rows that a step saw.
        values = np.asarray(over_draws(Problem.inequality_value, problem, _some(trace)))  # type: ignore[arg-type]
    values = values.reshape(-1, values.shape[-1])
    outside, largest = (values > 0).any(axis=-1), values.max(axis=0)
    # A row that stays further from its boundary than it ever varies has turned nothing back.
    idle = np.flatnonzero(-largest > np.ptp(values, axis=0))
    note = f" inequality[{idle[0]}] was never near its boundary (max h {largest[idle[0]]:.2g})." if idle.size else ""
    reflected = float(trace.sample_stats["reflected"].mean()) if "reflected" in trace.sample_stats else 0.0
    if not outside.any() and reflected > 0.5 and not streamed:
        text = f"every draw has h ≤ 0, but {percent(reflected)} of the steps were turned back: use a smaller step size.{note}"
        return Finding("inequality", "doubtful", text)
    if streamed:
        text = f"{percent(outside.mean())} of the draws have h > 0 on the rows of their step"
        return Finding("inequality", "unknown", text + STREAMED)
    if not outside.any():
        return Finding("inequality", "fine", f"every draw has h ≤ 0.{note}")
    text = f"{percent(outside.mean())} of the draws are outside, by up to h = {largest.max():.2g}."
    lost = " Their chains found no way in from where they started: start nearer, and see og.land."
    level: Level = "doubtful" if outside.mean() < 0.05 else "bad"
    return Finding("inequality", level, text + (PARTIAL if noisy else lost) + note)


def _jump(trace: Trace, problem: Problem) -> Finding | None:
    """A jump in log π, which gradients do not see."""
    if trace.obeys == "mean":
        return None
    height = largest_jump(problem, _some(trace))
    if height == 0:
        return Finding("log density", "fine", "continuous between neighbouring draws.")
    text = f"log π jumps by up to {height:.2g} between neighbouring draws, which its gradient does not show. "
    if trace.obeys == "exact":
        return Finding("log density", "fine", text + "Moves are accepted by log π itself, so that the law stays right.")
    return Finding("log density", "bad", text + "A sampler that follows the gradient samples another law: use og.chmc.")


def _law(trace: Trace, problem: Problem | None, seen: Screen | None, *, jumps: bool) -> Finding:
    subject = "law along the set"
    if problem is None:
        return Finding(subject, "unknown", "pass the problem to have it tested.")
    if trace.obeys == "mean":
        return Finding(subject, "unknown", "with a constraint on the mean the law does not live on the set.")
    if not problem.whole:
        return Finding(subject, "unknown", "the Stein test needs the score of all the data; these come batch by batch.")
    if jumps:
        return Finding(subject, "unknown", "the Stein test is made of gradients, which do not show the jumps of log π.")
    draws = _last(trace)
    n = jax.tree.leaves(draws)[0].shape[0]
    groups = None if seen is None else _groups(trace, seen)
    count = n if groups is None else len(np.unique(groups))
    if count < FEWEST_GROUPS:
        few = f"only {count} independent stretches of chains (or particles); the Stein test needs at least {FEWEST_GROUPS}."
        return Finding(subject, "unknown", few)
    draws, groups = evenly_spaced((draws, groups), KSD_DRAWS)
    try:
        result = orthogonal_ksd(problem, draws, groups=groups)
    except ValueError as error:
        # Points that do not move, say: then there is nothing to test.
        return Finding(subject, "unknown", str(error))
    who = " of the last ensemble" if groups is None else f", {count} independent groups"
    numbers = f"KSD⊥² {result.value:.2g} ± {result.standard_error:.2g} under the right law, p = {result.p_value:.2g}"
    numbers += f" ({result.num_draws} draws{who})"
    if result.p_value is not None and result.p_value < KSD_LEVEL:
        # Of exact moves no step size is to blame.
        remedy = "and check the measure of the problem" if trace.obeys == "exact" else "or use a smaller step size"
        return Finding(subject, "bad", f"{numbers}: they are not spread as the law says. Run longer, {remedy}.")
    return Finding(subject, "fine", numbers + ".")


def _groups(trace: Trace, seen: Screen) -> np.ndarray:
    """A label for every pooled draw: its chain, or its stretch of a chain where chains are few.

    A stretch is `STRETCH` correlation times of the slowest scalar, or of its square, long.
    """
    chains, draws = trace.num_chains, trace.num_draws
    slowest = float(np.min(seen.ess[~seen.still], initial=chains * draws))
    stretches = min(int(slowest / (STRETCH * chains)), -(-2 * MANY_CHAINS // chains), draws)
    stretches = max(stretches, 1) if chains < MANY_CHAINS else 1
    return (np.arange(chains)[:, None] * stretches + (np.arange(draws) * stretches // draws)[None]).ravel()
