"""The Langevin rounds of DPMFSampler against the rounds of CacheSGDFactorizer. One thread.

Both go once through all ratings with the same kernel. A Langevin round has weights, a bound of
the predictions and no user biases, and diffuses every row once, with exact noise or from a table.
Rounds are interleaved in one process; medians. A table's noise is for speed, not for privacy.

    python benchmarks/bench_sgld.py --shapes M --sizes 16,128,512
    python benchmarks/bench_sgld.py --data ml-1m.parquet

The second line takes MovieLens 1M (columns user, item, rating); without --data it is looked for in
$SKDPMF_DATA.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

TABLE_SIZE = 2**18
LEAST_SECONDS = 0.1  # Short rounds are timed together.
MEAN, LOW, HIGH = 3.6, -2.0, 2.0
BOUND, WEIGHT, TEMPERATURE = 3.0, 1.0, 0.5


def sgd_rounds(ratings, k):
    """A function that does rounds of CacheSGDFactorizer, at a rate too small to matter."""
    from skdpmf.baselines.sgd.cache_sgd import batch_rows, starting_factors
    from skdpmf.baselines.sgd.rating_batches import MatrixBatches
    from skdpmf.baselines.sgd.workers import Workers
    from skdpmf.kernels.sgd import factor_width, update_batch

    n_users = ratings.shape[0]
    with Workers(1) as workers:
        batches = MatrixBatches(ratings, (1.0, 5.0), batch_rows(n_users, k, 1), workers)
    model = starting_factors(ratings.shape, k, 1, 0)

    def rounds(n):
        for _ in range(n):
            for batch in batches.read(0):
                update_batch(
                    *(model.U, model.user_bias, model.V, model.item_bias),
                    *(batch.start, n_users, factor_width(k)),
                    *(batch.items, batch.indptr, batch.users, batch.ratings),
                    *(0, len(batch.items), 0.02, 0.02, 0.04, 10.0),
                )

    return rounds


def langevin_rounds(ratings, k, table_size):
    """A function that does rounds of the Langevin chain."""
    from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain
    from skdpmf.mechanisms.posterior_draw.target import Target
    from skdpmf.privacy.sampler.noise import NoiseSource, derived_key

    n_users = ratings.shape[0]
    residuals = ratings.copy()
    residuals.data = np.clip(residuals.data - MEAN, LOW, HIGH)
    # predictions are of the size of the ratings' spread for every k
    std = 0.7 / np.sqrt(k)
    target = Target(residuals, np.full(n_users, WEIGHT), TEMPERATURE, BOUND, k, 1.0, std, 0.5)
    chain = LangevinChain(
        target,
        NoiseSource(derived_key(0)),
        max_weight=WEIGHT,
        max_user_weight=float(np.diff(ratings.indptr).max()),
        table_size=table_size,
    )
    done = 0

    def rounds(n):
        nonlocal done
        for _ in range(n):
            chain.sweep(done)
            done += 1

    return rounds


def speeds(ratings, k, repeats):
    """Median million ratings/s of SGD, Langevin with a table and Langevin with exact noise."""
    runners = [
        sgd_rounds(ratings, k),
        langevin_rounds(ratings, k, TABLE_SIZE),
        langevin_rounds(ratings, k, None),
    ]
    counts = []
    for rounds in runners:
        rounds(1)  # compiles
        counts.append(max(1, round(LEAST_SECONDS / seconds(rounds, 1))))
    taken = [[] for _ in runners]
    for _ in range(repeats):
        for rounds, n, times in zip(runners, counts, taken, strict=True):
            times.append(seconds(rounds, n) / n)
    return [ratings.nnz / statistics.median(times) / 1e6 for times in taken]


def seconds(rounds, n):
    begin = time.perf_counter()
    rounds(n)
    return time.perf_counter() - begin


def movielens(path):
    import pandas as pd

    table = pd.read_parquet(path, columns=["user", "item", "rating"])
    users, items = (pd.factorize(table[name], sort=True)[0] for name in ("user", "item"))
    return sp.csr_array((table["rating"].to_numpy(np.float64), (users, items)))


def data_sets(options):
    """Name and a function that loads, of all data sets."""
    import sgd_data

    for shape in options.shapes:
        yield shape, partial(sgd_data.load, shape, options.cache)
    if options.data is not None and options.data.is_file():
        yield "MovieLens 1M", lambda: (movielens(options.data), None)
    else:
        print("no MovieLens 1M: pass --data or set $SKDPMF_DATA", file=sys.stderr)


def main():
    folder = os.environ.get("SKDPMF_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=lambda text: [*text], default=["S", "M"])
    sizes = {"type": lambda text: [int(k) for k in text.split(",")], "default": [16, 128, 512]}
    parser.add_argument("--sizes", **sizes, help="values of k")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--data", type=Path, default=Path(folder, "ml-1m.parquet") if folder else None
    )
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "skdpmf-bench")
    options = parser.parse_args()

    print("Million ratings/s of a round, one thread, and share of SGD's\n")
    print("| data | k | SGD | SGLD, table | share | SGLD, exact noise | share |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, load in data_sets(options):
        ratings = sp.csr_array(load()[0], dtype=np.float64)
        for k in options.sizes:
            sgd, table, exact = speeds(ratings, k, options.repeats)
            cells = f"{sgd:.3g}", f"{table:.3g}", f"{table / sgd:.2f}"
            cells += f"{exact:.3g}", f"{exact / sgd:.2f}"
            print("| " + " | ".join([name, str(k), *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
