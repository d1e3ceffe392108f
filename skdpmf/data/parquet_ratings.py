"""Ratings in a folder of Parquet files, each with all ratings of consecutive users.

The folder holds the parts (Parquet files with the columns ``user``, int64, the row; ``item``,
int32, the column; and ``rating``), up to three files of labels, and ``manifest.json``: the shape,
the rows, number of ratings, size and SHA-256 of each part, and the SHA-256 of the manifest itself.

Privacy rests on a user's ratings lying in one part. It is kept three times: the rows of the parts
in the manifest follow one another without gap or overlap, or the folder does not open; the users
of each part, by the minima and maxima in its footer, lie within its rows, or `check` refuses it;
and so does every single user of a part, or reading refuses it.
"""

import hashlib
import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ..exceptions import RatingStoreError
from ._store_chunks import (
    COLUMNS,
    RECORD,
    Table,
    is_integer,
    parquet_chunks,
    records_matrix,
    sorted_table,
)
from ._store_files import (
    MANIFEST,
    FolderWriter,
    Labels,
    StoredRatings,
    absolute,
    check_size,
    checked_facts,
    damaged,
    headed,
    is_part,
    new_store,
    read_manifest,
    serialised,
    sync,
    undeclared,
)
from .files import owners_file
from .labels import RatingMatrix, labels_of
from .loaders import _parquet_opener, _pyarrow
from .rating_store import RatingStore, _refuse_infinite
from .validation import as_rating_matrix

__all__ = ["ParquetRatings"]


# Ratings that are written or decoded at once.
_GROUP = 1 << 20
_TYPES = {"user": ("int64",), "item": ("int32",), "rating": ("float", "double")}  # Arrow's names


class _Part(NamedTuple):
    """One file, as the manifest describes it."""

    file: str
    first_row: int
    n_rows: int
    n_ratings: int
    size: int
    sha256: str


class ParquetRatings(StoredRatings):
    """A users x items rating matrix in Parquet files, partitioned by user, read part by part.

    Made by `write` from ratings that need not fit into memory, or by `adopt` from files that
    another program has written; opened by its path. It never changes while in use. Many
    processes may read one folder. It pickles as its path. Needs pyarrow to read or write ratings.

    Parameters
    ----------
    path : str or path-like
        Folder of the parts.

    Attributes
    ----------
    path : pathlib.Path
        Folder of the parts, absolute.
    shape : (int, int)
        Users and items.
    nnz : int
        Ratings in the files. Of adopted files it also counts ratings that are NaN and each of
        several ratings of one (user, item) pair.
    n_parts : int
        Parts.
    undeclared : tuple of {"users", "items"}
        As for `RatingStore`.
    fingerprint : str
        SHA-256 of the manifest, which holds the checksums of everything else: another one for
        other ratings, labels or parts.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    RatingStoreError
        If a file is missing or has the wrong size; if the manifest was altered, is of another
        format or of a newer version, or does not give each row to exactly one part. What is
        inside of the parts is looked at by `check` (footers) and by `read_rows` (everything).

    See Also
    --------
    RatingStore : The same for one machine, in item order, for `CacheSGDFactorizer`.

    Notes
    -----
    Ratings are written as float32; those too large for it become its largest number. NaN means
    unknown: it is left out in writing, and in reading of adopted files.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> nan = float("nan")
    >>> ratings = ParquetRatings.write(
    ...     pathlib.Path(folder.name) / "ratings",
    ...     np.array([[5.0, nan], [1.0, 2.0], [nan, 4.0]]),
    ...     rows_per_part=2,
    ... )
    >>> ratings.shape, ratings.nnz, ratings.n_parts
    ((3, 2), 4, 2)
    >>> ratings.read_rows(1, 2).toarray()
    array([[0., 4.]])
    >>> ratings.check()
    >>> ratings.verify()  # both say nothing if all is well
    >>> folder.cleanup()
    """

    def __init__(self, path: Any) -> None:
        path = absolute(path)
        self._use(path, read_manifest(path, "ParquetRatings"))

    def _use(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.shape: tuple[int, int]
        self.shape, rows = checked_facts(path, manifest, "parts")
        self.fingerprint: str = manifest["fingerprint"]
        self.undeclared = undeclared(path, manifest)
        is_table = isinstance(rows, list) and all(map(is_part, rows))
        self._parts = [_Part(*row) for row in rows] if is_table else []
        self.n_parts = len(self._parts)
        self._rows = np.cumsum([0, *(part.n_rows for part in self._parts)], dtype=np.int64)
        self._at = np.cumsum([0, *(part.n_ratings for part in self._parts)], dtype=np.int64)
        self.nnz = int(self._at[-1])
        first_rows = [*(part.first_row for part in self._parts), self.shape[0]]
        partition = first_rows == self._rows.tolist() and np.all(np.diff(self._rows) > 0)
        if not is_table or not partition:
            trouble = "its parts are no files with counts, or do not hold each row exactly once"
            raise damaged(path / MANIFEST, trouble)
        for part in self._parts:
            check_size(path / part.file, part.size)
        self._labels = Labels(path, manifest)

    @classmethod
    def open(cls, path: Any) -> "ParquetRatings":
        """Open a folder; the same as ``ParquetRatings(path)``.

        Parameters
        ----------
        path : str or path-like
            Folder of the parts.

        Returns
        -------
        ratings : ParquetRatings
            The ratings.

        Raises
        ------
        FileNotFoundError, RatingStoreError
            As the class says.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "ratings"
        ...     written = ParquetRatings.write(path, np.array([[5.0, 1.0]]))
        ...     ParquetRatings.open(path).fingerprint == written.fingerprint
        True
        """
        return cls(path)

    @classmethod
    def write(
        cls,
        path: Any,
        source: Any,
        *,
        columns: dict[str, str] | None = None,
        users: Any = None,
        items: Any = None,
        n_items: int | None = None,
        rows_per_part: int = 16384,
        overwrite: bool = False,
    ) -> "ParquetRatings":
        """Write ratings to a new folder, all ratings of a user to one part.

        A table is read once, in any order, and sorted into files beside the folder (16 bytes a
        rating, removed at the end); memory holds one part, some buffers and the labels.

        Parameters
        ----------
        path : str or path-like
            Folder to make, which only its owner may read; the one above it exists. It appears
            when everything is on disk: an interrupted write leaves nothing at `path`.
        source : matrix, RatingStore, path or list of paths, or iterable of chunks
            The ratings: a matrix (array, DataFrame, sparse container, RatingMatrix) of shape
            (n_users, n_items), as `as_rating_matrix` takes it; a store; Parquet files with one
            rating a row; or chunks of a table, as `RatingStore.from_chunks` takes them. A
            DataFrame is a table, not a matrix, if it has the columns user, item and rating.
        columns : dict, default=None
            For Parquet files, as for `RatingStore.from_parquet`.
        users, items : sequence of ids, or DataFrame of items, default=None
            For tables, as for `RatingStore.from_chunks`.
        n_items : int, default=None
            For tables, as for `RatingStore.from_chunks`.
        rows_per_part : int, default=16384
            Users of a part, at least 1. Fewer where blocks of a store do not add up to it.
        overwrite : bool, default=False
            Replace the store that is at `path`, whole or broken, once the new one is complete.

        Returns
        -------
        ratings : ParquetRatings
            The new folder, open. Rows are those of a matrix or store; for tables, `users`, or else
            the users in the order of their first appearance, as `RatingStore.from_chunks` has them.

        Raises
        ------
        MissingExtraError
            If pyarrow is not installed.
        FileExistsError
            If there is something at `path`, unless `overwrite`; with it, if that is no store.
        FileNotFoundError
            If a file of `source` or the folder above `path` does not exist.
        ValueError
            If `source` is none of these or holds infinite ratings, ids are missing, neither
            integers nor strings, or not declared, or a parameter is outside its range.
        """
        if not is_integer(rows_per_part, 1):
            raise ValueError(
                f"rows_per_part={rows_per_part!r} must be an integer from 1 on: users of a part."
            )
        rows_per_part = int(rows_per_part)
        _pyarrow(f"path={str(path)!r}")
        with new_store(path, overwrite) as work:
            table = _table(
                source, work / "buckets", rows_per_part, columns, (users, items, n_items)
            )
            writer = _PartWriter(work, table.shape)
            for R in table.matrices:
                for start in range(0, R.shape[0], rows_per_part):
                    writer.add(R[start : start + rows_per_part])
            writer.finish(*table[2:])
        return cls(path)

    @classmethod
    def adopt(cls, path: Any, shape: tuple[int, int]) -> "ParquetRatings":
        """Add a manifest to Parquet files that another program wrote; reads all of them once.

        Each file holds the columns that the module describes, with statistics in its footer, and
        all ratings of the users between its least and its largest: what Spark's
        ``repartitionByRange("user")`` or a Dask frame indexed by user writes. Several ratings of
        one (user, item) pair count as their mean.

        Parameters
        ----------
        path : str or path-like
            Folder of the files; all ``*.parquet`` in it are taken, empty ones left out.
        shape : (int, int)
            Users and items: ``user`` goes from 0 to ``shape[0] - 1``, ``item`` likewise.

        Returns
        -------
        ratings : ParquetRatings
            The folder, open.

        Raises
        ------
        MissingExtraError
            If pyarrow is not installed.
        FileExistsError
            If the folder has a manifest.
        RatingStoreError
            If there are no ratings, a file is not of this kind, or one user may be in two files.

        Examples
        --------
        >>> import pandas as pd, pathlib, tempfile
        >>> table = pd.DataFrame({"user": [0, 0, 2], "item": [0, 1, 1], "rating": [5.0, 1.0, 4.0]})
        >>> table = table.astype({"item": "int32", "rating": "float32"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table.to_parquet(pathlib.Path(folder) / "part-0.parquet", index=False)
        ...     ParquetRatings.adopt(folder, shape=(3, 2)).shape
        (3, 2)
        """
        path = absolute(path)
        if (path / MANIFEST).exists():
            raise FileExistsError(f"{path / MANIFEST} exists already: open the folder instead.")
        n_users, n_items = operator.index(shape[0]), operator.index(shape[1])
        found = []
        for file in path.glob("*.parquet"):
            with reading(file) as stream:
                parquet = open_parquet(stream, file)
                if parquet.metadata.num_rows:
                    found.append((*user_range(parquet, file), parquet.metadata.num_rows, file))
        found.sort()
        if not found or found[0][0] < 0 or found[-1][1] >= n_users:
            trouble = "users outside of these rows" if found else "no ratings"
            raise RatingStoreError(f"shape={shape}: the *.parquet files of {path} hold {trouble}.")
        for (_, last, _, file), (first, _, _, following) in pairwise(found):
            if first <= last:
                raise RatingStoreError(
                    f"{file} and {following} share a range of users, and a user with ratings in "
                    "two parts voids the privacy guarantee. Give each part a range of users of "
                    "its own, or make a new folder with ParquetRatings.write."
                )
        starts = [0, *(first for first, *_ in found[1:]), n_users]
        parts = [
            _Part(file.name, a, b - a, n_ratings, file.stat().st_size, _digest(file))
            for (a, b), (*_, n_ratings, file) in zip(pairwise(starts), found, strict=True)
        ]
        facts = {"parts": parts, "shape": (n_users, n_items), "user_ids": None, "item_ids": None}
        manifest = headed("ParquetRatings", facts)
        ratings = cls.__new__(cls)
        ratings._use(path, manifest)
        ratings.verify()
        work = path / f".{MANIFEST}"
        work.write_bytes(serialised(manifest))
        work.rename(path / MANIFEST)
        return ratings

    def check(self, first: int = 0, stop: int | None = None) -> None:
        """Compare the footers of parts with the manifest; reads no rating.

        Parameters
        ----------
        first, stop : int, default=0 and None
            Number of the first part, and one past that of the last; None: all from `first` on.

        Raises
        ------
        MissingExtraError
            If pyarrow is not installed.
        IndexError
            If there are no such parts.
        RatingStoreError
            If a part is missing, of another size or no Parquet file, has other columns or types
            or another number of ratings, or holds users outside of its rows: these might have
            ratings in another part too.
        """
        for part in self._parts[slice(*self._range(first, stop))]:
            with self._opened(part) as stream:
                self._checked(part, stream)

    def verify(self) -> None:
        """Read everything, one part at a time, and compare it with the manifest.

        Raises
        ------
        MissingExtraError
            If pyarrow is not installed.
        RatingStoreError
            As `read_rows`, or if a byte of the labels is not the one that was written.
        """
        for number in range(self.n_parts):
            self.read_rows(number, number + 1)
        self._labels.verify()

    def read_rows(self, first: int = 0, stop: int | None = None) -> sparse.csr_array:
        """Read the ratings of consecutive parts into a matrix in memory.

        Parameters
        ----------
        first, stop : int, default=0 and None
            As for `check`.

        Returns
        -------
        R : scipy.sparse.csr_array of shape (n_rows, n_items)
            The users of these parts: ratings in float64, stored = rated, columns ascending in
            every row. On the way this needs one part more, decoded (28 bytes a rating; some 100
            for parts that are not sorted by user and item).

        Raises
        ------
        MissingExtraError, IndexError, RatingStoreError
            As `check`; RatingStoreError also if a part's bytes are not those of its checksum, or
            it holds users outside of its rows, items outside of the catalogue, rows without user
            or item, or infinite ratings.
        """
        first, stop = self._range(first, stop)
        if self._at[stop] - self._at[first] > sum(part.size for part in self._parts[first:stop]):
            self.check(first, stop)  # before arrays of that length are made
        return self._stacked(first, stop)

    def _part_bounds(self) -> tuple[Any, Any]:
        return self._rows, self._at

    @contextmanager
    def _opened(self, part: _Part) -> Iterator[Any]:
        path = self.path / part.file
        check_size(path, part.size)
        with reading(path) as stream:
            yield stream

    def _checked(self, part: _Part, stream: Any) -> Any:
        """Return a part as an open Parquet file whose footer agrees with the manifest."""
        path = self.path / part.file
        parquet = open_parquet(stream, path)
        found = parquet.metadata.num_rows
        if found != part.n_ratings:
            raise damaged(path, f"it has {found} ratings; expected {part.n_ratings}")
        if found:
            self._check_users(part, *user_range(parquet, path))
        return parquet

    def _check_users(self, part: _Part, least: int, largest: int) -> None:
        last = part.first_row + part.n_rows - 1
        if least < part.first_row or largest > last:
            raise damaged(
                self.path / part.file,
                f"it holds users outside of its rows, {part.first_row} to {last}, who may have "
                "ratings in another part too, which voids the privacy guarantee",
            )

    def _matrix(self, number: int) -> sparse.csr_array:
        part = self._parts[number]
        path, n, n_items = self.path / part.file, part.n_ratings, self.shape[1]
        rows, items, ratings = np.empty(n, np.uint32), np.empty(n, np.int32), np.empty(n)
        at, here = 0, slice(0, 0)
        with self._opened(part) as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != part.sha256:
                raise damaged(path, "its bytes do not match their checksum")
            stream.seek(0)
            batches = self._checked(part, stream).iter_batches(
                batch_size=_GROUP, columns=list(COLUMNS), use_threads=False
            )
            for batch in batches:
                if not batch.num_rows:
                    continue
                columns = [batch.column(batch.schema.get_field_index(name)) for name in COLUMNS]
                if columns[0].null_count or columns[1].null_count:
                    raise damaged(path, "it has ratings without user or item")
                user, item, rating = (array.to_numpy(zero_copy_only=False) for array in columns)
                self._check_users(part, user.min(), user.max())
                if item.min() < 0 or item.max() >= n_items:
                    raise damaged(
                        path, f"it holds items outside of the columns, 0 to {n_items - 1}"
                    )
                if np.isinf(rating).any():
                    raise damaged(path, "it holds infinite ratings")
                here = slice(at, at + user.size)
                if here.stop > n:
                    break
                rows[here], items[here], ratings[here] = user - part.first_row, item, rating
                at = here.stop
        if here.stop != n:
            raise damaged(path, f"its footer says {n} ratings, and it has more or fewer")
        place = rows.astype(np.int64) * n_items + items
        if np.all(place[1:] > place[:-1]) and not np.isnan(ratings).any():
            indptr = np.searchsorted(rows, np.arange(part.n_rows + 1, dtype=rows.dtype))
            return sparse.csr_array((ratings, items, indptr), shape=(part.n_rows, n_items))
        records = np.empty(n, RECORD)
        for name, values in zip(COLUMNS, (rows, items, ratings), strict=True):
            records[name] = values
        return records_matrix(records, 0, part.n_rows, n_items, np.float64)


class _PartWriter(FolderWriter):
    """Writes the parts of a folder, one after another."""

    kind = "ParquetRatings"

    def __init__(self, work: Path, shape: tuple[int, int]) -> None:
        super().__init__(work, shape)
        self.parts: list[_Part] = []

    def add(self, R: Any) -> None:
        """Append a part: canonical CSR ratings in float32."""
        pyarrow, parquet = _pyarrow(str(self.folder))
        first = self.parts[-1].first_row + self.parts[-1].n_rows if self.parts else 0
        rows = np.arange(first, first + R.shape[0])
        columns = (np.repeat(rows, np.diff(R.indptr)), R.indices.astype(np.int32), R.data)
        table = pyarrow.table(dict(zip(COLUMNS, columns, strict=True)))
        path = self.folder / f"rows-{first:012d}.parquet"
        with owners_file(path) as file:
            parquet.write_table(table, file, compression="zstd", row_group_size=_GROUP)
            sync(file)
        size = path.stat().st_size
        self.parts.append(_Part(path.name, first, R.shape[0], R.nnz, size, _digest(path)))

    def facts(self) -> dict[str, Any]:
        """Return the parts."""
        return {"parts": self.parts}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _table(source: Any, folder: Path, n_rows: int, columns: Any, declared: Any) -> Table:
    """Return any source of ratings as matrices of consecutive rows."""
    files = [source] if isinstance(source, str | os.PathLike) else source
    if isinstance(files, list) and files and isinstance(files[0], str | os.PathLike):
        paths = [Path(file).expanduser() for file in files]
        source = chain.from_iterable(parquet_chunks(path, columns) for path in paths)
    elif columns is not None:
        raise ValueError(f"columns={columns!r} names the columns of Parquet files; omit it.")
    if hasattr(source, "columns") and set(COLUMNS) <= set(source.columns):
        source = [source]
    is_matrix = hasattr(source, "columns") or isinstance(source, np.ndarray | RatingMatrix)
    is_matrix = is_matrix or sparse.issparse(source)
    if not is_matrix and not isinstance(source, RatingStore):
        return sorted_table(folder, source, declared, n_rows)
    if any(own is not None for own in declared):
        raise ValueError("users, items and n_items declare rows and columns of tables; omit them.")
    if isinstance(source, RatingStore):
        step = max(1, n_rows // source.block_rows)
        starts = range(0, source.n_blocks, step)
        parts = (source.read_rows(k, min(k + step, source.n_blocks)) for k in starts)
        matrices = (as_rating_matrix(R, dtype=np.float32) for R in parts)
        labels = source.user_ids, source.item_ids, source.undeclared, source.titles
        return Table(source.shape, matrices, *labels)
    R = as_rating_matrix(source)
    _refuse_infinite(source)
    starts = range(0, R.shape[0], n_rows)
    matrices = (as_rating_matrix(R[k : k + n_rows], dtype=np.float32) for k in starts)
    return Table(R.shape, matrices, *labels_of(source))


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """Open a Parquet file; whatever pyarrow finds wrong in it is an error that names it."""
    pyarrow, _ = _pyarrow(str(path))
    try:
        with path.open("rb") as stream:
            yield stream
    except RatingStoreError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of the disk, not of what is on it
            raise
        raise damaged(path, f"it is no Parquet file that can be read ({error})") from error


def open_parquet(stream: Any, path: Path) -> Any:
    """Return an open Parquet file that has the right columns."""
    # Buffered: otherwise a row group, which may be the whole file, is read at once.
    file = _parquet_opener(str(path))(stream, buffer_size=1 << 20)
    schema = file.schema_arrow
    for name, types in _TYPES.items():
        index = schema.get_field_index(name)
        found = str(schema.field(index).type) if index >= 0 else "missing or there twice"
        if found not in types:
            raise damaged(path, f"its column {name!r} is {found}; expected {' or '.join(types)}")
    return file


def user_range(file: Any, path: Path) -> tuple[int, int]:
    """Return the least and the largest user of a Parquet file by its footer."""
    metadata = file.metadata
    paths = [metadata.schema.column(k).path for k in range(metadata.num_columns)]
    ranges = []
    for k in range(metadata.num_row_groups):
        group = metadata.row_group(k)
        if not group.num_rows:
            continue
        column = group.column(paths.index("user"))
        # pyarrow 14 ends the process when the statistics have another type than the schema says
        statistics = column.statistics if column.physical_type == "INT64" else None
        if statistics is None or not statistics.has_min_max:
            raise damaged(path, "its footer has no least and largest user; write statistics")
        ranges.append((statistics.min, statistics.max))
    if not ranges:
        raise damaged(path, "its footer has no least and largest user, and ratings")
    return min(low for low, _ in ranges), max(high for _, high in ranges)
