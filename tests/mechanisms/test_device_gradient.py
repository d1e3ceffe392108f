"""Gradients reported by devices: against a slow twin, in law, and report by report."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse, stats

from skdpmf.mechanisms.device_reports import gradient as solver
from skdpmf.mechanisms.device_reports import randomizers as local
from skdpmf.privacy.sampler.streams import derived_key
from tests.matrices import csr
from tests.reference import local_gradient as twin

N_USERS, N_ITEMS, D, Q = 30, 12, 3, 5
PUBLIC = derived_key(3, "public")

SETTINGS = solver.Settings(
    n_components=D,
    max_iter=4,
    step_size=0.4,
    user_step=0.3,
    item_penalty=0.02,
    user_penalty=0.03,
    step_decay=0.5,
)
METHODS = {
    "algorithm 1": {},
    "algorithm 2": {"projection_dim": Q},
    "algorithm 2, pinv": {"projection_dim": Q, "back_projection": "pinv"},
    "whole": {"method": "privunit"},
}
SAMPLED = [name for name in METHODS if name.startswith("algorithm")]


def settings_of(method, **changes):
    return replace(SETTINGS, **{**METHODS[method], **changes})


def ratings():
    """Users without ratings, with all, and an item that nobody rated; some gradients beyond 1."""
    rng = np.random.default_rng(1)
    Y = rng.normal(0.0, 1.0, (N_USERS, N_ITEMS))
    Y[rng.random(Y.shape) < 0.6] = np.nan
    Y[4], Y[5], Y[:, 7] = np.nan, 1.5, np.nan
    return Y


def start(std=0.6, n_users=N_USERS, n_items=N_ITEMS, d=D):
    return solver.initial_factors(PUBLIC, n_users, n_items, d, std)


def projection_of(settings, n_items=N_ITEMS, n_jobs=1):
    if settings.projection_dim is None:
        return None
    return solver.Projection(
        PUBLIC, settings.projection_dim, n_items, settings.back_projection, n_jobs
    )


def streams_of(seed=0):
    return local.DeviceStreams(derived_key(seed, "devices"))


def fit(Y, settings, epsilon, streams=None, *, initial=None, rounds=None, n_jobs=1):
    R = csr(Y)
    return solver.fit(
        R,
        settings,
        epsilon,
        streams or streams_of(),
        initial=initial or start(n_users=R.shape[0], n_items=R.shape[1]),
        projection=projection_of(settings, R.shape[1]),
        rounds=range(settings.max_iter) if rounds is None else rounds,
        n_jobs=n_jobs,
    )


def twins_way(settings, n_items=N_ITEMS):
    """Phi, and the matrix of the way back, from their definitions."""
    if settings.projection_dim is None:
        return np.eye(n_items), np.eye(n_items)
    Phi = projection_of(settings, n_items).matrix.astype(np.float64)
    back = np.linalg.pinv(Phi) if settings.back_projection == "pinv" else Phi.T
    return Phi, back


@pytest.mark.parametrize("method", SAMPLED)
def test_private_fit_is_the_twin_with_the_same_signs(method):
    """Devices one after the other, each with a key of its own slot and its whole gradient."""
    epsilon, settings, Y = 6.0, settings_of(method), ratings()
    Phi, back = twins_way(settings)
    keys = streams_of()
    D_ = Phi.shape[0] * D
    randomiser = local.CoordinateSampling(epsilon / settings.max_iter, D_)

    def estimate(t, U, V):
        mean = np.zeros(D_)
        for i in range(N_USERS):
            key = keys.keys(solver.SIGNS, t, 1, first_slot=i)
            chosen = randomiser.coordinates(key)[0]
            x = (Phi @ twin.gradient(Y[i], U[i], V)).ravel()[chosen]
            mean[chosen] += D_ * randomiser.factor * randomiser.report(key, [x])[0] / N_USERS
        return back @ mean.reshape(-1, D)

    model = fit(Y, settings, epsilon)
    U, V = twin.fit(Y, *start(), settings, estimate)
    assert abs(V).max() > 1.0  # the noise is felt
    np.testing.assert_allclose(model.factors, V, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.user_factors, U, rtol=1e-9, atol=1e-9)


class Spy(local.DeviceStreams):
    """Notes which keys were asked for."""

    def __init__(self):
        super().__init__(derived_key(0, "devices"))
        self.slots = {}

    def keys(self, name, index, n_devices, *, first_slot=0):
        self.slots.setdefault((name, index), []).extend(range(first_slot, first_slot + n_devices))
        return super().keys(name, index, n_devices, first_slot=first_slot)


def test_no_more_rounds_than_the_budget_is_for():
    """A display may wrap the rounds, and an endless one changes nothing."""
    spy, left = Spy(), iter(range(10))
    fit(ratings(), SETTINGS, 2.0, spy, rounds=left)
    assert len(spy.slots) == SETTINGS.max_iter == next(left)


@pytest.mark.parametrize("k", [1, 3, 7, 10, 49, 50])
@pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.0, 8.0])
def test_k_reports_spend_no_more_than_epsilon(k, epsilon):
    each = solver.report_epsilon(epsilon, replace(SETTINGS, max_iter=k))
    assert Fraction(each) * k <= Fraction(epsilon)
    assert each == pytest.approx(epsilon / k, rel=1e-12)


def estimates(Y, settings, each, n_repeats):
    """Estimated mean gradients of single rounds that start alike; and U and V."""
    U, V = start(0.9)
    run = solver._Fit(csr(Y), replace(settings, max_iter=1), (U, V), projection_of(settings), 1)
    mean_gradient = run.estimator(each, streams_of(17))
    return np.array([mean_gradient(t) for t in range(n_repeats)]), U, V


def clipped_mean(Y, U, V, Phi):
    X = [np.clip(Phi @ twin.gradient(y, u, V), -1, 1) for y, u in zip(Y, U, strict=True)]
    raw = [Phi @ twin.gradient(y, u, V) for y, u in zip(Y, U, strict=True)]
    assert np.mean(np.abs(raw) > 1) > 0.05  # so that clipping is seen
    return np.mean(X, axis=0)


@pytest.mark.parametrize("method", SAMPLED)
def test_estimates_are_unbiased_with_the_stated_variance(method):
    """Mean and variance over 1,200 rounds. False alarms: 5 sigma in 36 values, 2e-5; 4 in one."""
    n_repeats, each, settings, Y = 1200, 1.0, settings_of(method), ratings()
    Phi, back = twins_way(settings)
    got, U, V = estimates(Y, settings, each, n_repeats)
    mean = clipped_mean(Y, U, V, Phi)
    values = Phi.shape[0] * D
    f = (math.e + 1) / (math.e - 1)
    # of one value of the mean of n: (values f^2 - second moments) / n
    X = [np.clip(Phi @ twin.gradient(y, u, V), -1, 1) for y, u in zip(Y, U, strict=True)]
    variance = (values * f**2 - np.mean(np.square(X), axis=0)) / N_USERS
    # D f sign e_l are uncorrelated over l but for the mean: keep the bound
    error = np.sqrt(back**2 @ (values * f**2 / N_USERS * np.ones((Phi.shape[0], D))))
    z = (got.mean(axis=0) - back @ mean) / (error / math.sqrt(n_repeats))
    assert abs(z).max() < 5.0
    assert abs(z).max() > 0.5
    if method == "algorithm 1":
        ratio = got.var(axis=0).mean() / variance.mean()
        # a value's kurtosis is that of n / values rare signs
        kurtosis = 3.0 + values / N_USERS
        slack = 4 * math.sqrt((kurtosis - 1) / (n_repeats * values))
        assert ratio == pytest.approx(1.0, abs=slack)


@pytest.mark.parametrize("rating", [1.0, 100.0, 1e308, math.inf, math.nan])
def test_what_a_report_can_say_is_bounded(rating):
    """Odds of a sign stay within e^epsilon. False alarms: 4.5 sigma in 2 cases, 2e-5."""
    each, n_repeats = 1.0, 8000
    settings = replace(SETTINGS, n_components=1, max_iter=1)
    up = {}
    for sign in (-1.0, 1.0):
        R = sparse.csr_array(
            (np.full(n_repeats, sign * rating), np.zeros(n_repeats, int), np.arange(n_repeats + 1)),
            shape=(n_repeats, 1),
        )
        U, V = np.full((n_repeats, 1), -0.5), np.zeros((1, 1))
        run = solver._Fit(R, settings, (U, V), None, 1)
        mean = run.estimator(each, streams_of(1))(0)[0, 0]
        up[sign] = 0.5 + 0.5 * mean / ((math.e + 1) / (math.e - 1))
    largest = math.e / (1 + math.e)
    expected = 0.5 if math.isnan(rating) else largest
    slack = 4.5 * 0.5 / math.sqrt(n_repeats)
    assert up[1.0] == pytest.approx(expected, abs=slack)
    assert up[-1.0] == pytest.approx(1 - expected, abs=slack)


def test_initial_factors_are_public_and_by_slot():
    U, V = start(0.5, n_users=400, n_items=300)
    few, _ = start(0.5, n_users=7, n_items=1)
    np.testing.assert_array_equal(few, U[:7])
    values = np.concatenate((U.ravel(), V.ravel()))
    assert stats.kstest(values / 0.5, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(U[:300].ravel(), V.ravel())[0, 1]) < 5 / math.sqrt(V.size)
