"""Samplers of several libraries behind one face: `METHODS[name].prepare(case, setting)` is a function of a seed that samples.

Each function returns `Draws`: positions (chain, draw, d) in the coordinates of the problem, and how many gradients of the log
density the kept draws took. A second call of the same function compiles nothing.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mici_system import mici_system
from olla import olla_step

import ogradient as og

SIGMA = 0.01  # of the penalty −g²/(2σ²)
THINNING = 10  # steps per draw of overdamped dynamics
MICI_SHARE = 4  # mici runs its chains one after the other in Python: it gets a fourth of the chains, draws and warm-up


class Setting(NamedTuple):
    """How much to sample."""

    chains: int = 16
    draws: int = 1000
    warmup: int = 1000


class Draws(NamedTuple):
    """What a method made."""

    positions: np.ndarray  # (chain, draw, d)
    gradients: int  # of the log density, by all chains, for the kept draws


Sample = Callable[[int], Draws]


@dataclass(frozen=True)
class Method:
    """A sampler: the package it needs, a function that prepares it, and what it cannot do."""

    package: str
    prepare: Callable[[Any, Setting], Sample]
    # Why a case is none for it, or "".
    unsuitable: Callable[[Any], str] = lambda case: ""
    setting: Callable[[Setting], Setting] = lambda setting: setting

    @property
    def installed(self) -> bool:
        """Whether its package is there."""
        return importlib.util.find_spec(self.package) is not None


def starts_of(case, setting):
    return case.known.start_off(jax.random.key(100), setting.chains)


def ours(case, setting, problem=None):
    """`og.sample` with nothing chosen, the warm-up included: lands, tunes and runs."""
    starts = starts_of(case, setting)
    if problem is not None:
        starts = case.inside(starts)

    def sample(seed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = og.sample(
                seed,
                problem or case.known.problem,
                starts,
                num_samples=setting.draws,
                progress=False,
                throw=False,
            )
        # A transition of L steps evaluates the gradient at its start too.
        steps = trace.sample_stats.get("n_steps")
        gradients = setting.chains * setting.draws if steps is None else int(np.sum(np.asarray(steps) + 1))
        return Draws(np.asarray(trace["x"]), gradients)

    return sample


def penalised(problem):
    """Log π − (g² + max(h, 0)²)/(2σ²), as people do who have no constrained sampler."""

    def density(x):
        outside = jnp.maximum(problem.inequality_value(x), 0.0)
        off = jnp.sum(problem.equality_value(x) ** 2) + jnp.sum(outside**2)
        return problem.logdensity(x) - 0.5 * off / SIGMA**2

    return density


def target_of(case, setting, penalty):
    """Log density, starts, and the map to positions: with a penalty, or in hand-made coordinates."""
    if penalty:
        return penalised(case.known.problem), starts_of(case, setting), lambda x: x
    free = case.coordinates
    return free.logdensity, jax.random.normal(jax.random.key(100), (setting.chains, free.dim)), free.position


def blackjax_nuts(case, setting, penalty=False):
    """NUTS with BlackJAX's window adaptation, chains mapped together."""
    import blackjax
    from blackjax.adaptation.base import get_filter_adapt_info_fn

    density, starts, position = target_of(case, setting, penalty)
    # Nothing of warm-up is kept.
    adaptation = blackjax.window_adaptation(blackjax.nuts, density, adaptation_info_fn=get_filter_adapt_info_fn())

    @jax.jit
    def chains(key):
        def chain(key, start):
            warm_key, run_key = jax.random.split(key)
            (state, parameters), _ = adaptation.run(warm_key, start, num_steps=setting.warmup)
            kernel = blackjax.nuts(density, **parameters)

            def step(state, key):
                state, info = kernel.step(key, state)
                return state, (position(state.position), info.num_integration_steps)

            return jax.lax.scan(step, state, jax.random.split(run_key, setting.draws))[1]

        return jax.vmap(chain)(jax.random.split(key, setting.chains), starts)

    def sample(seed):
        positions, steps = chains(jax.random.key(seed))
        return Draws(np.asarray(positions), int(np.sum(steps)))

    return sample


def numpyro_nuts(case, setting, penalty=False):
    """NumPyro's NUTS with its own warm-up, chains mapped together."""
    from numpyro.infer import MCMC, NUTS

    density, starts, position = target_of(case, setting, penalty)

    # Outside jit a second call of `MCMC.run` would compile its start again.
    @jax.jit
    def chains(key):
        mcmc = MCMC(
            NUTS(potential_fn=lambda z: -density(z)),
            num_warmup=setting.warmup,
            num_samples=setting.draws,
            num_chains=setting.chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(key, init_params=starts, extra_fields=("num_steps",))
        draws = mcmc.get_samples(group_by_chain=True)
        return jax.vmap(jax.vmap(position))(draws), mcmc.get_extra_fields()["num_steps"]

    def sample(seed):
        positions, steps = chains(jax.random.key(seed))
        return Draws(np.asarray(positions), int(np.sum(steps)))

    return sample


def mici_nuts(case, setting):
    """Mici's dynamic constrained HMC, its step size adapted, from starts that are landed for it."""
    import mici

    problem = case.known.problem
    with jax.enable_x64(True):
        starts = np.asarray(og.land(problem, jnp.asarray(starts_of(case, setting), float)).position)
        system = mici_system(problem)

    def sample(seed):
        with jax.enable_x64(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            integrator = mici.integrators.ConstrainedLeapfrogIntegrator(system)
            sampler = mici.samplers.DynamicMultinomialHMC(system, integrator, np.random.default_rng(seed))
            result = sampler.sample_chains(
                setting.warmup,
                setting.draws,
                list(starts),
                adapters=[mici.adapters.DualAveragingStepSizeAdapter(0.8)],
                trace_funcs=[lambda state: {"x": state.pos}],
                display_progress=False,
                n_worker=1,
            )
        return Draws(np.stack(result.traces["x"]), int(np.sum(result.statistics["n_step"])))

    return sample


def olla(case, setting):
    """OLLA-H with the step of the case."""
    starts = starts_of(case, setting)
    step = olla_step(case.known.problem, case.langevin_step)

    @jax.jit
    def chains(key):
        def draw(x, key):
            x = jax.lax.fori_loop(0, THINNING, lambda t, x: step(jax.random.fold_in(key, t), x), x)
            return x, x

        def chain(key, start):
            warm_key, run_key = jax.random.split(key)
            x = jax.lax.scan(lambda x, key: (draw(x, key)[0], None), start, jax.random.split(warm_key, setting.warmup))[
                0
            ]
            return jax.lax.scan(draw, x, jax.random.split(run_key, setting.draws))[1]

        return jax.vmap(chain)(jax.random.split(key, setting.chains), starts)

    return lambda seed: Draws(np.asarray(chains(jax.random.key(seed))), setting.chains * setting.draws * THINNING)


def needs_coordinates(case):
    return "" if case.coordinates is not None else "no hand-made coordinates"


def needs_equality(case):
    return (
        ""
        if case.known.problem.constraint_value(jnp.zeros(case.known.dim)).get("equality") is not None
        else "no equality"
    )


def fourth(setting):
    """Mici's share of the work, of which at least two chains and a few draws are left."""
    chains, draws, warmup = (-(-number // MICI_SHARE) for number in setting)
    return Setting(max(chains, 2), max(draws, 10), max(warmup, 10))


METHODS: dict[str, Method] = {
    "ogradient": Method("ogradient", ours),
    "ogradient, support": Method(
        "ogradient",
        lambda case, setting: ours(case, setting, case.supported),
        lambda case: "" if case.supported is not None else "no support",
    ),
    "mici": Method("mici", mici_nuts, needs_equality, fourth),
    "blackjax, coordinates": Method("blackjax", blackjax_nuts, needs_coordinates),
    "blackjax, penalty": Method("blackjax", lambda case, setting: blackjax_nuts(case, setting, penalty=True)),
    "numpyro, coordinates": Method("numpyro", numpyro_nuts, needs_coordinates),
    "numpyro, penalty": Method("numpyro", lambda case, setting: numpyro_nuts(case, setting, penalty=True)),
    "olla": Method("ogradient", olla),
}
