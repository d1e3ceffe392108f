"""The rounded Laplace sampler: its table, its exact law against mpmath, and releases with it."""

import bisect
import functools
import itertools

import mpmath
import numpy as np
import pytest
from scipy import stats

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.recording import noise_source, record_releases
from skdpmf.privacy.sampler.laws import (
    CHUNK,
    LANES,
    LAPLACE,
    LAPLACE_ETA,
    TAIL_CELL,
    _laplace_cumulative_table,
    cumulative_table,
    laplace_tables,
    rounded_draws,
    scratch,
    staircase_tables,
)
from skdpmf.privacy.sampler.noise import (
    calibrate_laplace_grid,
    derived_key,
    fresh_key,
    noise_parameters,
    stream_key,
)
from tests.privacy.test_cipher import twin_block
from tests.privacy.test_sampler_laws import (
    fine_word,
    patient,
    rejection_threshold,
    signed_integer,
)

TABLE = _laplace_cumulative_table()
KEY = stream_key(derived_key(12, "laplace tests"), "test", "laplace", 0)
COMMON = {"sensitivity": 2.0, "noise_multiplier": 1.5, "bound": 1000.0, "noise": "laplace"}


def recorded_source(key=None):
    """The noise source of a fit that begins now."""
    return noise_source(fresh_key() if key is None else key)


def source(*parts):
    return recorded_source(derived_key(12, "laplace tests", *parts))


def draw(size, bits, key=KEY, start=0, tables=None):
    out = np.zeros(start + size, np.int64)
    with np.errstate(over="ignore"):
        rounded_draws(
            *scratch(key), bits, *(tables or laplace_tables()), LAPLACE, start, start + size, out
        )  # fmt: skip
    return out[start:]


# --- the table and the decision ----------------------------------------------------------


def test_table_is_the_envelope_and_the_tail_rounded_down_to_128_bits():
    with mpmath.workdps(90):
        weights = [mpmath.exp(-mpmath.mpf(c) / 256) / 256 for c in range(TAIL_CELL)]
        sums = [mpmath.mpf(0), *itertools.accumulate(weights)]
        total = sums[-1] + mpmath.exp(-16)
        expected = [int(mpmath.floor(s * 2**128 / total)) for s in sums]
    assert expected == TABLE
    high, low, _ = laplace_tables()
    assert [(int(h) << 64) | int(v) for h, v in zip(high, low, strict=True)] == expected


def ideal_rejection(place):
    """1 - exp(-r), to 60 digits."""
    with mpmath.workdps(60):
        return -mpmath.expm1(-(mpmath.mpf(place) + mpmath.mpf(1) / 2) / 2**52)


def test_rejection_probability_is_right_to_2_to_minus_59():
    rng = np.random.RandomState(1)
    places = [0, 1, 2**43, 2**44 - 1, *rng.randint(2**44, size=2000)]
    worst = 0.0
    for cell, place in itertools.product((0, TAIL_CELL - 1), map(int, places)):
        threshold = int(rejection_threshold(cell, fine_word(place), LAPLACE))
        with mpmath.workdps(60):
            error = mpmath.mpf(threshold) / 2**64 - ideal_rejection(place)
        worst = max(worst, abs(float(error)))
    assert worst < 2.0**-59.4


# --- the exact law -----------------------------------------------------------------------


def law_of_table(table, bits, blocks):
    """Q(0), Q(1), ... for ``blocks`` times 16 scales, from a table of integers, and theta.

    As for the normal law, the sum over places is taken as an integral (they differ by < 2^-108,
    relative), and the acceptance probability as exact: it is right to < 2^-59.4, relative.
    """
    per_cell = 2 ** (bits + 1 - 8)  # half integers in a cell
    ends = [*table, 2**128]
    width = mpmath.mpf(1) / 2 ** (bits + 1)
    falls = [mpmath.exp(-m * width) for m in range(per_cell + 1)]
    areas = [256 * (falls[m] - falls[m + 1]) for m in range(per_cell)]
    halves = [(ends[c + 1] - ends[c]) * area for c in range(TAIL_CELL) for area in areas]
    tail = ends[-1] - ends[-2]
    norm = sum(halves) + tail
    halves = [mass * (tail / norm) ** k / norm for k in range(blocks) for mass in halves]
    q = [halves[0]]
    q += [(halves[2 * n - 1] + halves[2 * n]) / 2 for n in range(1, len(halves) // 2)]
    return q, mpmath.log(tail / norm) + 16


def rounded_law(bits, size, scale=1):
    """P(0), P(1), ... of round(2^bits scale L)."""
    t = mpmath.mpf(2) ** -bits / scale
    return [-mpmath.expm1(-t / 2)] + [
        mpmath.exp(-n * t) * mpmath.sinh(t / 2) for n in range(1, size)
    ]


def distance(q, p):
    return max(abs(mpmath.log(a / b)) for a, b in zip(q, p, strict=True))


@pytest.mark.parametrize("bits", [7, 8])
def test_exact_law_is_within_eta_of_a_rounded_laplace(bits):
    unknown = 4 * 2.0**-59.3  # what the code's acceptance probability may add
    with mpmath.workdps(70):
        q, theta = law_of_table(TABLE, bits, blocks=2)
        p = rounded_law(bits, len(q), scale=16 / (16 - theta))
        worst = distance(q, p)
        assert worst + unknown < LAPLACE_ETA
        assert worst > mpmath.mpf(2) ** -140  # it is the law of this table, not the ideal
        assert abs(theta) < 2.0**-90
        # what privacy needs: neighbouring probabilities differ by exp(2^-bits), no more, also at 0
        ratios = [mpmath.log(a / b) for a, b in itertools.pairwise(q)]
        assert max(ratios) < 2.0**-bits + LAPLACE_ETA
        assert min(ratios[1:]) > 2.0**-bits - LAPLACE_ETA
        assert ratios[0] < 0.76 * 2.0**-bits
        # planted bugs of the table: the tail weighs as a cell does; 64 bits only; no tail at all
        light = cumulative_table(exp_weights(tail=False))
        _, theta = law_of_table(light, bits, blocks=1)
        assert abs(theta) > 5.0
        coarse = [value >> 64 << 64 for value in TABLE]
        q_coarse, _ = law_of_table(coarse, bits, blocks=1)
        assert distance(q_coarse, rounded_law(bits, len(q_coarse))) > 2.0**-36
        # and of the rounding: zero counted from both signs
        assert abs(mpmath.log(2 * q[0] / p[0])) > 0.6


def exp_weights(tail):
    with mpmath.workdps(90):
        weights = [int(mpmath.exp(-mpmath.mpf(c) / 256) * 2**300) for c in range(TAIL_CELL + 1)]
    weights[-1] *= 256 if tail else 1
    return weights


def twin_value(key, bits, index, table=TABLE):
    """Value ``index`` with all 128 + 64 bits always drawn, on Python integers."""
    chunk, value = divmod(index, CHUNK)
    quarter, lane = divmod(value, LANES)
    number = chunk * LANES + lane
    block = twin_block(key, [number & 0xFFFFFFFF, number >> 32, 0, 0])
    w = block[4 * quarter : 4 * quarter + 4]
    return twin_of_words(key, bits, index, (w[1] << 32) | w[0], (w[3] << 32) | w[2], table)


def twin_of_words(key, bits, index, coarse, fine, table):
    attempt = far = 0
    while True:
        extra = twin_block(key, [index & 0xFFFFFFFF, index >> 32, attempt, 1])
        if attempt:
            coarse, fine = (extra[5] << 32) | extra[4], (extra[7] << 32) | extra[6]
        low = (extra[1] << 32) | extra[0]
        cell = bisect.bisect_right(table, (coarse << 64) | low) - 1
        u = ((fine % 2**19) << 45) | (((extra[3] << 32) | extra[2]) % 2**45)
        place = (fine >> 19) % 2**44
        if cell == TAIL_CELL:
            far += 16 << bits
        elif u >= ideal_rejection(place) * 2**64:  # differs from the code with odds 2^-59
            magnitude = far + ((2 * ((cell << 44) + place) + 1 + 2 ** (52 - bits)) >> (53 - bits))
            return -magnitude if fine >> 63 else magnitude
        attempt += 1


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("bits", [10, 36])
def test_draws_equal_the_twins(bits):
    size = 2 * CHUNK // 3
    assert draw(size, bits).tolist() == [twin_value(KEY, bits, i) for i in range(size)]


@pytest.mark.usefixtures("form")
def test_rejected_values_equal_the_twins():
    # the tightest test of a second attempt: values whose first one fails, 0.2 % of them
    first = functools.lru_cache(maxsize=4 * LANES)(
        lambda number: twin_block(KEY, [number, 0, 0, 0])
    )
    rejected = []
    for index in range(6000):
        chunk, value = divmod(index, CHUNK)
        w = first(chunk * LANES + value % LANES)[4 * (value // LANES) :]
        fine = (w[3] << 32) | w[2]
        if (fine % 2**19) / 2**19 < ideal_rejection((fine >> 19) % 2**44) - 2.0**-19:
            rejected.append(index)
    assert 3 <= len(rejected) <= 30
    out = draw(6000, 36)
    assert all(out[index] == twin_value(KEY, 36, index) for index in rejected)


# --- the tail ----------------------------------------------------------------------------


def test_a_tail_adds_16_and_draws_anew(form):
    def drawn(index, word, fine):
        return patient(form, KEY, index, np.uint64(word), fine, 20, laplace_tables(), LAPLACE)

    top = 2**64 - 1
    assert TABLE[-1] >> 64 < top  # so that this word surely names the tail
    for index in range(60):
        fine = fine_word(2**43, sign=index % 2, leading=2**19 - 1)
        got = drawn(index, top, fine)
        assert abs(got) >= 16 << 20
        assert got == twin_of_words(KEY, 20, index, top, int(fine), TABLE)
    # on the word where the tail begins the low words decide; below it is an ordinary cell
    word = TABLE[-1] >> 64
    fine = fine_word(77, leading=2**19 - 1)
    ordinary = signed_integer(TAIL_CELL - 1, fine, 20)
    assert ordinary < 16 << 20
    seen = set()
    for index in range(60):
        got = drawn(index, word, fine)
        assert got == twin_of_words(KEY, 20, index, word, int(fine), TABLE)
        seen.add(got == ordinary)
    assert seen == {True, False}
    assert drawn(3, word - 1, fine) == ordinary


def heavy_table(odds):
    """Table whose tail is ``odds`` times as probable as all cells."""
    weights = exp_weights(tail=False)
    weights[-1] = int(odds * sum(weights[:-1]))
    return cumulative_table(weights)


def test_draws_with_frequent_tails():
    # real tails have probability 1e-7; here a third of all outcomes
    table = heavy_table(0.5)
    tables, bits, n = staircase_tables(table), 20, 200_000
    out = draw(n, bits, tables=tables)
    assert out[:100].tolist() == [twin_value(KEY, bits, i, table) for i in range(100)]
    tails, rest = np.divmod(np.abs(out), 16 << bits)
    counts = np.bincount(np.minimum(tails, 9), minlength=10)
    p = 1 / 3 / (1 / 3 + 2 / 3 * 0.99805)  # a rejected place is drawn again
    law = [(1 - p) * p**k for k in range(9)]
    assert stats.chisquare(counts, n * np.array([*law, 1 - sum(law)])).pvalue > 1e-4
    # what is drawn anew has the law of the first draw, and is independent of the number of tails
    assert stats.kstest(rest[tails > 0] / 2.0**bits, "expon").pvalue > 1e-4
    assert abs(np.mean(np.sign(out))) * np.sqrt(n) < 4.5
    assert abs(np.corrcoef(tails, rest)[0, 1]) * np.sqrt(n) < 4.5


@pytest.mark.usefixtures("form")
def test_magnitudes_stop_at_2_to_60():
    tables = staircase_tables(heavy_table(1000))
    out = draw(CHUNK, 51, tables=tables)  # 2^60 is 32 tails
    assert (np.abs(out) < 2**60 + 2**55).all()
    assert (np.abs(out) >= 2**60).mean() > 0.9  # 0.97 of them have that many
    assert abs(np.sign(out).sum()) < 4.5 * 16


# Statistical tests below: fixed keys, so they cannot flicker; each would raise a false alarm with
# the stated odds under a new key.


def law_p_value(draws, bits):
    """P-value of a chi-squared test of integers against the rounded Laplace law."""
    n = np.arange(-6 * 2**bits, 6 * 2**bits + 1)
    t = 2.0**-bits
    expected = np.exp(-np.abs(n) * t) * np.sinh(t / 2)
    expected[n == 0] = -np.expm1(-t / 2)
    inside = draws[np.abs(draws) <= n[-1]]
    counts = np.append(np.bincount(inside - n[0], minlength=n.size), draws.size - inside.size)
    means = np.append(expected, 1 - expected.sum()) * draws.size
    return stats.chisquare(counts, means).pvalue


def test_law_of_draws_integer_by_integer():
    draws = draw(2_000_000, 7)
    assert law_p_value(draws, 7) > 1e-4  # false alarm 1e-4
    # the test sees a scale off by 1 %, a zero lost and a zero counted from both signs
    assert law_p_value(np.rint(draws * 0.99).astype(np.int64), 7) < 1e-9
    assert law_p_value(draws[draws != 0], 7) < 1e-9
    assert law_p_value(np.append(draws, draws[draws == 0]), 7) < 1e-9


@pytest.mark.parametrize("bits", [10, 36, 40])
def test_draws_are_standard_laplace(bits):
    x = draw(300_000, bits) / 2.0**bits
    n = x.size
    if bits > 20:  # else the steps of the law are what the test sees
        assert stats.kstest(x, "laplace").pvalue > 1e-4  # false alarm 1e-4
    # moments, |.| < 4.5 sd each: false alarm 7e-6 each; E|x|^k = k!
    for order, mean, variance in ((1, 0, 2), (2, 2, 20), (3, 0, 720), (4, 24, 39744)):
        assert abs(np.mean(x**order) - mean) < 4.5 * np.sqrt(variance / n) + 4.0**-bits * 20
    assert abs(np.abs(x).mean() - 1) < 4.5 / np.sqrt(n) + 4.0**-bits
    assert abs(np.mean(x > 0) - np.mean(x < 0)) < 4.5 / np.sqrt(n)
    # sign and magnitude are independent
    assert abs(np.mean(np.sign(x) * (np.abs(x) - 1))) < 4.5 / np.sqrt(n)


@pytest.mark.usefixtures("form")
def test_any_range_gives_the_same_values():
    whole = draw(3 * CHUNK + 17, 36)
    for cuts in ([0, 1, CHUNK - 1, CHUNK, whole.size], [0, 5, 300, 301, 2 * CHUNK + 3, whole.size]):
        parts = [draw(b - a, 36, start=a) for a, b in itertools.pairwise(cuts)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


# --- releases ----------------------------------------------------------------------------


def test_release_has_the_declared_law_on_the_declared_grid():
    n = 60_000
    exact = np.random.RandomState(0).randint(-900, 900, n).astype(float)
    with record_releases() as records:
        out = source().release(exact, name="sums", **COMMON)
    scale, units, bits = noise_parameters((n,), **COMMON)
    assert 3.0 <= records[0].noise_scale == scale <= 3.001
    assert records[0].noise == "laplace"
    assert units.shape == (1,)
    assert scale == units[0] * 2.0**bits
    assert (units[0] * np.rint(out / units[0]) == out).all()
    x = (out - exact) / 3.0
    assert stats.kstest(x, "laplace").pvalue > 1e-5
    assert abs(np.mean(np.abs(x)) - 1) * np.sqrt(n) < 4.5
    # the noise is the stream's, added to the rounded statistic
    words = stream_key(derived_key(12, "laplace tests"), "laplace", "sums", 0)
    np.testing.assert_array_equal(units * (np.rint(exact / units) + draw(n, bits, words)), out)


def test_streams_of_the_two_laws_are_unrelated():
    n, zeros = 60_000, np.zeros(60_000)
    gaussian = {**COMMON, "noise": "gaussian"}
    outputs = [
        source().release(zeros, name="sums", **COMMON) / 3.0,
        source().release(zeros, name="sums", **gaussian) / 3.0,
        source().release(zeros, name="sums", index=1, **COMMON) / 3.0,
        source().release(zeros, name="sums2", **COMMON) / 3.0,
    ]
    for a, b in itertools.combinations(outputs, 2):  # false alarm 7e-6 each
        assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(n) < 4.5
        assert abs(np.corrcoef(stats.rankdata(abs(a)), abs(b))[0, 1]) * np.sqrt(n) < 4.5
        assert abs(np.mean(np.sign(a) * np.sign(b))) * np.sqrt(n) < 4.5
    once = source()
    once.release(zeros, name="sums", **COMMON)
    with pytest.raises(PrivacyParameterError, match="released before"):
        once.release(zeros, name="sums", **gaussian)


def test_surcharge_solves_its_equation():
    for size, z, bound in [(1, 0.3, 1.0), (10**5, 50.0, 1e7), (7 * 10**8, 5.0, 1e3)]:
        bits, scale = calibrate_laplace_grid(size, sensitivity=2.0, noise_multiplier=z, bound=bound)
        unit = scale * 2.0**-bits
        needed = z * (2.0 + 2 * unit * size)
        assert needed <= scale <= needed * (1 + 1e-11)
        assert bound / unit <= 2.0**51
        assert scale > z * 2.0 * (1 + 2.0**-41)  # more than the sampler's own scale may be off
    with pytest.raises(PrivacyParameterError, match="release fewer values at a time"):
        calibrate_laplace_grid(10**9, sensitivity=1, noise_multiplier=1e3, bound=1.0)
    with pytest.raises(PrivacyParameterError, match="state its l1 bound"):
        calibrate_laplace_grid(10, sensitivity=0.0, noise_multiplier=1.0, bound=1.0)


def test_a_recorded_distance_is_l1():
    with record_releases() as records:
        source().release([3.0, -4.0, 0.0], name="a", **COMMON)
        source().release(np.zeros(3), name="a", **COMMON)
    assert records[0].distance(records[1]) == 7.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "packed"}, "layout='packed' must be 'full' for noise='laplace'"),
        ({"noise": "Laplace"}, "noise='Laplace' must be 'gaussian' or 'laplace'"),
        ({"noise": None}, "noise=None must be"),
        ({"sensitivity": -1.0}, "state its l1 bound"),
    ],
)
def test_errors(change, message):
    s = source()
    with pytest.raises(PrivacyParameterError, match=message):
        s.release(np.zeros(3), name="x", **{**COMMON, **change})
    s.release(np.zeros(3), name="x", **COMMON)  # the refused call used up nothing


def test_infinite_and_zero_noise():
    exact = np.array([0.1, -3.0])
    out = source().release(exact, name="x", **{**COMMON, "noise_multiplier": 0.0})
    np.testing.assert_array_equal(out, exact)
    with pytest.raises(PrivacyParameterError, match="noise_multiplier=inf"):
        source().release(exact, name="x", **{**COMMON, "noise_multiplier": np.inf})
