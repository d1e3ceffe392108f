"""Predictions of DPCovarianceRecommender: all ways to ask agree, on matrices of all kinds."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf.data import make_ratings
from tests.estimators.common import ranking_scores
from tests.estimators.test_dp_covariance import PREDICTORS, SHARES, budget_of, fitted


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


@pytest.mark.parametrize("taste", [0.2, 0.5])
@pytest.mark.parametrize("candidates", [None, [1, 4, 5, 11]])
def test_lists_of_neighbours_rank_by_popularity_and_what_they_say(taste, candidates, knn, small):
    X = np.where(small.toarray() > 0.0, np.clip(small.toarray(), 2.0, 4.0), np.nan)
    left = ranking_scores(knn, X, taste) - np.where(np.isnan(X), 0.0, np.inf)
    if candidates is not None:
        left[:, np.setdiff1d(np.arange(12), candidates)] = -np.inf
    items, best = knn.recommend(small, 3, candidates=candidates, taste=taste)
    np.testing.assert_allclose(best, -np.sort(-left, axis=1)[:, :3], rtol=0, atol=1e-10)
    found = np.take_along_axis(left, items, axis=1)
    np.testing.assert_allclose(found[items >= 0], best[items >= 0], rtol=0, atol=1e-10)


@PREDICTORS
def test_users_without_ratings_get_the_item_means(predictor, small):
    model = fitted(small, predictor=predictor, shares=SHARES)
    for empty in (sparse.csr_array((3, 12)), np.full((3, 12), np.nan)):
        np.testing.assert_allclose(
            model.decision_function(empty), [model.item_means_] * 3, rtol=1e-12
        )
        np.testing.assert_array_equal(model.transform(empty), 0.0)
        best, _ = model.recommend(empty, 12, taste=1.0)
        assert best[0].tolist() == sorted(range(12), key=lambda j: (-model.item_means_[j], j))
        assert model.predict_entries(empty, empty).nnz == 0
