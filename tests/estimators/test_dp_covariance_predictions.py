"""Predictions of DPCovarianceRecommender: all ways to ask agree, on matrices of all kinds."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import sparse

from skdpmf.data import make_ratings
from tests.estimators.test_dp_covariance import (
    NOISES,
    PREDICTORS,
    SHARES,
    UNITS,
    budget_of,
    fitted,
)


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


HOW = [
    {"predictor": "svd", "clean": True, "shares": SHARES},
    {"predictor": "knn", "clean": False, "shares": SHARES},
    {"predictor": "knn", "clean": True, "shares": "auto"},
]


@pytest.mark.parametrize("X", SHAPES.values(), ids=SHAPES)
@UNITS
@NOISES
def test_small_and_odd_matrices(noise, unit, X):
    for epsilon, how in product((1.0, math.inf), HOW):
        model = fitted(X, budget_of(epsilon, unit), noise=noise, **how)
        predicted = model.predict(X)
        assert np.all((predicted >= 1.0) & (predicted <= 5.0))
        assert model.transform(X).shape == (len(X), 20)
        best, _ = model.recommend(X, 2)
        assert best.shape == (len(X), min(2, X.shape[1]))
        assert model.covariance_.shape == (model.covariance_items_.size,) * 2
        if math.isinf(epsilon) and np.unique(X[~np.isnan(X)]).size == 1:
            np.testing.assert_allclose(predicted, X[~np.isnan(X)][0], rtol=1e-9)
