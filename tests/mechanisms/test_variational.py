"""AdaptiveWeightALS without privacy: its twin, and that there is nothing to tune."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf import AdaptiveWeightALS, Pooled, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse
from skdpmf.mechanisms.als import variational as solver
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.recording import Recorder, RecordingNoise
from tests.mechanisms.test_dpals import ratings_with_gaps
from tests.reference import variational as twin

NONPRIVATE = PrivacyBudget.nonprivate()


def started(X, k, columns=None, **params):
    """A fit before its first round."""
    model = AdaptiveWeightALS(NONPRIVATE, n_components=k, solver=Pooled(list_share=None), **params)
    plan = solver.make_plan(NONPRIVATE, model._settings(), X.shape[1])
    rows, items = np.nonzero(~np.isnan(X))
    R = sparse.csr_array((X[rows, items] - 3.0, (rows, items)), shape=X.shape)
    noise = RecordingNoise(bytes(32), Recorder(None))
    fit = solver.VariationalFit(Curator(R, plan, noise, 1, item_columns=columns), model._settings())
    fit.begin()
    return fit


def state_of(fit):
    return tuple(
        np.copy(part)
        for part in (
            *(fit.posterior.theta, fit.variance, fit.noise, fit.omega),
            *(fit.slopes, fit.tau, fit.centre),
        )
    )


def exact_fit(X, **params):
    return AdaptiveWeightALS(NONPRIVATE, solver=Pooled(list_share=None), **params).fit(X)


def error(model, train, test):
    return rmse(test, model.predict_entries(train, test))


@pytest.mark.parametrize("n_columns", [0, 2])
@pytest.mark.parametrize("k", [1, 3])
def test_rounds_are_the_twin(k, n_columns):
    X = ratings_with_gaps()
    D = np.random.default_rng(0).normal(size=(X.shape[1], n_columns))
    fit = started(X, k, D)
    state, y = state_of(fit), X - 3.0
    known = ~np.isnan(X)
    N = fit.averages.mass
    for _ in range(3):
        fit.sweep()
        state = twin.one_round(y, state, fit.log_column, N, D)
    theta, variance, noise, _, _, tau, centre = state
    assert known.any(axis=1).sum() < len(X)
    found = fit.posterior.theta
    np.testing.assert_allclose(found[:, 0], theta[:, 0], atol=1e-7)
    # eigenvectors have no sign
    V, expected = found[:, 1:], theta[:, 1:]
    np.testing.assert_allclose(V @ V.T, expected @ expected.T, atol=1e-7)
    np.testing.assert_allclose(fit.variance, variance, atol=1e-7)
    np.testing.assert_allclose(fit.noise, noise, rtol=1e-6)
    np.testing.assert_allclose(fit.tau, tau, atol=1e-7)
    np.testing.assert_allclose(np.abs(fit.centre), np.abs(centre), atol=1e-7)
    assert np.abs(found[:, 1:]).max() > 0.1


@pytest.mark.parametrize(("tastes", "least", "most"), [(0, 0, 1), (3, 3, 5), (12, 12, 16)])
def test_as_many_factors_as_there_are_tastes(tastes, least, most):
    """More come while all show something, and those that show nothing go."""
    rng = np.random.default_rng(tastes)
    U, V = rng.normal(size=(600, tastes)), rng.normal(size=(80, tastes))
    X = 3.0 + 0.5 * U @ V.T + 0.5 * rng.normal(size=(600, 80))
    X[rng.random(X.shape) < 0.5] = np.nan
    fit = started(X, 32, rating_range=(-20.0, 20.0))
    assert fit.rank == solver._FIRST_RANK
    for t in range(10):
        fit.round(t)
    assert least <= fit.rank <= most
    assert fit.posterior.theta.shape == fit.variance.shape == fit.centre.shape == (80, 1 + fit.rank)
    assert fit.omega.shape == (3 + fit.rank,) * 2
    assert fit.model().columns.shape == (80, 3 + 32)


def test_a_turn_leaves_the_model_as_it_is():
    X = ratings_with_gaps()
    fit = started(X, 4)
    for _ in range(2):
        fit.sweep()

    def predictions():
        columns = fit.columns()
        features = twin.features(X, columns)
        omega = columns @ fit.omega @ columns.T
        return features @ fit.slopes @ columns.T, omega, fit.centre @ fit.centre.T

    Z, spread = fit.user_step(fit.columns())
    before = predictions()
    fit.turn(Z, spread)
    for one, other in zip(before, predictions(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    u = Z[~np.isnan(X).all(axis=1), 3:]
    assert len(u) > 4


def test_item_features_lead_rare_items():
    """Factors that follow from public columns are known for items that few have rated."""
    rng = np.random.default_rng(0)
    D = rng.normal(size=(200, 4))
    U = rng.normal(size=(800, 2))
    full = 3.0 + 0.5 * U @ (D @ rng.normal(size=(4, 2))).T + 0.5 * rng.normal(size=(800, 200))
    known = rng.random(full.shape) < np.where(np.arange(200) < 100, 0.2, 0.01)
    train = sparse.csr_array(np.where(known, full, 0.0))
    rare = np.zeros_like(known)
    rare[:, 100:] = ~known[:, 100:] & (rng.random((800, 100)) < 0.1)
    test = sparse.csr_array(np.where(rare, full, 0.0))
    wide = {"rating_range": (-2.0, 8.0), "n_components": 6}
    without = error(exact_fit(train, **wide), train, test)
    assert error(exact_fit(train, item_features=D, **wide), train, test) < 0.9 * without


def test_doubt_is_part_of_the_model(tmp_path):
    """Items of few ratings weigh less in the fold-in, also after a file; new items the least."""
    X = make_ratings(600, 60, random_state=0)
    model = exact_fit(X, n_components=4)
    doubt, counts = model._item_model_.item_ridge, np.bincount(X.indices, minlength=60)
    assert np.corrcoef(np.argsort(np.argsort(counts)), np.argsort(np.argsort(doubt)))[0, 1] < -0.8
    certain = exact_fit(X, n_components=4)
    certain._item_model_ = certain._item_model_._replace(item_ridge=None)
    assert np.abs(certain.transform(X)).sum() > np.abs(model.transform(X)).sum()
