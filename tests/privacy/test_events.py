"""Events, and their way to dp-accounting."""

import builtins
import math

import pytest

from skdpmf.exceptions import MissingExtraError, PrivacyParameterError
from skdpmf.privacy.accounting import GaussianEvent, PureEvent
from skdpmf.privacy.text import to_dp_event


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianEvent(-1.0), "noise_multiplier=-1.0"),
        (lambda: GaussianEvent(math.nan), "noise_multiplier=nan"),
        (lambda: GaussianEvent(1.0, 0), "count=0"),
        (lambda: GaussianEvent(1.0, math.inf), "count=inf"),
        (lambda: PureEvent(-1.0), "epsilon=-1.0"),
        (lambda: PureEvent(1.0, True), "count=True"),
    ],
)
def test_errors_name_the_parameter(make, message):
    with pytest.raises(PrivacyParameterError, match=message):
        make()


def test_without_the_extra_the_error_names_it(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "dp_accounting":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"skdpmf\[accounting\]"):
        to_dp_event(GaussianEvent(1.0))


def test_kinds_of_dp_events():
    dp = pytest.importorskip("dp_accounting").dp_event
    assert to_dp_event(GaussianEvent(2.0)) == dp.GaussianDpEvent(2.0)
    assert to_dp_event(PureEvent(0.5)) == dp.LaplaceDpEvent(2.0)
    assert to_dp_event(PureEvent(0.0, 3)) == dp.NoOpDpEvent()
    huge = PureEvent(2500.0, mechanism="posterior sample")
    for event in (GaussianEvent(0.0, 3), PureEvent(math.inf), huge):
        assert to_dp_event(event) == dp.NonPrivateDpEvent()
    # an exponential mechanism counts as the randomized response that dominates it
    response = to_dp_event(PureEvent(1.0, mechanism="exponential"))
    p = response.noise_parameter / 2
    assert math.log((1 - p) / p) == pytest.approx(1.0, rel=1e-14)
    whole = to_dp_event(GaussianEvent(2.5, 7), PureEvent(0.5, 3), GaussianEvent(1.0))
    steps = dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.5), 7)
    laplace = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(2.0), 3)
    assert whole == dp.ComposedDpEvent([steps, laplace, dp.GaussianDpEvent(1.0)])
    assert to_dp_event() == dp.NoOpDpEvent()
