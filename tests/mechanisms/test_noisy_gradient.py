"""Langevin dynamics on the items: against a slow twin, in its limits, and personal levels."""

import numpy as np
import pytest

from skdpmf import DPItemMeans, DPMFSampler, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import split_ratings
from skdpmf.mechanisms import noisy_gradient as solver
from skdpmf.mechanisms.common import unpack_lower
from skdpmf.privacy import frame
from skdpmf.privacy.accounting import gaussian_mu
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.sampler.streams import derived_key
from tests.core import audit
from tests.core.audit import BUDGET, N_ITEMS, N_USERS, base_ratings
from tests.reference import noisy_gradient as twin

NONPRIVATE = PrivacyBudget.nonprivate()


def recorded_fit(X, replay=None, **params):
    return audit.recorded_fit(X, replay, estimator=DPMFSampler, **params)


@pytest.fixture
def one_key(monkeypatch):
    """All fits of a test have one key, whatever their parameters and data."""
    key = derived_key(0)
    monkeypatch.setattr(frame, "derived_key", lambda *_: key)
    return key


def start(key, rank):
    return NoiseSource(key).initial_normals((N_ITEMS, rank))


@pytest.fixture
def known(monkeypatch):
    """What is known of the item means before the first step, once a fit has begun it."""
    found, real = {}, solver._Items.__init__

    def init(self, averages, *more):
        found.update(
            mean=averages.mean,
            mass=averages.mass,
            weights=averages.weights,
            typical_weights=averages.typical,
            typical=averages.typical_weight**-2.0,
            X=averages.shift / averages.precision,
            P=1.0 / averages.precision,
            design=averages.design,
            prior_variance=averages.prior_variance,
            n_users=averages.n_users,
        )
        real(self, averages, *more)

    monkeypatch.setattr(solver._Items, "__init__", init)
    monkeypatch.setattr(solver._Items, "shows_factors", lambda _: True)
    return found


def settings_of(**params):
    return solver.Settings(
        **{
            "n_components": 3,
            "max_ratings_per_user": None,
            "max_iter": 3,
            "alpha": 1.0,
            "user_damping": 10.0,
            **params,
        }
    )


def made(n_users, n_items, density, seed, **more):
    X = make_ratings(n_users, n_items, density=density, random_state=seed, **more)
    return split_ratings(X, random_state=0)


SHAPES = {
    "six ratings a user": (300, 150, 0.04, 0, {}),
    "factors": (200, 60, 0.4, 1, {}),
    "no factors": (200, 60, 0.4, 2, {"n_components": 0}),
    "noise": (200, 60, 0.4, 3, {"noise_std": 2.0}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_without_privacy_it_is_as_good_as_item_means_and_as_its_private_fits(name):
    *shape, more = SHAPES[name]
    X, Y = made(*shape, **more)

    def error(kind, budget):
        return -kind(budget, random_state=0).fit(X).score(X, Y)

    limit = error(DPMFSampler, NONPRIVATE)
    assert limit <= error(DPItemMeans, NONPRIVATE) + 0.002
    for epsilon in (4.0, 57.0):
        assert limit <= error(DPMFSampler, PrivacyBudget(epsilon, 1e-5)) + 0.002


def test_without_privacy_offsets_and_factors_have_learnt_ridges(one_key):
    """Users' offsets of deviation 1 in noise of .25 are believed; alpha counts for factors."""
    rng = np.random.default_rng(0)
    X = base_ratings()
    X[:] = 3.0 + rng.normal(0.0, 0.5, N_USERS)[:, None] + rng.normal(0.0, 0.1, X.shape)
    X += 0.1 * np.outer(rng.normal(size=len(X)), rng.normal(size=X.shape[1]))
    model, _ = recorded_fit(X, budget=NONPRIVATE, n_components=2)
    ridge = model._item_model_.ridge
    assert ridge[0, 0] < 0.5
    assert model._item_model_.prior is None
    strong, _ = recorded_fit(X, budget=NONPRIVATE, n_components=2, alpha=3.0)
    # one of two factors shows nothing and is left out
    np.testing.assert_allclose(strong._item_model_.ridge[1, 1], 3.0 * ridge[1, 1])


LEVELS = np.random.default_rng(5).choice([0.0, 5.0, 20.0], N_USERS, p=[0.1, 0.2, 0.7])
PRIVATE = {
    "add-remove": {},
    "replace": {"budget": PrivacyBudget(50.0, 1e-5, neighbors="replace")},
    # tiny ridges: |x| would be far beyond 1
    "weak ridge": {"alpha": 1e-3},
    "more steps": {"max_iter": 8},
    "levels": {"levels": LEVELS, "budget": BUDGET},
}


@pytest.mark.parametrize("name", PRIVATE)
def test_private_releases_are_the_twins_gradients(name, one_key, known):
    """Given the earlier releases, a release's statistic is the clipped sum, written as a loop."""
    params = {"budget": PrivacyBudget(40.0, 1e-5), **PRIVATE[name]}
    levels, budget = params.pop("levels", None), params.pop("budget")
    X = base_ratings()
    model, records = recorded_fit(X, budget=budget, levels=levels, **params)
    y, settings = X - 3.0, settings_of(**params)
    plan, influence = model.plan(N_ITEMS), np.ones(N_USERS)
    if levels is not None:
        y[levels == 0.0] = np.nan
        influence = solver.personal_influence(levels, plan, N_USERS)
    releases = {(record.name, record.index): record for record in records}
    w = twin.user_weights(y, known["mass"])
    # what is truncated to the grid is at most 4 times as large as 1
    tolerance = 4.0 * N_USERS * exact_grid(N_USERS, 4.0)
    _, _, moments, gradients = plan.releases
    clip = gradients.sensitivity / (2.0 if budget.neighbors == "replace" else 1.0)
    ranks = []

    def released(t, *point):
        size = point[1].shape[1] + 1
        ranks.append(size - 1)
        gradient, second = (releases[slot, t] for slot in (solver.GRADIENTS, solver.MOMENTS))
        G, H = twin.user_sums(y, w, point, settings, clip=clip, influence=influence)
        assert abs(G).max() > 100.0 * tolerance
        np.testing.assert_allclose(gradient.statistic[:, :size], G, rtol=0, atol=tolerance)
        assert not gradient.statistic[:, size:].any()
        np.testing.assert_allclose(unpack_lower(second.statistic), H, rtol=0, atol=tolerance)
        return gradient.output[:, :size], unpack_lower(second.output)

    V = start(one_key, used(model))
    terms = {"noise": gradients.noise_scale, "deviation": moments.noise_scale, "clip": clip}
    b, V, _ = twin.chain(released, known, V, settings, **terms)
    assert ranks == [used(model)] * settings.max_iter
    np.testing.assert_allclose(model.components_[: used(model)].T, V, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.item_means_, 3.0 + b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("strength", [0.0, 0.8])
def test_factors_that_are_not_there_are_given_up(strength):
    """Offsets of users, which a fit damps, are no factor."""
    stds = {"factor_std": strength, "user_bias_std": 1.0}
    X = make_ratings(800, 100, n_ratings=10_000, random_state=0, **stds)
    model, records = recorded_fit(X, budget=PrivacyBudget(20.0, 1e-5), max_iter=20)
    assert bool(model.components_.any()) == (strength > 0.0)
    sums = [record.statistic.shape for record in records if record.name == solver.GRADIENTS]
    assert len(set(sums[:10])) == 1
    assert len(sums) == 20
    assert (sums[-1] != sums[0]) == (strength == 0.0)


def used(model):
    rank = int(np.count_nonzero(model.components_.any(axis=1)))
    assert rank > 0
    return rank


def test_the_slack_covers_means_in_the_place_of_steps():
    """Steps may release the means, which are more values when the rank is small."""
    small = DPMFSampler(BUDGET, n_components=1, max_iter=7).plan(300)
    most = 301 * (1 + solver.MEAN_ROUNDS + 7) + 7 * 600
    assert small.n_values == most


@pytest.mark.parametrize("budget", [BUDGET, NONPRIVATE], ids=["private", "non-private"])
@pytest.mark.parametrize("cap", [None, 5])
def test_the_range_is_a_unit(budget, cap, one_key):
    X = base_ratings()
    one, _ = recorded_fit(X, budget=budget, max_ratings_per_user=cap)
    for factor, shift in ((2.0, 0.0), (1.0, 16.0), (0.5, -3.0)):
        ends = {"rating_range": (factor * 1.0 + shift, factor * 5.0 + shift)}
        two, _ = recorded_fit(factor * X + shift, budget=budget, max_ratings_per_user=cap, **ends)
        np.testing.assert_allclose(two.components_, factor * one.components_, rtol=1e-12)
        np.testing.assert_allclose(two.item_means_, factor * one.item_means_ + shift, rtol=1e-12)
        np.testing.assert_allclose(
            two.decision_function(factor * X + shift),
            factor * one.decision_function(X) + shift,
            rtol=1e-10,
        )


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_influence_follows_the_level(epsilon, neighbors):
    budget = PrivacyBudget(epsilon, 1e-5, neighbors=neighbors)
    plan = DPMFSampler(budget, n_components=3, max_iter=5).plan(N_ITEMS)
    levels = epsilon * np.array([0.0, 0.01, 0.1, 0.5, 0.999, 1.0])
    f = solver.personal_influence(levels, plan, N_USERS)
    assert (f[0], f[-1]) == (0.0, 1.0)
    assert np.all(np.diff(f) > 0.0)
    slack = plan.slack | {"largest": 1.0}
    mu = np.array([gaussian_mu(level, 1e-5, **slack) for level in levels[1:]])
    ideal = mu / mu[-1]
    assert np.all(f[1:] <= ideal * (1.0 + 1e-7))
    assert np.all(f[1:] >= 0.98 * ideal - 0.005)


def test_the_rounding_of_releases_is_paid_by_every_level(monkeypatch):
    """f + (1 - f) s is the level's share: s is due in full, however little a user contributes."""
    plan = DPMFSampler(BUDGET).plan(N_ITEMS)
    levels = np.array([0.0, 0.5, 10.0, BUDGET.epsilon])
    exact = solver.personal_influence(levels, plan, N_USERS)
    seen = []

    def rounding_share(release, bound):
        seen.append((release.name, release.shape, release.noise_multiplier))
        return 0.25 if len(seen) == 2 else 0.1

    monkeypatch.setattr(solver, "rounding_share", rounding_share)
    f = solver.personal_influence(levels, plan, N_USERS)
    np.testing.assert_allclose(f, np.maximum((exact - 0.25) / 0.75, 0.0), atol=1e-6)
    # the means may also be released in the place of either
    _, means, moments, gradients = plan.releases
    expected = {(r.name, r.shape, r.noise_multiplier) for r in plan.releases}
    expected |= {(means.name, means.shape, r.noise_multiplier) for r in (moments, gradients)}
    assert set(seen) == expected
