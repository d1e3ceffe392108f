"""Cost of a ledger: a charge after many others, processes side by side, a fit, and many people.

Every figure is a median over repetitions, with the best beside it. The file is on --folder, a local
disk: a charge waits until it is written there.

    python benchmarks/bench_ledger.py
"""

import argparse
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from memory import own_mb, shown_size
from scipy import sparse

from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget, PrivacyLedger
from skdpmf.books import ledger_file
from skdpmf.data import make_ratings
from skdpmf.privacy import ReleasePlan
from skdpmf.privacy.plan import Release

LIMIT = PrivacyBudget(4.0, 1e-5)


def small_plan():
    """About what a fit with many releases writes down, at a price that 10^6 fits can pay."""
    names = ("counts", "means", "Gram matrices", "right-hand sides")
    releases = tuple(Release(name, name, (100,), 1.0, 1e5) for name in names)
    return ReleasePlan(LIMIT, releases)


PARAMS = AdaptiveWeightALS(LIMIT).get_params(deep=False)
COLUMNS = "id, time, status, main, second, record"


def charge(ledger, plan):
    with ledger.reserve(plan, estimator="AdaptiveWeightALS", params=PARAMS, shape=(6040, 3706)):
        pass


def seconds(work, *arguments, **settings):
    start = time.perf_counter()
    work(*arguments, **settings)
    return time.perf_counter() - start


def ledger_with(folder, n_entries):
    """A ledger of so many entries: copies of one charge, in a single transaction."""
    ledger = PrivacyLedger(Path(folder, f"{n_entries}.ledger"), LIMIT)
    if n_entries:
        charge(ledger, small_plan())
        with ledger_file.transaction(ledger.path, write=True) as connection:
            one = connection.execute(f"SELECT {COLUMNS} FROM entry").fetchone()
            rows = ((number, *one[1:]) for number in range(2, n_entries + 1))
            connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)", rows)
            ledger_file.write_total(
                connection, n_entries, *(n_entries * int(amount) for amount in one[3:5])
            )
    return ledger


def milliseconds(times):
    ordered = sorted(times)
    middle, late = statistics.median(ordered), ordered[int(0.99 * len(ordered))]
    return f"{1e3 * middle:.1f} | {1e3 * late:.1f} | {1e3 * ordered[0]:.1f}"


def bench_charges(folder, options):
    plan, sizes = small_plan(), options.entries
    ledgers = {n_entries: ledger_with(folder, n_entries) for n_entries in sizes}
    reserve, both = ({n_entries: [] for n_entries in sizes} for _ in range(2))
    for _ in range(options.charges):  # in turns: other work on the machine meets all of them
        for n_entries, ledger in ledgers.items():
            reserve[n_entries].append(seconds(ledger.reserve, plan, params=PARAMS))
            both[n_entries].append(seconds(charge, ledger, plan))
    print("| entries | file, MB | reserve, ms: median | 99 % | best | with 'done': median | 99 % "
          "| best | report, s | verify, s |")  # fmt: skip
    print("|" + " --- |" * 10)
    for n_entries, ledger in ledgers.items():
        size = os.path.getsize(ledger.path) / 1e6
        reads = [
            statistics.median(seconds(call) for _ in range(3))
            for call in (ledger.report, ledger.verify)
        ]
        assert ledger.verify() == n_entries + 2 * options.charges
        print(f"| {n_entries:,} | {size:.1f} | {milliseconds(reserve[n_entries])} | "
              f"{milliseconds(both[n_entries])} | {reads[0]:.2f} | {reads[1]:.2f} |",
              flush=True)  # fmt: skip


def many_charges(path, n):
    ledger, plan = PrivacyLedger(path), small_plan()
    for _ in range(n):
        charge(ledger, plan)


def bench_processes(folder, options):
    times = []
    for repeat in range(options.repeats):
        ledger = PrivacyLedger(Path(folder, f"processes {repeat}.ledger"), LIMIT)
        workers = [
            multiprocessing.Process(target=many_charges, args=(ledger.path, options.per_process))
            for _ in range(options.processes)
        ]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        times.append(time.perf_counter() - start)
        assert ledger.verify() == options.processes * options.per_process
    many = f"{options.processes} processes x {options.per_process} charges, each with its 'done'"
    print(f"\n{many}: median {statistics.median(times):.2f} s, best {min(times):.2f} s\n")


def bench_fits(folder, options):
    print("| fit | without, s: median | best | with a ledger: median | best |")
    print("|" + " --- |" * 5)
    for n_users, n_items in ((200, 50), (6000, 3000)):
        X = make_ratings(n_users, n_items, density=0.05, random_state=0)
        ledger = PrivacyLedger(Path(folder, f"{n_users}.ledger"), LIMIT)
        for kind in (DPItemMeans, AdaptiveWeightALS):
            times = {None: [], ledger: []}
            kind(PrivacyBudget(0.01, 1e-5)).fit(X)  # compiles
            for _ in range(3 * options.repeats):
                for where, taken in times.items():
                    model = kind(PrivacyBudget(0.05, 1e-5, ledger=where))
                    taken.append(seconds(model.fit, X))
            row = " | ".join(f"{statistics.median(t):.3f} | {min(t):.3f}" for t in times.values())
            print(f"| {kind.__name__}, {n_users:,} x {n_items:,} | {row} |", flush=True)


def charge_people(path, first, n_people, pipe):
    """In a process of its own: seconds, and the most that memory grows by beside the ids."""
    ledger, users = PrivacyLedger(path), np.arange(first, first + n_people)
    before = own_mb("VmRSS")
    taken = seconds(ledger.reserve, small_plan(), users=users)
    pipe.send((taken, own_mb("VmHWM") - before))


def bench_people(folder, options):
    print("\n| known | file, MB | of the fit | new: charge, s | MB of memory | half known, s "
          "| report, s | verify, s |")  # fmt: skip
    print("|" + " --- |" * 8, flush=True)
    ledger = PrivacyLedger(Path(folder, "people.ledger"), LIMIT, at_most=2)
    n_known, n_people, context = 0, options.people, multiprocessing.get_context("spawn")

    def charged(first):
        receive, send = context.Pipe(duplex=False)
        worker = context.Process(target=charge_people, args=(ledger.path, first, n_people, send))
        worker.start()
        result = receive.recv()
        worker.join()
        return result

    for known in options.known:
        while n_known < known:
            step = min(1_000_000, known - n_known)
            ledger.reserve(small_plan(), users=np.arange(1, 1 + step) + n_known)
            n_known += step
        size = os.path.getsize(ledger.path) / 1e6
        new = [charged(n_known + 1 + 10**9 * k) for k in (1, 2, 3)]
        half, grown = charged(n_known - n_people // 2 + 1)[0], os.path.getsize(ledger.path) / 1e6
        reads = [seconds(call) for call in (ledger.report, ledger.verify)]
        times, grew = (statistics.median(column) for column in zip(*new, strict=True))
        memory = shown_size(grew, 0)
        print(f"| {n_known:,} | {size:.0f} | {(grown - size) / 4:.1f} | {times:.1f} | {memory} "
              f"| {half:.1f} | {reads[0]:.1f} | {reads[1]:.1f} |", flush=True)  # fmt: skip


def bench_rows(folder, options):
    """The other way to keep people, one row each that a fit rewrites; hashing is left out."""
    rng, path = np.random.default_rng(0), Path(folder, "rows")

    def people(n):
        hashes = rng.bytes(16 * n)
        return sorted(hashes[at : at + 16] for at in range(0, len(hashes), 16))

    def charge_rows(keys):
        connection.execute("BEGIN IMMEDIATE")
        query = "SELECT spent, times FROM person WHERE hash=?"
        assert all(connection.execute(query, (key,)).fetchone() is None for key in keys)
        connection.executemany("INSERT INTO person VALUES (?, 1, 1)", ((key,) for key in keys))
        journals.append(os.path.getsize(f"{path}-journal") / 1e6)
        connection.execute("COMMIT")

    journals = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA journal_mode=TRUNCATE")
        table = "person (hash BLOB PRIMARY KEY, spent INTEGER, times INTEGER) WITHOUT ROWID"
        connection.execute(f"CREATE TABLE {table}")
        for known in options.known[-1:]:
            charge_rows(people(known))
            taken = seconds(charge_rows, people(options.people))
            print(f"\n{options.people:,} new rows beside {known:,}: {taken:.1f} s, journal "
                  f"{journals[-1]:.0f} MB, file {os.path.getsize(path) / 1e6:.0f} MB")  # fmt: skip


def bench_fit_of_people(options):
    rng, n_users, n_items = np.random.default_rng(0), options.people, 2000
    gaps = rng.integers(1, n_items // options.ratings, (n_users, options.ratings))
    columns = np.cumsum(gaps, axis=1, dtype=np.int32) - 1
    values = rng.integers(1, 6, columns.size).astype(np.float64)
    starts = np.arange(0, columns.size + 1, options.ratings, dtype=np.int32)
    X = sparse.csr_array((values, columns.ravel(), starts), shape=(n_users, n_items))
    print(f"\nfits of {n_users:,} users with {options.ratings} ratings each of {n_items:,} items")
    for kind in (DPItemMeans, AdaptiveWeightALS):
        kind(PrivacyBudget(1.0, 1e-7)).fit(X[:1000])  # compiles
        taken = seconds(kind(PrivacyBudget(1.0, 1e-7)).fit, X)
        print(f"{kind.__name__}: {taken:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, nargs="+", default=[0, 1000, 100_000])
    parser.add_argument("--charges", type=int, default=300)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--per-process", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--people", type=int, default=1_000_000, help="of a fit")
    parser.add_argument("--known", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--ratings", type=int, default=50, help="of each of the people")
    parser.add_argument("--only", choices=("charges", "people", "rows", "fits"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.only in (None, "charges"):
            bench_charges(folder, options)
            bench_processes(folder, options)
            bench_fits(folder, options)
        if options.only in (None, "people"):
            bench_people(folder, options)
        if options.only in (None, "rows"):
            bench_rows(folder, options)
        if options.only in (None, "fits"):
            bench_fit_of_people(options)


if __name__ == "__main__":
    main()
