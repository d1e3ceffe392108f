"""Answers of a released item model for rows of ratings, in blocks of rows and threads.

Plain functions of arrays: fold-in, scores at stored positions, top-n lists. A block's result
does not depend on the number of threads, because the blocks are cut without looking at it. In all
of them ``model`` are the released items, and R, a csr_array of shape (n_rows, n_items), the
canonical ratings of the rows, float64.
"""

from collections.abc import Callable
from contextlib import ContextDecorator
from numbers import Real
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from skdpmf.data.matrix import rank_in_groups
from skdpmf.data.validation import middle_and_quarter
from skdpmf.estimators.contract.parameters import require
from skdpmf.kernels.als import solve_rows_weighted
from skdpmf.kernels.averaging import TASTE_PENALTIES, TASTE_PRIOR, solve_rows_averaged
from skdpmf.kernels.jit_and_threads import ANSWER_WORK, balanced_blocks, in_threads, sized
from skdpmf.kernels.rows import predict_entries
from skdpmf.kernels.topk import top_k_rows
from skdpmf.mechanisms.als.pooled import user_features

# Stored entries of a fold-in block: some 10 ms of work, against 0.1 ms to hand it to a thread.
_FOLD_IN_ENTRIES = 1 << 16
# Scores of one gemm in `top_items`: 8 MiB, which the top-n scan finds in the cache again.
_GEMM_SCORES = 1 << 20
# Rows of one task in `top_items`.
_TASK_ROWS = 2048
# Of `Ranking`: c, s_0, the power of 1 - k_i, the weight of m_j; of features: f, n_0 and h.
_TASTES, _LEAST_SPREAD, _POWER, _MEANS = 0.5, 0.2, 1.5, 0.5
_STATED, _USUAL, _RARE = 1.5, 4.0, 0.1


class ItemModel(NamedTuple):
    """Released items, in rating units: score of user z for item j = offsets[j] + z . factors[j].

    The user's z is the ridge fold-in of the row r of n known ratings, z = p + argmin over d of
    sum_j (r_j - offsets[j] - (p + d) . factors[j])^2 + d' ridge d + l |d|^2, l being n rating_ridge
    and the sum of the rated items' item_ridge; an empty row has z = 0. The prior mean p is 0, or
    linear in what the row has rated.

    With `implicit` the r_j are not ratings but weights > 0 of clicks, whose targets are 1:
    sum_j r_j (1 - offsets[j] - (p + d) . factors[j])^2 in place of the first sum. What items
    without a click weigh is then part of `ridge`.

    With `features` D the score is offsets[j] + z . factors[j] + t . D_j, t the user's tastes: the
    mean over t = 0 and some t ~ N(0, variance / l), as the row's own ratings argue for each of them
    (`skdpmf.kernels.averaging`). They are the last coordinates of what `fold_in` returns.

    With an `encoder` z = sum_j r_j encoder[j] (r_j = 1 unless `implicit`), and the score of item j
    leaves out what j itself adds to z: an item-item model of low rank. `ridge` is empty then.
    """

    offsets: np.ndarray
    """float64 of shape (n_items,)."""
    factors: np.ndarray
    """float64 of shape (n_items, d). The last k columns belong to the user's embedding."""
    ridge: np.ndarray
    """float64 of shape (d, d), symmetric positive semidefinite."""
    rating_ridge: float = 0.0
    """Penalty >= 0 for each rating of the row."""
    prior: np.ndarray | None = None
    """float64 of shape (d + 1, d): p = `user_features` of the row @ prior; None: p = 0."""
    implicit: bool = False
    """Whether stored values are the weights of clicks."""
    encoder: np.ndarray | None = None
    """float64 of shape (n_items, d)."""
    features: np.ndarray | None = None
    """float64 of shape (n_items, p): public columns; neither with `encoder` nor with `implicit`."""
    variance: float = 1.0
    """> 0, a guess of that of a rating around its score; where there are features."""
    item_ridge: np.ndarray | None = None
    """float64 of shape (n_items,): penalty >= 0 for each rating of the item. None: 0."""

    @property
    def columns(self) -> np.ndarray:
        """Coordinates of the items, for those of `fold_in`."""
        if self.features is None:
            return self.factors
        return np.hstack((self.factors, self.features))

    def own(self, indices: np.ndarray, ratings: np.ndarray) -> np.ndarray:
        """Return the part of each entry of a row in its own score, with an encoder."""
        assert self.encoder is not None
        columns, place = np.unique(indices, return_inverse=True)
        each = np.einsum("jd,jd->j", self.encoder[columns], self.factors[columns])[place]
        return np.asarray(each * ratings if self.implicit else each)


class Ranking(NamedTuple):
    """Lists by what people choose and by what the person says: logarithms of a chance.

    With N_j the popularity, x_ij what the user's items add to it, and the predicted rating
    m_j + p_ij in quarters of the rating range, the score of item j for a row of n_i ratings is

        log(N_j + max(x_ij, 0)) + m_j / 2 + b_i p_ij + a_i g_ij.

    All but the first term are multiplied by taste / (1 - taste). b_i = c (1 - k_i)^1.5 / sqrt(s_i^2
    + s_0^2), s_i the standard deviation of p_ij over what people choose, so that tastes move a list
    as far where ratings separate items a lot, and less where they say little. k_i is the part of
    the variance of x_ij that N_j does not explain: what choices say of tastes need not be said
    twice.

    g_i is what a person states of public features: the sum over the rated l of e_l E_l . E_j, e_l
    being r_l - m_l less their sum / (n_i + n_0), and E the centred columns of the features, each
    divided by sqrt(v + h mean v), v its variance over what people choose. Of two rated items, e E
    has the mean cosine q_i, weighted by lengths. By chance q_i deviates by d_i = sqrt(2 / (d n_i
    (n_i - 1))), d the effective number of columns. a_i makes the standard deviation of the last
    term f max(q_i - d_i, 0) times that of log N_j: four films of one genre at the highest rating
    agree, and lists show more of it the longer the tail is that its films stand in.
    """

    lists: ItemModel
    """With an encoder, of no column where there is popularity alone; offsets N > 0, factors x. Both
    are float32."""
    unit: float
    """A quarter of the rating range."""

    def scales(self, model: ItemModel, Z: Any, Y: Any, table: Any) -> np.ndarray:
        """Return what rows Z are multiplied by, (n_rows, 1); Y: their fold-ins into the lists."""
        deviation = np.sqrt(_quadratic(Z, table.spread)) / self.unit
        share, choices = np.ones(len(Z)), table.choices
        if Y.shape[1]:
            explained = (Y @ choices[0, 1:]) ** 2
            whole = np.maximum(choices[0, 0] * _quadratic(Y, choices[1:, 1:]), explained)
            np.divide(explained, whole, out=share, where=whole > 0.0)
        scales = _TASTES * share**_POWER / np.hypot(deviation, _LEAST_SPREAD)
        return np.asarray(scales / self.unit)[:, None]

    def stated(
        self, model: ItemModel, rows: tuple[np.ndarray, ...], table: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the coordinates T of a_i g_i, the a_i e_l and the squared scales of features.

        rows: indptr, indices, ratings. Shapes: (n_rows, p), (nnz,) and (p,).
        """
        indptr, indices, ratings = rows
        assert model.features is not None
        n, D = np.diff(indptr), model.features
        S, row = table.spread[-D.shape[1] :, -D.shape[1] :], np.repeat(np.arange(len(n)), n)

        def total(values: np.ndarray) -> np.ndarray:
            return np.bincount(row, values, minlength=len(n))

        w = 1.0 / np.maximum(np.diag(S) + _RARE * np.diag(S).mean(), 1e-12)
        e = (ratings - model.offsets[indices]) / self.unit
        e -= (total(e) / (n + _USUAL))[row]
        squares = e**2 * ((D[indices] - table.centre) ** 2 @ w)
        T = _csr(e, indices, indptr, len(D)) @ D - total(e)[:, None] * table.centre
        one, all_pairs = total(squares), total(np.sqrt(squares)) ** 2
        q, pairs = T**2 @ w - one, all_pairs - one
        q = np.divide(q, pairs, out=np.zeros(len(n)), where=pairs > 1e-9 * all_pairs)
        by_chance = w @ S**2 @ w / (w @ np.diag(S)) ** 2
        q -= np.sqrt(2.0 * by_chance / np.maximum(n * (n - 1.0), 1.0))
        T *= w
        size = np.sqrt(_quadratic(T, S))
        a = _STATED * table.deviation * np.maximum(q, 0.0)
        a = np.divide(a, size, out=np.zeros(len(n)), where=size > 0.0)
        return a[:, None] * T, a[row] * e, w


class ScoreTable(NamedTuple):
    """Scores of rows are ``Z[:, :p] @ first`` and, at the columns `listed`, ``Z[:, p:] @ second``.

    With a `floor` it is the logarithm of floor and what the latter is above 0 that is added. Lists
    are of the most popular items: of the others nothing has to be read.
    """

    first: np.ndarray
    """(p, n_items)."""
    second: np.ndarray = np.empty((0, 0))
    """(q, n_listed)."""
    listed: np.ndarray = np.empty(0, np.int64)
    """int64 of shape (n_listed,), ascending."""
    floor: np.ndarray = np.empty(0)
    """(n_listed,) or (0,)."""
    spread: np.ndarray = np.empty((0, 0))
    """(d, d): covariance of the model's columns over what people choose; for `Ranking`."""
    choices: np.ndarray = np.zeros((1, 1))
    """(q + 1, q + 1): that of the popularity and of the lists' factors."""
    centre: np.ndarray = np.empty(0)
    """(p,): mean of the features over what people choose."""
    deviation: float = 0.0
    """Standard deviation of the logarithm of the popularity over what people choose."""

    def columns(self, items: np.ndarray) -> np.ndarray:
        """Return the columns of some items, (n_items, p + q)."""
        second = np.zeros((len(self.second), items.size))
        among = np.isin(items, self.listed)
        second[:, among] = self.second[:, np.searchsorted(self.listed, items[among])]
        return np.concatenate((self.first[:, items], second)).T

    def of(self, items: np.ndarray) -> "ScoreTable":
        """Return the table of some items."""
        among = np.isin(self.listed, items)
        places = np.searchsorted(items, self.listed[among])
        first, second = (np.ascontiguousarray(part) for part in (self.first[:, items], self.second))
        floor = self.floor[among] if self.floor.size else self.floor
        return ScoreTable(first, np.ascontiguousarray(second[:, among]), places, floor, *self[4:])

    def scores(self, Z: np.ndarray, out: np.ndarray, own: Any = None) -> np.ndarray:
        """Write the scores of rows Z (n_rows, p + q) to `out`.

        own (csr_array of shape (n_rows, n_items)): is subtracted from what is listed.
        """
        p = len(self.first)
        np.matmul(Z[:, :p], self.first, out=out)
        if self.listed.size:
            listed = Z[:, p:].astype(self.second.dtype) @ self.second
            if own is not None:
                listed -= own[:, self.listed].toarray()
            if self.floor.size:
                np.maximum(listed, 0.0, out=listed)
                listed += self.floor
                np.log(listed, out=listed)
            out[:, self.listed] += listed
        return out


def item_item_model(lists: Any, *, implicit: bool) -> ItemModel:
    """Return the model of released `Lists`."""
    kind = np.float64 if implicit else np.float32  # of a ranking: half to read for each answer
    factors, encoder = (np.ascontiguousarray(x, kind) for x in (lists.decoder, lists.encoder))
    ridge = np.empty((0, 0))
    return ItemModel(lists.offsets, factors, ridge, implicit=implicit, encoder=encoder)


def fold_in(model: ItemModel, R: Any, n_jobs: int | None = None) -> np.ndarray:
    """Return the z of each row, with its t where there are features: (n_rows, d) or (., d + p)."""
    blocks = balanced_blocks(R.indptr, 1 + R.nnz // _FOLD_IN_ENTRIES)
    return np.concatenate(_in_threads(_fold_in_block, model, R, blocks, n_jobs))


def _fold_in_block(model: ItemModel, R: Any, start: int, stop: int) -> np.ndarray:
    rows = indptr, indices, ratings = _rows(R, start, stop)
    z = np.zeros((stop - start, model.factors.shape[1]))
    if model.features is not None:
        return _with_tastes(model, rows)[0]
    if not z.shape[1]:
        return z
    if model.encoder is not None:
        weights = ratings if model.implicit else np.ones_like(ratings)
        weights = weights.astype(model.encoder.dtype)
        return np.asarray(_csr(weights, indices, indptr, R.shape[1]) @ model.encoder)
    weights = np.empty(0)
    if model.implicit:
        weights, ratings = ratings, np.ones_like(ratings)
    row_ridge, prior, residuals = _expected(model, (indptr, indices, ratings))
    solve_rows_weighted(
        *(indptr, indices, residuals, weights, model.factors, model.ridge, row_ridge),
        *(0, stop - start, z),
    )
    z += prior
    return z


def _expected(model: ItemModel, rows: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return the penalties l and prior means p of rows, and what these leave of their targets."""
    indptr, indices, targets = rows
    ridges = model.rating_ridge * np.diff(indptr)
    if model.item_ridge is not None:
        each = np.ones(indices.size)
        ridges = ridges + _csr(each, indices, indptr, model.offsets.size) @ model.item_ridge
    residuals = targets - model.offsets[indices]
    prior = np.zeros((indptr.size - 1, model.factors.shape[1]))
    if model.prior is not None:
        prior = user_features(indptr, indices, model.factors) @ model.prior
        expected = np.empty(indices.size)
        predict_entries(indptr, indices, prior, model.factors, 0, len(prior), expected)
        residuals -= expected
    return np.asarray(ridges, dtype=np.float64), prior, residuals


def _with_tastes(model: ItemModel, rows: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return (z, t) of rows, and the weights of t = 0 and of each strength."""
    assert model.features is not None
    row_ridge, prior, residuals = _expected(model, rows)
    n_rows, (indptr, indices, _) = len(prior), rows
    if indices.size < model.offsets.size:  # a few rows need the columns of their items alone
        rated, places = np.unique(indices, return_inverse=True)
        columns = np.hstack((model.factors[rated], model.features[rated]))
        indices = places.astype(indices.dtype)  # else the kernel is compiled twice
    else:
        columns = np.ascontiguousarray(model.columns)
    z, weights = np.empty((n_rows, columns.shape[1])), np.empty((n_rows, TASTE_PRIOR.size))
    solve_rows_averaged(
        *(indptr, indices, residuals, columns, model.ridge, row_ridge),
        *((TASTE_PENALTIES, TASTE_PRIOR, model.variance), 0, n_rows, z, weights),
    )
    z[:, : prior.shape[1]] += prior
    return z, weights


def entry_scores(model: ItemModel, R: Any, where: Any, n_jobs: int | None = None) -> Any:
    """Return the unclipped scores at the stored positions of a canonical csr_array, in its order.

    where: of the shape of R. Returns (where.nnz,).
    """
    Z = fold_in(model, R, n_jobs)
    blocks = balanced_blocks(where.indptr, 1 + where.nnz // _FOLD_IN_ENTRIES)
    scores = np.concatenate(_in_threads(_entries_block, model, where, blocks, n_jobs, Z))
    if model.encoder is not None:
        own = _csr(model.own(R.indices, R.data), R.indices, R.indptr, R.shape[1])
        rows = np.repeat(np.arange(where.shape[0]), np.diff(where.indptr))
        scores -= own[rows, where.indices]
    return scores


def all_scores(model: ItemModel, R: Any, n_jobs: int | None = None) -> np.ndarray:
    """Scores of all items for each row of canonical ratings, (n_rows, n_items)."""
    scores = fold_in(model, R, n_jobs) @ model.columns.T
    scores += model.offsets
    if model.encoder is not None:
        rows = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
        scores[rows, R.indices] -= model.own(R.indices, R.data)
    return scores


def ranking_of(lists: Any, log_popularity: np.ndarray, rating_range: Any) -> Ranking:
    """Return the ranking by what people choose, of released `Lists` or None, and by ratings."""
    if lists is not None and lists.decoder.shape[1]:
        chosen = item_item_model(lists, implicit=False)
    else:
        nothing = np.zeros((log_popularity.size, 0), np.float32)
        N = np.exp(log_popularity - log_popularity.max())
        chosen = ItemModel(N, nothing, np.empty((0, 0)), encoder=nothing)
    return Ranking(chosen, float(middle_and_quarter(rating_range)[1]))


def check_share(taste: Any) -> float:
    """Return the `taste` of a list, 0.5 for None."""
    share: Any = 0.5 if taste is None else taste
    is_share = isinstance(share, Real) and 0.0 <= float(share) <= 1.0
    rule = "None or a number from 0 to 1"
    require(is_share, "taste", taste, rule, "0 ranks by what people choose, 1 by own taste")
    return float(share)


def contributions(
    model: ItemModel, R: Any, items: np.ndarray, columns: np.ndarray | None = None
) -> np.ndarray:
    """Return the part of each entry of a row in the score of one item of that row.

    Scores are linear in a row's ratings: score = offset + prior + sum of contributions. With tastes
    they are so for the weights that the row's ratings give to their strengths.

    items (int64 ndarray of shape (n_rows,)): those whose scores are explained; columns (n_rows,
    d + p): in place of the items' own. Returns (R.nnz,).
    """
    row = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
    if model.encoder is not None:
        weight = R.data if model.implicit else 1.0
        each = weight * np.einsum("ed,ed->e", model.encoder[R.indices], model.factors[items][row])
        return np.where(R.indices == items[row], 0.0, each)
    asked = model.columns[items] if columns is None else columns
    columns, k = model.columns, model.factors.shape[1]
    if not columns.shape[1]:
        return np.zeros(R.nnz)
    out, strengths, weights = np.empty(R.nnz), (0.0,), np.ones((R.shape[0], 1))
    if model.features is not None:
        strengths = (0.0, *TASTE_PENALTIES)
        weights = _with_tastes(model, (R.indptr, R.indices, R.data))[1]
    targets = np.ones(R.nnz) if model.implicit else R.data
    ridges, _, residuals = _expected(model, (R.indptr, R.indices, targets))
    for i in range(R.shape[0]):
        own = slice(R.indptr[i], R.indptr[i + 1])
        C, toward = columns[R.indices[own]], np.zeros(columns.shape[1])
        each = R.data[own] if model.implicit else np.ones(len(C))
        for strength, weight in zip(strengths, weights[i], strict=True):
            d = C.shape[1] if strength else k
            A = (C[:, :d] * each[:, None]).T @ C[:, :d] + strength * np.eye(d)
            A[:k, :k] += model.ridge + (ridges[i] - strength) * np.eye(k)
            if not np.isfinite(A).all():  # a forged model may say so, and LAPACK raises
                continue
            toward[:d] += weight * np.linalg.lstsq(A, asked[i, :d], rcond=None)[0]
        out[own] = each * residuals[own] * (C @ toward)
    return out


def ranking_contributions(
    ranking: Ranking | None, model: ItemModel, R: Any, items: np.ndarray, table: ScoreTable
) -> np.ndarray:
    """Return the part of each entry of a row in the ranking score of one item of that row.

    The score is log N_j + 1/2 m_j, what the prior mean gives, and the sum of the parts, for the
    weights that the row's ratings give. Arguments and result are as for `contributions`.
    """
    if ranking is None:
        return contributions(model, R, items)
    row = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
    scales = ranking.scales(model, fold_in(model, R), fold_in(ranking.lists, R), table)
    parts = contributions(model, R, items, scales * table.first[2:, items].T)
    if model.features is not None:
        _, ae, w = ranking.stated(model, _rows(R, 0, R.shape[0]), table)
        rated, asked = (model.features[each] - table.centre for each in (R.indices, items))
        parts += ae * np.einsum("ed,ed->e", rated * w, asked[row])
    chosen = contributions(ranking.lists, R, items)
    total, N = np.bincount(row, chosen, minlength=R.shape[0]), ranking.lists.offsets[items]
    share = np.log1p(np.maximum(total, 0.0) / N) / np.where(total > 0.0, total, 1.0)
    return np.asarray(parts + chosen * share[row])


def _entries_block(model: ItemModel, where: Any, start: int, stop: int, Z: Any) -> np.ndarray:
    indptr, indices, _ = _rows(where, start, stop)
    scores = np.zeros(indices.size)
    if Z.shape[1]:
        columns = np.ascontiguousarray(model.columns)
        predict_entries(indptr, indices, Z[start:stop], columns, 0, stop - start, scores)
    return scores + model.offsets[indices]


def top_items(
    model: ItemModel,
    R: Any,
    n: int,
    *,
    exclude_seen: bool = True,
    exclude: Any = None,
    items: np.ndarray | None = None,
    n_jobs: int | None = None,
    ranking: Ranking | None = None,
    taste: float = 0.5,
    table: ScoreTable | None = None,
    rescale: Callable | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Rank the n best items of each row, without a matrix of n_rows x n_items.

    exclude_seen: leave out the items that the row has rated; exclude (csr_array like R): leave out
    what it stores as well; items: the candidates, ascending, None: all; ranking: what ranks beside
    the model; taste: from 0 to 1, where predicted ratings alone rank; table: `score_table` of both,
    if it is there already; rescale: ``rescale(block, start, stop)`` changes the scores of rows
    [start, stop), in place. Returns items, int64 (n_rows, n), the best first, of equal scores the
    smaller, and their scores, float64; -1 and -inf where no item is left.
    """
    if ranking is not None and taste == 1.0:
        ranking = table = None
    n_rows = R.shape[0]
    blocks = [(a, min(a + _TASK_ROWS, n_rows)) for a in range(0, n_rows, _TASK_ROWS)]
    if table is None:
        table = score_table(model, ranking)
    hidden = R if exclude_seen else sparse.csr_array(R.shape)
    if exclude is not None:
        hidden = union_of(exclude, hidden)
    if items is not None:
        table, hidden = table.of(items), hidden[:, items]

    def block(model: ItemModel, R: Any, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        change, own = rescale, None
        if ranking is not None:
            Z = _ranking_rows(ranking, model, R, start, stop, taste, table)
            if not exclude_seen and table.listed.size:
                own = _own(ranking.lists, R, start, stop, items)
        else:
            Z = np.column_stack((np.ones(stop - start), _fold_in_block(model, R, start, stop)))
            if rescale is None and not exclude_seen and model.encoder is not None:

                def change(scores: np.ndarray, first: int, last: int) -> None:
                    scores -= _own(model, R, first, last, items).toarray()

        return _ranked(Z, table, _rows(hidden, start, stop), n, change, start, own)

    with _ONE_BLAS_THREAD:
        parts = _in_threads(block, model, R, blocks, n_jobs)
    best, scores = map(np.concatenate, zip(*parts, strict=True))
    if items is not None:
        best = np.append(items, -1)[best]
    return best, scores


def score_table(model: ItemModel, ranking: Ranking | None) -> ScoreTable:
    """Return the table of the scores offset + z . factor that rank, of rows [1, z].

    z is a row's fold-in into the model. With a ranking it is that of rows `_ranking_rows`.
    """
    offsets, columns = model.offsets, model.columns
    if ranking is None:
        return ScoreTable(np.ascontiguousarray(np.column_stack((offsets, columns)).T))
    N, factors = ranking.lists.offsets, ranking.lists.factors
    listed = np.flatnonzero(factors.any(axis=1))
    log = np.log(N)
    log[listed] = 0.0
    share, chosen = N / N.sum(), np.column_stack((N, factors))
    columns, chosen = columns - share @ columns, chosen - share @ chosen
    first = np.ascontiguousarray(np.column_stack((log, offsets, columns)).T)
    second = np.ascontiguousarray(factors[listed].T)
    spread, choices = ((part * share[:, None]).T @ part for part in (columns, chosen))
    table = ScoreTable(first, second, listed, N[listed], spread, choices)
    if model.features is None:
        return table
    deviation = np.sqrt(share @ (np.log(N) - share @ np.log(N)) ** 2)
    return table._replace(centre=share @ model.features, deviation=float(deviation))


def _quadratic(Z: np.ndarray, A: np.ndarray) -> np.ndarray:
    """Return z' A z >= 0 of rows z."""
    return np.maximum(np.einsum("id,id->i", Z @ A, Z), 0.0)


def _ranking_rows(
    ranking: Ranking, model: ItemModel, R: Any, start: int, stop: int, taste: float, table: Any
) -> np.ndarray:
    """Return rows [1, weight of m, b z, y], y the fold-in of the row into the lists."""
    rated, chosen = rated_rows(ranking, model, R, start, stop, table)
    odds, one = taste / (1.0 - taste), np.ones(stop - start)
    return np.column_stack((one, one * (odds * _MEANS / ranking.unit), odds * rated, chosen))


def rated_rows(
    ranking: Ranking, model: ItemModel, R: Any, start: int, stop: int, table: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of what ratings add to scores, and the fold-ins into the lists."""
    Z, chosen = (_fold_in_block(each, R, start, stop) for each in (model, ranking.lists))
    rated = Z * ranking.scales(model, Z, chosen, table)
    if table.centre.size:
        stated = ranking.stated(model, _rows(R, start, stop), table)[0]
        rated[:, -table.centre.size :] += stated
    return rated, chosen


def union_of(some: Any, more: Any) -> Any:
    """Return the pattern of what one CSR array stores, and another one if there is one."""
    if more is None:
        return some
    one, two = (_csr(np.ones(X.nnz), X.indices, X.indptr, X.shape[1]) for X in (some, more))
    return one + two


def _own(model: ItemModel, R: Any, start: int, stop: int, items: np.ndarray | None) -> Any:
    """Return the own parts of what rows have, a csr_array of their rows and the items."""
    indptr, indices, ratings = _rows(R, start, stop)
    own = _csr(model.own(indices, ratings), indices, indptr, R.shape[1])
    return own if items is None else own[:, items]


def _ranked(
    Z: np.ndarray, table: ScoreTable, pattern: Any, n: int, rescale: Any, start: int, own: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The n best columns of the scores of rows from `start` on, but for those of a CSR pattern."""
    n_rows, n_items = Z.shape[0], table.first.shape[1]
    indptr, indices, *_ = pattern
    items, scores = np.empty((n_rows, n), np.int64), np.empty((n_rows, n))
    step = max(1, min(n_rows, _GEMM_SCORES // n_items))
    buffer = np.empty((step, n_items))
    for a in range(0, n_rows, step):
        b = min(a + step, n_rows)
        block = table.scores(Z[a:b], buffer[: b - a], None if own is None else own[a:b])
        if rescale is not None:
            rescale(block, start + a, start + b)
        top_k_rows(block, indptr, indices, a, n, items[a:b], scores[a:b])
    return items, scores


def nearest_items(components: ScoreTable, queries: np.ndarray, n: int) -> Any:
    """Rank the items by the Tanimoto similarity of their factors to those of the queries.

    It is <a, b> / (|a|^2 + |b|^2 - <a, b>): 1 only for equal factors. A cosine would call the short
    vector of a rare item, mere noise in a private model, as near as a popular item's.

    components: the released factors as columns; queries: int64 columns, (n_queries,). Returns
    items, scores (n_queries, n), as from `top_items`; a query is not its own neighbour, a zero
    factor has similarity 0.
    """
    first, second, listed = components[:3]
    squares = np.einsum("kj,kj->j", first, first)
    squares[listed] += np.einsum("kj,kj->j", second, second)

    def tanimoto(products: np.ndarray, start: int, stop: int) -> None:
        union = squares[queries[start:stop], None] + squares - products
        np.divide(products, union, out=products, where=union > 0)

    own = np.arange(queries.size + 1), queries
    with _ONE_BLAS_THREAD, sized(queries.size * ANSWER_WORK):
        return _ranked(components.columns(queries), components, own, n, tanimoto, 0, None)


def hidden_fifth(R: Any) -> np.ndarray:
    """Choose a fifth of each row's entries, the same at every call.

    The choice is a fixed hash of the row's items: it changes neither with the other rows nor with
    the row's place, so that a score repeats. A row of n entries has n // 5 or n // 5 + 1 hidden,
    n / 5 on average. This is a device of evaluation, not a source of privacy. Returns (R.nnz,)
    bool: True at the hidden entries.
    """
    n_rated = np.diff(R.indptr)
    row = np.repeat(np.arange(n_rated.size), n_rated)
    item_hash = _mixed(R.indices.astype(np.uint64))
    total = np.concatenate((np.zeros(1, np.uint64), np.cumsum(item_hash)))
    row_hash = _mixed(total[R.indptr[1:]] - total[R.indptr[:-1]])
    n_hidden = (n_rated + (row_hash % np.uint64(5)).astype(np.int64)) // 5
    return rank_in_groups(_mixed(item_hash ^ row_hash[row]), row) < n_hidden[row]


def recall(targets: Any, ranked: np.ndarray) -> float:
    """Mean over users with targets of the share of min(k, targets) that is among k ranked items.

    As `skdpmf.evaluation.recall_at_k`, which has the source and checks its arguments.

    targets (csr_array like R): stored entries are each row's targets, at least one in all; ranked
    (n_rows, k): from `top_items`. Result: between 0 and 1.
    """
    n_targets = np.diff(targets.indptr)
    row = np.repeat(np.arange(n_targets.size), n_targets)
    n_items = targets.shape[1]
    cells = np.arange(n_targets.size)[:, None] * n_items + ranked
    found = np.isin(row * n_items + targets.indices, cells[ranked >= 0])
    hits = np.bincount(row[found], minlength=n_targets.size)
    counted = n_targets > 0
    return float(np.mean(hits[counted] / np.minimum(n_targets[counted], ranked.shape[1])))


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): spreads 64 bits over 64 bits."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _csr(values: Any, indices: Any, indptr: Any, n_items: int) -> Any:
    return sparse.csr_array((values, indices, indptr), shape=(len(indptr) - 1, n_items))


def _rows(R: Any, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The CSR arrays of rows [start, stop); writable, or kernels would be compiled twice."""
    indptr = R.indptr[start : stop + 1]
    entries = slice(indptr[0], indptr[-1])
    indices, values = (np.require(a[entries], requirements="W") for a in (R.indices, R.data))
    return indptr - indptr[0], indices, values


def _in_threads(
    block: Callable, model: ItemModel, R: Any, blocks: Any, n_jobs: int | None, *args: Any
) -> list:
    """Run ``block(model, R, start, stop, *args)`` on each block of rows, in order."""
    offsets, factors, ridge = (np.require(part, np.float64, ["C", "W"]) for part in model[:3])
    model = model._replace(offsets=offsets, factors=factors, ridge=ridge)
    with sized(R.shape[0] * ANSWER_WORK):
        return in_threads(lambda *rows: block(model, R, *rows, *args), blocks or [(0, 0)], n_jobs)


class _OneBlasThread(ContextDecorator):
    """While any thread is inside, BLAS uses one thread: no oversubscription, one order of sums.

    threadpoolctl's own context restores what it found, which two overlapping callers get wrong.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._controller: Any = None
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._controller is None:
                from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

                self._controller = ThreadpoolController()
            if self._inside == 0:
                self._limit = self._controller.limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


_ONE_BLAS_THREAD = _OneBlasThread()
