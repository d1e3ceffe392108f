"""Clicks: the exact limits, and what K, popularity and extreme settings do."""

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.als import clicks, dpals
from tests.core.audit import CLICKS, CLICKS_BUDGET, N_ITEMS, base_clicks, recorded_fit
from tests.reference import implicit_als as twin

BUDGET = CLICKS_BUDGET
NONPRIVATE = PrivacyBudget.nonprivate()


def exact(X, **params):
    return recorded_fit(X, **{**CLICKS, "budget": NONPRIVATE, "solver": "dpals", **params})


def clicks_with_gaps():
    """An item that nobody clicked, and a user without clicks."""
    X = base_clicks()
    X[3] = np.nan
    return X


@pytest.mark.parametrize(("exponent", "k", "unobserved"), [(0.5, 3, 0.05), (0.0, 1, 0.4)])
def test_without_privacy_the_twin_is_reached(exponent, k, unobserved):
    """The twin solves all users and items of every round by their normal equations."""
    X = clicks_with_gaps()
    model, records = exact(
        X,
        n_components=k,
        weight_exponent=exponent,
        unobserved_weight=unobserved,
        alpha=0.7,
    )
    params = {"exponent": exponent, "rounds": 3, "alpha": 0.7, "unobserved": unobserved}
    b, V = twin.fit(np.nan_to_num(X), k, **params)
    np.testing.assert_allclose(model.item_means_, b, rtol=1e-9)
    # factors are unique up to the signs of the start's eigenvectors
    V *= np.sign(np.sum(V * model.components_.T, axis=0))
    np.testing.assert_allclose(model.components_.T, V, rtol=0, atol=1e-8)
    assert abs(V).max() > 0.1
    for record in records:
        np.testing.assert_array_equal(record.output, record.statistic)


def test_popularity_ranks_where_factors_do_not_tell():
    """At rank 0 for all users, and always for users without clicks."""
    nobody = np.full((1, N_ITEMS), np.nan)
    for epsilon in (0.5, 50.0):
        params = {**CLICKS, "budget": PrivacyBudget(epsilon, 1e-5), "solver": "dpals"}
        model, records = recorded_fit(base_clicks(), **params)
        order = np.argsort(-model.item_means_, kind="stable")
        np.testing.assert_array_equal(model.recommend(nobody, N_ITEMS)[0][0], order)
        assert 0.0 < model.item_means_.min() <= model.item_means_.max() == clicks.TIE
        if not model.components_.any():
            counts = sum(record.noise_multiplier**-2.0 * record.output for record in records)
            assert np.argmax(counts[:-1]) == order[0]
            known = model.recommend(base_clicks()[:20], N_ITEMS, exclude_seen=False)[0]
            assert np.all(known == order)
        assert model.components_.any() == (epsilon > 1.0)


def test_no_plan_leaves_everybody_without_noise(monkeypatch):
    """What unobserved pairs weigh always needs K, and K always has a share of the budget."""
    monkeypatch.setitem(dpals.CLICK_SHARES, clicks.EVERYBODY, 0.0)
    settings = AdaptiveWeightALS(BUDGET, feedback="implicit", solver="dpals")._settings()
    with pytest.raises(PrivacyParameterError, match=r"share=0\.0"):
        dpals.make_plan(BUDGET, settings, 10)
