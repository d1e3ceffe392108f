"""DPItemMeans: its limits, and the floor that it is."""

import numpy as np
import pytest

from skdpmf import DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings
from tests.estimators.common import ratings
from tests.reference.item_covariance import least_squares

NONPRIVATE = PrivacyBudget.nonprivate()


def test_without_noise_it_is_least_squares():
    X = ratings(n_users=90, density=0.5)
    model = DPItemMeans(NONPRIVATE, user_damping=4.0).fit(X)
    m = least_squares(X - 3.0, 4.0)
    np.testing.assert_allclose(model.item_means_ - 3.0, m, atol=1e-12)
    offset = np.nansum(X - 3.0 - m, axis=1) / ((~np.isnan(X)).sum(axis=1) + 4.0)
    np.testing.assert_allclose(model.transform(X)[:, 0], offset)
    np.testing.assert_allclose(model.decision_function(X), model.item_means_ + offset[:, None])
    assert not model.privacy_spent_.is_private


@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_without_noise_items_are_damped_as_much_as_they_are_alike(spread):
    """The penalty of their means follows from the ratings."""
    levels = {"user_bias_std": 0.8, "item_bias_std": spread, "noise_std": 0.8, "n_components": 0}
    X = make_ratings(800, 300, density=0.04, step=None, random_state=0, **levels)
    b = DPItemMeans(NONPRIVATE).fit(X).item_means_
    assert b.std() == pytest.approx(spread, rel=0.15, abs=0.05)


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
