"""One file per diagnostic: arrays in, numbers out. `DIAGNOSTICS` is the table that tests, the command line and the docs walk."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ogradient.diagnostics.energy import energy_distance, energy_distance_to
from ogradient.diagnostics.fisher import orthogonal_fisher
from ogradient.diagnostics.ksd import KSD, orthogonal_ksd
from ogradient.diagnostics.violation import constraint_violation
from ogradient.diagnostics.wasserstein import sliced_wasserstein


@dataclass(frozen=True)
class Diagnostic:
    """A row of the table: the function, and a number that says how far draws are off by it.

    That number is `off(problem, draws, exact)`, near 0 for draws of the law. `exact` are draws of the law itself, for
    diagnostics that compare two sets of draws. None stands for a diagnostic that needs more than draws.
    """

    function: Callable[..., Any]
    off: Callable[[Any, Any, Any], float] | None

    @property
    def help(self) -> str:
        """One line on what it is."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


DIAGNOSTICS: dict[str, Diagnostic] = {
    "orthogonal_ksd": Diagnostic(orthogonal_ksd, lambda problem, draws, _: orthogonal_ksd(problem, draws).value),
    "orthogonal_fisher": Diagnostic(orthogonal_fisher, None),
    "energy_distance": Diagnostic(energy_distance, lambda _, draws, exact: energy_distance(draws, exact)),
    "sliced_wasserstein": Diagnostic(sliced_wasserstein, lambda _, draws, exact: sliced_wasserstein(draws, exact)),
    "constraint_violation": Diagnostic(
        constraint_violation,
        lambda problem, draws, _: float(constraint_violation(problem, draws)["equality"]["mean"].max()),
    ),
}

__all__ = [
    "DIAGNOSTICS",
    "KSD",
    "Diagnostic",
    "constraint_violation",
    "energy_distance",
    "energy_distance_to",
    "orthogonal_fisher",
    "orthogonal_ksd",
    "sliced_wasserstein",
]
