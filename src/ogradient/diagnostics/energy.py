"""Energy distance: how far two samples are from coming from one law, with no density needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ogradient.compilation import compiled

BLOCK = 256  # rows of the distance matrix in memory together


def energy_distance(first: Any, second: Any, *, unbiased: bool = False) -> float:
    """2 E‖Z−W‖ − E‖Z−Z'‖ − E‖W−W'‖ between two samples, arrays of shape (n, d) and (k, d).

    The paper's metric. Zero only for equal laws; in the units of x. Blocked: memory is O(n), not O(n²).

    Args:
        first: draws of one law.
        second: draws of the other.
        unbiased: leave the zeros ‖Z_i−Z_i‖ out of the averages (U-statistic; may come out negative). The default keeps
            them, as the paper does (V-statistic), and is positive even between two samples of one law: about
            E‖Z−Z'‖ (1/n + 1/k), the noise floor.

    >>> import numpy as np, ogradient as og
    >>> og.energy_distance(np.zeros((4, 2)), np.array([[3.0, 4.0]]))
    10.0
    """
    return energy_distance_to(second, unbiased=unbiased)(first)


def energy_distance_to(reference: Any, *, unbiased: bool = False) -> Callable[[Any], float]:
    """`energy_distance(draws, reference)` as a function of the draws; what concerns the reference alone is done once.

    >>> import numpy as np
    >>> distance = energy_distance_to(np.array([[3.0, 4.0]]))
    >>> distance(np.zeros((4, 2))), distance(np.array([[3.0, 4.0]]))
    (10.0, 0.0)
    """
    w = as_draws("second", reference)
    pairs = lambda n: n * (n - 1) if unbiased else n * n
    if unbiased and len(w) < 2:
        raise ValueError("unbiased=True needs at least two draws of each law.")
    within_w = _total_distance(w, w) / pairs(len(w))

    def distance(draws: Any) -> float:
        z = as_draws("first", draws)
        if z.shape[1] != w.shape[1]:
            raise ValueError(f"the two samples must have the same dimension; got {z.shape[1]} and {w.shape[1]}.")
        if unbiased and len(z) < 2:
            raise ValueError("unbiased=True needs at least two draws of each law.")
        return 2 * _total_distance(z, w) / (len(z) * len(w)) - _total_distance(z, z) / pairs(len(z)) - within_w

    return distance


def as_draws(name: str, value: Any) -> np.ndarray:
    """Draws as an array (n, d) of the default precision; refuses what is empty, not finite or of another shape."""
    draws = np.asarray(value)
    draws = draws[:, None] if draws.ndim == 1 else draws
    if draws.ndim != 2 or draws.size == 0:
        raise ValueError(f"{name} must be draws of shape (n, d) with n, d ≥ 1; got shape {draws.shape}.")
    if not np.isfinite(draws).all():
        raise ValueError(f"{name} has draws that are not finite; remove them first.")
    return draws.astype(jnp.result_type(float))


def _total_distance(z: np.ndarray, w: np.ndarray) -> float:
    return float(np.asarray(_row_sums(jnp.asarray(z), jnp.asarray(w), min(BLOCK, len(z))), np.float64).sum())


@compiled(static_argnums=2)
def _row_sums(z: Array, w: Array, block: int) -> Array:
    # Differences, not ‖z‖² + ‖w‖² − 2z·w, which would lose all digits between near points in float32.
    row = lambda point: jnp.sum(jnp.linalg.norm(w - point[None], axis=1))
    return lax.map(row, z, batch_size=block)
