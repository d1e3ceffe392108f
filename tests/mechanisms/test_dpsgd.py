"""Noisy gradient descent on the items: its exact limit, its steps and its plan."""

import numpy as np
import pytest

from skdpmf import PrivacyBudget
from skdpmf.mechanisms.als import dpsgd as solver
from skdpmf.mechanisms.als.ratings import CLIP, OFFSET, RatingFit
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import reveal
from tests.core import audit
from tests.core.audit import N_USERS, base_ratings, is_means
from tests.mechanisms.test_dpals import ratings_with_gaps
from tests.reference import weighted_als as twin

NONPRIVATE = PrivacyBudget.nonprivate()


def recorded_fit(X, replay=None, **params):
    return audit.recorded_fit(X, replay, solver="dpsgd", **params)


@pytest.mark.slow
def test_enough_steps_are_weighted_ridge_regressions():
    X = ratings_with_gaps()
    params = {"alpha": 0.7, "user_damping": 4.0, "max_iter": 2, "n_inner_steps": 2000}
    model, records = recorded_fit(
        X, budget=NONPRIVATE, n_components=2, weight_exponent=1.0, **params
    )
    settings = {"exponent": 1.0, "rounds": 2, "alpha": 0.7, "damping": 4.0, "with_means": True}
    b, V, _ = twin.fit(X - 3.0, 2, pooled_frame=False, **settings)
    np.testing.assert_allclose(model.item_means_, b + 3.0, rtol=0, atol=1e-8)
    # factors are unique up to the signs of the start's eigenvectors
    V *= np.sign(np.sum(V * model.components_.T, axis=0))
    np.testing.assert_allclose(model.components_.T, V, rtol=0, atol=1e-8)
    assert abs(V).max() > 0.1
    for record in records:
        np.testing.assert_array_equal(record.output, record.statistic)


def steps_taken(monkeypatch, X, **params):
    """Fit, theta, rows, weights, offsets and phi of every step; the model, and its gradients."""
    real, half, calls, users = solver.released_gradient, RatingFit.user_half, [], []

    def user_half(self, ridge):
        users[:] = half(self, ridge)
        return tuple(users)

    def released_gradient(run, kept, weight, *more):
        values = map(reveal, (weight, *users))
        calls.append((run, run.theta.copy(), reveal(kept), *values))
        return real(run, kept, weight, *more)

    with monkeypatch.context() as patch:
        patch.setattr(RatingFit, "user_half", user_half)
        patch.setattr(solver, "released_gradient", released_gradient)
        model, records = recorded_fit(X, **params)
    return calls, model, [r for r in records if r.name == solver.GRADIENTS and not is_means(r)]


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
    calls, _, released = steps_taken(monkeypatch, base_ratings(), **SETTINGS[name])
    assert len(calls) == len(released) > 0
    tolerance = 2.0 * N_USERS * exact_grid(N_USERS, 4.0)
    n_clipped = 0
    for (run, theta, R, weight, offset, phi), record in zip(calls, released, strict=True):
        bound = CLIP * run.settings.phi_bound
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
    calls, model, records = steps_taken(monkeypatch, base_ratings())
    run = calls[0][0]
    K, L, prior = run.curvature, run.decay, run.prior
    assert np.all(K > 0.0)
    assert np.all(L > 0.0)
    thetas = [*(call[1] for call in calls), run.theta]
    for t, (theta, record, moved) in enumerate(zip(thetas, records, thetas[1:], strict=False)):
        h = 1.0 / (1.0 / solver.STEP + t / solver.LATE)
        expected = theta + h * (record.output - L * (theta - prior)) / (K + L)
        np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(model.item_means_, 3.0 + OFFSET * moved[:, 0], rtol=1e-9)
    rank = moved.shape[1] - 1
    np.testing.assert_allclose(model.components_[:rank].T, moved[:, 1:] / rank**0.5, rtol=1e-9)
