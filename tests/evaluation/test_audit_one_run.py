"""Audits in one run: the limit holds where mu is known, and canaries show noise that is too small.

Seeds of the simulated noise are fixed; fits draw fresh noise, with the false alarms that are named.
"""

import numpy as np
import pytest
from scipy import stats

from skdpmf import DPCovarianceRecommender, DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import audit
from skdpmf.evaluation._audit_run import AuditRun, guess_members
from skdpmf.evaluation.audit_estimates import canary_epsilon
from skdpmf.evaluation.audit_one_run import canaries_in_sums, gaussian_canary_epsilon
from skdpmf.privacy.accounting import gaussian_epsilon, gaussian_mu
from skdpmf.privacy.sampler import noise as noise_module

from .audit_cases import ESTIMATORS, failed, ratings

N, GUESSED = 200, 50


def simulated(mu, n_audits, seed=0):
    """Right guesses of the best attack on disjoint canaries behind Gaussian noise."""
    rng = np.random.default_rng(seed)
    inside = rng.random((n_audits, N)) < 0.5
    order = np.argsort(mu * inside + rng.normal(size=inside.shape), axis=1)
    ends = np.take_along_axis(inside, order, axis=1)
    return ends[:, -GUESSED // 2 :].sum(axis=1) + (~ends[:, : GUESSED // 2]).sum(axis=1)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_limit_holds_for_gaussian_noise(epsilon):
    """It exceeds the truth in at most 5 % of 1,000 audits (p < 1e-4)."""
    right = simulated(gaussian_mu(epsilon, 1e-5), 1000)
    limits = {v: gaussian_canary_epsilon(v, GUESSED, N, 1e-5, 0.95) for v in map(int, set(right))}
    above = sum(limits[int(v)] > epsilon for v in right)
    assert stats.binom.sf(above - 1, 1000, 0.05) > 1e-4


def test_the_limit_is_above_that_of_epsilon_and_delta():
    v = int(np.median(simulated(gaussian_mu(8.0, 1e-5), 200)))
    limit = gaussian_canary_epsilon(v, GUESSED, N, 1e-5, 0.95)
    assert canary_epsilon(v, GUESSED, N, 1e-5, 0.95) < limit < 8.0


def test_the_limit_rises_with_right_guesses():
    limits = [gaussian_canary_epsilon(v, GUESSED, N, 1e-5, 0.95) for v in range(25, GUESSED + 1)]
    assert limits[0] == 0.0
    assert limits == sorted(limits)
    assert limits[-1] < gaussian_epsilon(20.0, 1e-5)


# -- audits ----------------------------------------------------------------------------------------

CLAIMED, N_CANARIES = PrivacyBudget(1.0, 1e-5), 120


def audited():
    X = make_ratings(60, 200, random_state=1)
    return audit(DPItemMeans(CLAIMED), X, n_neighbors=8, n_canaries=N_CANARIES)


def noise_of_epsilon_100(monkeypatch):
    """Draw a fortieth of the noise that is declared."""
    real = noise_module.add_grid_noise
    much = gaussian_mu(100.0, 1e-5) / gaussian_mu(CLAIMED.epsilon, 1e-5)

    def add(exact, *settings):
        real(exact, *settings)
        start, stop, out = settings[-3:]
        flat = slice(start, stop)
        values = np.ravel(exact)[flat]
        np.ravel(out)[flat] = values + (np.ravel(out)[flat] - values) / much

    monkeypatch.setattr(noise_module, "add_grid_noise", add)


def test_honest_sums_are_cleared():
    """One honest audit in 1,600 alarms."""
    report = audited()
    assert report.passed, str(report)
    assert report.epsilon_canary_sums < 1.5  # the limit at 99 % is above that far more rarely
    assert "by canaries in the sums" in str(report)


def test_canaries_in_sums_find_hardly_any_noise(monkeypatch):
    """They do, and their limit is above that of guesses from the model."""
    noise_of_epsilon_100(monkeypatch)
    report = audited()
    assert "canaries in sums" in failed(report), str(report)
    assert report.epsilon_canary_sums > max(CLAIMED.epsilon, report.epsilon_canaries)


def test_a_fit_that_cannot_be_replayed_is_found(monkeypatch):
    """A row of extremes that raises in the replay fails the check, not the audit."""
    run = AuditRun(DPItemMeans(CLAIMED), make_ratings(60, 200, random_state=1), 0)
    real = DPItemMeans._fit

    def fit(self, R, *more, **metadata):
        if 0 < R.nnz < 200:
            raise ZeroDivisionError("hardly any ratings")
        real(self, R, *more, **metadata)

    monkeypatch.setattr(DPItemMeans, "_fit", fit)
    (check,), limit = canaries_in_sums(run, 8, 0.99)
    assert not check.passed
    assert "hardly any ratings" in check.finding
    assert np.isnan(limit)


@pytest.mark.parametrize("name", ["covariance, rating", "covariance, Laplace", "items"])
def test_sums_without_a_limit_of_mu_are_left_out(name):
    checks, limit = canaries_in_sums(AuditRun(ESTIMATORS[name], ratings(), 0), 8, 0.99)
    assert checks == []
    assert np.isnan(limit)


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_claims_of_one_rating_are_attacked_by_one_rating(neighbors, monkeypatch):
    """Whole users are beyond the claim: they blamed honest fits."""
    budget = PrivacyBudget(0.5, 1e-5, unit="rating", neighbors=neighbors)
    X = make_ratings(5, 250, density=0.2, random_state=0)
    run = AuditRun(DPCovarianceRecommender(budget), X, 0)
    sizes, real = [], DPCovarianceRecommender._fit

    def fit(self, R, *more, **metadata):
        sizes.extend(np.diff(R.indptr)[5:])
        real(self, R, *more, **metadata)

    monkeypatch.setattr(DPCovarianceRecommender, "_fit", fit)
    check, _ = guess_members(run, N_CANARIES, 0.99)
    assert check.passed, check.finding
    assert set(sizes) == ({1} if neighbors == "replace" else {0, 1})
