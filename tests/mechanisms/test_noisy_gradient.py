"""Langevin dynamics on the items: against a slow twin, in its limits, and personal levels."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf import DPMFSampler, PrivacyBudget
from skdpmf.distributed import exchange
from skdpmf.mechanisms import noisy_gradient as solver
from skdpmf.mechanisms.als.item_update import unpack_lower
from skdpmf.mechanisms.item_means import joint_release as item_means
from skdpmf.privacy.accounting import gaussian_mu
from skdpmf.privacy.sampler.noise import (
    SAMPLER_ETA,
    SAMPLER_TAU,
    NoiseSource,
    derived_key,
    exact_grid,
)
from tests.core import audit
from tests.core.audit import BUDGET, N_ITEMS, N_USERS, SLOT, base_ratings, fitted_state, is_means
from tests.reference import noisy_gradient as twin

NONPRIVATE = PrivacyBudget.nonprivate()
REPLACE = PrivacyBudget(20.0, 1e-5, neighbors="replace")


def recorded_fit(X, replay=None, **params):
    return audit.recorded_fit(X, replay, estimator=DPMFSampler, **params)


@pytest.fixture
def one_key(monkeypatch):
    """All fits of a test have one key, whatever their parameters and data."""
    key = derived_key(0)
    monkeypatch.setattr(exchange, "derived_key", lambda *_: key)
    return key


def ratings_with_gaps():
    """An item that nobody rated, and a user without ratings."""
    X = base_ratings()
    X[3] = np.nan
    return X


def start(key, rank):
    return solver.FIRST_NORM * NoiseSource(key).initial_normals((N_ITEMS, rank))


# -- the twin --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 0.25, 1.0])
@pytest.mark.parametrize(("k", "rounds"), [(1, 4), (3, 7), (4, 1)])
def test_without_privacy_it_is_the_twin(exponent, k, rounds, one_key, monkeypatch):
    monkeypatch.setattr(solver, "WEIGHT_EXPONENT", exponent)
    X = ratings_with_gaps()
    params = {"alpha": 0.7, "user_damping": 4.0}
    model, records = recorded_fit(X, budget=NONPRIVATE, n_components=k, max_iter=rounds, **params)
    b, V, ridge = twin.fit(X - 3.0, start(one_key, k), rounds=rounds, alpha=0.7, damping=4.0)
    np.testing.assert_allclose(model.item_means_, b + 3.0, rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.components_.T, V, rtol=0, atol=1e-10)
    assert abs(V).max() > 1e-3
    for record in records:
        np.testing.assert_array_equal(record.output, record.statistic)
    # predictions are the ridge regressions of the users on the twin's model
    expected = np.tile(b + 3.0, (N_USERS, 1))
    for i, own in enumerate(~np.isnan(X)):
        F = np.column_stack((np.ones(own.sum()), V[own]))
        penalty = np.diag([4.0, *[ridge] * k])
        z = np.linalg.solve(F.T @ F + penalty, F.T @ (X[i, own] - 3.0 - b[own]))
        expected[i] += z[0] + V @ z[1:]
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=0, atol=1e-10)


def released_means(records):
    """What all releases of the item statistics say together, and how many there are."""
    means = [record for record in records if is_means(record)]
    precision = sum(record.noise_multiplier**-2.0 for record in means)
    total = sum(record.noise_multiplier**-2.0 * record.output for record in means) / precision
    scale = means[0].sensitivity / np.sqrt(precision)
    return item_means.estimate_item_means(total, scale, N_USERS), len(means)


LEVELS = np.random.default_rng(5).choice([0.0, 5.0, 20.0], N_USERS, p=[0.1, 0.2, 0.7])
PRIVATE = {
    "add-remove": {},
    "replace": {"budget": REPLACE},
    # tiny ridges: |u| would be far beyond 1
    "weak ridge": {"alpha": 1e-3},
    "more steps": {"max_iter": 8, "budget": PrivacyBudget(40.0, 1e-5)},
    "some steps release the means": {"max_iter": 10, "budget": PrivacyBudget(8.0, 1e-5)},
    "levels": {"levels": LEVELS},
}


@pytest.mark.parametrize("name", PRIVATE)
def test_private_releases_are_the_twins_gradients(name, one_key):
    """Given the earlier releases, a release's statistic is the clipped sum, written as a loop."""
    params = {"max_iter": 3, "alpha": 1.0, "user_damping": 10.0, **PRIVATE[name]}
    X = base_ratings()
    model, records = recorded_fit(X, **params)
    y = X - 3.0
    influence = np.ones(N_USERS)
    if (levels := params.get("levels")) is not None:
        y[levels == 0.0] = np.nan
        influence = solver.personal_influence(levels, model.plan(N_ITEMS), N_USERS)
    means, n_means = released_means(records)
    releases = {(record.name, record.index): record for record in records if not is_means(record)}
    rank = int(np.count_nonzero(model.components_.any(axis=1)))
    assert rank > 0
    assert n_means + len(releases) == 1 + 2 * params["max_iter"]
    n_steps = len(releases) // 2
    first, size = params["max_iter"] - n_steps, rank + 1
    w = twin.user_weights(y, means.mass)
    # what is truncated to the grid is at most 4 times as large as 1
    tolerance = 2.0 * N_USERS * exact_grid(N_USERS, 4.0)
    ridges = {"alpha": params["alpha"], "damping": params["user_damping"]}

    def released(t, *point):
        gradient, moments = (
            releases[name, first + t] for name in (solver.GRADIENTS, solver.MOMENTS)
        )
        exact, second = twin.user_sums(y, w, *point, influence=influence, **ridges)
        assert abs(exact).max() > 100.0 * tolerance
        assert_padded(gradient.statistic, exact, tolerance)
        assert_padded(unpack_lower(moments.statistic), second, tolerance)
        return gradient.output[:, :size], unpack_lower(moments.output)[:size, :size]

    planned = model.plan(N_ITEMS).releases[2]
    assert planned.name == solver.GRADIENTS
    noise = planned.noise_scale / np.sqrt(n_steps)
    V = start(one_key, rank)
    b, V = twin.chain(released, means, V, n_steps, alpha=params["alpha"], noise=noise)
    np.testing.assert_allclose(model.components_[:rank].T, V, rtol=0, atol=1e-7)
    np.testing.assert_allclose(model.item_means_, 3.0 + b, rtol=0, atol=1e-7)


def assert_padded(found, expected, tolerance):
    """The planned shape is that of the full rank: zeros beyond the one in use."""
    rows, columns = expected.shape
    np.testing.assert_allclose(found[:rows, :columns], expected, rtol=0, atol=tolerance)
    assert not found[rows:].any()
    assert not found[:, columns:].any()


# -- limits ----------------------------------------------------------------------------------------


def test_without_noise_it_reaches_a_fixed_point():
    X, params = base_ratings(), {"n_components": 2, "alpha": 0.3}
    models = [recorded_fit(X, budget=NONPRIVATE, max_iter=n, **params)[0] for n in (600, 1200)]
    early, late = (model.components_.T @ model.components_ for model in models)
    assert np.linalg.norm(early - late) < 0.05 * np.linalg.norm(late) > 0.0


def test_models_come_near_the_exact_one_as_epsilon_grows():
    X = base_ratings()
    exact, _ = recorded_fit(X, budget=NONPRIVATE)
    distances = []
    for epsilon in (0.5, 10.0, 1e4):
        models = [
            recorded_fit(X, budget=PrivacyBudget(epsilon, 1e-5), random_state=s)[0]
            for s in range(5)
        ]
        distances.append(np.mean([abs(m.item_means_ - exact.item_means_).mean() for m in models]))
    assert distances[0] > distances[1] > distances[2]


def test_the_plan_is_of_public_values():
    plan = DPMFSampler(BUDGET, n_components=5, max_iter=7).plan(30)
    means, moments, gradients = plan.releases
    assert (means.shape, means.count) == ((2, 31), 1)
    assert (moments.shape, moments.count, moments.layout) == ((21,), 7, "packed")
    assert (gradients.shape, gradients.count) == ((30, 6), 7)
    assert gradients.sensitivity == solver.CLIP
    square = 1.0 + solver.OFFSET**2
    assert moments.sensitivity == pytest.approx(square)
    twice = DPMFSampler(REPLACE, n_components=5, max_iter=7).plan(30).releases
    assert twice[2].sensitivity == 2.0 * solver.CLIP
    assert twice[1].sensitivity == pytest.approx(np.sqrt(2.0) * square)
    steps = 7 / moments.noise_multiplier**2 + 7 / gradients.noise_multiplier**2
    assert plan.mu == pytest.approx(np.sqrt(means.mu**2 + steps))
    assert 0.999 * BUDGET.epsilon < plan.epsilon <= BUDGET.epsilon
    # steps may release the means, which are more values when the rank is small
    small = DPMFSampler(BUDGET, n_components=1, max_iter=7).plan(30)
    most = 15 * 2 * 31
    assert small.n_values == most
    assert small.n_values * small.eta >= most * SAMPLER_ETA
    assert small.n_values * small.tau >= most * SAMPLER_TAU


# -- invariances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [None, LEVELS], ids=["one level", "levels"])
def test_order_of_users_and_entries_does_not_change_a_bit(levels):
    X = base_ratings()
    order = np.random.default_rng(0).permutation(N_USERS)
    model, records = recorded_fit(X, levels=levels)
    shuffled, others = recorded_fit(
        X[order], records, levels=None if levels is None else levels[order]
    )
    rows, columns = np.nonzero(~np.isnan(X))
    mixed = np.random.default_rng(1).permutation(len(rows))
    entries = (X[rows, columns][mixed], (rows[mixed], columns[mixed]))
    _, entrywise = recorded_fit(sparse.coo_array(entries, shape=X.shape), records, levels=levels)
    for a, b, c in zip(records, others, entrywise, strict=True):
        np.testing.assert_array_equal(a.statistic, b.statistic)
        np.testing.assert_array_equal(a.statistic, c.statistic)
    assert fitted_state(model) == fitted_state(shuffled)


@pytest.mark.parametrize("budget", [BUDGET, NONPRIVATE], ids=["private", "non-private"])
@pytest.mark.parametrize("cap", [None, 5])
def test_the_range_is_a_unit(budget, cap, one_key):
    """Ratings on another scale, noise and all, give the same model on that scale."""
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


def test_a_trimmed_fit_is_that_of_the_subset():
    X, cap = base_ratings(), 4
    model, records = recorded_fit(X, max_ratings_per_user=cap)
    # which ratings enter: those with which a user's gradient is not zero
    kept = np.full(X.shape, np.nan)
    for i in range(N_USERS):
        row = np.full(X.shape, np.nan)
        row[i] = X[i]
        _, own = recorded_fit(row, records, max_ratings_per_user=cap)
        items = np.flatnonzero(own[0].statistic[0, :-1])
        assert len(items) == min(cap, np.count_nonzero(~np.isnan(X[i])))
        kept[i, items] = X[i, items]
    _, others = recorded_fit(kept, records)
    for a, b in zip(records, others, strict=True):
        np.testing.assert_array_equal(a.statistic, b.statistic)
    again, _ = recorded_fit(X, records, max_ratings_per_user=N_ITEMS)
    assert fitted_state(again)["components_"] == fitted_state(model)["components_"]


# -- personal levels -------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_influence_follows_the_level(epsilon, neighbors):
    budget = PrivacyBudget(epsilon, 1e-5, neighbors=neighbors)
    plan = DPMFSampler(budget, n_components=3, max_iter=5).plan(N_ITEMS)
    levels = epsilon * np.array([0.0, 0.01, 0.1, 0.5, 0.999, 1.0])
    f = solver.personal_influence(levels, plan, N_USERS)
    assert (f[0], f[-1]) == (0.0, 1.0)
    assert np.all(np.diff(f) > 0.0)
    slack = {"n_values": plan.n_values, "eta": plan.eta, "tau": plan.tau}
    mu = np.array([gaussian_mu(level, 1e-5, **slack) for level in levels[1:]])
    ideal = mu / mu[-1]
    assert np.all(f[1:] <= ideal * (1.0 + 1e-7))
    assert np.all(f[1:] >= 0.98 * ideal - 0.005)


@pytest.mark.parametrize("level", [0.5, 5.0])
def test_lower_levels_weigh_less(level):
    """Item statistics shrink with the level, and so does what gradients are clipped to."""
    X = base_ratings()
    X[SLOT] = np.where(np.arange(N_ITEMS) % 2, 1.0, 5.0)
    levels = np.full(N_USERS, BUDGET.epsilon)
    _, records = recorded_fit(X, levels=levels)
    _, full = recorded_fit(audit.alone(X[SLOT]), records, levels=levels)
    levels[SLOT] = level
    _, less = recorded_fit(audit.alone(X[SLOT]), records, levels=levels)
    share = gaussian_mu(level, 1e-5) / gaussian_mu(BUDGET.epsilon, 1e-5)
    n_clipped = 0
    for a, b in zip(full, less, strict=True):
        size, less_size = np.linalg.norm(a.statistic), np.linalg.norm(b.statistic)
        assert 0.0 < size <= a.sensitivity
        if is_means(a):
            assert less_size == pytest.approx(share * size, rel=0.02)
        elif a.name == solver.GRADIENTS:
            expected = min(share * a.sensitivity, size)
            n_clipped += expected < size
            assert less_size == pytest.approx(expected, rel=0.02)
        else:  # clipped like the gradients, and times the share
            assert 0.0 < less_size <= share * size * 1.02
    assert n_clipped > 0


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
    means, moments, gradients = plan.releases
    expected = {(r.name, r.shape, r.noise_multiplier) for r in plan.releases}
    expected |= {(means.name, means.shape, r.noise_multiplier) for r in (moments, gradients)}
    assert set(seen) == expected
