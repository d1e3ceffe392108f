r"""The price of running a private mechanism a random number of times and releasing the best run.

**Mechanism.** Q is a private mechanism whose outputs have a total order (here: draw a candidate
independently of the data, fit it, score it with noise; the order is that of the noisy scores). K is
drawn from a public law, independently of the data, and stays secret. A runs Q independently K
times and releases the best output and nothing else. K known would cost K runs: a secret K of the
laws below costs little more than one, however large its mean. Equal outputs may be distinguished by
an independent uniform X that each run draws beside its output; by symmetry the first of equal ones
is as good.

**Laws of K.** Truncated negative binomial D(eta, gamma), eta > -1, 0 < gamma < 1, for k >= 1:

.. math:: P[K=k] = \frac{(1-\gamma)^k}{\gamma^{-\eta} - 1} \prod_{l=0}^{k-1} \frac{l+\eta}{l+1},
          \qquad E[K] = \frac{\eta (1-\gamma)}{\gamma (1-\gamma^\eta)};

eta = 1 is the geometric law, eta = 0 (the limit) the logarithmic one. And Poisson, for k >= 0;
K = 0 must then give an output that does not depend on the data.

**Notation.** m = E[K], f(w) = E[w^K]; Q, Q' and A, A' are the laws on neighbours x, x'; q is the
probability under Q of an output below the released one (X making it continuous) and r = 1 - q of
one above, q', r' the same under Q'. Then A(y) = Q(y) E_X f'(q), with f'(q) proportional to
(gamma + (1 - gamma) r)^-(1 + eta), and m exp(-m r) for Poisson, and f'(q) <= f'(1) = m. As r and r'
are probabilities of one event, r' <= e^a r + delta_Q(a) for all a >= 0, delta_Q being the curve
of Q: `gaussian_delta` for a mu-GDP Q.

**Profile bound.** f'(q) <= e^c f'(q') holds with c = (1 + eta) ln max(e^a, 1 + delta_Q(a) (1 -
gamma) / gamma), for any a: insert the bound of r' into gamma + (1 - gamma) r'. For Poisson
r' - r <= delta_Q(0), c = m delta_Q(0). So for an event S

.. math:: A(S) - e^{\epsilon + c} A'(S) \le \sum_{y \in S} E_X f'(q) (Q(y) - e^\epsilon Q'(y))_+
          \le m\, \delta_Q(\epsilon):

A is (epsilon + c, m delta_Q(epsilon))-DP for every epsilon. If A is followed by a mechanism that
is mu_2-GDP, both are so with delta_Q replaced by the curve of sqrt(mu^2 + mu_2^2) (in the sum
only): multiply the terms of the sum. This is Koskela, Redberg and Wang's argument.

**Renyi bound.** A mu-GDP Q is (lambda, lambda mu^2 / 2)-RDP for all lambda > 1, and A has

.. math:: \epsilon'(\lambda) = \lambda\mu^2/2 + (1+\eta) \left((\hat\lambda - 1) \mu^2/2 +
          \ln(1/\gamma) / \hat\lambda\right) + \ln(m) / (\lambda - 1)

for any lambda-hat >= 1 (Papernot and Steinke, Theorem 2); the best is sqrt(2 ln(1/gamma)) / mu, or
1. For Poisson, lambda mu^2 / 2 + m delta_Q(a) + ln(m + e^-m) / (lambda - 1), e^a = 1 + 1 / (lambda
- 1) (their Theorem 6, which has ln m: for m < 1 that is negative at mu = 0, so the term P[K = 0] =
e^-m of the divergence, the same under both laws, is added here). A divergence grows with its order,
so that a higher order's counts where it is less. What follows A adds its own lambda mu_2^2 / 2.
Conversion, for any lambda (Canonne, Kamath and Steinke 2020, Proposition 12):

.. math:: \epsilon = \epsilon'(\lambda) + \ln\frac{\lambda-1}{\lambda}
          - \frac{\ln\delta + \ln\lambda}{\lambda - 1}.

The smaller of both bounds counts: each holds for the same mechanism, and their choice does
not depend on the data. With D(eta, gamma) the profile bound was the smaller one in all our cases.

**Pure bound.** If Q is epsilon-DP, r' <= e^epsilon r gives f'(q) <= e^((1 + eta) epsilon) f'(q'): A
is (2 + eta) epsilon-DP. For Poisson r' - r <= tanh(epsilon / 2): epsilon + m tanh(epsilon / 2).

**Samplers of finite precision.** See `SelectionSlack`. For pure bounds it is part of epsilon.

Both directions of add and remove are covered, as Q and Q' may change places everywhere.

Sources: N. Papernot, T. Steinke, "Hyperparameter tuning with Renyi differential privacy", ICLR
2022; J. Liu, K. Talwar, "Private selection from private candidates", STOC 2019; A. Koskela,
R. Redberg, Y.-X. Wang, "Privacy profiles for private selection", ICML 2024; C. Canonne, G. Kamath,
T. Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.private_search.number_of_trials import RandomTrials
from skdpmf.privacy.accounting import (
    SamplerSlack,
    bisect,
    gaussian_delta,
    gaussian_epsilon,
    rounded_up,
)
from skdpmf.privacy.losses import PrivacyLoss
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.sampler.noise import SAMPLER_ETA, SAMPLER_TAU

__all__ = [
    "MOST_VALUES",
    "SelectionSlack",
    "profile_selection_epsilon",
    "pure_selection_base",
    "pure_selection_epsilon",
    "renyi_selection_divergence",
    "renyi_selection_epsilon",
    "selection_loss",
    "selection_mu",
]

MOST_VALUES = 2**32  # noised values of one run, at most: a search is priced for so many
_PROFILE = "random number of trials, profile bound"
_RENYI = "random number of trials, Renyi bound"
_ABSOLUTE = 1e-12  # above the rounding errors of the formulas, whose terms are below 1e3


@dataclass(frozen=True)
class SelectionSlack:
    r"""The slack of samplers of finite precision in a search with Gaussian noise.

    The ideal A is (epsilon, delta)-DP. The code's runs draw N noise values each, near the ideal's
    laws as `SamplerSlack` says: outside a set of mass tau, within a factor e^eta of it. Then
    the code is (epsilon + 2 rho, e^rho (delta + m t') + m t)-DP, with x = N eta, t = N tau, t' the
    t of `SamplerSlack` (the mass that the noise around x has in the bad set around x') and

    .. math:: \rho = x + (1 + \eta) (x + t (1 - \gamma) / \gamma), \quad
              \text{Poisson: } \rho = x + m (e^x - 1 + t).

    *Proof.* Let Q, C be the laws of an ideal run and of one of the code's, G the outputs of a run
    none of whose noise values, given x, is in the bad set, and r, s the probabilities under Q, C
    of a better output. On G, C(y) <= e^x Q(y), and Q(y) <= e^x C(y); for any event E, C(E) <=
    e^x Q(E) + t and Q(E) <= e^x C(E) + t, so gamma + (1 - gamma) s <= (e^x + t (1 - gamma) / gamma)
    (gamma + (1 - gamma) r), and the same with r and s exchanged. So f' at the two differs by at
    most e^(rho - x), and the laws of the released output differ by at most e^rho on G, in both
    directions. For Poisson abs(r - s) <= e^x - 1 + t. The released output is one of K runs', hence
    outside of G with probability m t at most under the code, and outside of the G' of x' with
    probability m t' at most under the ideal. So for an event S, as in `SamplerSlack`,

    - code(S) <= m t + e^rho ideal(S and G), ideal(S and G) <= m t' + ideal(S and G'),
    - ideal(S and G') <= e^epsilon ideal'(S and G') + delta, ideal'(S and G') <= e^rho code'(S).

    A mechanism after A counts as one more run: m + 1 for m, and x more in rho. QED. K itself is
    drawn exactly.

    Parameters
    ----------
    n_values : int, default=0
        N, at most, for every run and for what follows them.
    eta, tau : float
        Accuracy of the sampler.

    Examples
    --------
    >>> SelectionSlack(2**32).ratio(RandomTrials(1.0, 10.0), False) < 2e-5
    True
    """

    n_values: int = 0
    eta: float = SAMPLER_ETA
    tau: float = SAMPLER_TAU

    def ratio(self, trials: RandomTrials, followed: bool) -> float:
        """Return rho.

        followed: whether another mechanism follows. Result: rounded up.
        """
        x, t = self.n_values * self.eta, self.n_values * self.tau
        if trials.is_poisson:
            rest = trials.mean_bound * (math.expm1(min(x, 700.0)) + t)
        else:
            rest = (1.0 + trials.shape) * (x + t * _odds(trials))
        return rounded_up(x + rest + (x if followed else 0.0))

    def target(self, mu: float, delta: float, trials: RandomTrials, followed: bool) -> float:
        """Return the delta left to the ideal search; not positive where nothing is.

        mu: Gaussian DP parameter of a run and what follows it; delta: delta of the code; followed:
        whether another mechanism follows. Result: rounded down.
        """
        slack = SamplerSlack.checked(self.n_values, self.eta, self.tau)
        if slack.n_values == 0:
            return delta
        runs = trials.mean_bound + (1.0 if followed else 0.0)
        # SamplerSlack.delta is t + e^x t'
        growth = math.exp(-min(self.ratio(trials, followed), 700.0))
        return delta * growth * (1.0 - _ABSOLUTE) - rounded_up(runs * slack.delta(mu))


def profile_selection_epsilon(
    mu: float, delta: float, trials: RandomTrials, *, extra_mu: float = 0.0
) -> float:
    """Return the epsilon of a search whose runs are mu-GDP, by the profile bound, rounded up.

    mu: Gaussian DP parameter of one run, > 0; delta: in (0, 1); extra_mu: Gaussian DP parameter of
    what follows the search.

    Examples
    --------
    >>> from skdpmf.privacy.accounting import gaussian_mu
    >>> mu = gaussian_mu(1.06, 1e-6)
    >>> round(profile_selection_epsilon(mu, 1e-6, RandomTrials(0.0, 10.0)), 2)
    1.53
    """
    shift = _profile_shift(mu, trials)
    share = min(delta / trials.mean_bound, math.nextafter(1.0, 0.0))
    return rounded_up(gaussian_epsilon(_hypot(mu, extra_mu), share) + shift)


def renyi_selection_divergence(
    mu: float, order: float, trials: RandomTrials, *, extra_mu: float = 0.0
) -> float:
    """Return the Renyi divergence of a search whose runs are mu-GDP, by the Renyi bound.

    It bounds both directions, as being mu-GDP does.

    mu: Gaussian DP parameter of one run, > 0; order: lambda > 1; extra_mu: Gaussian DP parameter of
    what follows the search. Result: epsilon'(lambda), rounded up.

    Examples
    --------
    >>> round(renyi_selection_divergence(0.2, 16.0, RandomTrials(1.0, 10.0)), 4)
    1.2919
    """
    mean = trials.mean_bound
    log_mean = math.log(mean + (math.exp(-mean) if trials.is_poisson else 0.0))

    def search(order: float) -> float:
        rest = order - 1.0
        spent = order * mu * mu / 2.0 + log_mean / rest
        if trials.is_poisson:
            return spent + mean * _delta_up(mu, math.log1p(1.0 / rest))
        best = max(1.0, math.sqrt(2.0 * trials.log_gamma) / mu)  # lambda-hat
        constant = (best - 1.0) * mu * mu / 2.0 + trials.log_gamma / best
        return spent + (1.0 + trials.shape) * constant

    further = max(order, 1.0 + math.sqrt(2.0 * log_mean) / mu)
    spent = min(search(order), search(further)) + order * extra_mu * extra_mu / 2.0
    return rounded_up(spent) + _ABSOLUTE


def renyi_selection_epsilon(
    mu: float, delta: float, trials: RandomTrials, *, extra_mu: float = 0.0
) -> float:
    """Return the epsilon of a search whose runs are mu-GDP, by the Renyi bound, rounded up.

    mu: Gaussian DP parameter of one run, > 0; delta: in (0, 1); extra_mu: Gaussian DP parameter of
    what follows the search.

    Examples
    --------
    >>> from skdpmf.privacy.accounting import gaussian_mu
    >>> mu = gaussian_mu(1.06, 1e-6)
    >>> round(renyi_selection_epsilon(mu, 1e-6, RandomTrials(0.0, 10.0)), 2)
    1.9
    """
    from scipy.optimize import minimize_scalar

    def epsilon(log_rest: float) -> float:
        order = 1.0 + math.exp(log_rest)  # of any size: every one gives a bound
        rest = order - 1.0
        conversion = -math.log1p(1.0 / rest) - (math.log(delta) + math.log1p(rest)) / rest
        return renyi_selection_divergence(mu, order, trials, extra_mu=extra_mu) + conversion

    grid = np.linspace(-6.0, 16.0, 89)
    best = float(min(grid, key=epsilon))
    step = float(grid[1] - grid[0])
    found = minimize_scalar(
        epsilon, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-7}
    )
    return max(0.0, rounded_up(min(float(found.fun), epsilon(best))) + _ABSOLUTE)


@lru_cache(maxsize=256)
def selection_loss(
    mu: float,
    delta: float,
    trials: RandomTrials,
    *,
    extra_mu: float = 0.0,
    slack: SelectionSlack | None = None,
) -> PrivacyLoss:
    """Return what a search costs whose runs are mu-GDP: the smaller of both bounds.

    mu: Gaussian DP parameter of one run, all that it releases together, 0 to infinity; delta: in
    [0, 1); extra_mu: Gaussian DP parameter of what follows the search, such as a second fit; slack:
    of the code's sampler. Default: ideal noise. Result: epsilon, rounded up (infinite where none
    will do), delta, and the bound that gave it.

    Examples
    --------
    >>> loss = selection_loss(0.25, 1e-5, RandomTrials(1.0, 10.0))
    >>> round(loss.epsilon, 4), loss.method
    (1.5103, 'random number of trials, profile bound')
    """
    slack, followed = slack or SelectionSlack(), extra_mu > 0.0
    for name, value in (("mu", mu), ("extra_mu", extra_mu), ("delta", delta)):
        if not as_float(value) >= 0.0 or (name == "delta" and value >= 1.0):
            raise PrivacyParameterError(
                f"{name}={value!r} must be a number >= 0{', below 1' * (name == 'delta')}: pass "
                "what the plan says."
            )
    both = _hypot(mu, extra_mu)
    target = slack.target(both, delta, trials, followed)
    if math.isinf(both) or target <= 0.0:
        return PrivacyLoss(math.inf if both > 0.0 else 0.0, delta, _PROFILE)
    added = 2.0 * slack.ratio(trials, followed)
    if both == 0.0:
        return PrivacyLoss(added, delta, _PROFILE)
    bounds = [(profile_selection_epsilon(mu, target, trials, extra_mu=extra_mu), _PROFILE)]
    bounds.append((renyi_selection_epsilon(mu, target, trials, extra_mu=extra_mu), _RENYI))
    epsilon, method = min(bounds)
    return PrivacyLoss(rounded_up(epsilon + added), delta, method)


@lru_cache(maxsize=256)
def selection_mu(
    epsilon: float,
    delta: float,
    trials: RandomTrials,
    *,
    extra_share: float = 0.0,
    slack: SelectionSlack | None = None,
) -> float:
    """Return the largest mu for which a whole search is within (epsilon, delta), rounded down.

    mu is that of one run and of what follows the search together: the run's is
    sqrt(1 - extra_share) mu, and sqrt(extra_share) mu is left for what follows.

    epsilon: > 0; infinity gives infinity; delta: in (0, 1); extra_share: in [0, 1); slack: of the
    code's sampler. Default: ideal noise. Result: ``selection_loss`` of it is at most epsilon, by a
    margin of 1e-9. Raises PrivacyParameterError if a parameter is outside its range, or the
    sampler's slack alone exceeds the budget.

    Examples
    --------
    >>> round(selection_mu(1.0, 1e-5, RandomTrials(1.0, 10.0)), 4)
    0.1689
    """
    if math.isinf(epsilon):
        return math.inf
    if not as_float(epsilon) > 0.0 or not 0.0 < as_float(delta) < 1.0:
        raise PrivacyParameterError(
            f"(epsilon, delta)=({epsilon!r}, {delta!r}) must be > 0, delta below 1: Gaussian noise "
            "needs delta, for example 1e-5."
        )
    limit = epsilon * (1.0 - 1e-9)

    def met(mu: float) -> bool:
        run, extra = math.sqrt(1.0 - extra_share) * mu, math.sqrt(extra_share) * mu
        loss = selection_loss(run, delta, trials, extra_mu=extra, slack=slack)
        return loss.epsilon <= limit

    least = 1e-9 * min(epsilon, 1.0)
    if not met(least):
        raise PrivacyParameterError(
            f"(epsilon, delta)=({epsilon!r}, {delta!r}) must exceed the slack of the sampler over "
            f"{trials.mean:g} trials: raise the budget."
        )
    return _largest(met, least, 1e-8)


def pure_selection_epsilon(epsilon: float, trials: RandomTrials, *, extra: float = 0.0) -> float:
    """Return the pure epsilon of a search whose runs are epsilon-DP, rounded up.

    (2 + eta) epsilon; for Poisson epsilon + E[K] tanh(epsilon / 2).

    epsilon: of one run, 0 to infinity; extra: pure epsilon of what follows the search. Raises
    PrivacyParameterError if epsilon is negative or not a number.

    Examples
    --------
    >>> pure_selection_epsilon(0.5, RandomTrials(1.0, 10.0))
    1.5
    """
    for name, value in (("epsilon", epsilon), ("extra", extra)):
        if not as_float(value) >= 0.0:
            raise PrivacyParameterError(f"{name}={value!r} must be a number >= 0: pass a budget's.")
    if math.isinf(epsilon) or math.isinf(extra):
        return math.inf
    if trials.gamma == 1.0 and not trials.is_poisson:
        exact = Fraction(epsilon)
    elif trials.is_poisson:
        exact = Fraction(rounded_up(epsilon + trials.mean * math.tanh(epsilon / 2.0)))
    else:
        exact = (2 + Fraction(trials.shape)) * Fraction(epsilon)
    exact += Fraction(extra)
    total = float(exact)
    return total if Fraction(total) >= exact else math.nextafter(total, math.inf)


def pure_selection_base(epsilon: float, trials: RandomTrials, *, extra_share: float = 0.0) -> float:
    """Return the largest pure epsilon for which a whole search is within epsilon, rounded down.

    epsilon: > 0; infinity gives infinity; extra_share: in [0, 1): a run has (1 - extra_share) times
    the result, what follows has the rest.

    Examples
    --------
    >>> pure_selection_base(3.0, RandomTrials(1.0, 10.0))
    1.0
    """
    if math.isinf(epsilon):
        return math.inf

    def met(base: float) -> bool:
        run = (1.0 - extra_share) * base
        return pure_selection_epsilon(run, trials, extra=extra_share * base) <= epsilon

    return _largest(met, 0.0, 0.0, high=epsilon)


def _largest(
    met: Callable[[float], bool], low: float, precision: float, high: float = 1.0
) -> float:
    """Return a number that is met, at most ``precision`` (relative) below one that is not."""
    while met(high):
        low, high = high, 2.0 * high
    while high - low > precision * high:
        middle = low + (high - low) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if met(middle) else (low, middle)
    return low


def _odds(trials: RandomTrials) -> float:
    """(1 - gamma) / gamma."""
    return math.expm1(trials.log_gamma)


def _profile_shift(mu: float, trials: RandomTrials) -> float:
    """Return c of the profile bound, rounded up."""
    if trials.is_poisson:
        return rounded_up(trials.mean * _delta_up(mu, 0.0))
    odds = _odds(trials)

    def met(a: float) -> bool:
        return a >= rounded_up(math.log1p(_delta_up(mu, a) * odds))

    return (
        0.0
        if odds == 0.0
        else rounded_up((1.0 + trials.shape) * bisect(met, rounded_up(2.0 * trials.log_gamma), 0.0))
    )


def _delta_up(mu: float, epsilon: float) -> float:
    return min(1.0, gaussian_delta(mu, epsilon) * (1.0 + 1e-9))


def _hypot(mu: float, extra_mu: float) -> float:
    return mu if extra_mu == 0.0 else rounded_up(math.hypot(mu, extra_mu))
