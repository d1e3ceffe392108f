import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels.rows import predict_entries
from tests.kernels import _problems as problems

pytestmark = pytest.mark.usefixtures("form")


def problem(seed, n_rows, n_columns, k, dtype, index_type):
    rng = np.random.default_rng(seed)
    pattern = problems.random_pattern(rng, n_rows, n_columns, index_type)
    U, V = rng.standard_normal((n_rows, k)), rng.standard_normal((n_columns, k))
    return pattern, U.astype(dtype), V.astype(dtype)


def dense(pattern, U, V):
    rows = np.repeat(np.arange(pattern.n_rows), np.diff(pattern.indptr))
    return (U.astype(np.float64) @ V.T.astype(np.float64))[rows, pattern.indices]


@problems.examples
@given(
    seed=st.integers(0, 2**16),
    k=st.integers(0, 40),
    n_rows=st.integers(0, 6),
    n_columns=st.integers(1, 15),
    dtype=problems.float_types,
    index_type=problems.index_types,
    data=st.data(),
)
def test_entries_are_dot_products_and_others_stay(
    form, seed, k, n_rows, n_columns, dtype, index_type, data
):
    index_type, dtype = problems.types_of(form, index_type, dtype)
    pattern, U, V = problem(seed, n_rows, n_columns, k, dtype, index_type)
    start, stop = problems.part_of(data, n_rows)
    out = np.full(len(pattern.indices), -77.0, dtype)
    given_arrays = problems.read_only(
        form, pattern.indptr, pattern.indices, np.asfortranarray(U), V
    )
    if form == "compiled":
        given_arrays[2] = U
    predict_entries(*given_arrays, start, stop, out)
    expected = np.full(len(out), -77.0)
    own = slice(pattern.indptr[start], pattern.indptr[stop])
    expected[own] = dense(pattern, U, V)[own]
    atol = 1e-4 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(out, expected, rtol=0, atol=atol)
