r"""From noise to (epsilon, delta) and back: the exact Gaussian accountant, and pure epsilon.

A release with L2 sensitivity D and noise N(0, (z D)^2 I), z the noise multiplier, is exactly
mu-GDP with mu = 1/z. Releases, also adaptively chosen ones, compose exactly by
mu^2 = sum of mu_i^2, and mu-GDP is (epsilon, delta)-DP iff delta >= `gaussian_delta` (mu, epsilon),

.. math:: \delta(\epsilon) = \Phi(\mu/2 - \epsilon/\mu) - e^\epsilon \Phi(-\mu/2 - \epsilon/\mu).

**Rounding.** Everything that says "is met" asks for it with a margin of 1e-9 in ln delta, far above
the error of the evaluation (below). `gaussian_mu` asks for twice the margin of
`gaussian_epsilon`, so that a budget, calibrated and accounted again, is never exceeded by rounding.

Sources: J. Dong, A. Roth, W. Su, "Gaussian differential privacy", JRSS B 84 (2022);
B. Balle, Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018.

**Numerics** of the trade-off curve, in logarithms. With a = epsilon/mu - mu/2,
b = epsilon/mu + mu/2, R(x) = Phi(-x)/phi(x) (Mills' ratio) and
e^epsilon phi(b) = phi(a), the curve is delta = phi(a) (R(a) - R(b)), which neither overflows nor
cancels for mu >= 1. For mu < 1 the difference is the integral over [a, b] of
-R'(x) = 1 - x R(x) > 0, by Gauss-Legendre: nothing cancels. ln delta is within 1e-10 for
mu 1e-8..1e3, epsilon 1e-6..1e3 and delta down to 1e-300 (tests compare with mpmath).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Self

import numpy as np
from scipy import special

from skdpmf.exceptions import PrivacyParameterError, require_that
from skdpmf.privacy.sampler.grid import as_float

_BELOW_1 = math.nextafter(1.0, 0.0)
MARGIN = 1e-9  # in ln delta, above every error of the evaluation
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF, _SQRT_HALF_PI = math.sqrt(0.5), math.sqrt(0.5 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_NODES, _WEIGHTS = 0.5 + 0.5 * _NODES, 0.5 * _WEIGHTS  # on [0, 1]
# 1 - x R(x) ~ x^-2 (1 - 3 x^-2 + 3*5 x^-4 - ...), highest power first; 3e-13 off at x = 30
_TAIL_SERIES = (135135.0, -10395.0, 945.0, -105.0, 15.0, -3.0, 1.0)


@dataclass(frozen=True)
class SamplerSlack:
    r"""What code spends more than the ideal mechanism, whose noise it draws only nearly.

    The ideal mechanism is (epsilon, delta)-DP. The code draws N noise values one by one, each from
    a law Q that may depend on what was released before and is near the ideal P: outside a set B
    of values, :math:`e^{-\eta} \le Q/P \le e^\eta`, and P(B), Q(B) <= tau. Then the code is

    .. math:: (\epsilon + 2N\eta,\; e^{N\eta}\delta + (1 + e^{\epsilon + 2N\eta}) N\tau)\text{-DP}.

    *Proof.* Let x, x' be neighbours; P, P', Q, Q' now mean laws of the whole output given x, x';
    G, G' the outputs for which no noise value, output minus statistic of x (of x'), is in B. By the
    union bound Q(not G), P'(not G') <= N tau; on G, Q <= e^{N eta} P; on G', P' <= e^{N eta} Q'.
    For an event S therefore

    - Q(S) <= N tau + Q(S and G) <= N tau + e^{N eta} P(S and G),
    - P(S and G) <= e^epsilon P'(S and G) + delta (the ideal guarantee),
    - P'(S and G) <= N tau + e^{N eta} Q'(S).

    Insert from the bottom up; e^{epsilon + N eta} <= e^{epsilon + 2 N eta}. QED.

    *Gaussian noise* does better, and this is what is counted here: apply the ideal
    guarantee to S and G and G' instead. What is left is P(not G'), without e^epsilon. A value whose
    statistics differ by s_i noise standard deviations is in B given x' with probability at most
    g(s_i) = Phi(z + s_i), z = Phi^-1(tau) (Neyman and Pearson, whatever B is), and the s_i^2 add
    up to mu^2 at most. g is convex with g'' increasing for s <= |z| - 1, so
    (g(s) - g(0) - g'(0) s) / s^2 is increasing and for mu <= |z| - 1

    .. math:: \sum_i g(s_i) \le N\tau + \varphi(z) \mu \sqrt{N} + \Phi(z + \mu) =: t,

    by the Cauchy-Schwarz inequality for the second term (beyond, t = N). So the code is
    :math:`(\epsilon + 2N\eta, e^{N\eta}(\delta + t) + N\tau)`-DP.

    *Many releases* together need less. A release with noise multiplier z_r moves none of its values
    by more than 1/z_r. Where all s_i <= m, m <= mu and m <= |z| - 1, the increasing quotient is at
    most its value at m, below g(m) / m^2, and the s_i^2 add up to mu^2, so that

    .. math:: \sum_i g(s_i) \le N\tau + \varphi(z) \mu \sqrt{N} + (\mu/m)^2 \Phi(z + m).

    This is the t above for m = mu. ``largest`` is the largest 1/z_r over mu, and
    m = max(largest mu, min(mu, 3.5)): any m above all s_i will do, and g(3.5) is 2.3 * 10^-10 for
    the tau of our sampler. So t never falls when mu grows, and up to 3.5 it is that of one release.
    """

    n_values: int
    eta: float
    tau: float
    largest: float = 1.0

    @classmethod
    def checked(cls, n_values: int = 0, eta: float = 0, tau: float = 0, largest: float = 1) -> Self:
        """Return the slack of checked parameters."""
        rule = "an integer >= 0: pass the number of noised values."
        require_that(n_values >= 0 and n_values % 1 == 0, "n_values", n_values, rule)
        rule = "in [0, 1), tau below 0.5: pass the sampler's proven bound."
        require_that(0.0 <= eta < 1.0, "eta", eta, rule)
        require_that(0.0 <= tau < 0.5, "tau", tau, rule)
        rule = "in (0, 1]: pass the largest release's mu over all's."
        require_that(0.0 < largest <= 1.0, "largest", largest, rule)
        return cls(int(n_values), float(eta), float(tau), float(largest))

    @property
    def epsilon(self) -> float:
        """Return the part that is added to epsilon."""
        return 2.0 * self.n_values * self.eta

    @property
    def growth(self) -> float:
        """Factor of probabilities."""
        return math.exp(min(self.n_values * self.eta, 700.0))

    def delta(self, mu: float) -> float:
        """Return what the sampler adds to delta: t and N tau of the proof."""
        mass = self.n_values * self.tau
        if mass == 0.0:
            return 0.0
        z = float(special.ndtri(self.tau))
        parts = max(1.0, min(1.0 / self.largest, mu / 3.5))  # mu / m of the proof
        if mu / parts > -z - 1.0:
            return 1.0
        density = math.exp(-0.5 * z * z - _LOG_SQRT_2PI)
        tail = parts * parts * float(special.ndtr(z + mu / parts))
        shifted = density * mu * math.sqrt(self.n_values) + tail
        return min(1.0, mass + self.growth * (mass + shifted * (1.0 + 1e-9)))

    def target(self, mu: float, delta: float) -> float:
        """Return the delta left to the ideal mechanism; not positive where nothing is."""
        return (delta - self.delta(mu)) / self.growth


@lru_cache(maxsize=2**12)  # pure; a fit plans its releases several times
def is_met(mu: float, epsilon: float, delta: float, slack: SamplerSlack, margin: float) -> bool:
    """Return whether mu-GDP noise from the code's sampler is surely (epsilon, delta)-DP."""
    ideal, target = epsilon - slack.epsilon, slack.target(mu, delta)
    if ideal < 0.0 or target <= 0.0:
        return False
    return log_delta(mu, ideal) + margin <= math.log(target)


def log_delta(mu: float, epsilon: float) -> float:
    """Return ln delta for finite mu > 0 and epsilon >= 0."""
    a, b = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    if a > 1e150:
        return -math.inf
    log_density = -0.5 * a * a - _LOG_SQRT_2PI
    if mu < 1.0:
        mean = float(_WEIGHTS @ _mills_slope(a + mu * _NODES))
        return log_density + math.log(mu) + math.log(mean)
    tail = _mills(b)
    if a > 0.0:
        return log_density + math.log(_mills(a) - tail)
    return math.log(float(special.ndtr(-a)) - math.exp(log_density) * tail)


def _mills(x: float) -> float:
    return _SQRT_HALF_PI * float(special.erfcx(x * _SQRT_HALF))


def _mills_slope(x: Any) -> Any:
    """Return -R'(x) = 1 - x R(x) for an array x > -1."""
    near = np.minimum(x, 30.0)
    far = np.maximum(x, 30.0) ** -2.0
    direct = 1.0 - near * _SQRT_HALF_PI * special.erfcx(near * _SQRT_HALF)
    return np.where(x < 30.0, direct, far * np.polyval(_TAIL_SERIES, far))


def bisect(met: Callable[[float], bool], good: float, bad: float, precision: float = 0.0) -> float:
    """Return the last double, or one near it, that is met on the way from a met one to another."""
    while True:
        middle = good + (bad - good) / 2.0
        if middle in (good, bad) or abs(bad - good) < precision * abs(bad):
            return good
        if met(middle):
            good = middle
        else:
            bad = middle


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the least delta for which mu-GDP gives (epsilon, delta)-DP: the module's formula.

    mu and epsilon are 0 to infinity. The relative error is about 1e-11, not rounded to the private
    side.
    """
    mu, epsilon = _require_mu(mu), _require_epsilon(epsilon)
    if mu == 0.0 or math.isinf(epsilon):
        return 0.0
    return 1.0 if math.isinf(mu) else min(1.0, math.exp(log_delta(mu, epsilon)))


def gaussian_epsilon(mu: float, delta: float, **sampler: Any) -> float:
    """Return the least epsilon for which mu-GDP gives (epsilon, delta)-DP, rounded up.

    mu is 0 to infinity, 0 <= delta < 1. The answer is infinite where no epsilon will do, as for
    delta = 0 unless mu = 0. sampler: n_values, eta, tau and largest of `SamplerSlack`, which counts
    where values are noised by a finite-precision sampler.
    """
    mu, delta = _require_mu(mu), _require_delta(delta)
    slack = SamplerSlack.checked(**sampler)
    if mu == 0.0 and slack.n_values == 0:
        return 0.0
    if delta == 0.0 or math.isinf(mu) or slack.target(mu, delta) <= 0.0:
        return math.inf
    least = slack.epsilon
    if mu == 0.0 or is_met(mu, least, delta, slack, MARGIN):
        return least
    # the search starts where the tail bound delta <= Phi(-a) <= exp(-a^2 / 2) / 2 meets it
    high = least + mu * (math.sqrt(-2.0 * math.log(slack.target(mu, delta))) + mu / 2.0)
    while not is_met(mu, high, delta, slack, MARGIN):
        high *= 2.0
    return bisect(lambda epsilon: is_met(mu, epsilon, delta, slack, MARGIN), high, least)


def gaussian_mu(epsilon: float, delta: float, **sampler: Any) -> float:
    """Return the largest mu for which mu-GDP gives (epsilon, delta)-DP, rounded down.

    The calibration of Gaussian noise: one release has noise multiplier 1 / mu, and releases with
    mu_i share the budget as long as the sum of mu_i^2 is at most mu^2.

    Infinite epsilon gives mu = infinity; delta = 0 gives mu = 0, as no Gaussian noise is pure
    epsilon-DP. sampler: as for `gaussian_epsilon`, of which it is the inverse; its slack must fit
    in as well, and raises PrivacyParameterError where it exceeds the budget alone.
    """
    epsilon, delta = _require_epsilon(epsilon), _require_delta(delta)
    slack = SamplerSlack.checked(**sampler)
    if math.isinf(epsilon):
        return math.inf
    if delta == 0.0:
        return 0.0
    if epsilon < slack.epsilon or slack.target(0.0, delta) <= 0.0:
        raise PrivacyParameterError(
            f"(epsilon, delta)=({epsilon!r}, {delta!r}) must exceed the slack of the sampler for "
            f"{slack.n_values} noised values, ({slack.epsilon:.3g}, {slack.delta(0.0):.3g}): raise "
            "the budget, or release fewer values."
        )

    def met(mu: float) -> bool:
        # _up: where the slack eats nearly all of delta, an ulp of mu outweighs the margin
        return is_met(rounded_up(mu), epsilon, delta, slack, 2.0 * MARGIN)

    spare = epsilon - slack.epsilon
    a = math.sqrt(-2.0 * math.log(slack.target(0.0, delta)))
    low = max(2.0 * spare / (a + math.sqrt(a * a + 2.0 * spare)), delta)
    while low > 0.0 and not met(low):
        low /= 2.0
    high = 2.0 * low
    while met(high):
        low, high = high, 2.0 * high
    return bisect(met, low, high) if low > 0.0 else 0.0


def compose_gaussian(noise_multipliers: Iterable[float]) -> float:
    """Return mu of Gaussian releases with these noise multipliers: sqrt(sum of 1/z^2), exact.

    A multiplier of 0 is no noise, one of infinity no release.
    """
    squares = []
    for z in noise_multipliers:
        require_level("noise_multiplier", z, "pass standard deviation / L2 sensitivity.")
        mu = 1.0 / z if z else math.inf
        squares.append(mu * mu)
    return math.sqrt(math.inf if math.inf in squares else math.fsum(squares))


def largest_of(noise_multipliers: Iterable[float], mu: float) -> float:
    """Return ``largest`` of `SamplerSlack` for releases that are mu-GDP together."""
    least = min(noise_multipliers, default=0.0)
    return min(1.0, 1.0 / least / mu) if least > 0.0 else 1.0


def sum_up(parts: Iterable[tuple[float, int]]) -> float:
    """Sum numbers, each so many times, rounded up: a sum that is a float is returned as it is."""
    parts = list(parts)
    if any(math.isinf(number) for number, _ in parts):
        return math.inf
    return float_up(sum((Fraction(number) * count for number, count in parts), Fraction(0)))


def float_up(exact: Fraction) -> float:
    """Return the least float that is not below an exact number."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def rounded_up(x: float) -> float:
    """Return x, larger by more than its rounding errors."""
    return x * (1.0 + 1e-12)


def require_level(name: str, value: Any, remedy: str, most: float = math.inf) -> float:
    """Return a float from 0 to the most, or raise."""
    number = as_float(value)
    require_that(0.0 <= number <= most, name, value, f"a number from 0 to {most:g}: {remedy}")
    return number


def _require_mu(mu: Any) -> float:
    return require_level("mu", mu, "pass 1 / noise multiplier.")


def _require_epsilon(epsilon: Any) -> float:
    return require_level("epsilon", epsilon, "pass a number such as 1.0, or inf for no privacy.")


def _require_delta(delta: Any) -> float:
    return require_level("delta", delta, "pass a probability such as 1e-5.", _BELOW_1)
