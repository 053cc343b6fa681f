"""A run whose process is killed at moments that nobody chose goes on to the bits of an unbroken one."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

RUN = """
import sys
import jax, numpy as np, ogradient as og
from ogradient.run import checkpoint
checkpoint.SHARE = 1e9
known = og.problems.torus_b()
kept = {"checkpoint": sys.argv[1], "checkpoint_every": 0.02} if sys.argv[1] else {}
trace = og.sample(0, known.problem, known.start_off(jax.random.key(0), 8), num_samples=int(sys.argv[3]), progress=False, **kept)
np.savez(sys.argv[2], x=trace["x"], counts=trace.status_counts, **trace.sample_stats)
"""


def start(folder, out, draws):
    return subprocess.Popen([sys.executable, "-c", RUN, str(folder), str(out), str(draws)], stderr=subprocess.PIPE)


def kill_until_done(folder, out, draws, deaths, rng):
    """Start the run and kill it, so many times; then let it end."""
    killed = 0
    while killed < deaths:
        process, began = start(folder, out, draws), time.monotonic()
        # Where it stands is what the folder says. Most deaths are within a second of a change in it.
        before = {file: file.stat().st_mtime_ns for file in folder.glob("*")} if folder.exists() else {}
        while process.poll() is None and time.monotonic() - began < 60:
            now = {file: file.stat().st_mtime_ns for file in folder.glob("*.json")} if folder.exists() else {}
            if any(before.get(file) != at for file, at in now.items()):
                break
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 1.0))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed += 1
    process = start(folder, out, draws)
    error = process.communicate()[1].decode()
    assert process.returncode == 0, error
    return killed


@pytest.mark.skipif(os.name != "posix", reason="kills processes")
@pytest.mark.parametrize("deaths", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(deaths, tmp_path):
    draws, rng = 1000 * deaths, random.Random(deaths)
    process = start("", tmp_path / "whole.npz", draws)
    assert kill_until_done(tmp_path / "run", tmp_path / "part.npz", draws, deaths, rng) > 0
    assert process.wait() == 0
    whole, part = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "part.npz")
    assert set(whole.files) == set(part.files)
    for name in whole.files:
        np.testing.assert_array_equal(part[name], whole[name])


FULL = """
import resource, signal, sys
import jax, ogradient as og
known = og.problems.cubic()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
kept = {"checkpoint": sys.argv[1], "checkpoint_every": 0}
run = lambda: og.sample(0, known.problem, known.start_off(jax.random.key(0), 8), num_samples=40_000, progress=False,
                        algorithm=og.o_langevin(known.problem, 0.01), num_warmup=0, chunk_size=int(sys.argv[2]), **kept)
try:
    run()
except og.SamplingError as error:
    assert "cannot be written" in str(error) and "File too large" in str(error), error
    print("refused", error.trace.num_draws)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(run().num_draws)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_disk_that_takes_no_more(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "run"), "10000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    what, kept, whole = done.stdout.split()
    assert (what, whole) == ("refused", "40000")
    assert 0 < int(kept) < 40_000
