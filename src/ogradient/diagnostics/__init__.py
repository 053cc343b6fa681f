"""One file per diagnostic: arrays in, numbers out."""

from ogradient.diagnostics.energy import energy_distance, energy_distance_to
from ogradient.diagnostics.violation import constraint_violation

__all__ = ["constraint_violation", "energy_distance", "energy_distance_to"]
