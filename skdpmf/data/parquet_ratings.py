"""Ratings in a folder of Parquet files, each with all ratings of consecutive users.

The folder holds the parts (Parquet files with the columns ``user``, int32 or int64, the row;
``item``, int32, the column; and ``rating``), up to three files of labels, and ``manifest.json``:
the shape, the rows, number of ratings, size and SHA-256 of each part, and its own SHA-256.
A part holds a row group for every so many of its users, in item order, which is what
`CacheSGDFactorizer` reads.

Privacy rests on a user's ratings lying in one part. It is kept three times: the rows of the parts
in the manifest follow one another without gap or overlap, or the folder does not open; the users
of each part, by the minima and maxima in its footer, lie within its rows, or `check` refuses it;
and so does every single user of a part, or reading refuses it.

No file is mapped into memory, as one that is cut short meanwhile would end the process: the bytes
of a part are read, held against their checksum and decoded where they are.
"""

import hashlib
import operator
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from skdpmf.data import ratings_folder as store
from skdpmf.data import table_chunks as chunks
from skdpmf.data.files import owners_file
from skdpmf.data.labelled_rows import RatingMatrix, as_frame, labels_of
from skdpmf.data.loaders import parquet_file, pyarrow_for
from skdpmf.data.ratings_folder import damaged
from skdpmf.data.table_chunks import COLUMNS, RECORD, Table
from skdpmf.data.validation import MAX_ITEMS, as_rating_matrix, is_integer, refuse_infinite, require
from skdpmf.exceptions import RatingStoreError, counted

_GROUP_ROWS = 4096  # users of a row group that is written
MOST_GROUP_ROWS = 1 << 16  # the solver counts them in 16 bits
# by Arrow's names
_TYPES = {"user": ("int32", "int64"), "item": ("int32",), "rating": ("float",)}


class _Part(NamedTuple):
    """One file, as the manifest describes it."""

    file: str
    first_row: int
    n_rows: int
    n_ratings: int
    size: int
    sha256: str


class ParquetRatings:
    """A users x items rating matrix in Parquet files, partitioned by user, read part by part.

    Made by `write` from ratings that need not fit into memory; opened by its path. It never changes
    while in use. Many processes may read one folder. It pickles as its path. Needs pyarrow to read
    or write ratings.

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
        Ratings in the files.
    n_parts : int
        Parts.
    undeclared : tuple of {"users", "items"}
        Values read off a table, as they were not declared, as in `RatingMatrix`: a private ``fit``
        says so in ``privacy_spent_``.
    user_ids, item_ids : ndarray of shape (n_users,) and (n_items,), or None
        Labels of the rows and columns, int64 or objects (str and int), read when they are asked
        for. None: a matrix without them.
    titles : list of str or None
        Titles of the columns.
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
    ratings_to_matrix : A table in memory to a matrix in memory.

    Notes
    -----
    Ratings are written as float32; those too large for it become its largest number. NaN means
    unknown, and is left out.

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
        self.path = path = Path(path).expanduser().absolute()
        manifest = store.read_manifest(path)
        self.shape, self.undeclared = store.checked_facts(path, manifest)
        self.fingerprint: str = manifest["fingerprint"]
        self._about = {name: manifest.get(name) for name in store.LABELS}
        self._labels: dict[str, Any] = {}
        rows: Any = manifest.get("parts")
        group_rows = manifest.get("group_rows")
        is_table = isinstance(rows, list) and all(map(_is_part, rows))
        self._parts = [_Part(*row) for row in rows] if is_table else []
        self.n_parts = len(self._parts)
        # the first row of each part and the number of ratings before it; then the ends
        counts = [part.n_rows for part in self._parts], [part.n_ratings for part in self._parts]
        self._bounds = tuple(np.cumsum([0, *each], dtype=np.int64) for each in counts)
        bounds, at = self._bounds
        self.nnz = int(at[-1])
        first_rows = [*(part.first_row for part in self._parts), self.shape[0]]
        partition = first_rows == bounds.tolist() and np.all(np.diff(bounds) > 0)
        if not is_table or not partition:
            trouble = "its parts are no files with counts, or do not hold each row exactly once"
            raise damaged(path / store.MANIFEST, trouble)
        if type(group_rows) is not int or not 1 <= group_rows <= MOST_GROUP_ROWS:
            raise damaged(path / store.MANIFEST, f"its group_rows={group_rows!r:.30} are no users")
        self._group_rows = group_rows
        for part in self._parts:
            store.check_size(path / part.file, part.size)

    def _label(self, name: str) -> Any:
        if name not in self._labels:
            n_labels = self.shape[0 if name == "user_ids" else 1]
            self._labels[name] = store.read_labels(self.path, name, self._about[name], n_labels)
        return self._labels[name]

    @property
    def user_ids(self) -> Any:
        """Labels of the rows."""
        return self._label("user_ids")

    @property
    def item_ids(self) -> Any:
        """Labels of the columns."""
        return self._label("item_ids")

    @property
    def titles(self) -> list[str] | None:
        """Titles of the columns."""
        titles = self._label("titles")
        return None if titles is None else [str(title) for title in titles]

    def __repr__(self) -> str:
        numbers, where = (self.nnz, *self.shape, self.n_parts), str(self.path)
        ratings, users, items, parts = map(counted, numbers, ("rating", "user", "item", "part"))
        return f"<ParquetRatings: {ratings} of {users} for {items} in {parts} at {where!r}>"

    def __reduce__(self) -> Any:
        return type(self), (self.path,)

    @classmethod
    def write(
        cls,
        path: Any,
        source: Any,
        *,
        columns: dict[str, str] | None = None,
        users: Any = None,
        items: Any = None,
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
        source : matrix, ParquetRatings, path or list of paths, or iterable of chunks
            The ratings: a matrix (array, DataFrame, sparse container, RatingMatrix) of shape
            (n_users, n_items), as `as_rating_matrix` takes it, whose index and columns, or labels,
            become `user_ids` and `item_ids`; ratings on disk; Parquet files with one rating a row;
            or chunks of a table: DataFrames with the columns user, item and rating. A DataFrame is
            a table, not a matrix, if it has these columns. In tables NaN = unknown: the rating is
            left out, its user and item stay; and several ratings of one (user, item) pair become
            their mean. Ids are integers or strings.
        columns : dict, default=None
            For Parquet files: maps ``"user"``, ``"item"``, ``"rating"`` to the names that they use,
            where these are not among those that `read_ratings` knows.
        users : sequence of ids, default=None
            For tables: rows of the matrix, in this order; those without ratings stay, empty. None:
            the ids that occur, in the order of their first appearance.
        items : sequence of ids, or DataFrame, default=None
            For tables: columns of the matrix, likewise. A table of items has their ids in the
            column item and, where there is one, `titles` in the column title. None: the ids that
            occur, sorted (integers before strings).
        rows_per_part : int, default=16384
            Users of a part, at least 1. Fewer where parts of ratings on disk do not add up to it.
        overwrite : bool, default=False
            Replace the ratings that are at `path`, whole or broken, once the new ones are complete.

        Returns
        -------
        ratings : ParquetRatings
            The new folder, open.

        Raises
        ------
        MissingExtraError
            If pyarrow is not installed.
        FileExistsError
            If there is something at `path`, unless `overwrite`; with it, if that is no such
            folder.
        FileNotFoundError
            If a file of `source` or the folder above `path` does not exist.
        ValueError
            If `source` is none of these or holds infinite ratings, ids are missing, neither
            integers nor strings, or not declared, or a parameter is outside its range.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import pandas as pd
        >>> names, films = ["ann", "bob", "ann"], ["Heat", "Alien", "Alien"]
        >>> table = pd.DataFrame({"user": names, "item": films, "rating": [4.0, 3.0, 5.0]})
        >>> chunks = [table[:2], table[2:]]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ratings = ParquetRatings.write(pathlib.Path(folder) / "ratings", chunks)
        ...     list(ratings.user_ids), list(ratings.item_ids), ratings.read_rows().toarray()
        (['ann', 'bob'], ['Alien', 'Heat'], array([[5., 4.], [3., 0.]]))
        """
        rule, remedy = "an integer >= 1", "pass how many users are in a part"
        require(is_integer(rows_per_part, 1), "rows_per_part", rows_per_part, rule, remedy)
        rows_per_part = int(rows_per_part)
        pyarrow_for(f"path={str(path)!r}")
        with store.new_folder(path, overwrite) as work:
            table = _table(source, work / "buckets", rows_per_part, columns, (users, items))
            _write(work / "new", table, rows_per_part)
        return cls(path)

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
            store.check_size(self.path / part.file, part.size)
            with reading(self.path / part.file) as stream:
                self._checked(part, stream)

    def _first_ratings(self) -> np.ndarray:
        """Return the first ratings that there are: enough to see their scale."""
        groups = chain.from_iterable(self._row_groups(k, {}) for k in range(self.n_parts))
        return next((ratings for *_, ratings in groups if ratings.size), np.empty(0))

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
        self._labels.clear()
        for name in store.LABELS:
            self._label(name)

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
            every row. On the way this needs one part more, decoded (some 100 bytes a rating).

        Raises
        ------
        MissingExtraError, IndexError, RatingStoreError
            As `check`; RatingStoreError also if a part's bytes are not those of its checksum, or
            it holds users outside of its rows, items outside of the catalogue, rows without user
            or item, or infinite ratings.
        """
        first, stop = self._range(first, stop)
        n_rows, n_ratings = (int(ends[stop] - ends[first]) for ends in self._bounds)
        if n_ratings > sum(part.size for part in self._parts[first:stop]):
            self.check(first, stop)  # before arrays of that length are made
        matrices = (self._matrix(number) for number in range(first, stop))
        return chunks.stacked(matrices, (n_rows, self.shape[1]), n_ratings)

    def _range(self, first: int, stop: int | None) -> tuple[int, int]:
        first = operator.index(first)
        stop = self.n_parts if stop is None else operator.index(stop)
        if not 0 <= first <= stop <= self.n_parts:
            rule = f"a range of parts from 0 to {self.n_parts}"
            raise IndexError(f"first={first}, stop={stop} must be {rule}.")
        return first, stop

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
        """Return the rows of a part as canonical CSR."""
        part, n_items = self._parts[number], self.shape[1]
        path, records, at = self.path / part.file, np.empty(part.n_ratings, RECORD), 0
        for _, _, user, item, rating in self._row_groups(number, {}):
            if user.size:
                self._check_users(part, user.min(), user.max())
                if item.min() < 0 or item.max() >= n_items:
                    trouble = f"it holds items outside of the columns, 0 to {n_items - 1}"
                    raise damaged(path, trouble)
                if np.isinf(rating).any():
                    raise damaged(path, "it holds infinite ratings")
            here = records[at : at + user.size]
            at += user.size
            if len(here) == user.size:
                here["user"], here["item"], here["rating"] = user - part.first_row, item, rating
        if at != part.n_ratings:
            trouble = f"its footer says {part.n_ratings} ratings, and it has more or fewer"
            raise damaged(path, trouble)
        return chunks.records_matrix(records, 0, part.n_rows, n_items, np.float64)

    def _row_groups(self, number: int, seen: dict[str, Any], first: int = 0) -> Iterator[Any]:
        """Yield the row groups of a part from `first` on, one for each `_group_rows` of its users.

        Each is its first row, its number of rows, and (n_ratings,) arrays: user, item and rating,
        with no look at their values. `seen` is the caller's: the times of files whose checksum was
        right, so that one who reads them over and over compares it once.
        """
        part = self._parts[number]
        with self._decoded(part, seen) as file:
            n_groups = -(-part.n_rows // self._group_rows)
            if file.num_row_groups != n_groups:
                trouble = f"it has {file.num_row_groups} row groups; expected {n_groups}"
                raise damaged(self.path / part.file, trouble)
            for group in range(first, n_groups):
                row = group * self._group_rows
                n_rows = min(self._group_rows, part.n_rows - row)
                table = file.read_row_group(group, columns=list(COLUMNS), use_threads=False)
                columns = table.combine_chunks().select(list(COLUMNS)).columns
                if columns[0].null_count or columns[1].null_count:
                    raise damaged(self.path / part.file, "it has ratings without user or item")
                columns = [c.chunk(0) if c.num_chunks == 1 else c for c in columns]
                arrays = [column.to_numpy(zero_copy_only=False) for column in columns]
                yield part.first_row + row, n_rows, *arrays

    @contextmanager
    def _decoded(self, part: _Part, seen: dict[str, Any]) -> Iterator[Any]:
        """Give a part as an open Parquet file in memory, whose bytes are those that were written.

        They are not compared again where the file has not changed since it was `seen`.
        """
        path = self.path / part.file
        pyarrow, _ = pyarrow_for(str(path))
        store.check_size(path, part.size)
        found = path.stat()
        stamp = found.st_ino, found.st_mtime_ns
        is_known = seen.get(part.file) == stamp
        content = store.read_file(path, part.size, "" if is_known else part.sha256)
        seen[part.file] = stamp
        with reading(path, pyarrow.BufferReader(content)) as stream:
            yield self._checked(part, stream)


def _is_part(row: Any) -> bool:
    """Return whether a manifest may have such a row: a file of the folder itself, and counts."""
    if not isinstance(row, list | tuple) or len(row) != len(_Part._fields):
        return False
    name, *counts, digest = row
    plain = isinstance(name, str) and name.isprintable() and Path(name).name == name
    return plain and all(map(store.is_count, counts)) and isinstance(digest, str) and bool(digest)


def _write(folder: Path, table: Table, rows_per_part: int) -> None:
    """Write the parts, the labels and, when all else is on disk, the manifest."""
    if table.shape[1] > MAX_ITEMS:
        raise ValueError(f"X has {table.shape[1]} items and must have {MAX_ITEMS} at most.")
    parts: list[_Part] = []
    row, group_rows = 0, min(_GROUP_ROWS, rows_per_part)
    for R in table.matrices:
        for start in range(0, R.shape[0], rows_per_part):
            part = R[start : start + rows_per_part]
            path = folder / f"rows-{row:012d}.parquet"
            _write_part(path, part, row, group_rows)
            n_rows, n_ratings = part.shape[0], part.nnz
            parts.append(_Part(path.name, row, n_rows, n_ratings, *_size_and_digest(path)))
            row += n_rows
    facts: dict[str, Any] = {"parts": parts, "group_rows": group_rows, "shape": table.shape}
    facts["undeclared"] = table.undeclared
    labels = table.user_ids, table.item_ids, table.titles
    for name, values in zip(store.LABELS, labels, strict=True):
        facts[name] = store.write_labels(folder, name, values)
    store.write_file(folder / store.MANIFEST, store.serialised(store.signed(facts)))


def _write_part(path: Path, R: Any, row: int, group_rows: int) -> None:
    """Write rows, canonical CSR ratings in float32, the first of which has the number `row`.

    Columns that cannot be null, users as they are and the others behind dictionaries, all
    uncompressed, take a third of the time to read that pyarrow's defaults take.
    """
    pyarrow, parquet = pyarrow_for(str(path))
    user = pyarrow.int32() if row + R.shape[0] <= MAX_ITEMS else pyarrow.int64()
    types = {"user": user, "item": pyarrow.int32(), "rating": pyarrow.float32()}
    schema = pyarrow.schema([pyarrow.field(*field, nullable=False) for field in types.items()])
    options = {"compression": "none", "use_dictionary": ["item", "rating"]}
    with owners_file(path) as file:
        with parquet.ParquetWriter(file, schema, **options) as writer:
            for start in range(0, R.shape[0], group_rows):
                by_item = R[start : start + group_rows].tocsc()  # keeps the users in order
                items = np.repeat(np.arange(R.shape[1], dtype=np.int32), np.diff(by_item.indptr))
                columns = (by_item.indices + np.int64(row + start), items, by_item.data)
                arrays = [pyarrow.array(*pair) for pair in zip(columns, schema.types, strict=True)]
                group = pyarrow.Table.from_arrays(arrays, schema=schema)
                writer.write_table(group, row_group_size=max(1, by_item.nnz))
        store.sync(file)


def _size_and_digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _table(source: Any, folder: Path, n_rows: int, columns: Any, declared: Any) -> Table:
    """Return any source of ratings as matrices of consecutive rows."""
    source = as_frame(source)
    files = [source] if isinstance(source, str | os.PathLike) else source
    if isinstance(files, list) and files and isinstance(files[0], str | os.PathLike):
        paths = [Path(file).expanduser() for file in files]
        source = chain.from_iterable(chunks.parquet_chunks(path, columns) for path in paths)
    elif columns is not None:
        raise ValueError(f"columns={columns!r} is for Parquet files: leave it out for these.")
    if hasattr(source, "columns") and set(COLUMNS) <= set(source.columns):
        source = [source]
    is_matrix = hasattr(source, "columns") or isinstance(source, np.ndarray | RatingMatrix)
    is_matrix = is_matrix or sparse.issparse(source)
    if not is_matrix and not isinstance(source, ParquetRatings):
        return chunks.sorted_table(folder, source, declared, n_rows)
    if any(own is not None for own in declared):
        raise ValueError("users and items are for tables: leave them out for a matrix.")
    matrices: Iterable[Any]
    if isinstance(source, ParquetRatings):
        matrices = (source.read_rows(k, k + 1) for k in range(source.n_parts))
    else:
        R = as_rating_matrix(source)
        refuse_infinite(source)
        matrices = (R[k : k + n_rows] for k in range(0, R.shape[0], n_rows))
    matrices = (as_rating_matrix(R, dtype=np.float32) for R in matrices)
    return Table(source.shape, matrices, *labels_of(source))


@contextmanager
def reading(path: Path, content: Any = None) -> Iterator[Any]:
    """Open a Parquet file; whatever pyarrow finds wrong in it is an error that names it."""
    pyarrow, _ = pyarrow_for(str(path))
    try:
        with path.open("rb") if content is None else content as stream:
            yield stream
    except RatingStoreError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of the disk, not of what is on it
            raise
        raise damaged(path, f"it is no Parquet file that can be read ({error})") from error


def open_parquet(stream: Any, path: Path) -> Any:
    """Return an open Parquet file that has the right columns."""
    file = parquet_file(stream, str(path))
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
        type_of_users = str(file.schema_arrow.field("user").type).upper()
        statistics = column.statistics if column.physical_type == type_of_users else None
        if statistics is None or not statistics.has_min_max:
            raise damaged(path, "its footer has no least and largest user; write statistics")
        ranges.append((statistics.min, statistics.max))
    if not ranges:
        raise damaged(path, "its footer has no least and largest user, and ratings")
    return min(low for low, _ in ranges), max(high for _, high in ranges)
