"""A file of records that grows at its end, and distinguishes a crash from damage.

    magic "SKDPMFCK" | uint16 version | hash of an identity | digest of all this
    uint64 length | check of the length | uint32 | JSON | array in npy form | digest      (a record)

Little-endian; digests are BLAKE2b of the record and of the digest before it. A crash while the file
grows leaves one that ends within its last record, which is dropped when it is opened again. All
else that does not agree is damage: without the check of a length, one that was changed could pass
for a crash and take all later records with it. What was read is synced before anybody gets it;
else a power failure could still take back what a killed process wrote and did not sync.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import CheckpointError

try:
    import fcntl
except ImportError:  # not POSIX
    fcntl = None  # type: ignore[assignment]

__all__ = ["DELETE", "Record", "RecordFile"]

DELETE = "Delete the file to fit anew, which a ledger is charged for again"
_MAGIC, _VERSION = b"SKDPMFCK", 1
_DIGEST = 32
_START = _MAGIC + struct.pack("<H", _VERSION)
_HEADER = len(_START) + 2 * _DIGEST
_FRAME = struct.Struct("<Q8s")
_TEXT = struct.Struct("<I")
_AT_ONCE = 1 << 20  # bytes read for a digest


class Record(NamedTuple):
    """What a record says, and where in the file its array is."""

    head: list[Any]
    start: int
    stop: int


class RecordFile:
    """An open file, locked by this object and closed in forked processes; not for several threads.

    Parameters
    ----------
    path : str
        The file; made if it does not exist.
    identity : str
        Purpose of the file; only its hash is kept.
    """

    def __init__(self, path: str, identity: str) -> None:
        self.path, self.records, self.usable = path, list[Record](), True
        self._header = _START + _hash(identity.encode())
        self._header += _hash(self._header)
        self._end, self._digests = _HEADER, [self._header[-_DIGEST:]]
        with self._clear_errors():
            self._file = _open_locked(path)
            _OPEN.add(self)
            try:
                self._read()
            except BaseException:
                self.close()
                raise

    def digests(self) -> list[str]:
        """Return the digests of the header and of the records, each also of what was before it."""
        return [digest.hex() for digest in self._digests]

    @property
    def digest(self) -> str:
        """The last digest."""
        return self._digests[-1].hex()

    def require_usable(self) -> None:
        """Raise unless the file is open, in its place, and as this object left it."""
        if self._file < 0 or not self.usable:
            raise CheckpointError(
                f"path={self.path!r} must be open to be used, and its block has ended, a release "
                "failed, or this is a forked process: fit again, in a new fit_checkpoint block."
            )
        if not _in_place(self._file, self.path):
            raise CheckpointError(
                f"path={self.path!r} must stay in its place while the fit runs, and was moved or "
                "deleted: stop, put it back and fit again."
            )

    def append(self, head: list[Any], array: NDArray[Any] | None = None) -> None:
        """Write a record; it is on the disk when this returns, and not in the file if it raises."""
        text = json.dumps(head).encode()
        start, data = io.BytesIO(), memoryview(b"")
        start.write(_TEXT.pack(len(text)) + text)
        n_head = start.tell()
        if array is not None:
            form = np.lib.format
            form.write_array_header_1_0(start, form.header_data_from_array_1_0(array))
            data = array.reshape(-1).view(np.uint8).data
        length = start.tell() + len(data)
        frame = _FRAME.pack(length, self._check(length))
        digest = hashlib.blake2b(self._digests[-1] + frame + start.getvalue(), digest_size=_DIGEST)
        digest.update(data)
        at, self.usable = self._end, False
        with self._clear_errors():
            try:
                for part in (frame + start.getvalue(), data, digest.digest()):
                    at = self._put(part, at)
                os.fsync(self._file)
            except BaseException:  # half a record, or one that the disk may not have
                with suppress(OSError):
                    os.ftruncate(self._file, self._end)
                raise
        first = self._end + _FRAME.size + n_head
        self._take(Record(head, first, at - _DIGEST), digest.digest(), at)
        self.usable = True

    def array(self, record: Record) -> NDArray[Any]:
        """Read the array of a record."""
        data = io.BytesIO(self._get(record.start, record.stop))
        return np.asarray(np.lib.format.read_array(data, allow_pickle=False))

    def remove(self) -> None:
        """Delete the file."""
        with self._clear_errors():
            os.unlink(self.path)

    def close(self) -> None:
        """Unlock the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> None:
        found = self._get(0, min(os.fstat(self._file).st_size, _HEADER))
        if not found.startswith(_START[: len(found)]):
            raise self._foreign(found)
        if len(found) < _HEADER:  # new, or a crash before there was any record
            os.ftruncate(self._file, 0)
            self._put(self._header, 0)
        elif found[-_DIGEST:] != _hash(found[:-_DIGEST]):
            raise self._damaged("its header")
        elif found != self._header:
            raise CheckpointError(
                f"identity of path={self.path!r} must be that of the fit, and the file is of "
                "another one (of other parameters, ratings or versions): pass another path, or fit "
                f"the same again. {DELETE}."
            )
        size = os.fstat(self._file).st_size
        while self._read_record(size):
            pass
        os.ftruncate(self._file, self._end)
        os.fsync(self._file)
        _sync_folder(self.path)

    def _read_record(self, size: int) -> bool:
        """Take the next record in, if it is there in full."""
        start = self._end + _FRAME.size
        if start > size:
            return False
        frame = self._get(self._end, start)
        length, check = _FRAME.unpack(frame)
        if check != self._check(length):
            raise self._damaged(f"the record at byte {self._end}")
        stop = start + length
        if stop + _DIGEST > size:
            return False
        digest = hashlib.blake2b(self._digests[-1] + frame, digest_size=_DIGEST)
        for at in range(start, stop, _AT_ONCE):
            digest.update(self._get(at, min(at + _AT_ONCE, stop)))
        if self._get(stop, stop + _DIGEST) != digest.digest():
            raise self._damaged(f"the record at byte {self._end}")
        text = start + _TEXT.size
        data = text + _TEXT.unpack(self._get(start, text))[0]
        head = json.loads(self._get(text, data))
        self._take(Record(head, data, stop), digest.digest(), stop + _DIGEST)
        return True

    def _take(self, record: Record, digest: bytes, end: int) -> None:
        self.records.append(record)
        self._digests.append(digest)
        self._end = end

    def _check(self, length: int) -> bytes:
        return _hash(self._digests[-1] + length.to_bytes(8, "little"))[:8]

    def _put(self, data: Any, at: int) -> int:
        view = memoryview(data)
        while view:
            n = os.pwrite(self._file, view, at)
            view, at = view[n:], at + n
        return at

    def _get(self, start: int, stop: int) -> bytes:
        parts = []
        while start < stop:
            parts.append(os.pread(self._file, stop - start, start))
            start += len(parts[-1])
            if not parts[-1]:
                raise self._damaged("its end")
        return b"".join(parts)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"path={self.path!r} must be a file that can be locked, read and written, on a "
                f"local disk, and is not ({error}). Nothing is released that is not on it: make "
                "room, or choose another path."
            ) from error

    def _foreign(self, found: bytes) -> CheckpointError:
        if not found.startswith(_MAGIC):
            return CheckpointError(
                f"path={self.path!r} must be a checkpoint, and is another file: choose a path of "
                "its own."
            )
        version = int.from_bytes(found[len(_MAGIC) : len(_START)], "little")
        return CheckpointError(
            f"path={self.path!r} has the checkpoint format {version}, and this version of skdpmf "
            f"reads {_VERSION}: resume with the version that wrote it. {DELETE}."
        )

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"path={self.path!r} must be as it was written, and {what} is not: its values may "
            f"have been used, and must not be drawn again. {DELETE}."
        )


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _open_locked(path: str) -> int:
    """Open or make the file, and lock it; the lock ends with the process, however that ends."""
    if fcntl is None:
        raise CheckpointError(
            f"path={path!r} must be on a system with POSIX file locks, and this is {os.name!r}: "
            "fit without a checkpoint."
        )
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _in_place(file, path):
                return file
        except BlockingIOError:
            os.close(file)
            raise CheckpointError(
                f"path={path!r} must be the checkpoint of one fit at a time, and one that is "
                "running has it: wait for that one, or end it."
            ) from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was removed, its fit being complete, after it was opened


def _in_place(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _sync_folder(path: str) -> None:
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_OPEN: weakref.WeakSet[RecordFile] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close what a forked process got: it would keep the locks when its parent has died."""
    for file in list(_OPEN):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
