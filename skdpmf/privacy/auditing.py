"""What guesses about members tell of epsilon: the accounting of one-run audits."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.stats import binom

from skdpmf.exceptions import PrivacyParameterError

__all__ = ["canary_epsilon"]

_MOST = 50.0


def canary_epsilon(
    n_right: int, n_guesses: int, n_canaries: int, delta: float, confidence: float
) -> float:
    r"""Return a lower confidence limit of epsilon from guesses in one run.

    Each of m canaries is in the data with probability 1/2, independently. Whoever sees the model
    guesses r of them. An (epsilon, delta)-DP model has at least v right guesses with probability

    .. math:: P[W \ge v] + 2 m \delta \max_{1 \le i \le v} \frac{P[v > W \ge v - i]}{i},
        \quad W \sim \mathrm{Binomial}(r, e^\epsilon / (1 + e^\epsilon)),

    at most. The limit is the largest epsilon for which that is below 1 - confidence.

    Parameters
    ----------
    n_right : int
        v.
    n_guesses : int
        r; the other canaries were left open.
    n_canaries : int
        m.
    delta : float
        In [0, 1).
    confidence : float
        In [0.5, 1).

    Returns
    -------
    float
        0 if nothing can be said, at most 50.

    Raises
    ------
    PrivacyParameterError
        If not 0 <= n_right <= n_guesses <= n_canaries.

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
