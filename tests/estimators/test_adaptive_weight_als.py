"""AdaptiveWeightALS beyond the common contract: extremes, limits, searches and accuracy."""

import math

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import split_ratings
from skdpmf.mechanisms.als import pooled as pooled_als
from tests.built import built

BUDGET = PrivacyBudget(8.0, 1e-5)


@pytest.fixture(scope="module")
def data():
    """Training and held-out ratings of 2000 users and 60 items."""
    X = make_ratings(2000, 60, density=0.35, noise_std=0.6, random_state=0)
    return split_ratings(X, test_size=0.15, random_state=1)


def fitted(X, epsilon=8.0, **params):
    budget = PrivacyBudget(epsilon, 1e-5) if math.isfinite(epsilon) else PrivacyBudget.nonprivate()
    return built(AdaptiveWeightALS, budget, **{"random_state": 0, **params}).fit(X)


class Untouchable:
    """Data that must not be looked at."""

    def __getattr__(self, name):
        raise RuntimeError(f"data touched: {name}")

    def __len__(self):
        raise RuntimeError("data touched: len")


def baselines(train, test):
    """RMSE of the global mean and of each user's own damped mean."""
    rows, columns = test.nonzero()
    y = np.asarray(test[rows, columns]).ravel()
    n, mean = np.diff(train.indptr), train.data.mean()
    own = (np.asarray(train.sum(axis=1)).ravel() + 5.0 * mean) / (n + 5.0)
    return np.sqrt(np.mean((y - mean) ** 2)), np.sqrt(np.mean((y - own[rows]) ** 2))


def means_only(train, test, epsilon):
    """RMSE of noisy item means and the users' offsets, for the whole budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooled_als.PooledFit, "choose_rank", lambda self: 0)
        model = fitted(train, epsilon, list_share=None)
    assert not model.components_.any()
    return -model.score(train, test)


def test_private_factors_beat_means(data):
    """The whole budget is for ratings. Gaps are about 0.09 RMSE at 20; seeds change it by 0.005."""
    train, test = data
    overall, own = baselines(train, test)
    params = {"n_components": 5, "list_share": None}
    rmse = {
        epsilon: -fitted(train, epsilon, **params).score(train, test)
        for epsilon in (4.0, 20.0, math.inf)
    }
    assert rmse[20.0] < means_only(train, test, 20.0) - 0.04
    assert rmse[20.0] < own - 0.1 < overall
    assert rmse[math.inf] < rmse[20.0] < rmse[4.0] + 0.005
    assert rmse[20.0] < rmse[math.inf] + 0.03
