"""DPMFSampler beyond the common contract: parameters, plans, limits, draws and accuracy."""

import math
from dataclasses import fields

import numpy as np
import pytest
from scipy import stats

from skdpmf import DPMFSampler, PosteriorDraw, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import split_ratings
from tests.built import built
from tests.core.audit import fitted_state
from tests.estimators.test_parameters import check_refused

BUDGET = PrivacyBudget(8.0, 1e-5)
NONPRIVATE = PrivacyBudget.nonprivate()
POSTERIOR = {"guarantee": "posterior", "max_iter": 3, "n_components": 3}
MODES = {
    "every-step": {"max_iter": 4, "n_components": 3},
    "gibbs": POSTERIOR,
    "sgld": {**POSTERIOR, "sampler": "sgld", "weight_cap": 1.0},
}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
every_sampler = pytest.mark.parametrize("sampler", ["gibbs", "sgld"])


@pytest.fixture(scope="module")
def data():
    """Training and held-out ratings of 600 users and 40 items."""
    X = make_ratings(600, 40, density=0.35, noise_std=0.6, random_state=0)
    return split_ratings(X, test_size=0.15, random_state=1)


def fitted(X, budget=BUDGET, **params):
    return built(DPMFSampler, budget, **{"random_state": 0, **params}).fit(X)


def posterior(X, budget=BUDGET, **params):
    return fitted(X, budget, **{**POSTERIOR, **params})


BAD_COMBINATIONS = [
    ({"noise": "table", **POSTERIOR}, "'exact' unless", "use 'exact'"),
    ({"noise": "table", **MODES["sgld"]}, "private", "PrivacyBudget.nonprivate()"),
    (
        {"table_size": 2, "noise": "table", **MODES["sgld"], "budget": NONPRIVATE},
        "at least n_components",
        "default",
    ),
    ({"n_draws": 2, **POSTERIOR}, "every draw costs", "PrivacyBudget.nonprivate()"),
    ({"n_draws": 4, **POSTERIOR, "budget": NONPRIVATE}, "at most the 3 sweeps", "raise max_iter"),
]


@pytest.mark.parametrize(("params", "rule", "remedy"), BAD_COMBINATIONS)
def test_bad_combinations(params, rule, remedy):
    name = next(iter(params))
    model = built(DPMFSampler, **{"budget": BUDGET, **params})
    check_refused(model, f"{name}={params[name]!r}", "must be", rule, remedy)


def test_every_step_needs_a_delta_and_the_posterior_none(small):
    check_refused(DPMFSampler(PrivacyBudget(1.0)), "delta=0.0 must be > 0")
    assert posterior(small, PrivacyBudget(1.0)).privacy_spent_.delta == 0.0


def draw_of(budget=BUDGET, n_items=10, **params):
    plan = built(DPMFSampler, budget, guarantee="posterior", **params).plan(n_items)
    return plan, plan.releases[0]


@pytest.mark.parametrize("item_bias", [False, True])
def test_calibrations(item_bias):
    for neighbors, share in (("add-remove", 0.25), ("replace", 0.5)):
        # the paper's bound is B, not B_V = B / 2
        paper = share if item_bias else share / 2.0
        budget = PrivacyBudget(4.0, 1e-5, neighbors=neighbors)
        tight, _ = draw_of(budget, item_bias=item_bias)
        published, _ = draw_of(budget, item_bias=item_bias, calibration="paper")
        assert tight.epsilon == pytest.approx(4.0, rel=1e-12)
        assert tight.epsilon <= 4.0
        assert published.epsilon == pytest.approx(4.0 * paper, rel=1e-12)
        assert not [note for note in tight.notes if "Theorem 1" in note]
        said = [note for note in published.notes if "Theorem 1" in note]
        assert len(said) == 1
        assert f" {1 / paper:.0f} times" in said[0]


def test_bounds_in_the_plan():
    """tau (h^2 + (h + kappa)^2) for item factors alone, tau (2h + kappa)^2 with biases."""
    assert draw_of()[1].sensitivity == 200 * (4.0 + 4.0)
    assert draw_of(item_bias=True)[1].sensitivity == 200 * 16.0
    assert draw_of(max_ratings_per_user=7)[1].sensitivity == 7 * 8.0
    # kappa is in rating units, the bound in quarters of the range
    wide = {"rating_range": (0.0, 10.0), "kappa": 1.0, "max_ratings_per_user": 10}
    assert draw_of(**wide)[1].sensitivity == pytest.approx(10 * (4.0 + 2.4**2))
    assert draw_of(item_bias=True, **wide)[1].sensitivity == pytest.approx(10 * 4.4**2)
    assert draw_of(n_components=5)[1].shape == (10, 5)
    assert draw_of(n_components=5, item_bias=True)[1].shape == (10, 6)
    assert draw_of(NONPRIVATE, n_draws=3)[1].count == 3
    # None: biases where they cost nothing, without privacy
    assert draw_of(item_bias=False)[0] == draw_of()[0]
    assert draw_of(NONPRIVATE, item_bias=True)[1] == draw_of(NONPRIVATE)[1]
    for params in ({"sample_precisions": True}, {"sampler": "sgld"}, {"max_iter": 7}):
        assert draw_of(**params)[0] == draw_of()[0]


def test_the_draw_is_never_colder_than_the_ratings(small):
    """1 / (2 rating_std^2): more budget is not spent, and a note says so."""
    params = {"max_ratings_per_user": 5, "rating_std": 0.5}
    B, coldest = 5 * 8.0, 1.0 / (2.0 * 0.25)
    model = posterior(small, PrivacyBudget(1e4), **params)
    assert model.privacy_spent_.epsilon == pytest.approx(coldest * B)
    assert "not spent" in str(model.privacy_spent_)
    just = draw_of(PrivacyBudget(0.999 * coldest * B), **params)[0]
    assert just.epsilon == pytest.approx(0.999 * coldest * B)
    assert not [note for note in just.notes if "not spent" in note]
    assert draw_of(NONPRIVATE, **params)[0].epsilon == math.inf


@every_mode
def test_the_condition_is_told_where_there_is_one(mode, small):
    private, exact = fitted(small, **mode), fitted(small, NONPRIVATE, **mode)
    conditional = mode.get("guarantee") == "posterior"
    spent = private.privacy_spent_
    assert ("converged" in spent.condition) == conditional
    for text in (str(spent), str(private.plan(12))):
        assert ("CONDITIONAL" in text) == conditional
    assert ("3 sweeps" in " ".join(spent.assumptions)) == conditional
    finite = "finite steps" in " ".join(spent.assumptions)
    assert finite == (mode.get("sampler") == "sgld")
    assert not exact.privacy_spent_.is_private
    assert exact.privacy_spent_.condition == ""
    for text in (str(exact.privacy_spent_), str(exact.plan(12))):
        assert "CONDITIONAL" not in text
        assert "sweeps" not in text


@every_mode
def test_seeded_fits_repeat_whatever_the_threads(mode, small):
    one, two = (fitted(small, n_jobs=n_jobs, **mode) for n_jobs in (1, 2))
    assert fitted_state(one) == fitted_state(two)


@every_sampler
@pytest.mark.parametrize("item_bias", [False, True])
def test_without_privacy_loss_the_draw_is_the_prior(sampler, item_bias):
    """A false alarm in 1e4 each; seeds are fixed."""
    X = make_ratings(200, 100, random_state=0)
    model = posterior(
        X,
        PrivacyBudget(1e-9),
        sampler=sampler,
        item_bias=item_bias,
        n_components=16,
        item_std=0.4,
        bias_std=0.7,
        max_iter=20,
        rating_range=(0.0, 10.0),
    )
    z = model.components_.ravel() / (2.5 * 0.4)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    if item_bias:
        assert stats.kstest((model.item_means_ - 5.0) / (2.5 * 0.7), "norm").pvalue > 1e-4
    else:
        np.testing.assert_array_equal(model.item_means_, 5.0)


def test_every_parameter_is_in_the_settings():
    """A parameter that changes the model is in the key of a seeded fit."""
    outside = {"budget", "guarantee", "rating_range", "noise", "nonprivate_diagnostics"}
    draw = set(PosteriorDraw().get_params())
    outside |= {"random_state", "n_jobs", "item_features", "public"}  # by their digests
    model = DPMFSampler(BUDGET, guarantee="posterior")
    settings = {field.name for field in fields(model._posterior_settings())}
    assert settings == (set(model.get_params(deep=False)) | draw) - outside
