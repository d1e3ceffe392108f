r"""Fits that go on after a crash: which run of a fit may release, and what was released before.

A fit that may be resumed has a secret token, and a history: digests :math:`h_0, h_1, \dots`, the
n-th of which stands for its first n released values (it changes with each of them). Its entry has
a row of its own with the hash of the token, the number s of runs that were started, the number n of
values that were noted, and :math:`h_n`.

*Start.* One transaction finds the row by the token, or makes the entry, and sets s to s + 1. It
needs an entry of status "reserved" and of the same plan, and a history whose n-th digest is
:math:`h_n` and which has at most one more; n becomes the number of its last.

*Note.* The s-th run may write n + 1 and :math:`h_{n+1}` while the status is "reserved", no other
run was started since, and :math:`h_n` is what its own history ended with. It hands a value out,
that is, lets anything depend on it, only after the note of it is committed.

*Claim:* at most one value is ever handed out as the n-th of an entry, whatever crashes, however
often the checkpoint is copied, and however many processes run.

*Proof.* n never shrinks, and each of its steps by one is a transaction that continues the history
before it: there is one such history, with one n-th digest. A value is handed out as the n-th after
its own note, or because it is the n-th of the history that a run started with. Both are of that
one history (the start compares it, or adds the one more to it), and equal digests stand for equal
values, but for a collision of BLAKE2b. QED

So what an entry paid for is released once. A value that was drawn and not handed out influences
nothing if whether a crash comes does not depend on it: nothing looks at it before it is noted, and
what is written of it has a public length. A value drawn in its place then has the law of the first.

A run that raises leaves "reserved", as one that was killed does: what it spent stays spent, a lost
cluster or a full disk is no reason to pay again, and what is released again is the same values.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import warnings
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from skdpmf.books.search import SearchPlan
from skdpmf.exceptions import LedgerError
from skdpmf.privacy.plan import ReleasePlan

__all__ = [
    "Reservation",
    "ResumableFit",
    "add_run",
    "now",
    "resume_run",
    "resumptions",
    "wrong_run",
]

# made where the first such fit is reserved: ledgers of format 1 exist without it
_TABLES = (
    "CREATE TABLE IF NOT EXISTS run (entry INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE,"
    " starts TEXT NOT NULL, noted INTEGER NOT NULL, head TEXT NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS run_kept BEFORE DELETE ON run"
    " BEGIN SELECT RAISE(ABORT, 'runs are never deleted'); END",
    "CREATE TRIGGER IF NOT EXISTS run_goes_on BEFORE UPDATE ON run WHEN NEW.entry <> OLD.entry"
    " OR NEW.token <> OLD.token OR length(NEW.starts) < length(OLD.starts)"
    " OR NEW.noted NOT IN (OLD.noted, OLD.noted + 1)"
    " OR (NEW.noted = OLD.noted AND NEW.head <> OLD.head)"
    " BEGIN SELECT RAISE(ABORT, 'a run only goes on'); END",
)
_HEX = 64  # digits of tokens and digests
# of the record: what a resumed fit must have in common with the first one
_SAME = ("estimator", "shape", "private", "seeded", "condition", "local", "releases")
_PAY = "or delete the checkpoint and fit anew, which is charged again"


@dataclass(frozen=True)
class ResumableFit:
    """By what a ledger knows a fit again.

    Parameters
    ----------
    token : str
        From `new_token`; whoever has it, and the history, may go on with the entry.
    history : tuple of str
        Digests, 64 hexadecimal digits each, of the first 0, 1, ... released values.
    """

    token: str = field(repr=False)
    history: tuple[str, ...]

    @staticmethod
    def new_token() -> str:
        """Return a random token.

        Result: 64 hexadecimal digits.
        """
        return secrets.token_hex(_HEX // 2)

    @property
    def digest(self) -> str:
        """What the ledger keeps of the token."""
        return hashlib.blake2b(self.token.encode(), digest_size=_HEX // 2).hexdigest()


class Reservation:
    """An entry that counts as spent; as a context manager it records how the fit ended.

    Parameters
    ----------
    ledger : PrivacyLedger
        Its ledger.
    id : int
        Number of the entry.
    plan : ReleasePlan or SearchPlan
        Plan of the releases.
    run : int, default=None
        Which run of a fit that may be resumed this is; None: it may not.
    included : ndarray of bool, shape (n_rows,), default=None
        By person, the rows that take part.
    """

    def __init__(
        self,
        ledger: Any,
        id: int,
        plan: ReleasePlan | SearchPlan,
        run: int | None = None,
        included: Any = None,
    ) -> None:
        self.ledger, self.id, self.plan, self.run = ledger, id, plan, run
        self.included = included

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and self.run is not None:
            return  # stays "reserved", as after a crash
        try:
            with self.ledger._transaction(write=True) as connection:
                if self.run is not None:
                    self._head(connection)
                query = "UPDATE entry SET status=? WHERE id=? AND status='reserved'"
                connection.execute(query, ("done" if kind is None else "failed", self.id))
        except LedgerError as problem:  # it counts as spent all the same
            warnings.warn(f"entry {self.id} stays 'reserved': {problem}", stacklevel=2)

    def assert_current(self) -> None:
        """Raise unless this run may release: call it before noise is drawn, to stop early.

        Raises LedgerError if the fit was resumed elsewhere since, or is complete.
        """
        with self.ledger._transaction() as connection:
            self._head(connection)

    def note(self, previous: str, digest: str) -> None:
        """Note a release, durably; only then may its value be handed out.

        previous: last digest of the history before it; digest: last digest of the history with it.
        Raises LedgerError if the fit was resumed elsewhere since, is complete, or has another
        history. The value must not be used then.
        """
        with self.ledger._transaction(write=True) as connection:
            if self._head(connection) != previous:
                raise LedgerError(
                    f"previous={previous!r} must be the last digest that entry {self.id} has, as "
                    "every release is noted once, and before it is used: resume the fit from its "
                    "checkpoint."
                )
            query = "UPDATE run SET noted=noted+1, head=? WHERE entry=?"
            connection.execute(query, (digest, self.id))

    def _head(self, connection: sqlite3.Connection) -> str:
        """Return the last digest that was noted, if this is the run that may go on."""
        query = "SELECT status, starts, head FROM entry JOIN run ON id = entry WHERE id=?"
        status, starts, head = connection.execute(query, (self.id,)).fetchone()
        if len(json.loads(starts)) != self.run or status != "reserved":
            what = "complete" if status != "reserved" else "resumed by another process since"
            raise LedgerError(
                f"run={self.run} of entry {self.id} of {self.ledger.path!r} must be the last one "
                f"to release anything, and the fit is {what}: this run is to be given up."
            )
        return str(head)


def add_run(connection: sqlite3.Connection, entry: int, fit: ResumableFit, path: str) -> None:
    """Note the first run of a new entry, in the transaction that makes the entry."""
    if len(fit.history) != 1:
        raise LedgerError(
            f"path={path!r} must be the ledger that this fit was reserved in, and does not know "
            f"it after {len(fit.history) - 1} releases: another one, or an older copy, was put in "
            f"its place. Restore it, {_PAY}."
        )
    for statement in _TABLES:
        connection.execute(statement)
    values = (entry, fit.digest, json.dumps([now()]), 0, fit.history[0])
    connection.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?)", values)


def resume_run(
    connection: sqlite3.Connection, fit: ResumableFit, record: str, path: str
) -> tuple[int, int] | None:
    """Start the next run of a fit; return the entry and the run's number, or None of a new fit."""
    if not _has_runs(connection):
        return None
    query = (
        "SELECT id, status, record, starts, noted, head FROM entry JOIN run ON id = entry"
        " WHERE token=?"
    )
    row = connection.execute(query, (fit.digest,)).fetchone()
    if row is None:
        return None
    entry, status, recorded, starts, noted, head = row
    if status != "reserved":
        raise LedgerError(
            f"entry {entry} of {path!r} must be 'reserved' to be resumed, and is {status!r}: its "
            f"fit is complete. Use its model, {_PAY}."
        )
    before, after = json.loads(recorded), json.loads(record)
    other = [name for name in _SAME if before[name] != after[name]]
    if other:
        raise LedgerError(
            f"{other[0]}={after[other[0]]!r} must be {before[other[0]]!r}, with which entry "
            f"{entry} of {path!r} was reserved: resume the same fit, {_PAY}."
        )
    n = len(fit.history) - 1
    if not noted <= n <= noted + 1 or fit.history[noted] != head:
        raise LedgerError(
            f"history of {n} releases must continue the {noted} that entry {entry} of {path!r} "
            "has noted: the checkpoint is an older copy, or of a run that was given up. Resume "
            f"from the newest one, {_PAY}."
        )
    times = [*json.loads(starts), now()]
    query = "UPDATE run SET starts=?, noted=?, head=? WHERE entry=?"
    connection.execute(query, (json.dumps(times), n, fit.history[n], entry))
    return entry, len(times)


def resumptions(connection: sqlite3.Connection) -> dict[int, list[str]]:
    """Return the times at which entries were resumed."""
    if not _has_runs(connection):
        return {}
    rows = connection.execute("SELECT entry, starts FROM run")
    return {entry: json.loads(starts)[1:] for entry, starts in rows}


def wrong_run(connection: sqlite3.Connection) -> str:
    """Return what is wrong with the rows of runs, or nothing."""
    if not _has_runs(connection):
        return ""
    query = "SELECT entry, id, token, starts, noted, head FROM run LEFT JOIN entry ON id = entry"
    for entry, known, token, starts, noted, head in connection.execute(query):
        if known is None:
            return f"entry {entry}, which has runs, is missing"
        sizes = {len(token), len(head)}
        if sizes != {_HEX} or noted < 0 or not _is_list_of_times(starts):
            return f"the runs of entry {entry} were changed"
    return ""


def now() -> str:
    """Return the time, as entries have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _has_runs(connection: sqlite3.Connection) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE type='table' AND name='run'"
    return bool(connection.execute(query).fetchone()[0])


def _is_list_of_times(text: str) -> bool:
    try:
        times: Any = json.loads(text)
        return bool(times) and all(datetime.fromisoformat(time) for time in times)
    except (TypeError, ValueError):
        return False
