r"""Exact samplers of the rounded normal and Laplace laws on the integers, and their bits.

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

**Forms.** The compiled and the plain form give the same bits: integers are exact, and both evaluate
the same functions, in the same order of operations, in float64 without contraction.

**Other laws.** The kernels serve every staircase on these cells: within cell c the density falls
as exp(-y), y = r (base + step c + curve r), and ``law`` = (base, step, curve). The normal law has
(0, h, 1/2). Cell 4,096, which only the normal law has, stands for all x >= 16.

Source: rejection with a staircase hat: L. Devroye, Non-Uniform Random Variate Generation (1986),
ch. II.3; random bits compared only as far as needed: C. Karney, "Sampling exactly from the normal
distribution", ACM TOMS 42 (2016).

Exact sampler of the rounded Laplace law on the integers.

For a public integer ``bits`` = b the law is that of round(2^b L), L with the density exp(-|x|)/2:

.. math:: P(0) = 1 - e^{-t/2}, \quad P(n) = e^{-|n| t} \sinh(t/2), \quad t = 2^{-b}.

**Method.** That of the normal law, with its kernels: cells of width h = 2^-8 cover [0, 16), cell c
begins at c h and is chosen with probability q_c proportional to h exp(-c h), and the place r in it
is kept with probability p = exp(-r), else everything is drawn again. One more outcome, of
probability q_T proportional to exp(-16), stands for all x >= 16: the law has no memory, so the
value is 16 plus one drawn anew. Magnitudes stop at 2^60, which no release distinguishes from any
above 2^53: released values are clamped to 2^52 units.

**Theorem.** Take the bits as uniform. Let Q be the law that the code draws from, 7 <= b <= 51, and
P_s the law of round(2^b s L). There is a number s with |s - 1| <= 2^-61 such that for every
integer n, |n| < 2^60,

.. math:: |\ln(Q(n) / P_s(n))| \le \mathrm{LAPLACE\_ETA} = 2^{-56}.

There is no exceptional set. Q is exactly symmetric. A release of N values whose scale is 2^b units
is therefore, for integer vectors of l1 distance d, (d 2^-b / s + 2 N LAPLACE_ETA)-DP, pure:
its probabilities are products of Q, and P_s(n)/P_s(m) <= exp(|n - m| 2^-b / s) because y +
round(L) = round(y + L). `calibrate_grid` makes the scale larger by more than 1/s.

*Proof.* An attempt keeps a place with probability g' = q'_c 2^-44 p' and meets the tail with q'_T;
N' is the sum of all these. A magnitude is k tails and then a place, so its probability is
(q'_T / N')^k g' / N'. Without primes: the ideal, with the integral over a place for g. Let
e = 2^-59. Each g' is within a factor exp(+-e) of g, and q'_T of q_T:

1. q': a cumulative entry is rounded down from 2^-320 fixed point, so |q' - q| < 1.01 * 2^-128.
   The least q is q_4095 = exp(-15.997) / 256.5 > 2^-31.1: relative error < 2^-96.
2. p': y = r < 2^-8 is exact. The polynomial for 1 - exp(-y) is accurate to 3 * 2^-53 relative,
   which is 3 * 2^-61 absolute, and the threshold to 2^-64. With p > 0.996 that is < 2^-59.3.
3. The midpoint rule over a place of width w = 2^-52: relative w^2 / 24 < 2^-108.

So N' is within exp(+-e) of N, and q'_T / N' = exp(theta - 16) with |theta| <= 2 e. Let s =
16 / (16 - theta), so that q'_T / N' = exp(-16 / s) and |s - 1| < 2^-61. At the magnitude
16 k + x, x < 16, P_s has the density exp(-16 k / s) exp(-x / s) / s and Q that of
exp(-16 k / s) exp(-x) times a factor in exp(+-2 e). Their ratio is within
exp(+-(2 e + |theta| x / 16 + |ln s|)), below 4.3 e < 2^-56; a place belongs to one n, so that this
holds for the sums over places. QED.

(Q/P itself, at s = 1, drifts: by less than 2^-62 more for each 2^b of |n|. It is the ratios of
neighbouring probabilities that privacy needs, and the drift is no more than a scale.)
"""

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.jit_and_threads import jit, part
from skdpmf.privacy.sampler.cipher import (
    LANES,
    MOST_LANES,
    blocks,
    chacha,
    join_words,
    set_position,
    states,
)

SAMPLER_ETA = 2.0**-50
SAMPLER_TAU = 2.0**-72

CHUNK = 4 * LANES  # values whose main bits come from one batch of blocks

NORMAL = (0.0, 2.0**-8, 0.5)  # base, step and curve of the law
TAIL_CELL = 16 * 256

_N_CELLS = 13 * 256
PRECISION = 320  # bits of the fixed point in which the tables are computed
_GUIDE_BITS = 12
_GUIDE_SHIFT = np.uint64(64 - _GUIDE_BITS)

# A word of fine bits: 1 sign, 44 place, 19 leading bits of the decision.
_SIGN_SHIFT, _PLACE_SHIFT, _LOW_BITS = np.uint64(63), np.uint64(19), np.uint64(45)
_PLACE_MASK = np.uint64(2**44 - 1)
_TOP_MASK = np.uint64(2**19 - 1)
_LOW_MASK = np.uint64(2**45 - 1)

_GRID_LIMIT = 2.0**52
_NEAR = np.int64(0)
_FAR = np.int64(2**60)  # where magnitudes stop: far beyond the grid, and in int64's range
# the last position word, and an attempt below it: main blocks, blocks of one value
_HASTY, _PATIENT = np.int64(0), np.int64(1 << 32)


def exp_minus(power: int) -> int:
    """Return exp(-2**-power) in fixed point, within a few units of its last place."""
    total = term = 1 << PRECISION
    divisor = 0
    while term:
        divisor += 1
        term = (abs(term) >> power) // divisor
        total += -term if divisor % 2 else term
    return total


def cumulative_table(weights: Iterable[int]) -> list[int]:
    """Return floor(2^128 sum_{i<c} w_i / sum_i w_i) for every c, as exact integers."""
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    total = sums.pop()
    return [(value << 128) // total for value in sums]


def staircase_tables(
    cumulative: list[int],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return a cell table: high words, low words and the guide to the first candidate."""
    high = np.array([value >> 64 for value in cumulative], np.uint64)
    low = np.array([value & (2**64 - 1) for value in cumulative], np.uint64)
    starts = np.arange(2**_GUIDE_BITS, dtype=np.uint64) << _GUIDE_SHIFT
    guide = np.searchsorted(high, starts, side="right").astype(np.int64) - 1
    for table in (high, low, guide):
        table.setflags(write=False)
    return high, low, guide


def _weights(n_steps: int, ratio: int, step: int = 1 << PRECISION) -> list[int]:
    """Return weights from 1 on, each a ratio times the one before, and the ratio by a step."""
    weights = [1 << PRECISION]
    for _ in range(n_steps):
        weights.append((weights[-1] * ratio) >> PRECISION)
        ratio = (ratio * step) >> PRECISION
    return weights


def _cumulative_table() -> list[int]:
    """Return the normal law's `cumulative_table`."""
    # w_{c+1} / w_c = exp(-(2 c + 1) / 2^17), itself a geometric sequence
    return cumulative_table(_weights(_N_CELLS - 1, exp_minus(17), exp_minus(16)))


@cache
def normal_tables() -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the normal law's `staircase_tables`."""
    return staircase_tables(_cumulative_table())


@part
def _find_cell(word, high, guide):
    """Return the last cell whose cumulative probability has a high word <= ``word``."""
    cell = guide[np.int64(word >> _GUIDE_SHIFT)]
    while cell + 1 < high.shape[0] and high[cell + 1] <= word:
        cell += 1
    return cell


# The formulas for places and decisions serve single values and, in plain forms, columns.


@part
def _rejection_threshold(cell, fine, law):
    """Return floor(2^64 (1 - exp(-y))) for the place that ``fine`` names."""
    base, step, curve = law
    place = np.int64(fine >> _PLACE_SHIFT & _PLACE_MASK)
    slope = base + np.float64(cell) * step
    r = (np.float64(place) + 0.5) * 2.0**-52
    y = r * (slope + curve * r)
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


@part
def _signed_integer(cell, fine, bits, far):
    """Round the place to the nearest integer of the grid 2^-bits; add ``far``; give it its sign."""
    place = np.int64(fine >> _PLACE_SHIFT & _PLACE_MASK)
    halves = (np.int64(cell) << 44 | place) >> (51 - bits)
    minus = np.int64(fine >> _SIGN_SHIFT)
    return (((halves + 1) >> 1) + far ^ -minus) + minus


@part
def _patient_value(index, coarse, fine, bits, high, low, guide, law, block):
    """Draw value ``index`` with ties resolved, rejections repeated and tails begun anew.

    The block of attempt t holds the low bits of attempt t and, from t = 1 on, its words.
    """
    attempt, far = np.int64(0), np.int64(0)
    while True:
        set_position(block, 1, 0, index, _PATIENT | attempt)
        chacha(block, 1)
        if attempt > 0:
            coarse = join_words(block[4], block[5])
            fine = join_words(block[6], block[7])
        coarse_low = join_words(block[0], block[1])
        cell = _find_cell(coarse, high, guide)
        while high[cell] == coarse and coarse_low < low[cell]:
            cell -= 1
        decision = (fine & _TOP_MASK) << _LOW_BITS | join_words(block[2], block[3]) & _LOW_MASK
        if cell == TAIL_CELL:
            far += np.int64(16) << bits
            far = far if far < _FAR else _FAR
        elif decision >= _rejection_threshold(cell, fine, law):
            return _signed_integer(cell, fine, bits, far)
        attempt += 1


def scratch(key):
    """Return ``words``, ``block`` and ``noise`` for a thread that draws from this key's stream."""
    return states(key, LANES), states(key, 1), np.empty(CHUNK, np.int64)


@part
def fill_chunk(chunk, bits, high, low, guide, law, words, block, out):
    """Draw the values [chunk * CHUNK, (chunk + 1) * CHUNK) of a stream into ``out``."""
    for lane in range(LANES):
        set_position(words, LANES, lane, chunk * LANES + lane, _HASTY)
    chacha(words, LANES)
    for quarter in range(4):
        for lane in range(LANES):
            at, value = 4 * quarter * LANES + lane, quarter * LANES + lane
            coarse = join_words(words[at], words[at + LANES])
            fine = join_words(words[at + 2 * LANES], words[at + 3 * LANES])
            cell = _find_cell(coarse, high, guide)
            leading = _rejection_threshold(cell, fine, law) >> _LOW_BITS
            if cell != TAIL_CELL and high[cell] != coarse and fine & _TOP_MASK > leading:
                out[value] = _signed_integer(cell, fine, bits, _NEAR)
            else:
                index = chunk * CHUNK + value
                out[value] = _patient_value(index, coarse, fine, bits, high, low, guide, law, block)


def _plain_patient(key, index, coarse, fine, bits, high, low, law):
    """Return `_patient_value` of a column of values, an attempt of all that are left at a time."""
    out, far, left = np.empty_like(index), np.zeros_like(index), np.arange(index.shape[0])
    attempt = 0
    while left.size:
        own = key if key.ndim == 1 else key[left]
        w = blocks(own, index[left], np.full(left.size, _PATIENT | attempt), chacha.plain)
        words = [join_words.function(w[i], w[i + 1]) for i in (0, 2, 4, 6)]
        if attempt > 0:
            coarse, fine = words[2:]
        cell = np.searchsorted(high, coarse, side="right") - 1
        while (above := (high[cell] == coarse) & (words[0] < low[cell])).any():
            cell -= above
        decision = (fine & _TOP_MASK) << _LOW_BITS | words[1] & _LOW_MASK
        tail = cell == TAIL_CELL
        kept = ~tail & (decision >= _rejection_threshold.function(cell, fine, law))
        out[left] = _signed_integer.function(cell, fine, bits, far[left])
        far[left] = np.minimum(far[left] + tail * (np.int64(16) << bits), _FAR)
        left = left[~kept]
        attempt += 1
    return out


def plain_chunks(key, chunks, bits, high, low, law):
    """Return the values of chunks, a row each: of one key, or of a key for each (n, 8)."""
    shape = chunks.shape[0], LANES
    key = key if key.ndim == 1 else np.repeat(key, LANES, axis=0)
    numbers = (chunks[:, np.newaxis] * LANES + np.arange(LANES)).ravel()
    w = blocks(key, numbers, np.full_like(numbers, _HASTY), chacha.plain)
    w = w.reshape(4, 4, *shape).transpose(1, 2, 0, 3).reshape(4, -1)  # in the order of values
    coarse, fine = join_words.function(w[0], w[1]), join_words.function(w[2], w[3])
    cell = np.searchsorted(high, coarse, side="right") - 1
    leading = _rejection_threshold.function(cell, fine, law) >> _LOW_BITS
    hasty = (cell != TAIL_CELL) & (high[cell] != coarse) & (fine & _TOP_MASK > leading)
    out, late = _signed_integer.function(cell, fine, bits, _NEAR), np.flatnonzero(~hasty)
    own = key if key.ndim == 1 else key[late // CHUNK * LANES]
    index = chunks[late // CHUNK] * CHUNK + late % CHUNK
    out[late] = _plain_patient(own, index, coarse[late], fine[late], bits, high, low, law)
    return out.reshape(-1, CHUNK)


def _plain_values(key, bits, high, low, law, start, stop):
    """Return the values [start, stop) of a stream."""
    chunks, at_once = np.arange(start // CHUNK, -(-stop // CHUNK)), MOST_LANES // LANES
    parts = [chunks[i : i + at_once] for i in range(0, chunks.size, at_once)]
    drawn = [plain_chunks(key, part, bits, high, low, law).ravel() for part in parts]
    return np.concatenate([*drawn, chunks[:0]])[start % CHUNK :][: stop - start]


def _draws_plain(words, block, noise, bits, high, low, guide, law, start, stop, out):
    out[start:stop] = _plain_values(block[20:28], bits, high, low, law, start, stop)


@jit(plain=_draws_plain, same_bits=True)
def rounded_draws(words, block, noise, bits, high, low, guide, law, start, stop, out):
    """Draw the values [start, stop) of a stream into ``out[start:stop]`` (int64).

    words, block, noise: the `scratch` of the stream's key; bits: the law's unit is 2^bits integers,
    7 <= bits <= 51; high, low, guide: the law's `staircase_tables`; law: base, step and curve.
    """
    while start < stop:
        chunk, first = start // CHUNK, start - start % CHUNK
        last = first + CHUNK if first + CHUNK < stop else stop
        fill_chunk(chunk, bits, high, low, guide, law, words, block, noise)
        for i in range(start, last):
            out[i] = noise[i - first]
        start = last


@part
def _row_of(place):
    """Return the row of a place in a lower triangle: row r begins at r (r + 1) / 2."""
    # at a row's beginning the square root is exact, so that it is never too small
    row = np.int64((np.sqrt(8.0 * place + 1.0) - 1.0) / 2.0)
    return row - (row * (row + 1) // 2 > place)


def _add_plain(
    statistic, units, order, bound, words, block, noise, bits, high, low, guide, law, *ends
):
    offset, start, stop, out = ends
    place = np.arange(offset + start, offset + stop) % (order * (order + 1) // 2)
    row = _row_of.function(place)
    unit = np.where(place == row * (row + 3) // 2, units[0], units[1])
    exact = np.where(np.isfinite(statistic[start:stop]), statistic[start:stop], 0.0)
    draws = _plain_values(block[20:28], bits, high, low, law, offset + start, offset + stop)
    total = np.rint(np.clip(exact, -bound, bound) / unit) + np.float64(draws)
    out[start:stop] = unit * np.clip(total, -_GRID_LIMIT, _GRID_LIMIT)


@jit(plain=_add_plain, same_bits=True)
def add_grid_noise(
    exact, units, k, bound, words, block, noise, bits, high, low, guide, law, at, start, stop, out
):
    """Round to the grid, add the stream's integers and scale back, for values [start, stop).

    The release is a row of lower triangles of order k, 1 where it is none; they have a unit for
    the diagonal and one for the rest. The arrays hold a part of it, its values from ``at`` on.

    exact: values; non-finite ones count as 0, others are clamped to [-bound, bound];
    units: on and off the diagonal; words to law: as for `rounded_draws`; out: receives
    unit * (rint(exact / unit) + noise).
    """
    place = (at + start) % (k * (k + 1) // 2)
    row = _row_of(place)
    left = row * (row + 3) // 2 - place  # values before the next diagonal one
    while start < stop:
        chunk, first = (at + start) // CHUNK, start - (at + start) % CHUNK
        last = first + CHUNK if first + CHUNK < stop else stop
        fill_chunk(chunk, bits, high, low, guide, law, words, block, noise)
        for i in range(start, last):
            unit = units[1] if left > 0 else units[0]
            value = _clamp(exact[i], bound) if np.isfinite(exact[i]) else 0.0
            total = np.rint(value / unit) + np.float64(noise[i - first])
            out[i] = unit * _clamp(total, _GRID_LIMIT)
            if left == 0:
                row = row + 1 if row + 1 < k else 0
            left = left - 1 if left > 0 else row
        start = last


@part
def _clamp(value, bound):
    return -bound if value < -bound else bound if value > bound else value


LAPLACE = (1.0, 0.0, 0.0)  # base, step and curve of the law
LAPLACE_ETA = 2.0**-56


def _laplace_cumulative_table() -> list[int]:
    """Return the `cumulative_table` of the cells and of the tail, in units of h."""
    weights = _weights(TAIL_CELL, exp_minus(8))
    weights[-1] <<= 8  # the tail weighs exp(-16), not h exp(-16)
    return cumulative_table(weights)


@cache
def laplace_tables() -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the Laplace law's `staircase_tables`, with the tail as the last cell."""
    return staircase_tables(_laplace_cumulative_table())


# purpose of the stream, cell tables and law of each kind of noise
LAWS = {
    "gaussian": ("release", normal_tables, NORMAL),
    "laplace": ("laplace", laplace_tables, LAPLACE),
}
