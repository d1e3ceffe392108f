"""Speed of the noise, beside numpy's (inexact, not keyed) normal generator in the same run.

Run ``python benchmarks/bench_noise.py [--items 20000] [--rank 64] [--threads 2]``. Compilation and
table are timed apart; every other figure is the median of five runs. Prints Markdown tables.
"""

import argparse
import statistics
import time

import numpy as np

from skdpmf.privacy.sampler.noise import NoiseSource, derived_key, fresh_key, slot_priorities

REPEATS = 5


def median_seconds(work):
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def head(caption):
    print(f"{caption}\n\n| | seconds | M/s |\n| --- | --- | --- |")


def row(label, values, seconds):
    print(f"| {label} | {seconds:.3f} | {values / seconds / 1e6:.1f} |", flush=True)


def release_both(gram, rhs, n_jobs):
    """The releases of one round of ALS: packed Gram matrices and right-hand sides."""
    source = NoiseSource()
    common = {"sensitivity": 1.0, "noise_multiplier": 5.0, "bound": 1e5, "n_jobs": n_jobs}
    source.release(gram, name="gram", layout="packed", **common)
    source.release(rhs, name="rhs", **common)


def release_laplace(values, n_jobs):
    """The same number of values with Laplace noise."""
    terms = {"sensitivity": 1.0, "noise_multiplier": 5.0, "bound": 1e5, "n_jobs": n_jobs}
    NoiseSource().release(values, name="triangle", noise="laplace", **terms)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ratings", type=int, default=10_000_000)
    args = parser.parse_args()
    k = args.rank

    start = time.perf_counter()
    release_both(np.zeros((1, 1)), np.zeros((1, 1)), 1)
    print(f"first release, with compilation (cached on disk) and table: "
          f"{time.perf_counter() - start:.2f} s\n")  # fmt: skip

    gram = np.zeros((args.items, k * (k + 1) // 2))
    rhs = np.zeros((args.items, k))
    size = gram.size + rhs.size
    head(f"{args.items:,} items, k = {k}: {size:,} values; medians of {REPEATS}")
    for threads in sorted({1, args.threads}):
        seconds = median_seconds(lambda t=threads: release_both(gram, rhs, t))
        row(f"release: round, add, exact rounded normal, {threads} thread(s)", size, seconds)
    values = np.zeros(size)
    release_laplace(values[:1], 1)
    row("the same with Laplace noise, 1 thread", size,
        median_seconds(lambda: release_laplace(values, 1)))  # fmt: skip
    out = np.empty(size)
    rng = np.random.default_rng(0)
    row("numpy standard_normal (PCG64), 1 thread", size,
        median_seconds(lambda: rng.standard_normal(out=out)))  # fmt: skip

    n = args.ratings
    row_length = 140
    indptr = np.arange(0, n + 1, row_length)
    indices = np.random.RandomState(0).randint(10_700, size=indptr[-1], dtype=np.int32)
    data = np.ones(indptr[-1])
    key = fresh_key()
    slot_priorities(key, "warm-up", indptr[:2], indices)
    print()
    head(f"{n:,} ratings")
    row("slot_priorities, 1 thread", n,
        median_seconds(lambda: slot_priorities(key, "trim", indptr, indices)))  # fmt: skip
    row("derived_key of a CSR matrix", n,
        median_seconds(lambda: derived_key(0, "plan", indptr, indices, data)))  # fmt: skip


if __name__ == "__main__":
    main()
