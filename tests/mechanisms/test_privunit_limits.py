"""What an honest PrivUnitG report keeps to: tails of its law, and what is objected to."""

import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from skdpmf.mechanisms.device_reports.privunit import (
    GRID_BITS,
    REFUSAL_RATE,
    PrivUnit,
    privunit_parameters,
    report_limits,
)
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU

from .test_privunit import keys_for, reports


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("dimension", [1, 2, 41, 27_000, 2**24])
def test_limits_refuse_one_honest_report_in_a_billion_at_most(epsilon, dimension):
    law, limits = privunit_parameters(epsilon, dimension), report_limits(epsilon, dimension)
    with mpmath.workdps(40):
        D, sd = mpmath.mpf(dimension), mpmath.mpf(2) ** law.bits
        beyond = 2 * D * mpmath.ncdf(-(limits.largest + 0.5) / sd)
        # lengths of a normal vector before it was rounded, by at most sqrt(D) / 2
        root = mpmath.sqrt(D) / (2 * sd)
        tails = []
        for square, tail in ((limits.least, "low"), (limits.most, "high")):
            square *= 1 + (1e-8 if tail == "low" else -1e-8)  # what a sum in float64 may err by
            length = mpmath.sqrt(square) + (root if tail == "low" else -root)
            tails.append(chi_squared_tail(D, length**2, tail) if square > 0 else 0)
        times = law.p / (mpmath.ncdf(-law.t) * (1 - 1e-6))  # the half space may be a hair smaller
        normal = (beyond + sum(tails)) * mpmath.exp(D * SAMPLER_ETA)
        # for 1e7 values at epsilon 16 the bound on the sampler's own tails is above the rate
        sampler = 0 if epsilon > 8 and dimension > 1e5 else D * SAMPLER_TAU
        assert times * (normal + sampler) <= REFUSAL_RATE
        assert times * D * SAMPLER_TAU < 1.4e-9
        # nor is more let through than the rate demands
        assert times * (beyond + sum(tails)) > (0.74 if dimension > 2 else 0.49) * REFUSAL_RATE
    assert limits.largest < 10.5 * 2**GRID_BITS
    assert limits.largest > 6.0 * 2**GRID_BITS


def chi_squared_tail(D, square, tail):
    """P(chi^2_D < square), or > square."""
    if D > 10_000:  # mpmath's series is too long: scipy's own, which the others are checked with
        gamma = special.gammainc if tail == "low" else special.gammaincc
        return mpmath.mpf(float(gamma(float(D) / 2, float(square) / 2)))
    ends = (0, square / 2) if tail == "low" else (square / 2, mpmath.inf)
    return mpmath.gammainc(D / 2, *ends, regularized=True)


@pytest.mark.parametrize(("epsilon", "row"), [(1.0, []), (4.0, [0.6, -0.8]), (8.0, [1.0])])
def test_values_and_lengths_have_the_tails_that_the_limits_are_made_of(epsilon, row):
    # as limits of one in a billion are never reached, those of one in 50: a report may be beyond
    # them `times` as often as a normal vector, and is about as often
    n, dimension, rate = 4000, 30, 0.02
    randomiser, law = PrivUnit(epsilon, dimension), privunit_parameters(epsilon, dimension)
    limits = report_limits(epsilon, dimension, rate)
    y = reports(row, dimension, keys_for(f"limits {epsilon}", n), law, [1, 5][: len(row)])
    beyond = np.abs(y).max(axis=1) > limits.largest
    squares = (np.ldexp(y, -law.bits) ** 2).sum(axis=1)
    beyond |= (squares < limits.least) | (squares > limits.most)
    assert beyond.mean() < rate + 4.5 * math.sqrt(rate / n)
    assert not any(randomiser.objection(report) for report in y.astype(np.int32))
    # an empty report tilts the dummy alone: the rest is nearly a normal vector
    if not row:
        low, q = stats.binom.interval(1 - 1e-5, n, rate / (law.p / special.ndtr(-law.t)))
        assert 0.5 * low <= beyond.sum() <= q


def test_a_report_beyond_the_limits_is_objected_to():
    randomiser = PrivUnit(4.0, 200)
    limits = randomiser.limits
    honest = randomiser.report(keys_for("objection", 1)[0], [3], [1.0])
    assert randomiser.objection(honest) == ""
    for value in (-limits.largest, limits.largest):
        forged = honest.copy()
        forged[7] = value
        assert randomiser.objection(forged) == ""
        forged[7] += np.sign(value)
        assert randomiser.objection(forged) == "out of range"
    for value in (2**31 - 1, -(2**31)):  # whose square, or negative, is no int32
        forged[7] = value
        assert randomiser.objection(forged) == "out of range"
    ones = np.where(np.arange(200) % 2, 1, -1)
    for square, reason in (
        (0.0, "impossible norm"),
        (limits.least * 0.999, "impossible norm"),
        (limits.least * 1.001, ""),
        (limits.most * 0.999, ""),
        (limits.most * 1.001, "impossible norm"),
    ):
        forged = np.rint(ones * math.sqrt(square / 200) * 2.0**GRID_BITS).astype(np.int32)
        assert randomiser.objection(forged) == reason
