"""The spending of a mechanism, as plain records; and to dp-accounting's DpEvents.

An event says only how much noise there was relative to the sensitivity: accounting needs no more.
"""

import math
from typing import Any

from skdpmf.exceptions import MissingExtraError
from skdpmf.privacy.accounting import Event, GaussianEvent


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
