"""One file per algorithm. `SAMPLERS` is the table that the contract tests, the command line and the docs walk."""

from collections.abc import Callable

from ogradient.samplers.base import SamplingAlgorithm, Schedule, power_decay
from ogradient.samplers.chmc import chmc
from ogradient.samplers.clangevin import clangevin
from ogradient.samplers.control_langevin import control_langevin
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
    "control_langevin": control_langevin,
}

__all__ = [
    "SAMPLERS",
    "SamplingAlgorithm",
    "Schedule",
    "chmc",
    "clangevin",
    "control_langevin",
    "langevin",
    "o_langevin",
    "o_svgd",
    "power_decay",
    "svgd",
]
