"""The experiments on real data at the paper's settings, computed where a GPU is and drawn elsewhere.

    python benchmarks/paper.py prepare DATA carry/tables.pickle      # where pandas is: raw tables to arrays
    python benchmarks/paper.py compute carry/tables.pickle results [NAMES]   # where the GPU is: needs jax and numpy alone
    ogradient run income --data DATA --out results                   # reads what was computed, draws and writes

Every run is written when it is done, and those already there are skipped.
"""

import pickle
import sys
import time
from pathlib import Path

import jax

from ogradient import datasets
from ogradient.experiments import income, loan, moment, reference, tradeoff


def prepare(data, target):
    tables = {"adult": datasets.adult(data), "lending": datasets.lending(data)}
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_bytes(pickle.dumps(tables))


def compute(source, out, *names):
    jax.config.update("jax_default_matmul_precision", "highest")  # a GPU's fast products have three digits
    tables = pickle.loads(Path(source).read_bytes())
    both = {"income": tables["adult"], "loan": tables["lending"]}
    jobs = {
        "reference": lambda: reference.compute(reference.Config(), Path(out), both, progress=False),
        "moment": lambda: moment.compute(moment.Config(), Path(out), tables["adult"]),
        "loan": lambda: loan.compute(loan.Config(), Path(out), tables["lending"]),
        "tradeoff": lambda: tradeoff.compute(tradeoff.Config(), Path(out), tables["adult"]),
        "income": lambda: income.compute(income.Config(), Path(out), tables["adult"]),
    }
    for name, job in ((name, jobs[name]) for name in names or jobs):
        started = time.perf_counter()
        job()
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    {"prepare": prepare, "compute": compute}[sys.argv[1]](*sys.argv[2:])
