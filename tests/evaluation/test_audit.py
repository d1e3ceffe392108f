"""The audit clears the private estimators, and finds each planted bug in each of them.

Statistical checks alarm falsely once in 1e6 audits each; repeated fits once in 1e3, seeds of the
noise are fresh.
"""

import math

import numpy as np
import pytest
from scipy import stats

from skdpmf import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    PrivacyBudget,
)
from skdpmf.data import make_ratings
from skdpmf.evaluation import AuditDisplay, audit
from skdpmf.privacy import PrivacyStatement
from skdpmf.privacy import noise as noise_module
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.auditing import canary_epsilon

N_ITEMS = 14
BUDGET = PrivacyBudget(6.0, 1e-5)
RATING = PrivacyBudget(6.0, 1e-5, unit="rating")
REPLACE = PrivacyBudget(6.0, 1e-5, neighbors="replace")
ESTIMATORS = {
    "ALS": AdaptiveWeightALS(BUDGET, n_components=2, max_iter=2),
    "ALS, replace": AdaptiveWeightALS(REPLACE, n_components=2, max_iter=2),
    "sampler": DPMFSampler(BUDGET, n_components=2, max_iter=3),
    "covariance, user": DPCovarianceRecommender(BUDGET, n_components=2),
    "covariance, rating": DPCovarianceRecommender(RATING, n_components=2),
    "item means": DPItemMeans(BUDGET),
    "covariance, Laplace": DPCovarianceRecommender(
        PrivacyBudget(60.0, unit="rating"), n_components=2, noise="laplace"
    ),
}
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


def ratings():
    return make_ratings(60, N_ITEMS, density=0.5, random_state=1)


def failed(report):
    return {check.name for check in report.checks if not check.passed}


@every_estimator
def test_honest_estimators_are_cleared(name):
    report = audit(ESTIMATORS[name], ratings(), n_neighbors=10, n_runs=5, n_canaries=8)
    assert report.passed, str(report)
    assert "nothing found" in str(report)
    assert report.to_dict()["passed"] is True
    assert report.epsilon_attained <= report.epsilon
    # the neighbours come near the claim, so that a sensitivity that is too small shows
    assert max(report.ratios.values()) > 0.9
    assert report.epsilon_attained > 0.5 * report.epsilon
    assert report.epsilon_canaries == 0.0  # 4 guesses can tell nothing
    assert math.isnan(report.epsilon_lower) == (report.delta == 0.0)


# -- planted bugs: each changes the package for one audit ------------------------------------------


def too_little_noise(monkeypatch):
    """Draw less than what is declared, by sqrt(2)."""
    real = noise_module.add_grid_noise

    def add(exact, *settings):
        real(exact, *settings)
        start, stop, out = settings[-3:]
        flat = slice(start, stop)
        values = np.ravel(exact)[flat]
        np.ravel(out)[flat] = values + (np.ravel(out)[flat] - values) / np.sqrt(2.0)

    monkeypatch.setattr(noise_module, "add_grid_noise", add)
    return {"size of the noise", "noise in repeated fits"}


def declared_less(monkeypatch):
    """Ask for less noise than was planned."""
    change_terms(monkeypatch, noise_multiplier=1.0 / np.sqrt(2.0))
    return {"releases"}


def smaller_sensitivity(monkeypatch):
    """Count one user as one rating: a sensitivity that users exceed; noise as for it."""
    change_terms(monkeypatch, sensitivity=0.2)
    return {"sensitivities"}


def exact_counts(monkeypatch):
    """Publish the number of ratings besides."""
    change_fit(monkeypatch, lambda model, R: setattr(model, "n_ratings_", R.nnz))
    return {"nothing else is released"}


def unaccounted_centring(monkeypatch):
    """Subtract the exact mean of all ratings before all else."""

    def centred(model, R):
        R.data += 3.0 - R.data.mean() if R.nnz else 0.0

    change_fit(monkeypatch, centred, first=True)
    return {"users are on their own"}


def the_same_noise_twice(monkeypatch):
    """Forget the name and the index of a release when its noise is drawn."""
    real = noise_module.stream_key
    monkeypatch.setattr(
        noise_module, "stream_key", lambda key, purpose, name, index: real(key, purpose, "x", 0)
    )
    return {"noise is fresh"}


def released_twice(monkeypatch):
    """Make the first release once more, beyond the plan."""
    real = noise_module.NoiseSource.blocks

    def blocks(self, **terms):
        if not hasattr(self, "made_more"):
            self.made_more = True
            more = real(self, **{**terms, "name": "more"})
            with more as release:
                release.release(0, np.zeros(int(np.prod(terms["shape"]))))
        return real(self, **terms)

    monkeypatch.setattr(noise_module.NoiseSource, "blocks", blocks)
    return {"releases"}


def no_noise(monkeypatch):
    """Leave the noise out."""

    def add(exact, *settings):
        start, stop, out = settings[-3:]
        np.ravel(out)[start:stop] = np.ravel(exact)[start:stop]

    monkeypatch.setattr(noise_module, "add_grid_noise", add)
    return {"size of the noise"}


def change_terms(monkeypatch, **factors):
    """Multiply terms of every release."""
    real = noise_module.NoiseSource.blocks

    def changed(self, **terms):
        return real(self, **terms | {name: terms[name] * factors[name] for name in factors})

    monkeypatch.setattr(noise_module.NoiseSource, "blocks", changed)


def change_fit(monkeypatch, change, *, first=False):
    for estimator in {type(estimator) for estimator in ESTIMATORS.values()}:
        real = estimator._fit

        def fit(self, R, *more, real=real, **metadata):
            if first:
                change(self, R)
            real(self, R, *more, **metadata)
            if not first:
                change(self, R)

        monkeypatch.setattr(estimator, "_fit", fit)


BUGS = [
    too_little_noise,
    no_noise,
    declared_less,
    smaller_sensitivity,
    exact_counts,
    unaccounted_centring,
    the_same_noise_twice,
    released_twice,
]


NOISE = [too_little_noise]  # some fits release too few values to show it


@every_estimator
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bugs_are_found(name, bug, monkeypatch):
    expected = bug(monkeypatch)
    report = audit(ESTIMATORS[name], ratings(), n_neighbors=8, n_runs=60 if bug in NOISE else 0)
    assert not report.passed
    assert expected & failed(report), str(report)
    assert "THE CLAIM DOES NOT HOLD" in str(report)


def test_repeated_fits_find_little_noise(monkeypatch):
    """By sqrt(2) too little, in a fit that releases few values."""
    estimator = ESTIMATORS["covariance, user"]
    too_little_noise(monkeypatch)
    report = audit(estimator, ratings(), n_neighbors=8, n_runs=60)
    assert "noise in repeated fits" in failed(report)
    assert report.epsilon_lower > report.epsilon


def test_lower_limit_is_below_what_is_attained():
    report = audit(ESTIMATORS["covariance, user"], ratings(), n_neighbors=8, n_runs=40)
    assert 0.3 * report.epsilon_attained < report.epsilon_lower
    # above it in 5 % of the audits, by more than a quarter hardly ever
    assert report.epsilon_lower < 1.25 * report.epsilon_attained


# -- canaries --------------------------------------------------------------------------------------


def test_canaries_of_an_unprotected_model_are_found(monkeypatch):
    """A fit without privacy that states epsilon .5: what canaries move shows in the item means."""
    claimed, real = PrivacyBudget(0.5, 1e-5), DPCovarianceRecommender._fit

    def fit(self, R, y):
        self.budget = PrivacyBudget.nonprivate()
        real(self, R, y)
        self.budget = claimed
        self.privacy_spent_ = PrivacyStatement.from_plan(self.plan(R.shape[1], R.shape[0]))

    monkeypatch.setattr(DPCovarianceRecommender, "_fit", fit)
    X = make_ratings(5, 250, density=0.2, random_state=0)
    report = audit(DPCovarianceRecommender(claimed), X, n_neighbors=8, n_canaries=120)
    assert report.epsilon_canaries > 0.5
    assert {"canaries", "releases"} <= failed(report)


def test_canaries_attack_what_cannot_be_replayed():
    report = audit(LocalDPGDDR(PrivacyBudget(2.0)), ratings(), n_neighbors=8, n_canaries=40)
    assert report.passed
    assert "cannot be replayed" in str(report)
    assert report.epsilon_canaries <= 2.0
    assert math.isnan(report.epsilon_attained)


def test_canary_epsilon_is_a_binomial_limit():
    for right, guesses in ((20, 20), (60, 80), (35, 40)):
        epsilon = canary_epsilon(right, guesses, guesses, 0.0, 0.95)
        p = 1.0 / (1.0 + math.exp(-epsilon))
        assert stats.binom.sf(right - 1, guesses, p) == pytest.approx(0.05, rel=1e-6)
    with_delta = canary_epsilon(60, 80, 100, 1e-5, 0.95)
    assert 0.0 < with_delta < canary_epsilon(60, 80, 100, 0.0, 0.95)
    assert canary_epsilon(60, 80, 100, 1e-3, 0.95) < with_delta
    assert canary_epsilon(1000, 1000, 1000, 0.0, 0.95) < math.log(1000)
    with pytest.raises(ValueError, match="n_right=5"):
        canary_epsilon(5, 4, 4, 0.0, 0.95)


def test_canary_epsilon_holds_for_randomised_response():
    """Guesses from epsilon-DP answers exceed the limit in at most 5 % of 400 audits (p < 1e-4)."""
    rng = np.random.default_rng(0)
    epsilon, n = 1.0, 60
    keep = rng.random((400, n)) < 1.0 / (1.0 + math.exp(-epsilon))
    above = sum(canary_epsilon(int(k), n, n, 0.0, 0.95) > epsilon for k in keep.sum(axis=1))
    assert stats.binom.sf(above - 1, 400, 0.05) > 1e-4


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_neighbors": 3}, "n_neighbors=3"),
        ({"n_runs": -1}, "n_runs=-1"),
        ({"n_canaries": 1.5}, "n_canaries=1.5"),
        ({"confidence": 1.0}, "confidence=1.0"),
    ],
)
def test_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        audit(ESTIMATORS["ALS"], ratings(), **changes)


@pytest.mark.parametrize(
    "estimator", [CacheSGDFactorizer(), AdaptiveWeightALS(PrivacyBudget.nonprivate())]
)
def test_only_claims_are_audited(estimator):
    with pytest.raises(ValueError, match="there is no claim"):
        audit(estimator, ratings())


def test_the_estimator_is_left_alone():
    estimator = AdaptiveWeightALS(BUDGET, n_components=2, max_iter=2, random_state=3)
    before = repr(estimator)
    report = audit(estimator, ratings(), n_neighbors=8)
    assert repr(estimator) == before
    assert not hasattr(estimator, "components_")
    assert report.epsilon == pytest.approx(6.0, rel=1e-3)
    assert gaussian_epsilon(0.0, 1e-5) == 0.0


# -- the picture -----------------------------------------------------------------------------------


# an older matplotlib with a newer pyparsing warns of itself when it is imported
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(matplotlib|pyparsing)")
def test_display_shows_what_was_found():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    estimator = ESTIMATORS["covariance, user"]
    display = AuditDisplay.from_estimator(estimator, ratings(), n_neighbors=8, n_canaries=8)
    left, right = display.axes_
    report = display.report
    assert [bar.get_width() for bar in left.patches] == list(report.ratios.values())
    assert [text.get_text() for text in left.get_yticklabels()] == list(report.ratios)
    widths = [bar.get_width() for bar in right.patches]
    assert widths == [report.epsilon, report.epsilon_attained, report.epsilon_canaries]
    assert display.plot(display.axes_) is display
    matplotlib.pyplot.close(display.figure_)
