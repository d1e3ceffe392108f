import copy
import os
import pickle
import subprocess
import sys
import threading
from doctest import DocTestFinder

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import config

from skdpmf.kernels import sums
from skdpmf.kernels.covariance import _entry
from skdpmf.kernels.jit_and_threads import (
    MOST_PLAIN_WORK,
    Kernel,
    balanced_blocks,
    in_threads,
    is_small,
    sized,
)

compiles = pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")


def fake(plain):
    kernel = Kernel(lambda: "compiled", plain)
    kernel._compiled = kernel.function
    return kernel


def test_the_outermost_size_chooses_the_form_in_threads_too():
    kernel, none = fake(lambda: "plain"), fake(None)
    for outer, form in [(MOST_PLAIN_WORK, "plain"), (MOST_PLAIN_WORK + 1, "compiled")]:
        assert kernel() == "compiled"
        with sized(outer):
            with sized(1), sized(2**60):
                assert kernel() == form
            assert is_small() is (form == "plain")
            assert in_threads(kernel, [()] * 3, n_jobs=2) == [form] * 3
            assert none() == "compiled"
    with pytest.raises(ZeroDivisionError), sized(1):
        divmod(1, 0)
    assert not is_small()


def test_plain_forms_warn_of_no_number_as_compiled_ones():
    divided = fake(lambda: np.ones(1) / np.zeros(1))
    with sized(1):
        assert np.isinf(divided())


def test_a_part_is_called_by_kernels_only():
    if config.DISABLE_JIT:
        assert _entry(np.ones(1), 0, 0) == 1.0
    else:
        with pytest.raises(TypeError, match="_entry is part of a kernel"):
            _entry(np.ones(1), 0, 0)


def test_a_kernel_is_copied_by_name_and_its_example_is_found():
    for copied in (pickle.loads(pickle.dumps(sums.row_norms)), copy.deepcopy(sums.row_norms)):
        assert copied is sums.row_norms
    assert "skdpmf.kernels.sums.row_norms" in {t.name for t in DocTestFinder().find(sums)}


ANOTHER_PROCESS = """
import logging, sys
import numpy as np
from skdpmf.kernels import covariance, gibbs, local_gradient, neighbors, sgd, sums, topk
from skdpmf.kernels.jit_and_threads import sized

def norms():
    sums.row_norms(np.array([0, 2]), np.array([3.0, -4.0]), False, 0, 1, out := np.empty(1))
    return out[0]

logging.basicConfig(format="%(message)s")
with sized(1):
    print(norms(), "numba" in sys.modules)
import numba
numba.njit(lambda x: x)(1)
print("OTHERS' CODE COMPILED", file=sys.stderr, flush=True)
print(norms())
"""


def said_in_another_process(folder):
    """Lines that a process says after it compiled code that is not ours."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    environment.pop("SKDPMF_KERNELS", None)  # where an earlier run has left its kernels
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == ["5.0", "False", "5.0"]
    before, after = done.stderr.split("OTHERS' CODE COMPILED\n")
    assert before == ""
    return after


@compiles
def test_one_line_says_that_something_is_compiled_and_none_that_it_is_loaded(tmp_path):
    first, second = said_in_another_process(tmp_path), said_in_another_process(tmp_path)
    assert first.startswith("compiling for this machine, once")
    assert first.count("\n") == 1
    assert second == ""


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 12))
def test_blocks_cover_all_rows_in_order_with_about_equal_work(counts, n_blocks):
    blocks = balanced_blocks(np.concatenate(([0], np.cumsum(counts))).astype(np.int32), n_blocks)
    assert len(blocks) <= n_blocks
    assert [row for start, stop in blocks for row in range(start, stop)] == list(range(len(counts)))
    work = np.array(counts) + 1
    for start, stop in blocks:
        # Either cut is off its goal by at most half a row.
        assert 0 < work[start:stop].sum() <= work.sum() / n_blocks + work.max()


@pytest.mark.parametrize("n_jobs", [None, 1, 3, -1])
def test_threads_return_results_in_order_and_raise_the_first_error(n_jobs):
    tasks = [(k, 2) for k in range(40)]
    assert in_threads(pow, tasks, n_jobs) == [k * k for k in range(40)]
    assert in_threads(pow, [], n_jobs) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(divmod, [(1, 1), (1, 0), (1, "")], n_jobs)


def test_threads_are_as_many_as_joblib_says():
    barrier = threading.Barrier(2, timeout=60)
    with joblib.parallel_config(n_jobs=2):
        in_threads(lambda _: barrier.wait(), [(0,), (1,)], None)  # both wait for each other
    names = in_threads(lambda _: threading.current_thread().name, [(0,), (1,)], 1)
    assert set(names) == {threading.current_thread().name}
