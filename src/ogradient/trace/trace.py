"""The result of a run: named draws, what was noticed on the way, and how it was made."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ogradient.problem import Problem
from ogradient.problem.functions import Position, leaf_names
from ogradient.status import Status
from ogradient.trace import archive

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

BLOCK_BYTES = 2**28  # of draws that `apply` brings to the device together


@dataclass(frozen=True, eq=False)
class Trace:
    """Draws and everything needed to judge, repeat or continue them.

    `trace.position` is the user's pytree with axes (chain, draw, ...); `trace["name"]` one variable of it (`x` for a bare
    array). `sample_stats` holds the constraint values and statuses of the kept draws; `status_counts`, of shape
    (chain, status), counts every step, dropped ones and warm-up included.
    """

    position: Position
    sample_stats: dict[str, np.ndarray]
    status_counts: np.ndarray
    provenance: dict[str, Any]
    state: Any  # of all chains after the last step; `resume` continues from it
    problem: Problem | None = None  # what was sampled; None in a loaded trace, since functions are not saved

    @property
    def variables(self) -> dict[str, np.ndarray]:
        """Every variable by name, each with axes (chain, draw, ...)."""
        return dict(zip(leaf_names(self.position), jax.tree.leaves(self.position), strict=True))

    @property
    def ensemble(self) -> bool:
        """Whether the draws are whole ensembles, with axes (ensemble, draw, particle, ...)."""
        return bool(self.provenance.get("ensemble"))

    @property
    def _sample_shape(self) -> tuple[int, ...]:
        """The lengths of the axes chain and draw, and of particle in an ensemble."""
        return jax.tree.leaves(self.position)[0].shape[: 3 if self.ensemble else 2]

    @property
    def num_chains(self) -> int:
        """How many chains."""
        return self._sample_shape[0]

    @property
    def num_draws(self) -> int:
        """How many draws were kept per chain."""
        return self._sample_shape[1]

    @property
    def pooled(self) -> Position:
        """The position with all draws along one axis: (chain · draw [· particle], ...)."""
        axes = len(self._sample_shape)
        return jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[axes:])), self.position)

    def __getitem__(self, name: str) -> np.ndarray:
        variables = self.variables
        if name not in variables:
            raise KeyError(f"no variable {name!r}; this trace has {', '.join(map(repr, variables))}.")
        return variables[name]

    def __repr__(self) -> str:
        axes = self._sample_shape
        shapes = ", ".join(f"{name}{list(value.shape[len(axes) :])}" for name, value in self.variables.items())
        who = f"{axes[0]} ensembles of {axes[2]} particles" if self.ensemble else f"{axes[0]} chains"
        data = self.provenance.get("data") or {}
        rows = data.get("constraint_batch_size") or data.get("batch_size")
        seen = " on its batch" if data.get("batch_fn") or rows not in (None, data.get("rows")) else ""
        violations = self._violations().items() if self.num_draws else ()
        largest = "".join(f", max |{kind}| {value.max():.2g}{seen}" for kind, value in violations)
        bad = ", ".join(f"{Status(code).name} {count:,}" for code, count in self.problems().items())
        return (
            f"<Trace of {self.provenance['algorithm']}: {who} × {self.num_draws} draws of {shapes}"
            f"{largest}; {bad or 'every step OK'}>"
        )

    def problems(self) -> dict[int, int]:
        """How often each status but OK occurred, over all chains and steps."""
        totals = self.status_counts.sum(axis=0)
        return {code: int(totals[code]) for code in range(1, len(totals)) if totals[code]}

    def summary(
        self, var_names: Sequence[str] | None = None, *, digits: int | None = 4, limit: int = 1000
    ) -> pd.DataFrame:
        """Mean, sd, Monte Carlo error, effective sample size and R-hat (ArviZ's) per scalar, then |g| per constraint.

        Of particles only the last kept draw is described, without effective sample size and R-hat: those ask how far the
        states of a Markov chain depend on each other in time, and interacting particles are no such chain.

        Args:
            var_names: the variables to show; None for all.
            digits: significant ones to keep, so that the table reads well; None for all.
            limit: the most rows to compute; more are left out with a warning.
        """
        import pandas as pd

        if self.num_draws == 0:
            remedy = "the run ended in its warm-up. Go on with resume=trace."
            raise ValueError(f"the trace has no draws to describe: {remedy}")
        last = lambda value: value[:, -1] if self.ensemble else value
        rows: dict[str, dict[str, float]] = {}
        for name in self.variables if var_names is None else var_names:
            value = last(self[name])
            for index in np.ndindex(value.shape[2:]):
                if len(rows) == limit:
                    text = f"summary shows the first {limit} scalars; choose var_names or raise limit."
                    warnings.warn(text, stacklevel=2)
                    break
                label = name + (f"[{', '.join(map(str, index))}]" if index else "")
                scalar = value[(slice(None), slice(None), *index)]
                rows[label] = _describe(np.asarray(scalar, np.float64), markov=not self.ensemble)
        for kind, value in self._violations().items():
            for k, v in enumerate(np.moveaxis(last(value), -1, 0)):
                label = f"|{kind}[{k}]|" if kind == "equality" else f"{kind}[{k}]₊"
                rows[label] = {"mean": v.mean(), "sd": v.std(), "max": v.max()}
        if digits is not None:
            rows = {name: {k: float(f"{v:.{digits}g}") for k, v in row.items()} for name, row in rows.items()}
        return pd.DataFrame.from_dict(rows, orient="index")

    def _violations(self) -> dict[str, np.ndarray]:
        """|g| and h₊ = max(h, 0) of all kept draws, as far as the problem has them."""
        sizes: dict[str, Any] = {"equality": np.abs, "inequality": lambda h: np.maximum(h, 0)}
        return {kind: size(self.sample_stats[kind]) for kind, size in sizes.items() if kind in self.sample_stats}

    @property
    def obeys(self) -> str:
        """How its draws obey the constraint: "exact", "near", "mean" (over particles), "no", or "unknown"."""
        return self.provenance.get("obeys", "unknown")

    def apply(self, fn: Callable[..., Any], *arguments: Any, batch_size: int = 1024) -> Any:
        """A function of one position over all draws: arrays with axes (chain, draw[, particle], ...).

        Compiled, and mapped in batches of `batch_size` draws so that predictions on many draws fit in memory. Further
        `arguments`, such as the rows to predict, are the same for all draws: fn(position, *arguments). Draws are brought to the
        device in blocks of at most 256 MiB.
        """
        shape = self._sample_shape
        over = jax.jit(lambda draws, rest: jax.lax.map(lambda draw: fn(draw, *rest), draws, batch_size=batch_size))
        total, leaves = int(np.prod(shape)), jax.tree.leaves(self.position)
        block = max(1, BLOCK_BYTES * total // max(sum(leaf.nbytes for leaf in leaves), 1))
        if total <= block:
            return jax.tree.map(
                lambda leaf: np.asarray(leaf).reshape(shape + leaf.shape[1:]), over(self.pooled, arguments)
            )
        parts = []
        for first in range(0, total, block):
            some = np.unravel_index(np.arange(first, min(first + block, total)), shape)
            values = over(jax.tree.map(lambda leaf, some=some: leaf[some], self.position), arguments)
            parts.append(jax.tree.map(np.asarray, values))
        return jax.tree.map(lambda *leaf: np.concatenate(leaf).reshape(shape + leaf[0].shape[1:]), *parts)

    def last(self, count: int) -> Trace:
        """The last `count` draws alone. Those before count as warm-up, so that the run can go on from it to the same bits.

        What a long run of large positions needs to be kept: `trace = og.sample(..., resume=trace.last(1))`. The draws are copied,
        so that the others need no memory once the longer trace is let go.
        """
        if not 1 <= count <= self.num_draws:
            raise ValueError(f"count must lie between 1 and the {self.num_draws} draws of the trace; got {count!r}.")
        dropped = self.num_draws - count
        # A view would keep all draws in memory.
        cut = lambda leaf: np.array(leaf[:, dropped:])
        past = self.provenance["num_warmup"] + dropped * self.provenance["thinning"]
        return replace(
            self,
            position=jax.tree.map(cut, self.position),
            sample_stats={name: cut(values) for name, values in self.sample_stats.items()},
            provenance=self.provenance | {"num_warmup": past},
        )

    def to_datatree(self) -> xr.DataTree:
        """An `xarray.DataTree` in ArviZ's schema: groups posterior and sample_stats, provenance in the attributes."""
        tree = self._tree(self.variables, self.sample_stats)
        tree.attrs.update({key: _plain(value) for key, value in self.provenance.items()})
        return tree

    def _tree(self, variables: dict[str, np.ndarray], stats: dict[str, np.ndarray]) -> xr.DataTree:
        from arviz_base import from_dict

        dims = {}
        for group, arrays in (("posterior", variables), ("sample_stats", stats)):
            for name, array in arrays.items():
                particles = self.ensemble and (group == "posterior" or name in ("lp", "equality", "inequality"))
                axes = range(array.ndim - (3 if particles else 2))
                dims[name] = ["particle"] * particles + [_dimension(f"{name}_dim_{i}", arrays) for i in axes]
        with warnings.catch_warnings():
            # Many short chains are meant.
            warnings.filterwarnings("ignore", "Found chain dimension to be longer", UserWarning)
            return from_dict({"posterior": variables, "sample_stats": stats}, dims=dims)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write everything to a Zarr folder; `og.load` reads it back.

        The folder gets its name when it is whole: until then, and if anything goes wrong, a trace that was there is as it was. A
        trace that is there is replaced with `overwrite=True` only, and never if the folder holds other files too. Variables
        have their own names on disk where file systems take them; others are numbered there, and come back as they were.
        """
        import xarray as xr

        path = Path(path)
        groups = {"posterior": self.variables, "sample_stats": self.sample_stats}
        names = {group: archive.names_on_disk(arrays) for group, arrays in groups.items()}
        tree = self._tree(*({names[g][name]: array for name, array in some.items()} for g, some in groups.items()))
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)]
        state = {f"leaf_{i}": ([f"leaf_{i}_dim_{k}" for k in range(leaf.ndim)], leaf) for i, leaf in enumerate(leaves)}
        tree["state"] = xr.DataTree(xr.Dataset(state))
        header = {"provenance": self.provenance, "structure": _structure(self.position)}
        header["custom_containers"] = not _plain_containers(self.position)
        header["status_counts"] = self.status_counts.tolist()
        archive.write(path, tree, names, header, overwrite=overwrite)
        return path


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace written by `Trace.save`; an error names what is damaged, if a byte is not as it was saved.

    Positions built of dicts, lists and tuples come back as they were; other containers come back as dicts by name.
    """
    header, groups = archive.read(Path(path))
    state = groups["state"]
    return Trace(
        position=_rebuild(header["structure"], groups["posterior"]),
        sample_stats=groups["sample_stats"],
        status_counts=np.asarray(header["status_counts"]),
        provenance=header["provenance"] | ({"custom_containers": True} if header["custom_containers"] else {}),
        state=[state[f"leaf_{i}"] for i in range(len(state))],
    )


def in_order_of(trace: Trace, like: Position) -> Position:
    """The trace's draws in the structure of `like`, matched by name: containers may order their leaves differently."""
    names, variables = leaf_names(like), trace.variables
    if set(names) != set(variables):
        mine, theirs = ", ".join(variables), ", ".join(names)
        raise ValueError(f"the trace has the variables {mine}, but the positions have {theirs}.")
    return jax.tree.unflatten(jax.tree.structure(like), [variables[name] for name in names])


def _plain_containers(tree: Position) -> bool:
    if type(tree) is dict:
        return all(map(_plain_containers, tree.values()))
    if type(tree) in (list, tuple):
        return all(map(_plain_containers, tree))
    return tree is None or jax.tree_util.all_leaves([tree])


def _describe(draws: np.ndarray, *, markov: bool) -> dict[str, float]:
    """The row of one scalar with axes (chain, draw), or of its particles."""
    from arviz_stats.base import array_stats

    axes = {"chain_axis": 0, "draw_axis": 1}
    row = {"mean": draws.mean(), "sd": draws.std(ddof=1) if draws.size > 1 else np.nan}
    # ArviZ splits chains in halves.
    if markov and draws.shape[1] >= 4:
        row |= {
            "mcse": array_stats.mcse(draws, **axes, method="mean"),
            "ess_bulk": array_stats.ess(draws, **axes, method="bulk"),
            "ess_tail": array_stats.ess(draws, **axes, method="tail", prob=(0.05, 0.95)),
            "r_hat": array_stats.rhat(draws, **axes, method="rank"),
        }
    row["max"] = draws.max()
    return {key: float(value) for key, value in row.items()}


def _dimension(name: str, taken: dict[str, Any]) -> str:
    """A name for an axis that no variable has: such a variable would be taken for its coordinates."""
    return name if name not in taken else _dimension(name + "_", taken)


def _plain(value: Any) -> Any:
    """The value as an attribute: text and numbers as they are, everything else as JSON."""
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else json.dumps(value)


def _structure(tree: Position) -> Any:
    """The containers of a pytree, JSON-able, with the names of the leaves in their places; `_rebuild` reads it."""
    names = jax.tree.unflatten(jax.tree.structure(tree), leaf_names(tree))

    def encode(node: Any) -> Any:
        if isinstance(node, str):
            return node
        if node is None:
            return {"none": None}
        if type(node) is dict:
            return {"dict": [[key, encode(child)] for key, child in node.items()]}
        if type(node) in (list, tuple):
            return {type(node).__name__: [encode(child) for child in node]}
        return {"dict": [[name, name] for name in jax.tree.leaves(node)]}

    return encode(names)


def _rebuild(structure: Any, variables: dict[str, np.ndarray]) -> Position:
    if isinstance(structure, str):
        return variables[structure]
    ((kind, children),) = structure.items()
    if kind == "none":
        return None
    if kind == "dict":
        return {key: _rebuild(child, variables) for key, child in children}
    return {"list": list, "tuple": tuple}[kind](_rebuild(child, variables) for child in children)
