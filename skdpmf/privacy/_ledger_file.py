"""The SQLite file of a ledger: transactions that are on the disk when they return, or an error.

Every transaction opens a connection of its own and closes it, so that none is shared by threads or
crosses a fork; a lock keeps this process from forking while one is open. The journal is a rollback
journal, cut to length zero at each commit, with synchronous=FULL: a commit is on the disk
before `reserve` returns, and between transactions the one file holds everything, so that it can be
copied and moved. (A write-ahead log would keep the last entries in a second file and needs shared
memory, which network file systems lack.)
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skdpmf.exceptions import LedgerError

__all__ = ["create_tables", "is_new", "transaction"]

_APPLICATION_ID = 0x736B6470  # "skdp"
_FORMAT = 1
_BUSY_SECONDS = 60.0
_SYNCHRONOUS = "FULL"

_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    # a child that inherited an open transaction might roll its parent's back
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )

_TABLES = (
    "CREATE TABLE ledger (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE total (entries INTEGER NOT NULL, main TEXT NOT NULL, second TEXT NOT NULL)",
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


@contextmanager
def transaction(
    path: str, *, write: bool = False, create: bool = False
) -> Iterator[sqlite3.Connection]:
    """Run one transaction; committed and on the disk when the block ends, else rolled back.

    Errors of the file are `LedgerError`.
    """
    mode = "rwc" if create else "rw"
    with _LOCK, _clear_errors(path):
        connection = sqlite3.connect(
            f"{Path(path).as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
        )
        try:
            if write:
                connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS}")
                connection.execute("PRAGMA journal_mode=TRUNCATE")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            _check_format(connection, path)
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()  # rolls back what is not committed


def is_new(connection: sqlite3.Connection) -> bool:
    """Return whether the file has no tables yet."""
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def create_tables(connection: sqlite3.Connection) -> None:
    """Make an empty file a ledger, in the transaction at hand."""
    connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={_FORMAT}")
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO total VALUES (0, '0', '0')")


def _check_format(connection: sqlite3.Connection, path: str) -> None:
    if is_new(connection):
        return
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    if found != _APPLICATION_ID:
        raise LedgerError(
            f"path={path!r} must be a ledger, and holds another SQLite database: choose a path of "
            "its own."
        )
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != _FORMAT:
        raise LedgerError(
            f"path={path!r} has the ledger format {version}, and this version of skdpmf reads "
            f"{_FORMAT}: use the version that wrote it, or a newer one."
        )


_REASONS = {
    sqlite3.SQLITE_BUSY: "another process has held it for too long: look for one that hangs",
    sqlite3.SQLITE_READONLY: "it is read-only: make the file and its folder writable",
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_IOERR: "reading or writing fails: is the disk full, or the file system gone?",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: is there such a folder, and may it be written?",
    sqlite3.SQLITE_NOTADB: "it is no ledger: choose a path of its own",
    sqlite3.SQLITE_CORRUPT: "it is damaged: restore it, and count what was spent since as spent",
}


@contextmanager
def _clear_errors(path: str) -> Iterator[None]:
    """Say what is wrong with the file, and that nothing was released."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        reason = _REASONS.get(code, "SQLite reports an error")
        raise LedgerError(
            f"path={path!r} must be a ledger that can be read and written, but {reason} ({error}). "
            "Nothing is released without an entry."
        ) from error
