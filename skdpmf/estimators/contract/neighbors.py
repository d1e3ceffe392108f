"""Predictions from the nearest of a user's items (Bell and Koren's interpolation)."""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from skdpmf.estimators.contract import recommend
from skdpmf.estimators.contract.recommend import ItemModel, Ranking, ScoreTable
from skdpmf.kernels.jit_and_threads import balanced_blocks, in_threads, sized
from skdpmf.kernels.neighbors import knn_scores

_TARGETS_AT_ONCE = 1 << 14  # a block of targets, handed to one thread
# A target counts for so much in `sized`, as it needs a system of its own.
_TARGET_WORK = 1 << 10


class NeighborModel(NamedTuple):
    """Released covariance: score of a user for item i = b_i + o + A_iN (A_NN + ridge I)^-1 x_N.

    N are the n_neighbors of the user's known items with the largest weights W_ij, x the ratings
    less their items' averages b and the user's offset o, which is that of the fold-in with all
    known ratings.
    """

    covariance: np.ndarray
    """A, packed lower triangle over the items of `head`, in squared rating units."""
    weights: np.ndarray
    """W, likewise."""
    head: np.ndarray
    """int64: columns of X that the covariance covers, ascending. The others have b_i + o."""
    n_neighbors: int
    ridge: float
    """In squared rating units."""

    def scores(self, model: ItemModel, R: Any, where: Any, n_jobs: int | None = None) -> np.ndarray:
        """Return scores of a model whose first factor is the users' offset, as `entry_scores`."""
        offset = recommend.fold_in(model, R, n_jobs)[:, 0]
        known = _Known(model, self, R, offset)
        row = np.repeat(np.arange(where.shape[0]), np.diff(where.indptr))
        with sized(where.nnz * _TARGET_WORK):
            scores = known.interpolated(where.indptr, where.indices, 0, where.shape[0], n_jobs)
        return np.asarray(scores + model.offsets[where.indices] + offset[row])

    def contributions(
        self, ranking: Ranking, model: ItemModel, R: Any, items: np.ndarray, table: ScoreTable
    ) -> np.ndarray:
        """Return what each entry of a row adds to the ranking score of one item of that row's.

        Interpolated ratings are linear in the known ones less their items' averages, as long as the
        same items are known. So a rating's part is what is left where all other ratings are
        average. Arguments and result are as for `ranking_contributions`.
        """
        Z = recommend.fold_in(model, R)
        scale, table = _interpolating(ranking, model, Z, R, table)
        out = recommend.ranking_contributions(ranking, model, R, items, table)
        for i, item in enumerate(items):
            own = slice(R.indptr[i], R.indptr[i + 1])
            known, each = R.indices[own], np.arange(own.stop - own.start + 1)
            alone = np.tile(model.offsets[known], (known.size, 1))
            np.fill_diagonal(alone, R.data[own])
            parts = alone.ravel(), np.tile(known, known.size), known.size * each
            rows = sparse.csr_array(parts, shape=(known.size, R.shape[1]))
            from_rows = _Known(model, self, rows, recommend.fold_in(model, rows)[:, 0])
            asked = np.full(known.size, item)
            out[own] += scale[i] * from_rows.interpolated(each, asked, 0, known.size, None)
        return out

    def top_items(
        self,
        model: ItemModel,
        R: Any,
        n: int,
        *,
        items: np.ndarray | None = None,
        n_jobs: int | None = None,
        ranking: Ranking | None = None,
        taste: float = 0.5,
        table: Any = None,
        **options: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rank the n best items of each row; arguments and result are as for `top_items`.

        In the score of a `Ranking` p is what is interpolated, and b that of the model.
        """
        Z = recommend.fold_in(model, R, n_jobs)
        known = _Known(model, self, R, Z[:, 0])
        columns = np.arange(R.shape[1]) if items is None else items
        if ranking is None or taste == 1.0:
            ranking, table = None, ScoreTable(np.stack((model.offsets, np.ones(R.shape[1]))))
            scale = np.ones(R.shape[0])
        else:
            scale, table = _interpolating(ranking, model, Z, R, table)
            scale *= taste / (1.0 - taste)

        def interpolate(block: np.ndarray, start: int, stop: int) -> None:
            pointers = columns.size * np.arange(stop - start + 1)
            targets = np.tile(columns, stop - start)
            interpolated = known.interpolated(pointers, targets, start, stop, n_jobs)
            block += scale[start:stop, None] * interpolated.reshape(block.shape)

        with sized(R.shape[0] * columns.size * _TARGET_WORK):  # threads are those of a block
            options |= {"ranking": ranking, "taste": taste, "table": table, "rescale": interpolate}
            return recommend.top_items(model, R, n, items=items, n_jobs=1, **options)


def _interpolating(
    ranking: Ranking, model: ItemModel, Z: np.ndarray, R: Any, table: ScoreTable
) -> tuple[np.ndarray, ScoreTable]:
    """Return what interpolated ratings of rows are multiplied by, and the rest of the score."""
    scales = ranking.scales(model, Z, recommend.fold_in(ranking.lists, R), table)
    first = table.first.copy()
    first[2:] = 0.0
    return scales[:, 0], table._replace(first=first)


class _Known:
    """Centred known ratings of the head's items, in the columns of the covariance."""

    def __init__(self, model: ItemModel, near: NeighborModel, R: Any, offset: np.ndarray) -> None:
        self.neighbors = near
        self.place = np.full(R.shape[1], -1, np.int64)
        self.place[near.head] = np.arange(near.head.size)
        n = np.diff(R.indptr)
        row = np.repeat(np.arange(R.shape[0]), n)
        place = self.place[R.indices]
        inside = place >= 0
        self.indices = place[inside]
        self.residuals = (R.data - model.offsets[R.indices] - offset[row])[inside]
        counts = np.bincount(row[inside], minlength=R.shape[0])
        self.indptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))

    def interpolated(
        self, indptr: Any, items: Any, start: int, stop: int, n_jobs: int | None
    ) -> np.ndarray:
        """Interpolated x of target items, given by row pointers, of the rows [start, stop)."""
        A = self.neighbors
        targets = self.place[items]
        out = np.empty(len(targets))
        if A.head.size == 0 or len(targets) == 0:
            return np.zeros(len(targets))
        pointers = np.asarray(indptr, dtype=np.int64)
        known = self.indptr[start : stop + 1]

        def block(a: int, b: int) -> None:
            knn_scores(
                *(A.covariance, A.weights, known, self.indices, self.residuals),
                *(pointers, targets, A.n_neighbors, A.ridge, a, b, out),
            )

        blocks = balanced_blocks(pointers, 1 + len(targets) // _TARGETS_AT_ONCE)
        in_threads(block, blocks, n_jobs)
        return out
