"""Releases as events of dp-accounting."""

import builtins
import math

import pytest

from skdpmf.exceptions import MissingExtraError
from skdpmf.privacy.plan import Release
from skdpmf.privacy.pure import PureRelease, to_dp_event


def gaussian(noise_multiplier, count=1):
    return Release("S", "a sum", (3,), 1.0, noise_multiplier, count)


def pure(epsilon, count=1, mechanism="laplace"):
    return PureRelease("S", "a sum", (3,), epsilon, mechanism, 1.0, "l1", count)


def test_without_the_extra_the_error_names_it(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "dp_accounting":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"skdpmf\[accounting\]"):
        to_dp_event(gaussian(1.0))


def test_kinds_of_dp_events():
    dp = pytest.importorskip("dp_accounting").dp_event
    assert to_dp_event(gaussian(2.0)) == dp.GaussianDpEvent(2.0)
    assert to_dp_event(pure(0.5)) == dp.LaplaceDpEvent(2.0)
    assert to_dp_event(pure(0.0, 3)) == dp.NoOpDpEvent()
    huge = pure(2500.0, mechanism="posterior sample")
    for event in (gaussian(0.0, 3), pure(math.inf), huge):
        assert to_dp_event(event) == dp.NonPrivateDpEvent()
    # an exponential mechanism counts as the randomized response that dominates it
    response = to_dp_event(pure(1.0, mechanism="exponential"))
    p = response.noise_parameter / 2
    assert math.log((1 - p) / p) == pytest.approx(1.0, rel=1e-14)
    whole = to_dp_event(gaussian(2.5, 7), pure(0.5, 3), gaussian(1.0))
    steps = dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.5), 7)
    laplace = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(2.0), 3)
    assert whole == dp.ComposedDpEvent([steps, laplace, dp.GaussianDpEvent(1.0)])
    assert to_dp_event() == dp.NoOpDpEvent()
