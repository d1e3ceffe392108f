"""Predictions of DPCovarianceRecommender: all ways to ask agree, on matrices of all kinds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from skdpmf import DPCovarianceRecommender
from skdpmf.data import make_ratings
from tests.blocks import make_small
from tests.estimators.test_dp_covariance import (
    NOISES,
    PREDICTORS,
    SHARES,
    UNITS,
    budget_of,
    fitted,
)
from tests.reference.topk import top_k_row


@pytest.fixture(scope="module")
def small():
    return make_ratings(80, 12, density=0.5, random_state=0)


@pytest.fixture(scope="module")
def knn(small):
    params = {"predictor": "knn", "n_neighbors": 3, "rating_range": (2.0, 4.0)}
    return fitted(small, budget_of(20.0, "rating"), shares=(0.0, 0.4, 0.6), **params)


def test_all_ways_to_ask_agree(knn, small):
    scores = knn.decision_function(small)
    assert scores.min() < 2.0 or scores.max() > 4.0
    predicted = knn.predict(small)
    np.testing.assert_array_equal(predicted, np.clip(scores, 2.0, 4.0))
    where = make_ratings(80, 12, density=0.3, random_state=5)
    entries = knn.predict_entries(small, where)
    rows, columns = entries.nonzero()
    np.testing.assert_allclose(entries.data, predicted[rows, columns], rtol=0, atol=1e-12)
    truth = np.asarray(where.tocsr()[rows, columns]).ravel()
    rmse = np.sqrt(np.mean((entries.data - truth) ** 2))
    assert knn.score(small, where) == pytest.approx(-rmse, rel=1e-12)


@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("items", [None, [5, 0, 7, 7], [3]])
def test_recommendations_are_the_best_scores(items, exclude_seen, knn, small):
    best, best_scores = knn.recommend(small, 4, exclude_seen=exclude_seen, candidates=items)
    scores, R = knn.decision_function(small), small.tocsr()
    for row in range(80):
        closed = set(R.indices[R.indptr[row] : R.indptr[row + 1]]) if exclude_seen else set()
        if items is not None:
            closed |= set(range(12)) - set(items)
        expected, expected_scores = top_k_row(scores[row], closed, 4)
        assert best[row].tolist() == expected
        np.testing.assert_allclose(best_scores[row], expected_scores, rtol=1e-12)


def test_the_best_unseen_item(small):
    model = DPCovarianceRecommender(budget_of(20.0), predictor="knn", random_state=0)
    model.fit(small, np.zeros(80, dtype=np.int64))
    best = model.predict(small)
    np.testing.assert_array_equal(best, model.recommend(small, 1)[0][:, 0])
    assert model.score(small, best) == 1.0


@PREDICTORS
def test_users_without_ratings_get_the_item_means(predictor, small):
    model = fitted(small, predictor=predictor, shares=SHARES)
    for empty in (sparse.csr_array((3, 12)), np.full((3, 12), np.nan)):
        np.testing.assert_allclose(
            model.decision_function(empty), [model.item_means_] * 3, rtol=1e-12
        )
        np.testing.assert_array_equal(model.transform(empty), 0.0)
        best, _ = model.recommend(empty, 12)
        assert best[0].tolist() == sorted(range(12), key=lambda j: (-model.item_means_[j], j))
        assert model.predict_entries(empty, empty).nnz == 0


@pytest.mark.parametrize("n_rows", [1, 2, 7, 80])
@PREDICTORS
def test_numbers_of_rows_that_are_no_multiple_of_a_block(predictor, n_rows, small, monkeypatch):
    model = fitted(small, predictor=predictor, shares=SHARES, n_neighbors=2)
    rows = small.tocsr()[:n_rows]
    scores, best = model.decision_function(rows), model.recommend(rows, 3)
    make_small(monkeypatch)
    np.testing.assert_allclose(model.decision_function(rows), scores, rtol=0, atol=1e-12)
    again = model.recommend(rows, 3)
    np.testing.assert_array_equal(again[0], best[0])
    np.testing.assert_allclose(again[1], best[1], rtol=0, atol=1e-12)


SHAPES = {
    "one item": np.array([[5.0], [3.0], [np.nan]]),
    "two items": np.array([[5.0, 1.0], [3.0, np.nan], [np.nan, 2.0]]),
    "one user": np.array([[5.0, 3.0, np.nan, 1.0]]),
    "one rating": np.array([[np.nan, 4.0]]),
    "all 5": np.full((7, 5), 5.0),
    "all 4.3": np.full((7, 5), 4.3),
    "no rating": np.full((4, 3), np.nan),
    "an item without any": np.where(np.arange(4) == 2, np.nan, np.full((6, 4), 2.0)),
}


@pytest.mark.parametrize("X", SHAPES.values(), ids=SHAPES)
@UNITS
@NOISES
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("shares", ["auto", SHARES])
def test_small_and_odd_matrices(shares, epsilon, noise, unit, X):
    for predictor in ("svd", "knn"):
        for clean in (True, False):
            how = {"noise": noise, "predictor": predictor, "clean": clean, "shares": shares}
            model = fitted(X, budget_of(epsilon, unit), **how)
            predicted = model.predict(X)
            assert np.all((predicted >= 1.0) & (predicted <= 5.0))
            assert model.transform(X).shape == (len(X), 20)
            best, _ = model.recommend(X, 2)
            assert best.shape == (len(X), min(2, X.shape[1]))
            assert model.covariance_.shape == (model.covariance_items_.size,) * 2
            if math.isinf(epsilon) and np.unique(X[~np.isnan(X)]).size == 1:
                np.testing.assert_allclose(predicted, X[~np.isnan(X)][0], rtol=1e-9)


@given(
    X=arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.integers(1, 6)),
        elements=st.one_of(st.just(np.nan), st.floats(0.0, 6.0), st.floats(-1e300, 1e300)),
    ),
    epsilon=st.sampled_from([0.1, 50.0, math.inf]),
    unit=st.sampled_from(["user", "rating"]),
    noise=st.sampled_from(["gaussian", "laplace"]),
    predictor=st.sampled_from(["svd", "knn"]),
)
@hypothesis_settings(max_examples=60)
def test_rows_of_any_content_give_finite_models(X, epsilon, unit, noise, predictor):
    how = {"noise": noise, "predictor": predictor, "shares": SHARES}
    model = fitted(X, budget_of(epsilon, unit), **how)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.covariance_).all()
    assert np.isfinite(model.predict(X)).all()
