"""Cost of a ledger: a charge after many others, and one for many people.

Every figure is a median over repetitions, with the best beside it. The file is on --folder, a local
disk: a charge waits until it is written there.

    python benchmarks/bench_ledger.py
"""

import multiprocessing
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
from harness import parser, print_head, print_row, seconds_of
from memory import own_mb, shown_size

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyLedger
from skdpmf.books import ledger_file
from skdpmf.privacy import ReleasePlan
from skdpmf.privacy.plan import Release

LIMIT = PrivacyBudget(4.0, 1e-5)


def small_plan():
    """About what a fit with many releases writes down, at a price that 10^6 fits can pay."""
    names = ("counts", "means", "Gram matrices", "right-hand sides")
    releases = tuple(Release(name, name, (100,), 1.0, 1e5) for name in names)
    return ReleasePlan(LIMIT, releases)


PARAMS = AdaptiveWeightALS(LIMIT).get_params(deep=False)
PARSER = parser(
    __doc__,
    entries=[0, 1000, 100_000],
    charges=300,
    folder=None,  # a temporary one
    people=1_000_000,  # of a fit
    known=[1_000_000, 10_000_000],
    only=None,  # charges or people
)
COLUMNS = "id, time, status, main, second, record"


def charge(ledger, plan):
    with ledger.reserve(plan, estimator="AdaptiveWeightALS", params=PARAMS, shape=(6040, 3706)):
        pass


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
    return [f"{1e3 * value:.1f}" for value in (middle, late, ordered[0])]


def bench_charges(folder, options):
    plan, sizes = small_plan(), options.entries
    ledgers = {n_entries: ledger_with(folder, n_entries) for n_entries in sizes}
    reserve, both = ({n_entries: [] for n_entries in sizes} for _ in range(2))
    for _ in range(options.charges):  # in turns: other work on the machine meets all of them
        for n_entries, ledger in ledgers.items():
            reserve[n_entries].append(seconds_of(ledger.reserve, plan, params=PARAMS))
            both[n_entries].append(seconds_of(charge, ledger, plan))
    times = "median", "99 %", "best"
    heads = f"reserve, ms: {times[0]}", *times[1:], f"with 'done': {times[0]}", *times[1:]
    print_head("entries", "file, MB", *heads, "report, s", "verify, s")
    for n_entries, ledger in ledgers.items():
        size = os.path.getsize(ledger.path) / 1e6
        reads = [
            statistics.median(seconds_of(call) for _ in range(3))
            for call in (ledger.report, ledger.verify)
        ]
        assert ledger.verify() == n_entries + 2 * options.charges
        cells = *milliseconds(reserve[n_entries]), *milliseconds(both[n_entries])
        print_row(f"{n_entries:,}", f"{size:.1f}", *cells, *(f"{read:.2f}" for read in reads))


def charge_people(path, first, n_people, pipe):
    """In a process of its own: seconds, and the most that memory grows by beside the ids."""
    ledger, users = PrivacyLedger(path), np.arange(first, first + n_people)
    before = own_mb("VmRSS")
    taken = seconds_of(ledger.reserve, small_plan(), users=users)
    pipe.send((taken, own_mb("VmHWM") - before))


def bench_people(folder, options):
    print()
    heads = "known", "file, MB", "of the fit", "new: charge, s", "MB of memory", "half known, s"
    print_head(*heads, "report, s", "verify, s")
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
        reads = [seconds_of(call) for call in (ledger.report, ledger.verify)]
        times, grew = (statistics.median(column) for column in zip(*new, strict=True))
        sizes = f"{known:,}", f"{size:.0f}", f"{(grown - size) / 4:.1f}"
        cells = f"{times:.1f}", shown_size(grew, 0), f"{half:.1f}"
        print_row(*sizes, *cells, *(f"{read:.1f}" for read in reads))


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.only in (None, "charges"):
            bench_charges(folder, options)
        if options.only in (None, "people"):
            bench_people(folder, options)


if __name__ == "__main__":
    main()
