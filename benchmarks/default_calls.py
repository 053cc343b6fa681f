"""The default call on ordinary and on large problems: what it chose, how long it took, and what its draws are worth.

    python benchmarks/default_calls.py                    # those that two CPU cores can do in minutes
    python benchmarks/default_calls.py --large            # the large ones, for an accelerator
    python benchmarks/default_calls.py rotations so11     # some of them
    python benchmarks/default_calls.py --seeds 3          # several seeds

16 chains × 1,000 draws from starts off the set, float32, nothing chosen. ESS and R-hat are ArviZ's, of the worst of at most 200
coordinates; where ArviZ is not installed they are rough numbers from means over stretches, marked ~.
"""

from __future__ import annotations

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import peer_problems

try:
    import peer_measure
except ImportError:  # no ArviZ
    peer_measure = None

import ogradient as og
from ogradient.diagnostics.mixing import screen
from ogradient.problems.known import KnownProblem

CHAINS, DRAWS = 16, 1000
COLUMNS = (
    *("problem", "seed", "sampler", "step size", "steps", "metric", "seconds"),
    *("ESS", "R-hat", "acceptance", "max abs(g)", "error/SE", "og.diagnose", "said"),
)


def fair_regression(rows=10**6, dim=100):
    """A logistic regression whose predictions have no covariance with a group, from coefficients 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, dim)).astype(np.float32)
    group = (x[:, 0] + rng.normal(size=rows) > 0).astype(np.float32)
    label = (x @ rng.normal(size=dim) / np.sqrt(dim) + 0.5 * group + rng.logistic(size=rows) > 0).astype(np.float32)
    problem = og.posterior(
        lambda w: -0.5 * jnp.sum(w**2),
        lambda w, batch: jnp.sum(batch[1] * (batch[0] @ w) - jax.nn.softplus(batch[0] @ w)),
        (x, label, group - group.mean()),
        equality=lambda w, batch: jnp.mean(batch[2] * jax.nn.sigmoid(batch[0] @ w)),
    )
    starts = lambda key, n: jnp.zeros((n, dim))
    return KnownProblem("fair_regression", problem, dim, starts, starts, {})


ORDINARY = (
    *("ellipse", "von_mises_fisher", "rotated_gaussian", "simplex", "half_normals", "rotations", "mici_torus"),
    *(
        "transport_100_1",
        "transport_100_10",
        "transport_1000_10",
        "spherical_cap",
        "quadratic_poly",
        "bond_chain",
        "pressure",
    ),
)
LARGE = {
    "so11": lambda: peer_problems.rotations(11).known,
    "transport_2000_50": lambda: peer_problems.transport(2000, 50).known,
    "transport_10000_100": lambda: peer_problems.transport(10_000, 100).known,
    "transport_100000_100": lambda: peer_problems.transport(100_000, 100).known,
    "fair_regression": fair_regression,
}


def run(name, seed):
    known = LARGE[name]() if name in LARGE else peer_problems.build(name).known
    starts = known.start_off(jax.random.key(seed), CHAINS)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trace = og.sample(seed, known.problem, starts, num_samples=DRAWS, progress=False)
    seconds = time.perf_counter() - began
    draws = np.asarray(trace["x"])
    ess, rhat, error = quality(known, draws)
    settings, stats = trace.provenance["settings"], trace.sample_stats
    findings = [] if peer_measure is None else og.diagnose(trace).findings
    verdict = [f"{finding.subject} {finding.level}" for finding in findings if finding.level != "fine"]
    equality = np.abs(stats["equality"]).max() if "equality" in stats else 0.0
    row = (
        name,
        seed,
        trace.provenance["algorithm"],
        f"{settings['step_size']:.3g}",
        settings.get("num_integration_steps", ""),
        "×".join(map(str, np.shape(settings.get("inverse_mass", ())))) or "–",
        f"{seconds:.1f}",
        ess,
        rhat,
        f"{np.mean(stats['acceptance_rate']):.2f}" if "acceptance_rate" in stats else "–",
        f"{equality:.1e}",
        error,
        "–" if peer_measure is None else ", ".join(verdict) or "fine",
        "; ".join(sorted({str(w.message).split(":")[0][:60] for w in said})) or "–",
    )
    print("| " + " | ".join(map(str, row)) + " |", flush=True)


def quality(known, draws):
    """The worst ESS, the largest R-hat and the largest error of a known moment, as text."""
    if peer_measure is None:
        chosen = np.unique(np.linspace(0, draws.shape[2] - 1, 200).astype(int))
        seen = screen({"x": draws[..., chosen]})
        return f"~{seen.ess.min():,.0f}", f"~{seen.rhat.max():.4f}", "–"
    error = peer_measure.truth_error(known, draws)["z"]
    ess, rhat = peer_measure.worst_ess(draws), peer_measure.worst_rhat(draws)
    return f"{ess:,.0f}", f"{rhat:.4f}", "–" if error is None else f"{error:.2g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in arguments.problems or (LARGE if arguments.large else ORDINARY):
        for seed in range(arguments.seeds):
            run(name, seed)


if __name__ == "__main__":
    main()
