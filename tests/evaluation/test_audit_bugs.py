"""The audit finds each planted bug in each private estimator that it applies to.

A bug changes the package for one audit, and returns the checks of which one must find it.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from skdpmf import DPCovarianceRecommender, DPItemMeans
from skdpmf.data import make_ratings
from skdpmf.estimators import local_dpgddr
from skdpmf.evaluation import audit
from skdpmf.evaluation.audit import _Run
from skdpmf.mechanisms import noisy_gradient
from skdpmf.mechanisms.device_reports import gradient as local_gradient
from skdpmf.mechanisms.device_reports import item_means as local_items
from skdpmf.mechanisms.device_reports import privunit
from skdpmf.mechanisms.device_reports import protocol as rounds
from skdpmf.mechanisms.device_reports import randomizers as local
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.device_reports.randomizers import CoordinateSampling
from skdpmf.mechanisms.gram import covariance as item_covariance
from skdpmf.mechanisms.posterior_draw import draw as dpmf_posterior
from skdpmf.mechanisms.posterior_draw.gibbs import GibbsChain
from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.recording import RecordingNoise
from skdpmf.privacy.sampler import noise as noise_module
from skdpmf.privacy.sampler.noise import noise_source
from skdpmf.privacy.users import reveal

from .audit_cases import DRAWS, ESTIMATORS, RATING, REPORTS, SAMPLED, SUMS, failed, ratings

# -- bugs of sums ----------------------------------------------------------------------------------


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
    real = RecordingNoise.blocks

    def blocks(self, **terms):
        if not hasattr(self, "made_more"):
            self.made_more = True
            more = real(self, **{**terms, "name": "more"})
            with more as release:
                release.release(0, np.zeros(int(np.prod(terms["shape"]))))
        return real(self, **terms)

    monkeypatch.setattr(RecordingNoise, "blocks", blocks)
    return {"releases"}


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
    monkeypatch.setattr(sums, "shrink_to_ball", lambda norm, radius: np.ones_like(norm))
    return {"sensitivities"}


SUM_BUGS = [
    too_little_noise,
    declared_less,
    smaller_sensitivity,
    no_clipping,
    exact_counts,
    unaccounted_centring,
    the_same_noise_twice,
    released_twice,
]
# bugs that show by how a mechanism sums; the others are the same behind all of them
OF_EACH = {too_little_noise, smaller_sensitivity, no_clipping}
OF_KINDS = ("ALS", "sampler", "covariance, Laplace")
# of one rating a bounded deviation is released as it is: there is nothing to clip but the rating
UNCLIPPED = {"covariance, rating", "covariance, Laplace"}
N_RUNS = {"too_little_noise": 60}  # some fits release too few values to show it


def assert_found(name, expected, n_runs=0):
    """Run the parts of an audit in their order, until one finds the bug: none takes that back."""
    run, checks = _Run(ESTIMATORS[name], ratings(), random_state=0), []
    for part in (
        run.one_fit,
        lambda: run.replayed(40 if name in SAMPLED else 8),
        lambda: run.repeated(n_runs, 0.99)[0] if n_runs else (),
    ):
        checks += part()
        if expected & {check.name for check in checks if not check.passed}:
            return
    pytest.fail(str(checks))


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        pytest.param(name, bug, id=f"{bug.__name__}-{name}")
        for bug in SUM_BUGS
        for name in (SUMS if bug in OF_EACH else OF_KINDS)
        if not (bug is no_clipping and name in UNCLIPPED)
    ],
)
def test_bugs_of_sums_are_found(name, bug, monkeypatch):
    assert_found(name, bug(monkeypatch), N_RUNS.get(bug.__name__, 0))


# -- bugs of reports -------------------------------------------------------------------------------

RANDOMISERS = {PrivUnit: "sum_reports", CoordinateSampling: "report"}


def drawn_for_twice_as_much(monkeypatch):
    """Draw reports for twice the epsilon that they state."""
    unit, coin = privunit.privunit_parameters, local.bernoulli_threshold
    monkeypatch.setattr(privunit, "privunit_parameters", lambda eps, d: unit(2.0 * eps, d))
    monkeypatch.setattr(local, "bernoulli_threshold", lambda eps: coin(2.0 * eps))
    return {"law of the reports"}


def more_than_planned(monkeypatch):
    """Spend twice the planned epsilon on every report."""
    for randomiser in RANDOMISERS:
        real = randomiser.__init__

        def make(self, epsilon, *settings, real=real):
            real(self, 2.0 * epsilon, *settings)

        monkeypatch.setattr(randomiser, "__init__", make)
    return {"releases", "statement"}


def reported_twice(monkeypatch):
    """Send a second report of the same, with other randomness."""
    for randomiser, name in RANDOMISERS.items():
        real = getattr(randomiser, name)

        def report(self, keys, *values, real=real, **settings):
            real(self, keys + np.uint32(1), *values, **settings)
            return real(self, keys, *values, **settings)

        monkeypatch.setattr(randomiser, name, report)
    return {"releases"}


def the_same_key_for_all(monkeypatch):
    """Forget whose randomness it is."""
    real = local.stream_key
    for module in (local, rounds):
        monkeypatch.setattr(
            module, "stream_key", lambda key, purpose, name, index: real(key, purpose, "x", 0)
        )
    return {"randomness is fresh"}


def of_another_row(monkeypatch):
    """Let a device report the row before its own, and the first two devices the first row."""

    def before(R):
        return R[np.maximum(np.arange(R.shape[0]) - 1, 0)]

    monkeypatch.setattr(
        local_dpgddr,
        "simulate",
        lambda told, R, *more, **s: rounds.simulate(told, before(R), *more, **s),
    )
    change_rows(monkeypatch, before)
    return {"users are on their own"}


def change_rows(monkeypatch, change):
    """Change the rows that reports of gradients, and sampled statistics, are made from."""
    fit, sampled = local_gradient.fit, local_dpgddr.items.sampled_model
    monkeypatch.setattr(local_gradient, "fit", lambda R, *more, **s: fit(change(R), *more, **s))
    monkeypatch.setattr(
        local_dpgddr.items, "sampled_model", lambda R, *more: sampled(change(R), *more)
    )


def no_unit_length(monkeypatch):
    """Leave vectors as long as they are."""

    def unit_rows(indptr, indices, values, dimension):
        rows, ends = slice(indptr[0], indptr[-1]), indptr[1:] - indptr[0]
        ptr = np.append(0, ends + np.arange(1, len(indptr)))
        at = np.insert(indices[rows], ends, dimension - 1)
        return ptr, at, np.insert(values[rows], ends, 1.0)

    monkeypatch.setattr(privunit, "unit_rows", unit_rows)
    monkeypatch.setattr(local_items, "shrink_to_ball", lambda norm, radius: np.ones_like(norm))
    monkeypatch.setattr(local_gradient, "CLIP", 2.0)
    return {"sensitivities", "law of the reports"}


REPORT_BUGS = [
    drawn_for_twice_as_much,
    more_than_planned,
    reported_twice,
    the_same_key_for_all,
    of_another_row,
    exact_counts,
    unaccounted_centring,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("bug", REPORT_BUGS, ids=lambda bug: bug.__name__)
def test_bugs_of_reports_are_found(name, bug, monkeypatch):
    expected = bug(monkeypatch)
    if bug is of_another_row and name == "items":
        # a part may have no two of its devices: the first row's two reports cost twice the claim
        expected = {"epsilon of neighbours"}
    assert_found(name, expected, 20 if bug is drawn_for_twice_as_much else 0)


@pytest.mark.parametrize(("bug", "name"), [(no_unit_length, "items"), (no_unit_length, "gradient")])
def test_reports_beyond_their_bounds_are_found(bug, name, monkeypatch):
    assert_found(name, bug(monkeypatch), n_runs=20)


# -- bugs of draws ---------------------------------------------------------------------------------


def change_target(monkeypatch, change):
    real = dpmf_posterior._target
    monkeypatch.setattr(dpmf_posterior, "_target", lambda *settings: change(real(*settings)))
    return {"sensitivities"}


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
    return {"releases"}


TARGETS = [
    # twice the inverse temperature that epsilon allows
    lambda t: replace(t, inverse_temperature=2.0 * t.inverse_temperature),
    # predictions clipped to the whole range around the targets instead of half of it
    lambda t: replace(t, bound=2.0 * t.bound),
    # ratings farther from their user's mean than half the range
    lambda t: replace(t, R=1.5 * t.R),
    # users with the weight of a user with a single rating
    lambda t: replace(t, weights=np.full_like(t.weights, t.weights.max() * 14)),
]
DRAW_BUGS = [
    *(partial(change_target, change=change) for change in TARGETS),
    no_clip_in_the_chain,
    two_draws,
    exact_counts,
    unaccounted_centring,
]


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("bug", DRAW_BUGS, ids=lambda bug: getattr(bug, "__name__", "target"))
def test_bugs_of_draws_are_found(name, bug, monkeypatch):
    assert_found(name, bug(monkeypatch), 60 if bug is no_clip_in_the_chain else 0)


# -- bugs of what is saved -------------------------------------------------------------------------


def ridge_of_the_item_model(model, R):
    model._item_model_ = model._item_model_._replace(rating_ridge=float(R.nnz))


def weights_of_the_neighbors(model, R):
    exact = np.bincount(R.indices, minlength=3)[:3].astype(float)
    model._neighbor_model_ = model._neighbor_model_._replace(weights=exact)


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("item means", ridge_of_the_item_model),
        ("posterior", ridge_of_the_item_model),
        ("items", ridge_of_the_item_model),
        ("covariance, rating", weights_of_the_neighbors),
        ("item means", lambda model, R: setattr(model, "_target_kind", f"index {R.nnz % 2}")),
        ("item means", lambda model, R: setattr(model, "user_damping", float(R.nnz))),
    ],
)
def test_exact_numbers_that_a_file_would_hold_are_found(name, plant, monkeypatch):
    change_fit(monkeypatch, plant)
    assert_found(name, {"nothing else is released"})


# -- bugs behind what small data release -----------------------------------------------------------


def head_of(monkeypatch, change):
    """Change by what the items of the covariance are chosen."""
    real = item_covariance._Fit.head
    monkeypatch.setattr(
        item_covariance._Fit, "head", lambda fit, popularity: change(real, fit, popularity)
    )


def subset_by_exact_counts(real, fit, popularity):
    R = reveal(fit.users)
    exact = np.bincount(R.indices, minlength=R.n_items)
    return np.sort(np.argsort(-exact, kind="stable")[: real(fit, popularity).size])


def exact_number_of_users(real, fit, popularity):
    exact = np.count_nonzero(reveal(fit.users).n_ratings)
    return real(fit, popularity._replace(n_users=max(float(exact), 1.0)))


@pytest.mark.parametrize("plant", [subset_by_exact_counts, exact_number_of_users])
def test_exact_choices_of_items_are_found(plant, monkeypatch):
    """At no typical release is there a covariance to choose items for."""
    head_of(monkeypatch, plant)
    X = make_ratings(60, 40, density=0.3, random_state=1)
    report = audit(DPCovarianceRecommender(RATING), X)
    assert {"users are on their own", "one row does not change the course"} & failed(report)


# -- bugs of the course, of personal levels, and of one rating -------------------------------------


@pytest.mark.parametrize("n_runs", [0, 2])
def test_releases_outside_the_replay_are_a_failed_check(n_runs, monkeypatch):
    """One more release where few have ratings: a lone row leaves the recorded course."""

    def fit(self, R, *more, real=DPItemMeans._fit, **metadata):
        real(self, R, *more, **metadata)
        if np.count_nonzero(np.diff(R.indptr)) < 5:
            terms = {"name": "more", "sensitivity": 1.0, "noise_multiplier": 1.0, "bound": 9.0}
            noise_source(noise_module.fresh_key()).release(np.zeros(1), **terms)

    monkeypatch.setattr(DPItemMeans, "_fit", fit)
    report = audit(ESTIMATORS["item means"], ratings(), n_neighbors=8, n_runs=n_runs)
    assert "one row does not change the course" in failed(report)
    assert "replay holds nothing" in str(report)


def levels_ignored(monkeypatch):
    """Give users of any level but 0 the influence of the largest."""
    monkeypatch.setattr(
        noisy_gradient, "personal_influence", lambda levels, *more: (levels > 0.0).astype(float)
    )
    real = dpmf_posterior._target

    def target(R, settings, budget, noise, levels):
        return real(R, settings, budget, noise, None)

    monkeypatch.setattr(dpmf_posterior, "_target", target)
    return {"personal levels"}


@pytest.mark.parametrize("name", ["sampler", "posterior", "posterior, replace", "posterior, SGLD"])
def test_levels_that_are_ignored_are_found(name, monkeypatch):
    assert_found(name, levels_ignored(monkeypatch))
