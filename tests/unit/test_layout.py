"""Imports point one way, and `import ogradient` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ogradient

PACKAGE = Path(ogradient.__file__).parent
ORDER = [
    {"_version", "status", "keys", "interrupts", "pace", "precision", "extras", "compilation", "progress"},
    {"storage"},
    {"problem"},
    {"mapping", "stein"},
    {"geometry"},
    {"samplers"},
    {"packing"},
    {"chunk", "trace"},
    {"start"},
    {"warmup", "diagnostics"},
    {"run"},
    {"plots", "problems", "tablefiles", "evaluation"},
    {"classes", "images"},
    {"datasets"},
    {"experiments"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def unit(parts):
    return parts[0].removesuffix(".py")


def imported_units(path):
    """Units of the package imported anywhere in a file, those only for type checkers left out."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ogradient"):
            rest = node.module.split(".")[1:]
            yield from [rest[0]] if rest else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("ogradient."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    here = unit(path.relative_to(PACKAGE).parts)
    assert here in LEVEL, f"give {here} its place in ORDER"
    for there in imported_units(path):
        assert there == here or LEVEL[there] < LEVEL[here], f"{here} must not import {there}"


def test_importing_loads_nothing_heavy():
    code = "import sys, ogradient; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {
        "matplotlib",
        "xarray",
        "pandas",
        "zarr",
        "arviz_base",
        "arviz_stats",
        "optax",
        "typer",
        "tqdm",
        "scipy.stats",
    }
    assert not heavy & set(modules)
    assert "ogradient.problems" not in modules
