"""Batches of users for a solver that streams them, from a matrix in memory or Parquet files."""

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from skdpmf.baselines.workers import Workers, read_ahead
from skdpmf.data.parquet_ratings import MOST_GROUP_ROWS, ParquetRatings
from skdpmf.exceptions import RatingStoreError
from skdpmf.kernels.order import item_runs, order_by_item

# Entries that the kernels may read (and ignore) behind the last rating of a batch.
_SPARE = 16
# Row groups read before they are needed: one in hand for each of a few threads.
_GROUPS_AHEAD = 3
# Ratings that are measured together: they stay in the cache.
_PIECE = 1 << 15
# A spread below this share of the rating range is rounding: all ratings are equal.
_NO_SPREAD = 1e-12


class Batch(NamedTuple):
    """Ratings of consecutive users, from row `start` to before `stop`, in item order.

    The items (n_runs,) int32 ascend; ratings ``indptr[r]:indptr[r + 1]`` (int64) belong to
    ``items[r]``; users (uint16, counted from `start`, ascending within an item) and ratings
    (float32, standardised) have spare entries behind.
    """

    start: int
    stop: int
    items: Any
    indptr: Any
    users: Any
    ratings: Any


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
    """A canonical CSR matrix, cut and sorted once by the workers, in memory: batches of users.

    ``scale`` standardises the ratings, by default with their own mean and standard deviation;
    ``spread`` is their root mean square then; ``item_counts`` are the ratings of each item. The
    ratings lie in `bounds`, and a batch has `n_rows` users.
    """

    def __init__(
        self, R: Any, bounds: Any, n_rows: int, workers: Workers, scale: Scale | None = None
    ) -> None:
        if scale is None:
            pieces = (R.data[begin : begin + _PIECE] for begin in range(0, R.nnz, _PIECE))
            scale = Scale.of(pieces, bounds)
        self.shape, self.nnz, self.scale = R.shape, R.nnz, scale
        n_rows = min(n_rows, MOST_GROUP_ROWS)
        self._R, self._n_rows = R, n_rows
        starts = range(0, R.shape[0], n_rows)

        def batch(start: int, _: int) -> Batch:
            return _in_item_order(R, start, min(start + n_rows, R.shape[0]), scale)

        self._batches: list[Batch] = workers.run(batch, starts)
        self.item_counts = np.zeros(R.shape[1], np.int64)
        squares = 0.0
        for block in self._batches:
            self.item_counts[block.items] += np.diff(block.indptr)
            squares += float(np.dot(block.ratings, block.ratings))
        self.spread = float(np.sqrt(squares / max(1, self.nnz)))

    def __len__(self) -> int:
        return len(self._batches)

    def read(self, first: int, n_rounds: int = 1) -> Generator[Batch, None, None]:
        """Yield the batches of some rounds, of the first of them from number `first` on."""
        for _ in range(n_rounds):
            yield from self._batches[first:]
            first = 0

    def fingerprint(self) -> str:
        """Return a digest of the ratings and of how they are cut."""
        digest = hashlib.blake2b(repr((self.shape, self._n_rows, self.scale)).encode())
        for part in (self._R.indptr, self._R.indices, self._R.data):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


class ParquetBatches:
    """Row groups of ratings on disk, read ahead by a thread of its own; too large ones are cut.

    They are `ParquetRatings`. Ratings outside of `bounds` are clipped to it. Batches have
    about `n_rows` users: row groups are cut in equal parts, never joined.
    """

    def __init__(self, ratings: ParquetRatings, bounds: tuple[float, float], n_rows: int) -> None:
        group_rows = ratings._group_rows
        self.shape, self.nnz = ratings.shape, ratings.nnz
        self._ratings, self._range = ratings, bounds
        self._n_groups = [-(-n // group_rows) for n in np.diff(ratings._bounds[0]).tolist()]
        self._parts = -(-group_rows // n_rows)
        self._seen: dict[str, Any] = {}
        self.item_counts = np.zeros(ratings.shape[1], np.int64)
        with closing(self._measured()) as pieces:
            self.scale, self.spread = Scale.of(pieces, bounds), 1.0

    def __len__(self) -> int:
        return sum(self._n_groups) * self._parts

    def read(self, first: int, n_rounds: int = 1) -> Generator[Batch, None, None]:
        """Yield the batches of some rounds, of the first of them from number `first` on.

        One reader goes through them all: it is at the next round while one ends.
        """
        return read_ahead(self._batches(first, n_rounds), _GROUPS_AHEAD * self._parts)

    def fingerprint(self) -> str:
        """Return a digest of the ratings and of how they are cut."""
        return f"{self._ratings.fingerprint} {self._parts} {self.scale!r}"

    def _groups(self, first: int) -> Iterator[Any]:
        for number, n_groups in enumerate(self._n_groups):
            if first < n_groups:
                yield from self._ratings._row_groups(number, self._seen, first)
            first = max(0, first - n_groups)

    def _measured(self) -> Generator[np.ndarray, None, None]:
        """Go once through the ratings, which finds damage before anything is fitted."""
        with closing(read_ahead(self._groups(0), _GROUPS_AHEAD)) as groups:
            for group in groups:
                batch, rating = self._ordered(group, Scale(0.0, 1.0)), group[-1]
                self.item_counts[batch.items] += np.diff(batch.indptr)
                yield np.clip(rating.astype(np.float64), *self._range)

    def _batches(self, first: int, n_rounds: int) -> Iterator[Batch]:
        for _ in range(n_rounds):
            skipped = first % self._parts
            for group in self._groups(first // self._parts):
                batch = self._ordered(group, self.scale)
                yield from self._cut(batch)[skipped:] if self._parts > 1 else [batch]
                skipped = 0
            first = 0

    def _ordered(self, group: Any, scale: Scale) -> Batch:
        """Return a row group as a batch, every number of which has been looked at."""
        start, n_rows, user, item, rating = group
        n, n_items = item.size, self.shape[1]
        users, ratings = np.empty(n + _SPARE, np.uint16), np.empty(n + _SPARE, np.float32)
        users[n:], ratings[n:] = 0, 0.0
        most = min(n, n_items)
        items, indptr = np.empty(most, np.int32), np.zeros(most + 1, np.int64)
        n_runs = item_runs(
            *(user, item, rating, (start, start + n_rows), n_items, self._range, tuple(scale)),
            *(items, indptr, users, ratings),
        )
        if n_runs < 0:
            raise RatingStoreError(
                f"{self._ratings.path}: ratings of the users {start} to {start + n_rows - 1} are "
                "out of range or not in the order of items: write them anew from their source."
            )
        return Batch(start, start + n_rows, items[:n_runs], indptr[: n_runs + 1], users, ratings)

    def _cut(self, batch: Batch) -> list[Batch]:
        """Cut a batch between users; a short one has as many parts, the last perhaps empty."""
        n = batch.indptr[-1]
        users, ratings = batch.users[:n], batch.ratings[:n]
        runs = np.repeat(np.arange(len(batch.items)), np.diff(batch.indptr))
        step = -(-self._ratings._group_rows // self._parts)
        parts = []
        for part in range(self._parts):
            low = min(batch.start + part * step, batch.stop)
            high = min(low + step, batch.stop)
            here = (users >= low - batch.start) & (users < high - batch.start)
            counts = np.bincount(runs[here], minlength=len(batch.items))
            known = counts > 0
            indptr = np.append(0, np.cumsum(counts[known]))
            own = _spared(users[here] - np.uint16(low - batch.start)), _spared(ratings[here])
            parts.append(Batch(low, high, batch.items[known], indptr, *own))
        return parts


def _spared(values: Any) -> Any:
    """Return the values with spare entries behind."""
    return np.append(values, np.zeros(_SPARE, values.dtype))


def _in_item_order(R: Any, start: int, stop: int, scale: Scale) -> Batch:
    """Sort the ratings of rows [start, stop) by item."""
    own = R.indices[R.indptr[start] : R.indptr[stop]]
    counts = np.bincount(own, minlength=R.shape[1])
    items = np.flatnonzero(counts)
    places = np.cumsum(counts) - counts
    size = len(own) + _SPARE
    users, ratings = np.zeros(size, np.uint16), np.zeros(size, np.float32)
    order_by_item(
        *(R.indptr, R.indices, R.data, start, stop, scale.mean, scale.std),
        *(places, users, ratings),
    )
    indptr = np.append(0, np.cumsum(counts[items]))
    return Batch(start, stop, items.astype(np.int32), indptr, users, ratings)


Batches = MatrixBatches | ParquetBatches
