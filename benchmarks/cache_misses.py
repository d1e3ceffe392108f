"""Simulated cache misses of the SGD kernel, beside those that its paper reports.

Virtual machines seldom have the hardware counters, so the kernel runs under callgrind, as in the
paper (Liu, Wang, Smola 2015, Table 2). A rate is misses / data references, reads and writes both:
callgrind's D1 miss rate, and its LLd miss rate for the last level. It simulates two
levels without prefetching, so that L2 and L3 are one run each, both right behind L1. Only the
kernel counts: one round over all ratings, after a round that fills the caches.

Orders: "items" is the solver's, batches of users with the ratings sorted by item; "users" is plain
SGD, user by user in groups of one rating. It reads 18 bytes of indices and rating per rating, not
6: a fifth of a line that is not the order's fault. Valgrind knows no AVX-512: vectors of 64 bytes
are two references, and what 16 registers cannot hold adds more, so that rates are lower than on
AVX-512 and compare badly with other code. The lines missed per rating depend little on that.

    apt-get install valgrind && python benchmarks/cache_misses.py
"""

import argparse
import ctypes
import itertools
import json
import mmap
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sgd_data import default_cache, load

from skdpmf.baselines.sgd.cache_sgd import batch_rows, starting_factors
from skdpmf.kernels import sgd

PAPER = {16: (2.84, 0.43), 256: (2.85, 0.50), 2048: (3.3, 1.7)}  # L1 %, L3 %
L1 = "49152,12,64"  # bytes, ways, bytes of a line
LAST_LEVELS = {"L2": f"{2 << 20},16,64", "L3": f"{32 << 20},16,64"}
# Callgrind's client requests (callgrind.h) and valgrind's magic instructions (valgrind.h, amd64).
ZERO, DUMP_AT, START, STOP = (0x43540000 + n for n in (1, 3, 4, 5))
MAGIC = "4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3"
# A Haswell, but valgrind is very slow at fused multiply-adds. They change no row's accesses.
FEATURES = "+avx,+avx2,-fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe,+popcnt,+sse4.2"


def client_request():
    """Return a function that talks to valgrind, or does nothing where there is none."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex(MAGIC))
    start = ctypes.c_char.from_buffer(code)
    call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(ctypes.addressof(start))

    def request(number, text, keep_mapped=start):
        call((ctypes.c_uint64 * 6)(number, ctypes.addressof(text)))

    return request


def blocks(R, n_rows, order):
    """Yield (first user, items, indptr, users, ratings) of each batch, as the kernel wants them."""
    mean, std = R.data.mean(), R.data.std()
    for start in range(0, R.shape[0], n_rows):
        rows = R[start : start + n_rows].tocoo()
        by = np.argsort(rows.col, kind="stable") if order == "items" else slice(None)
        runs = np.flatnonzero(np.diff(rows.col[by], prepend=-1))
        indptr = np.append(runs, rows.nnz).astype(np.int64)
        users = np.pad(rows.row[by], (0, 16)).astype(np.uint16)
        ratings = np.pad((rows.data[by] - mean) / std, (0, 16)).astype(np.float32)
        yield start, rows.col[by][runs].astype(np.int32), indptr, users, ratings


def inside(sizes, n_batches, cache):
    """Run the rounds, with the counters on in the last of them only."""
    request, size_of_group = client_request(), sgd._group_size
    everything = load("S", cache)[0]
    for k, order in itertools.product(sizes, ("items", "users")):
        # One rating a run would leave all lanes of a group but one empty.
        sgd._group_size = size_of_group if order == "items" else lambda width: 1
        n_rows = batch_rows(everything.shape[0], k, 1)
        R = everything[: min(4096, n_batches * n_rows)]
        batches = list(blocks(R, n_rows if order == "items" else R.shape[0], order))
        model, width = starting_factors(R.shape, k, 1, 0), sgd.factor_width(k)
        factors = (model.U, model.user_bias, model.V, model.item_bias)
        label = ctypes.create_string_buffer(json.dumps([k, order, n_rows, R.nnz]).encode())
        # The first round compiles, the second fills the caches.
        for after in (START, ZERO, DUMP_AT):
            for start, *runs in batches:
                where, span = (start, R.shape[0], width), (0, len(runs[0]))
                sgd.update_batch(*factors, *where, *runs, *span, 0.07, 0.07, 0.04, 10.0)
            request(after, label)
        request(STOP, label)


def simulate(geometry, command, folder):
    """Return references, L1 misses and last-level misses of each label."""
    out = folder / geometry.replace(",", "-")
    valgrind = ["valgrind", "--tool=callgrind", "--cache-sim=yes", "--smc-check=all-non-file"]
    valgrind += ["--instr-atstart=no", f"--D1={L1}", f"--LL={geometry}"]
    subprocess.run([*valgrind, f"--callgrind-out-file={out}", *command], check=True)
    found = {}
    for path in folder.glob(f"{out.name}.*"):
        lines = [line.partition(": ") for line in path.read_text().splitlines()]
        head = {name: value for name, _, value in lines if name in ("events", "totals")}
        events, totals = head["events"].split(), map(int, head["totals"].split())
        n = dict(itertools.zip_longest(events, totals, fillvalue=0))  # zeros may be left out
        label = next(value for _, _, value in lines if "Client Request: " in value)
        sums = ("Dr", "Dw"), ("D1mr", "D1mw"), ("DLmr", "DLmw")
        found[label.split(": ")[-1]] = [n[r] + n[w] for r, w in sums]
    return found


def table(found):
    """Print the rates in percent of the references, and the lines missed per rating."""
    head = "k | order | users a batch | ratings | refs a rating | L1 % | L2 % | L3 % | paper L1 %"
    head += " | paper L3 % | lines a rating: L1 | L2 | L3"
    print(f"| {head} |\n|{' ---: |' * (head.count('|') + 1)}")
    for label, (references, l1, l2) in sorted(found["L2"].items(), key=lambda f: json.loads(f[0])):
        k, order, n_rows, n = json.loads(label)
        misses = (l1, l2, found["L3"][label][2])
        batch, paper = (n_rows, PAPER.get(k, "??")) if order == "items" else ("-", "--")
        numbers = [f"{100 * m / references:.3g}" for m in misses] + [*map(str, paper)]
        row = [f"{k} | {order} | {batch} | {n:,} | {references / n:.0f}", *numbers]
        print("|", " | ".join([*row, *(f"{m / n:.3g}" for m in misses)]), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(PAPER))
    parser.add_argument("--batches", type=int, default=2, help="more for L3 at large k")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--inside", action="store_true", help="the part that valgrind runs")
    options = parser.parse_args()
    if options.inside:
        return inside(options.sizes, options.batches, options.cache)
    if platform.machine() != "x86_64" or shutil.which("valgrind") is None:
        sys.exit("This needs valgrind on x86-64: apt-get install valgrind, or see valgrind.org.")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES=FEATURES)
        os.environ.update(NUMBA_CACHE_DIR=folder, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        command = [sys.executable, __file__, "--inside", *sys.argv[1:]]
        subprocess.run(command, check=True)  # compiles, which is slow in valgrind
        found = {n: simulate(level, command, Path(folder)) for n, level in LAST_LEVELS.items()}
    return table(found)


if __name__ == "__main__":
    main()
