"""Limits of the machine for an SGD factoriser: flops, bandwidths, and the ratings/s they bound.

Peak float32 multiply-adds and in-place read + write bandwidth out of each cache and of RAM, on one
and more threads at once, and from these the most million ratings/s. A rating of k factors costs 8k
flops (the dot product and both updates). It moves one row of 4k bytes in and out where the other
row stays in registers or L1, as in an order by user or by item, and two rows otherwise. "hot" is
measured: plain SGD, in two passes over both rows, where all rows stay in L1.

    python benchmarks/roofline.py --threads 1,2
"""

import argparse
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from skdpmf.kernels._vectors import VECTOR_BYTES, vfma, vload, vstore, vsum, vzero
from skdpmf.kernels.jit_and_threads import jit_fast

SIZES = (16, 32, 128, 512, 1024, 2048)
LEVELS = ("L1", "L2", "L3", "RAM")
LANES = 16  # float32 in one vector of 64 bytes
CHAINS = 16  # independent multiply-adds: more than latency x ports of any present core
USUAL_BYTES = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}  # where the system does not say


@jit_fast
def multiply_adds(start, n_rounds, out):
    """Run 16 chains of n_rounds multiply-adds in registers."""
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = vzero(start)
    b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = vload(start, 0)
    x, y = vload(start, 0), vload(start, LANES)
    for _ in range(n_rounds):
        a0, a1, a2, a3 = vfma(a0, x, y), vfma(a1, x, y), vfma(a2, x, y), vfma(a3, x, y)
        a4, a5, a6, a7 = vfma(a4, x, y), vfma(a5, x, y), vfma(a6, x, y), vfma(a7, x, y)
        b0, b1, b2, b3 = vfma(b0, x, y), vfma(b1, x, y), vfma(b2, x, y), vfma(b3, x, y)
        b4, b5, b6, b7 = vfma(b4, x, y), vfma(b5, x, y), vfma(b6, x, y), vfma(b7, x, y)
    total = vsum(a0) + vsum(a1) + vsum(a2) + vsum(a3) + vsum(a4) + vsum(a5) + vsum(a6) + vsum(a7)
    total += vsum(b0) + vsum(b1) + vsum(b2) + vsum(b3) + vsum(b4) + vsum(b5) + vsum(b6) + vsum(b7)
    out[0] = total


@jit_fast
def rescale(x, factor, n_rounds):
    """Read and write every vector of x, n_rounds times over."""
    zero = vzero(x)
    for _ in range(n_rounds):
        for at in range(0, x.size, 4 * LANES):
            vstore(x, at, vfma(factor, vload(x, at), zero))
            vstore(x, at + LANES, vfma(factor, vload(x, at + LANES), zero))
            vstore(x, at + 2 * LANES, vfma(factor, vload(x, at + 2 * LANES), zero))
            vstore(x, at + 3 * LANES, vfma(factor, vload(x, at + 3 * LANES), zero))


@jit_fast
def hot_sgd(U, V, n_rounds, target, step, keep):
    """Pair every row of U with one of V, in n_rounds ways; neighbours in the order share no row.

    The two plain passes over both rows: the dot product, then u = keep u + step e v and likewise v.
    """
    n_rows, k = U.shape
    zero = vzero(U)
    for shift in range(n_rounds):
        first = shift % n_rows
        for number in range(n_rows):
            u = number * k
            v = (number + first if number + first < n_rows else number + first - n_rows) * k
            even, odd = zero, zero
            for f in range(0, k, 2 * LANES):
                even = vfma(vload(U, u + f), vload(V, v + f), even)
                if f + LANES < k:
                    odd = vfma(vload(U, u + f + LANES), vload(V, v + f + LANES), odd)
            pull = step * (target - vsum(even) - vsum(odd))
            for f in range(0, k, LANES):
                old_u, old_v = vload(U, u + f), vload(V, v + f)
                vstore(U, u + f, vfma(pull, old_v, vfma(keep, old_u, zero)))
                vstore(V, v + f, vfma(pull, old_u, vfma(keep, old_v, zero)))


def cache_bytes():
    """Size of each data cache of the first core."""
    found = dict(USUAL_BYTES)
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        kind, level, size = ((index / f).read_text().strip() for f in ("type", "level", "size"))
        if kind != "Instruction" and f"L{level}" in found and size.endswith("K"):
            found[f"L{level}"] = int(size[:-1]) << 10
    return found


def working_bytes(n_threads):
    """Bytes that a thread works on: half a private cache; little of L3, which others share."""
    cache = cache_bytes()
    return {
        "L1": cache["L1"] // 2,
        "L2": cache["L2"] // 2,
        "L3": min(8 * cache["L2"], cache["L3"] // (2 * n_threads)),
        "RAM": max(3 * cache["L3"], 256 << 20) // n_threads,
    }


def rate(pool, n_threads, work, n_rounds, amount):
    """Largest amount per second, as it is a limit, that all threads reach together in five runs.

    `work(thread, n_rounds)` is called on every thread, after a barrier; `amount` is that of a round
    of one thread.
    """
    barrier = threading.Barrier(n_threads)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []

    def run(thread):
        if cores:  # Of this thread alone: left free, two threads often share one core.
            os.sched_setaffinity(0, {cores[thread % len(cores)]})
        barrier.wait()
        begin = time.perf_counter()
        work(thread, n_rounds)
        return begin, time.perf_counter()

    rates = []
    for _ in range(6):  # The first compiles, touches the pages and wakes the core.
        begins, ends = zip(*pool.map(run, range(n_threads)), strict=True)
        rates.append(n_threads * n_rounds * amount / (max(ends) - min(begins)))
    return max(rates[1:])


def aligned(n_bytes):
    """Ones that start on a cache line, a multiple of four vectors long."""
    size = n_bytes // 4 // (4 * LANES) * (4 * LANES)
    room = np.ones(size + LANES, np.float32)
    skip = -room.ctypes.data // 4 % LANES
    return room[skip : skip + size]  # Rows across two lines would halve the speed.


def peak_flops(n_threads, dtype=np.float32):
    """Most floating-point operations a second of n_threads together."""
    start, outs = np.full(2 * LANES, 0.5, dtype), np.empty((n_threads, 1), dtype)
    amount = 2 * CHAINS * VECTOR_BYTES // start.itemsize
    with ThreadPoolExecutor(n_threads) as pool:
        return rate(
            pool,
            n_threads,
            lambda thread, n: multiply_adds(start, n, outs[thread]),
            10_000_000,
            amount,
        )


def measure(n_threads):
    """Peak flops ("flops") and bytes read + written a second ("L1", ...) of n_threads together."""
    found = {"flops": peak_flops(n_threads)}
    with ThreadPoolExecutor(n_threads) as pool:
        for level, n_bytes in working_bytes(n_threads).items():
            arrays = [aligned(n_bytes) for _ in range(n_threads)]
            n_rounds = max(1, (4 << 30) // n_bytes // (1 if level == "L1" else 4))
            found[level] = rate(
                pool,
                n_threads,
                lambda thread, n, arrays=arrays: rescale(arrays[thread], np.float32(1), n),
                n_rounds,
                2 * arrays[0].nbytes,
            )
    return found


def measure_hot(n_threads, k):
    """Ratings/s of plain SGD on rows that fill at most half of L1, a set for each thread."""
    n_rows = max(2, cache_bytes()["L1"] // (16 * k))
    rows = [aligned(8 * n_rows * k).reshape(2, n_rows, k) for _ in range(n_threads)]
    few = np.float32(1), np.float32(1e-4), np.float32(1 - 1e-6)
    n_rounds = 200_000_000 // (k + 100) // n_rows
    with ThreadPoolExecutor(n_threads) as pool:
        return rate(
            pool,
            n_threads,
            lambda thread, n: hot_sgd(rows[thread][0], rows[thread][1], n, *few),
            n_rounds,
            n_rows,
        )


def bounds(measured, k):
    """Most million ratings/s: by flops, and by a level's bandwidth where one row moves."""
    limits = {"flops": measured["flops"] / (8e6 * k)}
    return limits | {level: measured[level] / (8e6 * k) for level in LEVELS}


def table(measured, sizes=SIZES):
    """Markdown lines for {n_threads: what `measure` found}."""
    lines = ["| k | threads | flops | " + " | ".join(f"{level}, 1 row" for level in LEVELS)]
    lines[0] += " | hot, measured |"
    lines.append("| --- | --- |" + " --- |" * (2 + len(LEVELS)))
    for n_threads, found in measured.items():
        amounts = [f"{found['flops'] / 1e9:.0f} GFLOP/s"]
        amounts += [f"{found[level] / 1e9:.0f} GB/s" for level in LEVELS]
        lines.append(f"| measured | {n_threads} | " + " | ".join(amounts) + " | |")
    for k in sizes:
        for n_threads, found in measured.items():
            cells = [f"{limit:.3g}" for limit in bounds(found, k).values()]
            cells.append(f"{measure_hot(n_threads, k) / 1e6:.3g}")
            lines.append(f"| {k} | {n_threads} | " + " | ".join(cells) + " |")
    return lines


def integers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=integers, default=[1, 2])
    parser.add_argument("--sizes", type=integers, default=list(SIZES), help="values of k")
    options = parser.parse_args()
    print("Most million ratings/s; where two rows move, half of the caches' bounds\n")
    print("\n".join(table({n: measure(n) for n in options.threads}, options.sizes)))


if __name__ == "__main__":
    main()
