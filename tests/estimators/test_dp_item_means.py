"""DPItemMeans: its releases under attack, its limits, and the floor that it is."""

from itertools import product

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import rmse, split_ratings, split_table
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy._recording import record_releases
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.solvers import adaptive_weight_als, item_averages, item_baseline, item_residuals
from skdpmf.solvers import item_means as im
from tests.core.audit import (
    HIGH,
    LOW,
    N_ITEMS,
    ROUNDING,
    UNRATED,
    adversaries,
    alone,
    base_ratings,
    check_distances,
    check_noise_law,
    fitted_state,
    replace_release,
    with_row,
)
from tests.estimators.common import ratings

KINDS = list(product(("user", "rating"), (1e-5, 0.0), ("add-remove", "replace")))
NONPRIVATE = PrivacyBudget.nonprivate()


def recorded(X, replay=None, *, unit="user", delta=1e-5, neighbors="add-remove"):
    """Fitted model and its releases."""
    budget = PrivacyBudget(20.0, delta, unit=unit, neighbors=neighbors)
    model = DPItemMeans(budget, random_state=0)
    with record_releases(replay) as records:
        model.fit(X)
    return model, records


def edits(model):
    """Rows before and after one change of the unit, by name."""
    unknown = np.full(N_ITEMS, np.nan)
    rows = adversaries(model)
    if model.budget.unit == "user":
        return {name: (unknown, row) for name, row in rows.items()}
    found = {}
    for (name, row), item, value in product(rows.items(), (0, 5, UNRATED), (LOW, HIGH)):
        before, after = row.copy(), row.copy()
        before[item], after[item] = np.nan, value
        found[f"{name}, item {item} at {value:g}"] = before, after
    return found


def audit(**kind):
    """Raise AssertionError unless a fit keeps to its plan whatever one unit does."""
    X = base_ratings()
    model, records = recorded(X, **kind)
    plan, budget = model.plan(N_ITEMS, len(X)), model.budget
    planned = {release.name: release for release in plan.releases}
    expected = sorted((r.name, t) for r in plan.releases for t in range(r.count))
    assert sorted((r.name, r.index) for r in records) == expected, "releases are not the plan's"
    assert model.privacy_spent_.releases == plan.releases, "plan and statement differ"
    for record in records:
        release = planned[record.name]
        assert record.sensitivity == release.sensitivity, f"sensitivity of {record}"
        declared = release.noise_multiplier * release.sensitivity
        assert declared <= record.noise_scale <= declared * (1.0 + 1e-6), f"scale of {record}"
    if budget.delta == 0.0:
        spent = sum(1.0 / record.noise_multiplier for record in records)
    else:
        mu = np.sqrt(sum(record.noise_multiplier**-2.0 for record in records))
        spent = gaussian_epsilon(mu, budget.delta)
    assert 0.999 * budget.epsilon < spent <= budget.epsilon * ROUNDING
    assert 0.999 * budget.epsilon < plan.epsilon <= budget.epsilon
    check_noise_law(records)
    changes = {}
    for name, (before, after) in edits(model).items():
        without, absent = recorded(with_row(X, before), records, **kind)
        with_unit, present = recorded(with_row(X, after), records, **kind)
        _, first = recorded(alone(before), records, **kind)
        _, second = recorded(alone(after), records, **kind)
        check_distances(present, absent, name)
        for a, b, c, d in zip(present, absent, second, first, strict=True):
            # the weighted number of users is a product of floats, all else is exact
            np.testing.assert_allclose(
                a.statistic - b.statistic,
                c.statistic - d.statistic,
                rtol=0.0,
                atol=1e-12 if a.name == item_averages.GLOBAL else 0.0,
                err_msg=f"{name}: {a}",
            )
        assert fitted_state(with_unit) == fitted_state(without) == fitted_state(model), name
        changes[name] = [a.statistic - b.statistic for a, b in zip(second, first, strict=True)]
    if budget.neighbors == "replace":
        for one, two in product(changes, changes):
            for record, x, y in zip(records, changes[one], changes[two], strict=True):
                order = 1 if budget.delta == 0.0 else 2
                moved = np.linalg.norm((x - y).ravel(), order)
                assert moved <= record.sensitivity * ROUNDING, f"{one} for {two}: {moved}: {record}"


@pytest.mark.parametrize(("unit", "delta", "neighbors"), KINDS)
def test_audit(unit, delta, neighbors):
    audit(unit=unit, delta=delta, neighbors=neighbors)


# --- planted bugs -------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_less_noise_is_noticed(monkeypatch, delta):
    def weaker(release, statistic, keywords):
        keywords["noise_multiplier"] /= np.sqrt(2.0)
        return release(statistic, **keywords)

    replace_release(monkeypatch, weaker)
    with pytest.raises(AssertionError, match="scale of"):
        audit(delta=delta)


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_no_clipping_is_noticed(monkeypatch, delta):
    monkeypatch.setattr(im, "shrink_to_ball", lambda norm, radius: np.ones_like(norm))
    with pytest.raises(AssertionError, match="distance"):
        audit(delta=delta)


@pytest.mark.parametrize("unit", ["user", "rating"])
def test_replacement_taken_for_an_addition_is_noticed(monkeypatch, unit):
    real = item_averages.average_releases
    monkeypatch.setattr(
        item_baseline, "average_releases", lambda u, neighbors, *a: real(u, "add-remove", *a)
    )
    with pytest.raises(AssertionError, match=" for "):
        audit(unit=unit, neighbors="replace")


def test_rounds_that_are_not_counted_are_noticed(monkeypatch):
    real = item_residuals.ResidualAverages.release

    def release(self, name, index=0):
        real(self, name, index)
        if name == item_residuals.RESIDUALS:
            real(self, name, index + 100)

    monkeypatch.setattr(item_residuals.ResidualAverages, "release", release)
    with pytest.raises(AssertionError, match="not the plan's"):
        audit()


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_exact_popularity_is_noticed(monkeypatch, delta):
    real = item_residuals.estimate_popularity
    exact = []

    def sums(self, terms, users):
        found = plain(self, terms, users)
        exact.append(found[:-1])
        return found

    plain = item_residuals.ResidualAverages._sums
    monkeypatch.setattr(item_residuals.ResidualAverages, "_sums", sums)
    monkeypatch.setattr(
        item_residuals, "estimate_popularity", lambda noisy, scale, law: real(exact[-1], 0.0)
    )
    with pytest.raises(AssertionError):
        audit(delta=delta)


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_unweighted_counts_are_noticed(monkeypatch, delta):
    real = item_residuals.ResidualAverages._sums
    monkeypatch.setattr(
        item_residuals.ResidualAverages,
        "_sums",
        lambda self, terms, users: real(self, np.where(terms > 0.0, 1.0, terms), users),
    )
    with pytest.raises(AssertionError, match="distance"):
        audit(delta=delta)


def test_an_exact_clip_factor_is_noticed(monkeypatch):
    real = item_residuals.ResidualAverages._clip_factor
    plain = item_residuals.ResidualAverages._sums
    exact = []

    def sums(self, terms, users):
        exact.append(users.sum())
        return plain(self, terms, users)

    monkeypatch.setattr(item_residuals.ResidualAverages, "_sums", sums)
    monkeypatch.setattr(
        item_residuals.ResidualAverages,
        "_clip_factor",
        lambda self, released, deviation: real(self, exact[-1], deviation),
    )
    with pytest.raises(AssertionError):
        audit()


def test_an_exact_mean_is_noticed(monkeypatch):
    real = item_baseline.recentred
    totals = []

    def averages(unit, R, *args, **keywords):
        totals.append(R.data.sum())
        return made(unit, R, *args, **keywords)

    made = item_baseline.averages_for
    monkeypatch.setattr(item_baseline, "averages_for", averages)
    monkeypatch.setattr(
        item_baseline, "recentred", lambda b, w, G: real(b, w, G) + 1e-6 * totals[-1]
    )
    with pytest.raises(AssertionError):
        audit()


# --- limits -------------------------------------------------------------------------------------


def test_without_noise_it_is_least_squares():
    X = ratings(n_users=90, density=0.5)
    model = DPItemMeans(NONPRIVATE, user_damping=4.0).fit(X)
    known = ~np.isnan(X)
    Y = (np.where(known, X, 0.0) - 3.0) * known
    G = Y.sum() / known.sum()
    m = model.item_means_ - 3.0
    offset = ((Y - m) * known).sum(axis=1) / (known.sum(axis=1) + 4.0)
    gradient = ((Y - m - offset[:, None]) * known).sum(axis=0) - item_baseline.ITEM_DAMPING * (
        m - G
    )
    start = np.abs(((Y - G) * known).sum(axis=0)).max()
    assert np.abs(gradient).max() < 1e-2 * start
    np.testing.assert_allclose(model.transform(X)[:, 0], offset)
    np.testing.assert_allclose(model.decision_function(X), model.item_means_ + offset[:, None])
    assert not model.privacy_spent_.is_private


@pytest.mark.parametrize(("unit", "delta"), [("user", 1e-5), ("user", 0.0), ("rating", 1e-5)])
def test_noise_falls_with_epsilon(unit, delta):
    X = make_ratings(3000, 40, density=0.3, random_state=0)
    best = DPItemMeans(NONPRIVATE).fit(X)
    distances = []
    for epsilon in (0.1, 1.0, 10.0):
        budget = PrivacyBudget(epsilon, delta, unit=unit)
        fits = [DPItemMeans(budget, random_state=seed).fit(X) for seed in range(3)]
        errors = [f.predict_entries(X, X).data - best.predict_entries(X, X).data for f in fits]
        distances.append(np.sqrt(np.mean(np.square(errors))))
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.12


def test_damping_is_the_users():
    X = ratings()
    little, much = (
        DPItemMeans(PrivacyBudget(4.0, 1e-5, unit="rating"), user_damping=d, random_state=0).fit(X)
        for d in (1e-6, 1e6)
    )
    assert np.abs(much.transform(X)).max() < 1e-3
    residual = (X - little.item_means_ - little.transform(X))[~np.isnan(X).all(axis=1)]
    np.testing.assert_allclose(np.nanmean(residual, axis=1), 0.0, atol=1e-5)
    assert np.all(little.components_ == 1.0)


def means_alone(X, epsilon, seed):
    """AdaptiveWeightALS without its factors: one kind of release, all of the budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            adaptive_weight_als._Fit, "choose_rank", lambda fit, means: (0, fit.settings.max_iter)
        )
        budget = PrivacyBudget(epsilon, 1e-5)
        return AdaptiveWeightALS(budget, solver="ssp", random_state=seed).fit(X)


@pytest.mark.parametrize("shape", [(2000, 300, 0.2), (5000, 60, 0.2)])
def test_it_is_no_worse_than_means_alone(shape):
    n_users, n_items, density = shape
    X, Y = split_ratings(
        make_ratings(n_users, n_items, density=density, random_state=0), random_state=0
    )
    for epsilon in (0.5, 4.0):
        pairs = [
            (
                rmse(Y, DPItemMeans(PrivacyBudget(epsilon, 1e-5), random_state=s)
                     .fit(X).predict_entries(X, Y)),
                rmse(Y, means_alone(X, epsilon, s).predict_entries(X, Y)),
            )
            for s in range(3)
        ]  # fmt: skip
        ours, theirs = np.mean(pairs, axis=0)
        assert ours < theirs


def test_movielens(ml1m_path):
    """Figures of five seeds are .9526, .9316, .9136 and .9117; means alone .972 to .924."""
    frame = read_ratings(ml1m_path)
    users, items = np.unique(frame["user"]), np.unique(frame["item"])
    X, Y = (
        ratings_to_matrix(part, users=users, items=items).X
        for part in split_table(frame, test_size=0.1, random_state=0)
    )
    for epsilon, most in ((0.5, 0.957), (1.0, 0.935), (4.0, 0.915), (8.0, 0.913)):
        model = DPItemMeans(PrivacyBudget(epsilon, 1e-5), random_state=0).fit(X)
        assert rmse(Y, model.predict_entries(X, Y)) < most


# --- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "delta", "neighbors"), KINDS)
def test_plan(unit, delta, neighbors):
    budget = PrivacyBudget(1.0, delta, unit=unit, neighbors=neighbors)
    for n_rows in (None, 50, 10**6):
        plan = DPItemMeans(budget).plan(30, n_rows)
        assert 0.999 < plan.epsilon <= 1.0
        assert plan.delta == delta
        assert {release.name for release in plan.releases} <= {
            item_averages.GLOBAL,
            item_averages.STATISTICS,
            item_residuals.COUNTS,
            item_residuals.RESIDUALS,
        }
        assert len(plan.releases) == (3 if unit == "user" else 1)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"user_damping": 0.0}, ValueError, r"user_damping=0\.0 must be"),
        ({"user_damping": np.inf}, ValueError, "user_damping=inf must be"),
        ({"user_damping": "10"}, ValueError, "user_damping='10' must be"),
        ({"budget": 1.0}, TypeError, r"budget=1\.0 must be"),
        ({"budget": PrivacyBudget(1e-20, 1e-200)}, PrivacyParameterError, "must exceed the slack"),
    ],
)
def test_bad_parameters(params, error, message):
    model = DPItemMeans(PrivacyBudget(1.0, 1e-5)).set_params(**params)
    for use in (lambda: model.fit(None), lambda: model.plan(12)):
        with pytest.raises(error, match=message):
            use()
