"""The audit clears the private estimators, and finds each planted bug in each of them.

Verdicts alarm falsely once in 1e6 for each statistical check, canaries once in 2e3; seeds of the
noise are fresh.
"""

import math
from dataclasses import replace

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
from skdpmf.local import rounds
from skdpmf.privacy import PrivacyStatement, _device, _privunit, local
from skdpmf.privacy import noise as noise_module
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.auditing import attack_reports, canary_epsilon, event_epsilon
from skdpmf.privacy.local import (
    CoordinateSampling,
    LaplaceReport,
    PrivUnit,
    RandomizedResponse,
)
from skdpmf.solvers import dpmf_posterior, item_means, local_gradient
from skdpmf.solvers.gibbs import GibbsChain
from skdpmf.solvers.langevin import LangevinChain

N_ITEMS = 14
BUDGET = PrivacyBudget(6.0, 1e-5)
RATING = PrivacyBudget(6.0, 1e-5, unit="rating")
REPLACE = PrivacyBudget(6.0, 1e-5, neighbors="replace")
LOCAL, PURE = PrivacyBudget(2.0), PrivacyBudget(6.0)
SMALL = {"n_components": 2, "max_iter": 2}
POSTERIOR = {"guarantee": "posterior", "n_components": 2, "max_iter": 10}
SUMS = {
    "ALS": AdaptiveWeightALS(BUDGET, **SMALL),
    "ALS, replace": AdaptiveWeightALS(REPLACE, **SMALL),
    "sampler": DPMFSampler(BUDGET, n_components=2, max_iter=3),
    "covariance, user": DPCovarianceRecommender(BUDGET, n_components=2),
    "covariance, rating": DPCovarianceRecommender(RATING, n_components=2),
    "item means": DPItemMeans(BUDGET),
    "covariance, Laplace": DPCovarianceRecommender(
        PrivacyBudget(60.0, unit="rating"), n_components=2, noise="laplace"
    ),
}
REPORTS = {
    "items": LocalDPGDDR(LOCAL),
    "items, sign": LocalDPGDDR(LOCAL, randomizer="coordinate"),
    "gradient": LocalDPGDDR(LOCAL, method="gradient", **SMALL),
    "Algorithm 1": LocalDPGDDR(LOCAL, method="gradient", randomizer="coordinate", **SMALL),
    "Algorithm 2": LocalDPGDDR(
        LOCAL, method="gradient", randomizer="coordinate", projection_dim=5, **SMALL
    ),
    "randomised response": LocalDPGDDR(LOCAL, method="randomized-response", **SMALL),
    "randomised response, rating": LocalDPGDDR(
        PrivacyBudget(2.0, unit="rating"),
        method="randomized-response",
        max_iter=1,
        center=False,
    ),
}
DRAWS = {
    "posterior": DPMFSampler(PURE, **POSTERIOR),
    "posterior, replace": DPMFSampler(PrivacyBudget(6.0, neighbors="replace"), **POSTERIOR),
    "posterior, biases": DPMFSampler(PURE, item_bias=True, sample_precisions=True, **POSTERIOR),
    "posterior, paper": DPMFSampler(PURE, calibration="paper", kappa=1.0, **POSTERIOR),
    # the bound of equal weights is reached by users of so many ratings alone
    "posterior, SGLD": DPMFSampler(PURE, sampler="sgld", max_ratings_per_user=N_ITEMS, **POSTERIOR),
}
ESTIMATORS = {**SUMS, **REPORTS, **DRAWS}
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
    assert report.epsilon_attained <= report.epsilon * (1.0 + 1e-9)
    # the neighbours come near the claim, so that a sensitivity that is too small shows
    assert max(report.ratios.values()) > (0.4 if "sign" in name or "Algorithm" in name else 0.9)
    assert report.epsilon_attained > 0.5 * report.epsilon
    assert report.epsilon_canaries == 0.0  # 4 guesses can tell nothing
    assert math.isnan(report.epsilon_lower) == (name == "covariance, Laplace")
    assert "Not tested" in str(report)
    assert ("converged" in report.not_tested) == (name in DRAWS)


# -- planted bugs: each changes the package for one audit, and returns the checks that find it -----


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
    return {"users are on their own", "devices are on their own"}


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


def no_clipping(monkeypatch):
    """Let users contribute what they have."""
    monkeypatch.setattr(item_means, "shrink_to_ball", lambda norm, bound: np.ones_like(norm))
    return {"sensitivities"}


SUM_BUGS = [
    too_little_noise,
    no_noise,
    declared_less,
    smaller_sensitivity,
    no_clipping,
    exact_counts,
    unaccounted_centring,
    the_same_noise_twice,
    released_twice,
]
# of one rating a bounded deviation is released as it is: there is nothing to clip but the rating
UNCLIPPED = {"covariance, rating", "covariance, Laplace"}
N_RUNS = {"too_little_noise": 60}  # some fits release too few values to show it


def assert_found(estimator, expected, n_runs=0):
    report = audit(estimator, ratings(), n_neighbors=8, n_runs=n_runs)
    assert not report.passed
    assert expected & failed(report), str(report)
    assert "THE CLAIM DOES NOT HOLD" in str(report)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("bug", SUM_BUGS, ids=lambda bug: bug.__name__)
def test_bugs_of_sums_are_found(name, bug, monkeypatch):
    if bug is no_clipping and name in UNCLIPPED:
        pytest.skip("does not clip a user's whole contribution")
    assert_found(ESTIMATORS[name], bug(monkeypatch), N_RUNS.get(bug.__name__, 0))


# -- bugs of reports -------------------------------------------------------------------------------

RANDOMISERS = {
    PrivUnit: "sum_reports",
    CoordinateSampling: "report",
    RandomizedResponse: "report",
    LaplaceReport: "report",
}


def drawn_for_twice_as_much(monkeypatch):
    """Draw reports for twice the epsilon that they state."""
    unit, coin = _privunit.privunit_parameters, local.bernoulli_threshold
    monkeypatch.setattr(_privunit, "privunit_parameters", lambda eps, d: unit(2.0 * eps, d))
    monkeypatch.setattr(local, "bernoulli_threshold", lambda eps: coin(2.0 * eps))
    return {"law of the reports"}


def more_than_planned(monkeypatch):
    """Spend twice the planned epsilon on every report."""
    for randomiser in RANDOMISERS:
        real = randomiser.__init__

        def make(self, epsilon, *settings, real=real):
            real(self, 2.0 * epsilon, *settings)

        monkeypatch.setattr(randomiser, "__init__", make)
    return {"reports", "statement"}


def reported_twice(monkeypatch):
    """Send a second report of the same, with other randomness."""
    for randomiser, name in RANDOMISERS.items():
        real = getattr(randomiser, name)

        def report(self, keys, *values, real=real, **settings):
            real(self, keys + np.uint32(1), *values, **settings)
            return real(self, keys, *values, **settings)

        monkeypatch.setattr(randomiser, name, report)
    return {"reports"}


def the_same_key_for_all(monkeypatch):
    """Forget whose randomness it is."""
    real = _device.stream_key
    for module in (_device, rounds):
        monkeypatch.setattr(
            module, "stream_key", lambda key, purpose, name, index: real(key, purpose, "x", 0)
        )
    return {"randomness is fresh"}


def of_another_row(monkeypatch):
    """Let a device report the row before its own."""
    rows = rounds.announced_rows

    def before(R):
        return R[np.maximum(np.arange(R.shape[0]) - 1, 0)]

    monkeypatch.setattr(rounds, "announced_rows", lambda told, R: rows(told, before(R)))
    change_rows(monkeypatch, before)
    return {"devices are on their own"}


def change_rows(monkeypatch, change):
    """Change the rows that reports of gradients, and sampled statistics, are made from."""
    from skdpmf.estimators import local_dpgddr

    fit, sampled = local_gradient.fit, local_dpgddr.items.sampled_model
    monkeypatch.setattr(local_gradient, "fit", lambda R, *more, **s: fit(change(R), *more, **s))
    monkeypatch.setattr(
        local_dpgddr.items, "sampled_model", lambda R, *more: sampled(change(R), *more)
    )


def no_unit_length(monkeypatch):
    """Leave vectors as long as they are."""

    def unit_rows(indptr, indices, values, start, stop, dimension, ptr, at, out):
        ptr[:] = indptr[start : stop + 1] - indptr[start] + np.arange(stop - start + 1)
        for row in range(start, stop):
            own = slice(indptr[row], indptr[row + 1])
            first, last = ptr[row - start], ptr[row - start + 1] - 1
            at[first:last], out[first:last] = indices[own], values[own]
            at[last], out[last] = dimension - 1, 1.0

    monkeypatch.setattr(_privunit, "unit_rows", unit_rows)
    monkeypatch.setattr(item_means, "shrink_to_ball", lambda norm, bound: np.ones_like(norm))
    monkeypatch.setattr(local_gradient, "CLIP", 2.0)
    return {"inputs are bounded", "law of the reports"}


def user_counted_as_one_rating(monkeypatch):
    """Calibrate to inputs that differ for one item."""
    for randomiser in (RandomizedResponse, LaplaceReport):
        real = randomiser.__init__

        def make(self, epsilon, n_differing, *settings, real=real):
            real(self, epsilon, 1, *settings)

        monkeypatch.setattr(randomiser, "__init__", make)
    return {"inputs are bounded"}


REPORT_BUGS = [
    drawn_for_twice_as_much,
    more_than_planned,
    reported_twice,
    the_same_key_for_all,
    of_another_row,
    exact_counts,
    unaccounted_centring,
]


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("bug", REPORT_BUGS, ids=lambda bug: bug.__name__)
def test_bugs_of_reports_are_found(name, bug, monkeypatch):
    assert_found(ESTIMATORS[name], bug(monkeypatch), 20 if bug is drawn_for_twice_as_much else 0)


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        (no_unit_length, "items"),
        (no_unit_length, "gradient"),
        (user_counted_as_one_rating, "randomised response"),
    ],
)
def test_reports_beyond_their_bounds_are_found(bug, name, monkeypatch):
    assert_found(ESTIMATORS[name], bug(monkeypatch), n_runs=20)


# -- bugs of draws ---------------------------------------------------------------------------------


def too_cold(monkeypatch):
    """Take twice the inverse temperature that epsilon allows."""
    return change_target(
        monkeypatch, lambda t: replace(t, inverse_temperature=2.0 * t.inverse_temperature)
    )


def change_target(monkeypatch, change):
    real = dpmf_posterior._target
    monkeypatch.setattr(dpmf_posterior, "_target", lambda *settings: change(real(*settings)))
    return {"losses are bounded"}


def wrong_clip(monkeypatch):
    """Clip predictions to the whole range around the targets instead of half of it."""
    return change_target(monkeypatch, lambda t: replace(t, bound=2.0 * t.bound))


def unclipped_targets(monkeypatch):
    """Forget that a rating may be farther from its user's mean than half the range."""
    return change_target(monkeypatch, lambda t: replace(t, R=1.5 * t.R))


def unclipped_user(monkeypatch):
    """Give users the weight of a user with a single rating."""
    return change_target(
        monkeypatch, lambda t: replace(t, weights=np.full_like(t.weights, t.weights.max() * 14))
    )


def no_clip_in_the_chain(monkeypatch):
    """Sample the loss without its clip, whatever the target says."""
    for chain in (GibbsChain, LangevinChain):
        real = chain.__init__

        def make(self, target, *more, real=real, **settings):
            real(self, replace(target, bound=np.inf), *more, **settings)

        monkeypatch.setattr(chain, "__init__", make)
    return {"draws of a wide prior"}


def two_draws(monkeypatch):
    """Publish the mean of two draws for the price of one."""
    real = dpmf_posterior.fit
    monkeypatch.setattr(
        dpmf_posterior,
        "fit",
        lambda R, settings, *more, **s: real(R, replace(settings, n_draws=2), *more, **s),
    )
    return {"draws"}


DRAW_BUGS = [
    too_cold,
    wrong_clip,
    unclipped_targets,
    unclipped_user,
    no_clip_in_the_chain,
    two_draws,
    exact_counts,
    unaccounted_centring,
]


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("bug", DRAW_BUGS, ids=lambda bug: bug.__name__)
def test_bugs_of_draws_are_found(name, bug, monkeypatch):
    assert_found(ESTIMATORS[name], bug(monkeypatch), 60 if bug is no_clip_in_the_chain else 0)


# -- repetition ------------------------------------------------------------------------------------


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


def test_an_error_that_one_row_raises_is_found(monkeypatch):
    """What a row raises tells that it is there."""
    real = DPItemMeans._fit

    def fit(self, R, *more, **metadata):
        if (R.sum(axis=1)[np.diff(R.indptr) == N_ITEMS] == N_ITEMS).any():
            raise ZeroDivisionError("nothing but ones")
        real(self, R, *more, **metadata)

    monkeypatch.setattr(DPItemMeans, "_fit", fit)
    report = audit(ESTIMATORS["item means"], ratings(), n_neighbors=8)
    assert "one row does not change the course" in failed(report)
    assert "ZeroDivisionError: nothing but ones" in str(report)


def test_event_epsilon_holds_for_randomised_response():
    """The limit exceeds the true epsilon in at most 5 % of 400 audits (p < 1e-4)."""
    rng, epsilon, n = np.random.default_rng(0), 1.0, 300
    p = 1.0 / (1.0 + math.exp(-epsilon))
    seen = rng.binomial(n, [p, 1.0 - p], (400, 2))
    above = sum(event_epsilon(int(a), int(b), n, 0.95) > epsilon for a, b in seen)
    assert stats.binom.sf(above - 1, 400, 0.05) > 1e-4


@pytest.mark.parametrize(
    "randomiser",
    [
        PrivUnit(1.0, 9),
        PrivUnit(4.0, 9),
        CoordinateSampling(2.0, 9),
        RandomizedResponse(2.0, 4),
        LaplaceReport(2.0, 4, 1.0),
    ],
)
def test_attacks_on_reports_come_near_their_epsilon(randomiser):
    attack = attack_reports(randomiser, 4000, 0.99)
    assert 0.75 * randomiser.epsilon < attack.epsilon < 1.1 * randomiser.epsilon
    assert attack.surely < randomiser.epsilon
    assert attack.chance > 1e-6


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
