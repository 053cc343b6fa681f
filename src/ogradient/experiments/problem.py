"""Any problem with a known answer, any sampler: draw, and score against the truth.

Moments with their Monte Carlo errors, energy distance to exact draws with what exact draws themselves would show, KSD⊥, and
what a user would look at without a truth (R-hat, ESS, |g|, h₊). Settings are found in warm-up; nothing is set by hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ogradient.diagnostics import energy_distance_to, orthogonal_ksd
from ogradient.experiments import options
from ogradient.experiments.folder import Outcome, write_folder
from ogradient.experiments.synthetic import REFERENCE, noise_floor
from ogradient.keys import as_key
from ogradient.plots import COLOURS, new_figure
from ogradient.problems import PROBLEMS, KnownProblem, Moment
from ogradient.run.sample import sample
from ogradient.samplers import SamplingAlgorithm, o_svgd
from ogradient.samplers.base import kernel_of, settings_of
from ogradient.start.positions import check_positions
from ogradient.trace import Trace
from ogradient.warmup.choose import TUNED, choose

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOAT64 = True
SAMPLERS = (*TUNED, "o_svgd")
PARTICLE_STEPS = 3000
SHOWN = 500  # draws compared and drawn


@dataclass(frozen=True)
class Config:
    """Everything that decides the result."""

    problem: str = options.option(
        help="See `ogradient list problems`.", choices=tuple(PROBLEMS), name="name", positional=True
    )
    samplers: Sequence[str] = options.several(
        SAMPLERS, f"{', '.join(TUNED)} or o_svgd; all that apply by default.", "sampler"
    )
    measure: str | None = options.option(None, "conditional or hausdorff, where the problem has a choice.")
    chains: int = options.chains(64)
    samples: int = options.samples(1000)
    particles: int = options.option(200, "Particles of o_svgd.", min=2)
    seed: int = options.seed()

    @property
    def title(self) -> str:
        """Of the table."""
        return self.problem


def check(config: Config) -> None:
    """Refuse samplers and measures that the problem does not have."""
    build(config.problem, config.measure, config.samplers)


class Estimate(NamedTuple):
    """The mean of a moment, its Monte Carlo error (NaN for particles), the truth, and the moment's sd under the law."""

    mean: float
    error: float
    truth: float
    sd: float


@dataclass(frozen=True)
class Score:
    """One sampler on one problem."""

    sampler: str
    trace: Trace
    draws: np.ndarray  # (n, d), as good as independent
    moments: dict[str, Estimate]
    row: dict[str, Any]


def run(config: Config, out: Path, *, progress: bool = True) -> Outcome:
    """Run all samplers that apply, write the folder, return the table and the path of the figure."""
    known = build(config.problem, config.measure, config.samplers)
    skipped = {name: why for name, why in known.unsuitable.items() if name in config.samplers}
    scores = [score(known, name, config, progress=progress) for name in config.samplers if name not in known.unsuitable]
    rows = [s.row for s in scores]
    exact = np.asarray(known.exact(as_key(config.seed + 1), SHOWN))  # type: ignore[misc]
    return rows, write_folder(
        out / "problem" / known.name,
        title=f"{known.name}, {known.problem.measure} measure",
        config={"experiment": "problem", **asdict(config), "measure": known.problem.measure},
        metrics={
            "moments": {s.sampler: {name: m._asdict() for name, m in s.moments.items()} for s in scores},
            "settings": {s.sampler: s.trace.provenance["settings"] for s in scores},
        },
        rows=rows,
        figure=draw(exact, scores, known.name),
        notes=[
            (PROBLEMS[known.name].__doc__ or "").strip(),
            "error: the largest error of a moment in standard deviations of that moment under the law; z: in its own Monte Carlo "
            f"errors. E / exact: energy distance of {SHOWN} thinned draws (or of the particles) to {REFERENCE:,} exact ones, "
            "over what as many exact draws stay below in 95 of 100 cases. p: of the Stein test (KSD⊥). Particles have no Monte "
            "Carlo error, R-hat or ESS: they are not a chain. Seconds are with tuning, and with compiling where no earlier run "
            "has left its compiled programs.",
            *(f"{name} was left out: {why}." for name, why in skipped.items()),
        ],
        traces={f"trace-{s.sampler}": s.trace for s in scores},
    )


def build(name: str, measure: str | None = None, samplers: Sequence[str] = SAMPLERS) -> KnownProblem:
    """A problem of the table, in the measure asked for where it has a choice; refuses samplers of which none applies."""
    try:
        known = PROBLEMS[name](**({} if measure is None else {"measure": measure}))
    except TypeError:
        raise ValueError(f"{name} has one law only (its measures agree); leave the measure out.") from None
    if set(samplers) <= set(known.unsuitable):
        raise ValueError("; ".join(f"{s} does not apply to {name}: {known.unsuitable[s]}" for s in samplers))
    return known


def score(known: KnownProblem, sampler: str, config: Config, *, progress: bool = False) -> Score:
    """Tune, draw from starts off the set, and compare with the truth."""
    started = time.perf_counter()
    key = as_key(config.seed)
    reference = np.asarray(known.exact(as_key(config.seed + 1), REFERENCE))  # type: ignore[misc]
    starts = known.start_off(jax.random.fold_in(key, 1), config.particles if sampler == "o_svgd" else config.chains)
    algorithm, initial = prepare(known, sampler, starts, key, reference, progress)
    if kernel_of(algorithm).ensemble:
        warmup, num_samples, thinning = PARTICLE_STEPS, 1, 1
    else:
        thinning = thinning_of(algorithm, reference)
        warmup, num_samples = 20 * thinning, config.samples
    steps: dict[str, Any] = {"num_warmup": warmup, "num_samples": num_samples, "thinning": thinning}
    trace = sample(config.seed, known.problem, initial, algorithm=algorithm, progress=progress, **steps)
    seconds = time.perf_counter() - started

    pooled = trace["x"].reshape(-1, known.dim)
    chosen = np.linspace(0, len(pooled) - 1, min(SHOWN, len(pooled))).astype(int)
    draws, chain = pooled[chosen], chosen // trace.num_draws
    distance = energy_distance_to(reference)
    floor = noise_floor(known, distance, len(draws), config.seed)
    moments = {name: _estimate(trace, moment, reference) for name, moment in known.moments.items()}
    table = None if trace.ensemble else trace.summary(digits=None, limit=50)
    ksd = orthogonal_ksd(known.problem, draws, groups=chain if not trace.ensemble and trace.num_chains >= 20 else None)
    g, h = (trace.sample_stats.get(kind) for kind in ("equality", "inequality"))
    row = {
        "sampler": sampler,
        "error": max(abs(m.mean - m.truth) / m.sd for m in moments.values()),
        "z": None if trace.ensemble else max(abs(m.mean - m.truth) / m.error for m in moments.values()),
        "E / exact": distance(draws) / floor.q95,
        "p": ksd.p_value,
        "R-hat": None if table is None else float(table["r_hat"].max()),
        "ESS": None if table is None else float(table["ess_bulk"].min()),
        "mean |g|": None if g is None else float(np.abs(g).mean()),
        "max h₊": None if h is None else float(np.maximum(h, 0).max()),
        "seconds": seconds,
    }
    return Score(sampler, trace, draws, moments, row)


def _estimate(trace: Trace, moment: Moment, reference: np.ndarray) -> Estimate:
    means = np.asarray(trace.apply(moment.function), float).reshape(trace.num_chains, -1).mean(axis=1)
    error = np.nan if trace.ensemble else float(means.std(ddof=1) / np.sqrt(len(means)))
    exact = np.asarray(jax.vmap(moment.function)(jnp.asarray(reference)))
    return Estimate(float(means.mean()), error, moment.value, float(exact.std()))


def prepare(
    known: KnownProblem, sampler: str, starts: Array, key: Array, reference: np.ndarray, progress: bool
) -> tuple[SamplingAlgorithm, Any]:
    """An algorithm with settings that suit the problem, and where it starts."""
    if sampler == "o_svgd":
        # Adam's step is a length: a tenth of the law's, falling tenfold so that the particles come to rest.
        length = 0.1 * float(np.sqrt(reference.var(axis=0).mean()))
        rate = optax.exponential_decay(length, PARTICLE_STEPS, 0.1)
        return o_svgd(known.problem, optimizer=optax.adam(rate)), starts[None]
    positions = check_positions(known.problem, starts)
    found = choose(known.problem, positions, key, sampler, tolerance=None, progress=progress)
    return found.algorithm, found.positions


def thinning_of(algorithm: SamplingAlgorithm, reference: np.ndarray) -> int:
    """Steps per draw: one of the exact kernels; of others as many as cross the law's spread, with momentum or by diffusion."""
    if kernel_of(algorithm).obeys == "exact":
        return 1
    settings, spread = settings_of(algorithm), float(np.mean(reference.std(axis=0)))
    steps = spread / settings["step_size"] if "friction" in settings else spread**2 / (2 * settings["step_size"])
    return int(np.clip(np.ceil(steps), 1, 300))


def draw(exact: np.ndarray, scores: Sequence[Score], title: str) -> Figure:
    """Draws over exact ones, in the first two coordinates, and the errors of moments in their standard deviations."""
    figure, axes = new_figure(1, 2, width=5.0, height=3.6)
    left, right = axes[0]
    colours = dict(zip(SAMPLERS, COLOURS, strict=False))
    second = lambda x: x[:, 1] if x.shape[1] > 1 else np.linspace(0, 1, len(x))
    left.scatter(exact[:, 0], second(exact), s=14, color="0.8", linewidths=0, label="exact")
    for index, score in enumerate(scores):
        name, draws, moments = score.sampler, score.draws, score.moments
        left.scatter(draws[:, 0], second(draws), s=4, color=colours[name], alpha=0.6, linewidths=0, label=name)
        at = np.arange(len(moments)) + 0.8 * (index - (len(scores) - 1) / 2) / len(scores)
        mean, error, truth, sd = np.array(list(moments.values())).T
        bars = 3 * np.nan_to_num(error) / sd
        right.errorbar((mean - truth) / sd, at, xerr=bars, fmt="o", markersize=4, color=colours[name], label=name)
    names = list(scores[0].moments)
    right.axvline(0, color="0.55", linewidth=1, linestyle="--", zorder=0)
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.set_xlabel("error in standard deviations of the law (bars: 3 Monte Carlo errors)", fontsize=8)
    left.set_xlabel("x₁", fontsize=9)
    left.set_ylabel("x₂" if exact.shape[1] > 1 else "draw", fontsize=9)
    left.set_title(title, fontsize=10)
    left.legend(fontsize=7, frameon=False, markerscale=2)
    return figure
