r"""Checkpoints of a fit: what it has released, on the disk before anything depends on it.

All that a private solver does follows from its users' rows and from what was released so far. So a
fit whose process died goes on from the released values alone. What must not happen is that a
release which somebody has seen is drawn again: two noises on one sum. Hence one rule: a value is
handed out only when it is in the file and on the disk, and, if the fit is charged to a ledger, the
ledger has noted it (``skdpmf/books/ledger_resume.py`` has the proof that no other can be handed
out in its place then). Between the draw and that moment nothing looks at the value, and what is
written of it has a public length, so whether a crash comes does not depend on it. A value that is
lost there was never used: the one that is drawn in its place is not a second noise but the first
that anybody sees, and has the law of the plan.

A crash, and what the next run does:

=================================================  ==============================================
before the file's header is on the disk            begins anew
after it; before the token is on the disk          begins anew; nothing was charged
after that; before the ledger has the entry        charges: the ledger does not know the token
after that; before a value is drawn                resumes the entry; nothing more is charged
after that; before its record is complete          drops the record, and draws a value
after that; before the ledger has noted it         notes it; nothing is drawn
after that; before or after it is handed out       hands it out again; nothing is drawn
after the last value; before the file is removed   makes the model of the file; nothing is drawn
after that; before the entry is "done"             it stays "reserved"; a new fit is charged anew
=================================================  ==============================================

Copies: a lock keeps every other process from the file while one that lives has it, and from no copy
of it. With a ledger the process that resumed last may release, any other is stopped at its next
release; a copy is refused that lacks what was noted. Without a ledger only the lock protects, and
the statement says so: `CHECKPOINT_ASSUMPTION`.

The file holds no keys, no seeds and no sums, but a hash of what is fitted, the ratings among it.
Whoever knows all rows but one could test guesses of that one: it is the curator's (mode 600), and
not part of any release. A local disk is assumed, as network file systems may have no locks.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.distributed._record_file import DELETE, Record, RecordFile
from skdpmf.exceptions import CheckpointError
from skdpmf.privacy.plan import ReleasePlan

if TYPE_CHECKING:
    from skdpmf.books.ledger import PrivacyLedger, Reservation

__all__ = [
    "CHECKPOINT_ASSUMPTION",
    "Checkpoint",
    "ReleaseLog",
    "active_checkpoint",
    "fit_checkpoint",
]

CHECKPOINT_ASSUMPTION = (
    "The fit had a checkpoint and no ledger: no copy of the checkpoint was resumed beside it, and "
    "no older copy was put in its place."
)

_ACTIVE: ContextVar[Checkpoint | None] = ContextVar("checkpoint", default=None)


@contextmanager
def fit_checkpoint(path: str | os.PathLike[str]) -> Iterator[Checkpoint]:
    """Keep what a private fit releases in a file, so that the fit survives its process.

    Run the same program again after a crash, and the fit goes on after its last release: the same
    model under the same seed, and a ledger is charged once. When the fit is complete, the file is
    removed. It is for one fit, of whatever private estimator is fitted in the block, also in a
    pipeline.

    Parameters
    ----------
    path : str or path-like
        The file, on a local disk; made if it does not exist. It is the curator's, like the ratings.

    Yields
    ------
    Checkpoint
        State that the fit begins with.

    Raises
    ------
    CheckpointError
        In the fit: if the file is of another fit, damaged, of another format, held by a process
        that lives, or cannot be written; or if it is the second private fit of the block. Systems
        without POSIX file locks (Windows) are refused.

    Warns
    -----
    UserWarning
        If no fit in the block used the checkpoint.

    Notes
    -----
    If a copy of the file is resumed beside it, or an older copy in its place, the same sums get a
    second noise. With a `PrivacyLedger` that is noticed and refused. Without one, see to it
    that it does not happen: the fit's statement assumes it.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "fit.ckpt")
    >>> def fit():
    ...     with fit_checkpoint(path):
    ...         log = active_checkpoint().begin("what is fitted")
    ...         print(len(log.released), "released before")
    ...         log.append("sums", len(log.released), 0, np.zeros(3))
    ...         raise RuntimeError("a cluster is lost")
    >>> for _ in range(2):
    ...     try:
    ...         fit()
    ...     except RuntimeError:
    ...         pass
    0 released before
    1 released before
    """
    checkpoint = Checkpoint(path)
    token = _ACTIVE.set(checkpoint)
    try:
        yield checkpoint
    finally:
        _ACTIVE.reset(token)
        checkpoint.close()
    if checkpoint.log is None:
        warnings.warn(
            f"path={os.fspath(path)!r} must be used by one private fit in its block, and was not: "
            "a fit elsewhere cannot survive a crash. Fit in the block itself, in its thread.",
            stacklevel=3,
        )


def active_checkpoint() -> Checkpoint | None:
    """Return the checkpoint of the `fit_checkpoint` block that runs in this context.

    Result: None outside of such a block.
    """
    return _ACTIVE.get()


class Checkpoint:
    """A file for what one fit releases.

    Parameters
    ----------
    path : str or path-like
        The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.realpath(os.fspath(path))
        self._process = os.getpid()
        self.log: ReleaseLog | None = None  # of the fit that began

    def begin(self, identity: str) -> ReleaseLog:
        """Lock the file and read what was released before; a fit does this before anything else.

        identity: all that the released values depend on: version, estimator, parameters, plan,
        shape, and a digest of the ratings. A hash of it is kept. Result: what was released, to
        which more is appended. Raises CheckpointError as `fit_checkpoint` says.
        """
        if self.log is not None or os.getpid() != self._process:
            raise CheckpointError(
                f"path={self._path!r} must be the checkpoint of one fit, and this is another one, "
                "or another process: give every private fit (every private step of a pipeline) a "
                "fit_checkpoint block with a path of its own."
            )
        self.log = ReleaseLog(self._path, identity)
        return self.log

    def close(self) -> None:
        """Unlock the file; what it holds stays."""
        if self.log is not None:
            self.log.close()


class ReleaseLog:
    """The released values of one fit, in order, in a file that this object has locked.

    Threads may share it; in a forked process it is closed.

    Parameters
    ----------
    path : str
        The file.
    identity : str
        Identity of the fit.
    """

    def __init__(self, path: str, identity: str) -> None:
        self._lock = threading.Lock()
        self._reservation: Reservation | None = None
        self._file = RecordFile(path, identity)
        self._made: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for record in self._releases:
            name, index, place, size = record.head
            self._made.setdefault((name, index), []).append((place, place + size))

    @property
    def released(self) -> list[tuple[str, int, int, NDArray[Any]]]:
        """Name, index, place and values of all releases, in order; read from the disk.

        If a fit was charged to a ledger only after `charge`, the last may not be noted yet.
        """
        with self._lock:
            self._require_ready()
            return [(*record.head[:3], self._file.array(record)) for record in self._releases]

    @property
    def _token(self) -> str:
        """First record of the fit in its ledger; empty without one."""
        first = self._file.records[:1]
        return str(first[0].head[0]) if first and len(first[0].head) == 1 else ""

    @property
    def _releases(self) -> list[Record]:
        return self._file.records[1:] if self._token else self._file.records

    def charge(self, ledger: PrivacyLedger, plan: ReleasePlan, **record: Any) -> Reservation:
        """Charge a ledger for the fit, or resume the entry that it was charged to before.

        ledger: the ledger; plan: what the fit releases in all; **record: more of
        `PrivacyLedger.reserve`. Result: a context manager to be put around the fit, with `finish`
        inside. Raises BudgetExceededError if it does not fit; nothing is charged; LedgerError if
        the ledger cannot be written, or refuses to resume the fit; CheckpointError if the fit was
        begun without a ledger.
        """
        from skdpmf.books.ledger import ResumableFit

        with self._lock:
            self._file.require_usable()
            if not self._token:
                if self._file.records:
                    raise CheckpointError(
                        f"ledger={ledger!r} must be None for a fit that was begun without one: "
                        f"pass the budget without a ledger. {DELETE}."
                    )
                self._file.append([ResumableFit.new_token()])
            fit = ResumableFit(self._token, tuple(self._file.digests()[1:]))
            self._reservation = ledger.reserve(plan, **record, resumable=fit)
            return self._reservation

    def assert_current(self) -> None:
        """Raise unless this fit may go on: call it before noise is drawn, to stop early.

        Raises CheckpointError if the file is closed or not in its place, or the fit was charged to
        a ledger and `charge` was not called; LedgerError if the fit was resumed elsewhere since.
        """
        with self._lock:
            self._require_ready()
            if self._reservation is not None:
                self._reservation.assert_current()

    def append(self, name: str, index: int, place: int, values: Any) -> None:
        """Put a released value on the disk; it may be used only after this has returned.

        name: of the release, as in the plan; index: number of the release among those of this name;
        place: place of its first value in the whole release; values (ndarray of numbers): the
        released values. Raises CheckpointError if a place was released before, or the file cannot
        be written; LedgerError if the fit was resumed elsewhere since, or the ledger cannot be
        written.
        """
        array = np.asarray(values, order="C")
        if array.dtype.kind not in "biuf":
            raise CheckpointError(
                f"values of dtype {array.dtype} must be numbers: nothing else is released."
            )
        with self._lock:
            self._require_ready()
            start, stop = int(place), int(place) + array.size
            made = self._made.setdefault((name, int(index)), [])
            if any(first < stop and start < last for first, last in made):
                raise CheckpointError(
                    f"place={start} with {array.size} values of release {name!r}, index {index}, "
                    "must not meet what was released before: each place has one noise. Take it "
                    "from `released`."
                )
            previous = self._file.digest
            self._file.append([name, int(index), start, array.size], array)
            made.append((start, stop))
            if self._reservation is not None:
                self._file.usable = False  # unless the ledger agrees
                self._reservation.note(previous, self._file.digest)
                self._file.usable = True

    def finish(self) -> None:
        """Remove the file: the fit is complete."""
        with self._lock:
            self._require_ready()
            try:
                self._file.remove()
            except CheckpointError as error:  # the model is not lost for it
                warnings.warn(f"the fit is complete, delete its file: {error}", stacklevel=2)
        self.close()

    def close(self) -> None:
        """Unlock the file; what it holds stays."""
        with self._lock:
            self._file.close()

    def _require_ready(self) -> None:
        self._file.require_usable()
        if self._token and self._reservation is None:
            raise CheckpointError(
                "ledger=None must be the ledger that the fit was charged to when it was begun: "
                f"pass that in the budget. {DELETE}."
            )
