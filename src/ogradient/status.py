"""How a transition ended, and the warnings and errors a run can raise."""

from __future__ import annotations

import sys
import warnings
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ogradient.trace import Trace


class Status(IntEnum):
    """One code per transition, counted in the trace.

    Codes are small integers so that they travel through compiled code; `remedy` says what a user can do.
    """

    OK = 0
    NON_FINITE = 1
    RANK_DEFICIENT = 2
    SOLVER_DIVERGED = 3
    NOT_REVERSIBLE = 4
    COLLAPSED = 5

    @property
    def remedy(self) -> str:
        """One sentence: what the code means and what to change."""
        return _REMEDY[self]


_REMEDY = {
    Status.OK: "nothing to do",
    Status.NON_FINITE: (
        "the proposed position was not finite and the last good one was kept. Usually the step size is too large "
        "(halve it until this stops); or the chain left the support of the log density, or the constraint is not finite where it "
        "went (evaluate both, and their gradients, at the last position; reparametrise so that every position is allowed). On "
        "minibatches a constraint is NaN where it averages rows of which a batch has none: give it more rows, or all of them"
    ),
    Status.RANK_DEFICIENT: (
        "the constraint Jacobian lost rank: a gradient vanishes (on the set, if g = c**2 is a square: pass c; far out, where "
        "predictions saturate: the chain diverged), or two constraints say the same or contradict each other: drop one"
    ),
    Status.SOLVER_DIVERGED: "the projection onto the constraint did not converge and the move was rejected; use a smaller step",
    Status.COLLAPSED: (
        "most particles coincide, so the median distance is 0 and they cannot repel each other. Start them apart, or give the "
        "kernel a bandwidth: og.rbf(bandwidth=...)"
    ),
    Status.NOT_REVERSIBLE: "the reverse move did not return to the start and the move was rejected; use a smaller step",
}


class ConstraintWarning(UserWarning):
    """Something about the constraint makes the result doubtful; the message names the remedy."""


class ConvergenceWarning(UserWarning):
    """The chains of a run have not mixed: its numbers are not yet those of the law."""


class SamplingError(RuntimeError):
    """A run went wrong. `trace` holds the draws made until then, or None if there were none."""

    def __init__(self, message: str, trace: Trace | None = None) -> None:
        super().__init__(message)
        self.trace = trace


def warn(message: str, category: type[Warning] = ConstraintWarning) -> None:
    """Warn at the user's own line, however deep in the library the reason was found."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ogradient":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
