"""A trace in, a verdict in words out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogradient.diagnostics import orthogonal_ksd
from ogradient.geometry import frame_at, landing
from ogradient.problem import Position, Problem
from ogradient.status import Status
from ogradient.stein import over_particles
from ogradient.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

Level = Literal["fine", "doubtful", "bad", "unknown"]

RHAT_LIMIT = 1.01
ESS_LIMIT = 400
KSD_DRAWS = 1000
KSD_LEVEL = 0.01
VANISHING = 0.02  # of the median norm of a gradient: where it falls below that, the set is hardly smooth
SCALARS = 1000  # of which R-hat and ESS are computed
STREAMED = ", on the rows of each step; og.diagnose(trace, og.with_batch(problem, rows)) judges by rows of your choice."
PARTIAL = " Steps see only some rows and obey their noise too: give all of them, constraint_batch_size=N, or a weaker pull alpha."


class Finding(NamedTuple):
    """One thing looked at: what, how it stands, and a sentence with the numbers."""

    subject: str
    level: Level
    text: str


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
    streamed = problem is not None and not problem.whole
    whole = None if streamed else problem  # has all the data to judge by
    findings = [_status(trace)]
    if "equality" in trace.sample_stats:
        findings.append(_constraint(trace, whole, streamed=streamed))
        if whole is not None:
            findings.append(_gradients(trace, whole))
    if "inequality" in trace.sample_stats:
        findings.append(_feasibility(trace, whole, streamed=streamed))
    table = None if trace.ensemble else _table(trace)
    findings += [*_mixing(trace, table), _law(trace, problem, table)]
    return Diagnosis(tuple(findings))


def _status(trace: Trace) -> Finding:
    total, problems = int(trace.status_counts.sum()), trace.problems()
    if not problems:
        return Finding("status", "fine", f"all {total:,} steps went well.")
    text = "; ".join(
        f"{count:,} of {total:,} {Status(code).name}: {Status(code).remedy}" for code, count in problems.items()
    )
    return Finding("status", "bad" if Status.NON_FINITE in problems else "doubtful", text + ".")


def _last(trace: Trace) -> Position:
    """The draws that count: all of a chain's, the last ensemble of particles; with one leading axis."""
    if not trace.ensemble:
        return trace.pooled
    return jax.tree.map(lambda leaf: leaf[:, -1].reshape((-1, *leaf.shape[3:])), trace.position)


def _constraint(trace: Trace, problem: Problem | None, *, streamed: bool) -> Finding:
    values = trace.sample_stats["equality"]
    if trace.provenance["algorithm"] == "control_langevin":
        mean, largest = np.abs(values[:, -1].mean(axis=1)).max(), np.abs(values[:, -1]).max()
        text = f"only the mean over particles is constrained: |E g| {mean:.2g}, max |g| {largest:.2g} of a particle."
        return Finding("constraint", "unknown", text)
    values = np.abs(values[:, -1] if trace.ensemble else values)
    numbers = f"mean |g| {values.mean():.2g}, max |g| {values.max():.2g}"
    if problem is None:
        text = STREAMED if streamed else "; pass the problem to have that put into units of the draws."
        return Finding("constraint", "unknown", numbers + text)
    draws = _subsample(_last(trace), KSD_DRAWS)

    def distance(problem: Problem, position: Position) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, _, constraint, _ = problem.flatten(position)
        frame = frame_at(constraint, x)
        return x, frame.value, jnp.linalg.norm(landing(frame, alpha=1.0))

    x, g, off = (np.asarray(part, np.float64) for part in _over(distance, problem, draws))
    noisy = problem.source is not None and problem.source.model.noisy_constraint
    if noisy:  # what the trace has is of the rows that a step saw
        numbers = f"on all rows mean |g| {np.abs(g).mean():.2g}, max |g| {np.abs(g).max():.2g}"
    spread = np.sqrt(x.var(axis=0).sum())
    share = float(np.quantile(off, 0.9) / spread) if spread > 0 else np.inf
    level: Level = "fine" if share < 0.05 else "doubtful" if share < 0.25 else "bad"
    advice = "" if level == "fine" else PARTIAL if noisy else " Use a smaller step size, or a larger alpha."
    return Finding(
        "constraint",
        level,
        f"{numbers}; nine in ten draws are within {_percent(share)} of their spread from the set.{advice}",
    )


def _gradients(trace: Trace, problem: Problem) -> Finding:
    """A gradient that nearly vanishes at some draws marks a singular point of the set, a vertex or a crossing."""

    def norms(problem: Problem, position: Position) -> jax.Array:
        x, _, constraint, _ = problem.flatten(position)
        return jnp.linalg.norm(frame_at(constraint, x).jacobian, axis=1)

    values = np.asarray(_over(norms, problem, _subsample(_last(trace), KSD_DRAWS)))
    share = values.min(axis=0) / np.maximum(np.median(values, axis=0), np.finfo(values.dtype).tiny)
    row = int(np.argmin(share))
    if share[row] > VANISHING:
        return Finding("gradient", "fine", f"that of equality is nowhere below {_percent(share[row])} of its median.")
    exact = "is_accepted" in trace.sample_stats
    return Finding(
        "gradient",
        "fine" if exact else "doubtful",
        f"that of equality[{row}] falls to {_percent(share[row])} of its median at some draws: the set has a singular point, a "
        f"vertex or a crossing. {'Moves on it stay exact.' if exact else 'Steps near it are not to be trusted; use og.chmc.'}",
    )


def _feasibility(trace: Trace, problem: Problem | None, *, streamed: bool) -> Finding:
    values = trace.sample_stats["inequality"]
    values = values[:, -1] if trace.ensemble else values
    noisy = problem is not None and problem.source is not None and problem.source.model.noisy_constraint
    if noisy:  # what the trace has is of the rows that a step saw
        bounds = lambda problem, position: problem.inequality_fn(position)
        values = np.asarray(_over(bounds, problem, _subsample(_last(trace), KSD_DRAWS)))  # type: ignore[arg-type]
    outside = (values > 0).any(axis=-1)
    largest = values.reshape(-1, values.shape[-1]).max(axis=0)
    # A row that stays further from its boundary than it ever varies has turned nothing back.
    idle = np.flatnonzero(-largest > np.ptp(values.reshape(-1, values.shape[-1]), axis=0))
    note = f" inequality[{idle[0]}] was never near its boundary (max h {largest[idle[0]]:.2g})." if idle.size else ""
    reflected = float(trace.sample_stats["reflected"].mean()) if "reflected" in trace.sample_stats else 0.0
    if not outside.any() and reflected > 0.5 and not streamed:
        text = f"every draw has h ≤ 0, but {_percent(reflected)} of the steps were turned back: use a smaller step size.{note}"
        return Finding("inequality", "doubtful", text)
    if streamed:
        share = f"{_percent(outside.mean())} of the draws have h > 0 on the rows of their step"
        return Finding("inequality", "unknown", share + STREAMED)
    if not outside.any():
        return Finding("inequality", "fine", f"every draw has h ≤ 0.{note}")
    level: Level = "doubtful" if outside.mean() < 0.05 else "bad"
    return Finding(
        "inequality",
        level,
        f"{_percent(outside.mean())} of the draws are outside, by up to h = {largest.max():.2g}."
        + (
            PARTIAL
            if noisy
            else " Their chains found no way in from where they started: start nearer, and see og.land."
        )
        + note,
    )


def _table(trace: Trace) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that only the first scalars are in it is said in the finding
        return trace.summary(digits=None, limit=SCALARS)


def _mixing(trace: Trace, table: pd.DataFrame | None) -> tuple[Finding, Finding]:
    if table is None:
        reason = (
            "not given for particles: they are one interacting ensemble, not a Markov chain, so "
            "there is no autocorrelation to judge. Compare independent ensembles, and look at the law below."
        )
        return Finding("R-hat", "unknown", reason), Finding("ESS", "unknown", reason)
    if "r_hat" not in table or not np.isfinite(table["r_hat"]).any():
        few = f"needs at least four draws per chain that move; there are {trace.num_draws}."
        return Finding("R-hat", "doubtful", few), Finding("ESS", "doubtful", few)
    rhat, ess = float(table["r_hat"].max()), float(table["ess_bulk"].min())
    mixed, many = rhat < RHAT_LIMIT, ess > ESS_LIMIT
    scalars = sum(int(np.prod(value.shape[2:])) for value in trace.variables.values())
    of = f" of the first {SCALARS:,} scalars" if scalars > SCALARS else ""
    return (
        Finding(
            "R-hat",
            "fine" if mixed else "bad" if rhat > 1.1 else "doubtful",
            f"largest{of} {rhat:.3f} (of {table['r_hat'].idxmax()})"
            + ("." if mixed else "; the chains disagree: run longer."),
        ),
        Finding(
            "ESS",
            "fine" if many else "doubtful",
            f"smallest{of} {ess:,.0f} (of {table['ess_bulk'].idxmin()})"
            + ("." if many else f"; below {ESS_LIMIT}: run longer."),
        ),
    )


def _law(trace: Trace, problem: Problem | None, table: pd.DataFrame | None) -> Finding:
    subject = "law along the set"
    if problem is None:
        return Finding(subject, "unknown", "pass the problem to have it tested.")
    if trace.provenance["algorithm"] == "control_langevin":
        return Finding(subject, "unknown", "with a constraint on the mean the law does not live on the set.")
    if not problem.whole:
        return Finding(subject, "unknown", "the Stein test needs the score of all the data; these come batch by batch.")
    draws = _last(trace)
    n = jax.tree.leaves(draws)[0].shape[0]
    if table is not None:
        # The test is for independent draws: as many as there are effective ones, evenly spaced.
        effective = table["ess_bulk"].min() if "ess_bulk" in table else 0.0
        n = int(min(n, effective if np.isfinite(effective) else 0))
    if n < 50:
        return Finding(subject, "unknown", f"only {n} independent draws; the Stein test needs at least 50.")
    try:
        result = orthogonal_ksd(problem, _subsample(draws, min(n, KSD_DRAWS)))
    except ValueError as error:  # points that do not move, say: then there is nothing to test
        return Finding(subject, "unknown", str(error))
    numbers = f"KSD⊥² {result.value:.2g} ± {result.standard_error:.2g} under the right law, p = {result.p_value:.2g}"
    numbers += f" ({result.num_draws} draws{' of the last ensemble' if trace.ensemble else ', thinned'})"
    if result.p_value is not None and result.p_value < KSD_LEVEL:
        return Finding(
            subject, "bad", f"{numbers}: they are not spread as the law says. Run longer, or use a smaller step size."
        )
    return Finding(subject, "fine", numbers + ".")


def _over(function: Callable[[Problem, Position], Any], problem: Problem, draws: Position) -> Any:
    """A function of the problem and one draw, over all draws, compiled."""
    over = lambda problem, draws: over_particles(partial(function, problem), draws, problem.draws_together)
    return jax.jit(over)(problem, jax.tree.map(jnp.asarray, draws))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def _subsample(draws: Position, most: int) -> Position:
    n = jax.tree.leaves(draws)[0].shape[0]
    chosen = np.linspace(0, n - 1, min(most, n)).astype(int)
    return jax.tree.map(lambda leaf: leaf[chosen], draws)
