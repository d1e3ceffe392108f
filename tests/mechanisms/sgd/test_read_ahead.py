"""The reader in a thread of its own. Events order what happens, as in test_workers."""

import itertools
import threading
import time
from contextlib import closing

import pytest

from skdpmf.mechanisms.sgd.rating_batches import read_ahead

from .threads import Planned, nothing_left, wait


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left():
        yield


@pytest.mark.parametrize("n", [1, 2, 100])
@pytest.mark.parametrize("n_items", [0, 1, 50])
def test_read_ahead_gives_all_items_in_order(n, n_items):
    assert list(read_ahead(range(n_items), n)) == list(range(n_items))


@pytest.mark.parametrize("n", [1, 3])
def test_read_ahead_goes_n_items_ahead_and_no_further(n):
    produced, is_ahead = [], threading.Event()

    def items():
        for item in itertools.count(1):
            produced.append(item)
            if item == 1 + n:
                is_ahead.set()
            yield item

    with closing(read_ahead(items(), n)) as ahead:
        assert next(ahead) == 1
        wait(is_ahead)
        time.sleep(0.05)  # a reader without bounds goes on meanwhile
        assert len(produced) == 1 + n
    assert len(produced) == 1 + n


@pytest.mark.parametrize("n_taken", [0, 1, 5])
@pytest.mark.parametrize("how", ["close", "error", "drop"])
def test_read_ahead_left_early(n_taken, how):
    closed_in, made_in = [], []

    def items():
        made_in.append(threading.current_thread())
        try:
            yield from itertools.count()
        finally:
            closed_in.append(threading.current_thread())

    def fail(ahead):
        with closing(ahead):
            raise Planned

    before = set(threading.enumerate())
    ahead = read_ahead(items(), 2)
    assert [next(ahead) for _ in range(n_taken)] == list(range(n_taken))
    assert len(threading.enumerate()) == len(before) + (n_taken > 0)
    if how == "close":
        ahead.close()
    elif how == "error":
        with pytest.raises(Planned):
            fail(ahead)
        ahead = None
    else:
        del ahead
    assert set(threading.enumerate()) == before
    assert closed_in == made_in
    assert len(made_in) == (n_taken > 0)
