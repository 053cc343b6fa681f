"""Stages of the warm-up of exact samplers: windows of transitions of the very program that then samples.

Between them the parameters change, and nothing is compiled again. What a stage is judged by comes from its draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogradient.chunk import MOST_STEPS, arguments_of, capacity_of, pace_of, run_chunk, start, with_companion
from ogradient.problem import Problem
from ogradient.problem.functions import Position
from ogradient.progress import TuningBar
from ogradient.samplers.chmc import CHMC
from ogradient.samplers.metric import mass_parameters
from ogradient.warmup.metric import first_metric
from ogradient.warmup.scales import flat_points

TARGET = 0.85  # acceptance rate that the step size is tuned to,
TARGET_WITH_WALLS = 0.8
WINDOW = 100  # transitions of one stage
AT_ONCE = 1.0  # seconds from one look at the bar to the next, about


class Stage(NamedTuple):
    """Where warm-up stands after a stage: parameters, chains, and what the stage showed."""

    step_size: float
    num_integration_steps: int
    inverse_mass: np.ndarray
    states: Any
    rates: np.ndarray  # acceptance of every chain over the second half
    draws: np.ndarray  # (transition, chain, coordinate)


class Journal(Protocol):
    """What windows have found, in the order in which they ran, as arrays."""

    def read(self, which: list[Any]) -> list[np.ndarray] | None:
        """What the next window, told by its number and length, found in an earlier call; None where it did not run."""

    def add(self, which: list[Any], found: list[Any]) -> None:
        """Keep what a window found."""


def _from_journal(stage: Stage, found: list[np.ndarray]) -> Stage:
    """The stage after a window that an earlier call ran."""
    step_size, rates, draws, *leaves = found
    states = jax.tree.unflatten(jax.tree.structure(stage.states), [jnp.asarray(leaf) for leaf in leaves])
    return stage._replace(step_size=float(step_size), states=states, rates=rates, draws=draws)


class Windows:
    """Runs stages: windows of transitions of all chains with the parameters of a stage.

    `target` is the acceptance rate; None is `TARGET`, or `TARGET_WITH_WALLS` where there are inequalities. A `bar` is told of
    each chunk. A `journal` has what windows of an earlier call with the same arguments found, and keeps what these find.
    """

    def __init__(
        self,
        key: Array,
        problem: Problem,
        kernel: CHMC,
        target: float | None = None,
        bar: TuningBar | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.key, self.problem, self.kernel, self.bar, self.journal = key, problem, kernel, bar, journal
        self.seconds = 0.0  # of one step of all chains, as far as is known
        self.target = target or (TARGET if problem.inequality is None else TARGET_WITH_WALLS)

    def run(self, number: int, stage: Stage, *, adapt: bool, length: int = WINDOW, **changes: Any) -> Stage:
        """A window with the parameters of a stage, or with `changes` to them; adapting the step size, or not."""
        stage, which = stage._replace(**changes), [number, length, adapt]
        if self.journal is not None and (found := self.journal.read(which)) is not None:
            return _from_journal(stage, found)
        parameters, pace = self._arguments(stage, adapt)
        key, states = jax.random.fold_in(self.key, np.uint32(number)), stage.states
        capacity = capacity_of(self.problem, self.kernel, parameters, pace, key, states)
        draws, rates, done = [], [], 0
        while done < length:
            began, steps = time.perf_counter(), min(capacity - 1, length - done, self._at_once(stage))
            counts = (np.uint32(done), np.int32(steps), np.int32(1), np.int32(1), None)
            arguments = (parameters, pace, key, states, *counts)
            states, rows, _, pace = run_chunk(self.problem, self.kernel, capacity, *arguments)
            leaves = [np.asarray(leaf)[:steps] for leaf in jax.tree.leaves(rows["position"])]
            draws.append(np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=2))
            rates.append(np.asarray(rows["stats"]["steering"])[:steps])
            done += steps
            self.seconds = (time.perf_counter() - began) / (steps * stage.num_integration_steps)
            if self.bar is not None:
                now = float(np.exp(pace.average)) if adapt else stage.step_size
                self.bar.update(steps, f"trajectories of {stage.num_integration_steps} × {now:.3g}")
        step_size = float(np.exp(pace.average)) if adapt else stage.step_size
        late = np.concatenate(rates)[length // 2 :].mean(axis=0, dtype=np.float64)
        stage = stage._replace(step_size=step_size, states=states, rates=late, draws=np.concatenate(draws))
        if self.journal is not None:
            self.journal.add(which, [step_size, late, stage.draws, *jax.tree.leaves(states)])
        return stage

    def _at_once(self, stage: Stage) -> int:
        """Transitions of a chunk: without a bar as many as there are, with one about a second of them."""
        if self.bar is None or self.seconds == 0:
            return MOST_STEPS
        return max(1, int(AT_ONCE / (self.seconds * stage.num_integration_steps)))

    def _arguments(self, stage: Stage, adapt: bool) -> tuple[dict[str, Any], Any]:
        """Parameters and pace of a stage."""
        given = {"num_integration_steps": stage.num_integration_steps} | mass_parameters(stage.inverse_mass)
        parameters, _ = arguments_of(self.kernel, given, stage.states.position)
        return parameters, pace_of(stage.step_size, stage.states.position, adapt=adapt, target=self.target)

    def prepare(self, positions: Position) -> Callable[[], None]:
        """Begin to compile what windows run; returns what waits for it."""
        units = np.ones(flat_points(positions).shape[1])
        stage = first_stage(self.kernel, positions, units, 1.0)
        parameters, pace = self._arguments(stage, adapt=False)
        arguments = (parameters, pace, self.key, stage.states)
        capacity = capacity_of(self.problem, self.kernel, *arguments)
        counts = (np.uint32(0), np.int32(1), np.int32(1), np.int32(1), None)
        return run_chunk.prepare(self.problem, self.kernel, capacity, *arguments, *counts)


def first_stage(kernel: CHMC, positions: Position, units: np.ndarray, step_size: float) -> Stage:
    """The stage before the first window."""
    states = start(kernel, positions)
    states = with_companion(states) if jax.tree.leaves(positions)[0].shape[0] == 1 else states
    return Stage(step_size, 3, first_metric(units), states, np.zeros(0), np.zeros(0))
