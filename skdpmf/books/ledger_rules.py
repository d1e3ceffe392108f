r"""The rules by which a ledger adds up what fits spend, and why each stays valid.

A ledger admits a request or refuses it, and later requests may be chosen by looking at all earlier
outcomes. A rule is valid if whatever is admitted is together (epsilon, delta)-DP then too. Each
rule adds one number a request and compares the sum with a limit; `PrivacyLedger` has their table.

"gaussian": a pure mechanism is mu-GDP, and GDP mechanisms with sum mu_i^2 <= mu^2 on every path
are mu-GDP however they are chosen (Smith and Thakurta). "zcdp": the same for rho (Whitehouse et
al.); the limit is the largest rho that gives (epsilon, delta) by Canonne, Kamath and Steinke, Prop.
12, :math:`\delta = \min_\alpha e^{(\alpha-1)(\alpha\rho-\epsilon)} (1-1/\alpha)^\alpha /
(\alpha-1)`. "basic": Rogers et al. Privacy loss distributions compose tighter, but are no such
rule: see docs/decisions/0010-ledger.md. With delta = 0 only "basic" has a limit above 0.

Epsilon and delta of a limit of "basic" hold to 15 digits: the sum may reach (1 + 2^-50) times the
limit. Charges are exact, and floats are not the decimal numbers that they are written as: three
times 0.1 is 2^-54 above 0.3. Numbers that add up to the limit are each within 2^-53 of it, of
themselves, as floats, so that their sum fits.

Private searches, of which "gaussian" admits pure ones only: `skdpmf.mechanisms.private_search`.

**The sampler.** "basic" charges a plan's own epsilon and delta, slack included. For the other two
let every noised value be drawn from a law Q that is near the ideal P as in `SamplerSlack`
(our sampler's eta and tau; the set B). The ledger charges a plan with N noised values and Gaussian
parameter mu

.. math:: (\mu + 2 \mu_\eta \sqrt{N})^2, \quad \mu_\eta = 2 \Phi^{-1}(e^h / (1 + e^h)),
    \quad h = \eta + 2\tau,

admits at most n values in all and tau <= T, n and T fixed with the limit, and takes the limit mu
(or rho = mu^2 / 2) for

.. math:: \delta - nT - t, \quad t = nT + \varphi(z) \mu \sqrt{n} + \Phi(z + \mu),
    \quad z = \Phi^{-1}(T),

instead of delta. *Claim:* then all that is admitted, as it is sampled, is (epsilon, delta)-DP.

*Proof.* Write Q = (1 - q) Q' + q Q'', P = (1 - p) P' + p P'', the parts outside and inside of B;
p, q <= tau <= T. Let D be the code that draws from Q* = (1 - p) Q' + p P''.

1. Q*/P is Q/P times (1 - p)/(1 - q) outside of B and 1 inside: within e^{+-h}. So a test of Q*
   against P, of P against P shifted by s standard deviations, and of that against Q* shifted, are
   mu_eta-, s- and mu_eta-GDP, and the outer two are (s + 2 mu_eta)-GDP (Dong, Roth and Su, Theorem
   2.14, for two different steps). Over a plan, sum (s_i + 2 mu_eta)^2 is at most the charge, by
   Minkowski's inequality and sum s_i^2 <= mu^2. So D is a GDP (hence also a zCDP) mechanism of
   the sum of all charges: D(S) <= e^epsilon D'(S) + delta_0 for all events S, with D' the same on
   the neighbour and delta_0 what the rule gives.
2. Let A be the code that draws from Q' only, G the outputs for which no noise value is in B, and G'
   the same from the neighbour's statistics; A lives on G. On G, a path with N values has under D
   (1 - p)^N times its weight under A, and N is part of the path. So on T = S and G and G',
   A(T) - e^epsilon A'(T) is the integral of (1 - p)^-N (dD - e^epsilon dD'), at most
   (1 - p)^-n delta_0.
3. A(not G') <= t e^h: given the past, a value is outside of B and yet inside the shifted B with
   probability at most e^h g(s_i), and the sum of g(s_i) is at most t on every path, as in
   `SamplerSlack`. So A is (epsilon, delta_0 e^{2 n T} + t e^h)-DP.
4. The code itself, Q, differs from A only if some draw is in B, which has probability at most
   n T and does not depend on the data: it is (epsilon, n T + delta_0 e^{2 n T} + t e^h)-DP.
   The factors are below 1 + 1e-9 for n <= 2^38: part of the margin in ln delta of the limit. QED.

n is what a thousandth of delta pays for, 2^38 values (3 10^11) at most. A `PrivacyBudget` with a
ledger leaves that, and a sixty-fourth more for all roundings, when noise is calibrated to it; so a
plan for the whole limit fits, and so do plans for all parts of it.

Sources: A. Smith, A. Thakurta, "Fully adaptive composition for Gaussian differential privacy",
arXiv 2210.17520; J. Whitehouse et al., "Fully-adaptive composition in differential privacy", ICML
2023; R. Rogers et al., "Privacy odometers and filters", NeurIPS 2016; C. Canonne, G. Kamath,
T. Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.private_search import MOST_VALUES, SearchSpending, search_order
from skdpmf.privacy import accounting as cost
from skdpmf.privacy.accounting import MARGIN, bisect
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.pure import PureRelease, pure_epsilon_to_mu
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU

RULES = {"gaussian": "mu^2", "zcdp": "rho", "basic": "epsilon"}  # and the number that adds up
SCALE = 2**160  # amounts are whole numbers of 1 / SCALE: sums are exact
_DIGITS = Fraction(2**50 + 1, 2**50)
TAU = 4.0 * SAMPLER_TAU  # to spare
_TAIL_SHARE = 1e-3  # of delta
_MOST_VALUES = 2**38


@dataclass(frozen=True)
class Amount:
    """What is charged, spent or allowed: whole numbers of 2^-160, and noised values.

    ``main`` is mu^2, rho or epsilon by the rule; ``second`` is the number of noised values, or
    delta for "basic".
    """

    main: int
    second: int

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.main + other.main, self.second + other.second)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.main - other.main, self.second - other.second)

    def within(self, limit: Amount) -> bool:
        """Return whether neither part is above the limit's."""
        return self.main <= limit.main and self.second <= limit.second

    def scaled(self, factor: Fraction) -> Amount:
        """Return both parts times a factor, rounded down."""
        return Amount(self.main * factor // 1, self.second * factor // 1)

    @property
    def number(self) -> float:
        """``main`` as a float, to the nearest."""
        try:
            return float(Fraction(self.main, SCALE))
        except OverflowError:
            return math.inf

    def text(self, rule: str, digits: int) -> tuple[str, str]:
        """Return both parts in words."""
        context = Context(prec=digits)

        def words(part: int) -> str:
            number = context.divide(Decimal(part), Decimal(SCALE))
            return f"{float(number):.{digits}g}" if digits < 16 else str(number)

        n = self.second if self.second < 1e6 else f"{Decimal(self.second):.{digits - 4}g}"
        second = f"delta={words(self.second)}" if rule == "basic" else f"{n} noised values"
        return f"{RULES[rule]}={words(self.main)}", second


class Spending(NamedTuple):
    """What of a plan matters for the account; JSON keeps it exactly."""

    gaussian: tuple[tuple[float, int], ...]  # noise multiplier, count
    pure: tuple[tuple[float, int], ...]  # epsilon of one run, count
    n_values: int
    delta: float
    search: SearchSpending | None = None  # with Gaussian noise; a pure one is a pure release

    @classmethod
    def of(cls, plan: ReleasePlan) -> Spending:
        """Read it off a plan."""
        gaussian = tuple((r.noise_multiplier, r.count) for r in plan.gaussian)
        pure = tuple((r.epsilon, r.count) for r in plan.releases if isinstance(r, PureRelease))
        return cls(gaussian, pure, plan.n_values, plan.delta)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Spending:
        """Return what `to_dict` wrote."""
        fields = dict(plain)
        for name in ("gaussian", "pure"):
            fields[name] = tuple((float(level), int(count)) for level, count in fields[name])
        if "search" in fields:
            fields["search"] = SearchSpending(**fields["search"])
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        plain = self._asdict()
        search = plain.pop("search")  # so that entries without one read as they always did
        return plain if search is None else {**plain, "search": search._asdict()}

    @property
    def is_private(self) -> bool:
        """Whether every release has noise."""
        noise = all(z > 0.0 for z, _ in self.gaussian)
        return noise and all(math.isfinite(epsilon) for epsilon, _ in self.pure)

    @property
    def mu(self) -> float:
        """Gaussian DP parameter of the Gaussian releases."""
        return cost.compose_gaussian(z / math.sqrt(count) for z, count in self.gaussian)

    @property
    def epsilon(self) -> Fraction:
        """Epsilon at `delta`, the sampler's slack included; both are finite."""
        total = sum((Fraction(epsilon) * count for epsilon, count in self.pure), Fraction(0))
        if self.gaussian:
            largest = cost.largest_of((z for z, _ in self.gaussian), self.mu)
            slack: Any = {"n_values": self.n_values, "eta": SAMPLER_ETA, "tau": SAMPLER_TAU}
            epsilon = cost.gaussian_epsilon(self.mu, self.delta, **slack, largest=largest)
            if math.isinf(epsilon):
                raise PrivacyParameterError(
                    f"delta={self.delta!r} of the plan must be > 0, and above the sampler's slack, "
                    "for Gaussian releases: pass a budget with for example delta=1e-5."
                )
            total += Fraction(epsilon)
        if self.search is not None:
            total += Fraction(self.search.epsilon(self.delta))
        return total

    def scaled(self, factor: float) -> Spending:
        """Return the same releases at ``factor`` times their mu and epsilon."""
        gaussian = tuple((z / factor, count) for z, count in self.gaussian)
        pure = tuple((epsilon * factor, count) for epsilon, count in self.pure)
        search = None if self.search is None else self.search.scaled(factor)
        return self._replace(gaussian=gaussian, pure=pure, search=search)


def charge(rule: str, spending: Spending, order: float | None = None) -> Amount:
    """Return what a private plan costs under a rule, rounded up; order: `order_of` the limit."""
    if rule == "basic":
        return Amount(_up(spending.epsilon), _up(Fraction(spending.delta)))
    squares = sum((count / Fraction(z) ** 2 for z, count in spending.gaussian), Fraction(0))
    if spending.n_values:
        sampler = pure_epsilon_to_mu(SAMPLER_ETA + 2.0 * SAMPLER_TAU)
        sampler *= 2.0 * math.sqrt(spending.n_values) * (1.0 + 1e-9)
        squares += Fraction(sampler * (2.0 * spending.mu + sampler) * (1.0 + 1e-9))
    for epsilon, count in spending.pure:
        mu = pure_epsilon_to_mu(epsilon) if rule == "gaussian" else epsilon
        squares += count * Fraction(mu) ** 2
    n_values = spending.n_values
    if spending.search is not None:
        if rule == "gaussian" or order is None:
            raise PrivacyParameterError(
                "rule='gaussian' must be 'zcdp' or 'basic' for a ledger that takes a search with "
                "Gaussian noise, which is no Gaussian mechanism itself: make the ledger of this "
                "data set with rule='zcdp', or pass budget.without_ledger() and count what the "
                "search spends yourself."
            )
        squares += 2 * Fraction(spending.search.rho(order))
        n_values += spending.search.n_counted
    return Amount(_up(squares if rule == "gaussian" else squares / 2), n_values)


def order_of(rule: str, epsilon: float, limit: Amount) -> float | None:
    """Return the Renyi order at which a limit holds, which charges of searches are for."""
    return search_order(epsilon, Fraction(limit.main, SCALE)) if rule == "zcdp" else None


def limit_of(rule: str, epsilon: float, delta: float) -> Amount:
    """Return what a rule allows in all for (epsilon, delta), rounded down."""
    if rule == "basic":
        return Amount(_down(Fraction(epsilon) * _DIGITS), _down(Fraction(delta) * _DIGITS))
    n_values = _tail_values(delta)
    slack = cost.SamplerSlack(n_values, 0.0, TAU)
    if rule == "gaussian":
        good = cost.gaussian_mu(epsilon, delta, n_values=n_values, tau=TAU)
        mu = _last(lambda mu: cost.is_met(mu, epsilon, delta, slack, MARGIN), good)
        return Amount(_down(Fraction(mu) ** 2), n_values)

    def met(rho: float) -> bool:
        target = slack.target(math.sqrt(2.0 * rho), delta)
        return target > 0.0 and _log_delta_of_rho(rho, epsilon) + MARGIN <= math.log(target)

    return Amount(_down(Fraction(_last(met, 0.0, start=epsilon))), n_values)


def spent_epsilon(
    rule: str,
    spent: Amount,
    delta: float,
    searches: Sequence[SearchSpending] = (),
    order: float | None = None,
) -> float:
    """Return the epsilon, at a ledger's delta, of what was spent, rounded up.

    ``searches`` are those among it with Gaussian noise, ``order`` the one they were charged at.
    """
    if rule == "basic":
        return math.nextafter(spent.number, math.inf) if spent.main else 0.0
    if spent.main == 0:
        return 0.0
    slack = cost.SamplerSlack(_tail_values(delta), 0.0, TAU)
    number = spent.number * (1.0 + 1e-12)
    if rule == "gaussian":
        mu, values = math.sqrt(number), slack.n_values
        return cost.gaussian_epsilon(mu, delta, n_values=values, tau=slack.tau)
    target = slack.target(math.sqrt(2.0 * number), delta)

    def met(epsilon: float) -> bool:
        return _log_delta_of_rho(number, epsilon) + MARGIN <= math.log(target)

    if target <= 0.0:
        return math.inf
    if searches and order is not None:
        return _epsilon_with_searches(number, target, searches, order)
    high = number + 2.0 * math.sqrt(-number * math.log(target))  # Bun and Steinke
    while not met(high):
        high *= 2.0
    return bisect(met, high, 0.0)


def _epsilon_with_searches(
    number: float, target: float, searches: Sequence[SearchSpending], order: float
) -> float:
    """Return the least epsilon over Renyi orders; the charges of searches hold at one only."""
    rest = max(0.0, number - (1.0 - 1e-9) * math.fsum(search.rho(order) for search in searches))

    def at(order: float) -> float:
        a = order - 1.0
        rho = rest + math.fsum(search.rho(order) for search in searches)
        log_delta = a * order * rho + a * math.log(a) - order * math.log(order)  # at epsilon = 0
        return (log_delta + MARGIN - math.log(target)) / a

    return max(0.0, min(map(at, [order, *np.geomspace(1.01, 1e4, 400).tolist()])))


def apart(asked: Any, left: Any, digits: int, most: int) -> tuple[str, str]:
    """Return what is asked and left, as texts of as many digits as it takes to see the lack."""
    while asked(digits) == left(digits) and asked(most) != left(most):
        digits += 1
    return asked(digits), left(digits)


def largest_fit(rule: str, spending: Spending, left: Amount, order: Any = None) -> Spending | None:
    """Return the request scaled down until it fits into what is left; None if nothing does."""

    def met(factor: float) -> bool:
        return charge(rule, spending.scaled(factor), order).within(left)

    return spending.scaled(bisect(met, 1e-9, 1.0)) if met(1e-9) else None


def mu_beside_a_ledger(epsilon: float, delta: float) -> float:
    """Return the mu of (epsilon, delta) less what a ledger sets aside, with some to spare."""
    return cost.gaussian_mu(epsilon, delta, n_values=_values_to_spare(delta), tau=TAU)


def epsilon_beside_a_ledger(mu: float, delta: float) -> float:
    """Return the epsilon whose `mu_beside_a_ledger` is mu, or a rounding error less."""
    return cost.gaussian_epsilon(mu, delta, n_values=_values_to_spare(delta), tau=TAU)


def values_of_a_trial(delta: float, mean: float) -> int:
    """Return how many values a trial may noise, for a search to count as a 64th of all."""
    return min(MOST_VALUES, int(_tail_values(delta) / (64.0 * mean)))


def _tail_values(delta: float) -> int:
    return min(_MOST_VALUES, int(_TAIL_SHARE * delta / (2.0 * TAU)))


def _values_to_spare(delta: float) -> int:
    return _tail_values(delta) * 65 // 64 + 1


def _log_delta_of_rho(rho: float, epsilon: float) -> float:
    """Return ln delta of rho-zCDP at epsilon; every alpha gives a valid one."""

    def at(log_a: float) -> float:  # alpha = 1 + a
        a = math.exp(log_a)
        # ln((1 - 1/alpha)^alpha / (alpha - 1)) = a ln a - (a + 1) ln(a + 1)
        return a * ((1.0 + a) * rho - epsilon) + a * log_a - (a + 1.0) * math.log1p(a)

    from scipy.optimize import minimize_scalar

    return float(minimize_scalar(at, bounds=(-20.0, 40.0), method="bounded").fun)


def _last(met: Callable[[float], bool], good: float, start: float = 0.0) -> float:
    """Return the largest number that is met, beyond a good one."""
    bad = start or 2.0 * good
    while met(bad):
        good, bad = bad, 2.0 * bad
    return bisect(met, good, bad)


def _up(x: Fraction) -> int:
    return -((-x * SCALE) // 1)


def _down(x: Fraction) -> int:
    return (x * SCALE) // 1
