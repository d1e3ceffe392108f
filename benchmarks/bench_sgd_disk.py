"""CacheSGDFactorizer from disk: speed and memory beside a fit in memory.

Ratings shaped like Netflix (480,189 x 17,770, 60 million), in `ParquetRatings`. Each step runs in
a process of its own, so that its peak memory is its own; million ratings/s are medians over the
rounds after the first, alternating between the two.

    python benchmarks/bench_sgd_disk.py
    python benchmarks/bench_sgd_disk.py --shape S --repeats 1
"""

import json
import os
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from harness import SGD_SETTINGS, in_child, parser, print_head, print_row, seconds_of
from memory import peak_gib, shown_size
from sgd_solvers import SHAPES, RoundTimes, made

from skdpmf import CacheSGDFactorizer
from skdpmf.data import ParquetRatings, make_ratings


def make(options):
    """Write the ratings to Parquet files."""
    X = made(options.shape)
    seconds = seconds_of(ParquetRatings.write, options.store, X, overwrite=True)
    size = sum(path.stat().st_size for path in options.store.iterdir()) / 2**20
    return {"nnz": X.nnz, "seconds": seconds, "MiB": size}


def fit(options):
    """Fit from the store or from memory; ratings/s of each round after the first."""
    CacheSGDFactorizer(options.size).fit(make_ratings(200, 100, random_state=0))  # compiles
    store, times = ParquetRatings(options.store), RoundTimes()
    X = store if options.step == "disk" else store.read_rows()
    settings = SGD_SETTINGS | {"max_iter": options.rounds, "random_state": 0}
    model = CacheSGDFactorizer(options.size, n_jobs=options.threads, **settings)
    model.set_callbacks(times).fit(X)
    rates = [store.nnz / (end - start) / 1e6 for start, end in pairwise(times.ends)]
    factors = 4 * sum(store.shape) * options.size / 2**30
    return {"rates": rates, "peak": peak_gib(), "factors": factors}


STEPS = {"make": make, "memory": fit, "disk": fit}
PARSER = parser(
    __doc__,
    size=32,  # k
    rounds=6,  # of SGD
    repeats=2,  # of the fits
    folder=None,  # where to write; a temporary one
    step=None,  # of a process of its own, and its threads
    threads=1,
)
PARSER.add_argument("--shape", choices=list(SHAPES), default="L")


def run(step, options, threads=1):
    given = {"step": step, "threads": threads}
    given |= {name: getattr(options, name) for name in ("shape", "size", "rounds", "folder")}
    words = [f"--{name}={value}" for name, value in given.items()]
    return in_child(__file__, *words) or sys.exit(f"failed: {step}")


def compare(options):
    """Print the rates and the memory of both, by threads."""
    names = "threads", "in memory, M/s", "from disk, M/s", "ratio", "peak GiB", "factors GiB"
    print_head(*names)
    for threads in (1, 2):
        turns = [
            (run("memory", options, threads), run("disk", options, threads))
            for _ in range(options.repeats)
        ]
        memory, disk = (
            statistics.median(rate for result in results for rate in result["rates"])
            for results in zip(*turns, strict=True)
        )
        peak = shown_size(max(result["peak"] for _, result in turns))
        cells = threads, f"{memory:.0f}", f"{disk:.0f}", f"{disk / memory:.2f}", peak
        print_row(*cells, f"{turns[0][1]['factors']:.2f}")


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(options.folder or folder)
        options.store = options.folder / f"{options.shape}.ratings"
        if options.step:
            print(json.dumps(STEPS[options.step](options)))
            return
        stored = run("make", options)
        pace = stored["nnz"] / stored["seconds"] / 1e6
        print("{nnz:,} ratings written in {seconds:.0f} s".format(**stored), end=", ")
        print(f"{pace:.1f} M/s, {stored['MiB']:.0f} MiB on disk\n", flush=True)
        compare(options)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
