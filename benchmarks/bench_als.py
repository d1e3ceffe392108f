"""One exact ALS iteration (user step and item step) against the Cholesky solver of `implicit`.

Data shaped like MovieLens 1M by default: power laws over users and items. Prints a Markdown table:
medians over alternating runs after a warm-up, the ratio to the peer in the same run, and which
share of the machine's peak speed an iteration reaches, by the least arithmetic that it needs.

    python benchmarks/bench_als.py --threads 1,2 --sizes 16,32,64,128
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.sparse as sp
from roofline import peak_flops
from threadpoolctl import threadpool_limits

from skdpmf.kernels.als import solve_rows
from skdpmf.kernels.jit_and_threads import balanced_blocks

# More blocks than threads, so that a thread whose core was busy elsewhere is not waited for.
BLOCKS_PER_THREAD = 8


def power_law_ratings(n_users, n_items, n_ratings, seed=0):
    rng = np.random.default_rng(seed)
    user_weight = rng.lognormal(0, 0.95, n_users)
    item_weight = (np.arange(n_items) + 30.0) ** -1.1
    draws = int(1.6 * n_ratings)
    users = rng.choice(n_users, draws, p=user_weight / user_weight.sum())
    items = rng.choice(n_items, draws, p=item_weight / item_weight.sum())
    cells = np.unique(users * n_items + items)
    cells = rng.choice(cells, min(n_ratings, len(cells)), replace=False)
    values = rng.integers(1, 6, len(cells)).astype(np.float32)
    return sp.csr_matrix((values, divmod(cells, n_items)), shape=(n_users, n_items))


def solve(ratings, factors, ridge, out, pool, n_threads):
    blocks = balanced_blocks(ratings.indptr, 1 if n_threads == 1 else BLOCKS_PER_THREAD * n_threads)

    def work(block):
        arrays = ratings.indptr, ratings.indices, ratings.data
        solve_rows(*arrays, factors, ridge, block[0], block[1], out)

    list(pool.map(work, blocks))


def our_iteration(by_user, by_item, k, dtype, pool, n_threads):
    by_user, by_item = by_user.astype(dtype), by_item.astype(dtype)
    rng = np.random.default_rng(0)
    V = 0.1 * rng.standard_normal((by_user.shape[1], k)).astype(dtype)
    U = np.zeros((by_user.shape[0], k), dtype)
    ridge = np.eye(k, dtype=dtype)

    def run():
        solve(by_user, V, ridge, U, pool, n_threads)
        solve(by_item, U, ridge, V, pool, n_threads)

    return run


def peer_iteration(by_user, by_item, k, n_threads):
    from implicit.cpu._als import least_squares

    rng = np.random.default_rng(0)
    V = 0.1 * rng.standard_normal((by_user.shape[1], k)).astype(np.float32)
    U = np.zeros((by_user.shape[0], k), np.float32)

    def run():
        least_squares(by_user, U, V, 1.0, n_threads)
        least_squares(by_item, V, U, 1.0, n_threads)

    return run


def least_flops(by_user, k):
    """Halves of symmetric sums, right-hand sides, Cholesky factors and two triangular solves."""
    n_systems = sum(by_user.shape)
    return 2 * by_user.nnz * (k * (k + 1) + 2 * k) + n_systems * (k**3 / 3 + 2 * k**2)


def alternating_medians(runs, n_repeats):
    """Median milliseconds of each run, interleaved, so that all meet the same disturbances."""
    times = [[] for _ in runs]
    for repeat in range(n_repeats + 1):
        for run, taken in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            if repeat > 0:  # The first round compiles and warms the caches.
                taken.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(taken) for taken in times]


def integers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=integers, default=[1, 2])
    parser.add_argument("--sizes", type=integers, default=[16, 32, 64, 128], help="values of k")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--users", type=int, default=6040)
    parser.add_argument("--items", type=int, default=3706)
    parser.add_argument("--ratings", type=int, default=1_000_000)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()

    by_user = power_law_ratings(options.users, options.items, options.ratings)
    by_item = by_user.T.tocsr()
    print(
        f"{by_user.shape[0]:,} x {by_user.shape[1]:,}, {by_user.nnz:,} ratings; ms an iteration\n"
    )
    peaks = {
        (dtype, n): peak_flops(n, dtype)
        for dtype in (np.float32, np.float64)
        for n in options.threads
    }
    header = "| k | threads | float32 | float64 | of peak, float32 | of peak, float64 |"
    if not options.no_peer:
        header += " implicit (float32) | ratio float32 | ratio float64 |"
    print(header)
    print("| --- " * (header.count("|") - 1) + "|")
    for k in options.sizes:
        for n_threads in options.threads:
            with ThreadPoolExecutor(n_threads) as pool, threadpool_limits(1):
                runs = [
                    our_iteration(by_user, by_item, k, dtype, pool, n_threads)
                    for dtype in (np.float32, np.float64)
                ]
                if not options.no_peer:
                    runs.append(peer_iteration(by_user, by_item, k, n_threads))
                single, double, *peer = alternating_medians(runs, options.repeats)
            row = f"| {k} | {n_threads} | {single:.0f} | {double:.0f} |"
            for dtype, taken in ((np.float32, single), (np.float64, double)):
                share = least_flops(by_user, k) / (1e-3 * taken) / peaks[dtype, n_threads]
                row += f" {100 * share:.0f} % |"
            if peer:
                row += f" {peer[0]:.0f} | {peer[0] / single:.1f} | {peer[0] / double:.1f} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
