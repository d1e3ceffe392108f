"""The audit clears a fit and its refreshes, and finds what is planted in one month of them."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf import DPCovarianceRecommender, DPItemMeans, PrivacyBudget, PrivacyLedger
from skdpmf.data import make_ratings
from skdpmf.data.labels import RatingMatrix
from skdpmf.estimators.contract import private as fitting
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.evaluation import audit
from skdpmf.evaluation._audit_year import MonthRun, months_of, whole_year

from .audit_cases import BUDGET, N_ITEMS, failed

MONTHS = 3
RATINGS = DPItemMeans(PrivacyBudget(6.0, unit="rating"))
CLICKS = DPCovarianceRecommender(BUDGET, feedback="implicit")


def cohorts():
    return [make_ratings(60, N_ITEMS, density=0.5, random_state=month) for month in range(MONTHS)]


def audited(estimator, months=None, **params):
    X, *refreshes = cohorts() if months is None else months
    return audit(estimator, X, refreshes=refreshes, n_neighbors=8, **params)


def of_all_months(estimator, months):
    """What an audit checks of all months at once: the checks by name."""
    run = MonthRun(estimator, months_of(estimator, months), 0, 0)
    return {check.name: check for check in whole_year(run, estimator, months)}


def with_ids(overlap=0):
    """Cohorts of people of whom some come again in each month."""
    months = enumerate(cohorts())
    return [RatingMatrix(X, [t * (60 - overlap) + i for i in range(60)]) for t, X in months]


@pytest.mark.parametrize("estimator", [RATINGS, CLICKS], ids=["ratings", "clicks"])
def test_an_honest_year_is_cleared(estimator):
    report = audited(estimator)
    assert report.passed, report
    assert 0.9 * report.epsilon < report.epsilon_attained <= report.epsilon <= 6.0
    assert "new items in refreshes" in report.not_tested
    names = [check.name for check in report.checks]
    assert len(names) == len(set(names))
    assert {"sensitivities", "other months do not move", "noise of months is apart"} < set(names)


def test_little_noise_in_a_refresh_is_found(monkeypatch):
    """In all months the statement is the plan's."""
    real = PrivateRecommender._noise

    def quiet(self, *args):
        noise = real(self, *args)
        if self._prior_ is not None:
            made = noise.blocks
            noise.blocks = lambda **terms: made(**{**terms, "noise_multiplier": 0.01})
        return noise

    monkeypatch.setattr(PrivateRecommender, "_noise", quiet)
    report = audited(RATINGS)
    assert failed(report) >= {"releases"}
    assert [c.finding[:8] for c in report.checks if c.name == "releases"] == ["month 2:"]


def test_a_prior_with_private_values_is_found(monkeypatch):
    """No attribute of a model has them: they come beside it."""
    real, seen = PrivateRecommender._fit, []

    def fit(self, R, y, **terms):
        if self._prior_ is not None:
            self._prior_ = self._prior_._replace(counts=seen[-1])
        seen.append(1.0 * np.bincount(R.indices, minlength=R.shape[1]))
        real(self, R, y, **terms)

    monkeypatch.setattr(PrivateRecommender, "_fit", fit)
    assert failed(audited(RATINGS)) == {"other months know releases alone"}


def test_rows_that_stay_for_a_refresh_are_found(monkeypatch):
    """Nobody is charged for them."""
    real, fit = PrivateRecommender.refresh, PrivateRecommender._fit
    last = []

    def noted(self, R, y, **terms):
        last.append(R)
        fit(self, R, y, **terms)

    def refresh(self, X_new):
        return real(self, sparse.vstack((last[-1][:60], X_new), format="csr"))

    monkeypatch.setattr(PrivateRecommender, "_fit", noted)
    monkeypatch.setattr(PrivateRecommender, "refresh", refresh)
    assert "other months do not move" in failed(audited(RATINGS))


@pytest.mark.parametrize("estimator", [RATINGS, CLICKS], ids=["ratings", "clicks"])
def test_noise_that_months_share_is_found(estimator, monkeypatch):
    assert of_all_months(estimator, cohorts())["noise of months is apart"].passed
    monkeypatch.setattr(fitting, "digest_of", lambda parts: "always the same")
    assert not of_all_months(estimator, cohorts())["noise of months is apart"].passed


def test_people_in_two_months_are_found():
    name = "people are in one month"
    assert "no ids" in of_all_months(CLICKS, cohorts())[name].finding
    assert of_all_months(CLICKS, with_ids())[name].passed
    check = of_all_months(CLICKS, with_ids(5))[name]
    assert not check.passed
    assert check.finding.startswith("10 are in several")
    assert failed(audited(CLICKS, with_ids(5)[:2])) == {name}
    assert name not in of_all_months(RATINGS, with_ids(5))


@pytest.mark.parametrize("at_most", [1, 2])
def test_whoever_is_charged_to_nobody_is_found(at_most, tmp_path, monkeypatch):
    name = "whoever is spent is left out"
    ledger = PrivacyLedger(tmp_path / "year", limit=BUDGET, at_most=at_most)
    budget = PrivacyBudget(3.0, 5e-6, ledger=ledger)
    estimator = DPCovarianceRecommender(budget, feedback="implicit")
    assert of_all_months(estimator, with_ids(5))[name].passed
    few = of_all_months(estimator, cohorts()[:at_most])[name]
    assert few.passed
    assert "there are no more" in few.finding
    assert ledger.report().n_people == 0
    monkeypatch.setattr(fitting, "without_rows", lambda R, rows: R)
    check = of_all_months(estimator, with_ids())[name]
    assert not check.passed
    assert "item counts of month 3" in check.finding


def test_repeated_years_have_a_lower_limit():
    report = audited(CLICKS, cohorts()[:2], n_runs=20)
    assert report.passed, report
    assert report.epsilon_lower > 0.0


def test_other_columns_and_canaries_are_refused():
    X, Y, _ = cohorts()
    with pytest.raises(ValueError, match="must have the columns of X"):
        audit(RATINGS, X, refreshes=[Y[:, :5]])
    named = [RatingMatrix(Z, None, range(first, first + N_ITEMS)) for first, Z in ((0, X), (1, Y))]
    with pytest.raises(ValueError, match="must have the columns of X"):
        audit(RATINGS, named[0], refreshes=named[1:])
    with pytest.raises(ValueError, match="must be 0 with refreshes"):
        audit(RATINGS, X, refreshes=[Y], n_canaries=10)
