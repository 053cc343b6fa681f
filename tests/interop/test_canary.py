"""Compiled float32 sums over pairs against NumPy in float64: wrong by 75 % with jaxlib 0.10.2 on CPU."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.optimised


def projected_repulsion(xp, x, normal):
    difference = x[:, None] - x[None]
    weight = xp.exp(-xp.sum(difference**2, -1) / 2.083)
    force = difference * (2 / 2.083) * weight[..., None]
    along = xp.sum(normal[None] * force, -1, keepdims=True) / xp.sum(normal**2, 1, keepdims=True)[None]
    return xp.sum(force - normal[None] * along, 1)


def test_compiled_pair_sums_are_right():
    y = np.linspace(-2.5, 1.7, 200)
    x, normal = np.stack([-(y**3), y], 1), np.stack([np.ones_like(y), 3 * y**2], 1)
    compiled = jax.jit(lambda a, b: projected_repulsion(jnp, a, b))
    result = compiled(jnp.asarray(x, jnp.float32), jnp.asarray(normal, jnp.float32))
    assert np.abs(np.asarray(result) - projected_repulsion(np, x, normal)).max() < 1e-4


def test_the_wrong_jaxlib_is_refused_in_one_line():
    code = "import jaxlib.version as v; v.__version__ = '0.10.2'; import ogradient"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "ImportError: jaxlib 0.10.2 computes wrong float32 sums" in result.stderr.splitlines()[-1]
