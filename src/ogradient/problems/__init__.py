"""Problems with known answers, for testing samplers: ours, and anyone's.

Each function returns a `KnownProblem`: the `Problem` in the measure asked for, starts on and off the set, exact draws,
and moments with their true values. `PROBLEMS` lists them all.

>>> import jax, ogradient as og
>>> known = og.problems.ellipse(measure="hausdorff")
>>> known.moments["x²"].value
3.476396
>>> starts = known.start_off(jax.random.key(0), 8)      # eight chains, anywhere
>>> starts.shape
(8, 2)
"""

from __future__ import annotations

from collections.abc import Callable

from ogradient.problems.bounded import cone, dirichlet, disc, interval, quadratic_poly, spherical_cap
from ogradient.problems.gaussians import affine_gaussian, transport
from ogradient.problems.known import KnownProblem, Moment
from ogradient.problems.spheres import bingham, orthogonal, sphere_affine, von_mises_fisher
from ogradient.problems.surfaces import cubic, ellipse, mici_torus, torus, torus_a, torus_b

_ALL: list[Callable[..., KnownProblem]] = [cubic, transport, affine_gaussian, ellipse, torus_a, torus_b, mici_torus]
_ALL += [von_mises_fisher, bingham, orthogonal, sphere_affine]
_ALL += [spherical_cap, interval, disc, dirichlet, cone, quadratic_poly]
PROBLEMS: dict[str, Callable[..., KnownProblem]] = {function.__name__: function for function in _ALL}

__all__ = ["PROBLEMS", "KnownProblem", "Moment", "torus", *PROBLEMS]
