"""A simulation gives what single devices give, to the bit."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf.data.validation import in_quarter_ranges
from skdpmf.local import LocalAggregator, LocalDevice
from skdpmf.mechanisms.device_reports import protocol
from skdpmf.mechanisms.device_reports.protocol import device_key, simulate

RANGE = (1.0, 5.0)
PROTOCOL = "ab" * 16


def make_ratings(n_devices, n_items, seed):
    rng = np.random.default_rng(seed)
    known = rng.random((n_devices, n_items)) < 0.4
    known[0] = False  # a device without ratings
    values = rng.integers(1, 6, (n_devices, n_items)) * known
    return sparse.csr_array(values.astype(float))


@pytest.mark.parametrize("n_devices", [0, 60])
@pytest.mark.parametrize("fractions", [(1.0,), (0.5, 0.3, 0.2)])
def test_simulated_devices_are_devices(fractions, n_devices, monkeypatch):
    monkeypatch.setattr(protocol, "DEVICES", 2)
    R, secret = make_ratings(60, 7, 0), bytes(range(32))
    single, many = (
        LocalAggregator(
            *(7, RANGE, 4.0), fractions=fractions, n_devices=n_devices, protocol=PROTOCOL
        )
        for _ in range(2)
    )
    devices = [
        LocalDevice(
            *(R[[i]].indices, R[[i]].data),
            n_items=7,
            rating_range=RANGE,
            epsilon=4.0,
            key=device_key(secret, i),
        )
        for i in range(60)
    ]
    announcement = single.announcement
    while announcement is not None:
        for device in devices:
            report = device.report(announcement)
            assert report is None or single.receive(report)
        announcement = single.close_round()
    steps = iter(range(10 * len(fractions)))
    quarter, run = in_quarter_ranges(R, RANGE), many._run
    found = simulate(run, quarter, secret, steps=steps, n_parts=10, n_jobs=2)
    many._announcement = None
    assert next(steps, None) is None
    assert sum(many.n_reports) == 60
    assert many.model() == single.model()
    for (n, total), (n_single, of_single) in zip(run.closed, single._run.closed, strict=True):
        assert n == n_single
        np.testing.assert_array_equal(total, of_single)
    other = LocalAggregator(7, RANGE, 4.0, fractions=fractions, protocol=PROTOCOL)._run
    again = simulate(other, quarter, bytes(32), steps=(), n_parts=1, n_jobs=1)
    assert again.item_means.tolist() != found.item_means.tolist() or not found.significant
