"""Pure epsilons: releases that have one, what they are as mu, and all releases as DpEvents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

from scipy import special

from skdpmf.exceptions import MissingExtraError, require_that
from skdpmf.privacy.accounting import float_up, require_level, rounded_up
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import LARGEST, Planned
from skdpmf.privacy.sampler.laws import LAPLACE_ETA


@dataclass(frozen=True)
class PureRelease(Planned):
    """One planned release with a pure epsilon: Laplace noise, or a draw from a posterior.

    Epsilon is that of one repetition, infinite without privacy; each spends it, also if only their
    mean is published. The sensitivity bounds what one unit of privacy contributes, and the norm
    says in words in which quantity, such as "l1" or "loss of a user". For mechanism "laplace" and
    norm "l1" the noise follows from epsilon; see `noise_multiplier`. The rest is as for `Release`.
    """

    name: str
    statistic: str
    shape: tuple[int, ...]
    epsilon: float
    mechanism: str
    sensitivity: float
    norm: str
    count: int = 1
    alternatives: tuple[str, ...] = field(default=(), repr=False)
    kind: ClassVar[str] = "pure"  # of guarantee
    layout: ClassVar[str] = "full"

    def __post_init__(self) -> None:
        self._settle("name", "statistic", "mechanism", "norm")
        self._settle_number("epsilon", 0.0, math.inf)

    @classmethod
    def calibrated(
        cls, releases: tuple[Any, ...], shares: Mapping[str, float], budget: PrivacyBudget
    ) -> Iterable[PureRelease]:
        """Return the releases with epsilons that add up to at most the budget's, exactly."""
        other = [one.name for one in releases if not getattr(one, "is_laplace", False)]
        rule = "without what has other than Laplace noise: releases that share a budget must all "
        rule += "be Release, or all PureRelease with mechanism='laplace' and norm='l1'. Split the "
        rule += "budget, and join the plans' releases in a ReleasePlan."
        require_that(not other, "releases", other, rule)
        # floats may sum to 1 and be more than that
        total = max(Fraction(1), sum(map(Fraction, shares.values()), Fraction(0)))
        for one in releases:
            epsilon = budget.epsilon
            if budget.is_private:
                exact = Fraction(shares[one.name]) / total * Fraction(epsilon) / one.count
                epsilon = -float_up(-exact)
            made = replace(one, epsilon=epsilon)
            rule = f"above the slack of the sampler for its {math.prod(one.shape)} values: raise "
            rule += "the budget or its share, or release fewer values."
            made._require(math.isfinite(made.noise_multiplier), "epsilon", rule)
            yield made

    @property
    def is_laplace(self) -> bool:
        """Whether it is Laplace noise, for an l1 sensitivity."""
        return (self.mechanism, self.norm) == ("laplace", "l1")

    @property
    def noise_multiplier(self) -> float:
        """Scale of the Laplace noise over sensitivity, rounded up: 1 / (epsilon - slack).

        The slack is the sampler's, 2 LAPLACE_ETA for each value of one repetition. Infinite where
        epsilon does not exceed it; 0, no noise, where epsilon is infinite. Other mechanisms than
        Laplace noise have none: a `PrivacyParameterError`.
        """
        rule = "'laplace' with norm 'l1' to have a noise multiplier: ask is_laplace first."
        self._require(self.is_laplace, "mechanism", rule)
        if math.isinf(self.epsilon):
            return 0.0
        slack = 2 * Fraction(LAPLACE_ETA) * math.prod(self.shape)
        left = Fraction(self.epsilon) - slack
        if left <= 0 or 1 / left > Fraction(LARGEST):
            return math.inf
        return float_up(1 / left)

    @property
    def noise_scale(self) -> float:
        """Scale of the Laplace noise; an error as for `noise_multiplier`."""
        return self.noise_multiplier * self.sensitivity


def pure_epsilon_to_mu(epsilon: float) -> float:
    r"""Return the least mu such that every epsilon-DP mechanism is mu-GDP, rounded up.

    :math:`\mu = 2 \Phi^{-1}(e^\epsilon / (1 + e^\epsilon))`: what a pure step costs in a budget
    that is shared in units of mu^2.
    """
    epsilon = require_level("epsilon", epsilon, "pass a pure epsilon.")
    if epsilon == 0.0 or math.isinf(epsilon):
        return epsilon
    if epsilon < 1.0:
        mu = 2.0 * math.sqrt(2.0) * special.erfinv(math.tanh(epsilon / 2.0))
    else:
        mu = -2.0 * special.ndtri_exp(special.log_expit(-epsilon))
    return rounded_up(float(mu))


def mu_to_pure_epsilon(mu: float) -> float:
    r"""Return the largest epsilon whose every epsilon-DP mechanism is mu-GDP, rounded down.

    :math:`\epsilon = \ln(\Phi(\mu/2) / \Phi(-\mu/2))`, the inverse of `pure_epsilon_to_mu`: what a
    share mu of a Gaussian budget buys for a step with a pure guarantee.
    """
    mu = require_level("mu", mu, "pass 1 / noise multiplier.")
    if mu == 0.0 or math.isinf(mu):
        return mu
    if mu < 1.0:
        epsilon = 2.0 * math.atanh(math.erf(mu * 0.5 * math.sqrt(0.5)))
    else:
        epsilon = float(special.log_ndtr(mu / 2.0) - special.log_ndtr(-mu / 2.0))
    return epsilon * (1.0 - 1e-12)  # below its rounding errors


def to_dp_event(*releases: Any) -> Any:
    """Return releases as one `dp_accounting.DpEvent`.

    Gaussian and Laplace noise have events of their own. Any other pure mechanism becomes the
    randomized response of two buckets with its epsilon, which dominates it: a bound for that holds
    for the mechanism. Releases without noise become ``NonPrivateDpEvent``, several a
    ``ComposedDpEvent``, and none a ``NoOpDpEvent``.
    """
    try:
        from dp_accounting import dp_event as dp
    except ImportError as error:
        raise MissingExtraError(
            "DpEvents need dp-accounting, which is not installed: pip install 'skdpmf[accounting]'."
        ) from error
    converted = [_convert(dp, release) for release in releases]
    if len(converted) == 1:
        return converted[0]
    return dp.ComposedDpEvent(converted) if converted else dp.NoOpDpEvent()


def _convert(dp: Any, release: Any) -> Any:
    if release.kind == "gaussian":
        if release.noise_multiplier == 0.0:
            return dp.NonPrivateDpEvent()
        single = dp.GaussianDpEvent(release.noise_multiplier)
    elif release.epsilon == 0.0:
        return dp.NoOpDpEvent()
    elif release.epsilon > 745.0:  # no double distinguishes it from none
        return dp.NonPrivateDpEvent()
    elif release.mechanism == "laplace":
        single = dp.LaplaceDpEvent(1.0 / release.epsilon)
    else:
        ratio = math.exp(-release.epsilon)
        single = dp.RandomizedResponseDpEvent(2.0 * ratio / (1.0 + ratio), 2)
    return single if release.count == 1 else dp.SelfComposedDpEvent(single, release.count)
