"""Small protocols with repeatable devices, and a fit by hand that must agree with them."""

import numpy as np
from msgspec import structs
from scipy import sparse

from skdpmf.local import Announcement, LocalAggregator, LocalDevice
from skdpmf.mechanisms.device_reports.item_means import (
    LocalItemMeans,
    residual_rows,
    statistics_rows,
)
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.privacy.sampler.cipher import stream_key
from skdpmf.privacy.sampler.streams import derived_key

RANGE = (1.0, 5.0)
PROTOCOL = "00112233445566778899aabbccddeeff"


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


def sums_of(aggregator):
    return [(n, total.tolist()) for n, total in aggregator._run.closed]


def rows_in_quarter_ranges(users, n_items):
    dense = np.full((len(users), n_items), np.nan)
    for at, user in enumerate(users):
        items, ratings = ratings_of(user, n_items)
        dense[at, items] = (ratings - 3.0) / 1.0
    known = np.isfinite(dense)
    pointers = np.concatenate(([0], np.cumsum(known.sum(axis=1))))
    arrays = dense[known], known.nonzero()[1], pointers
    return sparse.csr_array(arrays, shape=dense.shape)


def fit_by_hand(n_users, n_items, epsilon, fractions, damping):
    """What an estimator does: groups, rows, sums of reports and estimates, all users at once."""
    draw = Announcement(PROTOCOL, 0, "statistics", epsilon, n_items, RANGE, damping, fractions)
    ids = [
        stream_key(key_of(u), "report id", PROTOCOL, 0)[:4].astype("<u4").tobytes().hex()
        for u in range(n_users)
    ]
    groups = np.array([draw.group_of(i) for i in ids])
    server, sums = LocalItemMeans(n_items, damping), []
    for number in range(len(fractions)):
        users = np.flatnonzero(groups == number)
        R = rows_in_quarter_ranges(users, n_items)
        if number == 0:
            x, add = statistics_rows(R, damping), server.add_statistics
            randomiser = PrivUnit(epsilon, 2 * n_items + 4)
        else:
            x = residual_rows(R, server.item_means, server.mass, damping)
            randomiser, add = PrivUnit(epsilon, n_items + 2), server.add_residuals
        keys = np.stack([stream_key(key_of(u), "device", PROTOCOL, number) for u in users])
        total = randomiser.sum_reports(keys, x.indptr, x.indices, x.values)
        sums.append((len(users), total.tolist()))
        add(randomiser.estimate(total, len(users))[:-1], len(users), randomiser.variance)
    return sums, server.model()


def replace(message, **changes):
    """A message with other fields; before msgspec 0.21 `structs.replace` checks nothing."""
    return type(message)(**{**structs.asdict(message), **changes})
