"""AdaptiveWeightALS without privacy: its twin, and that there is nothing to tune."""

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, Pooled, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse
from skdpmf.mechanisms.als import variational as solver
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.recording import Recorder, RecordingNoise
from tests.matrices import csr
from tests.mechanisms.test_dpals import ratings_with_gaps
from tests.reference import variational as twin

NONPRIVATE = PrivacyBudget.nonprivate()


def started(X, k, columns=None, **params):
    """A fit before its first round."""
    model = AdaptiveWeightALS(NONPRIVATE, n_components=k, solver=Pooled(list_share=None), **params)
    plan = solver.make_plan(NONPRIVATE, model._settings(), X.shape[1])
    noise = RecordingNoise(bytes(32), Recorder(None))
    curator = Curator(csr(X - 3.0), plan, noise, 1, item_columns=columns)
    fit = solver.VariationalFit(curator, model._settings())
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


def test_more_rounds_let_no_means_fade():
    # were b_j known in its own column, the slopes would take two thirds of it in 30 rounds
    X = make_ratings(100, 300, n_ratings=4000, item_bias_std=0.6, random_state=0)
    few, many = (
        AdaptiveWeightALS(NONPRIVATE, max_iter=t).fit(X).item_means_.std() for t in (5, 30)
    )
    assert few > 0.35
    assert many == pytest.approx(few, rel=0.05)
