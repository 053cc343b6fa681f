"""Strict JAX everywhere: no silent broadcasting between ranks, no silent mixing of dtypes."""

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
settings.register_profile("gate", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("gate")


@pytest.fixture
def lenient_promotion():
    """For other people's code, which mixes dtypes and ranks itself: our strictness is not theirs."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
