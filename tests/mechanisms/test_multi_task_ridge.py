"""Limits of private multi-task ridge, and repeated observations."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf import PrivacyBudget, private_multi_task_ridge
from skdpmf.estimators import multi_task_ridge as estimator
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms import multi_task_ridge as solver
from skdpmf.privacy.recording import record_releases
from tests.matrices import csr

N_USERS, N_TASKS, N_FEATURES = 150, 12, 3
G, Y_MAX = 0.7, 4.0
UNSEEN = N_TASKS - 1  # nobody but an adversary has this task
BUDGET = PrivacyBudget(20.0, 1e-5)
NONPRIVATE = PrivacyBudget.nonprivate()


def base_data(seed=0):
    """Features (users x tasks x features), the same for all tasks, and targets with gaps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N_USERS, N_FEATURES)) * 0.6 * G
    Y = x @ rng.normal(size=(N_FEATURES, N_TASKS)) + 0.5 * rng.normal(size=(N_USERS, N_TASKS))
    Y[rng.random(Y.shape) > np.linspace(0.9, 0.2, N_TASKS)] = np.nan
    Y[:, UNSEEN] = np.nan
    Y[3] = np.nan
    return np.repeat(x[:, None, :], N_TASKS, axis=1), Y


def recorded_fit(data, replay=None, **params):
    """Result and releases."""
    params = {"budget": BUDGET, "max_norm": G, "max_value": Y_MAX, "random_state": 0, **params}
    X, Y = data
    if params.get("per_observation"):
        X, Y = X[~np.isnan(Y)], csr(Y)
    else:
        X = X[:, 0]
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
    theta = np.zeros((Y.shape[1], X.shape[2]))
    for i in range(Y.shape[1]):
        k = known[:, i]
        A = (w[k, i, None] * X[k, i]).T @ X[k, i] + alpha * np.eye(X.shape[2])
        theta[i] = np.linalg.lstsq(A, X[k, i].T @ (w[k, i] * Y[k, i]), rcond=1e-9)[0]
    return theta


@pytest.mark.parametrize("per_observation", [False, True])
@pytest.mark.parametrize(("exponent", "alpha"), [(0.0, 0.3), (0.5, 2.0), (1.0, 0.0)])
def test_without_privacy_it_is_ridge_regression(exponent, alpha, per_observation):
    """Also of targets and features beyond their bounds, which are not clipped then."""
    X, Y = base_data()
    X, Y = 10.0 * X, 10.0 * Y
    if per_observation:
        X = X * np.random.default_rng(1).uniform(0.5, 2.0, X.shape)
    result, records = recorded_fit(
        (X, Y),
        budget=NONPRIVATE,
        alpha=alpha,
        weight_exponent=exponent,
        per_observation=per_observation,
    )
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
    for i, (y, theta) in enumerate(zip(data[1].T, result.coef, strict=True)):
        k = ~np.isnan(y)
        x = data[0][k, i]
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


def repeated(Y, features):
    """Every observation three times, with what averages to it, in another order."""
    Y = Y.tocoo()
    order = np.random.default_rng(0).permutation(3 * Y.nnz)
    shift = np.repeat([-1.0, 0.0, 1.0], Y.nnz)
    row, column = np.tile(Y.row, 3)[order], np.tile(Y.col, 3)[order]
    y, x = (np.tile(Y.data, 3) + shift)[order], np.tile(features, (3, 1))[order]
    by_row = np.argsort(row, kind="stable")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=Y.shape[0]))))
    many = sparse.csr_array((y[by_row], column[by_row], indptr), shape=Y.shape)
    return many, x[by_row]


def releases_of(X, Y):
    with record_releases() as records:
        private_multi_task_ridge(
            X, Y, BUDGET, max_norm=G, max_value=Y_MAX, per_observation=True, random_state=0
        )
    return {record.name: record.statistic for record in records}


def check_repeated_observations_count_once():
    X, Y = base_data()
    once, features = csr(Y), X[~np.isnan(Y)]
    many, copies = repeated(once, features)
    one, other = releases_of(features, once), releases_of(copies, many)
    np.testing.assert_array_equal(one[solver.COUNTS], other[solver.COUNTS])


def test_repeated_observations_count_once(monkeypatch):
    check_repeated_observations_count_once()

    def unmerged(features, Y):
        return solver.Observations(Y, features, np.arange(Y.nnz))

    # users merge them once more: only features would then be those of other observations
    monkeypatch.setattr(estimator, "_merged", unmerged)
    check_repeated_observations_count_once()


def test_entries_that_are_not_finite_are_missing():
    X, Y = base_data()
    kept, features = csr(Y), X[~np.isnan(Y)]
    first = np.flatnonzero(np.diff(kept.indptr))[0]
    holes = kept.copy()
    holes.data[first] = np.nan
    without = Y.copy()
    rows, columns = np.nonzero(~np.isnan(Y))
    without[rows[first], columns[first]] = np.nan
    one = releases_of(features, holes)
    other = releases_of(np.delete(features, first, axis=0), csr(without))
    for name, statistic in one.items():
        np.testing.assert_array_equal(statistic, other[name])
