"""The SQLite file of a ledger: transactions that are on the disk when they return, or an error.

Every transaction opens a connection of its own and closes it, so that none is shared by threads or
crosses a fork; a lock keeps this process from forking while one is open. The journal is a rollback
journal, cut to length zero at each commit, with synchronous=FULL: a commit is on the disk
before `reserve` returns, and between transactions the one file holds everything, so that it can be
copied and moved. (A write-ahead log would keep the last entries in a second file and needs shared
memory, which network file systems lack.)

A file is made under another name and linked into its place when it is a ledger: no process ever
sees half of one, and whatever is at the path and is none, an empty file too, is refused. The row
of the total has a digest of itself and of the terms, which every transaction compares: what is
charged next is not decided by a damaged number. The format is 2, and 3 for a ledger by person
(`skdpmf.books.ledger_cohorts`), whose digest covers the cohorts too.
"""

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from skdpmf.data.files import sync_folder
from skdpmf.exceptions import LedgerError, require_that

NO_SUM = "the total is not the sum of the entries"
_APPLICATION_ID = 0x736B6470  # "skdp"
_FORMAT = 2
_FORMAT_BY_PERSON = 3
_BUSY_SECONDS = 60.0
_SYNCHRONOUS = "FULL"

_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    # a child that inherited an open transaction might roll its parent's back
    release = {"after_in_parent": _LOCK.release, "after_in_child": _LOCK.release}
    os.register_at_fork(before=_LOCK.acquire, **release)

_TABLES = (
    "CREATE TABLE ledger (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE total (entries INTEGER NOT NULL, main TEXT NOT NULL, second TEXT NOT NULL,"
    " digest TEXT)",
    "CREATE TABLE entry (id INTEGER PRIMARY KEY, time TEXT NOT NULL,"
    " status TEXT NOT NULL CHECK (status IN ('reserved', 'done', 'failed')),"
    " main TEXT NOT NULL, second TEXT NOT NULL, record TEXT NOT NULL)",
    "CREATE TRIGGER kept BEFORE DELETE ON entry"
    " BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END",
    "CREATE TRIGGER fixed BEFORE UPDATE OF id, time, main, second, record ON entry"
    " BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END",
    "CREATE TRIGGER final BEFORE UPDATE OF status ON entry WHEN OLD.status <> 'reserved'"
    " BEGIN SELECT RAISE(ABORT, 'a status is set once'); END",
)
_COHORTS = (
    "CREATE TABLE cohort (entry INTEGER NOT NULL, part INTEGER NOT NULL, digest TEXT NOT NULL,"
    " hashes BLOB NOT NULL, PRIMARY KEY (entry, part))",
    "CREATE TRIGGER cohort_kept BEFORE DELETE ON cohort"
    " BEGIN SELECT RAISE(ABORT, 'cohorts are never deleted'); END",
    "CREATE TRIGGER cohort_fixed BEFORE UPDATE ON cohort"
    " BEGIN SELECT RAISE(ABORT, 'cohorts are never changed'); END",
)


def checked_path(path: Any) -> str:
    """Return the absolute path of what may be a file, with the home folder for "~"."""
    name: Any = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    rule = "a str or path-like that names a file: pass the path of the ledger of this data set, "
    holds = isinstance(name, str) and name and "\0" not in name
    require_that(holds, "path", path, f"{rule}such as 'ratings.ledger'.")
    return os.path.realpath(os.path.expanduser(name))


@contextmanager
def transaction(path: str, identity: str = "", write: bool = False) -> Iterator[sqlite3.Connection]:
    """Run one transaction; committed and on the disk when the block ends, else rolled back.

    It begins with a look at the file: a ledger, of this identity, whose terms and total are as they
    were written. Errors of the file, and of what the block reads in it, are `LedgerError`.
    """
    with _LOCK, _clear_errors(path):
        file = f"{Path(path).as_uri()}?mode=rw"
        opened = sqlite3.connect(file, timeout=_BUSY_SECONDS, isolation_level=None, uri=True)
        with closing(opened) as connection:
            if write:
                connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS}")
                connection.execute("PRAGMA journal_mode=TRUNCATE")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            _check_format(connection, path)
            _check_total(connection, path, identity)
            yield connection
            connection.execute("COMMIT")  # what is not committed is rolled back by closing


def make(path: str, terms: Mapping[str, str]) -> None:
    """Make a ledger that only its owner may read; one that another process made first stays."""
    by_person = "at_most" in terms
    part = f"{path}.{os.getpid()}-{threading.get_ident()}.part"
    with _LOCK, _clear_errors(path):
        _refuse_journal(path)
        with suppress(FileNotFoundError):  # of a process that was killed
            os.unlink(part)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            with closing(sqlite3.connect(part, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS}")
                connection.execute("PRAGMA journal_mode=MEMORY")  # a crash leaves nothing to undo
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
                version = _FORMAT_BY_PERSON if by_person else _FORMAT
                connection.execute(f"PRAGMA user_version={version}")
                for statement in _TABLES + _COHORTS * by_person:
                    connection.execute(statement)
                connection.executemany("INSERT INTO ledger VALUES (?, ?)", terms.items())
                connection.execute("INSERT INTO total VALUES (0, '0', '0', NULL)")
                write_total(connection, 0, 0, 0)
                connection.execute("COMMIT")
            with suppress(FileExistsError):
                os.link(part, path)
        finally:
            os.unlink(part)
        sync_folder(Path(path).parent)


def write_total(connection: sqlite3.Connection, entries: int, main: int, second: int) -> None:
    """Set what is spent, in the transaction at hand."""
    values = (entries, str(main), str(second))  # and not what SQLite makes of them
    query = "UPDATE total SET entries=?, main=?, second=?, digest=?"
    connection.execute(query, (*values, _digest(connection, *values)))


def _digest(connection: sqlite3.Connection, *total: int | str) -> str:
    terms = connection.execute("SELECT name, value FROM ledger ORDER BY name").fetchall()
    facts: list[Any] = [terms, total]
    if _format(connection) == _FORMAT_BY_PERSON:
        query = "SELECT entry, part, digest FROM cohort ORDER BY entry, part"
        facts.append(connection.execute(query).fetchall())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _format(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse_journal(path: str) -> None:
    """Refuse to make a ledger beside another one's journal, which SQLite would play into it."""
    with suppress(FileNotFoundError):
        if os.path.getsize(f"{path}-journal") and not os.path.lexists(path):
            raise LedgerError(
                f"path={path!r} must be free for a new ledger, and the journal of one that was "
                f"moved or deleted is beside it: put that ledger back, or delete {path}-journal "
                "and count what was spent as spent."
            )


def _check_format(connection: sqlite3.Connection, path: str) -> None:
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise tampered(path, "it is empty (delete it only if nothing was ever charged to it)")
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    if found != _APPLICATION_ID:
        raise LedgerError(
            f"path={path!r} must be a ledger, and holds another SQLite database: choose a path of "
            "its own."
        )
    version = _format(connection)
    if version not in (_FORMAT, _FORMAT_BY_PERSON):
        raise LedgerError(
            f"path={path!r} has the ledger format {version}, and this version of skdpmf reads "
            f"{_FORMAT} and {_FORMAT_BY_PERSON}: use the version that wrote it, or a newer one."
        )
    pages, size = (connection.execute(f"PRAGMA page_{x}").fetchone()[0] for x in ("count", "size"))
    if os.path.getsize(path) < pages * size:  # SQLite reads zeros behind the end
        raise tampered(path, "its end is missing")


def _check_total(connection: sqlite3.Connection, path: str, identity: str) -> None:
    found = connection.execute("SELECT value FROM ledger WHERE name='identity'").fetchone()
    if identity and found != (identity,):
        raise tampered(path, "another ledger was put in its place")
    rows = connection.execute("SELECT * FROM total").fetchall()
    if len(rows) != 1 or rows[0][3] != _digest(connection, *rows[0][:3]):
        raise tampered(path, "its terms or its total were changed")
    if (connection.execute("SELECT max(id) FROM entry").fetchone()[0] or 0) != int(rows[0][0]):
        raise tampered(path, NO_SUM)


_REASONS = {
    sqlite3.SQLITE_BUSY: "another process has held it for too long: look for one that hangs",
    sqlite3.SQLITE_READONLY: "it is read-only: make the file and its folder writable",
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_IOERR: "reading or writing fails: is the disk full, or the file system gone?",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: is there such a folder, and may it be written?",
    sqlite3.SQLITE_NOTADB: "it is no ledger: choose a path of its own",
    sqlite3.SQLITE_CORRUPT: "it is damaged: restore it, and count what was spent since as spent",
}
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@contextmanager
def _clear_errors(path: str) -> Iterator[None]:
    """Say what is wrong with the file, and that nothing was released."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        reason = _REASONS.get(code, "SQLite reports an error")
        if isinstance(error, OSError):
            reason = "the file system refuses it: choose a folder that exists and may be written, "
            reason += "on a local disk with room and hard links"
        raise LedgerError(
            f"path={path!r} must be a ledger that can be read and written, but {reason} ({error}). "
            "Nothing is released without an entry."
        ) from error
    except _UNREADABLE as error:
        raise tampered(path, f"what it holds cannot be read ({error!r:.199})") from error


def tampered(path: str, what: str) -> LedgerError:
    """Return the error for a file that is not what was written."""
    return LedgerError(
        f"path={path!r} must be the ledger as it was written, and is not: {what}. "
        "Restore it, and count what was spent since as spent."
    )
