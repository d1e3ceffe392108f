"""One ledger under many hands: threads, processes, forks and kills."""

import multiprocessing
import os
import random
import signal
import threading

import pytest

from skdpmf import PrivacyLedger
from skdpmf.books import ledger_file
from skdpmf.books.ledger_rules import Amount, Spending, charge, limit_of
from skdpmf.exceptions import BudgetExceededError
from tests.books.ledgers import forks, gaussian_plan, killed, new_ledger, pure_plan

CHARGES = 20
PROCESSES = 8


def random_charges(ledger, seed, n=CHARGES, scale=1.0):
    """Ask for n random charges; return those admitted and those refused."""
    rng, admitted, refused = random.Random(seed), [], []
    for _ in range(n):
        level = scale * 10.0 ** rng.uniform(-2.0, -0.3)
        plan = gaussian_plan(level) if rng.random() < 0.7 else pure_plan(level)
        try:
            with ledger.reserve(plan, note=str(seed)):
                admitted.append(plan)
        except BudgetExceededError:
            refused.append(plan)
    return admitted, refused


def in_forks(tasks):
    """Run each task in a forked process of its own, all at once; return their results."""
    context, pipes, processes = multiprocessing.get_context("fork"), [], []
    for task in tasks:
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=lambda send=send, task=task: send.send(task()))
        process.start()
        pipes.append(receive)
        processes.append(process)
    results = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return results


def costs(rule, plans):
    return sum((charge(rule, Spending.of(plan)) for plan in plans), start=Amount(0, 0))


def assert_exact(ledger, admitted, refused=()):
    """None lost, none twice, never over, none refused that would have fit at the end."""
    report = ledger.report()
    assert ledger.verify() == len(report.entries) == len(admitted)
    assert report.amount == costs(ledger.rule, admitted)
    assert report.amount.within(limit_of(ledger.rule, ledger.limit.epsilon, ledger.limit.delta))
    for plan in refused:
        assert not (report.amount + costs(ledger.rule, [plan])).within(report.allowed)


@forks
def test_eight_processes_with_random_charges(tmp_path):
    ledger = new_ledger(tmp_path, 4.0, 1e-3)
    tasks = [lambda seed=seed: random_charges(ledger, seed, scale=0.8) for seed in range(PROCESSES)]
    results = in_forks(tasks)
    admitted = [plan for some, _ in results for plan in some]
    refused = [plan for _, some in results for plan in some]
    assert len(admitted) + len(refused) == PROCESSES * CHARGES
    assert len(admitted) > 20  # which ones come first is up to the processes
    assert len(refused) > 20
    assert_exact(ledger, admitted, refused)
    assert {entry["status"] for entry in ledger.report().entries} == {"done"}
    notes = [entry["note"] for entry in ledger.report().entries]
    assert [notes.count(str(seed)) for seed in range(PROCESSES)] == [
        len(some) for some, _ in results
    ]


@forks
def test_forks_beside_a_thread_that_charges(tmp_path):
    """A child that inherited an open transaction might end it for its parent."""
    ledger, stop, results = new_ledger(tmp_path, 50.0), threading.Event(), []

    def work():
        while not stop.is_set():
            with ledger.reserve(gaussian_plan(0.01)) as entry:
                results.append(entry.plan)

    thread = threading.Thread(target=work)
    thread.start()
    statuses = []
    for _ in range(15):
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)  # rather than wait for a lock that nobody will release
                with PrivacyLedger(ledger.path).reserve(pure_plan(0.01)):
                    os._exit(0)
            finally:
                os._exit(1)
        statuses.append(os.waitpid(child, 0)[1])
    stop.set()
    thread.join()
    assert statuses == [0] * 15
    assert_exact(ledger, results + [pure_plan(0.01)] * 15)
    assert [entry["status"] for entry in ledger.report().entries].count("reserved") == 15


def kill_once(ledger, rng):
    """Kill a process while it charges; return how many charges it had been told of."""

    def charges(pipe):
        while True:
            with ledger.reserve(gaussian_plan(1e-3)):
                os.write(pipe, b".")  # the fit begins: it must be on record

    return len(killed(charges, rng))


def check_kills(ledger, n_kills, seed):
    """After each kill the file opens, and holds every charge that somebody was told of.

    Returns the number of kills that hit an open transaction.
    """
    rng, told, open_ones = random.Random(seed), 0, 0
    for _ in range(n_kills):
        before = len(ledger.report().entries)
        begun = kill_once(ledger, rng)
        journal = f"{ledger.path}-journal"
        open_ones += os.path.exists(journal) and os.path.getsize(journal) > 0
        after = PrivacyLedger(ledger.path).verify()
        assert before + begun <= after <= before + begun + 1  # one may be charged and not begun
        told += begun
    report = ledger.report()
    assert report.amount == costs("gaussian", [gaussian_plan(1e-3)] * len(report.entries))
    assert told >= n_kills
    ledger.reserve(gaussian_plan(1e-3))
    return open_ones


@forks
@pytest.mark.parametrize(
    ("n", "synchronous", "least"),
    [
        (20, "FULL", 0),
        pytest.param(60, "FULL", 5, marks=pytest.mark.slow),
        pytest.param(60, "OFF", 0, marks=pytest.mark.slow),
    ],
)
def test_kills(tmp_path, monkeypatch, n, synchronous, least):
    monkeypatch.setattr(ledger_file, "_SYNCHRONOUS", synchronous)
    assert check_kills(new_ledger(tmp_path, 20.0), n, seed=n) >= least
