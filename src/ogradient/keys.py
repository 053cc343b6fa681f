"""Random keys: of a seed of any size, and of steps past 2³²."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

EPOCH = 2**32 - 2  # folded into the key of steps past 2³²; no chain has this number, and 2³² − 1 is the tuner's


def as_key(seed: int | Array) -> Array:
    """The key of a seed, a whole number of at least 0 and of any size; a typed key stays as it is.

    Seeds below 2⁶⁴ are the two words of JAX's default key, with and without x64. Larger ones are hashed to one of those.
    """
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        number = int(seed)
        if number < 0:
            raise ValueError(f"seed must be at least 0; got {number}.")
        if number >= 2**64:
            content = number.to_bytes((number.bit_length() + 7) // 8, "little")
            number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        if (
            getattr(jax.config, "jax_default_prng_impl", None) == "threefry2x32"
        ):  # the same words, and nothing is compiled
            words = np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)
            return jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")
        with jax.enable_x64(True):  # without it the upper word would be dropped
            return jax.random.key(np.uint64(number))
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.shape == ():
        return seed
    raise ValueError(f"seed must be an integer or one typed key from jax.random.key; got {seed!r}.")


def split_step(key: Array, step: int) -> tuple[Array, Array]:
    """An absolute step as what devices count with: a key for every 2³² steps, and the step's lower word.

    The first 2³² steps have the key itself.
    """
    high, low = divmod(step, 2**32)
    return key if high == 0 else jax.random.fold_in(jax.random.fold_in(key, EPOCH), high), jnp.uint32(low)


def step_keys(key: Array, num_chains: int, step: Any) -> Array:
    """The keys of one step of all chains: fold_in(fold_in(key, chain), step)."""
    return jax.vmap(lambda c: jax.random.fold_in(jax.random.fold_in(key, c), step))(jnp.arange(num_chains))
