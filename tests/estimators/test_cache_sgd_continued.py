"""Fits that go on: warm_start and partial_fit of CacheSGDFactorizer."""

import numpy as np
import pytest

from skdpmf import CacheSGDFactorizer
from tests.estimators.test_cache_sgd import fingerprint, fitted, modelled, rmse
from tests.matrices import dense

NAN = float("nan")


# -- warm_start ------------------------------------------------------------------------------------


def test_warm_start_goes_on(data):
    """Half of the rounds, and then the other half at the rates that they would have had."""
    X, settings = data[0], {"alpha": 0.04, "learning_rate_decay": 0.8}
    whole = fitted(X, max_iter=8, **settings)
    model = fitted(X, max_iter=4, warm_start=True, **settings)
    half = model.loss_curve_
    model.set_params(learning_rate=0.07 * 0.8**4).fit(X)
    np.testing.assert_allclose(np.r_[half, model.loss_curve_], whole.loss_curve_, rtol=1e-6)
    np.testing.assert_allclose(model.components_, whole.components_, atol=1e-4)
    np.testing.assert_allclose(model.user_factors_, whole.user_factors_, atol=1e-4)
    np.testing.assert_allclose(modelled(model), modelled(whole), atol=1e-3)
    assert model.loss_curve_[0] < half[-1]
    assert len(model.loss_curve_) == model.n_iter_ == 4


def test_warm_start_with_another_catalogue_or_size(data):
    model = fitted(data[0][:300], warm_start=True)
    with pytest.raises(ValueError, match=r"n_components=8 for 149 items.*fit anew") as error:
        model.fit(data[0][:300, :149])
    assert "8 for 150" in str(error.value)
    model = fitted(data[0][:300], warm_start=True).set_params(n_components=9)
    with pytest.raises(ValueError, match=r"n_components=9 .* 8 for 150: set them so, or fit anew"):
        model.fit(data[0][:300])
    with pytest.raises(ValueError, match="n_components=9"):
        model.partial_fit(data[0][:300])


# -- partial_fit -----------------------------------------------------------------------------------


def test_the_first_partial_fit_is_a_fit(data):
    X = data[0][:300]
    model = CacheSGDFactorizer(8, random_state=0)
    assert model.partial_fit(X) is model
    assert fingerprint(model) == fingerprint(fitted(X))
    y = np.zeros(300, int)
    assert CacheSGDFactorizer(8, random_state=0).partial_fit(X, y).predict(X).shape == (300,)


def test_partial_fit_takes_in_new_users(data):
    """Held-out errors of the new users: as good as folding them in, or fitting all at once.

    Measured: 0.866 by fold-in alone, 0.869 after the call, 0.869 by a fit of all.
    """
    train, test = data
    model = fitted(train[:1600])
    folded_in = -model.score(train[1600:], test[1600:])
    before = model.user_factors_.copy(), model.user_biases_.copy(), model.components_.copy()
    model.partial_fit(train[1600:])
    everything = fitted(train)
    for rows in (slice(1600, None), slice(None)):
        assert -model.score(train[rows], test[rows]) < -everything.score(
            train[rows], test[rows]
        ) + (0.005)
    assert -model.score(train[1600:], test[1600:]) < folded_in + 0.005
    np.testing.assert_array_equal(model.user_factors_[:1600], before[0])
    np.testing.assert_array_equal(model.user_biases_[:1600], before[1])
    assert model.user_factors_.shape == (2000, 8)
    assert model.user_factors_.dtype == np.float32
    np.testing.assert_array_equal(model.item_counts_, everything.item_counts_)
    assert rmse(model.components_, before[2]) > 1e-3
    # all users, old and new, are modelled by the attributes
    assert rmse(modelled(model)[1600:], dense(train)[1600:]) < 0.8
    assert rmse(modelled(model)[:1600], dense(train)[:1600]) < 0.8
    # the new users' rows are their fold-in, like everybody's embedding
    np.testing.assert_allclose(
        modelled(model)[1600:], model.decision_function(train[1600:]), atol=1e-5
    )


def test_penalties_are_those_of_all_ratings_so_far(data):
    """Chunks of like users end with the penalties of all, and near the errors of one fit."""
    train, test = data
    model, whole = fitted(train[:200]), fitted(train)
    first = model._item_model_.item_ridge.mean()
    for start in range(200, 2000, 200):
        model.partial_fit(train[start : start + 200])
    found, expected = (one._item_model_.item_ridge for one in (model, whole))
    np.testing.assert_allclose(found, expected, rtol=0.2)
    assert first > 5.0 * expected.mean()
    assert -model.score(train, test) < -whole.score(train, test) + 0.025


def test_partial_fit_checks_its_input(data):
    model = fitted(data[0][:100])
    before = fingerprint(model)
    with pytest.raises(ValueError, match="149 features"):
        model.partial_fit(data[0][:10, :149])
    with pytest.raises(ValueError, match="alpha=-1"):
        model.set_params(alpha=-1).partial_fit(data[0][:10])
    assert fingerprint(model) == before


def test_lost_factors_come_back(data):
    """Of twelve people no factor can be told from noise, and of all of them some can."""
    X = data[0]
    cold = fitted(X).score(X)
    model = fitted(X[:12], warm_start=True)
    assert not model.components_.any()
    assert model.fit(X).score(X) > cold - 0.01
    short = fitted(X, max_iter=3, warm_start=True)
    for _ in range(7):
        short.fit(X)
    assert short.score(X) > cold - 0.02


def test_partial_fit_after_an_alpha_or_in_small_units(data):
    X = data[0]
    known = fitted(X[:1000], alpha=0.05)
    assert known.set_params(alpha=None).partial_fit(X[1000:]).score(X) > -1.0
    small, scores = X * 1e-5, []
    for R, unit in ((X, 1.0), (small, 1e-5)):
        model = fitted(R[:1000], rating_range=(unit, 5.0 * unit)).partial_fit(R[1000:])
        scores.append(model.score(R) / unit)
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
