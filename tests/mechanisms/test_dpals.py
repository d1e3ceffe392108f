"""Limits of the solver: no privacy, an item without ratings, and little noise."""

import numpy as np
import pytest

from skdpmf import PrivacyBudget
from skdpmf.mechanisms.als import loop
from skdpmf.mechanisms.common import expected_weights, popularity_weights
from tests.core.audit import N_ITEMS, base_ratings, recorded_fit
from tests.matrices import csr
from tests.reference import weighted_als as twin

NONPRIVATE = PrivacyBudget.nonprivate()


def ratings_with_gaps():
    """An item that nobody rated, and a user without ratings."""
    X = base_ratings()
    X[3] = np.nan
    return X


@pytest.mark.parametrize(
    ("exponent", "k", "head", "with_means"),
    [(0.0, 1, 150, False), (0.25, 4, 6, False), (0.5, 2, 9, True), (1.0, 2, 150, True)],
)
def test_without_privacy_it_is_the_twin(exponent, k, head, with_means, monkeypatch):
    monkeypatch.setattr(loop, "HEAD", head)
    X = ratings_with_gaps()
    params = {"alpha": 0.7, "user_damping": 4.0, "item_means": with_means, "max_iter": 5}
    model, records = recorded_fit(
        X, budget=NONPRIVATE, n_components=k, weight_exponent=exponent, **params
    )
    b, V, ridge = twin.fit(
        X - 3.0, k, exponent=exponent, rounds=5, alpha=0.7, damping=4.0, with_means=with_means
    )
    np.testing.assert_allclose(model.item_means_, b + 3.0, rtol=0, atol=1e-8)
    # factors are unique up to the signs of the start's eigenvectors
    V *= np.sign(np.sum(V * model.components_.T, axis=0))
    np.testing.assert_allclose(model.components_.T, V, rtol=0, atol=1e-8)
    assert abs(V).max() > 0.1
    # predictions are the ridge regressions of the users on the twin's model
    o, U = twin.user_half(X - 3.0, b, V, ridge * np.eye(k), 4.0, with_means)
    expected = 3.0 + b + o[:, None] + U @ V.T
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=0, atol=1e-8)
    for record in records:
        np.testing.assert_array_equal(record.output, record.statistic)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 1.0, 5.0, 30.0, 45.0, 60.0, 100.0, 1e3, 1e5])
def test_weights_of_every_user_keep_to_the_bound(exponent):
    """sum_j w_ij^2 <= 1 as computed, also where powers of the popularity leave the doubles."""
    X = np.full((6, N_ITEMS), np.nan)
    X[0], X[1, -1], X[2, 0], X[3, [0, -1]], X[4, -3:] = 3.0, 1.0, 5.0, 2.0, 4.0
    R, mass = csr(X), np.geomspace(1.0, 1e5, N_ITEMS)
    weight = popularity_weights(R, mass, exponent)
    squares = np.bincount(np.nonzero(~np.isnan(X))[0], weights=weight**2, minlength=len(X))
    assert np.all(squares <= 1.0)
    np.testing.assert_allclose(squares[:5], 1.0, rtol=1e-9)
    assert squares[5] == 0.0
    total, typical = expected_weights(mass, 0.3, exponent)
    assert np.all(np.isfinite(total))
    assert np.all((typical >= 0) & (typical <= 1))
