"""The items' popularity from their noisy counts: an empirical Bayes posterior.

Popularity has a long tail, most of which drowns in noise. Released counts are

    x_j = N_j + sd z_j,   z_j ~ N(0, 1),   N_j ~ sum_k p_k N(g_k, tau_k^2),

g a logarithmic grid of `_GRID_SIZE` points from a small part of sd to the largest x, tau_k half the
distance to the next point: a smooth density of any shape. Its weights p come from `_STEPS` steps of
EM, from p ~ g^-1/2 on, towards the largest likelihood of all x; steps that are left out keep p
smooth. The posterior of N_j is then a mixture in closed form, of parts

    N(m_jk, v_k),   v_k = 1 / (1 / tau_k^2 + 1 / sd^2),   m_jk = v_k (g_k / tau_k^2 + x_j / sd^2).

For Laplace noise these m_jk and v_k are kept, and the parts' likelihoods are Laplace's of the same
variance tau_k^2 + sd^2: right where one of the two is small beside the other.

**What to release next.** Counts do not show how far tastes reach, but they show how well they are
known themselves. With e_j the posterior deviation of N_j, a list of the `LIST` most popular items
is uncertain by sum e_j / sum N_j. Beyond `DOUBT` better counts are worth more than anything that
learns tastes for the same budget. Below it counts have hardly anything left to gain.

Nothing is released here: all of it is post-processing of released counts and of their public noise.

Nonparametric maximum likelihood by EM: N. Laird, Nonparametric maximum likelihood estimation of a
mixing distribution, JASA 73 (1978); on a grid: R. Koenker and I. Mizera, Convex optimization, shape
constraints, compound decisions, and empirical Bayes rules, JASA 109 (2014).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.common import in_slices

Floats = NDArray[np.float64]

# Guard: parts of the prior and steps of EM; smallest popularity there is, as parts of noise and of
# the largest count; bins in one standard deviation of a count, given a part
_GRID_SIZE, _STEPS = 80, 200
_LEAST_OF_NOISE, _LEAST_OF_COUNTS = 0.02, 1e-6
_BINS = 16.0

# Tuned: counts against tastes. Items of a list, and its relative doubt from which counts go first
LIST, DOUBT = 20, 0.15


class Popularity(NamedTuple):
    """Posterior of each item's popularity: means of N_j > 0 and of log N_j, and variance."""

    mean: Floats
    log_mean: Floats
    variance: Floats


def estimate_popularity(noisy: Floats, deviation: float, noise: str = "gaussian") -> Popularity:
    """Return the posterior of popularities, whose distribution is estimated from all counts.

    noisy (n_items,): released counts, weighted or not: unbiased, of any sign; deviation: standard
    deviation of their noise. 0: they are the popularities. Result: in the order and the unit of
    the counts.
    """
    x = np.asarray(noisy, dtype=np.float64)
    top = max(float(x.max()), 0.0)
    least = max(_LEAST_OF_NOISE * deviation, _LEAST_OF_COUNTS * top)
    if not deviation:
        known = np.maximum(x, least or 1.0)
        return Popularity(known, np.log(known), np.zeros_like(known))
    grid = np.geomspace(least, max(top, 10.0 * least), _GRID_SIZE)
    step = grid[1] / grid[0] - 1.0
    width = 0.5 * step * grid
    values, counts = _binned(x, deviation, step)
    weights = _fit(_likelihood(values, deviation, noise, grid, width), counts / x.size, grid)
    found = np.empty((3, x.size))

    def some(items: slice) -> None:
        found[:, items] = _posterior(x[items], deviation, noise, grid, width, weights)

    in_slices(some, x.size, 1)
    mean, log_mean, variance = found
    # no part reaches below 0, but for counts far below it
    return Popularity(np.maximum(mean, least), np.maximum(log_mean, np.log(least)), variance)


def is_known(mean: Floats, deviation: Floats) -> bool:
    """Return whether a list of the most popular items has hardly anything to gain from more counts.

    mean, deviation (n_items,): of the posterior.
    """
    top = np.argsort(-mean, kind="stable")[:LIST]
    return bool(deviation[top].sum() <= DOUBT * mean[top].sum())


def _binned(x: Floats, deviation: float, step: float) -> tuple[NDArray, NDArray]:
    """Middles and sizes of bins: as wide as the noise near 0, as the grid's distances far off."""
    scale = deviation / step
    values, counts = np.unique(np.rint(np.arcsinh(x / scale) * (_BINS / step)), return_counts=True)
    return scale * np.sinh(values * (step / _BINS)), counts


def _likelihood(x: NDArray, deviation: float, noise: str, grid: NDArray, width: NDArray) -> Floats:
    """Density of every x under each part of the prior, relative to its largest."""
    spread = np.sqrt(deviation**2 + width**2)
    z = (x[:, None] - grid) / spread
    log = (-np.sqrt(2.0) * abs(z) if noise == "laplace" else -0.5 * z**2) - np.log(spread)
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))


def _fit(likelihood: NDArray, share: NDArray, grid: NDArray) -> Floats:
    """Weights of the prior's parts by EM, `share` the part of the items in each row."""
    weights = (grid / grid[0]) ** -0.5
    weights /= weights.sum()
    for _ in range(_STEPS):
        weights = weights * ((share / (likelihood @ weights)) @ likelihood)
    return np.asarray(weights)


def _posterior(
    x: NDArray, deviation: float, noise: str, grid: NDArray, width: NDArray, weights: NDArray
) -> Floats:
    """Mean, mean of the logarithm and variance of each item."""
    part = _likelihood(x, deviation, noise, grid, width) * weights
    part /= part.sum(axis=1, keepdims=True)
    trust = width**2 / (width**2 + deviation**2)
    own = np.maximum(grid + trust * (x[:, None] - grid), grid[0])
    variance = trust * deviation**2
    mean = np.sum(part * own, axis=1)
    # E log of a narrow normal, to second order
    log_mean = np.sum(part * (np.log(own) - 0.5 * variance / own**2), axis=1)
    spread = np.sum(part * (variance + (own - mean[:, None]) ** 2), axis=1)
    return np.stack((mean, log_mean, spread))
