"""Matrix products in full precision.

JAX's default on recent GPUs is TF32, with three digits: a constraint g(x) = A x − b would be known to 1e-3, and no projection
could get nearer to the set. Whoever sets `jax_default_matmul_precision` gets what they ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def full_precision() -> Iterator[None]:
    """Products that are traced inside have the digits of their numbers, unless the user has asked for something else."""
    if getattr(jax.config, "jax_default_matmul_precision", None) is not None:
        yield
        return
    with jax.default_matmul_precision("highest"):
        yield
