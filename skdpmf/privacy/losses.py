"""Privacy loss of Gaussian and pure events together, at a delta or at an epsilon.

Mixtures of both go through privacy loss distributions where dp-accounting is installed, and are
added up (basic composition) otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.accounting import (
    Event,
    GaussianEvent,
    PureEvent,
    compose_events,
    delta_up,
    gaussian_epsilon,
    pure_epsilon_to_mu,
    require_delta,
    require_epsilon,
    rounded_down,
    rounded_up,
    sum_pure,
)
from skdpmf.privacy.events import flatten_events

__all__ = ["PrivacyLoss", "privacy_loss"]

_EXACT = "Gaussian releases, exact"
_SUM = "sum of pure epsilons"
_PLD = "privacy loss distribution (dp-accounting, pessimistic)"
_BASIC = "Gaussian epsilon plus pure epsilons (an upper bound; tighter with skdpmf[accounting])"
_AS_GAUSSIAN = "pure steps charged as Gaussian (an upper bound; tighter with skdpmf[accounting])"


@dataclass(frozen=True)
class PrivacyLoss:
    """An (epsilon, delta) guarantee, and the rule of composition that found it, in words."""

    epsilon: float
    delta: float
    method: str


def privacy_loss(
    events: Event | Iterable[Any], *, delta: float | None = None, epsilon: float | None = None
) -> PrivacyLoss:
    """Return the guarantee of a fixed list of events, for a given delta or a given epsilon.

    Gaussian events alone are exact, pure events alone add their epsilons (and, for a given
    epsilon below the sum, give the delta of the worst mechanism, randomized response). A mixture is
    the least of three upper bounds: the sum of the Gaussian part's epsilon and the pure ones,
    all charged as Gaussian (`pure_epsilon_to_mu`), and the privacy loss distribution if
    dp-accounting is installed, in which a pure event counts as randomized response, which
    dominates every mechanism of that epsilon.

    The list must be fixed before the data is seen: the best of several bounds is no valid
    stopping rule for budgets that are chosen adaptively. Exactly one of delta and epsilon is given.
    """
    if (delta is None) == (epsilon is None):
        raise PrivacyParameterError(
            f"delta={delta!r} and epsilon={epsilon!r}: exactly one must be a number, the other is "
            "computed."
        )
    flat = flatten_events(events)
    gaussian = [event for event in flat if isinstance(event, GaussianEvent)]
    pure = [event for event in flat if isinstance(event, PureEvent)]
    mu, total = compose_events(gaussian), sum_pure(pure)
    if delta is not None:
        return _loss_at_delta(mu, total, pure, require_delta(delta))
    return _loss_at_epsilon(mu, total, pure, require_epsilon(epsilon))


def _loss_at_delta(mu: float, total: float, pure: list[PureEvent], delta: float) -> PrivacyLoss:
    if mu == 0.0:
        return PrivacyLoss(total, 0.0, _SUM)
    if total == 0.0 or math.isinf(mu) or math.isinf(total):
        return PrivacyLoss(max(gaussian_epsilon(mu, delta), total), delta, _EXACT)
    as_mu = rounded_up(math.hypot(mu, *(_charge(event) for event in pure)))
    bounds = [
        (rounded_up(gaussian_epsilon(mu, delta) + total), _BASIC),
        (gaussian_epsilon(as_mu, delta), _AS_GAUSSIAN),
    ]
    pld = _mixture_pld(mu, pure)
    if pld is not None and delta > 0.0:
        bounds.append((float(pld.get_epsilon_for_delta(delta)), _PLD))
    epsilon, method = min(bounds)
    return PrivacyLoss(epsilon, delta, method)


def _loss_at_epsilon(mu: float, total: float, pure: list[PureEvent], epsilon: float) -> PrivacyLoss:
    if mu == 0.0:
        return PrivacyLoss(epsilon, _pure_delta(total, epsilon), _SUM)
    if total == 0.0 or math.isinf(mu) or math.isinf(total):
        worst = 1.0 if math.isinf(total) and not math.isinf(epsilon) else 0.0
        return PrivacyLoss(epsilon, max(delta_up(mu, epsilon), worst), _EXACT)
    as_mu = rounded_up(math.hypot(mu, *(_charge(event) for event in pure)))
    bounds = [(delta_up(as_mu, epsilon), _AS_GAUSSIAN)]
    if epsilon >= total:
        bounds.append((delta_up(mu, rounded_down(epsilon - total)), _BASIC))
    pld = _mixture_pld(mu, pure)
    if pld is not None:
        bounds.append((float(pld.get_delta_for_epsilon(epsilon)), _PLD))
    delta, method = min(bounds)
    return PrivacyLoss(epsilon, delta, method)


def _mixture_pld(mu: float, pure: list[PureEvent]) -> Any:
    """Return the pessimistic PLD of a mu-GDP and pure mechanisms; None without dp-accounting."""
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError:
        return None
    span = 20.0 * mu + mu * mu + 2.0 * sum(event.epsilon * event.count for event in pure)
    finest = min(mu, *(event.epsilon for event in pure)) / 100.0
    interval = max(min(1e-4, finest), span / 1e6)  # coarser is looser, and as valid
    result = privacy_loss_distribution.from_gaussian_mechanism(
        1.0 / mu, value_discretization_interval=interval
    )
    for event in pure:
        step = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(event.epsilon, 0.0),
            value_discretization_interval=interval,
        )
        result = result.compose(step.self_compose(event.count))
    return result


def _charge(event: PureEvent) -> float:
    return pure_epsilon_to_mu(event.epsilon) * math.sqrt(event.count)


def _pure_delta(total: float, epsilon: float) -> float:
    """Delta at epsilon of the worst mechanism of pure epsilon `total`, randomized response."""
    if epsilon >= total:
        return 0.0
    if math.isinf(total):
        return 1.0
    return min(1.0, rounded_up(-math.expm1(epsilon - total) / (1.0 + math.exp(-total))))
