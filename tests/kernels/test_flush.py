import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from skdpmf.kernels._vectors import CAN_FLUSH, flushed_denormals

flushes = pytest.mark.skipif(not CAN_FLUSH, reason="needs the JIT and a known CPU")


@numba.njit
def multiply(a, b, out):
    out[0] = a[0] * b[0]


def pair(a, b, dtype=np.float32):
    return np.array([a], dtype), np.array([b], dtype)


# Arrays, made while nothing is flushed: converting a number from float64 would flush it as well.
DENORMAL_RESULT = pair(2e-38, 1e-3)
DENORMAL_OPERAND = pair(1e-39, 1e3)
BOTH = pair(1e-38, 1e-3)
DOUBLE = pair(1e-300, 1e-10, np.float64)


def product_is_zero(a, b) -> bool:
    out = np.ones_like(a)
    multiply(a, b, out)
    return not out.view(np.uint8).any()  # the bits: to a thread that flushes, a denormal equals 0


def flushed() -> tuple[bool, bool]:
    """Return whether this thread flushes denormal results, and denormal operands."""
    return product_is_zero(*DENORMAL_RESULT), product_is_zero(*DENORMAL_OPERAND)


@pytest.fixture(autouse=True)
def _leaves_the_state_alone():
    assert flushed() == (False, False)
    yield
    assert flushed() == (False, False)


@flushes
def test_denormals_are_zero_inside_and_only_inside():
    assert not product_is_zero(*BOTH)
    assert not product_is_zero(*DOUBLE)
    with flushed_denormals():
        assert product_is_zero(*BOTH)
        assert product_is_zero(*DOUBLE)
        assert flushed() == (True, True)
    assert not product_is_zero(*BOTH)
    assert not product_is_zero(*DOUBLE)


def test_the_state_found_comes_back_after_an_exception():
    def fail():
        with flushed_denormals():
            assert flushed() == (CAN_FLUSH, CAN_FLUSH)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert flushed() == (False, False)


@flushes
def test_other_threads_are_unaffected():
    def wait_and_see():
        started.set()
        assert flush_is_on.wait(60)
        return flushed()

    started, flush_is_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(wait_and_see)
        assert started.wait(60)
        with flushed_denormals():
            flush_is_on.set()
            assert seen.result() == (False, False)
            assert flushed() == (True, True)
