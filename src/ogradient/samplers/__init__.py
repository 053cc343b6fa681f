"""One file per algorithm. `SAMPLERS` is the table that the contract tests, the command line and the docs walk."""

from ogradient.samplers.base import SamplingAlgorithm, Schedule
from ogradient.samplers.langevin import langevin
from ogradient.samplers.o_langevin import o_langevin

SAMPLERS = {"o_langevin": o_langevin, "langevin": langevin}

__all__ = ["SAMPLERS", "SamplingAlgorithm", "Schedule", "langevin", "o_langevin"]
