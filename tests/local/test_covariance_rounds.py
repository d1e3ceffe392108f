"""Rounds "covariance" of the aggregator: when, what it makes of them, and a fit by hand."""

import numpy as np
import pytest

from skdpmf.local import LocalAggregator, LocalDevice, ReleasedModel
from skdpmf.mechanisms.device_reports.privunit import PrivUnit

from .common import (
    HEAD,
    PROTOCOL,
    decided,
    fit_by_hand,
    key_of,
    make_aggregator,
    make_device,
    make_devices,
    replace,
    run,
    sums_of,
)

N_ITEMS = 6


def two_tastes(user, n_items=N_ITEMS):
    """Half of the users like what the others do not."""
    likes = np.arange(n_items) % 2 == user % 2
    return np.arange(n_items), np.where(likes, 4.0, 2.0)


def with_tastes(n, *, epsilon=8.0):
    return [make_device(u, N_ITEMS, epsilon=epsilon, ratings=two_tastes(u)) for u in range(n)]


@pytest.mark.parametrize("fractions", [(0.6, 0.4), (0.5, 0.2, 0.3)])
def test_covariance_rounds_agree_with_a_fit_over_all_rows_bit_for_bit(fractions, monkeypatch):
    asked = decided(monkeypatch)
    settings = {"epsilon": 8.0, "fractions": fractions, "user_damping": 7.5}
    aggregator = make_aggregator(N_ITEMS, **settings, n_components=2)
    run(aggregator, make_devices(150, N_ITEMS, epsilon=8.0))
    sums, model, factors = fit_by_hand(150, N_ITEMS, 8.0, fractions, 7.5, HEAD)
    assert sums_of(aggregator) == sums
    released = aggregator.model()
    np.testing.assert_array_equal(released.item_means, 3.0 + 1.0 * model.item_means)
    np.testing.assert_array_equal(aggregator._run.factors, factors)
    # asked once, with what was released and public: how many are expected, and their noise
    ((known, expected, variance),) = asked
    assert known is aggregator._run.means
    share = fractions[-1] / sum(fractions[:-1])
    assert expected == pytest.approx(sum(n for n, _ in sums[:-1]) * share, rel=1e-12)
    assert variance == pytest.approx(PrivUnit(8.0, 20).variance, rel=1e-3)


def test_factors_come_through(monkeypatch):
    decided(monkeypatch)
    aggregator = make_aggregator(N_ITEMS, epsilon=8.0, fractions=(0.4, 0.6), n_components=1)
    devices = with_tastes(400)
    run(aggregator, devices)
    model = aggregator.model()
    assert model.factor_items.tolist() == HEAD.tolist()
    assert model.factor_damping == 0.5  # of squared quarter ranges, here 1
    L = model.factor_matrix
    assert L.shape == (N_ITEMS, 1)
    assert not L[[1, 4]].any()
    # items of both tastes have opposite signs, and devices' predictions are better for it
    signs = np.sign(L[HEAD, 0])
    assert (signs == signs[0] * np.array([1, 1, -1, -1])).all()
    without = replace(model, factor_items=None, factors=None, factor_damping=0.0)
    for device, (items, ratings) in zip(devices[:2], map(two_tastes, range(2)), strict=True):
        errors = [np.abs(device.predict(m, items) - ratings)[HEAD] for m in (model, without)]
        assert (errors[0] < errors[1] - 0.1).all()
    again = LocalAggregator.restore(aggregator.snapshot())
    assert again.model() == model
    assert again.n_components == 1
    assert model == ReleasedModel.from_json(model.to_json())


def test_factors_are_in_rating_units(monkeypatch):
    decided(monkeypatch)
    factors = []
    for unit in (1.0, 2.5):
        scale = (0.0, 4.0 * unit)
        aggregator = LocalAggregator(
            N_ITEMS, scale, 8.0, fractions=(0.4, 0.6), protocol=PROTOCOL, n_components=1
        )
        devices = []
        for user in range(200):
            items, ratings = two_tastes(user)
            own = {"n_items": N_ITEMS, "rating_range": scale, "epsilon": 8.0}
            devices.append(LocalDevice(items, unit * (ratings - 1.0), **own, key=key_of(user)))
        run(aggregator, devices)
        model = aggregator.model()
        assert model.factor_damping == 0.5 * unit**2
        factors.append(model.factors / unit)
    np.testing.assert_allclose(factors[0], factors[1], rtol=1e-12)


def test_only_the_last_of_several_rounds_can_be_for_covariances(monkeypatch):
    asked = decided(monkeypatch)
    for fractions, kinds in (
        ((1.0,), ["statistics"]),
        ((0.5, 0.5), ["statistics", "covariance"]),
        ((0.4, 0.2, 0.2, 0.2), ["statistics", "residuals", "residuals", "covariance"]),
    ):
        for n_components in (0, 1):
            aggregator = make_aggregator(N_ITEMS, fractions=fractions, n_components=n_components)
            found, devices = [], make_devices(40, N_ITEMS)
            while (announcement := aggregator.announcement) is not None:
                found.append(announcement.kind)
                assert (announcement.head is not None) == (announcement.kind == "covariance")
                for device in devices:
                    if (report := device.report(announcement)) is not None:
                        assert aggregator.receive(report)
                aggregator.close_round()
            never = [kind.replace("covariance", "residuals") for kind in kinds]
            assert found == (kinds if n_components else never)
    assert len(asked) == 2
    # where nobody reported before, there is nothing to decide on
    aggregator = make_aggregator(N_ITEMS)
    assert aggregator.close_round().kind == "statistics"
    assert len(asked) == 2


def test_decision_depends_on_released_values_only():
    """Other devices, and sums that are the same: the same announcement, to the bit."""
    n = 4_000_000
    m, decisions = 60, []
    rng = np.random.default_rng(67)
    likes = np.append(rng.normal(0.0, 0.25, m), 0.0)
    mean = np.zeros(2 * m + 4)
    mean[:m] = 0.05 * np.geomspace(1.0, 0.05, m)
    mean[m] = mean[2 * m + 1] = 0.06
    mean[m + 1 : 2 * m + 1] = 0.9 * mean[:m] * likes[:m]
    for refused in (0, 5):
        aggregator = make_aggregator(m, epsilon=8.0)
        length = PrivUnit(8.0, 2 * m + 4)
        total = np.round(mean * n * 2.0**27 * length.parameters.c).astype(np.int64)
        aggregator._run.add(total, n)
        for _ in range(refused):
            assert not aggregator.receive(b"")
        decisions.append(aggregator.close_round())
    assert decisions[0] == decisions[1]
    assert decisions[0].kind == "covariance"
    assert decisions[0].head.tolist() == list(range(decisions[0].head.size))


def test_an_empty_covariance_round_changes_nothing(monkeypatch):
    decided(monkeypatch)
    aggregator = make_aggregator(N_ITEMS, n_components=3)
    for device in make_devices(60, N_ITEMS):
        if (report := device.report(aggregator.announcement)) is not None:
            assert aggregator.receive(report)
    assert aggregator.close_round().kind == "covariance"
    expected = 3.0 + aggregator._run.means.model().item_means
    aggregator.close_round()
    model = aggregator.model()
    np.testing.assert_array_equal(model.item_means, expected)
    assert model.factor_items is None
    assert model.factors is None
    assert model.factor_damping == 0.0
