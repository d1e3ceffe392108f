from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from skdpmf.kernels.covariance import (
    accumulate_pairs,
    pair_blocks,
    triangle_starts,
)
from skdpmf.kernels.jit_and_threads import balanced_blocks
from skdpmf.privacy.users import Rows
from tests.kernels._problems import (
    Pattern,
    examples,
    float_types,
    forms,
    index_types,
    part_of,
    random_pattern,
    read_only,
    types_of,
)
from tests.reference.covariance import pair_products

UNIT = 2.0**-30
SENTINEL = -77


def ratings(seed, n_users, n_items, index_type=np.int64, dtype=np.float64):
    rng = np.random.default_rng(seed)
    pattern = random_pattern(rng, n_users, n_items, index_type)
    x = rng.choice([-1.0, 0.0, 1.0, np.nan], len(pattern.indices), p=[0.1, 0.1, 0.1, 0.7])
    x = np.where(np.isnan(x), rng.uniform(-1, 1, len(x)), x).astype(dtype)
    return pattern, x, rng.uniform(0, 2, n_users)


def item_major(indptr, indices, n_items):
    """Return who rated each item, and where the rating stands in the users' rows."""
    shape = len(indptr) - 1, n_items
    R = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=shape)
    by_item = Rows(R, 1).by_item
    return by_item.indptr, by_item.indices, by_item.data


def accumulate(pattern, x, weight, start=0, stop=None, unit=UNIT, form="compiled", kept=None):
    stop = pattern.n_columns if stop is None else stop
    starts = triangle_starts(pattern.n_columns)
    cov, wgt = np.full((2, starts[stop] - starts[start]), SENTINEL)
    items = item_major(pattern.indptr, pattern.indices, pattern.n_columns)
    arrays = pattern.indptr, pattern.indices, x, weight, *items
    both = [part if kept in (None, n) else part[:0] for n, part in enumerate((cov, wgt))]
    getattr(accumulate_pairs, form)(*read_only(form, *arrays), unit, start, stop, *both)
    return both


@forms
@examples
@given(
    seed=st.integers(0, 2**16),
    n_users=st.integers(0, 8),
    n_items=st.integers(1, 15),
    unit=st.sampled_from([1.0, 2.0**-7, UNIT, 2.0**-50]),
    dtype=float_types,
    index_type=st.sampled_from([np.uint16, np.int32, np.int64]),
    data=st.data(),
)
def test_sums_equal_the_twin_bit_by_bit(
    form, seed, n_users, n_items, unit, dtype, index_type, data
):
    pattern, x, weight = ratings(seed, n_users, n_items, *types_of(form, index_type, dtype))
    start, stop = part_of(data, n_items)
    cov, wgt = accumulate(pattern, x, weight, start, stop, unit, form)
    rows = slice(*triangle_starts(n_items)[[start, stop]])
    expected_cov, expected_wgt = pair_products(pattern, x, weight, unit)
    np.testing.assert_array_equal(cov, expected_cov[rows])
    np.testing.assert_array_equal(wgt, expected_wgt[rows])
    for n, both in enumerate((cov, wgt)):  # and each of them alone
        alone = accumulate(pattern, x, weight, start, stop, unit, form, kept=n)[n]
        np.testing.assert_array_equal(alone, both)


def test_no_share_exceeds_the_exact_one_if_weights_are_rounded_down():
    # Counts near 2^52 show the rounding of every product.
    rng = np.random.default_rng(0)
    unit, raised = 2.0**-52, 0
    for _ in range(200):
        exact = rng.uniform(0.5, 1)
        x = rng.uniform(0.9, 1, 2) * rng.choice([-1, 1], 2)
        pattern = Pattern(np.array([0, 2]), np.array([0, 1]), 2)
        cov, wgt = accumulate(pattern, x, np.array([exact * (1 - 2.0**-50)]), unit=unit)
        a, b = map(Fraction, x)
        share = [Fraction(exact) * pair / Fraction(unit) for pair in (a * a, a * b, b * b)]
        assert all(abs(int(n)) <= abs(s) for n, s in zip(cov, share, strict=True))
        assert all(abs(s) - abs(int(n)) < 16 for n, s in zip(cov, share, strict=True))
        assert (wgt <= Fraction(exact) / Fraction(unit)).all()
        rounded_up, _ = accumulate(pattern, x, np.array([exact]), unit=unit)
        raised += any(abs(int(n)) > abs(s) for n, s in zip(rounded_up, share, strict=True))
    assert raised > 10  # the weights' rounding is needed


@forms
@examples
@given(
    seed=st.integers(0, 2**16),
    n_users=st.integers(0, 9),
    n_items=st.integers(1, 9),
    index_type=index_types,
)
def test_patterns_by_item(form, seed, n_users, n_items, index_type):
    index_type, _ = types_of(form, index_type)
    pattern = random_pattern(np.random.default_rng(seed), n_users, n_items, index_type)
    item_ptr, users, entries = item_major(*pattern)
    np.testing.assert_array_equal(entries, np.argsort(pattern.indices, kind="stable"))
    rows = np.repeat(np.arange(n_users), np.diff(pattern.indptr))
    np.testing.assert_array_equal(users, rows[entries])
    counts = np.bincount(pattern.indices, minlength=n_items)
    np.testing.assert_array_equal(np.diff(item_ptr), counts)
    assert item_ptr[0] == 0
    assert users.dtype == entries.dtype == np.int32


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 9), st.integers(1, 900))
def test_blocks_cover_all_rows_and_are_bounded(counts, n_blocks, max_entries):
    work = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    starts = triangle_starts(len(counts))
    blocks = pair_blocks(work, n_blocks, max_entries)
    assert [row for start, stop in blocks for row in range(start, stop)] == list(range(len(counts)))
    for start, stop in blocks:
        assert stop - start == 1 or starts[stop] - starts[start] <= max_entries
    # A part that fits is not cut.
    assert pair_blocks(work, n_blocks, max(starts[-1], 1)) == balanced_blocks(work, n_blocks)
