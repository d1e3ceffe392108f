"""Noisy gradient descent on the items: its exact limit, its steps and its plan."""

import math

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.mechanisms.als import dpsgd as solver
from skdpmf.privacy.sampler.noise import exact_grid
from skdpmf.privacy.users import _values_of, reveal
from tests.built import built
from tests.core import audit
from tests.core.audit import (
    BUDGET,
    N_USERS,
    base_ratings,
    is_means,
)
from tests.reference import weighted_als as twin

NONPRIVATE = PrivacyBudget.nonprivate()


def recorded_fit(X, replay=None, **params):
    return audit.recorded_fit(X, replay, solver="dpsgd", **params)


def make_plan(budget=BUDGET, n_items=50, **params):
    return built(AdaptiveWeightALS, budget, solver="dpsgd", **params).plan(n_items)


def ratings_with_gaps():
    """An item that nobody rated, and a user without ratings."""
    X = base_ratings()
    X[3] = np.nan
    return X


@pytest.mark.slow
@pytest.mark.parametrize(("exponent", "k", "with_means"), [(0.0, 1, False), (1.0, 2, True)])
def test_enough_steps_are_weighted_ridge_regressions(exponent, k, with_means):
    """The twin solves every item of every round by its normal equations."""
    X = ratings_with_gaps()
    params = {"alpha": 0.7, "user_damping": 4.0, "item_means": with_means, "max_iter": 2}
    model, records = recorded_fit(
        X, budget=NONPRIVATE, n_components=k, weight_exponent=exponent, n_inner_steps=2000, **params
    )
    b, V, _ = twin.fit(
        X - 3.0,
        k,
        exponent=exponent,
        rounds=2,
        alpha=0.7,
        damping=4.0,
        with_means=with_means,
        pooled_frame=False,
    )
    np.testing.assert_allclose(model.item_means_, b + 3.0, rtol=0, atol=1e-8)
    # factors are unique up to the signs of the start's eigenvectors
    V *= np.sign(np.sum(V * model.components_.T, axis=0))
    np.testing.assert_allclose(model.components_.T, V, rtol=0, atol=1e-8)
    assert abs(V).max() > 0.1
    for record in records:
        np.testing.assert_array_equal(record.output, record.statistic)


def steps_taken(monkeypatch, X, **params):
    """Every call of `_Fit.gradient`: the fit, its arguments and what it returned."""
    real, calls = solver._Fit.gradient, []

    def gradient(self, weighted, theta, *users):
        G = real(self, weighted, theta, *users)
        rows, weight = reveal(weighted.users), _values_of(weighted.weight)
        calls.append((self, (rows, weight), theta, *map(_values_of, users), G))
        return G

    with monkeypatch.context() as patch:
        patch.setattr(solver._Fit, "gradient", gradient)
        model, records = recorded_fit(X, **params)
    return calls, model, records


SETTINGS = {
    "adaptive": {},
    "strong weights": {"weight_exponent": 1.0},
    "without item means": {"item_means": False},
    "tail": {"weighting": "tail", "max_ratings_per_user": 5},
    "uniform": {"weighting": "uniform", "max_ratings_per_user": 5},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_is_the_clipped_sum(name, monkeypatch):
    """Written as loops over users and their items, with the norm of each whole contribution."""
    calls, _, records = steps_taken(monkeypatch, base_ratings(), **SETTINGS[name])
    released = [record for record in records if record.name == solver.GRADIENTS]
    released = [record for record in released if not is_means(record)]
    assert len(calls) == len(released) > 0
    tolerance = 2.0 * N_USERS * exact_grid(N_USERS, 4.0)
    n_clipped = 0
    for (run, (R, weight), theta, offset, phi, _), record in zip(calls, released, strict=True):
        bound = solver.CLIP * run.settings.phi_bound
        expected = np.zeros_like(theta)
        for i in range(N_USERS):
            g = np.zeros_like(theta)
            for p in range(R.indptr[i], R.indptr[i + 1]):
                j = R.indices[p]
                e = R.data[p] - offset[i] - phi[i] @ theta[j]
                g[j] = weight[p] * e * phi[i]
            size = np.linalg.norm(g)
            n_clipped += size > bound
            expected += g * min(1.0, bound / max(size, 1e-300))
        np.testing.assert_allclose(record.statistic, expected, rtol=0, atol=tolerance)
        assert record.sensitivity == pytest.approx(bound, rel=1e-12)
    assert n_clipped > 0


def test_steps_are_on_the_public_scale_of_the_released_popularity(monkeypatch):
    """theta moves by h_t / (K + L) (G - L (theta - prior)); K and L are the same in all steps."""
    items, made = solver._Fit._items, []

    def kept(self, *args):
        made.append(items(self, *args))
        return made[-1]

    monkeypatch.setattr(solver._Fit, "_items", kept)
    calls, model, records = steps_taken(monkeypatch, base_ratings())
    outputs = [r.output for r in records if r.name == solver.GRADIENTS and not is_means(r)]
    K, L, prior = made[0].curvature, made[0].decay, made[0].prior
    assert np.all(K > 0.0)
    assert np.all(L > 0.0)
    thetas = [call[2] for call in calls]
    for t, (theta, G, moved) in enumerate(zip(thetas, outputs, thetas[1:], strict=False)):
        h = 1.0 / (1.0 / solver.STEP + t / solver.LATE)
        expected = theta + h * (G - L * (theta - prior)) / (K + L)
        np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-15)
    h = 1.0 / (1.0 / solver.STEP + (len(thetas) - 1) / solver.LATE)
    last = thetas[-1] + h * (outputs[-1] - L * (thetas[-1] - prior)) / (K + L)
    np.testing.assert_allclose(model.item_means_, 3.0 + solver.OFFSET * last[:, 0], rtol=1e-9)
    rank = last.shape[1] - 1
    np.testing.assert_allclose(model.components_[:rank].T, last[:, 1:] / rank**0.5, rtol=1e-9)


@pytest.mark.parametrize("item_means", [True, False])
@pytest.mark.parametrize("n_items", [40, 400])
def test_plan_is_the_formulas(item_means, n_items):
    """Item statistics and start of the sufficient statistics, and all steps at once."""
    C, phi = solver.CLIP, math.sqrt(1.0 + solver.OFFSET**2 * item_means)
    for neighbors, factor in (("add-remove", 1.0), ("replace", 2.0)):
        budget = PrivacyBudget(4.0, 1e-5, neighbors=neighbors)
        params = {"item_means": item_means, "max_iter": 7, "n_items": n_items}
        plan = make_plan(budget, n_inner_steps=3, **params)
        statistics, start, gradients = plan.releases
        params.pop("n_items")
        both = built(AdaptiveWeightALS, budget, solver="dpals", **params).plan(n_items).releases
        for own, other in zip((statistics, start), both, strict=False):
            assert (own.name, own.shape, own.layout) == (other.name, other.shape, other.layout)
            assert own.sensitivity == other.sensitivity
        assert (gradients.name, gradients.count) == (solver.GRADIENTS, 21)
        assert gradients.shape == (n_items, 16 + item_means)
        assert gradients.sensitivity == pytest.approx(factor * C * phi, rel=1e-12)
        assert 3.996 < plan.epsilon <= 4.0
        mu2 = sum(r.count / r.noise_multiplier**2 for r in plan.releases)
        assert plan.mu == pytest.approx(math.sqrt(mu2), rel=1e-12)
        for release in plan.releases:
            assert plan.share(release) == pytest.approx(solver.SHARES[release.name], rel=1e-9)
    assert sum(solver.SHARES.values()) == pytest.approx(1.0, abs=1e-12)
