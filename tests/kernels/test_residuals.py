import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import config

from skdpmf.kernels.rows import weigh_residuals
from skdpmf.kernels.sums import accumulate_rhs, row_norms
from tests.kernels._problems import (
    examples,
    forms,
    index_types,
    part_of,
    random_pattern,
    read_only,
    types_of,
)
from tests.reference import residuals as twin

GRID = 2.0**-17
SENTINEL = -77.0


def problem(seed, n_users, n_items, k, index_type=np.int64):
    """Pattern, terms, factors of the users."""
    rng = np.random.default_rng(seed)
    pattern = random_pattern(rng, n_users, n_items, index_type)
    terms = rng.uniform(-3, 3, len(pattern.indices))
    return pattern, terms, rng.uniform(-1, 1, (n_users, k)), rng


def accumulate(form, pattern, terms, scale, factors, grid, *ranges):
    out = np.zeros((pattern.n_columns, factors.shape[1]))
    for start, stop in ranges or [(0, pattern.n_rows)]:
        arrays = pattern.indptr, pattern.indices, terms, scale, factors
        getattr(accumulate_rhs, form)(*arrays, grid, start, stop, out)
    return out


@pytest.mark.parametrize("form", ["plain", "compiled"])
@examples
@given(
    seed=st.integers(0, 2**16),
    k=st.integers(0, 20),
    n_users=st.integers(0, 8),
    n_items=st.integers(1, 6),
    bound=st.sampled_from([0.5, 4.0, np.inf]),
    index_type=index_types,
    data=st.data(),
)
def test_residuals_and_their_norms(form, seed, k, n_users, n_items, bound, index_type, data):
    pattern, values, U, rng = problem(seed, n_users, n_items, k, types_of(form, index_type)[0])
    V, weights = rng.standard_normal((n_items, k)), rng.uniform(0, 1, len(values))
    start, stop = part_of(data, n_users)
    given_arrays = pattern.indptr, pattern.indices, values, weights, U, V
    out, norms = np.full(len(values), SENTINEL), np.full(n_users, SENTINEL)
    kernel = getattr(weigh_residuals, form)
    kernel(*read_only(form, *given_arrays), bound, start, stop, out, norms)
    own = slice(pattern.indptr[start], pattern.indptr[stop])
    rows = np.repeat(np.arange(n_users), np.diff(pattern.indptr))
    errors = np.clip(values - (U @ V.T)[rows, pattern.indices], -bound, bound)
    dense = np.zeros((n_users, n_items))
    dense[rows, pattern.indices] = weights * errors
    np.testing.assert_allclose(out[own], (weights * errors)[own], rtol=0, atol=1e-13)
    expected = np.linalg.norm(dense, axis=1)[start:stop]
    np.testing.assert_allclose(norms[start:stop], expected, rtol=0, atol=1e-13)
    assert np.all(np.delete(out, np.s_[own]) == SENTINEL)
    assert np.all(np.delete(norms, np.s_[start:stop]) == SENTINEL)
    assert (norms[start:stop][np.diff(pattern.indptr)[start:stop] == 0] == 0.0).all()


@forms
@examples
@given(
    seed=st.integers(0, 2**16),
    k=st.integers(1, 20),
    n_users=st.integers(0, 8),
    n_items=st.integers(1, 6),
    grid=st.sampled_from([2.0**-20, GRID, 2.0**-3, 1.0]),
    index_type=index_types,
)
def test_sums_equal_rational_arithmetic_bit_by_bit(
    form, seed, k, n_users, n_items, grid, index_type
):
    index_type, _ = types_of(form, index_type)
    pattern, terms, factors, rng = problem(seed, n_users, n_items, k, index_type)
    arrays = terms, rng.uniform(0, 1, n_users), factors
    out = accumulate(form, pattern, *read_only(form, *arrays), grid)
    expected = twin.accumulate_rhs(pattern.indptr, pattern.indices, *arrays, grid, n_items)
    np.testing.assert_array_equal(out, expected)
    assert not np.signbit(out[out == 0]).any()  # one zero only: equal values are equal bits


@pytest.mark.parametrize("k", [1, 17])
def test_neither_order_nor_blocks_nor_form_change_a_bit(k):
    """Also where all terms are next to the exactness condition's limit, 2^53 grid^2."""
    rng, n, n_items = np.random.default_rng(k), 400, 3
    big = np.sqrt(2.0**53 * GRID**2 / n)  # of both factors of n products
    terms = rng.uniform(-big, big, (n, n_items))
    scale, factors = rng.uniform(0, 1, n), rng.uniform(-big, big, (n, k))
    terms[:7], factors[:7], scale[:7] = big, big, 1.0
    indptr = np.arange(n + 1) * n_items
    seen = set()
    for cut, form in itertools.product((0, 1, 150), ("plain", "compiled")):
        order, out = rng.permutation(n), np.zeros((2, n_items, k))
        items = np.argsort(rng.random((n, n_items)), axis=1)
        shuffled = np.take_along_axis(terms[order], items, axis=1).ravel()
        for part, start, stop in zip(out, (0, cut), (cut, n), strict=True):
            arrays = indptr, items.ravel(), shuffled, scale[order], factors[order]
            getattr(accumulate_rhs, form)(*arrays, GRID, start, stop, part)
        seen.add(out.sum(axis=0).tobytes())
    assert len(seen) == 1


@forms
def test_truncation_never_raises_the_norm(form):
    """All just off the grid and negative: floor or rint would raise the contribution's norm."""
    n_items, k = 5, 9
    terms, factors = np.full(n_items, -GRID * 5.75), np.full((1, k), -GRID * 7.75)
    out = np.zeros((n_items, k))
    indptr = np.array([0, n_items])
    arrays = indptr, np.arange(n_items), terms, np.ones(1), factors
    getattr(accumulate_rhs, form)(*arrays, GRID, 0, 1, out)
    assert (out == 35 * GRID**2).all()


@forms
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_terms_that_are_not_finite_count_as_nothing(form, bad):
    pattern, terms, factors, rng = problem(3, 6, 4, 3)
    scale = rng.uniform(0, 1, 6)
    scale[np.flatnonzero(np.diff(pattern.indptr))[0]] = 0.0  # 0 times infinity
    for place in (0, len(terms) // 2):
        without, spoilt = terms.copy(), terms.copy()
        without[place], spoilt[place] = 0.0, bad
        expected = accumulate(form, pattern, without, scale, factors, GRID)
        np.testing.assert_array_equal(
            accumulate(form, pattern, spoilt, scale, factors, GRID), expected
        )


@forms
@examples
@given(
    seed=st.integers(0, 2**16),
    n_users=st.integers(0, 5),
    n_items=st.sampled_from([1, 3, 4, 300, 1100]),
    l1=st.booleans(),
    index_type=index_types,
    data=st.data(),
)
def test_norms_of_rows_are_the_twin_s(form, seed, n_users, n_items, l1, index_type, data):
    """Right to 2^-46, however long the rows are and however different their values."""
    pattern, terms, _, rng = problem(seed, n_users, n_items, 1, types_of(form, index_type)[0])
    terms *= 10.0 ** rng.integers(-6, 6, len(terms))
    start, stop = part_of(data, n_users)
    out = np.full(n_users, SENTINEL)
    getattr(row_norms, form)(*read_only(form, pattern.indptr, terms), l1, start, stop, out)
    expected = twin.row_norms(pattern.indptr, terms, l1)
    np.testing.assert_allclose(out[start:stop], expected[start:stop], rtol=2.0**-46)
    assert np.all(out[:start] == SENTINEL)
    assert np.all(out[stop:] == SENTINEL)


@forms
@pytest.mark.parametrize("l1", [True, False])
def test_norms_of_long_rows_are_right_and_rows_know_nothing_of_one_another(form, l1):
    """A plain sum of a million terms is off by more; a row alone has the bits that it has here."""
    counts = np.array([0, 3, 10_000 if config.DISABLE_JIT else 10**6, 0, 400, 1, 129])
    indptr, terms = np.append(0, np.cumsum(counts)), np.full(counts.sum(), 0.1)
    out, alone = np.empty(7), np.empty(1)
    getattr(row_norms, form)(indptr, terms, l1, 0, 7, out)
    one = Fraction(0.1)
    exact = [float(n * one) if l1 else math.sqrt(n * one * one) for n in counts]
    np.testing.assert_allclose(out, exact, rtol=2.0**-46, atol=0)
    for i in range(7):
        own = terms[indptr[i] : indptr[i + 1]].copy()
        getattr(row_norms, form)(np.array([0, len(own)]), own, l1, 0, 1, alone)
        assert alone[0] == out[i]
