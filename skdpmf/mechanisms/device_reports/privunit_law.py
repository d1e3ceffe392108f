r"""Parameters of PrivUnitG for an epsilon, and limits that an honest report keeps to.

Notation, theorem and proof are in ``_privunit.py``.

**What no honest device sends.** Each y has P(Y = y) <= Q^D(y) p / q-, by the proof, so that
P(Y in A) <= Q^D(A) p / q- for every set A. Let A be the reports with a value beyond ``largest``, or
with a squared length outside of [``least``, ``most``], in units of 4^b (`report_limits`). The
length of 2^-b Y is within r = sqrt(D) 2^-(b+1) of that of a normal vector, whence

.. math:: Q^D(A) \le e^{D \eta} (2 D \Phi(-z) + P(\chi_D < s) + P(\chi_D > l)) + D \tau

with z = 2^-b largest, s = sqrt(least) + r, l = sqrt(most) - r, and the sampler's eta and tau. The
three terms are made 1/2, 1/4 and 1/4 of 0.99 REFUSAL_RATE q- / p. A server that refuses A then
refuses an honest report once in a billion at most, for epsilon <= 8 or D <= 10^5; D tau p / q- is
less than 1.4e-9 anywhere. It looks at nothing but the report, which costs no privacy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy.optimize import brentq
from scipy.special import gammainccinv, gammaincinv, ndtr, ndtri

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.device_reports.streams import (
    bernoulli_threshold,
    check_epsilon,
    check_integer,
)
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU

__all__ = [
    "GRID_BITS",
    "NORM_TOLERANCE",
    "REFUSAL_RATE",
    "PrivUnitParameters",
    "ReportLimits",
    "privunit_parameters",
    "report_limits",
]

GRID_BITS = 27  # the most for which 13 * 2^b, the sampler's largest magnitude, is an int32
NORM_TOLERANCE = 1e-12
REFUSAL_RATE = 1e-9  # of honest reports, at most
_MAX_DIMENSION = 2**24


class PrivUnitParameters(NamedTuple):
    """Public parameters of PrivUnitG on the grid.

    Parameters
    ----------
    t : float
        Threshold of the half space, in units of 2**bits.
    p : float
        Probability of the upper half space, coin / 2**64.
    c : float
        Length of the mean report, in units of 2**bits.
    bits : int
        The grid: a standard deviation is 2**bits integers.
    slack : float
        Part of epsilon that the grid costs.
    coin : int
        64-bit words below it choose the upper half space.
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

    Examples
    --------
    >>> t, p, c, bits, slack, _ = privunit_parameters(1.0, 27_000)
    >>> round(t, 5), round(p, 5), round(c, 5), bits, slack < 1e-5
    (0.39746, 0.58933, 0.39746, 27, True)
    """
    eps, D = check_epsilon(epsilon), check_integer("dimension", dimension, _MAX_DIMENSION)
    gain = math.expm1(eps)
    # c(t) = gain phi(t) / (1 + gain q(t)) is largest where t = c(t)
    t = float(brentq(lambda s: s * (1.0 + gain * ndtr(-s)) - gain * _density(s), 0.0, 9.0))
    q = float(ndtr(-t))
    low, high = _mass_bounds(t, D, bits)
    coin = bernoulli_threshold(eps, low) if low > 0.0 else 0
    p = coin / 2**64
    if not high <= p * (1.0 - 2.0**-40):
        raise PrivacyParameterError(
            f"epsilon={eps!r} is too small for dimension={D} on a grid of 2**-{bits}: rounding "
            "would say more than the report. Report fewer coordinates, or spend more on it."
        )
    slack = eps - (math.log(p / (1.0 - p)) - math.log(q / (1.0 - q)))
    c = _density(t) * (p - q) / (q * (1.0 - q))
    return PrivUnitParameters(t, p, c, bits, max(slack, 0.0), coin)


class ReportLimits(NamedTuple):
    """What an honest report keeps to, but for one in a billion.

    Parameters
    ----------
    largest : int
        Magnitude of a value, in units of 2**-bits.
    least, most : float
        Squared length of the report, in standard deviations of a value.
    """

    largest: int
    least: float
    most: float


def report_limits(epsilon: float, dimension: int, rate: float = REFUSAL_RATE) -> ReportLimits:
    """Return limits beyond which an honest report is with a probability of at most ``rate``.

    epsilon, dimension: as for `privunit_parameters`; rate: half of it is for values, a quarter each
    for short and for long reports.

    Examples
    --------
    >>> largest, least, most = report_limits(4.0, 2000)
    >>> round(largest / 2**GRID_BITS, 2), round(least), round(most)
    (7.65, 1610, 2446)
    """
    law = privunit_parameters(epsilon, dimension)
    times = law.p / _mass_bounds(law.t, dimension, law.bits)[0]
    tail = 0.99 * rate / times  # the rest covers the sampler, and the floats here
    z = -float(ndtri(0.25 * tail / dimension))
    rounding = math.sqrt(dimension) * 2.0 ** -(law.bits + 1)
    half = 0.5 * dimension
    shortest = max(math.sqrt(2.0 * gammaincinv(half, 0.25 * tail)) - rounding, 0.0)
    longest = math.sqrt(2.0 * gammainccinv(half, 0.25 * tail)) + rounding
    # a sum of squares in float64 errs by less than 1e-8
    return ReportLimits(
        math.ceil(z * 2.0**law.bits), shortest**2 * (1.0 - 1e-8), longest**2 * (1.0 + 1e-8)
    )


def _density(t: float) -> float:
    return math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)


def _shift(t: float, dimension: int, bits: int) -> float:
    """Return d, by how much rounding may move the half space (1, 2 and 3 of the proof)."""
    root = math.sqrt(dimension)
    length = 1.01 * (NORM_TOLERANCE + dimension * 2.0**-53)
    return root * 2.0 ** -(bits + 1) + 13.2 * dimension * root * 2.0**-53 + (t + 1.0) * length


def _mass_bounds(t: float, dimension: int, bits: int) -> tuple[float, float]:
    """Return q- and q+, with a margin for the float operations that make them."""
    d = _shift(t, dimension, bits)
    sampler = dimension * (SAMPLER_ETA + SAMPLER_TAU)
    low, high = float(ndtr(-(t + d))), float(ndtr(-(t - d)))
    return (low - sampler) * (1.0 - 2.0**-40), (high + sampler) * (1.0 + 2.0**-40)
