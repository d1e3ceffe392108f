"""A private fit over worker processes, beside the same fit in threads of one process.

Synthetic ratings of the shape of the Netflix prize by default, written once as Parquet parts into a
cache folder. Every fit has a fresh process. "threads" loads all parts and fits with n_jobs threads;
"dask" is a LocalCluster of as many processes of one thread, each ended by its nanny if it uses more
than the memory limit, which open the parts themselves. Kernels are compiled before the clock starts
(a small fit warms the workers), and starting the cluster is not counted. Both must give the same
model, to the bit.

    python benchmarks/bench_distributed.py --repeats 3
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memory import peak_gib, shown_size

TARGET_SLOWER, MEMORY_GIB = 1.25, 2.0


def write(path, options):
    from skdpmf.data import ParquetRatings, make_ratings

    X = make_ratings(options.users, options.items, n_ratings=options.ratings, random_state=0)
    print(ParquetRatings.write(path, X, overwrite=True))


def model_of(options):
    import skdpmf
    from skdpmf import PrivacyBudget

    kind = getattr(skdpmf, options.estimator)
    settings = {"random_state": 0} if options.seeded else {}
    return kind(PrivacyBudget(options.epsilon, 1e-5), **settings)


def digest(model):
    parts = model.item_means_.tobytes() + model.components_.tobytes()
    return hashlib.sha256(parts).hexdigest()[:16]


def warm(options):
    from sklearn.base import clone

    from skdpmf.data import make_ratings

    clone(model_of(options)).fit(make_ratings(2000, 300, random_state=1))


def in_threads(path, options):
    from skdpmf.data import ParquetRatings

    warm(options)
    begin = time.perf_counter()
    model = model_of(options).set_params(n_jobs=options.workers).fit(ParquetRatings(path))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "peak_gib": [peak_gib()], "digest": digest(model)}


def over_dask(path, options):
    from dask.distributed import Client, LocalCluster
    from joblib import parallel_config

    from skdpmf.data import ParquetRatings
    from skdpmf.distributed.pool import record_traffic

    with (
        LocalCluster(
            n_workers=options.workers,
            threads_per_worker=1,
            memory_limit=f"{options.memory}GiB",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
        parallel_config(backend="dask"),
    ):
        warm(options)
        with record_traffic() as steps:
            begin = time.perf_counter()
            model = model_of(options).fit(ParquetRatings(path))
            seconds = time.perf_counter() - begin
        peaks = list(client.run(peak_gib).values())
    return {
        "seconds": seconds,
        "peak_gib": [peak_gib(), *peaks],
        "digest": digest(model),
        "steps": [vars(step) for step in steps],
    }


def one_sum():
    import numpy as np

    return np.ones(302_000)


def coordinator(options):
    """Time to receive the sums of many tasks, as many as there might be workers."""
    from dask.distributed import Client, LocalCluster
    from joblib import Parallel, delayed, parallel_config

    size = one_sum().nbytes / 1e6
    with (
        LocalCluster(options.workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
        parallel_config(backend="dask"),
    ):
        parallel = Parallel(batch_size=1, pre_dispatch="all")
        parallel([delayed(one_sum)()] * options.workers)
        print("| tasks | seconds | MB/s |\n|---|---|---|")
        for n_tasks in (2, 100, 400):
            begin = time.perf_counter()
            parallel([delayed(one_sum)()] * n_tasks)
            seconds = time.perf_counter() - begin
            print(f"| {n_tasks} | {seconds:.2f} | {n_tasks * size / seconds:.0f} |")


RUNS = {"threads": in_threads, "dask": over_dask}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=480_189)
    parser.add_argument("--items", type=int, default=17_770)
    parser.add_argument("--ratings", type=int, default=60_000_000)
    parser.add_argument("--estimator", default="AdaptiveWeightALS")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", type=float, default=MEMORY_GIB, help="GiB of each worker")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seeded", action="store_true", help="compare the models to the bit")
    parser.add_argument("--coordinator", action="store_true", help="only: receive many sums")
    cache = Path(tempfile.gettempdir()) / "skdpmf-distributed"
    parser.add_argument("--cache", type=Path, default=cache)
    parser.add_argument("--run", choices=[*RUNS, "write"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = options.cache / f"{options.users}x{options.items}x{options.ratings}"
    if options.run == "write":
        write(path, options)
        return
    if options.coordinator:
        coordinator(options)
        return
    if options.run:
        print(json.dumps(RUNS[options.run](path, options)))
        return
    options.cache.mkdir(parents=True, exist_ok=True)
    again = [sys.executable, __file__, *sys.argv[1:], "--run"]
    if not path.exists():
        subprocess.run([*again, "write"], check=True)
    found = {name: [] for name in RUNS}
    for _ in range(options.repeats):
        for name, results in found.items():
            out = subprocess.run([*again, name], check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(out.stdout.splitlines()[-1]))
    medians = {}
    for name, results in found.items():
        medians[name] = statistics.median(result["seconds"] for result in results)
        peaks = ", ".join(shown_size(peak) for peak in results[-1]["peak_gib"])
        each = ", ".join(f"{result['seconds']:.1f}" for result in results)
        print(f"{name}: median {medians[name]:.1f} s ({each}), peak GiB {peaks}")
    ratio = medians["dask"] / medians["threads"]
    print(f"ratio {ratio:.2f} (target at most {TARGET_SLOWER})")
    if options.seeded:
        print("same model:", len({r["digest"] for results in found.values() for r in results}) == 1)
    steps = found["dask"][-1]["steps"]
    print("\n| request | times | MB down | MB up | seconds |\n|---|---|---|---|---|")
    for name in dict.fromkeys(step["name"] for step in steps):
        same = [step for step in steps if step["name"] == name]
        down, up = (
            statistics.mean(step[key] for step in same) / 1e6 for key in ("bytes_down", "bytes_up")
        )
        seconds = statistics.mean(step["seconds"] for step in same)
        print(f"| {name} | {len(same)} | {down:.2f} | {up:.2f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
