"""Blocks of consecutive users of a rating matrix, by reference, so that workers open them alone.

Privacy rests on one fact: all ratings of a user lie in one block. A block is a range of rows of the
matrix, the blocks of `row_blocks` cut the rows without overlap, and a block refuses to give
anything if the data behind it are not those from which the ranges were taken.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from ..exceptions import RatingStoreError
from .parquet_ratings import ParquetRatings
from .validation import MAX_ITEMS, as_rating_matrix, is_integer


@dataclass(frozen=True)
class RowBlock:
    """Consecutive users (rows) of a rating matrix: where they are, not the ratings.

    `first_row` of the whole matrix is row 0 of the block, which has the shape (n_rows, n_items) and
    holds `n_ratings`; all blocks of a matrix have all its columns.
    """

    first_row: int
    n_rows: int
    n_items: int
    n_ratings: int

    def check(self) -> None:
        """Look whether the block is the one that was meant; reads no rating."""


@dataclass(frozen=True, eq=False)
class MatrixRows(RowBlock):
    """Rows that are in memory, canonical and shared, not copied; pickles with its ratings."""

    matrix: sparse.csr_array = field(repr=False)

    def load(self) -> sparse.csr_array:
        """Return the rows as canonical CSR, not clipped, in the array that the block holds."""
        return self.matrix


@dataclass(frozen=True)
class PartRows(RowBlock):
    """Consecutive parts of ratings on disk; pickles as their path and fingerprint.

    The path is the same wherever the block is used, and other ratings there are refused. The parts
    go from `first` to before `stop`.
    """

    path: Path
    fingerprint: str
    first: int
    stop: int

    def check(self) -> None:
        """Open the folder: its manifest, the sizes of its files, and the footers of the parts."""
        self._open().check(self.first, self.stop)

    def load(self) -> sparse.csr_array:
        """Read the rows; on the way this needs the result and one part."""
        return self._open().read_rows(self.first, self.stop)

    def _open(self) -> ParquetRatings:
        """Open the ratings, if they are those that were meant."""
        ratings = ParquetRatings(self.path)
        if ratings.fingerprint != self.fingerprint:
            raise RatingStoreError(
                f"path={str(self.path)!r} now holds other ratings (fingerprint "
                f"{ratings.fingerprint[:12]}...) than those that were asked for "
                f"({self.fingerprint[:12]}...). Nothing may replace ratings while they are in "
                "use: start again with the present ones."
            )
        return ratings


def row_blocks(ratings: Any, n_blocks: int) -> list[RowBlock]:
    """Cut ratings into blocks of consecutive users of about equal work.

    The work of a user is taken as the ratings plus one. A matrix may be cut between any two
    users, what is on disk only between parts.

    There are at most `n_blocks`, none without users; together they are all rows, in order, each in
    one block.
    """
    if not is_integer(n_blocks, 1):
        raise ValueError(f"n_blocks={n_blocks!r} must be an integer from 1 on: blocks of users.")
    if not isinstance(ratings, ParquetRatings):
        R = as_rating_matrix(ratings)
        rows = np.arange(R.shape[0] + 1)
        cuts = _balanced(rows, R.indptr, n_blocks)
        return [MatrixRows(first, *_row_view(R, first, stop)) for first, stop in cuts]
    rows, at = ratings._bounds
    blocks: list[RowBlock] = []
    for first, stop in _balanced(rows, at, n_blocks):
        n_rows, n_ratings = int(rows[stop] - rows[first]), int(at[stop] - at[first])
        size = int(rows[first]), n_rows, ratings.shape[1], n_ratings
        blocks.append(PartRows(*size, ratings.path, ratings.fingerprint, first, stop))
    return blocks


def _row_view(R: Any, first: int, stop: int) -> tuple[int, int, int, Any]:
    """Return rows of a CSR array, after their shape and number, without copying its ratings."""
    begin, end = R.indptr[first], R.indptr[stop]
    dtype = np.int32 if max(end - begin, R.shape[1]) <= MAX_ITEMS else np.int64
    rows = sparse.csr_array((stop - first, R.shape[1]))
    # Slicing would copy them, and so would the constructor with parts of long arrays.
    rows.indptr = (R.indptr[first : stop + 1] - begin).astype(dtype)
    rows.indices, rows.data = R.indices[begin:end].astype(dtype, copy=False), R.data[begin:end]
    return *rows.shape, rows.nnz, rows


def _balanced(rows: Any, at: Any, n_blocks: int) -> list[tuple[int, int]]:
    """Group parts, which begin at `rows` and at the ratings `at`, into blocks of equal work.

    The rule of `kernels._blocks.balanced_blocks`, which cuts between rows.
    """
    work = np.asarray(at, np.int64) + rows
    goals = work[-1] * np.arange(1, n_blocks) / n_blocks
    after = np.searchsorted(work, goals)
    # The nearer one of the two cuts around a goal.
    before = np.maximum(after - 1, 0)
    nearer = np.where(goals - work[before] <= work[after] - goals, before, after)
    cuts = np.unique(np.concatenate(([0], nearer, [len(work) - 1])))
    return [(int(a), int(b)) for a, b in pairwise(cuts)]
