"""The comparison with other libraries: coordinates have the law of the problem, fixtures are right, the table is whole."""

import json

import floor
import jax
import jax.numpy as jnp
import numpy as np
import olla
import peer_methods
import peer_problems
import peers
import pytest
from mici_system import mici_system
from typer.testing import CliRunner

import ogradient as og
from ogradient.cli import app

pytestmark = pytest.mark.usefixtures("lenient_promotion")
FREE = [name for name in peer_problems.CASES if name not in ("quadratic_poly", "pressure")]


@pytest.mark.parametrize("name", FREE)
def test_hand_made_coordinates_lie_on_the_set(name):
    case = peer_problems.build(name)
    z = jax.random.normal(jax.random.key(0), (8, case.coordinates.dim))
    x = jax.vmap(case.coordinates.position)(z)
    assert x.shape == (8, case.known.dim)
    values = jax.vmap(case.known.problem.constraint_value)(x)
    assert np.abs(values.get("equality", 0.0)).max() < 1e-3
    assert np.max(values.get("inequality", 0.0)) <= 1e-6
    assert np.all(np.isfinite(jax.vmap(jax.grad(case.coordinates.logdensity))(z)))


# Small enough for importance sampling from N(0, s² I); s is the second entry.
SMALL = {
    "ellipse": (peer_problems.ellipse, 1.0),
    "von_mises_fisher": (lambda: peer_problems.von_mises_fisher(5, 2.0), 1.0),
    "simplex": (lambda: peer_problems.simplex(4), 2.0),
    "half_normals": (lambda: peer_problems.half_normals(2), 2.0),
    "rotations": (lambda: peer_problems.rotations(3), 1.0),
    "mici_torus": (peer_problems.mici_torus, 1.0),
    "transport": (lambda: peer_problems.transport(6, 2), 1.0),
    "spherical_cap": (lambda: peer_problems.spherical_cap(4), 2.0),
    "bond_chain": (lambda: peer_problems.bond_chain(4), 1.0),
}


@pytest.mark.parametrize("name", SMALL)
def test_hand_made_coordinates_have_the_law_of_the_problem(name):
    build, scale = SMALL[name]
    case = build()
    z = scale * jax.random.normal(jax.random.key(1), (100_000, case.coordinates.dim))
    log_weight = jax.vmap(case.coordinates.logdensity)(z) + 0.5 * jnp.sum((z / scale) ** 2, axis=1)
    weight = np.exp(np.asarray(log_weight - log_weight.max(), float))
    x = jax.vmap(case.coordinates.position)(z)
    for label, moment in case.known.moments.items():
        # SO(3) has other moments of the trace than those of the library, which are for n ≥ 4.
        if name == "rotations" and label.startswith("trace"):
            continue
        values = np.asarray(jax.vmap(moment.function)(x), float)
        mean = np.sum(weight * values) / weight.sum()
        error = np.sqrt(np.sum((weight * (values - mean)) ** 2)) / weight.sum()
        assert abs(mean - moment.value) < 5 * error, f"{label}: {mean:.4f} ± {error:.4f}, truth {moment.value:.4f}"
        spread = np.sqrt(np.sum(weight * (values - mean) ** 2) / weight.sum())
        assert error < 0.05 * spread, "the weights must be even enough to see anything"


def test_olla_samples_the_law_of_the_ellipse():
    case = peer_problems.ellipse()
    draws = peer_methods.olla(case, peer_methods.Setting(chains=1024, draws=20, warmup=200))(0).positions[:, -1]
    squares = draws[:, 0] ** 2
    # An unadjusted step of 0.01 may be off by a little. In the other measure the mean is 3.48.
    assert abs(squares.mean() - 4.5) < 5 * squares.std() / 32 + 0.05
    assert np.abs(jax.vmap(case.known.problem.equality_value)(draws)).mean() < 0.05
    assert case.known.problem.measure == "conditional"
    assert olla.area_logdensity(case.known.problem)(jnp.array([0.0, 1.0])) == pytest.approx(0.0)


def test_mici_has_the_right_derivatives(x64):
    problem = og.problems.orthogonal(3).problem
    system = mici_system(problem)
    q, m = np.random.default_rng(0).normal(size=9), np.random.default_rng(1).normal(size=(6, 9))
    state = type("State", (), {"pos": q})()
    hessians = jax.hessian(problem.equality_value)(q)
    np.testing.assert_allclose(system._mhp_constr(state.pos)(m), np.einsum("ki,kij->j", m, hessians), atol=1e-12)
    np.testing.assert_allclose(system._jacob_constr(q), jax.jacobian(problem.equality_value)(q), atol=1e-12)


def test_the_table_is_whole_and_goes_on_where_it_stopped(monkeypatch, tmp_path):
    measured = []

    def here(job, options):
        measured.append(job)
        return {"error": None, **peers.measure_one({**job._asdict(), "setting": options.setting, "data": None})}

    monkeypatch.setattr(peers, "in_a_process", here)
    arguments = ["bench", "--peers", "ellipse", "--method", "olla", "--method", "blackjax, coordinates"]
    arguments += ["--chains", "2", "--draws", "50", "--warmup", "50", "--repeat", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "[4/4] ellipse, blackjax, coordinates" in done.output
    # In turns: all methods, then all again.
    assert [(job.method, job.repetition) for job in measured] == [
        ("olla", 0),
        ("blackjax, coordinates", 0),
        ("olla", 1),
        ("blackjax, coordinates", 1),
    ]
    record = json.loads((tmp_path / "peers.json").read_text())
    assert {"machine", "versions", "runs"} == set(record)
    for run in record["runs"]:
        assert 0 < run["warm_s"] < run["cold_s"]
        assert 0 < run["compile_s"] < run["cold_s"]
        assert run["ess"] > 0
        assert run["z_of"] in ("x", "x²", "y²")
        assert run["gradients"] >= 100
    assert (tmp_path / "peers.png").stat().st_size > 1000
    row, _ = peers.table(record["runs"])
    assert row["low"] <= row["ess_per_s"] <= row["high"]
    assert "| ellipse | olla | 2 × 50 |" in "\n".join(peers.markdown([row]))

    CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert len(measured) == 4
    record["versions"]["jax"] = "another"
    (tmp_path / "peers.json").write_text(json.dumps(record))
    refused = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert refused.exit_code == 1
    assert "another versions" in refused.output


def test_what_cannot_run_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(peers.METHODS, "absent", peer_methods.Method("no_such_package", peer_methods.ours))
    options = peers.Options(tmp_path, ("half_normals", "quadratic_poly"), ("absent", "mici", "blackjax, coordinates"))
    jobs, left_out = peers.jobs_of(options)
    assert {job[:2] for job in jobs} == {("half_normals", "blackjax, coordinates"), ("quadratic_poly", "mici")}
    assert left_out == [
        "absent: no_such_package is not installed",
        "mici on half_normals: no equality",
        "blackjax, coordinates on quadratic_poly: no hand-made coordinates",
    ]
    with pytest.raises(ValueError, match="problem 'nonsense' is none of ellipse"):
        peers.Options(tmp_path, ("nonsense",)).chosen()
    slow = peers.in_a_process(jobs[0], peers.Options(tmp_path, limit=0.01))
    assert slow == {"error": "too long"}
    runs = [{**jobs[0]._asdict(), **slow, "limit": 0.01}]
    assert peers.is_done(jobs[1], runs, limit=0.01)
    assert not peers.is_done(jobs[1], runs, limit=1.0)


@pytest.mark.parametrize("name", ["langevin", "o_langevin", "o_kinetic", "clangevin", "o_svgd"])
def test_the_floor_counts_what_a_step_evaluates(name):
    size = floor.Size(d=5, m=1, n=3)
    problem = floor.cheap(size)
    starts = og.land(problem, 0.5 * jax.random.normal(jax.random.key(0), (size.n, size.d))).position
    row = floor.KERNELS[name]
    passes = floor.forward_passes(name, problem, starts if row.ensemble else starts[0])
    positions = size.n if row.ensemble else 1
    assert passes["log density"] == positions * row.counts(0.0)["gradient"]
    of_g = sum(row.counts(0.0).get(kind, 0) for kind in ("value", "jacobian", "hessian-vector"))
    if name == "clangevin":
        # Beside these, the solver's own: at least one there and one back.
        assert of_g + 2 <= passes["equality"] <= of_g + 20
    else:
        assert passes["equality"] == positions * of_g


def test_a_floor_is_made_of_all_its_parts(monkeypatch, tmp_path):
    # How long these take is for the benchmark to say.
    seconds = {"gradient": 4.0, "jacobian": 3.0, "hessian-vector": 2.0, "value": 1.0, "noise": 5.0, "step": 30.0}
    monkeypatch.setattr(floor, "in_turns", lambda repetitions, **timers: {kind: seconds[kind] for kind in timers})
    monkeypatch.setattr(floor, "LEAST_SECONDS", 1e-4)
    measured = floor.measure("o_langevin", "costly", floor.Size(d=20, m=2, n=2))
    shown = floor.shown(measured)
    assert (measured.multiple, measured.multiple_with_noise) == (3.0, 2.0)
    assert (shown["∇"], shown["Hv"], shown["J"], shown["g"]) == (1, 1, 1, 1)
    assert list(floor.above([shown | {"d": 1000, "multiple": 1.6}, shown | {"d": 50, "multiple": 9.0}])) == [
        "o_langevin on costly, d = 1,000, m = 2, n = 2: 1.6"
    ]
    # Nothing is measured from here on, so that nothing needs to be compiled.
    for name in ("repeated", "stepper", "enough"):
        monkeypatch.setattr(floor, name, lambda *_: None)
    size = floor.Size(d=20, m=2, n=2)
    monkeypatch.setattr(floor, "KERNELS", {"o_langevin": floor.KERNELS["o_langevin"]})
    monkeypatch.setattr(floor, "SWEEPS", {"d": [size, size._replace(d=40)]})
    rows, (fit, _) = floor.run(tmp_path, say=lambda line: None)
    assert [row["d"] for row in rows] == [20, 40, 20, 40]
    assert fit == {"kernel": "o_langevin", "problem": "cheap", "d": pytest.approx(0.0)}
    assert json.loads((tmp_path / "floor.json").read_text())["rows"] == rows
    assert floor.exponent([1, 10, 100], [2.0, 20.0, 200.0]) == pytest.approx(1.0)
