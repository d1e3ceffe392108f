"""Predictions of DPCovarianceRecommender: all ways to ask agree, on matrices of all kinds."""

import numpy as np
import pytest

from tests.estimators.common import ranking_scores
from tests.estimators.test_dp_covariance import budget_of, fitted


@pytest.fixture(scope="module")
def knn(small):
    params = {"predictor": "knn", "n_neighbors": 3, "rating_range": (2.0, 4.0)}
    return fitted(small, budget_of(20.0, "rating"), shares=(0.0, 0.4, 0.6), **params)


@pytest.mark.parametrize("taste", [0.2, 0.5])
@pytest.mark.parametrize("candidates", [None, [1, 4, 5, 11]])
def test_lists_of_neighbours_rank_by_popularity_and_what_they_say(taste, candidates, knn, small):
    X = np.where(small.toarray() > 0.0, np.clip(small.toarray(), 2.0, 4.0), np.nan)
    left = ranking_scores(knn, X, taste) - np.where(np.isnan(X), 0.0, np.inf)
    if candidates is not None:
        left[:, np.setdiff1d(np.arange(12), candidates)] = -np.inf
    items, best = knn.recommend(small, 3, candidates=candidates, taste=taste)
    np.testing.assert_allclose(best, -np.sort(-left, axis=1)[:, :3], rtol=0, atol=2e-6)
    found = np.take_along_axis(left, items, axis=1)
    np.testing.assert_allclose(found[items >= 0], best[items >= 0], rtol=0, atol=2e-6)
