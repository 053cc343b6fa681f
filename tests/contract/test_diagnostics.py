"""Every diagnostic in the table tells draws of the law from others, and says what it is."""

import jax
import numpy as np
import pytest

import ogradient as og

KNOWN = og.problems.ellipse()
everyone = pytest.mark.parametrize("name", [name for name, row in og.DIAGNOSTICS.items() if row.off is not None])


@everyone
def test_it_is_near_zero_for_the_law_and_larger_for_another(name):
    off = og.DIAGNOSTICS[name].off
    exact, other = (np.asarray(KNOWN.exact(jax.random.key(seed), 400)) for seed in (0, 1))
    right = off(KNOWN.problem, other, exact)
    wrong = off(KNOWN.problem, np.abs(other) * 1.2, exact)
    assert isinstance(right, float)
    assert np.isfinite(right)
    assert wrong > 3 * abs(right)


def test_the_table_is_public():
    assert all(getattr(og, name) is row.function for name, row in og.DIAGNOSTICS.items())
    assert all(row.help for row in og.DIAGNOSTICS.values())
