r"""Numerics of the Gaussian trade-off curve, in logarithms, and the slack of a sampler.

With a = epsilon/mu - mu/2, b = epsilon/mu + mu/2, R(x) = Phi(-x)/phi(x) (Mills' ratio) and
e^epsilon phi(b) = phi(a), the curve is delta = phi(a) (R(a) - R(b)), which neither overflows nor
cancels for mu >= 1. For mu < 1 the difference is the integral over [a, b] of
-R'(x) = 1 - x R(x) > 0, by Gauss-Legendre: nothing cancels. ln delta is within 1e-10 for
mu 1e-8..1e3, epsilon 1e-6..1e3 and delta down to 1e-300 (tests compare with mpmath).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skdpmf.exceptions import PrivacyParameterError

__all__ = ["MARGIN", "SamplerSlack", "bisect", "is_met", "log_delta"]

MARGIN = 1e-9  # in ln delta, above every error of the evaluation
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF, _SQRT_HALF_PI = math.sqrt(0.5), math.sqrt(0.5 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_NODES, _WEIGHTS = 0.5 + 0.5 * _NODES, 0.5 * _WEIGHTS  # on [0, 1]
# 1 - x R(x) ~ x^-2 (1 - 3 x^-2 + 3*5 x^-4 - ...), highest power first; 3e-13 off at x = 30
_TAIL_SERIES = (135135.0, -10395.0, 945.0, -105.0, 15.0, -3.0, 1.0)


@dataclass(frozen=True)
class SamplerSlack:
    """The terms of `with_sampler_slack` for Gaussian noise."""

    n_values: int
    eta: float
    tau: float

    @classmethod
    def checked(cls, n_values: int, eta: float, tau: float) -> SamplerSlack:
        if isinstance(n_values, bool) or not n_values >= 0 or n_values != int(n_values):
            raise PrivacyParameterError(
                f"n_values={n_values!r} must be an integer >= 0: pass the number of noised values."
            )
        for name, value, limit in (("eta", eta, 1.0), ("tau", tau, 0.5)):
            if not 0.0 <= value < limit:
                raise PrivacyParameterError(
                    f"{name}={value!r} must be in [0, {limit}): pass the sampler's proven bound."
                )
        return cls(int(n_values), float(eta), float(tau))

    @property
    def epsilon(self) -> float:
        return 2.0 * self.n_values * self.eta

    @property
    def growth(self) -> float:
        return math.exp(min(self.n_values * self.eta, 700.0))

    def delta(self, mu: float) -> float:
        """Return what the sampler adds to delta: t and N tau of `with_sampler_slack`."""
        mass = self.n_values * self.tau
        if mass == 0.0:
            return 0.0
        z = float(special.ndtri(self.tau))
        if mu > -z - 1.0:
            return 1.0
        density = math.exp(-0.5 * z * z - _LOG_SQRT_2PI)
        shifted = density * mu * math.sqrt(self.n_values) + float(special.ndtr(z + mu))
        return mass + self.growth * (mass + shifted * (1.0 + 1e-9))

    def target(self, mu: float, delta: float) -> float:
        """Return the delta left to the ideal mechanism; not positive where nothing is."""
        return (delta - self.delta(mu)) / self.growth


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


def bisect(met: Callable[[float], bool], good: float, bad: float) -> float:
    """Return the last double that is met on the way from a met one to one that is not."""
    while True:
        middle = good + (bad - good) / 2.0
        if middle in (good, bad):
            return good
        if met(middle):
            good = middle
        else:
            bad = middle
