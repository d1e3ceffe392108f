"""Limits of the solver: no privacy, no data, no noise; order, threads and seeds."""

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from skdpmf import DPALS, AdaptiveWeightALS, PrivacyBudget
from skdpmf.mechanisms.als import dpals as solver
from skdpmf.mechanisms.als import item_update as item_posterior
from skdpmf.mechanisms.als import ratings
from skdpmf.mechanisms.common import expected_weights, popularity_weights
from skdpmf.privacy import sums
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.users import _values_of, reveal
from tests.built import built
from tests.core.audit import (
    BUDGET,
    N_ITEMS,
    UNRATED,
    base_ratings,
    recorded_curator,
    recorded_fit,
)
from tests.reference import weighted_als as twin

NONPRIVATE = PrivacyBudget.nonprivate()


def as_sparse(X, middle=0.0):
    rows, columns = np.nonzero(~np.isnan(X))
    return sparse.csr_array((X[rows, columns] - middle, (rows, columns)), shape=X.shape)


def ratings_with_gaps():
    """An item that nobody rated, and a user without ratings."""
    X = base_ratings()
    X[3] = np.nan
    return X


@pytest.mark.parametrize("with_means", [True, False])
@pytest.mark.parametrize(
    ("exponent", "k", "head"),
    [(0.0, 1, 150), (0.25, 3, 150), (0.25, 4, 6), (0.5, 2, 9), (1.0, 2, 150)],
)
def test_without_privacy_it_is_the_twin(with_means, exponent, k, head, monkeypatch):
    monkeypatch.setattr(ratings, "HEAD", head)
    X = ratings_with_gaps()
    params = {"alpha": 0.7, "user_damping": 4.0, "item_means": with_means, "max_iter": 5}
    model, records = recorded_fit(
        X, budget=NONPRIVATE, n_components=k, weight_exponent=exponent, **params
    )
    b, V, ridge = twin.fit(
        X - 3.0, k, exponent=exponent, rounds=5, alpha=0.7, damping=4.0, with_means=with_means
    )
    np.testing.assert_allclose(model.item_means_, b + 3.0, rtol=0, atol=1e-8)
    # factors are unique up to the signs of the start's eigenvectors
    V *= np.sign(np.sum(V * model.components_.T, axis=0))
    np.testing.assert_allclose(model.components_.T, V, rtol=0, atol=1e-8)
    assert abs(V).max() > 0.1
    # predictions are the ridge regressions of the users on the twin's model
    o, U = twin.user_half(X - 3.0, b, V, ridge * np.eye(k), 4.0, with_means)
    expected = 3.0 + b + o[:, None] + U @ V.T
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=0, atol=1e-8)
    for record in records:
        np.testing.assert_array_equal(record.output, record.statistic)


@pytest.mark.parametrize("weighting", ["uniform", "tail"])
def test_baselines_with_a_cap_that_no_user_reaches(weighting):
    """All ratings have one weight: adaptive weights without their normalisation."""
    X = base_ratings()
    params = {"budget": NONPRIVATE, "n_components": 2, "weighting": weighting}
    _, few = recorded_fit(X, max_ratings_per_user=N_ITEMS, **params)
    _, many = recorded_fit(X, max_ratings_per_user=4 * N_ITEMS, **params)
    for one, other in zip(few, many, strict=True):
        if one.index == 0 and one.name in (solver.GRAM, solver.RHS):
            np.testing.assert_allclose(one.statistic, 2.0 * other.statistic, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 1.0, 5.0, 30.0, 45.0, 60.0, 100.0, 1e3, 1e5])
def test_weights_of_every_user_keep_to_the_bound(exponent):
    """sum_j w_ij^2 <= 1 as computed, also where powers of the popularity leave the doubles."""
    X = np.full((6, N_ITEMS), np.nan)
    X[0], X[1, -1], X[2, 0], X[3, [0, -1]], X[4, -3:] = 3.0, 1.0, 5.0, 2.0, 4.0
    R, mass = as_sparse(X), np.geomspace(1.0, 1e5, N_ITEMS)
    weight = popularity_weights(R, mass, exponent)
    squares = np.bincount(np.nonzero(~np.isnan(X))[0], weights=weight**2, minlength=len(X))
    assert np.all(squares <= 1.0)
    np.testing.assert_allclose(squares[:5], 1.0, rtol=1e-9)
    assert squares[5] == 0.0
    total, typical = expected_weights(mass, 0.3, exponent)
    assert np.all(np.isfinite(total))
    assert np.all((typical >= 0) & (typical <= 1))


# -- optimality ----------------------------------------------------------------------------------


def exact_run(X, **params):
    """The solver's parts, without privacy, before the first round."""
    params = {"n_components": 2, "max_iter": 1, "alpha": 0.7, **params}
    settings = built(AdaptiveWeightALS, NONPRIVATE, solver="dpals", **params)._settings()
    plan = solver.make_plan(NONPRIVATE, settings, X.shape[1])
    run = solver._Fit(recorded_curator(as_sparse(X, 3.0), plan)[0], settings)
    run.begin()
    run.start_once()
    return run, run.weighted, run.posterior


def item_objective(run, weighted, posterior, offset, phi):
    """sum_ij w_ij e_ij^2 + sum_j v w_j (theta_j - prior_j)' L (theta_j - prior_j)."""
    rows, theta = reveal(weighted.users), posterior.theta
    offset, phi, weight = map(_values_of, (offset, phi, weighted.weight))
    e = rows.data - offset[rows.user] - np.sum(phi[rows.user] * theta[rows.indices], axis=1)
    L = posterior.prior_precision
    away = theta - posterior.pull @ np.linalg.inv(L)
    penalty = np.einsum("ja,ab,jb->j", away, L, away)
    return weight @ e**2 + item_posterior._RESIDUAL_VARIANCE * weighted.typical @ penalty


def item_statistics(weighted, theta, offset, phi):
    """Exact Gram matrices and right-hand sides."""
    residual = weighted.users.map(solver.residuals_of, theta, offset, phi)
    given = weighted.users, weighted.weight, residual, phi
    both = sums.item_grams(*given, gram_clip=1.0, clip=1.0, grid=0.0)
    return [total.without_privacy() for total in both]


@pytest.mark.parametrize("item_means", [True, False])
def test_item_half_is_optimal(item_means):
    run, weighted, posterior = exact_run(ratings_with_gaps(), item_means=item_means)
    offset, phi = run.user_half(posterior.theta, np.eye(2))
    before = item_objective(run, weighted, posterior, offset, phi)
    posterior.update(*item_statistics(weighted, posterior.theta, offset, phi))
    after = item_objective(run, weighted, posterior, offset, phi)
    assert after < before
    # the gradient vanishes: g_j = v w_j L (theta_j - prior_j)
    gram, rhs = item_statistics(weighted, posterior.theta, offset, phi)
    L = posterior.prior_precision
    pull = posterior.theta @ L - posterior.pull
    strength = item_posterior._RESIDUAL_VARIANCE * weighted.typical[:, None]
    np.testing.assert_allclose(rhs, strength * pull, atol=1e-10)
    # a second solve with the same users changes nothing
    theta = posterior.theta.copy()
    posterior.update(gram, rhs)
    np.testing.assert_allclose(posterior.theta, theta, atol=1e-10)


@pytest.mark.parametrize("item_means", [True, False])
def test_users_half_is_optimal(item_means):
    run, _, posterior = exact_run(ratings_with_gaps(), item_means=item_means)
    ridge = np.array([[2.0, 0.5], [0.5, 1.0]])
    offset, phi = map(_values_of, run.user_half(posterior.theta, ridge))
    U = phi[:, int(item_means) :]
    V, b = posterior.theta[:, int(item_means) :], np.zeros(N_ITEMS)
    if item_means:
        b = solver.OFFSET * posterior.theta[:, 0]
        np.testing.assert_array_equal(phi[:, 0], solver.OFFSET)
    e = ratings_with_gaps() - 3.0 - b - offset[:, None] - U @ V.T
    e[np.isnan(e)] = 0.0
    np.testing.assert_allclose(e @ V, U @ ridge, atol=1e-9)
    if item_means:
        np.testing.assert_allclose(e.sum(axis=1), run.settings.user_damping * offset, atol=1e-9)


def test_rounds_converge():
    """The items' gradient at the start of a round shrinks from round to round."""
    errors = []
    for rounds in (1, 2, 4, 8):
        _, records = recorded_fit(base_ratings(), budget=NONPRIVATE, max_iter=rounds)
        last = [r for r in records if r.name == solver.RHS][-1]
        errors.append(np.linalg.norm(last.statistic))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[0]


# -- little data, much noise, and little noise -----------------------------------------------------


def test_an_unrated_item_has_its_prior_alone():
    model, records = recorded_fit(base_ratings(), budget=NONPRIVATE)
    for record in records:
        if record.name in (solver.GRAM, solver.RHS):
            assert not record.statistic[UNRATED].any()
    np.testing.assert_array_equal(model.components_[:, UNRATED], 0.0)
    assert abs(model.components_[:, 0]).max() > 0.1
    means = twin.exact_item_means(base_ratings() - 3.0, 10.0)
    assert model.item_means_[UNRATED] == pytest.approx(3.0 + means.prior_mean[UNRATED], abs=1e-9)


def noiseless_limit(monkeypatch, X, plan, settings):
    """A fit that clips as the plan asks and draws no noise."""
    with monkeypatch.context() as patch:
        patch.setattr(NoiseSource, "release", lambda self, statistic, **_: np.array(statistic))
        return run_solver(X, plan, settings)


def run_solver(X, plan, settings):
    curator, _ = recorded_curator(as_sparse(X, 3.0), plan)
    return solver.fit(curator, settings, rounds=range(settings.max_iter))


@pytest.mark.parametrize("item_means", [True, False])
def test_noise_vanishes(item_means, monkeypatch):
    """The model tends to the clipped one as all noise is scaled down."""
    X = base_ratings()
    settings = AdaptiveWeightALS(
        BUDGET, n_components=2, max_iter=3, solver=DPALS(item_means=item_means)
    )
    settings = settings._settings()
    plan = solver.make_plan(BUDGET, settings, N_ITEMS)
    # a curator refuses less noise than the budget asks for
    monkeypatch.setattr(ReleasePlan, "epsilon", BUDGET.epsilon)

    def scaled(factor):
        less = [
            dataclasses.replace(r, noise_multiplier=factor * r.noise_multiplier)
            for r in plan.releases
        ]
        return dataclasses.replace(plan, releases=tuple(less))

    gaps = []
    for factor in (1e-1, 1e-3, 1e-5):
        # noise levels are known to the estimate, so each limit has its own
        limit = noiseless_limit(monkeypatch, X, scaled(factor), settings)
        model = run_solver(X, scaled(factor), settings)
        gaps.append(
            max(
                abs(model.factors @ model.factors.T - limit.factors @ limit.factors.T).max(),
                abs(model.item_means - limit.item_means).max(),
            )
        )
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-3
    assert limit.factors.any()
