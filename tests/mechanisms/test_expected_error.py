"""What a plan expects before a fit, against limits, monotony and what fits measure."""

from itertools import pairwise

import numpy as np
import pytest

import skdpmf as sk
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

KINDS = {
    "pooled": sk.AdaptiveWeightALS,
    "covariance": sk.DPCovarianceRecommender,
    "sampler": sk.DPMFSampler,
    "means": sk.DPItemMeans,
    "devices": sk.LocalDPGDDR,
}
SHAPE, N_RATINGS = (1000, 4000), 200_000
BUDGETS = [0.05, 0.1, 0.3, 1.0, 3.0, 10.0]
TOLERANCE = {0.1: 0.04, 1.0: 0.015, np.inf: 0.01}  # counts that drown in noise have a price


def budget_of(epsilon, name="", **more):
    return sk.PrivacyBudget(epsilon, 0.0 if name == "devices" else 1e-5, **more)


def expected(model, shape=SHAPE, n=N_RATINGS, **assumed):
    return model.plan(*shape, n_ratings=n, assumed=assumed).expected_rmse


@pytest.mark.parametrize("name", KINDS)
def test_error_falls_with_epsilon_and_users_to_that_without_privacy(name):
    found = [expected(KINDS[name](budget_of(epsilon, name))) for epsilon in BUDGETS]
    errors = [one["this plan"] for one in found]
    assert all(high >= low for high, low in pairwise(errors))
    assert found[0]["no privacy"] < errors[-1] < errors[0] <= found[0]["each user's own mean"]
    model = KINDS[name](budget_of(1.0, name))
    sizes = [10**power for power in (2, 3, 4, 6, 9)]
    found = [expected(model, (1000, size), 50 * size) for size in sizes]
    errors = [one["this plan"] for one in found]
    assert all(high >= low for high, low in pairwise(errors))
    assert errors[-1] == pytest.approx(found[-1]["no privacy"], rel=0.01)


def test_limits_have_closed_forms():
    model = sk.DPItemMeans(sk.PrivacyBudget.nonprivate(), rating_range=(0.0, 10.0))
    alike = {"item": 0.0, "factors": 0.0, "residual": 0.1}
    found = expected(model, (500, 1000), 20_000, **alike, user=0.5, activity=0.0)
    own = np.sqrt(1.0 + 1.0 / 20.0)  # residual 1, 20 ratings a user
    assert found["each user's own mean"] == pytest.approx(own)
    offset = (20.0 + 25.0) / 21.0**2  # damped by one rating, of users of variance 25
    assert found["this plan"] == pytest.approx(np.sqrt(1.0 + offset), rel=1e-3)
    many = expected(sk.AdaptiveWeightALS(model.budget), (10**5, 10**8), 10**12)
    assert many["no privacy"] == pytest.approx(4.0 * 0.195, rel=0.02)  # the residual is left


@pytest.mark.parametrize("epsilon", TOLERANCE)
@pytest.mark.parametrize("kind", [{}, {"unit": "rating"}])
def test_item_means_have_the_error_of_the_very_model(epsilon, kind):
    scale, stds = (-5.0, 5.0), {"user_bias": 0.5, "item_bias": 0.6, "noise": 0.8}
    drawn = {f"{name}_std": std for name, std in stds.items()}
    drawn |= {"n_components": 0, "step": None, "mean": 0.0, "rating_range": scale}
    X = make_ratings(2000, 300, n_ratings=60_000, random_state=0, **drawn)
    X, Y = split_ratings(X, random_state=0)
    budget = budget_of(epsilon, **kind) if np.isfinite(epsilon) else sk.PrivacyBudget.nonprivate()
    models = [sk.DPItemMeans(budget, rating_range=scale, random_state=seed) for seed in range(3)]
    shares = dict(zip(("user", "item", "residual"), np.array([*stds.values()]) / 10.0, strict=True))
    found = expected(models[0], X.shape[::-1], X.nnz, factors=0.0, **shares)["this plan"]
    errors = [rmse(Y, model.fit(X).predict_entries(X, Y)) for model in models]
    assert found == pytest.approx(np.mean(errors), rel=TOLERANCE[epsilon])


def test_public_people_never_cost_anything():
    for name, epsilon in (("pooled", 0.3), ("pooled", 3.0), ("means", 0.3)):
        model, before = KINDS[name](budget_of(epsilon)), None
        alone = expected(model)["this plan"]
        for n in (1, 30, 1000, 30_000):
            found = expected(model.set_params(public=np.full((n, SHAPE[0]), 3.0)))
            assert found["without public people"] == alone
            assert found["this plan"] <= (before or alone)
            before = found["this plan"]
        assert before < alone - 0.01


def test_nothing_is_expected_where_there_is_no_formula():
    dpals = sk.AdaptiveWeightALS(budget_of(1.0), solver="dpals")
    draw = sk.DPMFSampler(sk.PrivacyBudget(1.0), guarantee="posterior")
    clicks = sk.AdaptiveWeightALS(budget_of(1.0), feedback="implicit")
    model = sk.DPItemMeans(budget_of(1.0))
    for plan in (*(one.plan(40, 100) for one in (dpals, draw, clicks)), model.plan(40)):
        assert plan.expected_rmse is None
        assert "Expected RMSE" not in str(plan)
    plan = model.plan(40, 100)
    assert plan == model.plan(40, 100, n_ratings=7, assumed={"decay": 0.5})
    assert f"- this plan {plan.expected_rmse['this plan']:#.3g}, each user's own" in str(plan)
    for wrong in ({"taste": 0.1}, {"item": -1.0}, {"decay": 1.0}, {"user": np.nan}):
        with pytest.raises(ValueError, match=r"assumed=.* must be numbers >= 0 by name, of resid"):
            model.plan(40, 100, assumed=wrong)
    with pytest.raises(ValueError, match="n_ratings=0 must be an integer >= 1"):
        model.plan(40, 100, n_ratings=0)
