"""Sorting ratings by item, against a sort of triples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from skdpmf.kernels.order import count_items, order_by_item, standardise
from tests.kernels._problems import forms
from tests.reference import order as reference


def ordered(form, R, start, stop, mean, std):
    counts = np.zeros(R.shape[1], np.int64)
    getattr(count_items, form)(R.indptr, R.indices, start, stop, counts)
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
    start = data.draw(st.integers(0, n_users))
    stop = data.draw(st.integers(start, n_users))
    got = ordered(form, R, start, stop, 2.5, 0.7)
    expected = reference.order_by_item(R.indptr, R.indices, R.data, start, stop, 2.5, 0.7)
    for mine, twin in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine, twin)


@pytest.mark.parametrize("form", ["plain"])  # in compiled form each is compiled anew
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_index_types_and_read_only_ratings(index, form):
    R = random_ratings(30, 8, 0)
    expected = ordered(form, R, 4, 25, 0.0, 1.0)
    for name in ("indptr", "indices", "data"):
        part = getattr(R, name).astype(index if name != "data" else np.float64)
        part.setflags(write=False)
        setattr(R, name, part)
    for mine, twin in zip(ordered(form, R, 4, 25, 0.0, 1.0), expected, strict=True):
        np.testing.assert_array_equal(mine, twin)


@forms
def test_counts_are_added(form):
    R = random_ratings(20, 6, 1)
    counts = np.ones(6, np.int64)
    getattr(count_items, form)(R.indptr, R.indices, 0, 11, counts)
    getattr(count_items, form)(R.indptr, R.indices, 11, 20, counts)
    np.testing.assert_array_equal(counts, 1 + np.bincount(R.indices, minlength=6))


@forms
def test_standardised_in_double_precision(form):
    """A rating far from zero keeps the digits that tell it from the mean."""
    R = sparse.csr_array(np.array([[1e9 + 1.5]]))
    assert ordered(form, R, 0, 1, 1e9, 1.0)[2] == [1.5]


@forms
def test_clipped_and_standardised_in_place(form):
    ratings = np.array([-7, 1, 2.5, 9], np.float32)
    getattr(standardise, form)(1.0, 5.0, 3.0, 0.5, ratings)
    np.testing.assert_array_equal(ratings, np.float32([-4, -4, -1, 4]))
