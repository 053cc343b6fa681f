"""One file per algorithm. `SAMPLERS` is the table that the contract tests, the command line and the docs walk."""

from ogradient.samplers.base import Sampler, SamplingAlgorithm, Schedule, power_decay
from ogradient.samplers.chmc import CHMC, chmc
from ogradient.samplers.clangevin import clangevin
from ogradient.samplers.control_langevin import ControlLangevin, control_langevin
from ogradient.samplers.langevin import Langevin, langevin
from ogradient.samplers.o_kinetic import OKinetic, o_kinetic
from ogradient.samplers.o_langevin import OLangevin, o_langevin
from ogradient.samplers.o_svgd import OSVGD, o_svgd
from ogradient.samplers.svgd import SVGD, svgd

SAMPLERS: dict[str, Sampler] = {
    "o_langevin": Sampler(o_langevin, OLangevin, step_size=0.01),
    "o_kinetic": Sampler(o_kinetic, OKinetic, step_size=0.1),
    "o_svgd": Sampler(o_svgd, OSVGD, step_size=0.05),
    "chmc": Sampler(chmc, CHMC, step_size=0.1),
    "clangevin": Sampler(clangevin, CHMC, step_size=0.1),
    "langevin": Sampler(langevin, Langevin, step_size=0.01),
    "svgd": Sampler(svgd, SVGD, step_size=0.05),
    "control_langevin": Sampler(control_langevin, ControlLangevin, step_size=0.01),
}

__all__ = [
    "SAMPLERS",
    "Sampler",
    "SamplingAlgorithm",
    "Schedule",
    "chmc",
    "clangevin",
    "control_langevin",
    "langevin",
    "o_kinetic",
    "o_langevin",
    "o_svgd",
    "power_decay",
    "svgd",
]
