"""Predictions from neighbours: all ways to ask agree, whatever the rows and blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy import sparse

from skdpmf.estimators.contract import neighbors as _neighbors
from skdpmf.estimators.contract import recommend
from skdpmf.estimators.contract.neighbors import NeighborModel
from skdpmf.estimators.contract.recommend import ItemModel
from tests.matrices import csr
from tests.reference import item_covariance as twin
from tests.reference.topk import top_k_row

N_ITEMS = 9


def model_of(seed=0, head=(1, 3, 4, 6, 8), n_neighbors=2, ridge=0.8):
    """A model whose covariance covers some of nine items; and its dense A and W."""
    rng = np.random.default_rng(seed)
    h = len(head)
    root = rng.normal(size=(h, h + 2))
    A, W = root @ root.T / h, rng.permutation(np.arange(h * h)).reshape(h, h) + 1.0
    W = np.maximum(W, W.T)
    factors = np.column_stack((np.ones(N_ITEMS), rng.normal(size=(N_ITEMS, 2))))
    items = ItemModel(3.0 + rng.normal(size=N_ITEMS), factors, np.diag([4.0, 1.0, 1.0]))
    lower = np.tril_indices(h)
    head = np.array(head, dtype=np.int64)
    return items, NeighborModel(A[lower], W[lower], head, n_neighbors, ridge), A, W


def rows_of(seed=0, n_rows=13, density=0.5):
    """Ratings, dense with NaN and sparse; a row without any and a full one."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n_rows, N_ITEMS)) < density, rng.integers(1, 6, N_ITEMS), np.nan)
    if n_rows > 1:
        X[0], X[1] = np.nan, 3.0
    return X, csr(X)


def everything(R):
    return sparse.csr_array(np.ones(R.shape))


def dense_scores(items, neighbors, R, **how):
    return neighbors.scores(items, R, everything(R), **how).reshape(R.shape)


def slow_scores(items, neighbors, A, W, X):
    """Users' offsets from all their ratings, interpolation from those of the head."""
    head = neighbors.head
    factors, penalty = items.factors[:, 1:], np.diag(items.ridge)
    offset = twin.ridge_users(X, items.offsets, factors, penalty[0], penalty[1])[:, 0]
    scores = items.offsets + offset[:, None] * np.ones(N_ITEMS)
    scores[:, head] = twin.knn_scores(
        X[:, head], items.offsets[head], offset, A, W, neighbors.n_neighbors, neighbors.ridge
    )
    return scores


@pytest.mark.parametrize("head", [(1, 3, 4, 6, 8), tuple(range(N_ITEMS)), (5,), (0, 8)])
@pytest.mark.parametrize("n_neighbors", [1, 2, 20])
def test_scores_are_the_twins(n_neighbors, head):
    items, neighbors, A, W = model_of(1, head, n_neighbors)
    X, R = rows_of(1)
    found = dense_scores(items, neighbors, R)
    np.testing.assert_allclose(found, slow_scores(items, neighbors, A, W, X), rtol=0, atol=1e-11)


@hypothesis_settings(max_examples=30)
@given(seed=st.integers(0, 2**16), share=st.floats(0, 1), n_rows=st.integers(1, 9))
def test_any_pattern_reads_the_full_scores(seed, share, n_rows):
    items, neighbors, *_ = model_of(seed)
    _, R = rows_of(seed, n_rows)
    asked = np.random.default_rng(seed).random(R.shape) < share
    where = csr(np.where(asked, 1.0, np.nan))
    found = neighbors.scores(items, R, where)
    np.testing.assert_allclose(found, dense_scores(items, neighbors, R)[asked], atol=1e-12)


@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("candidates", [None, [0, 3, 4, 8], [2], list(range(N_ITEMS))])
@pytest.mark.parametrize("n", [1, 4, 12])
def test_top_items_are_brute_force(n, candidates, exclude_seen):
    items, neighbors, *_ = model_of(2)
    X, R = rows_of(2)
    chosen = None if candidates is None else np.array(candidates)
    best, scores = neighbors.top_items(items, R, n, exclude_seen=exclude_seen, items=chosen)
    expected = dense_scores(items, neighbors, R)
    for row, found, its_scores in zip(range(len(X)), best, scores, strict=True):
        closed = set(np.flatnonzero(~np.isnan(X[row]))) if exclude_seen else set()
        if candidates is not None:
            closed |= set(range(N_ITEMS)) - set(candidates)
        expected_items, expected_scores = top_k_row(expected[row], closed, n)
        assert found.tolist() == expected_items
        np.testing.assert_allclose(its_scores, expected_scores, rtol=1e-12)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_blocks_and_threads_change_no_bit(n_rows, n_jobs, monkeypatch):
    """Numbers of rows that are no multiples of any block's."""
    items, neighbors, *_ = model_of(3)
    _, R = rows_of(3, n_rows)
    scores = dense_scores(items, neighbors, R)
    best = neighbors.top_items(items, R, 3)
    monkeypatch.setattr(_neighbors, "_TARGETS_AT_ONCE", 4)
    monkeypatch.setattr(recommend, "_FOLD_IN_ENTRIES", 5)
    monkeypatch.setattr(recommend, "_GEMM_SCORES", 3 * N_ITEMS)
    np.testing.assert_array_equal(dense_scores(items, neighbors, R, n_jobs=n_jobs), scores)
    again = neighbors.top_items(items, R, 3, n_jobs=n_jobs)
    np.testing.assert_array_equal(again[0], best[0])
    np.testing.assert_array_equal(again[1], best[1])
