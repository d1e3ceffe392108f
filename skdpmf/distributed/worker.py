"""Blocks of users in a process that holds them: runs that go from one request to the next.

A run is the fit's own code in a thread of its own, which stops at every request until its answer
comes. Runs stay in the process between the tasks that advance them, and a task finds them by the
fit and the number of the block. Whoever has none, or an older one than the task knows of, says so,
and the coordinator has the block started again, here or elsewhere: from its rows and all answers.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

import numpy as np
from joblib import parallel_config

from skdpmf.distributed.exchange import Answer, Key, Worker

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

    def __init__(
        self, program: Program, block: Any, n_rows: int, answers: Sequence[Answer]
    ) -> None:
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


def advance(
    stop: Stop, owners: Mapping[str, Sequence[int]], wanted: Collection[int], seconds: float
) -> Reply:
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
