"""Sampling under hard constraints: a log density, g(x) = 0, a start anywhere, and draws that satisfy it.

The method is O-Gradient (Zhang, Liu and Tong, NeurIPS 2022). Start with `Problem` and `sample`.
"""

import importlib
from typing import Any

import jaxlib.version

if jaxlib.version.__version__ == "0.10.2":
    raise ImportError(
        "jaxlib 0.10.2 computes wrong float32 sums on CPU, silently. "
        "Install another one: pip install 'jax!=0.10.2' 'jaxlib!=0.10.2'"
    )

from ogradient import geometry
from ogradient._version import __version__
from ogradient.classes import evaluate_classes
from ogradient.diagnostics import (
    DIAGNOSTICS,
    constraint_violation,
    energy_distance,
    orthogonal_fisher,
    orthogonal_ksd,
    sliced_wasserstein,
)
from ogradient.diagnostics.diagnose import diagnose
from ogradient.evaluation import binomial_interval, evaluate
from ogradient.geometry.land import land
from ogradient.problem import Problem
from ogradient.problem.posterior import posterior, with_batch
from ogradient.problem.support import cholesky_corr, interval, positive, simplex
from ogradient.run.sample import sample
from ogradient.samplers import (
    SAMPLERS,
    SamplingAlgorithm,
    chmc,
    clangevin,
    control_langevin,
    langevin,
    o_kinetic,
    o_langevin,
    o_svgd,
    power_decay,
    svgd,
)
from ogradient.status import ConstraintWarning, ConvergenceWarning, SamplingError, Status
from ogradient.stein import imq, rbf
from ogradient.trace import Trace, load
from ogradient.warmup import tune

__all__ = [
    "DIAGNOSTICS",
    "SAMPLERS",
    "ConstraintWarning",
    "ConvergenceWarning",
    "Problem",
    "SamplingAlgorithm",
    "SamplingError",
    "Status",
    "Trace",
    "__version__",
    "binomial_interval",
    "chmc",
    "cholesky_corr",
    "clangevin",
    "compilation",
    "constraint_violation",
    "control_langevin",
    "datasets",
    "diagnose",
    "energy_distance",
    "evaluate",
    "evaluate_classes",
    "geometry",
    "imq",
    "interval",
    "land",
    "langevin",
    "load",
    "o_kinetic",
    "o_langevin",
    "o_svgd",
    "orthogonal_fisher",
    "orthogonal_ksd",
    "positive",
    "posterior",
    "power_decay",
    "problems",
    "rbf",
    "sample",
    "simplex",
    "sliced_wasserstein",
    "svgd",
    "tune",
    "with_batch",
]


def __getattr__(name: str) -> Any:
    if name in ("problems", "datasets", "compilation"):  # only those who want them pay for their import
        return importlib.import_module(f"ogradient.{name}")
    raise AttributeError(f"module 'ogradient' has no attribute {name!r}")
