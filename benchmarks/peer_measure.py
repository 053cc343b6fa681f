"""One measurement of one method on one problem: two calls, how long they took, and what their draws are worth."""

from __future__ import annotations

import resource
import sys
import time

import jax
import numpy as np
from arviz_stats.base import array_stats

COORDINATES = 200  # of which ESS and R-hat are computed; evenly spaced where there are more


class Compiling:
    """Seconds that XLA took to compile, while this is on."""

    def __enter__(self):
        self.seconds, self.on = 0.0, True
        jax.monitoring.register_event_duration_secs_listener(self.note)
        return self

    def note(self, event, seconds, **_):
        if self.on and event.endswith("backend_compile_duration"):
            self.seconds += seconds

    def __exit__(self, *_):
        # JAX has no public way to take a listener off.
        self.on = False


def measure(method, case, setting, seed):
    """A row: seconds of the first and of the second call, and the quality of their draws."""
    setting = method.setting(setting)
    sample = method.prepare(case, setting)
    with Compiling() as compiling:
        cold, first = timed(sample, 2 * seed)
    warm, second = timed(sample, 2 * seed + 1)
    ess_cold, ess = worst_ess(first.positions), worst_ess(second.positions)
    return {
        "setting": f"{setting.chains} × {setting.draws}",
        "cold_s": cold,
        "warm_s": warm,
        "compile_s": compiling.seconds,
        "ess": ess,
        "ess_per_s_cold": ess_cold / cold,
        "ess_per_s": ess / warm,
        "ess_per_gradient": ess / second.gradients,
        "gradients": second.gradients,
        "rhat": worst_rhat(second.positions),
        **violation(case.known.problem, second.positions),
        **truth_error(case.known, second.positions),
        "peak_mb": peak_memory(),
    }


def timed(sample, seed):
    began = time.perf_counter()
    draws = sample(seed)
    return time.perf_counter() - began, draws


def scalars(positions):
    """Some coordinates, as doubles: (chain, draw, k)."""
    chosen = np.unique(np.linspace(0, positions.shape[-1] - 1, COORDINATES).astype(int))
    return np.asarray(positions[..., chosen], np.float64)


def worst_ess(positions):
    """The least bulk ESS of a coordinate. Zero where a chain stands still or is not finite, for which ArviZ has no answer."""
    values = scalars(positions)
    if not np.all(np.isfinite(values)) or np.any(np.ptp(values, axis=1) == 0):
        return 0.0
    return float(np.min(array_stats.ess(values, chain_axis=0, draw_axis=1, method="bulk")))


def worst_rhat(positions):
    """The largest R-hat of a coordinate; None where one is not finite."""
    values = scalars(positions)
    if not np.all(np.isfinite(values)):
        return None
    rhat = float(np.max(array_stats.rhat(values, chain_axis=0, draw_axis=1)))
    return rhat if np.isfinite(rhat) else None


def violation(problem, positions):
    """The largest |g| and the largest h above 0 of all draws, in double precision; None where there is no such constraint."""
    flat = positions.reshape(-1, positions.shape[-1])
    with jax.enable_x64(True):
        values = jax.jit(jax.vmap(problem.constraint_value))(jax.numpy.asarray(flat, float))
    largest = {kind: np.asarray(value) for kind, value in values.items()}
    return {
        "max_g": float(np.max(np.abs(largest["equality"]))) if "equality" in largest else None,
        "max_h": float(max(np.max(largest["inequality"]), 0.0)) if "inequality" in largest else None,
    }


def truth_error(known, positions):
    """The largest error of a known moment in its Monte Carlo standard errors, and which moment that is."""
    if not known.moments:
        return {"z": None, "z_of": None}
    functions = lambda x: {name: moment.function(x) for name, moment in known.moments.items()}
    values = jax.jit(jax.vmap(jax.vmap(functions)))(positions)
    errors = {}
    for name, moment in known.moments.items():
        value = np.asarray(values[name], np.float64)
        error = float(array_stats.mcse(value, chain_axis=0, draw_axis=1))
        errors[name] = abs(float(value.mean()) - moment.value) / error if error > 0 else float("inf")
    worst = max(errors, key=lambda name: errors[name] if np.isfinite(errors[name]) else float("inf"))
    return {"z": errors[worst] if np.isfinite(errors[worst]) else None, "z_of": worst}


def peak_memory():
    """The most memory that this process had, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
