"""The core runs without the extras, and whoever needs one is told in one line what to install."""

import subprocess
import sys

BLOCK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())

def message(call):
    try:
        call()
    except (ImportError, SystemExit) as error:
        return str(error)
"""
EVERYTHING = {"matplotlib", "PIL", "typer", "click", "rich", "pooch", "sklearn", "fairlearn", "mici", "numpyro"}


def run(code, refused):
    text = f"REFUSED = {refused!r}" + BLOCK + code
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_the_core_runs_without_any_extra(tmp_path):
    code = f"""
import jax.numpy as jnp, ogradient as og
problem = og.Problem(lambda x: -0.5 * jnp.sum(x**2), equality=lambda x: jnp.sum(x**2) - 1)
starts = jnp.ones((4, 2)) * jnp.arange(1, 5)[:, None]
trace = og.sample(0, problem, starts, algorithm=og.o_langevin(problem, 0.01), num_warmup=20, num_samples=20)
print(trace, len(trace.summary()), og.diagnose(trace) is not None, og.problems.cubic().name)
trace.save({str(tmp_path / "trace.zarr")!r})
print(og.load({str(tmp_path / "trace.zarr")!r})["x"].shape)
trace.to_datatree()
og.evaluate([[0.9, 0.2]], [1, 0]).table()
assert not REFUSED & set(sys.modules)
"""
    result = run(code, EVERYTHING)
    assert result.returncode == 0, result.stderr
    assert "(4, 20, 2)" in result.stdout


def test_what_is_missing_is_one_line():
    code = """
import importlib, os
import ogradient as og
from ogradient import plots
from ogradient.__main__ import main
os.environ.pop("OGRADIENT_DATA", None)
print(message(lambda: plots.new_figure(1, 1)))
print(message(lambda: importlib.import_module("ogradient.experiments.synthetic")))
print(message(og.datasets.adult))
print(message(lambda: importlib.import_module("ogradient.cli")))
print(message(main))
"""
    result = run(code, EVERYTHING)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "figures need matplotlib: pip install 'ogradient[plots]'",
        "the experiments need matplotlib: pip install 'ogradient[experiments]'",
        "the datasets need pooch: pip install 'ogradient[experiments]'",
        "the command line needs typer: pip install 'ogradient[cli]'",
        "ogradient: the command line needs typer: pip install 'ogradient[cli]'",
    ]


def test_the_console_script_without_its_extra_ends_with_one_line():
    result = run("from ogradient.__main__ import main; main()", EVERYTHING)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "ogradient: the command line needs typer: pip install 'ogradient[cli]'\n"


def test_the_command_line_without_the_experiments_lists_them_and_says_what_they_need():
    code = """
sys.argv[1:] = WORDS
from ogradient.__main__ import main
main()
"""
    lacking = "error: the experiments need matplotlib: pip install 'ogradient[experiments]'\n"
    for words, status, text in (
        (["list", "experiments"], 0, "The paper's cubic"),
        (["run", "--help"], 0, "The paper's cubic"),
        (["run", "synthetic", "--chains", "20"], 1, lacking),
        (["run", "problem", "cubic", "--quiet"], 1, lacking),
    ):
        result = run(f"WORDS = {words!r}\n" + code, {"matplotlib", "pooch"})
        assert result.returncode == status, result.stderr
        assert text in result.stdout
        assert "Traceback" not in result.stderr
