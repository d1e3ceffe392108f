"""The spending of a mechanism, as plain records; and to and from dp-accounting's DpEvents.

An event says only how much noise there was relative to the sensitivity: accounting needs no more.
"""

import math
from typing import Any

from skdpmf.exceptions import MissingExtraError, PrivacyParameterError
from skdpmf.privacy.accounting import Event, GaussianEvent, PureEvent


def to_dp_event(*events: Event) -> Any:
    """Return the events as one `dp_accounting.DpEvent`.

    Gaussian and Laplace events have one of their own. Any other pure mechanism becomes the
    randomized response of two buckets with its epsilon, which dominates it: what an accountant says
    of that holds for the mechanism. Events without noise become ``NonPrivateDpEvent``, several
    events a ``ComposedDpEvent``, and none a ``NoOpDpEvent``.
    """
    dp = _dp_event_module()
    converted = [_convert(dp, event) for event in events]
    if len(converted) == 1:
        return converted[0]
    return dp.ComposedDpEvent(converted) if converted else dp.NoOpDpEvent()


def from_dp_event(event: Any) -> tuple[Event, ...]:
    """Return the events of a `dp_accounting.DpEvent`; a non-private one is ``GaussianEvent(0.0)``.

    Kinds other than Gaussian, Laplace, randomized response, no-op, non-private and compositions of
    them, such as sampled ones, are refused.
    """
    return _from_dp_event(_dp_event_module(), event, 1)


def _from_dp_event(dp: Any, event: Any, count: int) -> tuple[Event, ...]:
    if isinstance(event, dp.NoOpDpEvent):
        return ()
    if isinstance(event, dp.NonPrivateDpEvent):
        return (GaussianEvent(0.0),)
    if isinstance(event, dp.ComposedDpEvent):
        return tuple(e for part in event.events for e in _from_dp_event(dp, part, count))
    if isinstance(event, dp.SelfComposedDpEvent):
        return _from_dp_event(dp, event.event, count * event.count) if event.count else ()
    if isinstance(event, dp.GaussianDpEvent):
        return (GaussianEvent(float(event.noise_multiplier), count),)
    if isinstance(event, dp.LaplaceDpEvent):
        return (PureEvent(_reciprocal(event.noise_multiplier), count, "laplace"),)
    if isinstance(event, dp.RandomizedResponseDpEvent):
        # p to stay, else uniform over n buckets: ratio (1 - p + p / n) / (p / n)
        p, n = event.noise_parameter, event.num_buckets
        epsilon = math.log1p(n * (1.0 - p) / p) if p > 0.0 else math.inf
        return (PureEvent(epsilon if n > 1 else 0.0, count, "randomized response"),)
    raise PrivacyParameterError(
        f"event={event!r} must be Gaussian, Laplace, randomized response, no-op, non-private or a "
        "composition of these: account for it with dp_accounting, and state the epsilon at delta "
        "that it gives, PrivacyStatement(epsilon, delta, unit, neighbors, ())."
    )


def _convert(dp: Any, event: Event) -> Any:
    if isinstance(event, GaussianEvent):
        if event.noise_multiplier == 0.0:
            return dp.NonPrivateDpEvent()
        single = dp.GaussianDpEvent(event.noise_multiplier)
    elif math.isinf(event.epsilon):
        return dp.NonPrivateDpEvent()
    elif event.epsilon == 0.0:
        return dp.NoOpDpEvent()
    elif event.mechanism == "laplace":
        single = dp.LaplaceDpEvent(1.0 / event.epsilon)
    else:
        ratio = math.exp(-event.epsilon)
        if ratio == 0.0:  # no double distinguishes such a mechanism from one without
            return dp.NonPrivateDpEvent()
        single = dp.RandomizedResponseDpEvent(2.0 * ratio / (1.0 + ratio), 2)
    return single if event.count == 1 else dp.SelfComposedDpEvent(single, event.count)


def _dp_event_module() -> Any:
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise MissingExtraError(
            "DpEvents need dp-accounting, which is not installed: pip install 'skdpmf[accounting]'."
        ) from error
    return dp_event


def _reciprocal(x: float) -> float:
    return 1.0 / x if x > 0.0 else math.inf
