"""Sorting ratings by item, against a sort of triples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from skdpmf.kernels.sgd import item_runs, order_by_item
from tests.kernels._problems import forms, part_of
from tests.reference import order as reference


def ordered(form, R, start, stop, mean, std):
    own = R.indices[R.indptr[start] : R.indptr[stop]]
    counts = np.bincount(own, minlength=R.shape[1])
    places = np.cumsum(counts) - counts
    users, ratings = np.full(counts.sum(), 9, np.uint16), np.full(counts.sum(), 9, np.float32)
    arrays = R.indptr, R.indices, R.data
    getattr(order_by_item, form)(*arrays, start, stop, mean, std, places, users, ratings)
    return np.repeat(np.arange(R.shape[1]), counts), users, ratings


def random_ratings(n_users, n_items, seed, density=0.3):
    rng = np.random.default_rng(seed)
    pattern = rng.random((n_users, n_items)) < density
    rows, columns = np.nonzero(pattern)
    return sparse.csr_array((rng.normal(3, 1, rows.size), (rows, columns)), shape=pattern.shape)


@forms
@settings(max_examples=50)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 10**6), st.data())
def test_is_a_sort_by_item_then_user(form, n_users, n_items, seed, data):
    R = random_ratings(n_users, n_items, seed)
    start, stop = part_of(data, n_users)
    got = ordered(form, R, start, stop, 2.5, 0.7)
    expected = reference.order_by_item(R.indptr, R.indices, R.data, start, stop, 2.5, 0.7)
    for mine, twin in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine, twin)


@forms
def test_standardised_in_double_precision(form):
    """A rating far from zero keeps the digits that tell it from the mean."""
    R = sparse.csr_array(np.array([[1e9 + 1.5]]))
    assert ordered(form, R, 0, 1, 1e9, 1.0)[2] == [1.5]


def runs(form, user, item, rating, rows=(10, 20), n_items=8):
    """What `item_runs` finds: items, indptr, users and ratings; None if it refuses."""
    n = len(item)
    arrays = np.zeros(n, np.int32), np.zeros(n + 1, np.int64)
    arrays += np.full(n + 2, 7, np.uint16), np.full(n + 2, 7, np.float32)
    given = np.array(user, np.int32), np.array(item, np.int32), np.array(rating, np.float32)
    found = getattr(item_runs, form)(*given, rows, n_items, (1.0, 5.0), (3.0, 0.5), *arrays)
    assert arrays[2][n:].tolist() == arrays[3][n:].tolist() == [7, 7]
    if found < 0:
        return None
    return [arrays[0][:found], arrays[1][: found + 1], arrays[2][:n], arrays[3][:n]]


@forms
def test_runs_of_items_are_clipped_and_standardised(form):
    found = runs(form, [12, 19, 10, 11, 19], [0, 0, 3, 3, 7], [-7, 1, 2.5, 9, 3])
    expected = [[0, 3, 7], [0, 2, 4, 5], [2, 9, 0, 1, 9], [-4, -4, -1, 4, 0]]
    assert [part.tolist() for part in found] == expected
    assert [part.tolist() for part in runs(form, [], [], [])] == [[], [0], [], []]


@forms
@pytest.mark.parametrize(
    ("column", "value"),
    [(0, 9), (0, 20), (0, 12), (0, 2**31 - 1), (1, -1), (1, 2), (1, 8), (2, np.nan), (2, np.inf)],
)
def test_runs_out_of_range_or_order_are_refused(form, column, value):
    """Three ratings of item 3, of which the last one has a wrong user, item or value."""
    columns = [[12, 13, 14], [3, 3, 3], [1.0, 2.0, 3.0]]
    assert runs(form, *columns) is not None
    columns[column][-1] = value
    assert runs(form, *columns) is None
