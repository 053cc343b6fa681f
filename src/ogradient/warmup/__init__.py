"""Finding an algorithm and its settings: kept out of the samplers."""

from ogradient.warmup.choose import Tuned, tune

__all__ = ["Tuned", "tune"]
