"""DPItemMeans: its limits, and the floor that it is."""

import numpy as np
import pytest

from skdpmf import DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings
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


@pytest.mark.parametrize(("unit", "delta"), [("user", 1e-5), ("user", 0.0), ("rating", 1e-5)])
def test_noise_falls_with_epsilon(unit, delta):
    X = make_ratings(3000, 40, density=0.3, random_state=0)
    best = DPItemMeans(NONPRIVATE).fit(X)
    distances = []
    for epsilon in (0.1, 1.0, 10.0):
        budget = PrivacyBudget(epsilon, delta, unit=unit)
        fits = [DPItemMeans(budget, random_state=seed).fit(X) for seed in range(3)]
        errors = [f.predict_entries(X, X).data - best.predict_entries(X, X).data for f in fits]
        distances.append(np.sqrt(np.mean(np.square(errors))))
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.12


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


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_people_of_different_levels_do_not_lose_to_their_own_means(epsilon):
    """Few people, whose levels differ more than the items: only released values are used."""
    levels = {"user_bias_std": 0.8, "item_bias_std": 0.2, "noise_std": 0.7, "factor_std": 0.2}
    X = make_ratings(500, 300, density=0.09, random_state=0, **levels)
    known, hidden = split_ratings(X, random_state=0)
    own = known.sum(axis=1) / np.maximum(np.diff(known.indptr), 1)
    alone = rmse(hidden.data, own[hidden.tocoo().row])
    errors = []
    for seed in range(3):
        model, old = (
            DPItemMeans(PrivacyBudget(epsilon, 1e-5), user_damping=d, random_state=seed).fit(known)
            for d in (None, 10.0)
        )
        np.testing.assert_array_equal(model.item_means_, old.item_means_)
        errors.append(rmse(hidden.data, model.predict_entries(known, hidden).data))
    assert np.mean(errors) <= alone + 0.002
