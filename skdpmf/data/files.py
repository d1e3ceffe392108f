"""Files that are written: whole or not at all, with modes that keep what others may not read."""

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

POSIX = os.name == "posix"

_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG")} - {None}


def owners_file(path: Path) -> IO[bytes]:
    """Make a file that nobody but its owner may read."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


@contextmanager
def replaced_file(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Give a file to write that takes the place of `path` when the block ends; on errors it goes.

    A crash at any moment leaves what was there or the whole new file. It gets the mode of the file
    that is there; a new one gets `mode` less the umask. What is there and no regular file is
    refused by a FileExistsError.
    """
    found, part = _mode_at(path), _part(path)
    try:
        with errors_named(path):
            part.unlink(missing_ok=True)  # of a process that was killed
            with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                if found:
                    part.chmod(stat.S_IMODE(found))
                yield file
                sync(file)
            with errors_named(path, replaces=True):
                part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Refuse a path at which `replaced_file` could put no file, before there is something to put.

    It makes a file beside it and takes that away.
    """
    _mode_at(path)
    part = _part(path)
    try:
        part.unlink(missing_ok=True)
        owners_file(part).close()
        part.unlink()
    except OSError as error:
        remedy = f"no file can be written here ({error.strerror}): choose another path"
        raise OSError(error.errno, remedy, str(path)) from error


def _mode_at(path: Path) -> int:
    """Return the mode of the regular file that is there, or 0 for none."""
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        if path.parent.is_dir():
            return 0
        words = f"{path}: there is no folder {path.parent}; make it first."
        raise FileNotFoundError(words) from None
    if not stat.S_ISREG(found):
        what = "a symbolic link" if stat.S_ISLNK(found) else "no regular file"
        raise FileExistsError(
            f"path={str(path)!r} is {what}, and only regular files are replaced: pass the path of "
            "one, or of none yet."
        )
    return found


def _part(path: Path) -> Path:
    # a name of its own: two writers at one path must not mix their bytes
    return path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")


@contextmanager
def errors_named(path: Path, replaces: bool = False) -> Iterator[None]:
    """Let the error of a full disk, which names no file, name `path`.

    Windows replaces nothing that is open: the error of a block that `replaces` the path says so.
    """
    try:
        yield
    except OSError as error:
        remedy = "make room, or choose a path on another disk"
        if replaces and not POSIX and isinstance(error, PermissionError):
            remedy = "Windows replaces nothing that is open; close whatever reads it, in this "
            remedy += "process and in others, or choose another path"
        elif error.errno not in _FULL or error.filename is not None:
            raise
        raise OSError(error.errno, f"{error.strerror}: {remedy}", str(path)) from error


def sync(file: IO[bytes]) -> None:
    """Wait until the file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make a rename in this folder durable, where folders can be opened: not on Windows."""
    if not POSIX:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
