"""Seconds from the start of a process to its first fitted model, before and after compilation.

Every estimator gets two processes, one after the other: the first finds nothing compiled, the
second finds what the first has compiled. Both fit the made-up ratings of `make demo` with all
defaults, at epsilon 4 where the estimator is private; imports and ratings are part of the time.

    python benchmarks/bench_first_model.py
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from bench_utility import print_head, print_row

GAUSSIAN = "skdpmf.PrivacyBudget(4.0, 1e-5)"
BUDGETS = {
    "AdaptiveWeightALS": GAUSSIAN,
    "DPCovarianceRecommender": GAUSSIAN,
    "DPItemMeans": GAUSSIAN,
    "DPMFSampler": GAUSSIAN,
    "LocalDPGDDR": "skdpmf.PrivacyBudget(4.0)",
    "CacheSGDFactorizer": "",
}
PROGRAM = """
import skdpmf
from skdpmf.data import make_ratings
skdpmf.{name}({budget}).fit(make_ratings(4000, 400, density=0.15, random_state=0))
"""


def first_model(program, cache):
    """Return the seconds of a process with this cache of kernels."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    begin = time.perf_counter()
    subprocess.run(command, env={**os.environ, "NUMBA_CACHE_DIR": cache}, check=True)
    return time.perf_counter() - begin


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    print_head("seconds", "nothing compiled", "everything compiled")
    for name, budget in BUDGETS.items():
        program, times = PROGRAM.format(name=name, budget=budget), []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as cache:
                times.append([first_model(program, cache) for _ in range(2)])
        print_row(
            name, *(f"{statistics.median(column):.1f}" for column in zip(*times, strict=True))
        )


if __name__ == "__main__":
    main()
