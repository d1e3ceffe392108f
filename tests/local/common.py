"""Small protocols with repeatable devices, and a fit by hand that must agree with them."""

import numpy as np
from msgspec import structs

from skdpmf.local import LocalAggregator, LocalDevice
from skdpmf.mechanisms.device_reports import protocol as protocol_module
from skdpmf.privacy.sampler.noise import derived_key

RANGE = (1.0, 5.0)
PROTOCOL = "00112233445566778899aabbccddeeff"
HEAD = np.array([0, 2, 3, 5])  # of six items


def key_of(user):
    return derived_key(6, "local devices", str(user))


def ratings_of(user, n_items):
    """Made-up items and ratings, odd items being liked better; some users have none."""
    rng = np.random.default_rng([6, user])
    items = rng.choice(n_items, rng.integers(0, n_items + 1), replace=False)
    liked = 2.0 + 2.0 * (items % 2) + rng.normal(0.0, 0.7, items.size)
    return items, np.clip(np.round(liked), *RANGE)


def make_device(user, n_items, *, epsilon=4.0, ratings=None):
    own = ratings_of(user, n_items) if ratings is None else ratings
    return LocalDevice(*own, n_items=n_items, rating_range=RANGE, epsilon=epsilon, key=key_of(user))


def make_devices(n, n_items, **settings):
    return [make_device(user, n_items, **settings) for user in range(n)]


def make_aggregator(n_items, *, epsilon=4.0, fractions=(0.6, 0.4), protocol=PROTOCOL, **settings):
    return LocalAggregator(
        n_items, RANGE, epsilon, fractions=fractions, protocol=protocol, **settings
    )


def run(aggregator, devices, *, between=lambda aggregator: aggregator):
    """Run all rounds; ``between`` may exchange the aggregator after each report."""
    reports = []
    while aggregator.announcement is not None:
        for device in devices:
            report = device.report(aggregator.announcement)
            if report is not None:
                assert aggregator.receive(report.to_bytes())
                reports.append(report)
                aggregator = between(aggregator)
        aggregator.close_round()
    return aggregator, reports


def decided(monkeypatch, head=HEAD):
    """Let the last round be for the covariance of this head; return what was asked."""
    asked = []
    monkeypatch.setattr(
        protocol_module, "choose_head", lambda *terms: asked.append(terms) or head.copy()
    )
    return asked


def sums_of(aggregator):
    return [(n, total.tolist()) for n, total in aggregator._run.closed]


def replace(message, **changes):
    """A message with other fields; before msgspec 0.21 `structs.replace` checks nothing."""
    return type(message)(**{**structs.asdict(message), **changes})
