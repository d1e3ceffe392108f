"""Batches of users for a solver that streams them, from a matrix in memory or a store on disk."""

import hashlib
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from skdpmf.data.rating_store import RatingBlock, RatingStore
from skdpmf.solvers._workers import Workers, read_ahead

__all__ = ["Batches", "MatrixBatches", "Scale", "StoreBatches"]

# Entries that the kernels may read (and ignore) behind the last rating of a batch.
_SPARE = 16
# Users of a batch are counted in uint16.
_MOST_ROWS = 1 << 16
# Blocks read before they are needed: one in hand for each of a few threads.
_BLOCKS_AHEAD = 3
# A spread below this share of the rating range is rounding: all ratings are equal.
_NO_SPREAD = 1e-12


class Scale(NamedTuple):
    """Standardised rating = (rating - mean) / std; mean and std in rating units."""

    mean: float
    std: float

    @classmethod
    def of(cls, ratings: np.ndarray, rating_range: tuple[float, float]) -> "Scale":
        """Measure ratings that lie in the range; without spread, std is half the range."""
        middle, half = _middle_and_half(rating_range)
        if not ratings.size:
            return cls(middle, half)
        unit = (ratings - middle) / half  # sums of huge ratings would overflow
        mean = float(unit.mean())
        unit -= mean
        std = float(np.sqrt(np.dot(unit, unit) / unit.size))
        return cls(middle + half * mean, half * (std if std > _NO_SPREAD else 1.0))

    def standardise(self, ratings: np.ndarray) -> np.ndarray:
        """Return float32 standardised ratings, with spare entries behind them."""
        out = np.zeros(ratings.size + _SPARE, np.float32)
        out[: ratings.size] = (ratings - self.mean) / self.std
        return out


class Batches(Protocol):
    """Ratings as batches of users; what the solver needs of them."""

    shape: tuple[int, int]
    nnz: int
    scale: Scale
    spread: float
    """Root mean square of the standardised ratings."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def read(self, first: int) -> Generator[RatingBlock, None, None]:
        """Give the batches from number `first` on, standardised, spare entries behind."""

    def fingerprint(self) -> str:
        """Identify the ratings and how they are cut."""


class MatrixBatches:
    """A canonical CSR matrix, cut and sorted once, held in memory.

    Parameters
    ----------
    R : csr_array of shape (n_users, n_items)
        Canonical ratings.
    scale : Scale
        How they are standardised.
    n_rows : int
        Users of a batch.
    workers : Workers
        They sort the batches.
    """

    def __init__(self, R: Any, scale: Scale, n_rows: int, workers: Workers) -> None:
        self.shape, self.nnz, self.scale = R.shape, R.nnz, scale
        self._R = R
        n_rows = min(n_rows, _MOST_ROWS)
        starts = range(0, R.shape[0], n_rows)

        def batch(start: int, _: int) -> RatingBlock:
            return _in_item_order(_rows(R, start, start + n_rows), start, scale)

        self._batches: list[RatingBlock] = workers.run(batch, starts)
        squares = sum(float(np.dot(batch.ratings, batch.ratings)) for batch in self._batches)
        self.spread = float(np.sqrt(squares / max(1, self.nnz)))

    def __len__(self) -> int:
        return len(self._batches)

    def read(self, first: int) -> Generator[RatingBlock, None, None]:
        yield from self._batches[first:]

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(repr((self.shape, len(self), self.scale)).encode())
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
        self.scale, self.spread = self._measured(), 1.0

    def __len__(self) -> int:
        return self._store.n_blocks * self._parts

    def read(self, first: int) -> Generator[RatingBlock, None, None]:
        return read_ahead(self._batches(first), _BLOCKS_AHEAD * self._parts)

    def fingerprint(self) -> str:
        return f"{self._store.fingerprint} {self._parts} {self.scale!r}"

    def _batches(self, first: int) -> Iterator[RatingBlock]:
        for index in range(first // self._parts, self._store.n_blocks):
            block = self._store.read_block(index)
            parts = [self._ready(block)] if self._parts == 1 else self._cut(block)
            skipped = max(0, first - index * self._parts)
            yield from parts[skipped:]

    def _ready(self, block: RatingBlock) -> RatingBlock:
        ratings = np.clip(block.ratings, *self._range)
        users = np.concatenate((block.users, np.zeros(_SPARE, np.uint16)))
        return block._replace(users=users, ratings=self.scale.standardise(ratings))

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
        return [
            _in_item_order(_rows(R, start, stop), block.start + start, self.scale, block.items)
            for start, stop in pairwise(bounds)
        ]

    def _measured(self) -> Scale:
        store, (low, high) = self._store, self._range
        if not store.nnz or (low <= store.min and store.max <= high):
            middle, half = _middle_and_half(self._range)
            if store.nnz and store.std > _NO_SPREAD * half:
                return Scale(store.mean, store.std)
            return Scale(store.mean if store.nnz else middle, half)
        total = squares = 0.0
        middle, half = _middle_and_half(self._range)
        for block in read_ahead(map(store.read_block, range(store.n_blocks)), _BLOCKS_AHEAD):
            unit = (np.clip(block.ratings.astype(np.float64), low, high) - middle) / half
            total, squares = total + unit.sum(), squares + np.dot(unit, unit)
        mean = total / store.nnz
        std = np.sqrt(max(0.0, squares / store.nnz - mean**2))
        return Scale(middle + half * mean, half * (std if std > _NO_SPREAD else 1.0))


def _middle_and_half(rating_range: tuple[float, float]) -> tuple[float, float]:
    low, high = rating_range
    return low / 2.0 + high / 2.0, high / 2.0 - low / 2.0


def _rows(R: Any, start: int, stop: int) -> Any:
    """Rows [start, stop) of a CSR array, without copying their ratings."""
    indptr = R.indptr[start : stop + 1]
    entries = slice(indptr[0], indptr[-1])
    return sparse.csr_array(
        (R.data[entries], R.indices[entries], indptr - indptr[0]),
        shape=(len(indptr) - 1, R.shape[1]),
    )


def _in_item_order(R: Any, start: int, scale: Scale, items: Any = None) -> RatingBlock:
    """Sort some rows' ratings by item; column j of R is item items[j], or j."""
    by_item = R.tocsc()
    counts = np.diff(by_item.indptr)
    rated = np.flatnonzero(counts)
    users = np.zeros(by_item.nnz + _SPARE, np.uint16)
    users[: by_item.nnz] = by_item.indices
    return RatingBlock(
        start=start,
        stop=start + R.shape[0],
        items=(rated if items is None else items[rated]).astype(np.int32),
        indptr=np.concatenate(([0], np.cumsum(counts[rated], dtype=np.int64))),
        users=users,
        ratings=scale.standardise(by_item.data),
    )
