"""The plan tells before the fit what is released, and spends the budget."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import log_ndtr

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.als import dpals as solver
from skdpmf.privacy.sampler.noise import SAMPLER_ETA, SAMPLER_TAU
from tests.built import built
from tests.core.audit import N_ITEMS, base_ratings, check_plan, recorded_fit

NAMES = [solver.ITEM_STATISTICS, solver.START, solver.GRAM, solver.RHS]


def make_plan(epsilon=4.0, delta=1e-5, neighbors="add-remove", n_items=50, **params):
    budget = PrivacyBudget(epsilon, delta, neighbors=neighbors)
    return built(AdaptiveWeightALS, budget, **{"solver": "dpals", **params}).plan(n_items)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-3, 1e-6), (0.1, 1e-5), (1.0, 1e-5), (4.0, 1e-8), (20.0, 1e-5)]
)
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_plan_spends_the_budget(epsilon, delta, neighbors):
    for n_items, k, rounds, item_means in product((1, 7, 400), (1, 16), (1, 10), (True, False)):
        plan = make_plan(
            epsilon,
            delta,
            neighbors,
            n_items=n_items,
            n_components=k,
            max_iter=rounds,
            item_means=item_means,
        )
        assert 0.999 * epsilon < plan.epsilon <= epsilon
        assert plan.delta == delta
        mu = math.sqrt(sum(r.count / r.noise_multiplier**2 for r in plan.releases))
        # B. Balle, Y.-X. Wang, ICML 2018, Theorem 8
        spent = np.exp(log_ndtr(mu / 2 - epsilon / mu))
        spent -= np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        assert 0.98 * delta < spent <= delta
        assert sum(solver.SHARES.values()) == pytest.approx(1.0, abs=1e-12)
        for release in plan.releases:
            assert plan.share(release) == pytest.approx(solver.SHARES[release.name], rel=1e-9)


@pytest.mark.parametrize("item_means", [True, False])
@pytest.mark.parametrize("n_items", [40, 400])
def test_plan_is_the_formulas(item_means, n_items):
    """Names, counts, shapes and sensitivities, written down once more."""
    C, a = solver.CLIP, solver.OFFSET if item_means else 0.0
    phi2 = 1.0 + a**2 if item_means else 1.0
    s, q = 0.3, 0.1
    d, m = 16 + item_means, min(n_items, 150)
    one = {
        solver.ITEM_STATISTICS: math.sqrt(1 + s**2 + 2 * q**2),
        solver.START: C**2,
        solver.GRAM: phi2,
        solver.RHS: C * math.sqrt(phi2),
    }
    two = {
        solver.ITEM_STATISTICS: math.sqrt(4 + 2 * s**2 + 2 * q**2),
        solver.START: math.sqrt(2) * C**2,
        solver.GRAM: math.sqrt(2) * phi2,
        solver.RHS: 2 * C * math.sqrt(phi2),
    }
    shapes = [(2, n_items + 1), (m * (m + 1) // 2,), (n_items, d * (d + 1) // 2), (n_items, d)]
    for neighbors, sensitivity in (("add-remove", one), ("replace", two)):
        plan = make_plan(neighbors=neighbors, n_items=n_items, item_means=item_means, max_iter=7)
        assert [r.name for r in plan.releases] == NAMES
        assert [r.count for r in plan.releases] == [1, 1, 7, 7]
        assert [r.shape for r in plan.releases] == shapes
        assert [r.layout for r in plan.releases] == ["full", "packed", "packed", "full"]
        for release in plan.releases:
            assert release.sensitivity == pytest.approx(sensitivity[release.name], rel=1e-12)


FITS = [
    {"budget": PrivacyBudget(epsilon, delta, neighbors=neighbors), **params}
    for (epsilon, delta), neighbors, params in product(
        [(0.1, 1e-5), (3.0, 1e-7), (25.0, 1e-5)],
        ["add-remove", "replace"],
        [
            {},
            {"item_means": False, "max_iter": 1},
            {"weighting": "tail", "n_components": 1},
            {"weighting": "uniform", "max_ratings_per_user": 4, "n_components": 40},
        ],
    )
]


@pytest.mark.parametrize("params", FITS, ids=str)
def test_a_fit_releases_its_plan(params):
    model, records = recorded_fit(base_ratings(), **params)
    check_plan(model.plan(N_ITEMS), model.privacy_spent_, records)
    made = [(r.name, r.index) for r in records]
    assert len(set(made)) == len(made)
    spent = model.privacy_spent_
    assert spent.is_private
    assert (spent.unit, spent.neighbors) == ("user", params["budget"].neighbors)
    assert spent.seeded


def test_shapes_at_full_rank_are_the_plan():
    X = np.tile(base_ratings(), (20, 1))
    model, records = recorded_fit(X, n_components=2)
    planned = {r.name: r.shape for r in model.plan(N_ITEMS).releases}
    assert {r.name: r.statistic.shape for r in records} == planned


@pytest.mark.parametrize("n_items", [1, 2, 3, 20, 200])
def test_sampler_slack_covers_all_noised_values(n_items):
    """Means in place of factors may noise more values than planned; the slack is for twice as many.

    With factors left out every release holds 2 (n_items + 1) values.
    """
    for k, rounds in product((1, 2, 16), (1, 2, 10)):
        plan = make_plan(n_items=n_items, n_components=k, max_iter=rounds)
        means = 2 * (n_items + 1) * sum(r.count for r in plan.releases)
        assert plan.eta * plan.n_values >= SAMPLER_ETA * means
        assert plan.tau * plan.n_values >= SAMPLER_TAU * means


def test_noise_falls_with_epsilon():
    scales = [
        [release.noise_scale for release in make_plan(epsilon).releases]
        for epsilon in (0.01, 0.1, 1.0, 4.0, 20.0)
    ]
    assert np.all(np.diff(scales, axis=0) < 0)
    assert not any(r.noise_scale for r in make_plan(math.inf, 0.0).releases)


def test_noise_falls_with_delta_and_grows_with_replace():
    def scale(**params):
        return np.array([release.noise_scale for release in make_plan(**params).releases])

    assert np.all(scale(delta=1e-9) > scale(delta=1e-5))
    assert np.all(scale(neighbors="replace") > 1.4 * scale())


def test_noise_does_not_depend_on_what_is_private():
    X, other = base_ratings(), np.full((160, N_ITEMS), np.nan)
    other[0, 0] = 5.0
    scales = [{(r.name, r.noise_multiplier) for r in recorded_fit(data)[1]} for data in (X, other)]
    assert scales[0] == scales[1]


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (PrivacyBudget(1.0), ["delta=0.0", "must be > 0", "pass"]),
        (PrivacyBudget(1.0, 1e-5, unit="rating"), ["unit='rating'", "must be 'user'", "use"]),
        (PrivacyBudget(-1.0, 1e-5), ["epsilon=-1.0", "must be"]),
        (PrivacyBudget(1.0, 2.0), ["delta=2.0", "must be"]),
        (PrivacyBudget(math.nan, 1e-5), ["epsilon=nan", "must be"]),
        (PrivacyBudget(1.0, 1e-5, neighbors="swap"), ["neighbors='swap'", "must be"]),
    ],
    ids=["no delta", "unit", "epsilon", "delta", "nan", "neighbors"],
)
def test_budgets_that_are_refused(budget, words):
    with pytest.raises(PrivacyParameterError) as error:
        AdaptiveWeightALS(budget).plan(10)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("n_items", [0, -3, 2.5, "10", None])
def test_catalogues_that_are_refused(n_items):
    with pytest.raises(ValueError, match=r"n_items=.* must be an integer >= 1: pass .*X"):
        AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5)).plan(n_items)


def test_statement_tells_the_guarantee_and_its_limits():
    seeded = recorded_fit(base_ratings())[0].privacy_spent_
    assert "seed" in seeded.assumptions[0]
    assert "Warning" in str(seeded)
    unseeded = recorded_fit(base_ratings(), random_state=None)[0].privacy_spent_
    assert not unseeded.seeded
    assert "Warning" not in str(unseeded)
    for text in (*NAMES, "epsilon = 20", "1e-05", "whole row"):
        assert text in str(unseeded)
    exact = recorded_fit(base_ratings(), budget=PrivacyBudget.nonprivate())[0].privacy_spent_
    assert exact.epsilon == math.inf
    assert "no privacy" in str(exact)
