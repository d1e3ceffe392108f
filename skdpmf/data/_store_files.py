"""The folder of a rating store: its files, what they may hold, and how it appears in one step.

Checksums say that nothing was altered, not that it was right. So that no file whatever leads
compiled code outside of its arrays, or a reader outside of the folder, all numbers that sizes and
places are made of are held against ranges and order, and files have the names of a store's own.
"""

import hashlib
import io
import json
import operator
import os
import re
import shutil
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..exceptions import RatingStoreError
from ._store_chunks import MAX_ITEMS, is_integer, plain_ids, stacked
from .files import full_disk_named, owners_file, sync_folder, use_named

MANIFEST = "manifest.json"
FIELDS = {"items": "<i4", "indptr": "<i8", "users": "<u2", "ratings": "<f4"}
LABELS = ("user_ids", "item_ids", "titles")  # the last one if there are some
MOST_ROWS = 1 << 16  # of a block
_MOST_USERS = 2**32  # rows are counted in 32 bits on the way
_VERSION = 1
# All names a store may consist of: what overwrite=True may delete.
_FILES = re.compile(
    rf"{MANIFEST}|({'|'.join(FIELDS)})\.bin|({'|'.join(LABELS)})\.(i8|json)|rows-\d+\.parquet"
)


def damaged(file: Path, trouble: str) -> RatingStoreError:
    """Return the error for a file that is not as it was written."""
    return RatingStoreError(
        f"{file}: {trouble}. The store is damaged or incomplete: write it anew from its source, "
        "with overwrite=True."
    )


def is_count(value: Any) -> bool:
    """Return whether a manifest's value is a whole number that sizes may be made of."""
    return type(value) is int and 0 <= value < 1 << 53


def checked_facts(path: Path, manifest: dict[str, Any], *names: str) -> list[Any]:
    """Return the values of these names and the shape, first, of a manifest of anybody.

    Raise RatingStoreError if one is missing, or the shape is none.
    """
    shape: Any = manifest.get("shape")
    holds = isinstance(shape, list | tuple) and len(shape) == 2 and all(map(is_count, shape))
    if not holds or shape[0] > _MOST_USERS or shape[1] > MAX_ITEMS:
        raise damaged(path / MANIFEST, f"its shape is {shape!r:.99}")
    missing = [name for name in names if name not in manifest]
    if missing:
        raise damaged(path / MANIFEST, f"it does not give {', '.join(missing)}")
    return [(shape[0], shape[1]), *(manifest[name] for name in names)]


def is_label(name: str, label: Any, n_ids: int) -> bool:
    """Return whether a manifest may describe labels so: the file is one of the store's own."""
    if not isinstance(label, dict) or label.keys() != {"file", "size", "crc32"}:
        return False
    if not is_count(label["size"]) or not is_count(label["crc32"]):
        return False
    return label["file"] == f"{name}.json" or (
        label["file"] == f"{name}.i8" and label["size"] == 8 * n_ids
    )


def is_part(row: Any) -> bool:
    """Return whether a manifest may have such a row: a file of the folder itself, and counts."""
    if not isinstance(row, list | tuple) or len(row) != 6:
        return False
    name, *counts, digest = row
    plain = isinstance(name, str) and name.isprintable() and Path(name).name == name
    return plain and all(map(is_count, counts)) and isinstance(digest, str)


def checked_table(
    path: Path, shape: tuple[int, int], nnz: Any, block_rows: Any, blocks: Any
) -> Any:
    """Return the table of the blocks in int64 if it can be one of so many ratings and rows."""
    width = 2 + len(FIELDS)
    try:
        table = np.array(blocks) if blocks else np.empty((0, width), np.int64)
    except ValueError:  # ragged
        table = np.empty(0)
    n_blocks = -(-shape[0] // block_rows) if is_integer(block_rows, 1, MOST_ROWS) else -1
    holds = table.dtype == np.int64 and table.shape == (n_blocks, width) and is_count(nnz)
    if holds:
        n_runs, n_ratings = table[:, 0], table[:, 1]
        # both sums as Python's integers: the sizes of files are made of them
        holds = (
            bool(((n_runs >= 0) & (n_runs <= n_ratings) & (n_runs <= shape[1])).all())
            and bool(((n_runs > 0) | (n_ratings == 0)).all())
            and sum(n_ratings.tolist()) == nnz
        )
    if not holds:
        trouble = (
            f"its nnz={nnz!r:.30}, block_rows={block_rows!r:.30} and blocks are not those of "
            f"{shape[0]} rows and {shape[1]} columns"
        )
        raise damaged(path / MANIFEST, trouble)
    return table


def wrong_field(fields: list[Any], n_users: int, n_items: int) -> str:
    """Return the field of a block with numbers out of range or order, or ""."""
    items, indptr, users, ratings = fields
    if items.size and (items[0] < 0 or items[-1] >= n_items or (items[1:] <= items[:-1]).any()):
        return "items"
    inside = indptr[0] == 0 and indptr[-1] == users.size
    if not inside or (indptr[1:] <= indptr[:-1]).any():
        return "indptr"
    ascends = np.ones(users.size, bool)
    ascends[1:] = users[1:] > users[:-1]
    ascends[indptr[:-1]] = True
    if users.size and (users.max() >= n_users or not ascends.all()):
        return "users"
    return "" if np.isfinite(ratings).all() else "ratings"


def absolute(path: Any) -> Path:
    """Return the path of a store such that a later change of folder does not matter."""
    return Path(path).expanduser().absolute()


def check_size(path: Path, size: int) -> None:
    """Refuse a file that is not there or has another size."""
    if not path.is_file():
        raise damaged(path, f"there is no such file; expected one of {size} bytes")
    found = path.stat().st_size
    if found != size:
        raise damaged(path, f"it has {found} bytes; expected {size}")


class OpenFile:
    """A file of known size, open for as long as this object lives; any thread may read it.

    It is read, not mapped: mapped pages would stay resident, and a file that is cut short while
    it is mapped ends the process.
    """

    def __init__(self, path: Path, size: int) -> None:
        check_size(path, size)
        self.path = path
        self._file = io.FileIO(path)
        self._turn = threading.Lock()
        weakref.finalize(self, self._file.close)

    def read(self, dtype: Any, begin: int, end: int, spare: int = 0) -> Any:
        """Return the elements [begin, end) in a new array, without the interpreter's lock.

        The array is longer by `spare` zeros.
        """
        array = np.empty(end - begin + spare, dtype)
        array[end - begin :] = 0
        rest, at = array[: end - begin].view(np.uint8).data, begin * array.itemsize
        while rest:
            n_read = self._read_into(rest, at)
            if not n_read:
                n_bytes = end * array.itemsize
                raise damaged(self.path, f"it ends at byte {at}; expected {n_bytes} or more")
            rest, at = rest[n_read:], at + n_read
        return array

    def _read_into(self, memory: memoryview, at: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [memory], at)
        with self._turn:  # Windows: all threads share the file's one position
            self._file.seek(at)
            return self._file.readinto(memory)


def serialised(manifest: dict[str, Any]) -> bytes:
    """Return the manifest as the bytes of its file."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def signed(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest with its own SHA-256 as the fingerprint."""
    rest = {key: value for key, value in manifest.items() if key != "fingerprint"}
    return {**rest, "fingerprint": hashlib.sha256(serialised(rest)).hexdigest()}


def headed(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a store: what kind of store it is, and `facts`."""
    return signed({"format": f"skdpmf.{kind}", "version": _VERSION, **facts})


def read_manifest(path: Path, kind: str) -> dict[str, Any]:
    """Return the manifest of the store at `path`, exactly as it was written."""
    if not path.exists():
        raise FileNotFoundError(
            f"path={str(path)!r} does not exist; expected the folder of a rating store. Make one "
            "by RatingStore.from_matrix, from_chunks or from_parquet, or by ParquetRatings.write."
        )
    file = path / MANIFEST
    if not file.is_file():
        raise damaged(file, "there is no such file; a rating store is a folder that has one")
    raw = file.read_bytes()
    try:
        manifest = json.loads(raw)
        if manifest["format"] != f"skdpmf.{kind}":
            raise ValueError(f"format {manifest['format']!r}")
        version = operator.index(manifest["version"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(file, f"it is no manifest of a skdpmf.{kind} ({error!r})") from None
    if version > _VERSION:
        raise RatingStoreError(
            f"{file}: the store has version {version}; this skdpmf reads versions up to "
            f"{_VERSION}. Update skdpmf, or write the store anew with overwrite=True."
        )
    # To the byte, so that no altered one passes because it happens to mean the same.
    try:
        same = raw == serialised(signed(manifest))
    except (ValueError, RecursionError):  # what no JSON is, or too deep
        same = False
    if version != _VERSION or not same:
        raise damaged(file, "its content does not match its checksum")
    return manifest


def undeclared(path: Path, manifest: dict[str, Any]) -> tuple[str, ...]:
    """Return what of "users" and "items" the store at `path` has read off the ratings."""
    names = manifest.get("undeclared", [])
    if not isinstance(names, list) or not all(name in ("users", "items") for name in names):
        raise damaged(path / MANIFEST, f"undeclared={names!r:.99} is neither users nor items")
    return tuple(names)


def _check_target(path: Path, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path={str(path)!r}: there is no folder {path.parent}; make it.")
    if not path.exists():
        return
    if not overwrite:
        raise FileExistsError(
            f"path={str(path)!r} exists already. Choose another path, or pass overwrite=True to "
            "replace the store that is there."
        )
    foreign = not path.is_dir() or sorted(
        p.name for p in path.iterdir() if not _FILES.fullmatch(p.name)
    )
    if foreign:
        what = "it is a file" if foreign is True else f"it holds {foreign[:5]}"
        raise FileExistsError(
            f"path={str(path)!r}: overwrite=True replaces rating stores only, and this is none "
            f"({what}). Choose another path."
        )


@contextmanager
def new_store(path: Any, overwrite: bool) -> Iterator[Path]:
    """Give a folder beside `path` to work in, whose subfolder "store" at the end moves to `path`.

    On any error the folder goes, and what was at `path` stays. If the machine stops between the
    two renames of a replacement, the old store is in the folder.
    """
    path = absolute(path)
    _check_target(path, overwrite)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    new, old = work / "store", work / "old"
    try:
        new.mkdir(0o700)
        with full_disk_named(path):
            yield work
            sync_folder(new)
        _check_target(path, overwrite)
        if path.exists():
            with use_named(path):
                path.rename(old)
        new.rename(path)
        sync_folder(path.parent)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(work)


def sync(file: IO[bytes]) -> None:
    """Wait until the file is on disk."""
    file.flush()
    os.fsync(file.fileno())


class StoredRatings:
    """Ratings in a folder, in parts with all ratings of consecutive users.

    A subclass sets the attributes, reads a part and calls it by its name.
    """

    path: Path
    shape: tuple[int, int]
    nnz: int
    _labels: "Labels"
    _part = "part"

    @property
    def user_ids(self) -> Any:
        """Labels of the rows: ndarray of int64, or of str and int objects; None without labels."""
        return self._labels.read("user_ids")

    @property
    def item_ids(self) -> Any:
        """Labels of the columns: as `user_ids`; None for a matrix, or a table with `n_items`."""
        return self._labels.read("item_ids")

    @property
    def titles(self) -> list[str] | None:
        """Titles of the columns; None where there are none."""
        titles = self._labels.read("titles")
        return None if titles is None else [str(title) for title in titles]

    def _part_bounds(self) -> tuple[Any, Any]:
        """Return the first row of each part and the number of ratings before it; then the ends."""
        raise NotImplementedError

    def _matrix(self, number: int) -> Any:
        """Return the rows of a part as canonical CSR."""
        raise NotImplementedError

    def _range(self, first: int, stop: int | None) -> tuple[int, int]:
        """Return a range of parts as integers; None stands for the last one's end."""
        n_parts = len(self._part_bounds()[0]) - 1
        first, stop = operator.index(first), n_parts if stop is None else operator.index(stop)
        if not 0 <= first <= stop <= n_parts:
            raise IndexError(
                f"first={first}, stop={stop} must be a range of {self._part}s from 0 to {n_parts}."
            )
        return first, stop

    def _stacked(self, first: int, stop: int) -> Any:
        """Return the rows of a range of parts in float64."""
        n_rows, n_ratings = (int(ends[stop] - ends[first]) for ends in self._part_bounds())
        matrices = (self._matrix(number) for number in range(first, stop))
        return stacked(matrices, (n_rows, self.shape[1]), n_ratings)

    def __repr__(self) -> str:
        n_users, n_items = self.shape
        return (
            f"<{type(self).__name__}: {self.nnz} ratings of {n_users} users for {n_items} items in "
            f"{len(self._part_bounds()[0]) - 1} {self._part}s at {str(self.path)!r}>"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.path,)


class Labels:
    """The labels of rows and columns that a store may have, read when they are asked for."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        shape = checked_facts(folder, manifest, *LABELS[:2])[0]
        self._about: dict[str, Any] = {name: manifest.get(name) for name in LABELS}
        self._lengths = dict(zip(LABELS, (*shape, shape[1]), strict=True))
        self._ids: dict[str, Any] = {}
        for name, label in self._about.items():
            if label is not None and not is_label(name, label, self._lengths[name]):
                raise damaged(folder / MANIFEST, f"it describes {name} as {label!r:.99}")
        self._files = {
            name: OpenFile(folder / label["file"], label["size"])
            for name, label in self._about.items()
            if label is not None
        }

    def read(self, name: str) -> Any:
        """Return "user_ids", "item_ids" or "titles", read-only; None where there are none."""
        if name not in self._files:
            return None
        if name not in self._ids:
            file, label = self._files[name], self._about[name]
            content = file.read("u1", 0, label["size"])
            if zlib.crc32(content.data) != label["crc32"]:
                raise damaged(file.path, "its bytes do not match their checksum")
            if file.path.suffix == ".i8":
                ids = content.view("<i8").astype(np.int64)
            else:
                ids = np.array(self._parsed(file.path, content), object)
            ids.flags.writeable = False
            self._ids[name] = ids
        return self._ids[name]

    def _parsed(self, file: Path, content: Any) -> list[int | str]:
        try:
            ids = json.loads(content.tobytes())
        except (ValueError, RecursionError) as error:
            raise damaged(file, f"it is not the JSON that it must be ({error})") from None
        n_ids = self._lengths[file.stem]
        is_list = isinstance(ids, list) and all(type(label) in (int, str) for label in ids)
        if not is_list or len(ids) != n_ids:
            raise damaged(file, f"it is no list of {n_ids} integers and strings")
        return ids

    def verify(self) -> None:
        """Read all labels again and compare them with their checksums."""
        self._ids.clear()
        for name in LABELS:
            self.read(name)


class FolderWriter:
    """Writes the labels and the manifest of a store into the subfolder "store" of `work`.

    A subclass writes the ratings, names the kind of store and returns the facts about it.
    """

    kind: str

    def __init__(self, work: Path, shape: tuple[int, int]) -> None:
        if shape[1] > MAX_ITEMS:
            raise ValueError(f"X has {shape[1]} items; a store holds at most {MAX_ITEMS}.")
        self.folder = work / "store"
        self.shape = (int(shape[0]), int(shape[1]))

    def finish(
        self, user_ids: Any, item_ids: Any, undeclared: tuple[str, ...] = (), titles: Any = None
    ) -> None:
        """Write labels (None: none) and, when all else is on disk, the manifest."""
        facts = {
            **self.facts(),
            **({"undeclared": undeclared} if undeclared else {}),
            **({} if titles is None else {"titles": self._write_labels("titles", titles)}),
            "shape": self.shape,
            "user_ids": self._write_labels("user_ids", user_ids),
            "item_ids": self._write_labels("item_ids", item_ids),
        }
        self._write(MANIFEST, serialised(headed(self.kind, facts)))

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says of the ratings, when they are on disk."""
        raise NotImplementedError

    def _write_labels(self, name: str, labels: Any) -> dict[str, Any] | None:
        if labels is None:
            return None
        plain = plain_ids(labels, name)
        try:
            if any(isinstance(label, str) for label in plain):
                raise OverflowError
            file, content = f"{name}.i8", np.array(plain, "<i8").tobytes()
        except OverflowError:  # strings, or integers beyond 64 bits
            file, content = f"{name}.json", json.dumps(plain).encode()
        self._write(file, content)
        return {"file": file, "size": len(content), "crc32": zlib.crc32(content)}

    def _write(self, name: str, content: bytes) -> None:
        with owners_file(self.folder / name) as file:
            file.write(content)
            sync(file)


class Writer(FolderWriter):
    """Writes the files of a `RatingStore`, block by block."""

    kind = "RatingStore"

    def __init__(self, work: Path, shape: tuple[int, int], block_rows: int) -> None:
        super().__init__(work, shape)
        self.block_rows = block_rows
        self.table: list[list[int]] = []
        self.nnz, self.mean, self.squares = 0, 0.0, 0.0

    def __enter__(self) -> "Writer":
        self.stack = ExitStack()
        self.files = {
            name: self.stack.enter_context(owners_file(self.folder / f"{name}.bin"))
            for name in FIELDS
        }
        return self

    def __exit__(self, *exception: Any) -> None:
        self.stack.close()

    def add(self, R: Any) -> None:
        """Append a block: canonical CSR ratings in float32."""
        by_item = R.tocsc()  # keeps the users of an item in ascending order
        counts = np.diff(by_item.indptr)
        items = np.flatnonzero(counts)
        fields = {
            "items": items,
            "indptr": np.append(0, np.cumsum(counts[items], dtype=np.int64)),
            "users": by_item.indices,
            "ratings": by_item.data,
        }
        checksums = []
        for name, dtype in FIELDS.items():
            array = np.ascontiguousarray(fields[name], dtype=dtype)
            self.files[name].write(array.view(np.uint8).data)
            checksums.append(zlib.crc32(array.data))
        self.table.append([items.size, R.nnz, *checksums])
        self._count(by_item.data)

    def _count(self, ratings: Any) -> None:
        """Update mean and sum of squared deviations (Chan, Golub & LeVeque 1979)."""
        if not ratings.size:
            return
        mean = float(ratings.mean(dtype=np.float64))
        squares = float((np.subtract(ratings, mean, dtype=np.float64) ** 2).sum())
        total = self.nnz + ratings.size
        gap = mean - self.mean
        self.squares += squares + gap * gap * (self.nnz * ratings.size / total)
        self.mean += gap * (ratings.size / total)
        self.nnz = total

    def facts(self) -> dict[str, Any]:
        """Wait until all blocks are on disk, and return what the manifest says of them."""
        for file in self.files.values():
            sync(file)
        return {
            "dtypes": FIELDS,
            "nnz": self.nnz,
            "block_rows": self.block_rows,
            "mean": self.mean if self.nnz else None,
            "std": float(np.sqrt(self.squares / self.nnz)) if self.nnz else None,
            "blocks": self.table,
        }
