"""Where variables may lie: positive numbers, intervals, simplices, factors of correlation matrices.

The user writes log π and the constraints in their own coordinates x. Samplers move in free coordinates y, all of ℝᵏ, with
x = T(y) and log π(T(y)) + log|det T'(y)| as their log density. The conditional law p(x | g(x) = 0) does not depend on the
coordinates, so draws x = T(y) have the law that the user wrote down.

A support is a frozen value with functions of one variable. The density of a simplex is against its first K − 1 coordinates,
that of a Cholesky factor against its entries below the diagonal, as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.problem.functions import Position, hashable, leaf_names


class Support(Protocol):
    """A set and its free coordinates."""

    def to_user(self, free: Array) -> Array:
        """The point x = T(y) of the set."""

    def from_user(self, value: Array) -> Array:
        """The free coordinates y of a point of the set."""

    def log_det(self, free: Array) -> Array:
        """log|det T'(y)|, a scalar."""

    def holds(self, value: Array) -> Array:
        """Whether a point is inside the set."""


@dataclass(frozen=True)
class Positive:
    """x > 0: x = exp(y)."""

    def to_user(self, free: Array) -> Array:
        """exp(y), within the numbers of its precision."""
        numbers = np.finfo(free.dtype)
        return jnp.exp(jnp.clip(free, math.ceil(math.log(numbers.tiny)), math.floor(math.log(numbers.max))))

    def from_user(self, value: Array) -> Array:
        """log(x)."""
        return jnp.log(value)

    def log_det(self, free: Array) -> Array:
        """Σ y."""
        return jnp.sum(free)

    def holds(self, value: Array) -> Array:
        """Whether all entries are positive."""
        return jnp.all(value > 0)


@dataclass(frozen=True)
class Interval:
    """lower < x < upper: x = lower + (upper − lower) σ(y), σ the logistic function."""

    lower: float
    upper: float

    def to_user(self, free: Array) -> Array:
        """The point lower + (upper − lower) σ(y), from the nearer end, where it has more digits; never an end itself."""
        width, dtype = self.upper - self.lower, free.dtype
        from_below = self.lower + width * jax.nn.sigmoid(free)
        inside = jnp.where(free > 0, self.upper - width * jax.nn.sigmoid(-free), from_below)
        ends = np.array([self.lower, self.upper], dtype)
        return jnp.clip(inside, np.nextafter(ends[0], ends[1]), np.nextafter(ends[1], ends[0]))

    def from_user(self, value: Array) -> Array:
        """log((x − lower)/(upper − x))."""
        return jnp.log(value - self.lower) - jnp.log(self.upper - value)

    def log_det(self, free: Array) -> Array:
        """Σ log((upper − lower) σ(y) σ(−y))."""
        both = jax.nn.log_sigmoid(free) + jax.nn.log_sigmoid(-free)
        return jnp.sum(both) + free.size * math.log(self.upper - self.lower)

    def holds(self, value: Array) -> Array:
        """Whether all entries are between the ends."""
        return jnp.all((value > self.lower) & (value < self.upper))


@dataclass(frozen=True)
class Simplex:
    """x > 0 with Σx = 1 along the last axis: K numbers from K − 1 free ones, by breaking a stick.

    Piece k is the share σ(y_k − log(K − k)) of what is left; y = 0 is the middle of the simplex.
    """

    def _logits(self, free: Array) -> Array:
        left = free.shape[-1] - jnp.arange(free.shape[-1])
        return free - jnp.log(left.astype(free.dtype)).reshape((1,) * (free.ndim - 1) + (-1,))

    def _log_left(self, logits: Array) -> Array:
        """The log of what is left of the stick before each piece, and after the last: (..., K)."""
        after = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
        return jnp.concatenate([jnp.zeros_like(after[..., :1]), after], axis=-1)

    def to_user(self, free: Array) -> Array:
        """The pieces of the stick."""
        logits = self._logits(free)
        left = self._log_left(logits)
        pieces = jnp.concatenate([jax.nn.log_sigmoid(logits), jnp.zeros_like(logits[..., :1])], axis=-1)
        return jnp.maximum(jnp.exp(left + pieces), jnp.finfo(free.dtype).tiny)

    def from_user(self, value: Array) -> Array:
        """The share of each piece in what is left, as free numbers."""
        after = jnp.flip(jnp.cumsum(jnp.flip(value[..., 1:], axis=-1), axis=-1), axis=-1)
        logits = jnp.log(value[..., :-1]) - jnp.log(after)
        return logits + (jnp.zeros_like(logits) - self._logits(jnp.zeros_like(logits)))

    def log_det(self, free: Array) -> Array:
        """Σ_k log(σ(y_k) σ(−y_k) · what is left): the Jacobian is triangular."""
        logits = self._logits(free)
        left = self._log_left(logits)[..., :-1]
        return jnp.sum(jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits) + left)

    def holds(self, value: Array) -> Array:
        """Whether all entries are positive and sum to 1, to a few roundings."""
        off = jnp.abs(jnp.sum(value, axis=-1) - 1)
        return jnp.all(value > 0) & jnp.all(off <= 16 * value.shape[-1] * jnp.finfo(value.dtype).eps)


@dataclass(frozen=True)
class CholeskyCorr:
    """L lower triangular with L Lᵀ a correlation matrix: n × n from n(n − 1)/2 free numbers, row by row.

    L_ij = tanh(y_ij) √(1 − Σ_{k<j} L_ik²), and the diagonal makes each row of length 1.
    """

    def _rows(self, free: Array) -> tuple[Array, Array]:
        """tanh(y) below the diagonal, (..., n, n), and log(1 − tanh²(y)) there; 0 elsewhere."""
        n = round((1 + math.sqrt(1 + 8 * free.shape[-1])) / 2)
        below = jnp.tril_indices(n, -1)
        zeros = jnp.zeros((*free.shape[:-1], n, n), free.dtype)
        return zeros.at[..., *below].set(jnp.tanh(free)), zeros.at[..., *below].set(-2 * _log_cosh(free))

    def to_user(self, free: Array) -> Array:
        """L."""
        share, log_rest = self._rows(free)
        left = jnp.cumsum(log_rest, axis=-1) - log_rest
        n = share.shape[-1]
        diagonal = jnp.eye(n, dtype=free.dtype).reshape((1,) * (share.ndim - 2) + (n, n))
        return jnp.tril(share + diagonal) * jnp.exp(0.5 * left)

    def from_user(self, value: Array) -> Array:
        """The free numbers of L."""
        n = value.shape[-1]
        left = 1 - (jnp.cumsum(value**2, axis=-1) - value**2)
        below = jnp.tril_indices(n, -1)
        return jnp.arctanh(value[..., *below] / jnp.sqrt(left[..., *below]))

    def log_det(self, free: Array) -> Array:
        """Σ log(1 − tanh²) + ½ log(1 − Σ_{k<j} L_ik²), over the entries below the diagonal."""
        _, log_rest = self._rows(free)
        left = jnp.cumsum(log_rest, axis=-1) - log_rest
        return jnp.sum(log_rest) + 0.5 * jnp.sum(jnp.tril(left, -1))

    def holds(self, value: Array) -> Array:
        """Whether it is lower triangular, with a positive diagonal and rows of length 1, to a few roundings."""
        off = jnp.abs(jnp.sum(value**2, axis=-1) - 1)
        positive = jnp.all(jnp.diagonal(value, axis1=-2, axis2=-1) > 0)
        return (
            positive
            & jnp.all(jnp.triu(value, 1) == 0)
            & jnp.all(off <= 16 * value.shape[-1] * jnp.finfo(value.dtype).eps)
        )


def _log_cosh(y: Array) -> Array:
    return jnp.logaddexp(y, -y) - math.log(2.0)


positive, simplex, cholesky_corr = Positive(), Simplex(), CholeskyCorr()


def interval(lower: float, upper: float) -> Interval:
    """The numbers between two ends.

    >>> import jax.numpy as jnp, ogradient as og
    >>> share = og.interval(0.0, 2.0)
    >>> float(share.to_user(jnp.array(0.0))), bool(share.holds(jnp.array([0.5, 2.5])))
    (1.0, False)
    """
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise ValueError(f"interval needs finite ends with lower < upper; got {lower!r}, {upper!r}.")
    return Interval(float(lower), float(upper))


@dataclass(frozen=True)
class Coordinates:
    """The supports of the variables of a position, by name; the others are free already."""

    supports: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, support: Any) -> Coordinates:
        """From what the user gave: a support for a bare array, or a dict by the names of the variables."""
        if isinstance(support, Coordinates):
            return support
        given = dict(support) if isinstance(support, Mapping) else {"x": support}
        for name, one in given.items():
            if not all(callable(getattr(one, part, None)) for part in ("to_user", "from_user", "log_det", "holds")):
                raise ValueError(
                    f"support[{name!r}] must be og.positive, og.interval(lower, upper), og.simplex or og.cholesky_corr; "
                    f"got {one!r}."
                )
        return cls(tuple(sorted(given.items())))

    def _each(self, apply: Callable[[Any, Array], Array], position: Position) -> Position:
        known = dict(self.supports)
        leaves, structure = jax.tree.flatten(position)
        names = leaf_names(position)
        if missing := sorted(known.keys() - set(names)):
            raise ValueError(f"support names {', '.join(missing)}, but the position has {', '.join(names)}.")
        changed = [apply(known[n], leaf) if n in known else leaf for n, leaf in zip(names, leaves, strict=True)]
        return jax.tree.unflatten(structure, changed)

    def to_user(self, free: Position) -> Position:
        """A position in the user's coordinates."""
        return self._each(lambda support, leaf: support.to_user(leaf), free)

    def from_user(self, position: Position) -> Position:
        """A position in free coordinates."""
        return self._each(lambda support, leaf: support.from_user(leaf), position)

    def log_det(self, free: Position) -> Any:
        """log|det T'(y)| of all variables."""
        known = dict(self.supports)
        parts = zip(leaf_names(free), jax.tree.leaves(free), strict=True)
        return sum(known[name].log_det(leaf) for name, leaf in parts if name in known)

    def outside(self, position: Position) -> list[str]:
        """The variables that are not inside their supports."""
        known = dict(self.supports)
        parts = zip(leaf_names(position), jax.tree.leaves(position), strict=True)
        return [name for name, leaf in parts if name in known and not bool(known[name].holds(leaf))]


@dataclass(frozen=True)
class InFreeCoordinates:
    """A function of the user's, as one of free coordinates; equal to another where function and coordinates are.

    A log density gets the factor of the coordinates.
    """

    function: Any
    coordinates: Coordinates
    density: bool = False

    @property
    def __wrapped__(self) -> Any:
        """The user's function, by which it is known in records."""
        return self.function

    def __call__(self, free: Position, *rest: Any) -> Any:
        """The user's function at the point."""
        value = self.function(self.coordinates.to_user(free), *rest)
        return value + self.coordinates.log_det(free) if self.density else value


def in_free_coordinates(function: Any, coordinates: Coordinates, *, density: bool = False) -> Any:
    """A function, a list of them or None, in free coordinates."""
    if function is None or callable(function):
        return function and InFreeCoordinates(hashable(function), coordinates, density)
    return tuple(InFreeCoordinates(hashable(one), coordinates) for one in function)
