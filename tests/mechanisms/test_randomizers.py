"""Randomisers of single values, the keys of devices, and shuffling."""

import copy
import itertools
import math
import os
import pickle
import re

import mpmath
import numpy as np
import pytest
from scipy import stats

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.jit_and_threads import sized
from skdpmf.mechanisms.device_reports import randomizers as local
from skdpmf.mechanisms.device_reports.randomizers import (
    COIN,
    CoordinateSampling,
    DeviceStreams,
    bernoulli_threshold,
    device_words,
    shuffle_note,
    shuffled_epsilon,
)
from skdpmf.privacy.sampler.cipher import stream_key
from skdpmf.privacy.sampler.streams import derived_key
from tests.privacy.test_cipher import twin_block

pytestmark = pytest.mark.usefixtures("plain_where_small")

EPSILONS = (1e-6, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def streams():
    return DeviceStreams(derived_key(22, "local tests"))


def keys_for(name, n, index=0):
    return streams().keys(name, index, n)


def test_a_key_is_given_out_once():
    once = streams()
    first = once.keys("gradient", 0, 10, first_slot=5)
    for first_slot, n in ((5, 10), (0, 6), (14, 1), (7, 2), (0, 100)):
        with pytest.raises(PrivacyParameterError, match="given out before for a slot"):
            once.keys("gradient", 0, n, first_slot=first_slot)
    # its neighbours, the next round and another report are other streams
    rest = [
        once.keys("gradient", 0, 5),
        once.keys("gradient", 0, 3, first_slot=15),
        once.keys("gradient", 1, 20),
        once.keys("means", 0, 20),
        DeviceStreams(derived_key(22, "another fit")).keys("gradient", 0, 20),
        DeviceStreams().keys("gradient", 0, 20),
        first,
    ]
    rows = np.concatenate(rest)
    assert len({row.tobytes() for row in rows}) == rows.shape[0] == 98
    # a function of the secret, the report and the slot
    np.testing.assert_array_equal(keys_for("gradient", 20)[5:15], first)


def test_keys_are_not_those_of_other_streams():
    key = derived_key(22, "local tests")
    given = {row.tobytes() for row in DeviceStreams(key).keys("release", 0, 30)}
    for purpose, name, index in itertools.product(
        ("release", "laplace", "slots", "sampler", "initial"), ("release", "device 0"), range(30)
    ):
        assert stream_key(key, purpose, name, index).tobytes() not in given


def test_streams_are_not_copied():
    secret = streams()
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled or copied"):
            duplicate(secret)
    assert repr(secret) == "DeviceStreams(key=<secret>)"


def test_a_forked_process_may_not_draw(monkeypatch):
    secret = streams()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="forked"):
        secret.keys("gradient", 0, 1)


@pytest.mark.parametrize("cells", [1, 2**40])  # in the plain form and in the compiled one
def test_words_are_blocks_of_their_own(cells, monkeypatch):
    monkeypatch.setattr(local, "MOST_LANES", 4)  # blocks of one device are computed apart
    keys = keys_for("words", 3)
    with sized(cells):
        words = device_words(keys, 19)
        assert device_words(keys, 0).shape == (3, 0)
    for row, key in enumerate(keys):
        blocks = [twin_block(key, [number, 0, 0, 3]) for number in range(3)]
        flat = [w[2 * i] | (w[2 * i + 1] << 32) for w in blocks for i in range(8)]
        assert words[row].tolist() == flat[:19]
    assert COIN >> 32 == 2  # and the noise has 0 and 1 in the last place of its blocks' position


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("q", [0.5, 0.1, 3e-3, 1e-7])
def test_threshold_is_rounded_down(epsilon, q):
    with mpmath.workdps(80):
        e, share = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(q)
        exact = mpmath.mpf(2) ** 64 * e * share / (1 - share + e * share)
        assert bernoulli_threshold(epsilon, q) == int(mpmath.floor(exact))


def acceptance(decide):
    """The number of 64-bit words for which ``decide`` is true: those below a threshold."""
    low, high = 0, 2**64  # decide(low - 1) is true, decide(high) is not
    while low < high:
        middle = (low + high) // 2
        if decide(middle):
            low = middle + 1
        else:
            high = middle
    return low


def with_words(monkeypatch, words):
    monkeypatch.setattr(local, "device_words", lambda _, n: np.array([words[-n:]], np.uint64))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_ratio_of_coordinate_sampling(monkeypatch, epsilon):
    randomiser, key = CoordinateSampling(epsilon, 7), keys_for("x", 1)

    def plus(word, x):
        with_words(monkeypatch, [0, word])
        return randomiser.report(key, [x])[0] == 1

    xs = [-1.0, -1 + 2.0**-53, -0.5, -1e-300, 0.0, 1e-9, 0.3, 1 - 2.0**-53, 1.0, 5.0, -9.0, np.inf]
    counts = [acceptance(lambda word, x=x: plus(word, x)) for x in xs]
    with mpmath.workdps(60):
        e = mpmath.exp(mpmath.mpf(epsilon))
        for low, high in ((min(counts), max(counts)), (2**64 - max(counts), 2**64 - min(counts))):
            ratio = mpmath.mpf(high) / low
            assert ratio <= e
            assert ratio >= e * (1 - 1e-15 * (1 + e))
    # the estimate is unbiased for the thresholds as they are
    for x, count in zip(xs[:9], counts[:9], strict=True):
        mean = randomiser.factor * (2 * count - 2**64) / 2.0**64
        assert mean == pytest.approx(x, rel=1e-13, abs=1e-12 / epsilon)
    e = math.exp(epsilon)
    assert randomiser.factor == pytest.approx((e + 1) / (e - 1), rel=1e-9)
    with_words(monkeypatch, [0, 2**63 - 1])
    assert randomiser.report(key, [np.nan]) == 1
    with_words(monkeypatch, [0, 2**63])
    assert randomiser.report(key, [np.nan]) == -1


# Statistical tests below: fixed keys, so they cannot flicker; each would raise a false alarm with
# the stated odds under a new key.


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_coordinate_sampling_is_unbiased(epsilon):
    n, D = 20_000, 9
    randomiser, keys = CoordinateSampling(epsilon, D), keys_for("coordinates", n)
    chosen = randomiser.coordinates(keys)
    assert stats.chisquare(np.bincount(chosen, minlength=D)).pvalue > 1e-4  # false alarm 1e-4
    truth = np.linspace(-1, 1, D)
    signs = randomiser.report(keys, truth[chosen])
    total = np.bincount(chosen, signs, minlength=D)
    errors = randomiser.estimate(total, n) - truth
    sd = np.sqrt((randomiser.variance - truth**2) / n)
    assert np.abs(errors / sd).max() < 4.9  # false alarm 9e-6
    assert ((errors / sd) ** 2).sum() == pytest.approx(D, abs=4.5 * math.sqrt(2 * D))
    assert randomiser.variance == D * randomiser.factor**2
    # the sign of no value knows the coordinate
    flat = randomiser.report(keys, np.zeros(n))
    table = [np.bincount(chosen[flat == sign], minlength=D) for sign in (-1, 1)]
    assert stats.chi2_contingency(table).pvalue > 1e-4
    np.testing.assert_array_equal(randomiser.coordinates(keys), chosen)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (20_000, (0.0731, 0.1669, 0.3923, 0.9594)),
        (100_000, (0.0319, 0.0753, 0.1906, 0.5378)),
        (1_000_000, (0.0099, 0.0238, 0.0632, 0.2016)),
    ],
)
def test_table_of_shuffled_epsilons(n, expected):
    for epsilon, value in zip((0.5, 1.0, 2.0, 4.0), expected, strict=True):
        got = shuffled_epsilon(epsilon, n, 1e-6)
        assert got == pytest.approx(value, abs=5.1e-5)
        with mpmath.workdps(40):
            e0, log_term = mpmath.mpf(epsilon), mpmath.log(4 / mpmath.mpf(1e-6))
            A = 8 * mpmath.sqrt(mpmath.exp(e0) * log_term / n) + 8 * mpmath.exp(e0) / n
            share = (1 - mpmath.exp(-e0)) / (1 + mpmath.exp(-e0 - mpmath.log(1 + A)))
            exact = mpmath.log(1 + A * share)
            assert exact <= got <= exact * (1 + 1e-11)
            # and no less than the form of the published theorem
            assert got >= mpmath.log(1 + A * mpmath.tanh(e0 / 2))


def test_shuffling_never_costs_and_needs_its_condition():
    delta = 1e-6
    for n in (1, 100, 300, 1000, 10_000, 10**6):
        limit = math.log(n / (16 * math.log(4 / delta)))
        for epsilon in np.geomspace(1e-3, 16, 60):
            got = shuffled_epsilon(epsilon, n, delta)
            assert got <= epsilon
            if epsilon > limit:
                assert got == epsilon
    assert shuffled_epsilon(0.5, 300, delta) == 0.5  # the formula alone says 0.58
    inside = math.log(10**6 / (16 * math.log(4 / delta)))
    assert shuffled_epsilon(inside * (1 - 1e-9), 10**6, delta) < 0.9 * inside
    assert shuffled_epsilon(inside * (1 + 1e-9), 10**6, delta) > inside
    # more devices and a larger delta hide more; without delta nothing does
    values = [shuffled_epsilon(1.0, n, delta) for n in np.geomspace(1000, 10**8, 20).astype(int)]
    assert all(a >= b for a, b in itertools.pairwise(values))
    assert shuffled_epsilon(1.0, 10**6, 1e-4) < shuffled_epsilon(1.0, 10**6, 1e-9) < 1.0
    assert shuffled_epsilon(1.0, 10**6, 0.0) == 1.0
    assert shuffled_epsilon(0.0, 10**6, delta) == 0.0


def told(note):
    """Epsilon and delta of a note."""
    epsilon, delta = re.search(r"central epsilon = (\S+), delta = (\S+), if", note).groups()
    return float(epsilon), float(delta)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("n", [1, 500, 100_000, 10**7])
def test_a_note_tells_the_central_epsilon_rounded_up(n, epsilon):
    for delta in (0.0, 1e-9, 1e-6):
        note = shuffle_note(epsilon, n, delta)
        central = shuffled_epsilon(epsilon, n, delta)
        assert central * (1 - 1e-9) <= told(note)[0] <= 1.0011 * central
        assert told(note)[1] == delta
        assert f"the {n} reports are all honest" in note
        assert "rounds" not in note
        assert note.endswith("This is no part of the guarantee above.")
        assert shuffle_note(epsilon, n, delta, n_reports=1) == note


@pytest.mark.parametrize("count", [2, 5, 7])
def test_a_note_adds_up_the_shuffles_of_a_user(count):
    """Each has its part of delta: count times the epsilon at delta / count, rounded up."""
    n, delta = 100_000, 1e-6
    note = shuffle_note(0.5, n, delta, count)
    with mpmath.workdps(40):
        exact = count * mpmath.mpf(shuffled_epsilon(0.5, n, delta / count))
    assert exact * (1 - 1e-9) <= told(note)[0] <= 1.0011 * exact
    # planted: the whole delta for each of them
    assert told(note)[0] > 1.01 * count * shuffled_epsilon(0.5, n, delta)
    assert told(note)[1] == delta
    assert f"the {n} reports of each of {count} rounds are all honest" in note
    # few reports hide nothing, and the note never claims more than the local guarantee gives
    assert told(shuffle_note(0.5, 10, delta, count))[0] == pytest.approx(0.5 * count, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoordinateSampling(1e-17, 5), r"epsilon=1e-17 must be at least 2\*\*-50"),
        (lambda: CoordinateSampling(16.5, 5), "epsilon=16.5 must be"),
        (lambda: shuffled_epsilon(-1.0, 10, 0.1), "epsilon=-1.0 must be"),
        (lambda: shuffled_epsilon(1.0, 10, 1.0), r"delta=1.0 must be in \[0, 1\)"),
        (lambda: DeviceStreams("secret"), "type of key='str'"),
    ],
)
def test_errors(make, message):
    with pytest.raises(PrivacyParameterError, match=message):
        make()
