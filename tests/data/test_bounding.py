import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse

from skdpmf.data.matrix import bound_contributions
from skdpmf.data.validation import as_rating_matrix

from .twins import bounded_rows, container, rows_of


def random_ratings(rng, n_users, n_items, index_dtype=np.int32):
    mask = rng.random((n_users, n_items)) < rng.choice([0.1, 0.5, 1.0], (n_users, 1))
    entries = [(i, j, float(rng.integers(0, 6))) for i, j in zip(*mask.nonzero(), strict=True)]
    return container(entries, (n_users, n_items), "csr_array", index_dtype)


@settings(max_examples=200, deadline=None)
@given(
    n_users=st.integers(0, 6),
    n_items=st.integers(0, 8),
    limit=st.integers(1, 9),
    dtype=st.sampled_from([np.uint64, np.int32, np.float64]),
    index_dtype=st.sampled_from([np.int32, np.int64]),
    seed=st.integers(0, 2**20),
)
def test_equals_sorting_twin(n_users, n_items, limit, dtype, index_dtype, seed):
    rng = np.random.default_rng(seed)
    X = random_ratings(rng, n_users, n_items, index_dtype)
    priorities = rng.integers(0, 5, X.nnz).astype(dtype)  # few values: many ties
    for array in (X.data, X.indices, X.indptr, priorities):
        array.flags.writeable = False
    bounded = bound_contributions(X, limit, priorities)
    expected = bounded_rows(rows_of(X), limit, priorities)
    assert isinstance(bounded, sparse.csr_array)
    assert bounded.shape == X.shape
    assert rows_of(bounded) == expected
    assert [list(row) for row in rows_of(bounded)] == [sorted(row) for row in expected]
    assert bounded.has_canonical_format


def test_large_unsigned_priorities_are_compared_exactly():
    X = as_rating_matrix([[1.0, 2.0, 3.0]])
    top = 2**64 - 1  # float64 cannot tell these apart
    bounded = bound_contributions(X, 1, np.array([top, top - 1, top], np.uint64))
    assert rows_of(bounded) == [{1: 2.0}]


def test_ties_nan_and_matrix_input():
    X = sparse.csr_matrix([[1.0, 2.0, 3.0, 4.0]])
    assert rows_of(bound_contributions(X, 2, np.zeros(4))) == [{0: 1.0, 1: 2.0}]
    nan = np.array([np.nan, 1.0, np.inf, np.nan])
    assert rows_of(bound_contributions(X, 3, nan)) == [{0: 1.0, 1: 2.0, 2: 3.0}]


def test_nothing_to_do_shares_memory():
    X = as_rating_matrix([[1.0, 2.0], [np.nan, 3.0]])
    assert np.shares_memory(bound_contributions(X, 2, np.arange(3)).data, X.data)


def test_container_is_checked():
    for columns in ((1, 0), (1, 1)):
        X = container([(0, j, 1.0) for j in columns], (1, 2), "csr_array")
        with pytest.raises(ValueError, match=r"in order and once.*as_rating_matrix"):
            bound_contributions(X, 1, np.zeros(2))
