"""What all devices do in a round: one by one in the field, many at once in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.local.aggregator import LocalAggregator
from skdpmf.local.messages import Announcement, ReleasedModel
from skdpmf.mechanisms.device_reports.factors import covariance_rows
from skdpmf.mechanisms.device_reports.item_means import Rows, residual_rows, statistics_rows
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.privacy.sampler.noise import stream_key

__all__ = [
    "N_PARTS",
    "announced_rows",
    "device_key",
    "protocol_name",
    "report_id",
    "report_key",
    "simulate",
]

N_PARTS = 10  # of a round, for progress bars
_REPORTS = "sum of reports"
_AT_ONCE = 1 << 12  # devices: in a round "covariance" one has up to 780 values more than ratings


def announced_rows(announcement: Announcement, R: Any) -> Rows:
    """Return the vectors that devices report, before they are randomised.

    announcement: of the round; R (csr_array of shape (n_devices, n_items)): their ratings in
    quarter ranges from the middle of the scale, columns ascending. Result: a vector of length at
    most 1 for each.
    """
    damping = announcement.user_damping
    if announcement.item_means is None or announcement.mass is None:
        return statistics_rows(R, damping)
    released = announcement.item_means, announcement.mass
    if announcement.head is None:
        return residual_rows(R, *released, damping)
    return covariance_rows(R, *released, announcement.head, damping)


def report_id(key: bytes, protocol: str) -> str:
    """Return the report id of the device with this key.

    key: the device's; protocol: which protocol. Result: 32 hexadecimal digits.
    """
    drawn = stream_key(key, "report id", protocol, 0)[:4]
    return drawn.astype("<u4").tobytes().hex()


def report_key(key: bytes, protocol: str, number: int) -> NDArray[np.uint32]:
    """Return the key that the device's report is drawn from.

    key: the device's; protocol: which protocol; number: which round of it. Returns (8,) uint32: for
    `PrivUnit.report`.
    """
    return stream_key(key, "device", protocol, number)


def device_key(secret: bytes, slot: int) -> bytes:
    """Return the key of a simulated device.

    secret: of the simulation; slot: row of the device. Result: a key for `LocalDevice`.
    """
    return stream_key(secret, "simulated device", "", slot).astype("<u4").tobytes()


def protocol_name(secret: bytes) -> str:
    """Return the name of a simulated protocol, which is public.

    secret: of the simulation. Result: 32 hexadecimal digits, which do not reveal the secret.
    """
    return stream_key(secret, "simulated protocol", "", 0)[:4].astype("<u4").tobytes().hex()


def simulate(
    aggregator: LocalAggregator,
    R: Any,
    secret: bytes,
    *,
    steps: Iterable[int],
    n_jobs: int | None,
    first_slot: int = 0,
    total_of: Callable[[str, int, NDArray[np.int64]], NDArray[np.int64]] | None = None,
) -> ReleasedModel:
    """Let one device for each row of R take part in all rounds.

    To the bit what `LocalDevice` objects with the keys ``device_key(secret, row)`` would do: their
    reports are drawn one by one, and only their sums are kept.

    aggregator: new, without any report; R (csr_array of shape (n_devices, n_items)): ratings in
    quarter ranges from the middle of the scale, columns ascending; secret: never used before;
    steps: as long as `N_PARTS` times the number of rounds, possibly wrapped in a progress display;
    first_slot: slot of row 0, where R is a block of the devices; total_of: ``total_of(name, round,
    sums)`` returns the sum over all blocks, which all of them take in. None: R holds all devices.
    Raises RuntimeError if the aggregator's rounds are closed.
    """
    steps, protocol, announcement = iter(steps), aggregator.protocol, aggregator.announcement
    if announcement is None:
        raise RuntimeError("all rounds are closed: simulate with a new aggregator.")
    keys = [device_key(secret, first_slot + row) for row in range(R.shape[0])]
    groups = np.array([announcement.group_of(report_id(key, protocol)) for key in keys])
    while announcement is not None:
        randomiser = PrivUnit(announcement.epsilon, announcement.dimension)
        taking_part = np.flatnonzero(groups == announcement.round)
        # the last entry is how many there are
        sums = np.append(np.zeros(announcement.dimension, np.int64), taking_part.size)
        for part in np.array_split(taking_part, N_PARTS):
            next(steps, None)
            for start in range(0, part.size, _AT_ONCE):
                some = part[start : start + _AT_ONCE]
                drawn = [report_key(keys[row], protocol, announcement.round) for row in some]
                rows = announced_rows(announcement, R[some])
                sums[:-1] += randomiser.sum_reports(np.stack(drawn), *rows, n_jobs=n_jobs)
        if total_of is not None:
            sums = total_of(_REPORTS, announcement.round, sums)
        aggregator.add_simulated(sums[:-1], int(sums[-1]))
        announcement = aggregator.close_round()
    return aggregator.model()
