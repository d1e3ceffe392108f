"""Batches of users for a solver that streams them, from a matrix in memory or a store on disk."""

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from skdpmf.baselines.sgd.workers import Workers, read_ahead
from skdpmf.data.rating_store import RatingBlock, RatingStore
from skdpmf.kernels.order import count_items, order_by_item, standardise

__all__ = ["Batches", "MatrixBatches", "Scale", "StoreBatches"]

# Entries that the kernels may read (and ignore) behind the last rating of a batch.
_SPARE = 16
# Users of a batch are counted in uint16.
_MOST_ROWS = 1 << 16
# Blocks read before they are needed: one in hand for each of a few threads.
_BLOCKS_AHEAD = 3
# Ratings that are measured together: they stay in the cache.
_PIECE = 1 << 15
# A spread below this share of the rating range is rounding: all ratings are equal.
_NO_SPREAD = 1e-12


class Scale(NamedTuple):
    """Standardised rating = (rating - mean) / std; mean and std in rating units."""

    mean: float
    std: float

    @classmethod
    def of(cls, pieces: Iterable[np.ndarray], rating_range: tuple[float, float]) -> "Scale":
        """Measure float64 ratings in the range; without spread, std is half the range."""
        low, high = rating_range
        middle, half = low / 2.0 + high / 2.0, high / 2.0 - low / 2.0
        # In units of half the range, as sums of huge ratings would overflow, and from the first
        # rating on, so that a small spread is not lost in rounding.
        n, origin, total, squares = 0, 0.0, 0.0, 0.0
        for piece in pieces:
            unit = (piece - middle) / half
            if not n and unit.size:
                origin = float(unit[0])
            unit -= origin
            n, total = n + unit.size, total + float(unit.sum())
            squares += float(np.dot(unit, unit))
        mean = total / max(1, n)
        std = float(np.sqrt(max(0.0, squares / max(1, n) - mean**2)))
        return cls(middle + half * (origin + mean), half * (std if std > _NO_SPREAD else 1.0))


class MatrixBatches:
    """A canonical CSR matrix, cut and sorted once, held in memory: batches of users.

    ``scale`` standardises the ratings, whose root mean square is then ``spread``; ``item_counts``
    are the ratings of each item.

    Parameters
    ----------
    R : csr_array of shape (n_users, n_items)
        Canonical ratings.
    rating_range : (float, float)
        Where the ratings lie.
    n_rows : int
        Users of a batch.
    workers : Workers
        They sort the batches.
    scale : Scale, default=None
        How the ratings are standardised. None: by their own mean and standard deviation.
    """

    def __init__(
        self,
        R: Any,
        rating_range: tuple[float, float],
        n_rows: int,
        workers: Workers,
        scale: Scale | None = None,
    ) -> None:
        if scale is None:
            pieces = (R.data[begin : begin + _PIECE] for begin in range(0, R.nnz, _PIECE))
            scale = Scale.of(pieces, rating_range)
        self.shape, self.nnz, self.scale = R.shape, R.nnz, scale
        n_rows = min(n_rows, _MOST_ROWS)
        self._R, self._n_rows = R, n_rows
        starts = range(0, R.shape[0], n_rows)

        def batch(start: int, _: int) -> RatingBlock:
            return _in_item_order(R, start, min(start + n_rows, R.shape[0]), scale)

        self._batches: list[RatingBlock] = workers.run(batch, starts)
        self.item_counts = np.zeros(R.shape[1], np.int64)
        squares = 0.0
        for block in self._batches:
            self.item_counts[block.items] += np.diff(block.indptr)
            squares += float(np.dot(block.ratings, block.ratings))
        self.spread = float(np.sqrt(squares / max(1, self.nnz)))

    def __len__(self) -> int:
        return len(self._batches)

    def read(self, first: int) -> Generator[RatingBlock, None, None]:
        """Yield the batches from number `first` on, standardised, spare entries behind."""
        yield from self._batches[first:]

    def fingerprint(self) -> str:
        """Return a digest of the ratings and of how they are cut."""
        digest = hashlib.blake2b(repr((self.shape, self._n_rows, self.scale)).encode())
        for part in (self._R.indptr, self._R.indices, self._R.data):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


class StoreBatches:
    """A store on disk, read ahead by a thread of its own; blocks too large are cut.

    Parameters
    ----------
    store : RatingStore
        The ratings.
    rating_range : (float, float)
        Ratings outside are clipped to it.
    n_rows : int
        Users of a batch, about: the store's blocks are cut in equal parts, never joined.
    """

    def __init__(self, store: RatingStore, rating_range: tuple[float, float], n_rows: int) -> None:
        self.shape, self.nnz = store.shape, store.nnz
        self._store, self._range = store, rating_range
        self._parts = -(-store.block_rows // n_rows)
        self.item_counts = np.zeros(store.shape[1], np.int64)
        with closing(self._measured()) as pieces:
            self.scale, self.spread = Scale.of(pieces, rating_range), 1.0

    def __len__(self) -> int:
        return self._store.n_blocks * self._parts

    def read(self, first: int) -> Generator[RatingBlock, None, None]:
        """Yield the batches from number `first` on."""
        return read_ahead(self._batches(first), _BLOCKS_AHEAD * self._parts)

    def fingerprint(self) -> str:
        """Return a digest of the ratings and of how they are cut."""
        return f"{self._store.fingerprint} {self._parts} {self.scale!r}"

    def _batches(self, first: int) -> Iterator[RatingBlock]:
        for index in range(first // self._parts, self._store.n_blocks):
            if self._parts == 1:
                block = self._store.read_block(index, _SPARE)
                standardise(*self._range, *self.scale, block.ratings)
                yield block
            else:
                skipped = max(0, first - index * self._parts)
                yield from self._cut(self._store.read_block(index))[skipped:]

    def _cut(self, block: RatingBlock) -> list[RatingBlock]:
        n_users = block.stop - block.start
        ratings = np.clip(block.ratings.astype(np.float64), *self._range)
        by_item = sparse.csc_array(
            (ratings, block.users.astype(np.int32), block.indptr),
            shape=(n_users, block.items.size),
        )
        R = by_item.tocsr()
        # a short last block has as many parts, the last of them perhaps empty
        step = -(-self._store.block_rows // self._parts)
        bounds = [min(part * step, n_users) for part in range(self._parts + 1)]
        parts = [_in_item_order(R, start, stop, self.scale) for start, stop in pairwise(bounds)]
        return [
            part._replace(
                start=block.start + part.start,
                stop=block.start + part.stop,
                items=block.items[part.items],
            )
            for part in parts
        ]

    def _measured(self) -> Generator[np.ndarray, None, None]:
        """Go once through the store, which finds damage before anything is fitted."""
        with closing(read_ahead(self._store.blocks(), _BLOCKS_AHEAD)) as blocks:
            for block in blocks:
                self.item_counts[block.items] += np.diff(block.indptr)
                yield np.clip(block.ratings.astype(np.float64), *self._range)


def _in_item_order(R: Any, start: int, stop: int, scale: Scale) -> RatingBlock:
    """Sort the ratings of rows [start, stop) by item."""
    counts = np.zeros(R.shape[1], np.int64)
    count_items(R.indptr, R.indices, start, stop, counts)
    items = np.flatnonzero(counts)
    places = np.cumsum(counts) - counts
    nnz = R.indptr[stop] - R.indptr[start]
    users, ratings = np.zeros(nnz + _SPARE, np.uint16), np.zeros(nnz + _SPARE, np.float32)
    order_by_item(
        *(R.indptr, R.indices, R.data, start, stop, scale.mean, scale.std),
        *(places, users, ratings),
    )
    indptr = np.append(0, np.cumsum(counts[items]))
    return RatingBlock(start, stop, items.astype(np.int32), indptr, users, ratings)


Batches = MatrixBatches | StoreBatches
