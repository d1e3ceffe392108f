"""DPCovarianceRecommender on neighbouring data: releases keep to plan and sensitivity.

Every release is recorded, and replayed on data in which one user, or one rating, is different
(method: "Re:cord-play", arXiv 2602.17454). test_item_covariance_bugs shows what the audit notices.
"""

from fractions import Fraction

import numpy as np
import pytest

from skdpmf import DPCovarianceRecommender
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import covariance as sensitivities
from skdpmf.privacy._recording import record_releases
from skdpmf.solvers import item_covariance as solver
from tests.privacy.covariance_attack import evolve
from tests.solvers import audit as common
from tests.solvers.audit import N_ITEMS, N_USERS, ROUNDING, alone, base_ratings, fitted_state
from tests.solvers.covariance_audit import (
    COUNTS,
    COVARIANCE,
    GLOBAL,
    KINDS,
    NOISES,
    RELATIONS,
    RESIDUALS,
    SHARES,
    STATISTICS,
    UNITS,
    WEIGHT_SCALE,
    audit,
    check_budget,
    check_neighbours,
    check_plan,
    covers,
    decoded,
    divided_ratings,
    reached,
    recorded_fit,
    seed_that_covers,
    settings,
)

WITHOUT_GLOBAL = (0.0, 0.4, 0.6)
IDS = [" ".join(kind) for kind in KINDS]
AUTO = {"some": 20.0, "none": 0.5}  # epsilons at which the covariance is of so many items
DIVIDED = {"X": divided_ratings(N_ITEMS - 1), "user_damping": 1e-6}

RATING = {noise: settings("rating", noise, shares=WITHOUT_GLOBAL) for noise in NOISES}

every_kind = pytest.mark.parametrize("kind", KINDS, ids=IDS)


def explicit(kind, **params):
    """All items, and all releases but the one of the expected failure below."""
    return settings(*kind, shares=SHARES if kind[0] == "user" else WITHOUT_GLOBAL, **params)


@every_kind
def test_audit_of_all_items(kind):
    audit(**explicit(kind))


@pytest.mark.parametrize("items", AUTO)
@every_kind
def test_audit_of_a_head_and_of_averages_in_its_place(kind, items, monkeypatch):
    """Laplace noise is let into a covariance's slot at any epsilon here."""
    monkeypatch.setattr(solver, "_LEAST_LAPLACE", {"user": 0.0, "rating": 0.0})
    few = kind[:2] == ("user", "laplace") and items == "some"
    params = settings(*kind, epsilon=100.0 if few else AUTO[items])
    audit(random_state=seed_that_covers(items, **params), **params)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("neighbors", RELATIONS)
def test_audit_of_ratings_with_global_effects(noise, neighbors):
    """Sensitivities and plan; the noise is the subject of the expected failure below."""
    params = settings("rating", noise, neighbors, shares=SHARES)
    model, records = recorded_fit(base_ratings(), **params)
    check_neighbours(base_ratings(), model, records, **params)
    check_plan(model, records)


@pytest.mark.parametrize("noise", NOISES)
def test_global_effects_of_ratings_are_released_whole(noise):
    """Sum and number of all ratings, not clamped to the number of rows."""
    _, records = recorded_fit(base_ratings(), **settings("rating", noise, shares=SHARES))
    assert records[0].name == GLOBAL
    common.check_noise_law(records)


OTHER_SETTINGS = {
    "narrow clamp": {"clamp": 0.3},
    "wide clamp": {"clamp": 3.0, "user_damping": 1.0},
    "without cleaning": {"clean": False},
    "neighbours": {"predictor": "knn", "n_neighbors": 3},
    "means far apart": DIVIDED,
    "small budget": {"epsilon": 0.3},
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
@pytest.mark.parametrize(
    "kind", [("user", "gaussian", "replace"), ("rating", "laplace", "replace")]
)
def test_audit_of_other_settings(kind, name):
    audit(**explicit(kind, **OTHER_SETTINGS[name]))


@pytest.mark.parametrize("unit", UNITS)
def test_audit_where_memory_limits_the_items(unit, monkeypatch):
    """Explicit shares take as many of the items with the largest released counts as fit."""
    monkeypatch.setattr(solver, "_MEMORY", 4 * 2 * 5 * 6)
    params = explicit((unit, "gaussian", "replace"))
    model, records = recorded_fit(base_ratings(), **params)
    assert 1 < model.covariance_items_.size < N_ITEMS // 2
    assert covers(records) == "some"
    audit(**params)


@pytest.mark.parametrize("unit", UNITS)
def test_threads_release_the_same(unit):
    one, two = (
        recorded_fit(base_ratings(), **settings(unit, "gaussian", n_jobs=n_jobs))[1]
        for n_jobs in (1, 2)
    )
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.statistic, b.statistic)
        np.testing.assert_array_equal(a.output, b.output)


# -- how much of the sensitivities is used ---------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("neighbors", RELATIONS)
def test_users_reach_their_sensitivities(noise, neighbors):
    ratios = reached(**explicit(("user", noise, neighbors)))
    assert max(ratios.values()) <= ROUNDING
    assert ratios[COVARIANCE] > 0.999
    assert ratios[COUNTS] > 0.9
    assert ratios[RESIDUALS] > 0.9
    # in l1 the bound for replaced users is that of a vector over items
    assert ratios[GLOBAL] > (0.76 if (noise, neighbors) == ("laplace", "replace") else 0.999)


# what the search finds of the lemma's bound: base ratings, and means at both ends of the range
REACHED = {
    ("gaussian", "add-remove"): (0.82, 0.82),
    ("gaussian", "replace"): (0.74, 0.65),
    ("laplace", "add-remove"): (0.61, 0.74),
    ("laplace", "replace"): (0.55, 0.61),
}


@pytest.mark.parametrize("data", [{}, DIVIDED], ids=["base", "divided"])
@pytest.mark.parametrize(("noise", "neighbors"), REACHED)
def test_ratings_come_near_their_sensitivities(noise, neighbors, data):
    ratios = reached(**explicit(("rating", noise, neighbors)), **data)
    assert max(ratios.values()) <= ROUNDING
    assert ratios[STATISTICS] > 0.999
    assert ratios[COVARIANCE] > REACHED[noise, neighbors][bool(data)]


@pytest.mark.parametrize("unit", UNITS)
def test_averages_in_the_covariances_slot_reach_their_own_sensitivity(unit):
    params = settings(unit, "gaussian", "replace", epsilon=AUTO["none"])
    ratios = reached(random_state=seed_that_covers("none", **params), **params)
    assert 0.95 < ratios[COVARIANCE] <= ROUNDING


def test_replacing_is_farther_than_removing():
    """The larger sensitivities of the replace relation are needed."""
    for kind in KINDS:
        if kind[2] == "replace":
            removed, replaced = (
                recorded_fit(base_ratings(), **explicit((*kind[:2], relation)))[1][-1].sensitivity
                for relation in RELATIONS
            )
            found = reached(rounds=80, restarts=2, **explicit(kind))
            assert found[COVARIANCE] * replaced > 1.05 * removed


# -- what follows from the releases, and what the plan promises ------------------------------------


@every_kind
def test_model_is_a_function_of_the_releases_alone(kind):
    """Replayed releases give the same model bit by bit, whatever the data are."""
    X, params = base_ratings(), settings(*kind)
    model, records = recorded_fit(X, **params)
    other, _ = recorded_fit(np.where(np.isnan(X), 1.0, np.nan), records, **params)
    assert fitted_state(other) == fitted_state(model)
    fresh, _ = recorded_fit(X, random_state=1, **params)
    assert fitted_state(fresh) != fitted_state(model)


def test_state_of_the_model_is_seen_whole():
    """The comparison above sees every number that fit leaves."""
    model, _ = recorded_fit(base_ratings(), **settings("rating", "gaussian"), predictor="knn")
    before = fitted_state(model)
    for change in (
        lambda: model.item_means_.__setitem__(0, 9.0),
        lambda: model.components_.__setitem__((0, 0), 9.0),
        lambda: model._neighbor_model_.covariance.__setitem__(-1, 9.0),
        lambda: model._neighbor_model_.weights.__setitem__(0, 9.0),
        lambda: model.covariance_items_.__setitem__(0, 9),
    ):
        change()
        assert fitted_state(model) != before
        before = fitted_state(model)


@pytest.mark.parametrize("unit", UNITS)
def test_another_head_is_not_replayed(unit):
    """A recording fixes the items of the covariance: a fit of others would be noticed."""
    params = settings(unit, "gaussian")
    _, records = recorded_fit(base_ratings(), **params)
    records.pop()
    with record_releases(records), pytest.raises(PrivacyParameterError, match="replay holds"):
        DPCovarianceRecommender(**params, random_state=0).fit(base_ratings())


@pytest.mark.parametrize("n_rows", [1, 6040, 3 * 10**6, 10**8, 10**10])
@every_kind
def test_plan_covers_the_grid_of_any_number_of_rows(kind, n_rows):
    """Noise multipliers do not depend on it; the planned sensitivity is never too small."""
    model, _ = recorded_fit(base_ratings(), **explicit(kind))
    plan, settings_ = model.plan(N_ITEMS, n_rows), model._settings()
    planned = plan.releases[-1].sensitivity
    used = solver._sensitivity(
        model.budget, settings_, N_ITEMS, 8.0, solver._sum_grid(settings_, n_rows)
    )
    assert used <= planned < 1.01 * used
    check_budget(plan, model.budget, [release.noise_multiplier for release in plan.releases])


@pytest.mark.parametrize("noise", NOISES)
def test_noise_follows_from_the_released_means_and_items(noise):
    """A narrow range of means, or few items, has less noise than planned, at one multiplier."""
    params = explicit(("rating", noise, "add-remove"))
    base, divided = (recorded_fit(X, **params)[1][-1] for X in (base_ratings(), DIVIDED["X"]))
    assert base.noise_multiplier == divided.noise_multiplier
    assert base.noise_scale < 0.95 * divided.noise_scale
    model, records = recorded_fit(base_ratings(), **settings("rating", noise))
    planned = model.plan(N_ITEMS, N_USERS).releases[-1]
    assert records[-1].noise_multiplier == planned.noise_multiplier
    assert records[-1].noise_scale < planned.noise_scale


# -- what an audit of such ratings does not show ---------------------------------------------------


def test_weights_that_are_not_rounded_down_may_exceed_their_bound():
    """c weights 1 / c are at most 1 if rounded down; of a fit's coarser grid this is no matter."""
    for c in range(1, 4000):
        (w,) = sensitivities.covariance_weights([c])
        assert Fraction(w) * c <= 1
    assert any(Fraction(1.0 / c) * c > 1 for c in range(1, 100))


def test_a_rating_moves_truncated_weights_by_more_than_exact_ones():
    """Why rounding is priced: entries move from 1/3 to 1/4, and by part of a grid unit more."""
    model, records = recorded_fit(base_ratings(), **RATING["laplace"])
    rows = np.full((2, N_ITEMS), np.nan)
    rows[:, :3] = 3.0
    rows[1, 3] = 3.0
    four, three = (
        recorded_fit(alone(row), records, **RATING["laplace"])[1][-1] for row in rows[::-1]
    )
    grid = solver._sum_grid(model._settings(), N_USERS)
    moved = Fraction(three.statistic[1, 0]) - Fraction(four.statistic[1, 0])
    excess = (moved / Fraction(WEIGHT_SCALE) - Fraction(1, 12)) / Fraction(grid)
    assert 0.1 < excess < 1.0


@pytest.mark.parametrize("noise", NOISES)
def test_audit_holds_on_a_coarse_grid_which_is_priced(noise, monkeypatch):
    params, real = RATING[noise], solver.covariance_sensitivity
    monkeypatch.setattr(solver, "_sum_grid", lambda *_: 2.0**-5)
    model, records = recorded_fit(base_ratings(), **params)
    check_neighbours(base_ratings(), model, records, **params)
    priced = records[-1].sensitivity
    monkeypatch.setattr(
        solver, "covariance_sensitivity", lambda *args, rounding, **kw: real(*args, **kw)
    )
    free = recorded_fit(base_ratings(), records, **params)[1][-1].sensitivity
    norm = 2**0.5 * N_ITEMS if noise == "gaussian" else N_ITEMS * (N_ITEMS + 1)
    assert priced - free == pytest.approx(2.0**-5 * norm, rel=1e-9)


def test_users_means_of_all_items_may_exceed_the_heads_lemma():
    """Means of 15 items at one end of the range, and of one outside of the head at the other."""
    means, head = np.append(np.full(15, -2.0), 2.0), np.arange(15)
    damping, clamp = 1e-6, 1.0

    def value(free):
        ratings, known, new = decoded(free)
        before = known.copy()
        before[np.arange(len(free)), new] = False
        y, moved = ratings - means, 0.0
        for sign, e in ((1.0, known), (-1.0, before)):
            mean = (y * e).sum(axis=1, keepdims=True) / (e.sum(axis=1, keepdims=True) + damping)
            x = (np.clip(y - mean, -clamp, clamp) * e)[:, head]
            w = np.maximum(e[:, head].sum(axis=1), 1) ** -0.5
            moved = moved + sign * w[:, None, None] * x[:, :, None] * x[:, None]
        return np.sqrt((moved**2).sum(axis=(1, 2)))

    found, _ = evolve(value, 2 * len(means) + 1, seed=0, rounds=150)
    of_the_head = {"centred_range": 4.0, "damping": damping, "n_items": 15, "unit": "rating"}
    assert found > 1.05 * sensitivities.covariance_sensitivity(clamp, **of_the_head)
