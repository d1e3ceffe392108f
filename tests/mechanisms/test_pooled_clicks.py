"""solver="pooled" for clicks: its limits, its statistics by hand, its plan."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.mechanisms.als import pooled_clicks
from skdpmf.mechanisms.als.pooled_clicks import EXACT_ROUNDS, MOST_FACTORS
from skdpmf.mechanisms.common import click_directions
from tests.built import built
from tests.core.audit import CLICKS, CLICKS_BUDGET, N_ITEMS, base_clicks, recorded_fit

BUDGET, NONPRIVATE = CLICKS_BUDGET, PrivacyBudget.nonprivate()


def pooled(X, replay=None, **params):
    return recorded_fit(X, replay, **{**CLICKS, "solver": "pooled", **params})


def objective(C, b, U, V, model):
    scores = U @ V.T
    fit = np.sum(C * (1.0 - b - scores) ** 2) + model._chosen(
        "feedback"
    ).unobserved_weight * np.sum(scores**2)
    n, N = (C > 0).sum(axis=1), (C > 0).sum(axis=0)
    penalties = np.sum(n @ U**2) + np.sum(N @ V**2)
    return fit + model.alpha * pooled_clicks.CLICK_RIDGE * penalties


def users(C, b, V, model):
    """Slow twin of the user step: ridge regressions with a penalty for each click."""
    U, everywhere = (
        np.zeros((len(C), V.shape[1])),
        model._chosen("feedback").unobserved_weight * V.T @ V,
    )
    for i, c in enumerate(C):
        if c.any():
            ridge = model.alpha * pooled_clicks.CLICK_RIDGE * np.count_nonzero(c)
            A = everywhere + (V.T * c) @ V + ridge * np.eye(V.shape[1])
            U[i] = np.linalg.solve(A, (c * (1.0 - b)) @ V)
    return U


def test_without_privacy_rounds_reach_a_stationary_point():
    """All clicks and users alike, in the loss that the module states."""
    X = base_clicks()
    C = np.nan_to_num(X)
    settings = {"budget": NONPRIVATE, "alpha": 0.3, "n_components": 2}
    model, _ = pooled(X, max_iter=400, **settings)
    V, b = model.components_.T.copy(), model.item_means_
    U = users(C, b, V, model)
    best = objective(C, b, U, V, model)
    assert abs(U).max() > 0.1
    for factor in (U, V):
        for place in [(0, 0), (3, 1), (5, 0)]:
            slopes = []
            for step in (1e-3, -1e-3):  # solves are in single precision
                factor[place] += step
                slopes.append(objective(C, b, U, V, model) - best)
                factor[place] -= step
            assert min(slopes) > 0.0
            assert abs(slopes[0] - slopes[1]) < 3e-3 * max(slopes)


def test_start_is_the_singular_value_decomposition():
    rng = np.random.default_rng(0)
    C = (rng.random((50, 14)) < 0.3) * rng.choice([0.5, 1.0], (50, 14))
    C[3], C[:, 5] = 0.0, 0.0
    n, N = np.maximum((C > 0).sum(axis=1), 1), np.maximum((C > 0).sum(axis=0), 1)
    _, s, W = np.linalg.svd(C / np.sqrt(np.outer(n, N)))
    for rank in (4, 9, 14):  # the block is the whole space here
        V = click_directions(sparse.csr_array(C), rank)
        expected = W[:rank].T * s[:rank]
        expected /= np.sqrt(np.mean(np.sum(expected**2, axis=1)))
        np.testing.assert_allclose(V @ V.T, expected @ expected.T, atol=1e-10)


def clicks_with_tastes(n_tastes, strength, shape=(2000, 200), seed=0):
    """Clicks by popularity, on one of `n_tastes` shelves more often than elsewhere."""
    rng = np.random.default_rng(seed)
    same = rng.integers(n_tastes, size=shape[0])[:, None] == np.arange(shape[1]) % n_tastes
    share = 0.3 * np.arange(1.0, shape[1] + 1) ** -0.4
    return sparse.csr_array(
        (rng.random(shape) < share * np.where(same, strength, 1.0)).astype(float)
    )


def test_chance_is_where_the_singular_values_of_random_clicks_end():
    """Clicks without tastes have none beyond but their popularity, at any shape and density."""
    rng = np.random.default_rng(0)
    for shape, share in (((3000, 60), 0.2), ((900, 200), 0.3), ((2000, 800), 0.03)):
        own = rng.permutation(np.arange(1.0, shape[1] + 1) ** -0.3)
        C = rng.random(shape) < share * own / own.mean()
        assert click_directions(sparse.csr_array(C.astype(float)), 40, chosen=True).shape[1] <= 2
        weighed = sparse.csr_array(0.3 * C)
        assert click_directions(weighed, 40, chosen=True).shape[1] <= 2


@pytest.mark.parametrize(("n_tastes", "strength"), [(2, 3.0), (4, 3.0), (8, 6.0)])
def test_there_are_twice_as_many_factors_as_tastes(n_tastes, strength):
    """g groups of users differ in g - 1 directions."""
    X = clicks_with_tastes(n_tastes, strength)
    assert click_directions(X, 128, chosen=True).shape[1] == 2 * (n_tastes - 1)
    assert click_directions(X, 5, chosen=True).shape[1] == min(2 * (n_tastes - 1), 5)
    assert click_directions(X, 5).shape[1] == 5


@pytest.mark.parametrize(
    ("budget", "params", "found"),
    [
        (NONPRIVATE, {}, (1, EXACT_ROUNDS)),  # chance alone: no tastes
        (NONPRIVATE, {"n_components": 40, "max_iter": 1}, (40, 1)),
        (NONPRIVATE, {"solver": "dpals", "max_iter": 1}, (16, 1)),
        (NONPRIVATE, {"feedback": "explicit", "max_iter": 1}, (32, 1)),
        (PrivacyBudget(1.0, 1e-5), {}, (16, 5)),
    ],
)
def test_only_exact_fits_choose_their_factors_and_rounds(budget, params, found):
    X = sparse.csr_array((np.random.default_rng(0).random((300, 800)) < 0.02).astype(float))
    model = built(AdaptiveWeightALS, budget, **{"feedback": "implicit", **params}).fit(X)
    assert (len(model.components_), model.n_iter_) == found
    plan = AdaptiveWeightALS(NONPRIVATE, feedback="implicit").plan(800, 300)
    assert {r.name: r.shape for r in plan.releases}["gradients"] == (800, MOST_FACTORS + 1)


def test_rounds_release_what_the_formulas_say(monkeypatch):
    """Every user solved, clipped and added up in a loop, from the released vectors so far."""
    before = []
    real = pooled_clicks._Fit.gradient_round

    def gradient_round(self, t, *more):
        posterior, N, s = self.posterior, self.popularity.mean, self.settings
        before.append((posterior.theta.copy(), N, s))
        real(self, t, *more)

    monkeypatch.setattr(pooled_clicks._Fit, "gradient_round", gradient_round)
    X = base_clicks()
    X[3] = np.nan
    _, records = pooled(X, n_components=2, weight_exponent=0.5)
    C, a, clip = np.nan_to_num(X), pooled_clicks.CONSTANT, pooled_clicks.CLIP
    gradients = [r.statistic for r in records if r.name == pooled_clicks.GRADIENTS]
    grams = [r.statistic for r in records if r.name == pooled_clicks.GRAM]
    assert len(before) == len(gradients) == len(grams) == 3
    for (theta, N, s), G, H in zip(before, gradients, grams, strict=True):
        k = theta.shape[1] - 1
        b, V = a * theta[:, 0], theta[:, 1:]
        penalty = s.alpha * pooled_clicks.FACTOR_RIDGE * k * np.eye(k)
        own_G, own_H = np.zeros((N_ITEMS, k + 1)), np.zeros((k + 1, k + 1))
        for c in C:
            known = c > 0.0
            if not known.any():
                continue
            right = V.T @ (c * (1.0 - b)) - s.unobserved_weight * V.T @ b
            left = (V.T * c) @ V + s.unobserved_weight * V.T @ V + penalty
            u = np.linalg.solve(left, right)
            phi = np.append(a, u / np.linalg.norm(u))
            w = np.where(known, N**-s.weight_exponent, 0.0)
            terms = w / np.linalg.norm(w) * c * (1.0 - theta @ phi)
            f = min(1.0, clip * np.hypot(1.0, a) / np.linalg.norm(np.outer(terms, phi)))
            own_G += f * np.outer(terms, phi)
            own_H += f * np.outer(phi, phi)
        np.testing.assert_allclose(G[:, : k + 1], own_G, rtol=0, atol=1e-4)
        packed = own_H[np.tril_indices(k + 1)]
        np.testing.assert_allclose(H[: len(packed)], packed, rtol=1e-5, atol=1e-4)
        assert abs(own_G).max() > 0.1


def test_a_round_measures_what_unobserved_pairs_add(monkeypatch):
    """Gradients of clicks for which `target` solves the items' problems lead to it in a round."""
    monkeypatch.setattr("skdpmf.mechanisms.als.pooled_update.kept_by", lambda n: 1.0)
    rng = np.random.default_rng(1)
    seen = {}

    def gradient_round(self, t, *more):
        seen.setdefault("posterior", self.posterior)

    monkeypatch.setattr(pooled_clicks._Fit, "gradient_round", gradient_round)
    pooled(base_clicks(), n_components=2)
    posterior = seen["posterior"]
    d, n = posterior.theta.shape[1], len(posterior.theta)
    root = rng.normal(size=(d, d))
    H, target = root @ root.T + np.eye(d), rng.normal(size=(n, d))
    theta = posterior.theta.copy()
    slope = posterior.mass + posterior.unobserved
    clicked = slope[:, None] * (target @ H) - posterior.mass[:, None] * (theta @ H)
    posterior.prior[:] = 1e-12
    posterior.add_gradients(clicked, H, pooled_clicks.CONSTANT, 1e-6)
    np.testing.assert_allclose(posterior.theta, target, rtol=1e-3)
    np.testing.assert_allclose(posterior.spread, H[1:, 1:] / np.trace(H[1:, 1:]))


@pytest.mark.parametrize("epsilon", [50.0, np.inf])
def test_fold_in_minimises_the_stated_loss(epsilon):
    budget = NONPRIVATE if epsilon == np.inf else PrivacyBudget(epsilon, 1e-5)
    model, _ = pooled(base_clicks(), budget=budget, n_components=2)
    items, C = model._item_model_, np.nan_to_num(base_clicks()[:5])
    rank = np.count_nonzero(model.components_.any(axis=1))
    scores = model.decision_function(base_clicks()[:5])
    columns, b, k = items.factors, items.offsets, model.n_components
    Z = np.linalg.lstsq(columns, (scores - b).T, rcond=None)[0].T
    np.testing.assert_allclose(Z @ columns.T, scores - b, atol=1e-9)
    private = budget.is_private
    penalty = [0.0] * columns.shape[1]
    if private:
        penalty[:2] = 1.0, pooled_clicks.SLOPE_RIDGE
    penalty[-k:] = [rank * pooled_clicks.FACTOR_RIDGE if private else 0.0] * k
    each = 0.0 if private else pooled_clicks.CLICK_RIDGE

    def loss(z, c):
        s = b + columns @ z
        everywhere = s if private else columns @ z
        ridges = np.sum(penalty * z**2) + each * np.count_nonzero(c) * np.sum(z**2)
        return np.sum(c * (1.0 - s) ** 2) + 0.4 * np.sum(everywhere**2) + ridges

    rng = np.random.default_rng(2)
    used = columns.any(axis=0)
    for z, c in zip(Z, C, strict=True):
        for _ in range(20):
            assert loss(z + 1e-3 * used * rng.normal(size=len(z)), c) > loss(z, c)
