"""Plans say before a fit what is released, and spend the budget: formulas, written once more."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import log_ndtr

from skdpmf import AdaptiveWeightALS, DPMFSampler, PrivacyBudget
from skdpmf.mechanisms import noisy_gradient
from skdpmf.mechanisms.als import clicks, dpals, pooled, pooled_clicks
from tests.built import built

K, M, ROUNDS, HEAD = 4, 200, 7, 150 * 151 // 2
IMPLICIT = {"feedback": "implicit"}


def packed(d):
    return d * (d + 1) // 2


def by_solver(budget, g, v):
    """Parameters, shares and (shape, sensitivity, count) by name.

    g, v: what replacing a user multiplies sensitivities of Gram matrices and of vectors by.
    """
    a, q = pooled.constant_weight(budget), 0.1
    # replaced, a user with ratings counts as one: q cancels
    counted = math.sqrt(2.0) if g > 1.0 else math.hypot(1.0, q)
    means = {
        pooled.COUNTS: ((M + 1,), counted, 1),
        pooled.MEANS: ((M + 1,), math.hypot(v, q), pooled.MEAN_ROUNDS),
    }
    for share in (0.25, 0.6, None):
        yield (
            {"list_share": share},
            pooled.shares_of(budget, share or 0.0),
            {
                **means,
                # the lists' release starts the factors in the place of co-ratings
                **({pooled.LISTS: ((packed(M),), g, 1)} if share else {}),
                **({} if share else {pooled.RATED: ((HEAD,), g, 1)}),
                pooled.START: ((HEAD,), g * pooled.CLIP**2, 1),
                pooled.GRADIENTS: ((M, K + 1), v * pooled.CLIP * math.hypot(1, a), ROUNDS),
                pooled.GRAM: ((packed(K + 1),), g * (1 + a**2), ROUNDS),
                pooled.MOMENTS: ((packed(2 * K + 8),), g, 4),
            },
        )
    for item_means in (True, False):
        phi2, d, C = 1.0 + item_means, K + item_means, dpals.CLIP
        first = {**means, dpals.START: ((HEAD,), g * C**2, 1)}
        vectors = (M, d), v * C * math.sqrt(phi2)
        more = {dpals.GRAM: ((M, packed(d)), g * phi2, ROUNDS), dpals.RHS: (*vectors, ROUNDS)}
        yield (
            {"solver": "dpals", "item_means": item_means},
            dpals.SHARES,
            {**first, **more},
        )
    a, C = pooled_clicks.CONSTANT, pooled_clicks.CLIP
    first = {
        clicks.COUNTS: ((M + 1,), counted, 1),
        dpals.START: ((HEAD,), g, 1),
        clicks.EVERYBODY: ((packed(K),), g, ROUNDS),
    }
    of_pooled = {
        clicks.COUNTS: first[clicks.COUNTS],
        pooled.START: ((HEAD,), g * C**2, 1),
        pooled.GRADIENTS: ((M, K + 1), v * C * math.hypot(1.0, a), ROUNDS),
        pooled.GRAM: ((packed(K + 1),), g * (1.0 + a**2), ROUNDS),
    }
    yield IMPLICIT, pooled_clicks.shares_of(budget), of_pooled
    vectors = (M, K), v * clicks.CLIP
    more = {dpals.GRAM: ((M, packed(K)), g, ROUNDS), dpals.RHS: (*vectors, ROUNDS)}
    yield {**IMPLICIT, "solver": "dpals"}, dpals.CLICK_SHARES, {**first, **more}
    square = noisy_gradient.CONSTANT**2 + 1.0
    clip = noisy_gradient.gradient_clip(budget)
    more = {
        noisy_gradient.MOMENTS: ((packed(2 * K + 2),), g * square, ROUNDS),
        noisy_gradient.GRADIENTS: ((M, K + 1), v * clip, ROUNDS),
    }
    six = {pooled.MEANS: (*means[pooled.MEANS][:2], noisy_gradient.MEAN_ROUNDS)}
    shares = noisy_gradient.shares_of(budget)
    yield {"estimator": DPMFSampler}, shares, {**means, **six, **more}


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-6), (4.0, 1e-5), (20.0, 1e-8)])
@pytest.mark.parametrize(("neighbors", "g", "v"), [("add-remove", 1, 1), ("replace", 2**0.5, 2)])
def test_plans_are_the_formulas_and_spend_the_budget(epsilon, delta, neighbors, g, v):
    budget = PrivacyBudget(epsilon, delta, neighbors=neighbors)
    for params, shares, expected in by_solver(budget, g, v):
        estimator, more = params.get("estimator", AdaptiveWeightALS), dict(params)
        more.pop("estimator", None)
        plan = built(estimator, budget, n_components=K, max_iter=ROUNDS, **more).plan(M)
        found = {r.name: (r.shape, r.sensitivity, r.count) for r in plan.releases}
        assert found.keys() == expected.keys() == shares.keys(), params
        for release in plan.releases:
            shape, sensitivity, count = expected[release.name]
            assert (release.shape, release.count) == (shape, count)
            assert release.sensitivity == pytest.approx(sensitivity, rel=1e-12)
            assert plan.share(release) == pytest.approx(shares[release.name], rel=1e-6)
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)
        assert min(shares.values()) > 0.0
        assert 0.999 * epsilon < plan.epsilon <= epsilon
        assert plan.delta == delta
        mu = math.sqrt(sum(r.count / r.noise_multiplier**2 for r in plan.releases))
        assert plan.mu == pytest.approx(mu, rel=1e-12)
        # B. Balle, Y.-X. Wang, ICML 2018, Theorem 8
        spent = np.exp(log_ndtr(mu / 2 - epsilon / mu))
        spent -= np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        assert 0.98 * delta < spent <= delta


@pytest.mark.parametrize("n_items", [1, 3, 200])
def test_sampler_slack_covers_all_noised_values(n_items):
    """Means in place of factors may noise more values than planned; the slack is for as many.

    With factors left out every release holds n_items + 1 values.
    """
    budget = PrivacyBudget(4.0, 1e-5)
    for k, rounds in product((1, 2, 16), (1, 2, 10)):
        model = AdaptiveWeightALS(budget, solver="dpals", n_components=k, max_iter=rounds)
        plan = model.plan(n_items)
        means = (n_items + 1) * sum(r.count for r in plan.releases)
        assert plan.n_values >= means
