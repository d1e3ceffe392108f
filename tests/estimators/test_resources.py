"""Estimates of what a fit takes: from synthetic ratings, of the right size, and in words."""

import joblib
import numpy as np
import pytest

from skdpmf import (
    AdaptiveWeightALS,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    PrivacyBudget,
)
from skdpmf.data import make_ratings
from skdpmf.distributed import resources as words
from skdpmf.distributed.pool import record_traffic
from skdpmf.estimators.contract import resources as _resources

BUDGET = PrivacyBudget(4.0, 1e-5)
SIZES = {"n_rows": 50_000, "n_ratings": 2_000_000, "n_workers": 2}


@pytest.fixture
def small_trials(monkeypatch):
    monkeypatch.setattr(_resources, "_TRIALS", ((50, 4_000), (50, 16_000), (80, 16_000)))


@pytest.mark.parametrize(
    "model",
    [
        DPItemMeans(BUDGET),
        DPItemMeans(PrivacyBudget(1.0, unit="rating")),
        AdaptiveWeightALS(BUDGET, n_components=2, max_iter=2),
        AdaptiveWeightALS(BUDGET, feedback="implicit", n_components=2, max_iter=2),
        DPMFSampler(BUDGET, n_components=2, max_iter=2),
        DPCovarianceRecommender(BUDGET, n_components=2),
        LocalDPGDDR(PrivacyBudget(2.0)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_every_estimator_tells_what_it_takes(model, small_trials):
    plan = model.plan(50, **SIZES)
    assert plan == model.plan(50, SIZES["n_rows"]), "no part of the plan itself"
    assert repr(plan) == repr(model.plan(50, SIZES["n_rows"])), "nor of the noise's key"
    found = plan.resources
    assert found.n_requests == sum(release.count for release in plan.releases)
    assert 2**28 < found.memory < 2**32
    assert 0.0 < found.seconds < 1e4
    assert f"Estimated: {found}" in str(plan)
    assert not hasattr(model, "n_features_in_"), "nothing is fitted"


def test_traffic_is_that_of_a_fit(small_trials):
    model = AdaptiveWeightALS(PrivacyBudget(50.0, 1e-5), n_components=3, max_iter=3)
    X = make_ratings(600, 40, random_state=0)
    told = model.plan(40, 600, n_ratings=X.nnz, n_workers=2).resources
    with joblib.parallel_config(backend="loky", n_jobs=2), record_traffic() as steps:
        model.fit(X)
    assert len(steps) == told.n_requests
    assert max(step.bytes_up for step in steps) <= 2 * told.bytes_up
    assert 0 < sum(step.bytes_up for step in steps) <= told.bytes_in_all


def test_estimates_grow_with_what_they_are_of(monkeypatch):
    """Linear costs are found again: of ratings, of items, and of the coordinator's tasks."""

    def linear(_, n_items, n_ratings, each):
        seconds = 2e-6 * n_ratings + 1e-4 * n_items + 0.5
        held, peak = 40.0 * n_ratings + 2e3 * n_items, 70.0 * n_ratings + 2e3 * n_items
        return seconds, held, peak, float(n_ratings), float(n_items)

    monkeypatch.setattr(_resources, "_trial", linear)
    model = DPItemMeans(BUDGET)
    for n_ratings, n_workers in ((1_000_000, 1), (100_000_000, 1), (100_000_000, 10)):
        plan = model.plan(50, n_ratings // 20, n_ratings=n_ratings, n_workers=n_workers)
        found, own = plan.resources, n_ratings / n_workers
        sent = 8.0 * n_workers * plan.n_values
        exchange = found.n_requests * (0.05 + 0.005 * n_workers) + 8e-9 * sent
        expected = 2e-6 * own + 1e-4 * 50 + 0.5 + exchange * (n_workers > 1)
        assert np.isclose(found.seconds, expected)
        n_blocks = max(1, round(own / 1e7))
        held = 0.3 * 2**30 + 40.0 * own + n_blocks * 2e3 * 50
        assert np.isclose(found.memory, held + 30.0 * min(own, 1e7))
        assert np.isclose(found.bytes_in_all, sent)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(950.0, "950 B"), (1.5e6, "1.5 MB"), (2.34e9, "2.34 GB"), (5e15, "5e+03 TB")],
)
def test_bytes_in_words(size, expected):
    assert words._bytes(size) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3.0, "3 seconds"), (600.0, "10 minutes"), (9e5, "10 days")]
)
def test_times_in_words(seconds, expected):
    assert words._time(seconds) == expected


def test_errors():
    model = DPItemMeans(BUDGET)
    with pytest.raises(ValueError, match="n_rows=None must be an integer >= 1 with n_ratings"):
        model.plan(50, n_ratings=10)
    with pytest.raises(ValueError, match=r"n_workers=0 must be .*: pass n_rows too"):
        model.plan(50, 10, n_ratings=10, n_workers=0)
    exact = DPItemMeans(PrivacyBudget.nonprivate())
    with pytest.raises(ValueError, match="n_workers=2 must be 1 where more than noisy sums"):
        exact.plan(50, 10, n_ratings=10, n_workers=2)
