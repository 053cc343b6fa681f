"""Sliced Wasserstein distance: Wasserstein distances of one-dimensional shadows, averaged over directions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ogradient.diagnostics.energy import as_draws


def sliced_wasserstein(first: Any, second: Any, *, p: float = 2.0, num_projections: int = 200, seed: int = 0) -> float:
    """(mean over unit directions θ of W_p(θᵀZ, θᵀW)^p)^{1/p} between samples of shape (n, d) and (k, d).

    In the units of x; O((n + k) log(n + k)) per direction, so it suits sizes at which all pairs are too many. The noise
    floor between two samples of one law falls like 1/√n.

    >>> import numpy as np, ogradient as og
    >>> round(og.sliced_wasserstein(np.zeros((5, 1)), np.full((7, 1), 3.0)), 6)
    3.0
    """
    z, w = as_draws("first", first).astype(np.float64), as_draws("second", second).astype(np.float64)
    if z.shape[1] != w.shape[1]:
        raise ValueError(f"the two samples must have the same dimension; got {z.shape[1]} and {w.shape[1]}.")
    if not p >= 1 or num_projections < 1:
        raise ValueError(f"p and num_projections must be at least 1; got {p!r} and {num_projections!r}.")
    directions = np.random.default_rng(seed).normal(size=(z.shape[1], num_projections))
    directions /= np.linalg.norm(directions, axis=0)
    z, w = np.sort(z @ directions, axis=0), np.sort(w @ directions, axis=0)
    # Quantile functions of samples are steps: between two neighbouring levels i/n or j/k both are constant.
    levels = np.union1d(np.arange(1, len(z) + 1) / len(z), np.arange(1, len(w) + 1) / len(w))
    widths = np.diff(levels, prepend=0.0)
    middle = levels - widths / 2
    at = lambda sample: sample[np.minimum((middle * len(sample)).astype(int), len(sample) - 1)]
    return float((widths @ np.abs(at(z) - at(w)) ** p).mean() ** (1 / p))
