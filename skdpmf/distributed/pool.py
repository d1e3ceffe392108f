"""The processes of a joblib backend as holders of blocks of users.

joblib's tasks have no address: a task runs wherever its backend puts it. So every task carries the
whole list of who holds what, advances the blocks of the process that it finds itself in, and says
which these were; one that finds nothing to do waits a moment, so that the others find other
processes. Blocks that nobody advanced are asked for again, and then started anew. A sum counts once
whoever computed it: a reply names its blocks.

A run is the fit's own code on one block, in a thread of its own, which stops at every request until
its answer comes. Runs stay in their process between the tasks that advance them. A process that
has none, or an older one than a task knows of, says so, and the coordinator has the block started
again, here or elsewhere: from its rows and all answers.

Sums are added up in the processes first, then here: joblib hands every task's result to its caller,
which is what a catalogue too large, or too many processes, meet first.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self
from uuid import uuid4

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs, parallel_config
from joblib.parallel import get_active_backend
from scipy.sparse import csr_array

from skdpmf.distributed.exchange import Answer, Coordinator, Key, Worker

# A run that nobody asks for so long gives its rows back: its coordinator may be lost.
_IDLE_SECONDS = 900.0

#: what runs on a block: the fit's own code, given the block and its exchange
Program = Callable[[Any, Worker], Any]


@dataclass(frozen=True)
class Reply:
    """What a task did.

    Attributes
    ----------
    process : str
        Name of the process, new in each.
    version : str
        Version of skdpmf there.
    blocks : tuple of int
        Whose sums are in the total.
    total : ndarray or None
        The sum of these blocks.
    """

    process: str
    version: str
    blocks: tuple[int, ...] = ()
    total: Any = None


class _Ended(BaseException):
    """Ends the thread of a run that nobody asks for any more."""


class _Run:
    """One block of one fit, stopped at a request.

    Which answers it has is said before it has them: where none is left it hands in its sum.
    """

    def __init__(self, program: Program, block: Any, n_rows: int, answers: Any) -> None:
        self._inbox: SimpleQueue[Answer] = SimpleQueue()
        self._outbox: SimpleQueue[tuple[Key | None, Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._known, self._asked = 0, 0  # answers that were given, and requests made
        self._latest: tuple[Key | None, Any] | None = None
        self._give(answers)
        thread = threading.Thread(
            target=self._serve, args=(program, block, n_rows), name="skdpmf-block", daemon=True
        )
        thread.start()

    def sum_at(self, key: Key, position: int, answers: Sequence[Answer]) -> Any:
        """Go on to the request at `position`, given the last answers before it; return the sum.

        None: it is not known how to get there.
        """
        with self._lock:
            missing = position - self._known
            if not 0 <= missing <= len(answers):
                return None
            if missing or self._latest is None:
                self._give(answers[len(answers) - missing :])
                self._latest = self._outbox.get()
            at, total = self._latest
        if isinstance(total, _Ended):
            return None
        if isinstance(total, BaseException):
            raise total
        if at != key:
            raise _diverged(at, key)
        return total

    def _give(self, answers: Sequence[Answer]) -> None:
        self._known += len(answers)
        for answer in answers:
            self._inbox.put(answer)

    def stop(self) -> None:
        """End the run at its next request."""
        self._inbox.put(Answer(("", 0, 0), _Ended()))

    def _serve(self, program: Program, block: Any, n_rows: int) -> None:
        try:
            # threads of the estimator's n_jobs inside of the block, and no processes
            with parallel_config(backend="threading", n_jobs=1):
                program(block, Worker(self._ask, block.first_row, n_rows))
            raise RuntimeError("a block has ended before its coordinator.")
        except BaseException as error:
            self._outbox.put((None, error))

    def _ask(self, key: Key, total: Any) -> Any:
        """Hand in the sum where the answer is not known yet, and wait for it."""
        if total is not None and self._asked >= self._known:
            self._outbox.put((key, total))
        self._asked += 1
        try:
            answer = self._inbox.get(timeout=_IDLE_SECONDS)
        except Empty:
            raise _Ended from None
        if isinstance(answer.value, _Ended):
            raise answer.value
        if answer.key != key:
            raise _diverged(key, answer.key)
        return answer.value


def _diverged(block: Key | None, coordinator: Key) -> RuntimeError:
    return RuntimeError(
        f"a block is at {block!r} and the coordinator at {coordinator!r}: the same versions of "
        "skdpmf, NumPy and SciPy must run everywhere."
    )


# This process's name, and the runs that it holds by fit and block.
_PROCESS = uuid4().hex
_RUNS: dict[tuple[str, int], _Run] = {}
_TAKEN: dict[tuple[str, int], int] = {}  # the last dispatch in which somebody advanced the run
_LOCK = threading.Lock()


def _forget() -> None:
    """Hold nothing in a child process: threads do not survive a fork."""
    global _PROCESS, _LOCK
    _PROCESS, _LOCK = uuid4().hex, threading.Lock()
    _RUNS.clear()
    _TAKEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@dataclass(frozen=True)
class Stop:
    """Where a fit is: at a request, with some answers before it.

    Attributes
    ----------
    fit : str
        Which fit.
    dispatch : int
        Counts what the coordinator sends out.
    key : tuple
        Key of the request.
    position : int
        Answers before it.
    answers : tuple of Answer
        The last ones of them.
    """

    fit: str
    dispatch: int
    key: Key
    position: int
    answers: tuple[Answer, ...]


def hello(seconds: float) -> Reply:
    """Tell name and version, after a while in which other tasks find other processes."""
    time.sleep(seconds)
    return Reply(_PROCESS, code_version())


def start(stop: Stop, runs: Mapping[int, tuple[Program, Any]], n_rows: int) -> Reply:
    """Start blocks in this process, one after the other, with all answers; return their sums."""

    def started() -> Iterator[int]:
        for number, (program, block) in runs.items():
            key = stop.fit, number
            with _LOCK:
                old = _RUNS.pop(key, None)
                _RUNS[key] = _Run(program, block, n_rows, stop.answers)
                _TAKEN.pop(key, None)
            if old is not None:
                old.stop()
            yield number

    return _advanced(stop, started())


def advance(stop: Stop, owners: Mapping[str, Any], wanted: frozenset[int], seconds: float) -> Reply:
    """Take what is wanted of the blocks that this process holds to a request.

    Blocks that it lost are left out, and blocks that are others' now are let go.
    """
    mine = owners.get(_PROCESS, ())
    _keep(stop.fit, mine)
    reply = _advanced(stop, [number for number in mine if number in wanted])
    if not reply.blocks:
        time.sleep(seconds)
    return reply


def drop(fit: str, seconds: float) -> None:
    """End all runs of a fit; then wait, so that other tasks find other processes."""
    _keep(fit, ())
    time.sleep(seconds)


def _keep(fit: str, numbers: Collection[int]) -> None:
    """Let go of a fit's other blocks."""
    with _LOCK:
        others = [key for key in _RUNS if key[0] == fit and key[1] not in numbers]
        lost = [_RUNS.pop(key) for key in others]
    for run in lost:
        run.stop()


def added(sums: Sequence[Any]) -> Any:
    """Add up exact sums; None for none."""
    total = None
    for own in sums:
        total = own.copy() if total is None else np.add(total, own, out=total)
    return total


@cache
def code_version() -> str:
    """Tell the versions that must be the same everywhere: of NumPy and, to the byte, of skdpmf."""
    digest, package = hashlib.blake2b(digest_size=6), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return f"skdpmf {digest.hexdigest()} with NumPy {np.__version__}"


def _advanced(stop: Stop, numbers: Iterable[int]) -> Reply:
    done, sums = [], []
    for number in numbers:
        key = stop.fit, number
        with _LOCK:
            run = _RUNS.get(key)
            # another task of this dispatch may be at it, in another thread
            if run is None or _TAKEN.get(key) == stop.dispatch:
                continue
            _TAKEN[key] = stop.dispatch
        try:
            own = run.sum_at(stop.key, stop.position, stop.answers)
        except BaseException:
            with _LOCK:
                _RUNS.pop(key, None)
            raise
        if own is not None:
            sums.append(own)
            done.append(number)
    return Reply(_PROCESS, code_version(), tuple(done), added(sums))


# The coordinator's side

# Seconds that a task without work waits: at the first try, and before blocks are given up.
_WAITS = (0.0, 0.05, 0.3)
_MOST_LOSSES = 5  # dispatches in a row that advance nothing


def n_processes() -> int:
    """Return how many tasks the active joblib backend runs in processes of its own; 0: none.

    Result: 0 without `joblib.parallel_config`, with threads, for one process of this machine, and
    inside of another parallel computation.
    """
    backend = get_active_backend()[0]
    nested = (backend.nesting_level or 0) > 0 or _in_dask_task()
    if nested or getattr(backend, "supports_sharedmem", False):
        return 0
    n = int(effective_n_jobs(None))
    return 0 if n == 1 and type(backend).__module__ == "joblib._parallel_backends" else n


def _in_dask_task() -> bool:
    """Whether a dask worker runs this: its tasks have the backend of their caller once more."""
    distributed: Any = sys.modules.get("distributed")
    try:
        return distributed is not None and distributed.get_worker() is not None
    except ValueError:  # no worker in this thread
        return False


class Pool:
    """Holders of the blocks of one fit; a context manager, which ends what they hold.

    Parameters
    ----------
    n_tasks : int
        Tasks at a time, as `n_processes`; 0: all in this process.
    """

    def __init__(self, n_tasks: int) -> None:
        self.n_tasks = n_tasks
        # of the configuration at hand: later on it is that of the coordinator's own threads
        own = {} if n_tasks else {"n_jobs": 1}
        self._parallel = Parallel(batch_size=1, pre_dispatch="all", **own)
        self._fit = uuid4().hex
        self._dispatch = 0
        self._owners: dict[int, str] = {}
        self._told = 0  # answers that the holders of blocks know

    def check(self) -> None:
        """Wake the processes, and compare their code with that of this one.

        Raises RuntimeError if one has other code.
        """
        if self.n_tasks:
            self._map([delayed(hello)(0.05)] * self.n_tasks)

    def hold(self, runs: Mapping[int, tuple[Program, Any]], n_rows: int) -> None:
        """Note what to run on which block; nothing is sent before the first request.

        runs: program and block by number; the program is called with the block and its exchange;
        n_rows: rows of the whole matrix.
        """
        self._runs, self._n_rows = dict(runs), n_rows

    def collect(self, key: Key, history: Sequence[Answer]) -> Any:
        """Return the sum over all blocks for the request after the answers of the history.

        key: of the request; history: all answers so far. Raises RuntimeError if blocks were lost
        again and again.
        """
        missing, total, tries, losses = set(self._runs), None, 0, 0
        while missing:
            if tries == len(_WAITS):
                tries = 0
                for number in missing:
                    self._owners.pop(number, None)
            self._dispatch += 1
            before = len(missing)
            for reply in self._map(self._tasks(key, history, missing, _WAITS[tries])):
                if not reply.blocks or not missing.issuperset(reply.blocks):
                    continue
                total = added([reply.total] if total is None else [total, reply.total])
                missing.difference_update(reply.blocks)
                self._owners.update(dict.fromkeys(reply.blocks, reply.process))
            tries, losses = (0, 0) if len(missing) < before else (tries + 1, losses + 1)
            if losses > _MOST_LOSSES + len(_WAITS):
                raise RuntimeError(
                    f"{len(missing)} of {len(self._runs)} blocks of users were lost again and "
                    "again: look for workers that run out of memory."
                )
        self._told = len(history)
        return total

    def __enter__(self) -> Self:
        # some backends would start processes anew for every call, without the blocks
        self._parallel.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._end_runs()
        finally:
            self._parallel.__exit__(*error)

    def _end_runs(self) -> None:
        """Where processes are gone there is nothing to end."""
        with suppress(Exception):
            wait = 0.05 if self.n_tasks > 1 else 0.0
            self._map([delayed(drop)(self._fit, wait)] * max(self.n_tasks, 1))

    def _tasks(self, key: Key, history: Any, missing: set[int], wait: float) -> list[Any]:
        """Advance what is held, and start what nobody holds."""
        n_tasks, position = max(self.n_tasks, 1), len(history)
        owners: dict[str, list[int]] = {}
        for number, process in sorted(self._owners.items()):
            owners.setdefault(process, []).append(number)
        tasks = []
        if not missing.isdisjoint(self._owners):
            stop = Stop(self._fit, self._dispatch, key, position, tuple(history[self._told :]))
            tasks = [delayed(advance)(stop, owners, frozenset(missing), wait)] * n_tasks
        new = sorted(missing - set(self._owners))
        if new:
            stop = Stop(self._fit, self._dispatch, key, position, tuple(history))
            for some in np.array_split(new, min(n_tasks, len(new))):
                runs = {int(number): self._runs[number] for number in some}
                tasks.append(delayed(start)(stop, runs, self._n_rows))
        return tasks

    def _map(self, tasks: list[Any]) -> list[Any]:
        """Run tasks; where the backend has lost all processes nobody has done anything."""
        try:
            replies = self._parallel(tasks)
        except Exception as error:
            if not _is_loss(error):
                raise
            self._owners.clear()
            return []
        for reply in replies:
            if isinstance(reply, Reply) and reply.version != code_version():
                raise RuntimeError(
                    f"a worker runs {reply.version} and the coordinator {code_version()}: they "
                    "must be the same. Install one version everywhere, and start the workers anew."
                )
        return list(replies)


def _is_loss(error: Exception) -> bool:
    """Whether an error means that worker processes died: loky's, dask's and ray's have no base."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & {"BrokenExecutor", "KilledWorker", "WorkerCrashedError", "RayActorError"})


def fit_on_blocks(
    pool: Pool, release: Callable[[Any, Coordinator], Any], runs: Mapping[int, Any], n_items: int
) -> Any:
    """Run a fit's own code on all blocks, and on no users here.

    pool: new; release: what runs here: given a matrix of no rows and the coordinator's exchange it
    returns what is released; runs: what runs on which block, by number, in the order of the rows;
    n_items: columns.
    """
    n_rows = sum(block.n_rows for _, block in runs.values())
    pool.hold(runs, n_rows)
    # within the pool as in the workers: no processes inside of the solver
    with pool, parallel_config(backend="threading", n_jobs=1):
        return release(csr_array((0, n_items)), Coordinator(pool.collect, n_rows))
