import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels.jit_and_threads import balanced_blocks


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 12))
def test_blocks_cover_all_rows_in_order_with_about_equal_work(counts, n_blocks):
    blocks = balanced_blocks(np.concatenate(([0], np.cumsum(counts))).astype(np.int32), n_blocks)
    assert len(blocks) <= n_blocks
    assert [row for start, stop in blocks for row in range(start, stop)] == list(range(len(counts)))
    work = np.array(counts) + 1
    for start, stop in blocks:
        # Either cut is off its goal by at most half a row.
        assert 0 < work[start:stop].sum() <= work.sum() / n_blocks + work.max()


def test_a_window_of_row_pointers():
    assert balanced_blocks(np.array([100, 110, 111, 120]), 2) == [(0, 1), (1, 3)]


def test_no_blocks_is_an_error():
    with pytest.raises(ValueError, match=r"n_blocks=0 must be at least 1"):
        balanced_blocks(np.array([0, 1]), 0)
