"""Limits of private multi-task ridge."""

import numpy as np
import pytest

from skdpmf import PrivacyBudget, private_multi_task_ridge
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.recording import record_releases

N_USERS, N_TASKS, N_FEATURES = 150, 12, 3
G, Y_MAX = 0.7, 4.0
UNSEEN = N_TASKS - 1  # nobody but an adversary has this task
BUDGET = PrivacyBudget(20.0, 1e-5)
NONPRIVATE = PrivacyBudget.nonprivate()


def base_data(seed=0):
    """Features of users, and targets with gaps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N_USERS, N_FEATURES)) * 0.6 * G
    Y = x @ rng.normal(size=(N_FEATURES, N_TASKS)) + 0.5 * rng.normal(size=(N_USERS, N_TASKS))
    Y[rng.random(Y.shape) > np.linspace(0.9, 0.2, N_TASKS)] = np.nan
    Y[:, UNSEEN] = np.nan
    Y[3] = np.nan
    return x, Y


def recorded_fit(data, replay=None, **params):
    """Result and releases."""
    params = {"budget": BUDGET, "max_norm": G, "max_value": Y_MAX, "random_state": 0, **params}
    X, Y = data
    with record_releases(replay) as records:
        try:
            result = private_multi_task_ridge(X, Y, **params)
        except PrivacyParameterError as error:  # releases may not depend on the data
            raise AssertionError(str(error)) from error
    return result, records


def twin(data, *, alpha, exponent):
    """Weighted ridge regressions, task by task, from loops and exact counts."""
    X, Y = data
    known = ~np.isnan(Y)
    n = known.sum(axis=1)
    counts = np.array([sum(1 / np.sqrt(n[j]) for j in np.flatnonzero(k)) for k in known.T])
    w = np.zeros(Y.shape)
    for j in range(len(Y)):
        if n[j]:
            raw = counts[known[j]] ** -exponent
            w[j, known[j]] = raw / np.sqrt(np.sum(raw**2))
    theta = np.zeros((Y.shape[1], X.shape[1]))
    for i in range(Y.shape[1]):
        k = known[:, i]
        A = (w[k, i, None] * X[k]).T @ X[k] + alpha * np.eye(X.shape[1])
        theta[i] = np.linalg.lstsq(A, X[k].T @ (w[k, i] * Y[k, i]), rcond=1e-9)[0]
    return theta


@pytest.mark.parametrize(("exponent", "alpha"), [(0.0, 0.3), (0.5, 2.0), (1.0, 0.0)])
def test_without_privacy_it_is_ridge_regression(exponent, alpha):
    """Also of targets and features beyond their bounds, which are not clipped then."""
    X, Y = base_data()
    X, Y = 10.0 * X, 10.0 * Y
    params = {"budget": NONPRIVATE, "alpha": alpha, "weight_exponent": exponent}
    result, records = recorded_fit((X, Y), **params)
    expected = twin((X, Y), alpha=alpha, exponent=exponent)
    np.testing.assert_allclose(result.coef, expected, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(result.coef[UNSEEN], 0.0)
    assert abs(result.coef[0]).max() > 0.1
    for record in records:
        np.testing.assert_array_equal(record.output, record.statistic)


@pytest.mark.parametrize("weighting", ["uniform", "tail"])
def test_baselines_whose_cap_no_user_reaches_are_plain_ridge(weighting):
    data, cap = base_data(), 100
    params = {"weighting": weighting, "max_tasks_per_user": cap, "budget": NONPRIVATE}
    result, _ = recorded_fit(data, alpha=0.3, **params)
    for y, theta in zip(data[1].T, result.coef, strict=True):
        k = ~np.isnan(y)
        x = data[0][k]
        # weights 1 / sqrt(cap) on the loss are a penalty sqrt(cap) times as strong
        A = x.T @ x + 0.3 * np.sqrt(cap) * np.eye(N_FEATURES)
        np.testing.assert_allclose(theta, np.linalg.solve(A, x.T @ y[k]), atol=1e-9)


@pytest.mark.parametrize("budget", [NONPRIVATE, BUDGET], ids=["non-private", "private"])
def test_bounds_are_units_alone(budget):
    (X, Y), a, b = base_data(), 8.0, 0.25
    params = {"budget": budget, "weight_exponent": 0.0, "alpha": 0.3}
    one, records = recorded_fit((X, Y), **params)
    params.update(max_norm=a * G, max_value=b * Y_MAX, alpha=a * a * 0.3)
    # a new plan has another key: the same noise by replay
    other, others = recorded_fit((a * X, b * Y), records, **params)
    for record, again in zip(records, others, strict=True):
        np.testing.assert_array_equal(record.statistic, again.statistic)
    np.testing.assert_allclose(one.coef, other.coef * a / b, rtol=1e-12)
