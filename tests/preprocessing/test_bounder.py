"""ContributionBounder: a function of single rows, whatever else the matrix holds."""

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from skdpmf.preprocessing import ContributionBounder, bounder
from tests.estimators.common import as_coo, ratings

TAU = 3


def wide(seed=0):
    """Rows of 1 to 12 ratings, among them extreme ones."""
    X = ratings(n_users=60, density=0.6, seed=seed)
    X[3], X[7] = 5.0, np.nan
    X[5:7] = np.nan
    X[5, 5], X[6, 6] = 1e9, -7.0  # on their own, so that no cap takes them away
    return X


def check_rows_are_alone(**params):
    """Emptying, filling or exchanging a row changes no other one, bit by bit."""
    X = wide()
    fitted = ContributionBounder(TAU, random_state=0, **params).fit(X)
    before = fitted.transform(X)
    for row in (np.full(12, np.nan), np.full(12, 5.0), np.where(np.arange(12) == 4, 1.0, np.nan)):
        other = X.copy()
        other[20] = row
        after = fitted.transform(other)
        np.testing.assert_array_equal(np.delete(after, 20, 0), np.delete(before, 20, 0))
        refitted = clone(fitted).fit(other).transform(other)  # the key is not the data's
        np.testing.assert_array_equal(refitted, after)


def test_sklearn_checks():
    for tau in (200, 1, None):
        results = check_estimator(ContributionBounder(tau), on_fail=None, on_skip=None)
        failed = [r for r in results if r["status"] == "failed"]
        # a row's kept ratings are those of its slot: checks that move rows need rows that fit
        moved = {"check_methods_sample_order_invariance", "check_methods_subset_invariance"}
        assert {r["check_name"] for r in failed} <= (moved if tau == 1 else set())
        assert sum(r["status"] == "passed" for r in results) >= 45 - len(failed)


def test_at_most_tau_of_the_rows_own_ratings():
    X = wide()
    bounded = ContributionBounder(TAU, random_state=0).fit_transform(X)
    kept = ~np.isnan(bounded)
    np.testing.assert_array_equal(kept.sum(axis=1), np.minimum((~np.isnan(X)).sum(axis=1), TAU))
    assert kept.sum(axis=1).max() == TAU
    np.testing.assert_array_equal(bounded[kept], np.clip(X, 1.0, 5.0)[kept])
    free = ContributionBounder(None, rating_range=None).fit_transform(X)
    np.testing.assert_array_equal(free, X)
    zeros = sparse.csr_array(([0.0, 2.0, 0.0], ([0, 0, 1], [0, 2, 1])), shape=(2, 3))
    bounded = ContributionBounder(2, rating_range=(0.0, 4.0)).fit_transform(zeros)
    assert bounded.data.tolist() == [0.0, 2.0, 0.0]  # a stored zero stays a rating


def test_rows_are_alone():
    check_rows_are_alone()


def test_a_stream_shared_by_users_is_noticed(monkeypatch):
    """A planted bug: one generator for all rows, shifted by whoever has more ratings."""

    def shared(key, purpose, indptr, indices, *, first_slot=0):
        return np.random.default_rng(list(key)).random(len(indices))

    monkeypatch.setattr(bounder, "slot_priorities", shared)
    with pytest.raises(AssertionError):
        check_rows_are_alone()


def test_a_key_of_the_data_is_noticed(monkeypatch):
    """A planted bug: a seeded fit whose subsets move with everybody's ratings."""

    def of_data(estimator, X, **settings):
        result = plain(estimator, X, **settings)
        estimator.random_state = int(np.nansum(np.abs(X))) % 1000
        return result

    plain = bounder.check_ratings
    monkeypatch.setattr(bounder, "check_ratings", of_data)
    with pytest.raises(AssertionError):
        check_rows_are_alone()


def test_the_subset_is_uniform_and_fresh():
    """Chi-square of the kept items over rows and fits; false alarm 1e-6, seeds fixed."""
    X = np.full((400, 12), 3.0)
    kept = [
        ~np.isnan(ContributionBounder(TAU, random_state=seed).fit_transform(X)) for seed in range(5)
    ]
    counts = np.sum(kept, axis=(0, 1))
    expected = 5 * 400 * TAU / 12
    # without replacement: the counts vary less than multinomial ones, by (12 - tau) / 11
    statistic = np.sum((counts - expected) ** 2) / expected * 11 / (12 - TAU)
    assert stats.chi2.sf(statistic, 11) > 1e-6
    assert len({k.tobytes() for k in kept}) == 5
    assert len({row.tobytes() for row in kept[0]}) > 100
    free = [ContributionBounder(TAU).fit_transform(X) for _ in range(2)]
    assert not np.array_equal(*free, equal_nan=True)


def test_bad_ratings():
    X = wide()
    X[0, 0] = np.inf
    for container in (X, as_coo(X)):
        with pytest.raises(ValueError, match="infinity"):
            ContributionBounder().fit(container)
    with pytest.raises(NotFittedError):
        ContributionBounder().transform(X)
