"""Top-n recommendation for many users against `implicit`'s, and its peak memory.

Blocks of users: one single-threaded float32 matrix product, then `top_k_rows`; threads take
blocks. Prints a Markdown table of medians over alternating runs after a warm-up.

    python benchmarks/bench_recommend.py --threads 1,2 --users 100000 --items 20000
"""

import argparse
import queue
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.sparse as sp
from memory import peak_gib, shown_size
from threadpoolctl import threadpool_limits

from skdpmf.kernels.topk import top_k_rows


def seen_items(n_users, n_items, per_user, seed=0):
    """A CSR matrix of power-law distributed seen items, indices ascending within a row."""
    rng = np.random.default_rng(seed)
    weight = (np.arange(n_items) + 30.0) ** -1.1
    items = rng.choice(n_items, n_users * per_user, p=weight / weight.sum())
    cells = np.unique(np.repeat(np.arange(n_users), per_user) * n_items + items)
    values = np.ones(len(cells), np.float32)
    return sp.csr_matrix((values, divmod(cells, n_items)), shape=(n_users, n_items))


def recommend(U, V, seen, n_recommendations, block_rows, pool, n_threads):
    n_users, n_items = seen.shape
    items = np.empty((n_users, n_recommendations), np.int32)
    scores = np.empty((n_users, n_recommendations), np.float32)
    buffers = queue.SimpleQueue()
    for _ in range(n_threads):
        buffers.put(np.empty((block_rows, n_items), np.float32))

    def work(start):
        stop = min(start + block_rows, n_users)
        buffer = buffers.get()
        block = buffer[: stop - start]
        np.dot(U[start:stop], V.T, out=block)
        own = slice(start, stop)
        top_k_rows(
            block, seen.indptr, seen.indices, start, n_recommendations, items[own], scores[own]
        )
        buffers.put(buffer)

    list(pool.map(work, range(0, n_users, block_rows)))
    return items, scores


def timed(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def integers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=integers, default=[1, 2])
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--components", type=int, default=32)
    parser.add_argument("--seen", type=int, default=50, help="seen items per user")
    parser.add_argument("--recommendations", type=int, default=10)
    parser.add_argument("--block", type=int, default=512, help="users per block")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()

    rng = np.random.default_rng(1)
    U = rng.standard_normal((options.users, options.components)).astype(np.float32)
    V = rng.standard_normal((options.items, options.components)).astype(np.float32)
    seen = seen_items(options.users, options.items, options.seen)
    n = options.recommendations
    print(f"{options.users:,} users x {options.items:,} items, k={options.components}, top {n}\n")
    print("| threads | seconds | peak MiB | implicit seconds | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for n_threads in options.threads:
        with ThreadPoolExecutor(n_threads) as pool, threadpool_limits(1):

            def ours(pool=pool, n_threads=n_threads):
                return recommend(U, V, seen, n, options.block, pool, n_threads)

            items, _ = ours()
            peak = 2**10 * peak_gib()  # ours alone in the first row: the peer has not run yet
            times, peer_times = [], []
            if not options.no_peer:
                from implicit.cpu.topk import topk

                def peer(n_threads=n_threads):
                    # Its matrix product is one call, with the threads inside.
                    with threadpool_limits(n_threads):
                        return topk(V, U, n, filter_query_items=seen, num_threads=n_threads)

                agreement = np.mean(peer()[0] == items)
                assert agreement > 0.999, f"only {agreement:.1%} of the items agree with the peer"
            for _ in range(options.repeats):
                times.append(timed(ours))
                if not options.no_peer:
                    peer_times.append(timed(peer))
        row = f"| {n_threads} | {statistics.median(times):.2f} | {shown_size(peak, 0)} |"
        if peer_times:
            median = statistics.median(peer_times)
            row += f" {median:.2f} | {median / statistics.median(times):.1f} |"
        print(row, flush=True)


if __name__ == "__main__":
    main()
