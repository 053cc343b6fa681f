"""Every example in README, docs and docstrings runs."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import ogradient

ROOT = Path(__file__).parents[2]
MODULES = ["ogradient"] + [m.name for m in pkgutil.walk_packages(ogradient.__path__, "ogradient.")]
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES = [page for page in ALL_PAGES if "```python" in page.read_text("utf-8")]


pytestmark = [pytest.mark.usefixtures("lenient_promotion"), pytest.mark.optimised]  # as a user would run them


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_only_the_page_of_commands_has_no_example():
    assert [page.name for page in ALL_PAGES if page not in PAGES] == ["benchmarks.md"]


def test_the_public_functions_have_examples():
    documented = [getattr(ogradient, n) for n in ("Problem", "sample", "o_langevin", "langevin", "energy_distance")]
    assert all(">>>" in thing.__doc__ for thing in documented)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), flags=re.M | re.S)
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), namespace)
    assert "Trace of " in capsys.readouterr().out


def test_commands_in_the_readme_exist():
    from typer.testing import CliRunner

    from ogradient.cli import app

    commands = re.findall(r"^ogradient (.*?)(?:\s+#.*)?$", (ROOT / "README.md").read_text("utf-8"), flags=re.M)
    assert len(commands) >= 4
    for command in commands:
        words = [word for word in command.split() if not word.startswith("-")]
        path = words[:2] if words[0] == "run" else words[:1]
        result = CliRunner().invoke(app, [*path, "--help"])
        assert result.exit_code == 0, command
        for option in re.findall(r"--\w+", command):
            assert option in result.output


def test_makefile_has_the_two_commands():
    readme, makefile = (ROOT / "README.md").read_text("utf-8"), (ROOT / "Makefile").read_text("utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}: install", makefile, flags=re.M)
