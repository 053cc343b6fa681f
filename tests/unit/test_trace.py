import json
from collections import OrderedDict
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ogradient as og
from ogradient.problem.functions import leaf_names


class Pair(NamedTuple):
    w: jnp.ndarray  # not in alphabetical order, which is the order of a dict's leaves
    b: jnp.ndarray


def make(positions, **arguments):
    flat = lambda p: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(p)])
    problem = og.Problem(lambda p: -0.5 * jnp.sum(flat(p) ** 2), equality=lambda p: jnp.sum(flat(p)) - 1)
    algorithm = og.o_langevin(problem, 0.05)
    arguments = {"num_samples": 30, "num_warmup": 5, "progress": False} | arguments
    return problem, og.sample(0, problem, positions, algorithm=algorithm, **arguments)


POSITIONS = {
    "array": (jnp.ones((4, 3)), ["x"]),
    "dict": ({"w": jnp.ones((4, 2, 2)), "b": jnp.ones(4)}, ["b", "w"]),
    "nested": ({"layer": [{"w": jnp.ones((4, 2))}, jnp.ones(4)]}, ["layer.0.w", "layer.1"]),
    "tuple": ((jnp.ones(4), jnp.ones((4, 2))), ["0", "1"]),
    "named": (Pair(jnp.ones(4), jnp.ones((4, 2))), ["w", "b"]),
    "ordered": (OrderedDict(w=jnp.ones(4), b=3 * jnp.ones(4), c=jnp.ones(4)), ["w", "b", "c"]),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_variables_keep_their_names_and_survive_the_disk(name, tmp_path):
    positions, names = POSITIONS[name]
    problem, trace = make(positions)
    assert list(trace.variables) == names
    assert jax.tree.structure(trace.position) == jax.tree.structure(positions)
    for leaf, start in zip(jax.tree.leaves(trace.position), jax.tree.leaves(positions), strict=True):
        assert leaf.shape == (4, 30, *start.shape[1:])
    loaded = og.load(trace.save(tmp_path / "trace.zarr"))
    kept = {k: v for k, v in loaded.provenance.items() if k != "custom_containers"}
    assert kept == json.loads(json.dumps(trace.provenance))
    if name not in ("named", "ordered"):
        assert jax.tree.structure(loaded.position) == jax.tree.structure(positions)
    for key in names:
        np.testing.assert_array_equal(loaded[key], trace[key])
    for key in trace.sample_stats:
        np.testing.assert_array_equal(loaded.sample_stats[key], trace.sample_stats[key])
    np.testing.assert_array_equal(loaded.status_counts, trace.status_counts)
    resumed = og.sample(
        0, problem, positions, algorithm=og.o_langevin(problem, 0.05), num_samples=10, resume=loaded, progress=False
    )
    _, through = make(positions, num_samples=40)
    for key in names:
        np.testing.assert_array_equal(resumed[key], through[key])
    if name in ("named", "ordered"):
        with pytest.raises(ValueError, match="give initial_positions"):
            og.sample(0, problem, algorithm=og.o_langevin(problem, 0.05), resume=loaded)


def test_names_stay_unique():
    assert leaf_names({"a": {"b": 1}, "a.b": 2}) == ["a.b.0", "a.b.1"]


def test_unknown_variable_is_named():
    _, trace = make(jnp.ones((2, 3)))
    with pytest.raises(KeyError, match="no variable 'y'; this trace has 'x'"):
        trace["y"]


def test_saving_replaces_a_trace_whole_or_not_at_all(tmp_path, monkeypatch):
    import xarray as xr

    _, first = make(jnp.ones((2, 3)))
    _, second = make(jnp.ones((2, 3)), num_samples=10)
    path = first.save(tmp_path / "deep" / "trace.zarr")
    assert og.load(second.save(path, overwrite=True)).num_draws == 10

    def full_disk(self, store, **_):
        store.mkdir()
        raise OSError("No space left on device")

    monkeypatch.setattr(xr.DataTree, "to_zarr", full_disk)
    with pytest.raises(OSError, match="No space left"):
        first.save(path, overwrite=True)
    assert og.load(path).num_draws == 10
    assert [p.name for p in path.parent.iterdir()] == ["trace.zarr"]


def test_loading_what_is_not_a_trace(tmp_path):
    import xarray as xr

    with pytest.raises(FileNotFoundError, match="no trace at"):
        og.load(tmp_path / "nothing")
    xr.DataTree(xr.Dataset({"a": 1})).to_zarr(tmp_path / "other.zarr", consolidated=False)
    with pytest.raises(ValueError, match=r"not a folder that Trace\.save wrote"):
        og.load(tmp_path / "other.zarr")


def test_apply_maps_over_chains_and_draws():
    _, trace = make({"w": jnp.ones((4, 2)), "b": jnp.ones(4)})
    result = trace.apply(lambda p: {"sum": jnp.sum(p["w"]) + p["b"]}, batch_size=7)
    np.testing.assert_allclose(result["sum"], trace["w"].sum(-1) + trace["b"], rtol=1e-6)


def test_summary_agrees_with_arviz_and_reports_the_constraint():
    from arviz_stats.base import array_stats

    _, trace = make(jnp.ones((4, 3)), num_samples=200)
    table = trace.summary(digits=None)
    assert trace.summary().loc["x[1]", "ess_bulk"] == float(f"{table.loc['x[1]', 'ess_bulk']:.4g}")
    assert len(str(trace.summary()).splitlines()[0]) <= 80
    assert list(table.index) == ["x[0]", "x[1]", "x[2]", "|equality[0]|"]
    draws = np.asarray(trace["x"][..., 1], float)
    assert table.loc["x[1]", "mean"] == pytest.approx(draws.mean())
    for column, method in (("ess_bulk", "bulk"),):
        assert table.loc["x[1]", column] == pytest.approx(float(array_stats.ess(draws, method=method)))
    assert table.loc["x[1]", "r_hat"] == pytest.approx(float(array_stats.rhat(draws)))
    assert table.loc["|equality[0]|", "max"] == np.abs(trace.sample_stats["equality"]).max()
    assert list(trace.summary(var_names=[]).index) == ["|equality[0]|"]
    with pytest.warns(UserWarning, match="first 2 scalars"):
        assert len(trace.summary(limit=2)) == 3


def test_summary_of_very_few_draws_claims_nothing():
    _, trace = make(jnp.ones((1, 3)), num_samples=1)
    assert list(trace.summary().columns) == ["mean", "sd", "max"]


def test_saving_never_overwrites_what_is_no_trace(tmp_path):
    _, trace = make(jnp.ones((2, 3)))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "important.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="is no trace"):
        trace.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "important.txt").read_text() == "keep me"
    (tmp_path / "empty").mkdir()
    assert og.load(trace.save(tmp_path / "empty")).num_draws == 30


@pytest.mark.parametrize("positions", [{"chain": jnp.ones((2, 3))}, {("a", 1): jnp.ones((2, 3))}])
def test_names_that_could_not_be_saved_are_refused_up_front(positions):
    with pytest.raises(ValueError, match="rename it|must be strings"):
        make(positions)


def test_provenance_is_enough_to_repeat_the_run():
    _, trace = make(jnp.ones((2, 3)))
    wanted = {
        "algorithm",
        "settings",
        "seed",
        "measure",
        "num_warmup",
        "thinning",
        "num_steps",
        "seconds",
        "versions",
        "device",
    }
    assert wanted <= set(trace.provenance)
    assert trace.provenance["settings"]["step_size"] == 0.05
    assert "2 chains × 30 draws of x[3]" in repr(trace)
    assert "every step OK" in repr(trace)


def test_the_last_draws_keep_no_others_in_memory_and_go_on_to_the_same_bits():
    problem, trace = make({"w": jnp.ones((2, 3)), "b": jnp.ones(2)})
    arrays = lambda trace: [*jax.tree.leaves(trace.position), *trace.sample_stats.values()]
    short = trace.last(1)
    for cut, leaf in zip(arrays(short), arrays(trace), strict=True):
        np.testing.assert_array_equal(cut, leaf[:, -1:])
        assert not np.shares_memory(cut, leaf)
        assert cut.base is None or cut.base.nbytes == cut.nbytes
    more = {"algorithm": og.o_langevin(problem, 0.05), "num_samples": 5, "progress": False}
    whole, resumed = (og.sample(0, problem, resume=past, **more) for past in (trace, short))
    np.testing.assert_array_equal(whole["w"][:, -5:], resumed["w"][:, -5:])
    for count in (0, 31):
        with pytest.raises(ValueError, match="count must lie between 1 and the 30 draws"):
            trace.last(count)
