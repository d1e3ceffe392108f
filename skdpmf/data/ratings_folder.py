"""The folder of ratings on disk: its manifest and labels, and how it appears in one step.

Checksums say that nothing was altered, not that it was right. So that no file whatever leads
compiled code outside of its arrays, or a reader outside of the folder, all numbers that sizes and
places are made of are held against ranges and order, and files have the names of a folder's own.
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..exceptions import RatingStoreError
from .files import errors_named, owners_file, sync, sync_folder
from .table_chunks import plain_ids
from .validation import MAX_ITEMS

MANIFEST = "manifest.json"
LABELS = ("user_ids", "item_ids", "titles")
_FORMAT, _VERSION = "skdpmf.ParquetRatings", 2
_MOST_USERS = 2**32  # rows are counted in 32 bits on the way
# All names a folder may consist of: what overwrite=True may delete.
_FILES = re.compile(rf"{MANIFEST}|({'|'.join(LABELS)})\.(i8|json)|rows-\d+\.parquet")


def damaged(file: Path, trouble: str) -> RatingStoreError:
    """Return the error for a file that is not as it was written."""
    return RatingStoreError(
        f"{file}: {trouble}. The ratings are damaged or incomplete: write them anew from their "
        "source, with overwrite=True."
    )


def read_file(path: Path, size: int, sha256: str = "") -> bytes:
    """Return a file's bytes, if they are so many and, where it is given, have this SHA-256."""
    check_size(path, size)
    content = path.read_bytes()
    if sha256 and (len(content) != size or hashlib.sha256(content).hexdigest() != sha256):
        raise damaged(path, "its bytes do not match their checksum")
    return content


def check_size(path: Path, size: int) -> None:
    """Refuse a file that is not there or has another size."""
    if not path.is_file():
        raise damaged(path, f"there is no such file; expected one of {size} bytes")
    found = path.stat().st_size
    if found != size:
        raise damaged(path, f"it has {found} bytes; expected {size}")


# The manifest


def serialised(manifest: dict[str, Any]) -> bytes:
    """Return the manifest as the bytes of its file."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def signed(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of these facts, with its own SHA-256 as the fingerprint."""
    rest = {"format": _FORMAT, "version": _VERSION, **facts}
    rest.pop("fingerprint", None)
    return {**rest, "fingerprint": hashlib.sha256(serialised(rest)).hexdigest()}


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the folder, exactly as it was written."""
    if not path.exists():
        raise FileNotFoundError(
            f"path={str(path)!r} must be a folder of ratings, and does not exist: make one by "
            "ParquetRatings.write."
        )
    file = path / MANIFEST
    if not file.is_file():
        raise damaged(file, "there is no such file; ratings on disk are a folder that has one")
    raw = file.read_bytes()
    try:
        manifest = json.loads(raw)
        if manifest["format"] != _FORMAT:
            raise ValueError(f"format {manifest['format']!r}")
        version = manifest["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(file, f"it is no manifest of {_FORMAT} ({error!r})") from None
    # To the byte, so that no altered one passes because it happens to mean the same.
    try:
        same = raw == serialised(signed(manifest))
    except (ValueError, RecursionError):  # what no JSON is, or too deep
        same = False
    if not same:
        raise damaged(file, "its content does not match its checksum")
    if type(version) is not int or version != _VERSION:
        raise RatingStoreError(
            f"{file}: the folder has version {version!r:.30}; this skdpmf reads version "
            f"{_VERSION}. Update skdpmf, or write the ratings anew with overwrite=True."
        )
    return manifest


def is_count(value: Any) -> bool:
    """Return whether a manifest's value is a whole number that sizes may be made of."""
    return type(value) is int and 0 <= value < 1 << 53


def checked_facts(path: Path, manifest: dict[str, Any]) -> tuple[tuple[int, int], tuple[str, ...]]:
    """Return the shape of a manifest of anybody, and what of users and items is undeclared.

    Raise RatingStoreError if these or the labels cannot be so.
    """
    shape: Any = manifest.get("shape")
    holds = isinstance(shape, list | tuple) and len(shape) == 2 and all(map(is_count, shape))
    if not holds or shape[0] > _MOST_USERS or shape[1] > MAX_ITEMS:
        raise damaged(path / MANIFEST, f"its shape is {shape!r:.99}")
    names = manifest.get("undeclared", [])
    if not isinstance(names, list | tuple) or not all(name in ("users", "items") for name in names):
        raise damaged(path / MANIFEST, f"undeclared={names!r:.99} is neither users nor items")
    for name in LABELS:
        about = manifest.get(name)
        if about is not None:
            fits = isinstance(about, list | tuple) and len(about) == 2 and is_count(about[0])
            if not fits or not (isinstance(about[1], str) and about[1]):
                raise damaged(path / MANIFEST, f"it describes {name} as {about!r:.99}")
            check_size(path / f"{name}.json", about[0])
    return (shape[0], shape[1]), tuple(names)


# Labels


def read_labels(path: Path, name: str, about: Any, n_labels: int) -> Any:
    """Return "user_ids", "item_ids" or "titles", read-only; None where there are none."""
    if about is None:
        return None
    file = path / f"{name}.json"
    content = read_file(file, *about)
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise damaged(file, f"it is not the JSON that it must be ({error})") from None
    types = set(map(type, labels)) if isinstance(labels, list) else {None}
    if not types <= {int, str} or len(labels) != n_labels:
        raise damaged(file, f"it is no list of {n_labels} integers and strings")
    try:
        ids = np.array(labels, np.int64 if types == {int} else object)
    except OverflowError:
        ids = np.array(labels, object)
    ids.flags.writeable = False
    return ids


def write_labels(folder: Path, name: str, labels: Any) -> tuple[int, str] | None:
    """Write labels, and return what the manifest says of them; None: there are none."""
    if labels is None:
        return None
    content = json.dumps(plain_ids(labels, name)).encode()
    write_file(folder / f"{name}.json", content)
    return len(content), hashlib.sha256(content).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, and wait until it is on disk."""
    with owners_file(path) as file:
        file.write(content)
        sync(file)


# The folder


def _check_target(path: Path, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path={str(path)!r}: there is no folder {path.parent}. Make it.")
    if not path.exists():
        return
    if not overwrite:
        raise FileExistsError(
            f"path={str(path)!r} exists already. Choose another path, or pass overwrite=True to "
            "replace the ratings that are there."
        )
    what = "it is a file"
    if path.is_dir():
        foreign = sorted(p.name for p in path.iterdir() if not _FILES.fullmatch(p.name))
        what = f"it holds {foreign[:5]}" if foreign else ""
    if what:
        raise FileExistsError(
            f"path={str(path)!r}: overwrite=True replaces folders of ratings only, and this is "
            f"none ({what}). Choose another path."
        )


@contextmanager
def new_folder(path: Any, overwrite: bool) -> Iterator[Path]:
    """Give a folder beside `path` to work in, whose subfolder "new" at the end moves to `path`.

    On any error the folder goes, and what was at `path` stays. If the machine stops between the
    two renames of a replacement, the old ratings are in the folder.
    """
    path = Path(path).expanduser().absolute()  # a later change of folder does not matter
    _check_target(path, overwrite)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    new, old = work / "new", work / "old"
    try:
        new.mkdir(0o700)
        with errors_named(path):
            yield work
            sync_folder(new)
        _check_target(path, overwrite)
        if path.exists():
            with errors_named(path, replaces=True):
                path.rename(old)
        new.rename(path)
        sync_folder(path.parent)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(work)
