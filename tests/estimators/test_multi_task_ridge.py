"""The function's parameters, containers, statement and ledger."""

import re

import numpy as np
import pytest
from scipy import sparse

from skdpmf import PrivacyBudget, private_multi_task_ridge
from skdpmf.exceptions import BudgetExceededError, PrivacyParameterError
from tests.books.ledgers import new_ledger

BUDGET = PrivacyBudget(4.0, 1e-5)
BOUNDS = {"max_norm": 1.0, "max_value": 2.0}


def data(n=60, m=5, d=2):
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(-0.7, 0.7, (n, d)), rng.uniform(-2.0, 2.0, (n, m))
    Y[rng.random(Y.shape) < 0.4] = np.nan
    return X, Y


BAD = {
    "max_norm": (0.0, -1.0, np.inf, np.nan, "1", None, 1e-300),
    "max_value": (0.0, np.nan, 1e200),
    "alpha": (-1.0, np.inf, None),
    "weighting": ("Tail", None),
    "weight_exponent": (-0.5, np.nan),
    "max_tasks_per_user": (0, 1.5, True),
    "random_state": (-1, 0.5),
    "n_jobs": (0, 1.5),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, bad in BAD.items() for v in bad])
def test_bad_parameters_are_named_before_data_are_read(name, value):
    with pytest.raises(ValueError, match=rf"^{name}={re.escape(repr(value))} must be "):
        private_multi_task_ridge("no data", "none", BUDGET, **{**BOUNDS, name: value})


X, Y = data()
WRONG = {
    "X of a row less": (X[1:], Y, "one row for each user"),
    "X of no columns": (X[:, :0], Y, "must be matrices with a column"),
    "X sparse": (sparse.csr_array(X), Y, "X must be a dense matrix of real numbers"),
    "Y of texts": (X, Y.astype(str), "Y must be a matrix of real numbers, users x tasks"),
}


@pytest.mark.parametrize("name", WRONG)
def test_data_that_do_not_fit(name):
    features, targets, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        private_multi_task_ridge(features, targets, BUDGET, **BOUNDS)


def test_nobody_has_a_task():
    X, Y = np.ones((9, 2)), sparse.csr_array((9, 4))
    assert np.isfinite(private_multi_task_ridge(X, Y, BUDGET, **BOUNDS).coef).all()
    exact = private_multi_task_ridge(X, Y, PrivacyBudget.nonprivate(), **BOUNDS, alpha=0.0)
    np.testing.assert_array_equal(exact.coef, np.zeros((4, 2)))


def test_statement():
    result = private_multi_task_ridge(*data(), BUDGET, **BOUNDS, random_state=0)
    statement = result.privacy_spent
    assert statement.epsilon == result.plan.epsilon
    assert 3.999 < statement.epsilon <= 4.0
    assert [release.name for release in statement.releases] == [
        "task counts",
        "Gram matrices",
        "right-hand sides",
    ]
    assert any("seed" in assumption for assumption in statement.assumptions)
    equal = private_multi_task_ridge(*data(), BUDGET, **BOUNDS, weight_exponent=0.0)
    assert len(equal.plan.releases) == 2  # equal weights need no counts
    assert not any("seed" in assumption for assumption in equal.privacy_spent.assumptions)
    exact = private_multi_task_ridge(*data(), PrivacyBudget.nonprivate(), **BOUNDS)
    assert exact.privacy_spent.epsilon == np.inf


def test_the_ledger_is_charged_once_for_data_that_fit(tmp_path):
    ledger = new_ledger(tmp_path, 4.0)
    budget = PrivacyBudget(3.0, 1e-5, ledger=ledger)
    private_multi_task_ridge(*data(), budget, **BOUNDS)
    (entry,) = ledger.report().entries
    assert (entry["estimator"], entry["status"]) == ("private_multi_task_ridge", "done")
    assert entry["shape"] == [60, 5, 2]
    assert entry["params"]["max_norm"] == 1.0
    assert ledger.verify() == 1
    with pytest.raises(BudgetExceededError):
        private_multi_task_ridge(*data(), budget, **BOUNDS)
    with pytest.raises(PrivacyParameterError, match="seed"):
        private_multi_task_ridge(*data(), budget, **BOUNDS, random_state=0)
    small = PrivacyBudget(0.1, 1e-5, ledger=ledger)
    with pytest.raises(ValueError, match="one row for each user"):
        private_multi_task_ridge(data()[0][1:], data()[1], small, **BOUNDS)
    assert [entry["status"] for entry in ledger.report().entries] == ["done"]
