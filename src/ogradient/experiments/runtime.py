"""The paper's runtime comparison (its appendix): energy distance on the cubic against seconds, from on the set.

Our samplers, and mici's constrained HMC and Langevin where it is installed, in both of its measures: the paper found them not
converged after 5,000 iterations, and mici's default is the Hausdorff measure, whose law is at an energy distance of 0.87 here.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ogradient.experiments import options
from ogradient.experiments.folder import Outcome, write_folder
from ogradient.experiments.synthetic import SETTINGS, truth_of_cubic
from ogradient.geometry.land import land
from ogradient.keys import as_key, step_keys
from ogradient.plots import COLOURS, draw_curves, new_figure
from ogradient.samplers.base import kernel_of

FLOAT64 = True
SAMPLERS = ("o_langevin", "o_kinetic", "o_svgd", "chmc", "clangevin")
PEERS = {"mici CHMC": (1.0, 2), "mici CLangevin": (0.3, 1)}  # the paper's step size and number of steps


@dataclass(frozen=True)
class Config:
    """Everything that decides the result, but for the machine's speed."""

    chains: int = options.chains(100)
    seconds: float = options.option(5.0, "For each of our samplers; mici's get four times that.", min=0.01)
    peers: bool = options.option(True, "Run mici's samplers too, where it is installed.")
    seed: int = options.seed()


def run(config: Config, out: Path, *, progress: bool = True) -> Outcome:
    """Time everything, write the folder, return the table and the path of the figure."""
    known, distance, floor = truth_of_cubic(config.chains, config.seed)
    starts = known.start_on(as_key(config.seed + 3), config.chains)
    curves, rows = {}, []

    def record(name: str, advance: Callable[[int], np.ndarray], seconds: float) -> None:
        if progress:
            print(f"{name} ...", flush=True)
        curves[name], iterations = _follow(advance, distance, seconds)
        times, energies = curves[name]
        row = {"sampler": name, "iterations": iterations, "µs/iteration": 1e6 * times[-1] / iterations}
        row |= {"E (end)": energies[-1], "E (exact)": floor.mean}
        row["seconds to exact"] = next(
            (t for t, energy in zip(times, energies, strict=True) if energy < floor.q95), None
        )
        rows.append(row)

    for name in SAMPLERS:
        record(name, _ours(known.problem, name, starts), config.seconds)
    if config.peers and importlib.util.find_spec("mici") is not None:
        for name, (step_size, num_steps) in PEERS.items():
            for hausdorff in (False, True):
                label = f"{name}, {'Hausdorff' if hausdorff else 'conditional'}"
                advance = _mici(np.asarray(starts), step_size, num_steps, hausdorff, config.seed)
                record(label, advance, 4 * config.seconds)
    figure, axes = new_figure(1, 1, width=6.5, height=4.2)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(curves)}
    title = "cubic, starting on the set"
    draw_curves(axes[0, 0], curves, "energy distance", title, colours=colours, floor=floor)
    axes[0, 0].set_xlabel("seconds, compilation left out", fontsize=9)
    return rows, write_folder(
        out / "runtime",
        title="Runtime on the cubic",
        config={"experiment": "runtime", **asdict(config)},
        metrics={"curves": {k: {"seconds": x, "energy": y} for k, (x, y) in curves.items()}, "floor": floor},
        rows=rows,
        figure=figure,
        notes=[
            f"{config.chains} chains or particles. Seconds to exact: the first time the energy distance is within the 95 % of as "
            "many exact draws. mici runs its chains one after the other in Python; in the Hausdorff measure, its default, it "
            "converges to another law, which on this plot looks like not converging.",
        ],
    )


def _follow(
    advance: Callable[[int], np.ndarray], distance: Callable[[Any], float], seconds: float
) -> tuple[tuple[list[float], list[float]], int]:
    """Energy distance against time, at iterations that grow by a quarter; measuring it is not counted."""
    spent, iteration, times, energies = 0.0, 0, [], []
    while spent < seconds and iteration < 200_000:
        steps = max(1, iteration // 4)
        began = time.perf_counter()
        draws = advance(steps)
        spent += time.perf_counter() - began
        iteration += steps
        times.append(spent)
        energies.append(distance(draws))
    return (times, energies), iteration


def _ours(problem: Any, name: str, starts: jax.Array) -> Callable[[int], np.ndarray]:
    algorithm = SETTINGS[name].build(problem)
    if kernel_of(algorithm).obeys == "exact":
        starts = land(problem, starts).position
    positions = starts[None] if kernel_of(algorithm).ensemble else starts
    key = jax.random.key(0)

    @jax.jit
    def run(states: Any, begin: jax.Array, steps: jax.Array) -> Any:
        def body(t: jax.Array, states: Any) -> Any:
            return jax.vmap(algorithm.step)(step_keys(key, len(positions), t), states)[0]

        return jax.lax.fori_loop(begin, begin + steps, body, states)

    state = {"now": jax.vmap(algorithm.init)(positions), "t": 0}
    jax.block_until_ready(run(state["now"], jnp.int32(0), jnp.int32(0)))

    def advance(steps: int) -> np.ndarray:
        state["now"] = jax.block_until_ready(run(state["now"], jnp.int32(state["t"]), jnp.int32(steps)))
        state["t"] += steps
        return np.asarray(state["now"].position).reshape(-1, 2)

    return advance


def _mici(
    starts: np.ndarray, step_size: float, num_steps: int, hausdorff: bool, seed: int
) -> Callable[[int], np.ndarray]:
    import mici

    def gradient(q: np.ndarray) -> np.ndarray:
        c = q[0] + q[1] ** 3
        return np.array([c, 3 * q[1] ** 2 * c + q[1]])

    system = mici.systems.DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=lambda q: 0.5 * ((q[0] + q[1] ** 3) ** 2 + q[1] ** 2),
        grad_neg_log_dens=gradient,
        constr=lambda q: np.array([q[0] + q[1] ** 3]),
        jacob_constr=lambda q: np.array([[1.0, 3 * q[1] ** 2]]),
        mhp_constr=lambda q: lambda m: np.array([0.0, 6 * q[1] * m[0, 1]]),
        dens_wrt_hausdorff=hausdorff,
    )
    integrator = mici.integrators.ConstrainedLeapfrogIntegrator(system, step_size=step_size)
    transition = mici.transitions.MetropolisStaticIntegrationTransition(system, integrator, n_step=num_steps)
    rng = np.random.default_rng(seed)
    states = [mici.states.ChainState(pos=q.copy(), mom=None, dir=1) for q in starts]

    def advance(steps: int) -> np.ndarray:
        for _ in range(steps):
            for i, state in enumerate(states):
                state.mom = system.sample_momentum(state, rng)
                states[i], _ = transition.sample(state, rng)
        return np.array([state.pos for state in states])

    return advance
