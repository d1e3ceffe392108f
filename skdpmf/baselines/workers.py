"""Threads that a fit keeps for itself: workers fed item by item, and a reader ahead of them.

Row blocks of one sweep go to joblib (`_parallel`). This is for a stream of items with an order:
each worker has an index for scratch space of its own, flushes denormals, and may have a CPU of its
own, while the thread that calls keeps its floating-point mode and its CPUs.

All hand-overs to workers are `SimpleQueue`s: waiting costs nothing, ends on Ctrl-C in the main
thread, and an interrupt leaves no lock behind. The caller alone keeps count. So there is nothing to
repair after an interrupt but to let the threads end.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from skdpmf.kernels.jit_and_threads import later

_flush = later("flush")

T = TypeVar("T")


class Workers:
    """Threads for one fit, fed from a queue; a context manager.

    The threads start with the ``with`` block and are joined at its end. They flush denormals to
    zero. If there are as many of them as CPUs that this process may use, and at least two, each
    keeps to a CPU of its own where the system (Linux) allows; fewer are left to the scheduler, as
    another process may have made the same choice. A task should start no thread: it would inherit
    both.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._threads: list[tuple[threading.Thread, threading.Event]] = []

    def __enter__(self) -> Self:
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._done: SimpleQueue[Any] = SimpleQueue()
        try:
            for index, cpu in enumerate(_cpus(self.n_threads)):
                ended = threading.Event()
                thread = threading.Thread(
                    target=copy_context().run,
                    args=(_serve, self._inbox, self._done, ended, index, cpu),
                    name=f"skdpmf-worker-{index}",
                    # Should even __exit__ be interrupted, it does not hold up Python's end.
                    daemon=True,
                )
                self._threads.append((thread, ended))
                thread.start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def run(self, task: Callable[[Any, int], T], items: Iterable[Any]) -> list[T]:
        """Call ``task(item, worker)`` for every item, in the worker threads.

        The calling thread iterates, so that a slow iterator holds up no worker that has an item.
        It gives out the items in order, each to the first free worker, and keeps up to two a
        worker (one at work, one waiting) and one in hand: items must not share a buffer.

        A task or an iterator that fails, and Ctrl-C in the main thread, end the run and the
        workers: items that no worker has taken are dropped, tasks at work are waited for, and the
        threads end. A generator stays as it is; close it, as with `contextlib.closing`.

        Workers are numbered from 0 on; a task must not call `run` of its own workers. The result is
        what the task returned, in the order of the items.
        """
        if not self._threads:
            raise RuntimeError(
                "run() needs running threads: call it inside `with Workers(n_threads) as workers:`"
                " and make new Workers after an error."
            )
        results: list[Any] = []
        pending = 0
        try:
            for item in items:
                # An error is seen before the next item goes out, even if workers are free.
                while pending == 2 * self.n_threads or not self._done.empty():
                    self._collect(results)
                    pending -= 1
                self._inbox.put((task, item, len(results)))
                results.append(None)
                pending += 1
            for _ in range(pending):
                self._collect(results)
        except BaseException:
            self._stop()
            raise
        return results

    def _collect(self, results: list[Any]) -> None:
        """Wait for one task to end, and store its result."""
        position, result, error = self._done.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame: without this, only the collector frees both
        results[position] = result

    def _stop(self) -> None:
        """Drop what is waiting and join the threads, once what they work on has ended."""
        _clear(self._inbox)
        for _ in range(self.n_threads):
            self._inbox.put(None)
        for thread, ended in self._threads:
            if thread.is_alive():
                # Some Pythons take a thread for dead once a second Ctrl-C has ended a join of it.
                ended.wait()
                thread.join()
        self._threads = []
        _clear(self._done)  # errors after the first


def read_ahead(iterable: Iterable[T], n: int) -> Generator[T, None, None]:
    """Iterate in a thread of its own, up to `n` items ahead of the caller.

    The thread starts with the first item that is asked for. It ends with the iterable or, if the
    generator is closed before, after the item that it is at; a generator is then closed there.

    The generator raises what the iterable raises, after the items before it.
    """
    run: Any = copy_context().run
    end, iterator = object(), iter(iterable)
    with ThreadPoolExecutor(1, "skdpmf-reader") as reader:
        waiting = deque(reader.submit(run, next, iterator, end) for _ in range(n))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(reader.submit(run, next, iterator, end))
                yield item
                del item  # the caller has it: not to be kept while waiting for the next
        finally:
            for future in waiting:
                future.cancel()
            if isinstance(iterator, Generator):  # what it holds goes now, and in its thread
                reader.submit(iterator.close)


def _serve(inbox: Any, done: Any, ended: threading.Event, index: int, cpu: int | None) -> None:
    """Work until there is no more or a task fails; then report what was raised."""
    try:
        with _flush.flushed_denormals():
            if cpu is not None:
                with suppress(OSError):
                    os.sched_setaffinity(0, {cpu})  # 0 is the calling thread, not the process
            while _work(inbox.get(), done, index):
                pass
    except BaseException as error:
        done.put((None, None, error))
    finally:
        ended.set()


def _work(job: Any, done: SimpleQueue[Any], index: int) -> bool:
    """Do one job; a function, so that an idle worker keeps no item and no result."""
    if job is None:
        return False
    task, item, position = job
    done.put((position, task(item, index), None))
    return True


def _cpus(n_threads: int) -> list[int] | list[None]:
    """Return a CPU for each thread where they take them all, else None for each."""
    if n_threads >= 2 and hasattr(os, "sched_getaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) == n_threads:
            return allowed
    return [None] * n_threads


def _clear(queue: SimpleQueue[Any]) -> None:
    with suppress(Empty):
        while True:
            queue.get_nowait()
