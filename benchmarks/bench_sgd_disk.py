"""CacheSGDFactorizer from disk: speed and memory beside a fit in memory, and a fit that is killed.

Ratings shaped like Netflix (480,189 x 17,770, 60 million), streamed into `ParquetRatings` without
ever being in memory together. Each step runs in a process of its own, so that its peak memory is
its own; million ratings/s are medians over the rounds after the first, alternating between the two.

    python benchmarks/bench_sgd_disk.py
    python benchmarks/bench_sgd_disk.py --shape S --repeats 1
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sgd_data
from harness import SGD_SETTINGS, print_head, print_row
from memory import peak_gib, shown_size
from sgd_solvers import Factors, RoundTimes

from skdpmf import CacheSGDFactorizer, Snapshots
from skdpmf.data import ParquetRatings, make_ratings


def held_out(store, options):
    """Held-out entries with the ratings' rows and columns (its users in order of appearance)."""
    import numpy as np
    import scipy.sparse as sp

    parts = list(zip(*sgd_data.tables(sgd_data.SHAPES[options.shape], held_out=True), strict=True))
    users, items, ratings = map(np.concatenate, parts)
    rows, columns = (np.full(n, -1) for n in sgd_data.SHAPES[options.shape][:2])
    rows[store.user_ids] = np.arange(store.shape[0])
    columns[store.item_ids] = np.arange(store.shape[1])
    known = (rows[users] >= 0) & (columns[items] >= 0)
    places = rows[users[known]], columns[items[known]]
    return sp.csr_array((ratings[known], places), shape=store.shape)


def rmse(fitted, where):
    biases = fitted.user_biases_, fitted.item_biases_, fitted.intercept_
    return sgd_data.rmse(Factors(fitted.user_factors_, fitted.components_.T, *biases), where)


def make(options):
    """Stream the training ratings into Parquet files."""
    begin = time.perf_counter()
    tables = sgd_data.tables(sgd_data.SHAPES[options.shape])
    store = ParquetRatings.write(options.store, tables, overwrite=True)
    seconds = time.perf_counter() - begin
    size = sum(path.stat().st_size for path in options.store.iterdir()) / 2**20
    return {"nnz": store.nnz, "seconds": seconds, "peak": peak_gib(), "MiB": size}


def fit(options):
    """Fit from the store or from memory; ratings/s of each round after the first."""
    CacheSGDFactorizer(options.size).fit(make_ratings(200, 100, random_state=0))  # compiles
    store = ParquetRatings(options.store)
    X = store if options.step == "disk" else store.read_rows()
    times = RoundTimes()
    estimator = CacheSGDFactorizer(
        options.size,
        n_jobs=options.threads,
        random_state=0,
        **SGD_SETTINGS | {"max_iter": options.rounds},
    )
    before = peak_gib()
    begin = time.perf_counter()
    estimator.set_callbacks(times).fit(X)
    seconds = time.perf_counter() - begin
    marks = zip(times.ends[:-1], times.ends[1:], strict=True)
    rates = [store.nnz / (end - start) / 1e6 for start, end in marks]
    factors = 4 * sum(store.shape) * options.size / 2**30
    return {
        "rates": rates,
        "seconds": seconds,
        "before": before,
        "peak": peak_gib(),
        "factors": factors,
    }


def snapshot_fit(options):
    """Fit from the store with snapshots; print the held-out RMSE."""
    store = ParquetRatings(options.store)
    estimator = CacheSGDFactorizer(
        options.size,
        n_jobs=options.threads,
        random_state=0,
        **SGD_SETTINGS | {"max_iter": options.rounds},
        snapshots=Snapshots(
            path=options.store.with_suffix(".snapshot"), every=max(1, store.shape[0] // 4096 // 3)
        ),
    )
    begin = time.perf_counter()
    estimator.fit(store)
    return {
        "seconds": time.perf_counter() - begin,
        "rmse": rmse(estimator, held_out(store, options)),
    }


STEPS = {"make": make, "memory": fit, "disk": fit, "snapshots": snapshot_fit}


def command(step, options, threads):
    words = [sys.executable, __file__, "--step", step, "--threads", str(threads)]
    words += ["--shape", options.shape, "--size", str(options.size)]
    return [*words, "--rounds", str(options.rounds), "--folder", str(options.folder)]


def run(step, options, threads=1):
    done = subprocess.run(command(step, options, threads), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def killed_and_resumed(options):
    """Kill a fit as soon as a second snapshot is there, and start it again."""
    snapshot = options.store.with_suffix(".snapshot")
    child = subprocess.Popen(command("snapshots", options, 1), stdout=subprocess.PIPE)
    seen = set()
    while len(seen) < 2 and child.poll() is None:
        if snapshot.exists():
            seen.add(snapshot.stat().st_mtime_ns)
        time.sleep(0.02)
    child.kill()
    child.wait()
    child.stdout.close()
    if not snapshot.exists():
        raise AssertionError("the fit was over before it could be killed; take more rounds")
    return run("snapshots", options)


def compare(options):
    """Print the rates and the memory of both, by threads."""
    names = "threads", "in memory, M/s", "from disk, M/s", "ratio", "peak GiB", "factors GiB"
    print_head(*names)
    for threads in (1, 2):
        found = {"memory": [], "disk": []}
        for _ in range(options.repeats):
            for step, results in found.items():
                results.append(run(step, options, threads))
        rates = {
            step: statistics.median(rate for result in results for rate in result["rates"])
            for step, results in found.items()
        }
        peak = max(result["peak"] for result in found["disk"])
        cells = [threads, *(f"{rate:.0f}" for rate in rates.values())]
        cells += [f"{rates['disk'] / rates['memory']:.2f}", shown_size(peak)]
        print_row(*cells, f"{found['disk'][0]['factors']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=list(sgd_data.SHAPES), default="L")
    parser.add_argument("--size", type=int, default=32, help="k")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        options.store = options.folder / f"{options.shape}.ratings"
        print(json.dumps(STEPS[options.step](options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        options.folder = options.folder or Path(folder)
        options.store = options.folder / f"{options.shape}.ratings"
        made = run("make", options)
        pace = made["nnz"] / made["seconds"] / 1e6
        made["peak"] = shown_size(made["peak"], unit=" GiB")
        text = "{nnz:,} ratings written in {seconds:.0f} s, peak {peak}, {MiB:.0f} MiB"
        print(f"{text.format(**made)} on disk, {pace:.1f} M/s with drawing them\n", flush=True)
        compare(options)
        whole = run("snapshots", options)
        resumed = killed_and_resumed(options)
        print(f"\nheld-out RMSE, uninterrupted {whole['rmse']:.6f}, killed and resumed", end=" ")
        print(f"{resumed['rmse']:.6f}; {whole['seconds']:.1f} s with snapshots", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
