"""Chunks of a table of ratings, in any order, to matrices of consecutive users, in one pass."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from .labelled_rows import as_frame, as_pandas, ids_and_titles, require_columns
from .loaders import columns_of, parquet_file
from .matrix import present_ids, rating_values
from .validation import MAX_ITEMS, as_rating_matrix, is_integer

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("user", "item", "rating")
RECORD = np.dtype([("user", "<u4"), ("item", "<i4"), ("rating", "<f8")])

# Bounds on memory: the ratings that are handled at once, and the users of a bucket file.
_PIECE = 1 << 19
_BUCKET_ROWS = 4096


class Table(NamedTuple):
    """A table of ratings as matrices of consecutive rows, and what is known of it."""

    shape: tuple[int, int]
    matrices: Iterator[Any]
    user_ids: Any
    item_ids: Any
    undeclared: tuple[str, ...] = ()
    titles: Any = None


def sorted_table(folder: Path, chunks: Any, declared: tuple[Any, ...], n_rows: int) -> Table:
    """Read chunks to their end into files in a new `folder`; matrices have multiples of `n_rows`.

    `declared` are users and items, each or None. Rows are the declared users, or the users in the
    order of their first appearance.
    """
    users, items = declared
    items, titles = ids_and_titles(items)
    rows, columns = _Codes("user", users), _Codes("item", items)
    buckets = _Buckets(folder, n_rows)
    for number, chunk in enumerate(chunks):
        for user, item, rating in _pieces(chunk, number):
            where = f"of chunk {number}"
            rating = rating_values(rating, f"column 'rating' {where}")
            buckets.add(rows.encode(user, where), columns.encode(item, where), rating)
    buckets.flush()
    labels, rank = columns.in_order()
    shape = (len(rows.positions), len(labels))
    undeclared = tuple(f"{codes.what}s" for codes in (rows, columns) if not codes.declared)
    matrices = buckets.matrices(shape, rank)
    return Table(shape, matrices, list(rows.positions), labels, undeclared, titles)


def plain_ids(ids: Any, where: str) -> list[int | str]:
    """Return ids as Python integers and strings, the types that files of labels can hold."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        return ids.tolist()
    plain: list[int | str] = []
    for label in ids.tolist() if hasattr(ids, "tolist") else ids:
        if not isinstance(label, str) and not is_integer(label, -np.inf):
            raise ValueError(
                f"{where} holds the id {label!r} of type {type(label).__name__}; ratings on disk "
                "take integers and strings. Convert the ids first."
            )
        plain.append(str(label) if isinstance(label, str) else int(label))
    return plain


def _pieces(chunk: Any, number: int) -> Iterator[list["pd.Series"]]:
    """Cut a chunk into columns of bounded length: users, items and ratings."""
    chunk = as_frame(chunk)
    if not hasattr(chunk, "columns"):
        raise ValueError(
            f"chunk {number} is a {type(chunk).__name__}; chunks must be an iterable of DataFrames "
            "with the columns user, item, rating. Pass a single table as [table]."
        )
    remedy = "Rename yours; where every row counts as 1.0, add a column rating of ones"
    require_columns(chunk, COLUMNS, f"chunk {number}", remedy)
    chunk = as_pandas(chunk, COLUMNS)
    for start in range(0, len(chunk), _PIECE):
        yield [chunk[name].iloc[start : start + _PIECE] for name in COLUMNS]


class _Codes:
    """Positions of ids: in a declared catalogue, or in the order of their first appearance."""

    def __init__(self, what: str, declared: Any = None) -> None:
        self.what = what
        self.declared = declared is not None
        self.are_integers: bool | None = None
        ids = plain_ids(declared, f"{what}s") if self.declared else []
        self.positions = {label: position for position, label in enumerate(ids)}
        if len(self.positions) < len(ids):
            twice = next(label for k, label in enumerate(ids) if self.positions[label] != k)
            raise ValueError(f"{what}s holds {twice!r} more than once: pass each id once.")

    def encode(self, ids: "pd.Series", where: str) -> Any:
        """Return the position of each id."""
        import pandas as pd

        where = f"column {self.what!r} {where}"
        ids = present_ids(ids, where)
        are_integers = ids.dtype.kind in "iu"
        if len(ids) and self.are_integers not in (None, are_integers):
            raise ValueError(
                f"{where} holds {'integers' if are_integers else 'text'}, and chunks before it did "
                "not: 007 and 7 would be one person here and two there. Read the ids of all chunks "
                f"as text, by pandas.read_csv(..., dtype={{{self.what!r}: str}}) for instance."
            )
        self.are_integers = are_integers if len(ids) else self.are_integers
        values: Any = ids
        if isinstance(ids.dtype, np.dtype):  # of either byte order
            values = ids.to_numpy().astype(ids.dtype.newbyteorder("="), copy=False)
        codes, found = pd.factorize(values)
        labels = plain_ids(found, where)
        if self.declared:
            at = [self.positions.get(label, -1) for label in labels]
            if -1 in at:
                unknown = [label for label, k in zip(labels, at, strict=True) if k < 0]
                raise ValueError(
                    f"{where} holds ids that are not declared (such as "
                    f"{', '.join(map(repr, unknown[:5]))}). Declare them by {self.what}s=, or drop "
                    "their rows. 1 and '1' are different ids."
                )
        else:
            at = [self.positions.setdefault(label, len(self.positions)) for label in labels]
        return np.array(at, np.int64)[codes]

    def in_order(self) -> tuple[list[int | str], Any]:
        """Return the ids, sorted if not declared, and the place in them of each position."""
        ids = list(self.positions)
        if not self.declared:
            ids.sort(key=lambda label: (isinstance(label, str), label))
        rank = np.empty(len(ids), np.int64)
        rank[[self.positions[label] for label in ids]] = np.arange(len(ids))
        return ids, rank


class _Buckets:
    """Files of (user, item, rating) records, each for the rows of whole parts.

    Files are open only while something is appended, so that their number has no limit.
    """

    def __init__(self, folder: Path, part_rows: int) -> None:
        folder.mkdir()
        self.folder = folder
        self.n_rows = part_rows * max(1, _BUCKET_ROWS // part_rows)
        self.pending: list[Any] = []
        self.n_pending = 0

    def add(self, rows: Any, items: Any, ratings: Any) -> None:
        """Take ratings of one piece; NaN is left out."""
        known = ~np.isnan(ratings)
        records = np.empty(int(known.sum()), RECORD)
        for name, values in zip(COLUMNS, (rows, items, ratings), strict=True):
            records[name] = values[known]
        if self.n_pending + records.size > _PIECE:
            self.flush()
        self.pending.append(records)
        self.n_pending += records.size

    def flush(self) -> None:
        """Append what is pending to the files."""
        records = np.concatenate([np.empty(0, RECORD), *self.pending])
        self.pending, self.n_pending = [], 0
        buckets = records["user"] // self.n_rows
        if buckets.size and buckets.max() <= np.iinfo(np.uint16).max:
            buckets = buckets.astype(np.uint16)  # sorted in linear time
        order = np.argsort(buckets, kind="stable")
        records, buckets = records[order], buckets[order]
        edges = [0, *(np.flatnonzero(np.diff(buckets)) + 1), records.size]
        for begin, end in pairwise(edges):
            if begin < end:
                with self._file(int(buckets[begin])).open("ab") as file:
                    file.write(records[begin:end].view(np.uint8).data)

    def matrices(self, shape: tuple[int, int], rank: Any) -> Iterator[Any]:
        """Yield the rows of each bucket, canonical CSR in float32, item i in column rank[i]."""
        for start in range(0, shape[0], self.n_rows):
            stop = min(start + self.n_rows, shape[0])
            file = self._file(start // self.n_rows)
            records = np.fromfile(file, RECORD) if file.exists() else np.empty(0, RECORD)
            records["item"] = rank[records["item"]]
            yield records_matrix(records, start, stop, shape[1], np.float32)
            file.unlink(missing_ok=True)

    def _file(self, bucket: int) -> Path:
        return self.folder / f"{bucket}.bin"


def records_matrix(records: Any, start: int, stop: int, n_items: int, dtype: Any) -> Any:
    """Return the rows [start, stop) of records as canonical CSR, made in parts of some rows each.

    Making one part takes about a hundred bytes a rating, which whole buckets of the most active
    users would not leave room for.
    """
    n_parts = max(1, -(-records.size // _PIECE))
    parts = []
    for low, high in pairwise(np.linspace(start, stop, n_parts + 1).astype(np.int64).tolist()):
        part = records[(records["user"] >= low) & (records["user"] < high)]
        entries = part["rating"], (part["user"] - low, part["item"])
        triples = sparse.coo_array(entries, shape=(high - low, n_items))
        parts.append(as_rating_matrix(triples, dtype=dtype))
    return parts[0] if len(parts) == 1 else sparse.vstack(parts, format="csr")


def stacked(parts: Iterable[Any], shape: tuple[int, int], n_ratings: int) -> Any:
    """Return CSR arrays one below the other, in float64: needs the result and one of them.

    `n_ratings` is the most that they hold.
    """
    dtype = np.int32 if max(n_ratings, shape[1]) <= MAX_ITEMS else np.int64
    indptr, indices = np.zeros(shape[0] + 1, dtype), np.empty(n_ratings, dtype)
    ratings = np.empty(n_ratings)
    row, at = 1, 0
    for part in parts:
        here = slice(at, at + part.nnz)
        ratings[here], indices[here] = part.data, part.indices
        indptr[row : row + part.shape[0]] = np.diff(part.indptr)
        row, at = row + part.shape[0], here.stop
    np.cumsum(indptr, out=indptr)
    return sparse.csr_array((ratings[:at], indices[:at], indptr), shape=shape)


def parquet_chunks(path: Path, columns: Any) -> Iterator["pd.DataFrame"]:
    """Yield a Parquet file as tables of the columns user, item and rating."""
    if not path.is_file():
        raise FileNotFoundError(f"file={str(path)!r} must be a Parquet file, and does not exist.")
    with path.open("rb") as stream:
        file = parquet_file(stream, str(path))
        found = columns_of(file.schema_arrow.names, columns, str(path))
        names = {name: role for name, role in found.items() if role in COLUMNS}
        for batch in file.iter_batches(batch_size=_PIECE, columns=list(names)):
            yield batch.to_pandas(ignore_metadata=True).rename(columns=names)
