r"""PrivUnitG on the integers: a unit vector, randomised on the device with a pure epsilon.

**Release.** The device holds a unit vector x of dimension D. With b = GRID_BITS and public t and p,

.. math:: Y \sim Q^D \text{ given } \langle Y, x \rangle \ge 2^b t \text{ with probability } p,
    \text{ else given } \langle Y, x \rangle < 2^b t,

Q being the law that the sampler of ``laws.py`` draws from, close to that of round(2^b N). The
half space depends on the coordinates in the support of x alone. So all D coordinates are drawn,
then those of the support are replaced by new draws, all of them at once, until they are in the half
space that the coin chose. What is sent is D integers, each of which any device could have sent.

**Theorem.** Take the bits as uniform. For any two inputs x, x' and every y,
P(Y(x) = y) <= exp(epsilon) P(Y(x') = y): pure epsilon-DP in the local model, for the whole vector
and without any exceptional set.

*Proof.* Let H_x be the set of y that the code, in float64, finds in the half space of x. Then
P(Y(x) = y) is Q^D(y) p / Q^D(H_x) for y in H_x and Q^D(y) (1 - p) / (1 - Q^D(H_x)) otherwise. In
a ratio Q^D(y) cancels, whatever Q is. Let q- <= Q^D(H_x) <= q+ for all x, and let

.. math:: p \le \frac{e^\epsilon q^-}{1 - q^- + e^\epsilon q^-}, \qquad q^+ \le p.

Then y in H_x but not in H_x' has a ratio of at most p (1 - q-) / (q- (1 - p)) <= exp(epsilon); one
in both has q+ / q- <= p / q-, and one in neither (1 - q-) / (1 - q+) <= (1 - q-) / (1 - p), which
are less; one in H_x' only has less than 1. The coin compares a 64-bit word with floor(2^64 p),
computed in 60 digits. It remains to bound q = Q^D(H_x) (`_mass_bounds`), in units of 2^b:

1. Y is rounded: for Y = round(2^b N), |<2^-b Y - N, x>| <= |x|_1 2^-(b+1) <= sqrt(D) 2^-(b+1).
2. The sum in float64: |Y_j| < 2^(b + 4), and at most D products and sums of relative error 2^-53
   make less than D sqrt(D) 2^-49.
3. `unit_rows` checks in float64 that | |x| - 1 | <= NORM_TOLERANCE, and its own sum of squares has
   a relative error below D 2^-53: <N, x> is normal with a standard deviation within
   1 +- (NORM_TOLERANCE + D 2^-53), which moves the threshold by less than t + 1
   times so much.
4. Q instead of the rounded normal: total variation of D values < D (SAMPLER_ETA + SAMPLER_TAU).

With the sum d of 1 to 3, q is within [1 - Phi(t + d), 1 - Phi(t - d)] up to 4. QED.

t maximises c = phi(t) (p/q - (1-p)/(1-q)) for the ideal q = 1 - Phi(t), and then equals it. In the
ideal, E[Y] = 2^b c x and E|Y|^2 = 4^b (D + t c), hence the estimator 2^-b Y / c is unbiased and its
total squared error D / c^2. The price of the grid is the ``slack``: with the ideal q in the place
of q-, the same p would be good for epsilon - slack. It is less than 1e-4 epsilon for epsilon >=
0.01 and D <= 27,000.

**Bias.** With W(s) = p/s - (1-p)/(1-s), Q symmetric and H = H_x, E[2^-b Y] = W(q(H)) m,
m = E[2^-b Y; H]. The strip in which H and the ideal half space differ has a mass below 2 d phi, so
|m - phi(t) x| <= d q + 2 d phi (t + 1), relative to phi less than (2 t + 3.3) d, as
q / phi <= 1.26. And |ln(W(q(H)) / W(q))| <= slack (1 + 1/W(q)), as |W'/W| <= 1/(p - s) + 1/s and
p - q = W(q) q (1 - q), W(q) = c / phi(t). Both together, where slack <= W(q) / 200:

.. math:: |E[2^{-b} Y / c] - x| \le 1.01\, (\mathrm{slack}\,(1 + \phi(t)/c) + (2 t + 4)\, d).

**Time.** The number of redraws depends on the coin alone (p/q + (1-p)/(1-q) on average: 2 for small
epsilon, 12 at 4, 296 at 8), but each takes time in proportion to the support. So the `report` of a
device works on ``padded`` coordinates, or on its support if this is larger: it draws as many values
as they are, and sums as many products, with zeros for those that it has not. All D are padded where
that takes at most `MAX_DIMENSION` values on average, less than 0.4 s; else as many as do. Not
covered: what the device does before, such as making its vector, and what a processor's caches show.

**What no honest device sends.** Each y has P(Y = y) <= Q^D(y) p / q-, by the proof, so that
P(Y in A) <= Q^D(A) p / q- for every set A. Let A be the reports with a value beyond ``largest``, or
with a squared length outside of [``least``, ``most``], in units of 4^b (`report_limits`). The
length of 2^-b Y is within r = sqrt(D) 2^-(b+1) of that of a normal vector, whence

.. math:: Q^D(A) \le e^{D \eta} (2 D \Phi(-z) + P(\chi_D < s) + P(\chi_D > l)) + D \tau

with z = 2^-b largest, s = sqrt(least) + r, l = sqrt(most) - r, and the sampler's eta and tau. The
three terms and the sampler get a quarter each of REFUSAL_RATE q- / p. A server that refuses A then
refuses an honest report once in a billion at most, for epsilon <= 8 or D <= 10^5; D tau p / q- is
less than 1.4e-9 anywhere. It looks at nothing but the report, which costs no privacy.

Sources: H. Asi, V. Feldman, K. Talwar, "Optimal algorithms for mean estimation under local
differential privacy", ICML 2022 (PrivUnitG, in the reals); I. Mironov, "On significance of the
least significant bits for differential privacy", CCS 2012 (why not in float64).
"""

from __future__ import annotations

import math
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.optimize import brentq
from scipy.special import gammainccinv, gammaincinv, ndtr, ndtri

from skdpmf.exceptions import require_that
from skdpmf.kernels.jit_and_threads import in_threads, jit, part
from skdpmf.mechanisms.device_reports.randomizers import (
    COIN,
    bernoulli_threshold,
    check_epsilon,
    check_integer,
    check_keys,
)
from skdpmf.privacy.recording import active_recorder, recorded_reports
from skdpmf.privacy.sampler.cipher import (
    EXPAND,
    LANES,
    MOST_LANES,
    blocks,
    chacha,
    join_words,
    set_position,
)
from skdpmf.privacy.sampler.laws import (
    CHUNK,
    NORMAL,
    SAMPLER_ETA,
    SAMPLER_TAU,
    fill_chunk,
    normal_tables,
    plain_chunks,
    rounded_draws,
)

# Guard: integers of 32 bits, roundings of a length, time and memory
GRID_BITS = 27  # the most for which 13 * 2^b, the sampler's largest magnitude, is an int32
NORM_TOLERANCE = 1e-12
REFUSAL_RATE = 1e-9  # of honest reports, at most
MAX_DIMENSION = 16_777_216  # values that a device draws for a report, on average
DEVICES = 512  # devices that a thread takes at a time

# chunk of a device's stream where its redraws begin, behind those of all values of a report
_FIRST_REDRAW = MAX_DIMENSION


class PrivUnitParameters(NamedTuple):
    """Public parameters of PrivUnitG on the grid.

    t: threshold of the half space, and c: length of the mean report, in units of 2**bits; p:
    probability of the upper half space, coin / 2**64, which 64-bit words below coin choose; bits: a
    standard deviation is 2**bits integers; slack: part of epsilon that the grid costs.
    """

    t: float
    p: float
    c: float
    bits: int
    slack: float
    coin: int


def privunit_parameters(
    epsilon: float, dimension: int, *, bits: int = GRID_BITS
) -> PrivUnitParameters:
    """Return the parameters for which a report is epsilon-DP, with the least squared error.

    epsilon: of one report, > 0 and at most MAX_EPSILON; dimension: coordinates of a report; bits:
    the unit of the normal law is 2**bits integers. Less is for tests. Raises PrivacyParameterError
    if a parameter is out of range, or epsilon is too small for the grid.
    """
    eps, D = check_epsilon(epsilon), check_integer("dimension", dimension, MAX_DIMENSION)
    gain = math.expm1(eps)
    # c(t) = gain phi(t) / (1 + gain q(t)) is largest where t = c(t)
    # and below sqrt(2 eps), where gain phi(t) is less than t
    most = math.sqrt(2.0 * eps)
    t = float(brentq(lambda s: s * (1.0 + gain * ndtr(-s)) - gain * _density(s), 0.0, most))
    q = float(ndtr(-t))
    low, high = _mass_bounds(t, D, bits)
    coin = bernoulli_threshold(eps, low) if low > 0.0 else 0
    p = coin / 2**64
    rule = f"larger for dimension={D} on a grid of 2**-{bits}, as rounding would say more than the "
    rule += "report: report fewer coordinates, or spend more on it."
    require_that(high <= p * (1.0 - 2.0**-40), "epsilon", eps, rule)
    slack = eps - (math.log(p / (1.0 - p)) - math.log(q / (1.0 - q)))
    c = _density(t) * (p - q) / (q * (1.0 - q))
    return PrivUnitParameters(t, p, c, bits, max(slack, 0.0), coin)


class ReportLimits(NamedTuple):
    """What an honest report keeps to, but for one in a billion.

    largest: magnitude of a value, in units of 2**-bits; least, most: squared length of the report,
    in standard deviations of a value.
    """

    largest: int
    least: float
    most: float


def report_limits(epsilon: float, dimension: int, rate: float = REFUSAL_RATE) -> ReportLimits:
    """Return limits beyond which an honest report is with a probability of at most ``rate``.

    epsilon, dimension: as for `privunit_parameters`; rate: a quarter each is for values, for short
    and for long reports.
    """
    law = privunit_parameters(epsilon, dimension)
    times = law.p / _mass_bounds(law.t, dimension, law.bits)[0]
    tail = rate / (4.0 * times)  # the fourth is for the sampler, and the floats here
    z = -float(ndtri(tail / (2.0 * dimension)))
    rounding = math.sqrt(dimension) * 2.0 ** -(law.bits + 1)
    half = 0.5 * dimension
    shortest = max(math.sqrt(2.0 * gammaincinv(half, tail)) - rounding, 0.0)
    longest = math.sqrt(2.0 * gammainccinv(half, tail)) + rounding
    # a sum of squares in float64 errs by less than 1e-8
    return ReportLimits(
        math.ceil(z * 2.0**law.bits), shortest**2 * (1.0 - 1e-8), longest**2 * (1.0 + 1e-8)
    )


def _density(t: float) -> float:
    return math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)


def _mass_bounds(t: float, dimension: int, bits: int) -> tuple[float, float]:
    """Return q- and q+, with a margin for the float operations that make them."""
    root = math.sqrt(dimension)
    length = 2.0 * (NORM_TOLERANCE + dimension * 2.0**-53)
    # by how much rounding may move the half space: 1, 2 and 3 of the proof
    d = root * 2.0 ** -(bits + 1) + dimension * root * 2.0**-49 + (t + 1.0) * length
    sampler = dimension * (SAMPLER_ETA + SAMPLER_TAU)
    low, high = float(ndtr(-(t + d))), float(ndtr(-(t - d)))
    return (low - sampler) * (1.0 - 2.0**-40), (high + sampler) * (1.0 + 2.0**-40)


def unit_rows(indptr: Any, indices: Any, values: Any, dimension: int) -> tuple[Any, Any, Any]:
    """Return rows in CSR form as unit vectors, each with the dummy coordinate as its last entry.

    A row longer than 1 is scaled to length 1; for others the dummy sqrt(1 - |x|^2) makes the length
    1. A row with a value that is not finite counts as empty: its dummy is 1. The length is then
    checked: the guarantee is for unit vectors alone. Squares are added up in the order of entries.
    """
    n, sizes = len(indptr) - 1, np.diff(indptr) + 1
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    row, dummy = np.repeat(np.arange(n), sizes), ptr[1:] - 1
    at, x = np.full(ptr[-1], dimension - 1), np.zeros(ptr[-1])
    rated = np.delete(np.arange(ptr[-1]), dummy)
    at[rated], x[rated] = (part[indptr[0] : indptr[-1]] for part in (indices, values))

    def squares() -> Any:
        return np.bincount(row, weights=x * x, minlength=n)

    # dividing by the peak keeps squares of finite values finite
    peak = np.maximum(np.maximum.reduceat(np.abs(x), ptr[:-1]), 1.0)
    x /= peak[row]
    x[dummy] = np.sqrt(np.maximum(np.where(peak == 1.0, 1.0 - squares(), 0.0), 0.0))
    x /= np.sqrt(squares())[row]
    # not a comparison with >, which NaN would pass
    wrong = ~(np.abs(np.sqrt(squares()) - 1.0) <= NORM_TOLERANCE)
    x[wrong[row]] = 0.0
    x[dummy[wrong]] = 1.0
    return ptr, at, x


def _in_half_space_plain(draws, values, bound):  # type: ignore[no-untyped-def]
    # added up in the order of loops
    return np.cumsum(values * np.float64(draws), axis=-1)[..., -1] >= bound


@jit(plain=_in_half_space_plain, same_bits=True)
def in_half_space(draws, values, bound):  # type: ignore[no-untyped-def]
    """Return whether sum_k values[k] draws[k] >= bound: this alone defines the half space."""
    total = 0.0
    for k in range(values.shape[0]):
        total += values[k] * np.float64(draws[k])
    return total >= bound


@part
def _draw_support(wanted, values, size, bound, bits, high, low, guide, words, block, noise, out):  # type: ignore[no-untyped-def]
    """Draw the support, anew until its half space is the ``wanted`` one.

    It is the first ``size`` of the values; the others are zeros, and what is drawn for them is
    thrown away: they are there for the time that they take.
    """
    chunk, at = _FIRST_REDRAW, CHUNK
    spare, waste = 0, np.empty(CHUNK, np.int64)
    out[size:] = 0
    while True:
        spare += values.shape[0] - size
        while spare >= CHUNK:
            fill_chunk(chunk, bits, high, low, guide, NORMAL, words, block, waste)
            spare -= CHUNK
        for k in range(size):
            if at == CHUNK:
                fill_chunk(chunk, bits, high, low, guide, NORMAL, words, block, noise)
                chunk += 1
                at = 0
            out[k] = noise[at]
            at += 1
        if in_half_space(out, values, bound) == wanted:
            return


def _add_reports_plain(  # type: ignore[no-untyped-def]
    keys, ptr, indices, values, coin, bound, bits, tables, totals, padded=0
):
    chunks = -(-max(totals.shape[0], padded) // CHUNK) + 1
    step = max(1, MOST_LANES // (LANES * chunks))
    for first in range(0, keys.shape[0], step):
        last = min(first + step, keys.shape[0])
        rows, at = ptr[first : last + 1], slice(ptr[first], ptr[last])
        terms = coin, bound, bits, tables, totals.shape[0], padded
        totals += _plain_reports(keys[first:last], rows - rows[0], indices[at], values[at], *terms)


def _plain_reports(keys, ptr, indices, values, coin, bound, bits, tables, dimension, padded):  # type: ignore[no-untyped-def]
    """Return the sum of the reports of some devices, which try several times at once."""

    def drawn(own, chunks):  # type: ignore[no-untyped-def]
        """Return the values of these chunks, a row for each device."""
        repeated = np.repeat(own, chunks.shape[1], axis=0)
        return plain_chunks(repeated, chunks.ravel(), bits, high, low, NORMAL).reshape(
            own.shape[0], -1
        )

    high, low, _ = tables
    n, sizes, nothing = keys.shape[0], np.diff(ptr), np.zeros(keys.shape[0], np.int64)
    coins = blocks(keys, nothing, nothing + COIN, chacha.plain)
    wanted = (join_words.function(coins[0], coins[1]) < coin)[:, np.newaxis]
    width = max(int(sizes.max()), padded)
    n_chunks = -(-width // CHUNK) + 1
    tries = np.arange((n_chunks - 1) * CHUNK // width)[:, np.newaxis]
    inside = np.arange(width) < sizes[:, np.newaxis]
    weights, support = np.zeros((n, width)), np.zeros((n, width), np.int64)
    weights[inside] = values
    left, begin = np.arange(n), nothing  # where in their streams the next tries begin
    while left.size:
        chunk = _FIRST_REDRAW + begin // CHUNK
        stream = drawn(keys[left], chunk[:, np.newaxis] + np.arange(n_chunks))
        places = tries * sizes[left, np.newaxis, np.newaxis] + np.arange(width)
        places = np.minimum(
            places + (begin % CHUNK)[:, np.newaxis, np.newaxis], stream.shape[1] - 1
        )
        tried = stream[np.arange(left.size)[:, np.newaxis, np.newaxis], places]
        fits = in_half_space.plain(tried, weights[left, np.newaxis], bound) == wanted[left]
        support[left] = tried[np.arange(left.size), fits.argmax(axis=1)]
        begin, left = (part[~fits.any(axis=1)] for part in (begin + tries.size * sizes[left], left))
    report = drawn(keys, np.tile(np.arange(-(-dimension // CHUNK)), (n, 1)))
    report[np.repeat(np.arange(n), sizes), indices] = support[inside]
    return report[:, :dimension].sum(axis=0)


@part
def set_key(words, lanes, key):  # type: ignore[no-untyped-def]
    """Set constant and key of all lanes, as `states` does for one key."""
    for i in range(4 * lanes):
        words[16 * lanes + i] = EXPAND[i // lanes]
    for i in range(8 * lanes):
        words[20 * lanes + i] = key[i // lanes]


@jit(plain=_add_reports_plain, same_bits=True)
def add_reports(keys, ptr, indices, values, coin, bound, bits, tables, totals, padded=0):  # type: ignore[no-untyped-def]
    """Add the reports of devices to ``totals``.

    keys (n_devices, 8) uint32: a key for each device; ptr, indices, values: their unit vectors,
    from `unit_rows`; coin (uint64): the upper half space is chosen by a word below this; bound:
    threshold of the half space, 2**bits t; bits: the grid; tables (tuple of ndarray): from
    `normal_tables`; totals (dimension,) int64: where the reports are added; padded: coordinates for
    which a device works at least; does not change the sum.
    """
    words, block = np.empty(32 * LANES, np.uint32), np.empty(32, np.uint32)
    noise, (high, low, guide) = np.empty(CHUNK, np.int64), tables
    dimension = totals.shape[0]
    report, support = np.empty(dimension, np.int64), np.empty(dimension, np.int64)
    weights = np.empty(dimension)
    for device in range(keys.shape[0]):
        first, size = ptr[device], ptr[device + 1] - ptr[device]
        set_key(words, LANES, keys[device])
        set_key(block, 1, keys[device])
        set_position(block, 1, 0, np.int64(0), COIN)
        chacha(block, 1)
        wanted = join_words(block[0], block[1]) < coin
        n_worked = size if size > padded else padded
        for k in range(n_worked):
            weights[k] = values[first + k] if k < size else 0.0
        drawn, seen = support[:n_worked], weights[:n_worked]
        _draw_support(wanted, seen, size, bound, bits, high, low, guide, words, block, noise, drawn)
        rounded_draws(words, block, noise, bits, high, low, guide, NORMAL, 0, dimension, report)
        for k in range(size):
            report[indices[first + k]] = drawn[k]
        for j in range(dimension):
            totals[j] += report[j]


class PrivUnit:
    r"""Sparse vectors of length at most 1, reported whole: PrivUnitG on a public integer grid.

    The report of a unit vector x is Y = round(2^b N), N standard normal of dimension D, given the
    half space <Y, x> >= 2^b t with probability p and given the other one otherwise: see
    this module for the law, the proof and the bias of the grid. The last coordinate
    is a dummy that makes every input a unit vector; longer inputs are scaled to length 1, and those
    with a value that is not finite count as empty.

    epsilon: of one report, in (0, 16]; dimension: coordinates with the dummy, one more than the
    inputs have; variance: 1 / c^2, which over n is that of each value of the mean of n reports;
    padded: coordinates for which `report` works whatever the input is, more only if it has more.
    Raises PrivacyParameterError if a parameter is out of range, or epsilon too small for the
    dimension.
    """

    def __init__(self, epsilon: float, dimension: int) -> None:
        self.parameters = privunit_parameters(epsilon, dimension)
        self.epsilon, self.dimension = float(epsilon), int(dimension)
        self.variance = self.parameters.c**-2
        self.limits = report_limits(epsilon, dimension)
        law, q = self.parameters, float(ndtr(-self.parameters.t))
        tries = law.p / q + (1.0 - law.p) / (1.0 - q)
        self.padded = min(self.dimension, int(MAX_DIMENSION / tries))

    def report(self, key: NDArray[np.uint32], indices: ArrayLike, values: ArrayLike) -> Any:
        """Return what one device sends.

        key (8,) uint32: the device's, never used before; indices: coordinates, increasing, below
        dimension - 1; values: their values. Returns (dimension,) int32: the report, in units of
        2**-bits. Raises PrivacyParameterError if the coordinates are not increasing or out of
        range.
        """
        indices = np.asarray(indices)
        ptr = np.array([0, indices.shape[0]])
        total = self.sum_reports(np.asarray(key)[None], ptr, indices, values, padded=self.padded)
        return total.astype(np.int32)

    def sum_reports(
        self,
        keys: NDArray[np.uint32],
        indptr: ArrayLike,
        indices: ArrayLike,
        values: ArrayLike,
        *,
        n_jobs: int | None = 1,
        padded: int = 0,
    ) -> NDArray[np.int64]:
        """Return the sum of what many devices send: bit for bit that of their `report`.

        keys (n_devices, 8) uint32: a key for each device, never used before; indptr (array-like of
        int, shape (n_devices + 1,)): row pointers of the inputs in CSR form, without the dummy;
        indices: coordinates, increasing in each row; values: their values; padded: as for
        `add_reports`. Returns (dimension,) int64: the sum. Raises PrivacyParameterError if the rows
        do not fit, or coordinates are not increasing or out of range.
        """
        keys, ptr, at, x = self._rows(keys, indptr, indices, values)
        law = self.parameters
        settings = np.uint64(law.coin), law.t * 2.0**law.bits, law.bits, normal_tables()

        out, adding = np.zeros(self.dimension, np.int64), Lock()
        recorded = active_recorder() is not None

        def work(start: int) -> Any:
            stop = min(start + DEVICES, keys.shape[0])
            totals = np.zeros(self.dimension, np.int64)
            with np.errstate(over="ignore", invalid="ignore"):
                unit = unit_rows(ptr[start : stop + 1], at, x, self.dimension)
                add_reports(keys[start:stop], *unit, *settings, totals, padded)
            with adding:
                np.add(out, totals, out=out)
            shape = stop - start, self.dimension
            return sparse.csr_array(unit[::-1], shape=shape) if recorded else None

        units = in_threads(work, [(at,) for at in range(0, keys.shape[0], DEVICES)], n_jobs)
        if not recorded:
            return out
        inputs = sparse.vstack(units, format="csr") if units else np.empty((0, self.dimension))
        return recorded_reports("PrivUnitG", self, keys, inputs, out)

    def estimate(self, total: ArrayLike, n_devices: int) -> NDArray[np.float64]:
        """Return the mean input of ``n_devices`` devices from the sum of their reports.

        total (array-like of int, shape (dimension,)): the sum; n_devices: number of reports.
        Returns (dimension,) float64: the estimate; the last value is the mean dummy.
        """
        law, n = self.parameters, check_integer("n_devices", n_devices)
        return np.asarray(total, np.float64) * (2.0**-law.bits / (law.c * n))

    def objection(self, report: NDArray[np.int32]) -> str:
        """Return why no honest device sends this, or nothing.

        report (dimension,) int32: what came in. Result: "out of range" for a value beyond the
        `limits`, "impossible norm" for a length beyond them, else "". An honest report has an
        objection once in a billion, at most.
        """
        if max(int(report.max()), -int(report.min())) > self.limits.largest:
            return "out of range"
        y = np.ldexp(report.astype(np.float64), -self.parameters.bits)
        return "" if self.limits.least <= y @ y <= self.limits.most else "impossible norm"

    def _rows(self, keys: Any, indptr: Any, indices: Any, values: Any) -> tuple[Any, Any, Any, Any]:
        """Return checked arrays; what the values are is never a reason to complain."""
        keys = check_keys(keys)
        indptr, indices = np.asarray(indptr, np.int64), np.asarray(indices, np.int64)
        values = np.asarray(values, np.float64)
        shaped = indptr.shape == (keys.shape[0] + 1,) and indices.ndim == 1
        ascending = shaped and indptr[0] == 0 <= np.diff(indptr).min(initial=0)
        holds = ascending and indptr[-1] == indices.shape[0] == values.shape[0]
        rule = "that of these devices' CSR arrays: rise from 0 to the number of indices and values."
        require_that(holds, "indptr (shape)", indptr.shape, rule)
        place = np.repeat(np.arange(keys.shape[0]), np.diff(indptr)) * self.dimension + indices
        inside = ((indices >= 0) & (indices < self.dimension - 1)).all()
        rule = f"in [0, {self.dimension - 1}) and rising in each row: merge duplicates and sort."
        require_that(inside and (np.diff(place) > 0).all(), "indices (shape)", indices.shape, rule)
        return keys, indptr, indices, values
