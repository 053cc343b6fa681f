"""One file per algorithm. `SAMPLERS` is the table that the contract tests, the command line and the docs walk."""

from collections.abc import Callable

from ogradient.samplers.base import SamplingAlgorithm, Schedule
from ogradient.samplers.chmc import chmc
from ogradient.samplers.clangevin import clangevin
from ogradient.samplers.langevin import langevin
from ogradient.samplers.o_langevin import o_langevin
from ogradient.samplers.o_svgd import o_svgd
from ogradient.samplers.svgd import svgd

SAMPLERS: dict[str, Callable[..., SamplingAlgorithm]] = {
    "o_langevin": o_langevin,
    "o_svgd": o_svgd,
    "chmc": chmc,
    "clangevin": clangevin,
    "langevin": langevin,
    "svgd": svgd,
}

__all__ = ["SAMPLERS", "SamplingAlgorithm", "Schedule", "chmc", "clangevin", "langevin", "o_langevin", "o_svgd", "svgd"]
