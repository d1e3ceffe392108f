"""The processes of a joblib backend as holders of blocks of users.

joblib's tasks have no address: a task runs wherever its backend puts it. So every task carries the
whole list of who holds what, advances the blocks of the process that it finds itself in, and says
which these were; one that finds nothing to do waits a moment, so that the others find other
processes. Blocks that nobody advanced are asked for again, and then started anew. A sum counts once
whoever computed it: a reply names its blocks.

Sums are added up in the processes first, then here: joblib hands every task's result to its caller,
which is what a catalogue too large, or too many processes, meet first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self
from uuid import uuid4

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs, parallel_config
from joblib.parallel import get_active_backend
from scipy.sparse import csr_array

from skdpmf.distributed.exchange import Answer, Coordinator, Key
from skdpmf.distributed.worker import (
    Program,
    Reply,
    Stop,
    added,
    advance,
    code_version,
    drop,
    hello,
    start,
)

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
    local = type(backend).__module__ == "joblib._parallel_backends"
    return 0 if n == 1 and local else n


def _in_dask_task() -> bool:
    """Whether a dask worker runs this: its tasks have the backend of their caller once more."""
    distributed: Any = sys.modules.get("distributed")
    try:
        return distributed is not None and distributed.get_worker() is not None
    except ValueError:  # no worker in this thread
        return False


@dataclass(frozen=True)
class Step:
    """What one request of a fit cost.

    Attributes
    ----------
    name, index : str, int
        Name of the release.
    bytes_down, bytes_up : int
        Bytes of the arrays sent to all processes, and received.
    seconds : float
        From the first task to the last reply.

    Examples
    --------
    >>> from skdpmf.distributed.pool import Step
    >>> step = Step("item counts", 0, bytes_down=0, bytes_up=31_064, seconds=0.2)
    >>> step.name, step.bytes_up
    ('item counts', 31064)
    """

    name: str
    index: int
    bytes_down: int
    bytes_up: int
    seconds: float


_TRAFFIC: ContextVar[list[Step] | None] = ContextVar("skdpmf_traffic", default=None)


@contextmanager
def record_traffic() -> Iterator[list[Step]]:
    """Note what the requests of the fits in the block cost. Sizes and times only.

    Result: filled as they are made.

    Examples
    --------
    >>> from skdpmf.distributed.pool import record_traffic
    >>> with record_traffic() as steps:
    ...     pass
    >>> steps
    []
    """
    steps: list[Step] = []
    token = _TRAFFIC.set(steps)
    try:
        yield steps
    finally:
        _TRAFFIC.reset(token)


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
        began, traffic = perf_counter(), [0, 0]
        missing, total, tries, losses = set(self._runs), None, 0, 0
        while missing:
            if tries == len(_WAITS):
                tries = 0
                for number in missing:
                    self._owners.pop(number, None)
            self._dispatch += 1
            tasks = self._tasks(key, history, missing, _WAITS[tries], traffic)
            before = len(missing)
            for reply in self._map(tasks):
                if not reply.blocks or not missing.issuperset(reply.blocks):
                    continue
                total = added([reply.total] if total is None else [total, reply.total])
                traffic[1] += reply.total.nbytes
                missing.difference_update(reply.blocks)
                self._owners.update(dict.fromkeys(reply.blocks, reply.process))
            tries, losses = (0, 0) if len(missing) < before else (tries + 1, losses + 1)
            if losses > _MOST_LOSSES + len(_WAITS):
                raise RuntimeError(
                    f"{len(missing)} of {len(self._runs)} blocks of users were lost again and "
                    "again: look for workers that run out of memory."
                )
        self._told = len(history)
        steps = _TRAFFIC.get()
        if steps is not None:
            steps.append(Step(key[0], key[1], traffic[0], traffic[1], perf_counter() - began))
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

    def _tasks(
        self,
        key: Key,
        history: Sequence[Answer],
        missing: set[int],
        wait: float,
        traffic: list[int],
    ) -> list[Any]:
        """Advance what is held, and start what nobody holds."""
        n_tasks, position = max(self.n_tasks, 1), len(history)
        owners: dict[str, list[int]] = {}
        for number, process in sorted(self._owners.items()):
            owners.setdefault(process, []).append(number)
        tasks = []
        if not missing.isdisjoint(self._owners):
            answers = tuple(history[self._told :])
            stop = Stop(self._fit, self._dispatch, key, position, answers)
            tasks = [delayed(advance)(stop, owners, frozenset(missing), wait)] * n_tasks
            traffic[0] += n_tasks * _size(answers)
        new = sorted(missing - set(self._owners))
        if new:
            stop = Stop(self._fit, self._dispatch, key, position, tuple(history))
            for some in np.array_split(new, min(n_tasks, len(new))):
                runs = {int(number): self._runs[number] for number in some}
                tasks.append(delayed(start)(stop, runs, self._n_rows))
                traffic[0] += _size(history)
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


def _size(answers: Sequence[Answer]) -> int:
    return sum(getattr(answer.value, "nbytes", 0) for answer in answers)


def fit_on_blocks(
    pool: Pool,
    release: Callable[[Any, Coordinator], Any],
    runs: Mapping[int, tuple[Program, Any]],
    n_items: int,
) -> Any:
    """Run a fit's own code on all blocks, and on no users here.

    pool: new; release: what runs here: given a matrix of no rows and the coordinator's exchange it
    returns what is released; runs: what runs on which block, by number, in the order of the rows;
    n_items: columns.
    """
    n_rows = sum(block.n_rows for _, block in runs.values())
    pool.hold(runs, n_rows)
    nobody = csr_array((0, n_items))
    # within the pool as in the workers: no processes inside of the solver
    with pool, parallel_config(backend="threading", n_jobs=1):
        return release(nobody, Coordinator(pool.collect, n_rows))
