"""Batches of users for a solver that streams them, and the threads that read and take them.

Row blocks of one sweep go to joblib (`_parallel`). `Workers` are for a stream of items with an
order: each worker has an index for scratch space of its own, flushes denormals, and may have a CPU
of its own, while the thread that calls keeps its floating-point mode and its CPUs.

All hand-overs to workers are `SimpleQueue`s: waiting costs nothing, ends on Ctrl-C in the main
thread, and an interrupt leaves no lock behind. The caller alone keeps count. So there is nothing to
repair after an interrupt but to let the threads end.
"""

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from skdpmf.data.parquet_ratings import MOST_GROUP_ROWS, ParquetRatings
from skdpmf.exceptions import RatingStoreError
from skdpmf.kernels.jit_and_threads import later
from skdpmf.kernels.sgd import item_runs, order_by_item

_vectors = later("_vectors")

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
                run, name = copy_context().run, f"skdpmf-worker-{index}"
                work = _serve, self._inbox, self._done, ended, index, cpu
                # Should even __exit__ be interrupted, a daemon does not hold up Python's end.
                thread = threading.Thread(target=run, args=work, name=name, daemon=True)
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
            words = "run() needs running threads: call it inside `with Workers(n_threads) as "
            raise RuntimeError(words + "workers:` and make new Workers after an error.")
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
            if isinstance(iterator, Generator):  # it frees its files now, in its own thread
                reader.submit(iterator.close)


def _serve(inbox: Any, done: Any, ended: threading.Event, index: int, cpu: int | None) -> None:
    """Work until there is no more or a task fails; then report what was raised."""
    try:
        with _vectors.flushed_denormals():
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


# Fixed: entries that the kernels may read (and ignore) behind the last rating of a batch.
_SPARE = 16

# Guard: a spread below this share of the rating range is rounding: all ratings are equal.
_NO_SPREAD = 1e-12


class Batch(NamedTuple):
    """Ratings of consecutive users, from row `start` to before `stop`, in item order.

    The items (n_runs,) int32 ascend; ratings ``indptr[r]:indptr[r + 1]`` (int64) belong to
    ``items[r]``; users (uint16, counted from `start`, ascending within an item) and ratings
    (float32, standardised) have spare entries behind.
    """

    start: int
    stop: int
    items: Any
    indptr: Any
    users: Any
    ratings: Any


class Scale(NamedTuple):
    """Standardised rating = (rating - mean) / std; mean and std in rating units."""

    mean: float
    std: float

    @classmethod
    def of(cls, pieces: Iterable[np.ndarray], rating_range: tuple[float, float]) -> "Scale":
        """Measure float64 ratings in the range; without spread, std is half the range."""
        low, high = rating_range
        middle, half = low / 2.0 + high / 2.0, high / 2.0 - low / 2.0
        # In units of half the range, as sums of huge ratings would overflow, and from the first
        # rating on, so that a small spread is not lost in rounding.
        n, origin, total, squares = 0, 0.0, 0.0, 0.0
        for piece in pieces:
            unit = (piece - middle) / half
            if not n and unit.size:
                origin = float(unit[0])
            unit -= origin
            n, total = n + unit.size, total + float(unit.sum())
            squares += float(np.dot(unit, unit))
        mean = total / max(1, n)
        std = float(np.sqrt(max(0.0, squares / max(1, n) - mean**2)))
        return cls(middle + half * (origin + mean), half * (std if std > _NO_SPREAD else 1.0))


class MatrixBatches:
    """A canonical CSR matrix, cut and sorted once by the workers, in memory: batches of users.

    ``scale`` standardises the ratings, by default with their own mean and standard deviation;
    ``spread`` is their root mean square then; ``user_counts`` and ``item_counts`` are the ratings
    of each user and item. The ratings lie in `bounds`, and a batch has `n_rows` users.
    """

    def __init__(self, R: Any, bounds: Any, n_rows: int, workers: Any, scale: Any = None) -> None:
        if scale is None:
            starts = range(0, R.nnz, MOST_GROUP_ROWS)  # pieces stay in the cache
            pieces = (R.data[begin : begin + MOST_GROUP_ROWS] for begin in starts)
            scale = Scale.of(pieces, bounds)
        self.shape, self.nnz, self.scale = R.shape, R.nnz, scale
        n_rows = min(n_rows, MOST_GROUP_ROWS)
        self._R, self._n_rows = R, n_rows

        def batch(start: int, _: int) -> Batch:
            return _in_item_order(R, start, min(start + n_rows, R.shape[0]), scale)

        self._batches: list[Batch] = workers.run(batch, range(0, R.shape[0], n_rows))
        self.user_counts = np.diff(R.indptr)
        self.item_counts = np.zeros(R.shape[1], np.int64)
        squares = 0.0
        for block in self._batches:
            self.item_counts[block.items] += np.diff(block.indptr)
            squares += float(np.dot(block.ratings, block.ratings))
        self.spread = float(np.sqrt(squares / max(1, self.nnz)))

    def __len__(self) -> int:
        return len(self._batches)

    def read(self, first: int, n_rounds: int = 1) -> Generator[Batch, None, None]:
        """Yield the batches of some rounds, of the first of them from number `first` on."""
        for _ in range(n_rounds):
            yield from self._batches[first:]
            first = 0

    def fingerprint(self) -> str:
        """Return a digest of the ratings and of how they are cut."""
        digest = hashlib.blake2b(repr((self.shape, self._n_rows, self.scale)).encode())
        for part in (self._R.indptr, self._R.indices, self._R.data):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


class ParquetBatches:
    """Row groups of ratings on disk, read ahead by a thread of its own; too large ones are cut.

    They are `ParquetRatings`. Ratings outside of `bounds` are clipped to it. Batches have
    about `n_rows` users: row groups are cut in equal parts, never joined.
    """

    def __init__(self, ratings: ParquetRatings, bounds: tuple[float, float], n_rows: int) -> None:
        group_rows = ratings._group_rows
        self.shape, self.nnz = ratings.shape, ratings.nnz
        self._ratings, self._range = ratings, bounds
        self._n_groups = [-(-n // group_rows) for n in np.diff(ratings._bounds[0]).tolist()]
        self._parts = -(-group_rows // n_rows)
        self._seen: dict[str, Any] = {}
        self.user_counts, self.item_counts = (np.zeros(n, np.int64) for n in ratings.shape)
        with closing(self._measured()) as pieces:
            self.scale, self.spread = Scale.of(pieces, bounds), 1.0

    def __len__(self) -> int:
        return sum(self._n_groups) * self._parts

    def read(self, first: int, n_rounds: int = 1) -> Generator[Batch, None, None]:
        """Yield the batches of some rounds, of the first of them from number `first` on.

        One reader goes through them all: it is at the next round while one ends.
        """
        return read_ahead(self._batches(first, n_rounds), self._parts)

    def fingerprint(self) -> str:
        """Return a digest of the ratings and of how they are cut."""
        return f"{self._ratings.fingerprint} {self._parts} {self.scale!r}"

    def _groups(self, first: int) -> Iterator[Any]:
        for number, n_groups in enumerate(self._n_groups):
            if first < n_groups:
                yield from self._ratings._row_groups(number, self._seen, first)
            first = max(0, first - n_groups)

    def _measured(self) -> Generator[np.ndarray, None, None]:
        """Go once through the ratings, which finds damage before anything is fitted."""
        with closing(read_ahead(self._groups(0), 1)) as groups:
            for group in groups:
                batch, rating = self._ordered(group, Scale(0.0, 1.0)), group[-1]
                np.add.at(self.user_counts, batch.start + batch.users[: rating.size].astype(int), 1)
                self.item_counts[batch.items] += np.diff(batch.indptr)
                yield np.clip(rating.astype(np.float64), *self._range)

    def _batches(self, first: int, n_rounds: int) -> Iterator[Batch]:
        for _ in range(n_rounds):
            skipped = first % self._parts
            for group in self._groups(first // self._parts):
                batch = self._ordered(group, self.scale)
                yield from self._cut(batch)[skipped:] if self._parts > 1 else [batch]
                skipped = 0
            first = 0

    def _ordered(self, group: Any, scale: Scale) -> Batch:
        """Return a row group as a batch, every number of which has been looked at."""
        start, n_rows, user, item, rating = group
        n, n_items = item.size, self.shape[1]
        users, ratings = np.empty(n + _SPARE, np.uint16), np.empty(n + _SPARE, np.float32)
        users[n:], ratings[n:] = 0, 0.0
        most = min(n, n_items)
        items, indptr = np.empty(most, np.int32), np.zeros(most + 1, np.int64)
        n_runs = item_runs(
            *(user, item, rating, (start, start + n_rows), n_items, self._range, tuple(scale)),
            *(items, indptr, users, ratings),
        )
        if n_runs < 0:
            raise RatingStoreError(
                f"{self._ratings.path}: ratings of the users {start} to {start + n_rows - 1} are "
                "out of range or not in the order of items: write them anew from their source."
            )
        return Batch(start, start + n_rows, items[:n_runs], indptr[: n_runs + 1], users, ratings)

    def _cut(self, batch: Batch) -> list[Batch]:
        """Cut a batch between users; a short one has as many parts, the last perhaps empty."""
        n = batch.indptr[-1]
        users, ratings = batch.users[:n], batch.ratings[:n]
        runs = np.repeat(np.arange(len(batch.items)), np.diff(batch.indptr))
        step = -(-self._ratings._group_rows // self._parts)
        parts = []
        for part in range(self._parts):
            low = min(batch.start + part * step, batch.stop)
            high = min(low + step, batch.stop)
            here = (users >= low - batch.start) & (users < high - batch.start)
            counts = np.bincount(runs[here], minlength=len(batch.items))
            known = counts > 0
            indptr = np.append(0, np.cumsum(counts[known]))
            own = _spared(users[here] - np.uint16(low - batch.start)), _spared(ratings[here])
            parts.append(Batch(low, high, batch.items[known], indptr, *own))
        return parts


def _spared(values: Any) -> Any:
    """Return the values with spare entries behind."""
    return np.append(values, np.zeros(_SPARE, values.dtype))


def _in_item_order(R: Any, start: int, stop: int, scale: Scale) -> Batch:
    """Sort the ratings of rows [start, stop) by item."""
    own = R.indices[R.indptr[start] : R.indptr[stop]]
    counts = np.bincount(own, minlength=R.shape[1])
    items = np.flatnonzero(counts)
    size = len(own) + _SPARE
    users, ratings = np.zeros(size, np.uint16), np.zeros(size, np.float32)
    order_by_item(
        *(R.indptr, R.indices, R.data, start, stop, scale.mean, scale.std),
        *(np.cumsum(counts) - counts, users, ratings),
    )
    indptr = np.append(0, np.cumsum(counts[items]))
    return Batch(start, stop, items.astype(np.int32), indptr, users, ratings)


Batches = MatrixBatches | ParquetBatches
