"""DPCovarianceRecommender beyond the common contract: shares, plans, what is left, accuracy."""

import math
from dataclasses import fields

import numpy as np
import pytest

from skdpmf import DPCovarianceRecommender, NoisyCovariance, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import split_ratings
from skdpmf.mechanisms.gram import covariance as solver
from tests.built import built
from tests.estimators.test_adaptive_weight_als import baselines
from tests.estimators.test_parameters import check_refused

BUDGET = PrivacyBudget(8.0, 1e-5)
SHARES = (0.1, 0.3, 0.6)  # with a covariance, whatever the noise
UNITS = pytest.mark.parametrize("unit", ["user", "rating"])
NOISES = pytest.mark.parametrize("noise", ["gaussian", "laplace"])
PREDICTORS = pytest.mark.parametrize("predictor", ["svd", "knn"])


@pytest.fixture(scope="module")
def data():
    """Training and held-out ratings of 800 users and 40 items."""
    X = make_ratings(800, 40, density=0.4, noise_std=0.6, random_state=0)
    return split_ratings(X, test_size=0.15, random_state=1)


def fitted(X, budget=BUDGET, **params):
    return built(DPCovarianceRecommender, budget, **{"random_state": 0, **params}).fit(X)


def budget_of(epsilon, unit="user", **params):
    return PrivacyBudget(epsilon, 1e-5 if math.isfinite(epsilon) else 0.0, unit=unit, **params)


@UNITS
def test_gaussian_noise_needs_a_delta_and_laplace_noise_spends_none(unit, small):
    budget = PrivacyBudget(1.0, unit=unit)
    check_refused(DPCovarianceRecommender(budget), "delta=0.0 must be > 0", "1e-5")
    for delta in (0.0, 1e-5, 0.01):
        budget = PrivacyBudget(1.0, delta, unit=unit)
        model = fitted(small, budget, noise="laplace")
        assert model.privacy_spent_.delta == model.plan(12).delta == 0.0
        assert model.privacy_spent_.epsilon == pytest.approx(1.0, rel=1e-9)
        assert model.privacy_spent_.epsilon <= 1.0


@pytest.mark.parametrize(
    "shares", [(0.1, 0.3, 0.6), [0.0, 0.5, 0.5], np.array([0.2, 0.8, 0.0]), (0, 1, 0)], ids=str
)
@UNITS
@NOISES
def test_shares_are_taken_at_their_word(shares, unit, noise):
    """Of mu^2 or of epsilon; a release without a share is not made."""
    model = DPCovarianceRecommender(
        budget_of(4.0, unit), noise=noise, covariance=NoisyCovariance(shares=shares)
    )
    plan = model.plan(30)
    by_name = {release.name: release for release in plan.releases}
    if noise == "gaussian":
        spent = {name: release.mu**2 for name, release in by_name.items()}
    else:
        spent = {name: release.epsilon * release.count for name, release in by_name.items()}
    total = sum(spent.values())
    names = ("item counts and sums", "item counts", "item residuals")
    averages = sum(spent.pop(name, 0.0) for name in names)
    assert spent.pop("global effects", 0.0) / total == pytest.approx(shares[0], abs=1e-9)
    assert averages / total == pytest.approx(shares[1], abs=1e-9)
    assert spent.pop(solver.COVARIANCE, 0.0) / total == pytest.approx(shares[2], abs=1e-9)
    assert not spent
    assert ("item residuals" in by_name) == (unit == "user")
    assert plan.epsilon <= 4.0


def test_every_parameter_is_in_the_settings():
    """A parameter that changes the release is in the key of a seeded fit, or in its plan."""
    outside = {"predictor", "covariance", "rating_range", "random_state", "n_jobs"}
    outside |= {"budget", "feedback"}  # in the plan
    outside |= {"item_features", "public"}  # their digests are in the key
    model = DPCovarianceRecommender(BUDGET)
    settings = {field.name for field in fields(model._settings())}
    released = set(NoisyCovariance().get_params())
    assert settings == (set(model.get_params(deep=False)) - outside) | released
    assert model.plan(9) != DPCovarianceRecommender(BUDGET, feedback="implicit").plan(9)


@UNITS
def test_more_rows_than_a_fine_grid_holds_only_cost_more(unit):
    model = DPCovarianceRecommender(budget_of(1.0, unit), covariance=NoisyCovariance(shares=SHARES))
    few, many = (model.plan(50, n).releases[-1] for n in (1000, 50_000_000))
    assert few == model.plan(50).releases[-1]
    assert few.sensitivity <= many.sensitivity < 1.001 * few.sensitivity
    assert (few.sensitivity < many.sensitivity) == (unit == "rating")


def test_the_predictor_changes_neither_what_is_released_nor_the_embedding(data):
    train = data[0]
    same = {"shares": SHARES, "random_state": 1}
    svd, knn = (fitted(train, predictor=predictor, **same) for predictor in ("svd", "knn"))
    assert svd.components_.any()
    np.testing.assert_array_equal(svd.components_, knn.components_)
    np.testing.assert_array_equal(svd.item_means_, knn.item_means_)
    V = knn.components_[:, knn.covariance_items_]  # neighbours know what the factors do
    np.testing.assert_allclose(knn.covariance_, V.T @ V, atol=1e-12)
    np.testing.assert_array_equal(svd.transform(train), knn.transform(train))
    assert svd.privacy_spent_ == knn.privacy_spent_
    assert not np.allclose(svd.predict(train), knn.predict(train))


def rmse(data, budget, seeds=3, **params):
    train, test = data
    found = [
        -fitted(train, budget, random_state=s, **params).score(train, test) for s in range(seeds)
    ]
    return float(np.mean(found))


@UNITS
@PREDICTORS
def test_noise_falls_with_epsilon_and_the_covariance_pays(predictor, unit, data):
    """Means of three seeds, whose spread is below 0.01 from epsilon 4 on."""
    found = {
        epsilon: rmse(data, budget_of(epsilon, unit), predictor=predictor)
        for epsilon in (0.5, 4.0, 30.0)
    }
    exact = rmse(data, PrivacyBudget.nonprivate(), seeds=1, predictor=predictor)
    assert exact < found[30.0] + 0.01
    assert found[30.0] < found[4.0] + 0.005
    assert found[4.0] < found[0.5]
    means = rmse(data, budget_of(30.0, unit), shares=(0.05, 0.95, 0.0))
    assert found[30.0] < means - (0.03 if predictor == "svd" else 0.005)
    assert exact < baselines(*data)[1] - 0.1
