"""The plan tells before the fit what is released, and spends the budget."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import log_ndtr

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.mechanisms.als import dpals as solver
from skdpmf.mechanisms.als.ratings import CLIP
from skdpmf.privacy.sampler.noise import SAMPLER_ETA, SAMPLER_TAU
from tests.built import built
from tests.core.audit import N_ITEMS, base_ratings, recorded_fit

NAMES = [solver.ITEM_STATISTICS, solver.START, solver.GRAM, solver.RHS]


def make_plan(epsilon=4.0, delta=1e-5, neighbors="add-remove", n_items=50, **params):
    budget = PrivacyBudget(epsilon, delta, neighbors=neighbors)
    return built(AdaptiveWeightALS, budget, **{"solver": "dpals", **params}).plan(n_items)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-6), (1.0, 1e-5), (20.0, 1e-8)])
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_plan_spends_the_budget(epsilon, delta, neighbors):
    for n_items, k, rounds, item_means in product((1, 400), (1, 16), (1, 10), (True, False)):
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
    C, a = CLIP, solver.OFFSET if item_means else 0.0
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


def test_shapes_at_full_rank_are_the_plan():
    X = np.tile(base_ratings(), (20, 1))
    model, records = recorded_fit(X, n_components=2)
    planned = {r.name: r.shape for r in model.plan(N_ITEMS).releases}
    assert {r.name: r.statistic.shape for r in records} == planned


@pytest.mark.parametrize("n_items", [1, 3, 200])
@pytest.mark.parametrize(
    "params", [{}, {"solver": "dpsgd"}, {"solver": "dpsgd", "n_inner_steps": 1}], ids=str
)
def test_sampler_slack_covers_all_noised_values(params, n_items):
    """Means in place of factors may noise more values than planned; the slack is for twice as many.

    With factors left out every release holds 2 (n_items + 1) values.
    """
    for k, rounds in product((1, 2, 16), (1, 2, 10)):
        plan = make_plan(n_items=n_items, n_components=k, max_iter=rounds, **params)
        means = 2 * (n_items + 1) * sum(r.count for r in plan.releases)
        assert plan.eta * plan.n_values >= SAMPLER_ETA * means
        assert plan.tau * plan.n_values >= SAMPLER_TAU * means
