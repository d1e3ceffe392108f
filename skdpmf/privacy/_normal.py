r"""Exact sampler of the rounded normal law on the integers.

For a public integer ``bits`` = b the law is that of round(2^b N) with N standard normal:

.. math:: P(n) = \Phi((n + 1/2) / 2^b) - \Phi((n - 1/2) / 2^b).

**Method.** Rejection from a staircase. The half line [0, 13) is cut into 3,328 cells of width
h = 2^-8; cell c starts at a = c h and is chosen with probability q_c proportional to
exp(-a^2/2), by comparing 128 random bits with a table of cumulative probabilities (the low 64 of
them are only fetched when the high 64 tie). A uniform place r = (f + 1/2) 2^-52 in the cell, f of
44 bits, is kept with probability p = exp(-(a r + r^2/2)), else everything is drawn again; 64 bits
decide (again 45 of them only on a tie of the first 19). The kept x = a + r has the density of
|N|, so with a random sign the integer nearest to x 2^b, floor(x 2^b + 1/2), has the law above:
zero gets the half cell [0, 1/2) from both signs and is not counted twice.

**Theorem.** Take the bits as uniform. Let Q be the law that the code draws from, 7 <= b <= 51,
and B the integers |n| >= 9.75 * 2^b. Then |ln(Q(n)/P(n))| <= SAMPLER_ETA = 2^-50 for every n
outside B, and P(B), Q(B) <= SAMPLER_TAU = 2^-72. Q is exactly symmetric.

*Proof.* The width of a half integer, 2^-(b+1), divides h and is a multiple of the width
w = 2^-52 of a place, so a place belongs to one n: Q(n) is a sum over its places of
q'_c 2^-44 p'(c, f) / A, with A the sum over all places. Up to the factor A:

1. q': a cumulative entry is rounded down from 2^-320 fixed point, so |q'_c - q_c| < 1.01 * 2^-128.
   Outside B, a < 9.75 and q_c = exp(-a^2/2) / 321.4 >= 2^-76.9: relative error < 2^-51.08.
2. p': the place is kept iff U >= T for a 64-bit U and T = floor(2^64 p''), p'' the double for
   1 - p. y = a r + r^2/2 <= 0.0509 has a relative error <= 2.01 * 2^-53 (one sum, one product;
   r, a exact); the polynomial of degree 10 in y that stands for 1 - exp(-y) adds <= 3 * 2^-53
   relative by its rounding and 2^-69 by its truncation; T adds 2^-64. With
   1 - p <= 0.0496 that is < 2^-55 absolute, and p > 0.95.
3. The midpoint rule over a place instead of the integral: relative (x^2 + 1) w^2 / 24 < 2^-100.
4. A: sum |q' - q| < 3,328 * 1.01 * 2^-128, and 2, 3 on average, and the mass beyond 13, 2^-126:
   relative < 2^-54.9.

Together < 2^-51.08 + 2^-54.9 + 2^-54.9 + 2^-99 < 2^-50. For B: P(B) <= 2 Phi(-9.75 + 2^-8)
< 2^-72.1, and Q(B) differs from it by less than P(B) 2^-54 + 3,328 * 2^-126. QED.

**Addressing.** Value i of a stream reads 128 bits of its own from the main blocks; ties and
second attempts (0.2 % of the values) read blocks at position (i, attempt), of which no other value
knows. So value i is a function of (key, bits, i), whatever range a call computes.

Source: rejection with a staircase hat: L. Devroye, Non-Uniform Random Variate Generation (1986),
ch. II.3; random bits compared only as far as needed: C. Karney, "Sampling exactly from the normal
distribution", ACM TOMS 42 (2016).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from skdpmf.privacy._chacha import LANES, chacha_block, chacha_lanes, compiled, join_words

__all__ = [
    "CHUNK",
    "SAMPLER_ETA",
    "SAMPLER_TAU",
    "add_grid_noise",
    "normal_tables",
    "rounded_normals",
]

SAMPLER_ETA = 2.0**-50
SAMPLER_TAU = 2.0**-72

CHUNK = 4 * LANES  # values whose main bits come from one batch of blocks

_N_CELLS = 13 * 256
_PRECISION = 320  # bits of the fixed point in which the table is computed
_GUIDE_BITS = 12
_GUIDE_SHIFT = np.uint64(64 - _GUIDE_BITS)

# A word of fine bits: 1 sign, 44 place, 19 leading bits of the decision.
_SIGN_SHIFT, _PLACE_SHIFT, _LOW_BITS = np.uint64(63), np.uint64(19), np.uint64(45)
_PLACE_MASK = np.uint64(2**44 - 1)
_TOP_MASK = np.uint64(2**19 - 1)
_LOW_MASK = np.uint64(2**45 - 1)
_MASK32 = np.int64(0xFFFFFFFF)

_GRID_LIMIT = 2.0**52
_HASTY, _PATIENT = 0, 1  # the last position word: main blocks, blocks of one value


def _exp_minus(power: int) -> int:
    """Return exp(-2**-power) in fixed point, within a few units of its last place."""
    total = term = 1 << _PRECISION
    divisor = 0
    while term:
        divisor += 1
        term = (abs(term) >> power) // divisor
        total += -term if divisor % 2 else term
    return total


def _cumulative_table() -> list[int]:
    """Return floor(2^128 sum_{i<c} q_i) for c = 0, ..., _N_CELLS - 1, as exact integers."""
    # w_{c+1} / w_c = exp(-(2 c + 1) / 2^17), itself a geometric sequence
    ratio, step = _exp_minus(17), _exp_minus(16)
    weight, sums = 1 << _PRECISION, [0]
    for _ in range(_N_CELLS):
        sums.append(sums[-1] + weight)
        weight = (weight * ratio) >> _PRECISION
        ratio = (ratio * step) >> _PRECISION
    total = sums.pop()
    return [(value << 128) // total for value in sums]


@cache
def normal_tables() -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the cell table: high words, low words and the guide to the first candidate."""
    cumulative = _cumulative_table()
    high = np.array([value >> 64 for value in cumulative], np.uint64)
    low = np.array([value & (2**64 - 1) for value in cumulative], np.uint64)
    starts = np.arange(2**_GUIDE_BITS, dtype=np.uint64) << _GUIDE_SHIFT
    guide = np.searchsorted(high, starts, side="right").astype(np.int64) - 1
    for table in (high, low, guide):
        table.setflags(write=False)
    return high, low, guide


@compiled
def _find_cell(word, high, guide):  # type: ignore[no-untyped-def]
    """Return the last cell whose cumulative probability has a high word <= ``word``."""
    cell = guide[np.int64(word >> _GUIDE_SHIFT)]
    while cell + 1 < high.shape[0] and high[cell + 1] <= word:
        cell += 1
    return cell


@compiled
def _rejection_threshold(cell, fine):  # type: ignore[no-untyped-def]
    """Return floor(2^64 (1 - exp(-(a r + r^2/2)))) for the place that ``fine`` names."""
    place = np.int64((fine >> _PLACE_SHIFT) & _PLACE_MASK)
    a = np.float64(cell) * 2.0**-8
    r = (np.float64(place) + 0.5) * 2.0**-52
    y = r * (a + 0.5 * r)
    # 1 - exp(-y) = y - y^2/2! + y^3/3! - ...
    s = 1.0 / 362880.0 - y * (1.0 / 3628800.0)
    s = 1.0 / 40320.0 - y * s
    s = 1.0 / 5040.0 - y * s
    s = 1.0 / 720.0 - y * s
    s = 1.0 / 120.0 - y * s
    s = 1.0 / 24.0 - y * s
    s = 1.0 / 6.0 - y * s
    s = 0.5 - y * s
    return np.uint64(y * (1.0 - y * s) * 2.0**64)


@compiled
def _signed_integer(cell, fine, bits):  # type: ignore[no-untyped-def]
    """Round the signed place to the nearest integer of the grid 2^-bits."""
    place = np.int64((fine >> _PLACE_SHIFT) & _PLACE_MASK)
    halves = ((np.int64(cell) << 44) | place) >> (51 - bits)
    magnitude = (halves + 1) >> 1
    return -magnitude if fine >> _SIGN_SHIFT else magnitude


@compiled
def _patient_value(key, index, coarse, fine, bits, high, low, guide, block):  # type: ignore[no-untyped-def]
    """Draw value ``index`` with ties resolved and rejections repeated.

    The block of attempt t holds the low bits of attempt t and, from t = 1 on, its words.
    """
    attempt = 0
    while True:
        chacha_block(key, index & _MASK32, (index >> 32) & _MASK32, attempt, _PATIENT, block)
        if attempt > 0:
            coarse = join_words(block[4], block[5])
            fine = join_words(block[6], block[7])
        coarse_low = join_words(block[0], block[1])
        cell = _find_cell(coarse, high, guide)
        while high[cell] == coarse and coarse_low < low[cell]:
            cell -= 1
        decision = ((fine & _TOP_MASK) << _LOW_BITS) | (join_words(block[2], block[3]) & _LOW_MASK)
        if decision >= _rejection_threshold(cell, fine):
            return _signed_integer(cell, fine, bits)
        attempt += 1


@compiled
def _fill_chunk(key, chunk, bits, high, low, guide, position, words, block, out):  # type: ignore[no-untyped-def]
    """Draw the values [chunk * CHUNK, (chunk + 1) * CHUNK) of a stream into ``out``."""
    for lane in range(LANES):
        number = chunk * LANES + lane
        position[lane] = np.uint32(number & _MASK32)
        position[LANES + lane] = np.uint32((number >> 32) & _MASK32)
    chacha_lanes(key, position, words)
    for quarter in range(4):
        base = 4 * quarter * LANES
        for lane in range(LANES):
            at = base + lane
            coarse = join_words(words[at], words[at + LANES])
            fine = join_words(words[at + 2 * LANES], words[at + 3 * LANES])
            cell = _find_cell(coarse, high, guide)
            leading = _rejection_threshold(cell, fine) >> _LOW_BITS
            value = quarter * LANES + lane
            if high[cell] != coarse and (fine & _TOP_MASK) > leading:
                out[value] = _signed_integer(cell, fine, bits)
            else:
                index = chunk * CHUNK + value
                out[value] = _patient_value(key, index, coarse, fine, bits, high, low, guide, block)


@compiled
def rounded_normals(key, bits, high, low, guide, start, stop, out):  # type: ignore[no-untyped-def]
    """Draw the values [start, stop) of a stream into ``out[start:stop]`` (int64).

    Parameters
    ----------
    key : ndarray of shape (8,), uint32
        The stream's key.
    bits : int
        The standard deviation is 2^bits, 7 <= bits <= 51.
    high, low, guide : ndarray
        What `normal_tables` returns.
    start, stop : int
        The range; where it is cut does not change any value.
    out : ndarray of shape (>= stop,), int64
        The draws.
    """
    position = np.zeros(4 * LANES, np.uint32)
    words = np.empty(16 * LANES, np.uint32)
    block = np.empty(16, np.uint32)
    noise = np.empty(CHUNK, np.int64)
    for chunk in range(start // CHUNK, (stop + CHUNK - 1) // CHUNK):
        _fill_chunk(key, chunk, bits, high, low, guide, position, words, block, noise)
        first = chunk * CHUNK
        for i in range(max(start, first), min(stop, first + CHUNK)):
            out[i] = noise[i - first]


@compiled
def add_grid_noise(  # type: ignore[no-untyped-def]
    statistic, units, bound, key, bits, high, low, guide, start, stop, out
):
    """Round to the grid, add the stream's integers and scale back, for values [start, stop).

    Parameters
    ----------
    statistic : ndarray of shape (size,), float64
        Exact values; non-finite ones count as 0, others are clamped to [-bound, bound].
    units : ndarray of shape (period,), float64
        Grid unit of each column; value i has column i modulo period.
    bound : float
        Public bound on the magnitudes.
    key, bits, high, low, guide, start, stop
        As for `rounded_normals`.
    out : ndarray of shape (size,), float64
        Receives unit * (rint(statistic / unit) + noise).
    """
    position = np.zeros(4 * LANES, np.uint32)
    words = np.empty(16 * LANES, np.uint32)
    block = np.empty(16, np.uint32)
    noise = np.empty(CHUNK, np.int64)
    period = units.shape[0]
    for chunk in range(start // CHUNK, (stop + CHUNK - 1) // CHUNK):
        _fill_chunk(key, chunk, bits, high, low, guide, position, words, block, noise)
        first = chunk * CHUNK
        begin = max(start, first)
        column = begin % period
        for i in range(begin, min(stop, first + CHUNK)):
            value = statistic[i] if np.isfinite(statistic[i]) else 0.0
            value = np.rint(min(max(value, -bound), bound) / units[column])
            total = value + np.float64(noise[i - first])
            out[i] = units[column] * min(max(total, -_GRID_LIMIT), _GRID_LIMIT)
            column = column + 1 if column + 1 < period else 0
