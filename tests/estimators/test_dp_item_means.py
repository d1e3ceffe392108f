"""DPItemMeans: its limits, and the floor that it is."""

import numpy as np

from skdpmf import DPItemMeans, PrivacyBudget
from skdpmf.mechanisms.item_means import baseline as item_baseline
from tests.estimators.common import ratings

NONPRIVATE = PrivacyBudget.nonprivate()


def test_without_noise_it_is_least_squares():
    X = ratings(n_users=90, density=0.5)
    model = DPItemMeans(NONPRIVATE, user_damping=4.0).fit(X)
    known = ~np.isnan(X)
    Y = (np.where(known, X, 0.0) - 3.0) * known
    G = Y.sum() / known.sum()
    m = model.item_means_ - 3.0
    offset = ((Y - m) * known).sum(axis=1) / (known.sum(axis=1) + 4.0)
    gradient = ((Y - m - offset[:, None]) * known).sum(axis=0) - item_baseline.ITEM_DAMPING * (
        m - G
    )
    start = np.abs(((Y - G) * known).sum(axis=0)).max()
    assert np.abs(gradient).max() < 1e-2 * start
    np.testing.assert_allclose(model.transform(X)[:, 0], offset)
    np.testing.assert_allclose(model.decision_function(X), model.item_means_ + offset[:, None])
    assert not model.privacy_spent_.is_private


def test_damping_is_the_users():
    X = ratings()
    little, much = (
        DPItemMeans(PrivacyBudget(4.0, 1e-5, unit="rating"), user_damping=d, random_state=0).fit(X)
        for d in (1e-6, 1e6)
    )
    assert np.abs(much.transform(X)).max() < 1e-3
    residual = (X - little.item_means_ - little.transform(X))[~np.isnan(X).all(axis=1)]
    np.testing.assert_allclose(np.nanmean(residual, axis=1), 0.0, atol=1e-5)
    assert np.all(little.components_ == 1.0)
