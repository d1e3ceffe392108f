"""The workers. Events order what happens; no assertion depends on how long it takes."""

import itertools
import threading
import time

import pytest
from joblib import Parallel, delayed

from skdpmf.kernels._vectors import CAN_FLUSH
from skdpmf.mechanisms.sgd.rating_batches import Workers

from .threads import (
    Planned,
    affinity,
    flush_state,
    interrupts_of_main,
    needs_signals,
    nothing_left,
    wait,
)

needs_flush = pytest.mark.skipif(not CAN_FLUSH, reason="needs the JIT and a known CPU")


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left():
        yield


@pytest.fixture
def interrupts():
    with interrupts_of_main() as found:
        yield found


# Results of run, and how items are given out


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_items", [0, 1, 3, 100])
def test_results_are_in_the_order_of_the_items(n_threads, n_items):
    with Workers(n_threads) as workers:
        for _ in range(3):
            results = workers.run(
                lambda item, worker: (item, worker, threading.get_ident()), iter(range(n_items))
            )
            assert [item for item, _, _ in results] == list(range(n_items))
            assert {worker for _, worker, _ in results} <= set(range(n_threads))
            assert threading.get_ident() not in {ident for _, _, ident in results}
            # one thread, one index
            pairs = {(worker, ident) for _, worker, ident in results}
            assert len(pairs) == len({worker for worker, _ in pairs})


def test_the_caller_iterates_and_few_items_wait():
    n_threads = 3
    finished, ahead, threads = [], [], set()

    def items():
        for n_pulled in range(1, 200):
            threads.add(threading.current_thread())
            ahead.append(n_pulled - len(finished))
            yield n_pulled

    with Workers(n_threads) as workers:
        workers.run(lambda item, worker: finished.append(item), items())
    assert threads == {threading.current_thread()}
    assert max(ahead) <= 2 * n_threads + 1


# Errors


def test_an_error_ends_the_run_after_the_tasks_at_work():
    started, failed, finished = [], threading.Event(), threading.Event()
    second_started = threading.Event()

    def task(item, worker):
        started.append(item)
        if item == 0:
            wait(second_started)
            failed.set()
            raise Planned("item 0")
        second_started.set()
        wait(failed)
        time.sleep(0.05)  # a run that does not wait is over by now
        finished.set()

    before = set(threading.enumerate())
    with Workers(2) as workers:
        with pytest.raises(Planned, match="item 0") as caught:
            workers.run(task, itertools.count())
        assert finished.is_set()
        assert set(threading.enumerate()) == before
        assert "task" in [entry.name for entry in caught.traceback]
        n_started = len(started)
        with pytest.raises(RuntimeError, match="needs running threads"):
            workers.run(task, [0])
    assert len(started) == n_started


# Ctrl-C


@needs_signals
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("n_interrupts", [1, 2])
def test_ctrl_c_while_waiting_for_tasks(interrupts, n_threads, n_interrupts):
    started, finished, interrupted = [], [], threading.Event()

    def task(item, worker):
        started.append(item)
        if item == 0:
            for _ in range(n_interrupts):  # the second one while the threads are joined
                interrupts.send()
            interrupted.set()
        wait(interrupted)
        time.sleep(0.05)  # who does not wait is past the assertions by now
        finished.append(item)

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt), Workers(n_threads) as workers:
        workers.run(task, itertools.count())
    assert set(threading.enumerate()) == before
    assert sorted(started) == sorted(finished)
    assert len(started) <= n_threads


# Floating-point mode and CPUs


@needs_flush
@pytest.mark.parametrize("n_threads", [1, 2])
def test_workers_flush_and_the_caller_does_not(n_threads):
    seen_by_caller = []

    def items():
        for item in range(20):
            seen_by_caller.append(flush_state())
            yield item

    with Workers(n_threads) as workers:
        states = workers.run(lambda item, worker: flush_state(), items())
        assert flush_state() == 0
    assert 0 not in states
    assert set(seen_by_caller) == {0}


# Among other threads and processes


def nested(start):
    """Run workers of its own, and tell what they leave in this thread."""
    before = set(threading.enumerate()), affinity(), flush_state()
    with Workers(2) as workers:
        squares = workers.run(lambda item, worker: item**2, range(start, start + 5))
    left = {thread for thread in set(threading.enumerate()) - before[0] if "skdpmf" in thread.name}
    unchanged = (affinity(), flush_state()) == before[1:]
    return squares, unchanged, len(left) if threading.current_thread().name == "MainThread" else 0


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_inside_joblib(backend):
    found = Parallel(n_jobs=2, backend=backend)(delayed(nested)(start) for start in range(4))
    assert found == [([i**2 for i in range(s, s + 5)], True, 0) for s in range(4)]
