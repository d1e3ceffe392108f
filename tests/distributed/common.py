"""Estimators whose fits on blocks of users must be those on all users, to the bit."""

from contextlib import contextmanager

import numpy as np
import pytest
from scipy import sparse

from skdpmf import (
    DPALS,
    AdaptiveWeightALS,
    Clicks,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    PrivacyBudget,
)
from skdpmf.data import make_ratings
from skdpmf.distributed import pool
from skdpmf.preprocessing import DPItemSelector

MUCH, LITTLE = PrivacyBudget(8.0, 1e-5), PrivacyBudget(0.5, 1e-5)
RATING = PrivacyBudget(4.0, 1e-5, unit="rating")
PURE = PrivacyBudget(4.0, unit="rating")
SEED = {"random_state": 0}
ALS = {"n_components": 3, "max_iter": 3, **SEED}
CLICKS = {"feedback": "implicit", "n_components": 3, "max_iter": 2, **SEED}

FITS = {
    "item means": DPItemMeans(MUCH, **SEED),
    "item means, Laplace": DPItemMeans(PURE, **SEED),
    "selector": DPItemSelector(MUCH, **SEED),
    "pooled": AdaptiveWeightALS(MUCH, **ALS),
    "pooled without factors": AdaptiveWeightALS(LITTLE, **ALS),
    "pooled, features": AdaptiveWeightALS(
        MUCH, item_features=np.random.default_rng(2).normal(size=(40, 3)), **ALS
    ),
    "pooled, subset": AdaptiveWeightALS(MUCH, max_ratings_per_user=15, **ALS),
    "dpals": AdaptiveWeightALS(MUCH, solver="dpals", **ALS),
    "dpals, tail": AdaptiveWeightALS(
        MUCH, solver=DPALS(weighting="tail"), max_ratings_per_user=10, **ALS
    ),
    "dpsgd": AdaptiveWeightALS(MUCH, solver="dpsgd", **ALS),
    "clicks": AdaptiveWeightALS(PrivacyBudget(50.0, 1e-5), **CLICKS),
    "clicks, dpals": AdaptiveWeightALS(PrivacyBudget(50.0, 1e-05), solver="dpals", **CLICKS),
    "clicks, dpsgd": AdaptiveWeightALS(PrivacyBudget(50.0, 1e-5), solver="dpsgd", **CLICKS),
    "clicks, item-item": DPCovarianceRecommender(
        PrivacyBudget(50.0, 1e-5), feedback=Clicks(weighting="log"), **SEED
    ),
    "every step": DPMFSampler(MUCH, n_components=3, max_iter=4, **SEED),
    "covariance by user": DPCovarianceRecommender(MUCH, n_components=3, **SEED),
    "covariance by rating": DPCovarianceRecommender(
        RATING, n_components=3, predictor="knn", **SEED
    ),
    "covariance, Laplace": DPCovarianceRecommender(PURE, noise="laplace", n_components=3, **SEED),
    "local": LocalDPGDDR(PrivacyBudget(4.0), **SEED),
}


@contextmanager
def record_traffic():
    """Yield the requests of fits in the block: name, bytes of answers sent, of sums received."""
    steps, original = [], pool.Pool._map

    def noting(self, tasks):
        replies = original(self, tasks)
        stops = [args[0] for _, args, _ in tasks if args and isinstance(args[0], pool.Stop)]
        down = sum(getattr(a.value, "nbytes", 0) for stop in stops for a in stop.answers)
        up = sum(reply.total.nbytes for reply in replies if getattr(reply, "blocks", ()))
        steps.extend((stop.key[0], down, up) for stop in stops[:1])
        return replies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.Pool, "_map", noting)
        yield steps


def ratings(n_users=700, n_items=40):
    """Ratings with empty rows and a rating outside of the range among them."""
    X = make_ratings(n_users, n_items, n_ratings=25 * n_users, random_state=1)
    X = sparse.csr_array(X)
    keep = np.repeat(np.arange(n_users) % 50 != 7, np.diff(X.indptr))
    row = np.repeat(np.arange(n_users), np.diff(X.indptr))[keep]
    values, columns = X.data[keep], X.indices[keep]
    values[3] = 9.0
    return sparse.csr_array((values, (row, columns)), shape=X.shape)


def released(model):
    """All arrays that a fit released."""
    names = (
        "item_means_",
        "components_",
        "counts_",
        "support_",
        "covariance_",
        "covariance_items_",
    )
    return {name: np.asarray(getattr(model, name)) for name in names if hasattr(model, name)}


def assert_same(model, other):
    """The same released values, predictions and statement."""
    own, others = released(model), released(other)
    assert own.keys() == others.keys()
    assert own
    for name, values in own.items():
        np.testing.assert_array_equal(values, others[name], err_msg=name)
    assert str(model.privacy_spent_) == str(other.privacy_spent_)
    if hasattr(model, "decision_function"):
        X = ratings(20)
        np.testing.assert_array_equal(model.decision_function(X), other.decision_function(X))
