"""What a benchmark was made with: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("ogradient", "jax", "jaxlib", "numpy", "mici", "blackjax", "numpyro", "arviz-stats")


def machine() -> str:
    """The processor, the cores that this process may use, and Python's version."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {cores} of {os.cpu_count()} cores, Python {platform.python_version()}"


def processor() -> str:
    """The model of the processor where the system says it, else its kind."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text("utf-8").splitlines() if facts.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def versions() -> dict[str, str]:
    """Of the packages that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the checkout, if it is one; with a plus where files have changed."""
    git = lambda *words: (
        subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    )
    try:
        changed = git("status", "--porcelain", "--untracked-files=no").strip()
        return git("rev-parse", "--short", "HEAD").strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
