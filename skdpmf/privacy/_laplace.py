r"""Exact sampler of the rounded Laplace law on the integers.

For a public integer ``bits`` = b the law is that of round(2^b L), L with the density exp(-|x|)/2:

.. math:: P(0) = 1 - e^{-t/2}, \quad P(n) = e^{-|n| t} \sinh(t/2), \quad t = 2^{-b}.

**Method.** That of ``_normal.py``, with its kernels: cells of width h = 2^-8 cover [0, 16), cell c
begins at c h and is chosen with probability q_c proportional to h exp(-c h), and the place r in it
is kept with probability p = exp(-r), else everything is drawn again. One more outcome, of
probability q_T proportional to exp(-16), stands for all x >= 16: the law has no memory, so the
value is 16 plus one drawn anew. Magnitudes stop at 2^60, which no release tells from any above
2^53: released values are clamped to 2^52 units.

**Theorem.** Take the bits as uniform. Let Q be the law that the code draws from, 7 <= b <= 51, and
P_s the law of round(2^b s L). There is a number s with |s - 1| <= 2^-61 such that for every
integer n, |n| < 2^60,

.. math:: |\ln(Q(n) / P_s(n))| \le \mathrm{LAPLACE\_ETA} = 2^{-56}.

There is no exceptional set. Q is exactly symmetric. A release of N values whose scale is 2^b units
is therefore, for integer vectors of l1 distance d, (d 2^-b / s + 2 N LAPLACE_ETA)-DP, pure:
its probabilities are products of Q, and P_s(n)/P_s(m) <= exp(|n - m| 2^-b / s) because y +
round(L) = round(y + L). `calibrate_laplace_grid` makes the scale larger by more than 1/s.

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

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from skdpmf.privacy._chacha import compiled
from skdpmf.privacy._normal import (
    PRECISION,
    TAIL_CELL,
    cumulative_table,
    exp_minus,
    rounded_draws,
    staircase_tables,
)

__all__ = ["LAPLACE", "LAPLACE_ETA", "laplace_tables", "rounded_laplace"]

LAPLACE = (1.0, 0.0, 0.0)  # base, step and curve of the law
LAPLACE_ETA = 2.0**-56


def _cumulative_table() -> list[int]:
    """Return the `cumulative_table` of the cells and of the tail, in units of h."""
    ratio = exp_minus(8)
    weights = [1 << PRECISION]
    for _ in range(TAIL_CELL):
        weights.append((weights[-1] * ratio) >> PRECISION)
    weights[-1] <<= 8  # the tail weighs exp(-16), not h exp(-16)
    return cumulative_table(weights)


@cache
def laplace_tables() -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the Laplace law's `staircase_tables`, with the tail as the last cell."""
    return staircase_tables(_cumulative_table())


@compiled
def rounded_laplace(key, bits, high, low, guide, start, stop, out):  # type: ignore[no-untyped-def]
    """Draw the values [start, stop) of a stream of the Laplace law, as `rounded_draws`."""
    rounded_draws(key, bits, high, low, guide, LAPLACE, start, stop, out)
