"""What guesses, reports and densities show of epsilon: the accounting of audits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr
from scipy.stats import beta, binom, binomtest, chi2, kstest, laplace

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.device_reports.randomizers import (
    CoordinateSampling,
    DeviceStreams,
    LaplaceReport,
    RandomizedResponse,
)
from skdpmf.privacy.recording import DrawRecord, ReportRecord
from skdpmf.privacy.sampler.noise import derived_key, initial_normals

__all__ = [
    "ReportAttack",
    "attack_reports",
    "canary_epsilon",
    "draw_epsilon",
    "event_epsilon",
    "report_reach",
    "reports_epsilon",
]

_MOST = 50.0
_BITS = 64  # of a report of randomised response: all are drawn alike
_FAR = 1e6  # beyond every clip
_SURE = 1.0 - 1e-6
_POINTS = 64  # of the users' factors, each with its opposite


def canary_epsilon(
    n_right: int, n_guesses: int, n_canaries: int, delta: float, confidence: float
) -> float:
    r"""Return a lower confidence limit of epsilon from guesses in one run.

    Each of m canaries is in the data with probability 1/2, independently. Whoever sees the model
    guesses r of them. An (epsilon, delta)-DP model has at least v right guesses with probability

    .. math:: P[W \ge v] + 2 m \delta \max_{1 \le i \le v} \frac{P[v > W \ge v - i]}{i},
        \quad W \sim \mathrm{Binomial}(r, e^\epsilon / (1 + e^\epsilon)),

    at most. The limit is the largest epsilon for which that is below 1 - confidence.

    n_right: v; n_guesses: r; the other canaries were left open; n_canaries: m; delta: in [0, 1).
    Result: 0 if nothing can be said, at most 50. Raises PrivacyParameterError if not 0 <= n_right
    <= n_guesses <= n_canaries.

    Notes
    -----
    Source: T. Steinke, M. Nasr, M. Jagielski, "Privacy auditing with one (1) training run", NeurIPS
    2023, Theorem 5.2.

    Examples
    --------
    >>> round(canary_epsilon(90, 100, 100, 0.0, 0.95), 2)
    1.63
    >>> canary_epsilon(50, 100, 100, 0.0, 0.95)
    0.0
    """
    v, r, m = n_right, n_guesses, n_canaries
    if not 0 <= v <= r <= m:
        raise PrivacyParameterError(
            f"n_right={v!r}, n_guesses={r!r} and n_canaries={m!r} must not fall: count right "
            "guesses, all guesses and all canaries."
        )

    def chance(epsilon: float) -> float:
        p = 1.0 / (1.0 + math.exp(-epsilon))
        tail = float(binom.sf(v - 1, r, p))
        if delta == 0.0 or v == 0:
            return tail
        sums, largest = 0.0, 0.0
        for i in range(1, v + 1):
            sums += float(binom.pmf(v - i, r, p))
            largest = max(largest, sums / i)
        return tail + 2.0 * m * delta * largest

    level = 1.0 - confidence
    if chance(0.0) >= level:
        return 0.0
    if chance(_MOST) < level:
        return _MOST
    return float(brentq(lambda epsilon: chance(epsilon) - level, 0.0, _MOST))


def event_epsilon(n_first: int, n_second: int, n_runs: int, confidence: float) -> float:
    r"""Return a lower confidence limit of epsilon from an event on either of two neighbours.

    A pure epsilon is at least log(P / P'), P and P' the event's probabilities. They are bounded by
    Clopper and Pearson's limits, each with half of the error.

    n_first, n_second: runs in which the event was seen, on the one and on the other; n_runs: runs
    on each. Result: at least 0.

    Examples
    --------
    >>> round(event_epsilon(950, 50, 1000, 0.95), 2)
    2.66
    >>> event_epsilon(50, 50, 1000, 0.95)
    0.0
    """
    level = (1.0 - confidence) / 2.0
    if n_first == 0:
        return 0.0
    low = float(beta.ppf(level, n_first, n_runs - n_first + 1))
    high = 1.0
    if n_second < n_runs:
        high = float(beta.ppf(1.0 - level, n_second + 1, n_runs - n_second))
    return max(0.0, math.log(low / high))


# -- devices' reports ------------------------------------------------------------------------------


def report_reach(record: ReportRecord, other: ReportRecord) -> float:
    """Return how far inputs go, relative to what a report's epsilon covers; at most 1 is covered.

    record, other: the same call on neighbouring data. Result: the largest length of a vector for
    `PrivUnit` and magnitude of a value for `CoordinateSampling`; bits that differ for
    `RandomizedResponse`, and the l1 distance of clipped values for `LaplaceReport`, over what they
    are calibrated to.
    """
    randomiser, x, y = record.randomiser, record.inputs, other.inputs
    if isinstance(randomiser, PrivUnit):
        squares = [np.asarray(z.multiply(z).sum(axis=1)).max(initial=0.0) for z in (x, y)]
        # `PrivUnit` covers what rounding leaves of it
        return float(np.sqrt(np.max(squares))) / (1.0 + 1e-11)
    if isinstance(randomiser, CoordinateSampling):
        return float(np.max(np.abs([x, y]), initial=0.0))
    if isinstance(randomiser, RandomizedResponse):
        return float(np.max((x != y).sum(axis=1), initial=0)) / randomiser.n_differing
    B = randomiser.bound
    moved = np.abs(np.clip(x, -B, B) - np.clip(y, -B, B)).sum(axis=1)
    return float(moved.max(initial=0.0)) / (2.0 * B * randomiser.n_differing)


def reports_epsilon(record: ReportRecord, other: ReportRecord, n_devices: int) -> float:
    """Return the epsilon of all reports in a call whose inputs differ.

    One rating that moves to another device changes the reports of both, each by a part of what it
    covers.

    record, other: the same call on neighbouring data; n_devices: devices whose inputs differ.
    Result: in proportion to the values that differ for `RandomizedResponse` and `LaplaceReport`,
    whole for every device for the others.
    """
    randomiser = record.randomiser
    if isinstance(randomiser, RandomizedResponse | LaplaceReport):
        n_values = np.count_nonzero(record.inputs != other.inputs)
        return float(randomiser.epsilon * n_values / randomiser.n_differing)
    return float(randomiser.epsilon * n_devices)


class ReportAttack(NamedTuple):
    """Account for repeated reports.

    Parameters
    ----------
    epsilon : float
        Lower confidence limit of a report's.
    surely : float
        The same limit with an error of 1e-6.
    chance : float
        Smallest p of the tests that reports have the law that is stated.
    """

    epsilon: float
    surely: float
    chance: float


def attack_reports(randomiser: Any, n_reports: int, confidence: float) -> ReportAttack:
    r"""Attack one report: draw it many times for the two inputs that are farthest apart.

    - `PrivUnit`, inputs x and -x: the event <Y, x> >= 2^b t has odds that differ by exactly
      epsilon in the ideal. Coordinates outside of x must be normal, and <Y, x> of the stated law.
    - `CoordinateSampling` and `RandomizedResponse`: the event is what is sent. All bits are drawn
      alike; the limit is that of one bit times n_differing.
    - `LaplaceReport`: sum |noise| has a Gamma law, which gives an upper limit of the scale; the
      noise must have the law of Laplace.

    Inputs are three or ten times too large, so that a device that does not bound them shows.

    randomiser (PrivUnit, CoordinateSampling, RandomizedResponse or LaplaceReport): what devices
    use; n_reports: of either input. Result: limits, and whether the law is that of the proof.

    Examples
    --------
    >>> attack = attack_reports(CoordinateSampling(1.0, 10), 4000, 0.99)
    >>> 0.8 < attack.epsilon < 1.05, attack.chance > 1e-6
    (True, True)
    """
    streams = DeviceStreams()
    keys = [streams.keys("audit", i, n_reports) for i in (0, 1)]
    if isinstance(randomiser, PrivUnit):
        return _attack_unit(randomiser, keys, confidence)
    if isinstance(randomiser, LaplaceReport):
        return _attack_laplace(randomiser, keys, confidence)
    inputs, shape, k = (3, -3), [n_reports], 1
    if isinstance(randomiser, RandomizedResponse):
        inputs, shape, k = (1, 0), [n_reports, _BITS], randomiser.n_differing
    first, second = (
        int((randomiser.report(some, np.full(shape, x)) > 0).sum())
        for some, x in zip(keys, inputs, strict=True)
    )
    n = math.prod(shape)
    limit, surely = _event_limits(first, second, n, confidence)
    chance = _odds_test(first, second, n, randomiser.epsilon / k)
    return ReportAttack(k * limit, k * surely, chance)


def _event_limits(n_first: int, n_second: int, n: int, confidence: float) -> tuple[float, float]:
    first, second = (event_epsilon(n_first, n_second, n, c) for c in (confidence, _SURE))
    return first, second


def _odds_test(n_first: int, n_second: int, n: int, epsilon: float) -> float:
    """Return p of: the one has the probability e / (1 + e), the other 1 / (1 + e)."""
    p = 1.0 / (1.0 + math.exp(-epsilon))
    tests = binomtest(n_first, n, p), binomtest(n - n_second, n, p)
    return float(min(test.pvalue for test in tests))


def _attack_unit(randomiser: PrivUnit, keys: list[Any], confidence: float) -> ReportAttack:
    t, scale = randomiser.parameters.t, 2.0**-randomiser.parameters.bits
    q = float(ndtr(-t))
    gain = math.exp(randomiser.epsilon)
    p = gain * q / (1.0 - q + gain * q)
    along, others = [], []
    for some, x in zip(keys, (3.0, -3.0), strict=True):
        sent = [randomiser.report(key, [0], [x]) for key in some]
        along.append(scale * np.array([y[0] for y in sent]))
        others += [y[1:257] * scale for y in sent[:1000]]
    first, second = (int((values >= t).sum()) for values in along)
    limits = _event_limits(first, second, len(keys[0]), confidence)

    def law(s: NDArray[np.float64]) -> NDArray[np.float64]:
        low = (1.0 - p) * ndtr(s) / (1.0 - q)
        return np.where(s < t, low, (1.0 - p) + p * (ndtr(s) - ndtr(t)) / q)

    samples = [(along[0], law), (-along[1], law), (np.concatenate(others), ndtr)]
    return ReportAttack(*limits, float(min(kstest(x, cdf).pvalue for x, cdf in samples)))


def _attack_laplace(randomiser: LaplaceReport, keys: list[Any], confidence: float) -> ReportAttack:
    B, k = randomiser.bound, randomiser.n_differing
    parts = []
    for some, sign in zip(keys, (1.0, -1.0), strict=True):
        values = np.full((len(some), _BITS), 10.0 * sign * B)
        parts.append(randomiser.report(some, values).ravel() - sign * B)
    noise = np.concatenate(parts)
    twice, degrees = 2.0 * np.abs(noise).sum(), 2 * noise.size
    limit, surely = (
        2.0 * B * k * float(chi2.ppf(1.0 - c, degrees)) / twice for c in (confidence, _SURE)
    )
    stated = 2.0 * B * k / randomiser.epsilon
    chance = float(kstest(noise / stated, laplace.cdf).pvalue)
    return ReportAttack(limit, surely, chance)


# -- draws from a posterior ------------------------------------------------------------------------


def draw_epsilon(record: DrawRecord, other: DrawRecord, slot: int, neighbors: str) -> float:
    r"""Return the epsilon that a draw needs for a user's two records: by Theorem 2, at the worst V.

    That is a g, or 2 a g for "replace", with g = -(1/a) ln E[exp(-a f(u, V))] over the prior of
    the user's factors u, for the larger of the two records. Twice the same number of draws of u,
    of opposite signs, have the symmetry that the proof needs, so that no honest loss exceeds its
    bound. V is chosen to be far off: predictions are at either end of their range for all items,
    or for half of them. The arithmetic here is its own, and shares nothing with the samplers.

    record, other: the same draw on neighbouring data; slot: row in which they differ. Result: at
    most what is stated, if the loss is bounded as it should be.
    """
    factor = 2.0 if neighbors == "replace" else 1.0
    return factor * max(_largest_loss(one, slot) for one in (record, other))


def _largest_loss(record: DrawRecord, slot: int) -> float:
    """Return the largest a g over points that are tried."""
    start, stop = record.targets.indptr[slot : slot + 2]
    e, w = record.targets.data[start:stop], float(record.weights[slot])
    half = initial_normals(derived_key(0, "audit"), (_POINTS, 1), "users' factors")
    u = np.concatenate((half, -half))
    sign, order = np.where(e < 0.0, -1.0, 1.0), np.arange(e.size)
    patterns = [sign, sign * np.where(order % 2, -1.0, 1.0), np.where(order % 2, -1.0, 1.0)]
    patterns += [np.ones(e.size), np.zeros(e.size)]
    biases = [np.zeros(e.size)]
    if record.stds[2] > 0.0:
        biases.append(-_FAR * sign)
    largest = 0.0
    for v in patterns:
        for b in biases:
            p = np.clip(u * (_FAR**2 * v) + b, -record.clip, record.clip)
            loss = record.inverse_temperature * w * np.sum((e - p) ** 2, axis=1)
            largest = max(largest, math.log(loss.size) - float(logsumexp(-loss)))
    return largest
