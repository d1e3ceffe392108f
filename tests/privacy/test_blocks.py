"""Releases in blocks: the whole release's values, each place once, and its record."""

import copy
import hashlib
import itertools
import math
import os
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.sampler.laws import CHUNK, _row_of
from skdpmf.privacy.sampler.noise import noise_source
from skdpmf.privacy.sampler.streams import derived_key

COMMON = {"name": "x", "sensitivity": 2.0, "noise_multiplier": 1.5, "bound": 1000.0}
KINDS = [
    ((1500,), {}),
    ((30, 7, 5), {}),
    ((2, 820), {"layout": "packed"}),
    ((300, 6), {"layout": "packed"}),
    ((1500,), {"noise": "laplace"}),
]


def source():
    return noise_source(derived_key(13, "block tests"))


def statistic(shape):
    return np.random.RandomState(0).uniform(-900, 900, shape)


def ranges(cuts, size):
    ends = [0, *sorted(c for c in set(cuts) if 0 < c < size), size]
    return list(itertools.pairwise(ends))


# --- the same values ---------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "kind"), KINDS)
@given(st.lists(st.integers(1, 1600), max_size=8), st.randoms(use_true_random=False))
def test_blocks_give_the_whole_release_however_it_is_cut(shape, kind, cuts, random):
    exact = statistic(shape)
    whole = source().release(exact, **COMMON, **kind).reshape(-1)
    parts = ranges(cuts, exact.size)
    random.shuffle(parts)
    out = np.full(exact.size, np.nan)
    with source().blocks(shape=shape, **COMMON, **kind) as blocks:
        for start, stop in parts:
            out[start:stop] = blocks.release(start, exact.reshape(-1)[start:stop])
    np.testing.assert_array_equal(out, whole)


def test_threads_share_a_release():
    shape = (2, 500 * 501 // 2)
    exact = statistic(shape)
    whole = source().release(exact, layout="packed", **COMMON).reshape(-1)
    out = np.empty(exact.size)
    with source().blocks(shape=shape, layout="packed", **COMMON) as blocks:

        def work(part):
            out[slice(*part)] = blocks.release(part[0], exact.reshape(-1)[slice(*part)])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, ranges(range(1000, exact.size, 7919), exact.size)))
    np.testing.assert_array_equal(out, whole)


@pytest.mark.usefixtures("form")
def test_releases_are_those_of_before():
    """Seeded releases repeat from version to version: digests from before blocks existed."""
    rng, s = np.random.RandomState(0), noise_source(derived_key(3, "golden"))
    setting = {"sensitivity": 2.0, "noise_multiplier": 1.5, "bound": 1000.0}
    coarse = {"sensitivity": 0.1, "noise_multiplier": 3.0, "bound": 4e8}
    digests = []
    for name, shape, options in (
        ("a", (700, 3), setting),
        ("b", (70, 15), {**setting, "layout": "packed"}),
        ("c", (200_000,), {**setting, "index": 4, "n_jobs": 2}),
        ("d", (2, 500 * 501 // 2), {**setting, "layout": "packed", "n_jobs": 2}),
        ("e", (30, 6), {**coarse, "layout": "packed"}),
    ):
        out = s.release(rng.uniform(-900, 900, shape), name=name, **options)
        digests.append(hashlib.sha256(out.tobytes()).hexdigest()[:16])
    assert digests == [
        "90b158971e1b4a72",
        "cc903fe0a350bdae",
        "b5af8c4ebc86f651",
        "77318ae4a000539a",
        "18b2ad28bc9ad873",
    ]


# --- large releases ----------------------------------------------------------------------


def test_rows_of_a_triangle_far_out():
    for row in (*range(50), 26_743, 10**6, 2**31 - 1, 3 * 10**9):
        first, last = row * (row + 1) // 2, row * (row + 3) // 2
        for place in (first, (first + last) // 2, last):
            assert _row_of.function(np.int64(place)) == row
        assert _row_of.function(np.int64(last + 1)) == row + 1


@pytest.mark.usefixtures("form")
def test_a_large_packed_stack_has_the_right_units_and_takes_no_memory():
    k = 26_744
    length = k * (k + 1) // 2
    grid = {"sensitivity": 1.0, "noise_multiplier": 2.0, "noise": "gaussian", "name": "x"}
    shape = (2, length)
    starts = [m * length + r * (r + 3) // 2 - 5 for m in (0, 1) for r in (6, 300, k - 2)]
    starts += [0, length - 5, 2 * length - 11]
    source().release(np.zeros(1), layout="packed", bound=1.0, **grid)  # compiled before measuring
    tracemalloc.start()
    with (
        source().blocks(
            shape=shape, layout="packed", bound=1000.0 / math.sqrt(2), **grid
        ) as packed,
        source().blocks(shape=shape, layout="full", bound=1000.0, **grid) as full,
    ):
        outputs = [(packed.release(s, np.zeros(11)), full.release(s, np.zeros(11))) for s in starts]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20  # the whole would take 5.7 GB
    for start, (in_triangles, plain) in zip(starts, outputs, strict=True):
        places = [place % length for place in range(start, start + 11)]
        diagonal = [math.isqrt(8 * (p + 1) + 1) ** 2 == 8 * (p + 1) + 1 for p in places]
        np.testing.assert_allclose(
            in_triangles / plain, np.where(diagonal, 1.0, np.sqrt(0.5)), rtol=1e-14
        )
        assert np.unique(plain).size == 11


# --- each place once ---------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(-3, 45), st.integers(0, 12)), max_size=25))
def test_a_place_is_released_once(parts):
    made = set()
    with source().blocks(shape=(5, 8), **COMMON) as blocks:
        for start, length in parts:
            places = set(range(start, start + length))
            if start >= 0 and start + length <= 40 and not places & made:
                assert blocks.release(start, np.zeros(length)).shape == (length,)
                made |= places
            else:
                with pytest.raises(PrivacyParameterError, match="places="):
                    blocks.release(start, np.zeros(length))


@pytest.mark.parametrize("whole", [False, True])
def test_threads_cannot_release_one_thing_twice(whole):
    shared = source()
    with shared.blocks(shape=(2000,), **COMMON) as blocks, ThreadPoolExecutor(6) as pool:

        def work(start):
            with suppress(PrivacyParameterError):
                if whole:
                    return shared.release(np.zeros(10), index=1, **COMMON)
                return blocks.release(start, np.zeros(1000))

        outcomes = list(pool.map(work, (0, 500, 999, 1, 700, 0)))
    assert sum(outcome is not None for outcome in outcomes) == 1


@pytest.mark.parametrize(
    ("start", "values", "message"),
    [
        (-1, np.zeros(2), r"places=\(-1, 1\) must be within the 6 values of 'x'"),
        (5, np.zeros(2), r"places=\(5, 7\) must be within"),
        (7, np.zeros(0), r"places=\(7, 7\) must be within"),
        (0, np.zeros((2, 3)), r"values of shape=\(2, 3\) must be one-dimensional"),
        (0, 1.0, r"values of shape=\(\) must be one-dimensional"),
        (2, np.zeros(2), "each place has one noise"),
        (1, np.zeros(2), "each place has one noise"),
        (3, np.zeros(1), "each place has one noise"),
    ],
)
def test_bad_blocks(start, values, message):
    with source().blocks(shape=(2, 3), **COMMON) as blocks:
        blocks.release(2, np.zeros(2))
        with pytest.raises(PrivacyParameterError, match=message):
            blocks.release(start, values)
        assert blocks.release(0, np.zeros(2)).size == 2  # a refused call has claimed nothing
        assert blocks.release(6, np.zeros(0)).size == 0
    with pytest.raises(PrivacyParameterError, match="'closed' must be open"):
        blocks.release(4, np.zeros(1))
    blocks.close()  # a second time does nothing


def test_a_block_release_stays_where_it_is(monkeypatch):
    blocks = source().blocks(shape=(3,), **COMMON)
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            leave(blocks)
    assert repr(blocks) == "BlockRelease(name='x', index=0)"
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="fork"):
        blocks.release(0, np.zeros(3))


# --- records and replay ------------------------------------------------------------------


def in_blocks(exact, parts, **kind):
    """Release parts of a statistic from threads; return them in order."""
    flat = exact.reshape(-1)
    with (
        source().blocks(shape=exact.shape, **COMMON, **kind) as blocks,
        ThreadPoolExecutor(2) as pool,
    ):
        return list(pool.map(lambda part: blocks.release(part[0], flat[slice(*part)]), parts))


@pytest.mark.parametrize(("shape", "kind"), KINDS)
def test_a_record_is_that_of_the_whole(shape, kind):
    exact = statistic(shape)
    with record_releases() as records:
        source().release(exact, **COMMON, **kind)
        in_blocks(exact, ranges([100, CHUNK, 1000], exact.size), **kind)
    whole, blocks = map(vars, records)
    assert list(whole) == list(blocks)
    for field, value in whole.items():
        np.testing.assert_array_equal(value, blocks[field])
        assert type(value) is type(blocks[field])
    assert records[0].distance(records[1]) == 0.0


def test_places_left_out_are_zero_in_the_record():
    exact = statistic((50,))
    with record_releases() as records:
        first, second = in_blocks(exact, [(3, 10), (30, 50)])
    (record,) = records
    left_out = np.r_[0:3, 10:30]
    assert not record.statistic[left_out].any()
    assert not record.output[left_out].any()
    np.testing.assert_array_equal(record.output[3:10], first)
    np.testing.assert_array_equal(record.output[30:], second)
    np.testing.assert_array_equal(record.statistic[30:], exact[30:])


@pytest.mark.parametrize(("shape", "kind"), KINDS)
def test_replay_returns_the_recorded_blocks(shape, kind):
    exact = statistic(shape)
    parts = ranges([100, 900], exact.size)[:2]
    with record_releases() as first:
        recorded = in_blocks(exact, parts, **kind)
    with record_releases(replay=first) as second:
        replayed = in_blocks(exact + 1.0, parts, **kind)
    for a, b in zip(recorded, replayed, strict=True):
        np.testing.assert_array_equal(a, b)
    moved = sum(stop - start for start, stop in parts)
    difference = (second[0].statistic - first[0].statistic).reshape(-1)
    assert (np.count_nonzero(difference), first[0].output.shape) == (moved, shape)
    if kind.get("noise") == "laplace":
        assert second[0].distance(first[0]) == pytest.approx(moved)
    replayed[0][:] = np.nan  # a copy: the recording does not follow
    assert np.isfinite(first[0].output).all()


def test_a_failing_block_ends_the_release_and_records_what_was_made():
    with record_releases() as records:
        try:
            with source().blocks(shape=(4,), **COMMON) as blocks:
                made = blocks.release(0, np.ones(2))
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    np.testing.assert_array_equal(records[0].output[:2], made)
    assert records[0].statistic.tolist() == [1.0, 1.0, 0.0, 0.0]
