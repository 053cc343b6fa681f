"""One file per diagnostic: arrays in, numbers out."""

from ogradient.diagnostics.energy import energy_distance, energy_distance_to
from ogradient.diagnostics.fisher import orthogonal_fisher
from ogradient.diagnostics.ksd import KSD, orthogonal_ksd
from ogradient.diagnostics.violation import constraint_violation
from ogradient.diagnostics.wasserstein import sliced_wasserstein

__all__ = [
    "KSD",
    "constraint_violation",
    "energy_distance",
    "energy_distance_to",
    "orthogonal_fisher",
    "orthogonal_ksd",
    "sliced_wasserstein",
]
