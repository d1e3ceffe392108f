import threading

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels.jit_and_threads import balanced_blocks, in_threads, run_blocks


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


@pytest.mark.parametrize("n_jobs", [None, 1, 3, -1])
def test_threads_return_results_in_order_and_raise_the_first_error(n_jobs):
    tasks = [(k, 2) for k in range(40)]
    assert in_threads(pow, tasks, n_jobs) == [k * k for k in range(40)]
    assert in_threads(pow, [], n_jobs) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(divmod, [(1, 1), (1, 0), (1, "")], n_jobs)


@pytest.mark.parametrize("n_jobs", [None, 1, 4])
def test_every_row_is_in_one_block(n_jobs):
    seen = np.zeros(100, np.int64)

    def count(start, stop):
        seen[start:stop] += 1

    run_blocks(count, np.arange(0, 505, 5), n_jobs)
    assert (seen == 1).all()


def test_threads_are_as_many_as_joblib_says():
    barrier = threading.Barrier(2, timeout=60)
    with joblib.parallel_config(n_jobs=2):
        in_threads(lambda _: barrier.wait(), [(0,), (1,)], None)  # both wait for each other
    names = in_threads(lambda _: threading.current_thread().name, [(0,), (1,)], 1)
    assert set(names) == {threading.current_thread().name}
