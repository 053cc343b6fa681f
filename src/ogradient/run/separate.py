"""Groups of chains that never meet."""

from __future__ import annotations

import numpy as np

from ogradient.diagnostics.mixing import fixed_scalars, screen
from ogradient.status import warn
from ogradient.trace import Trace


def warn_if_separate(trace: Trace) -> bool:
    """Warn when groups of chains never meet: parts of the set that no chain can cross between, or chains that do not mix.

    Two chains meet when the boxes around their draws overlap in every coordinate; by `component_fn`, when they share a label.
    Coordinates that the constraint fixes are left out: they differ by roundings. True if it warned.
    """
    exact = trace.obeys == "exact"  # O-Langevin takes small steps: a short run of it has not met for that reason
    if (
        trace.ensemble
        or trace.num_chains < 2
        or trace.num_draws < 100
        or not (exact or "component" in trace.sample_stats)
    ):
        return False
    if "component" in trace.sample_stats:
        labels = trace.sample_stats["component"].reshape(trace.num_chains, -1).astype(np.float64)
        boxes = [np.stack([labels.min(axis=1), labels.max(axis=1)])[..., None]]
    else:
        flat = [v.reshape(*v.shape[:2], -1)[..., :1000] for v in trace.variables.values()]
        boxes = [np.stack([v.min(axis=1), v.max(axis=1)]) for v in flat]
    low, high = np.concatenate(boxes, axis=2)[:, :200]  # two hundred chains are enough to see it
    sizes = _group_sizes(low, high)
    if len(sizes) > 1 and "component" not in trace.sample_stats:
        seen = screen(trace.variables)
        idle = seen.still | fixed_scalars(trace.problem, trace.position, seen)
        ends = np.cumsum([int(np.prod(v.shape[2:])) for v in trace.variables.values()])
        free = np.concatenate([~part[:1000] for part in np.split(idle, ends[:-1])])
        sizes = _group_sizes(low[:, free], high[:, free])
    if len(sizes) > 1:
        warn(
            f"the chains fall into {len(sizes)} groups that never meet (of {', '.join(map(str, sizes[:6]))} chains). Either the "
            "set has separate parts, and then the share of each is that of the starts, not of the law; or the chains have not "
            "mixed: run longer, or with a larger step size."
        )
    return len(sizes) > 1


def _group_sizes(low: np.ndarray, high: np.ndarray) -> list[int]:
    """How many chains are in each group of boxes (chain, d) that overlap, directly or through others; the largest first."""
    meet = np.all((low[:, None] <= high[None]) & (low[None] <= high[:, None]), axis=2)
    group = np.arange(len(meet))
    for _ in range(len(meet)):  # spread the smallest index through everyone who meets
        spread = np.where(meet, group[None], len(meet)).min(axis=1)
        if np.array_equal(spread, group):
            break
        group = spread
    return sorted(np.unique(group, return_counts=True)[1].tolist(), reverse=True)
