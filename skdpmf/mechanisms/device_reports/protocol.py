"""One run of the local protocol: its rounds, what devices report, and the model that follows.

Here are no messages: `skdpmf.local` sends them to devices in the field and back, and `simulate`
lets one device for each row of a matrix take part, with the same reports to the bit.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.data.validation import in_rating_units
from skdpmf.kernels.jit_and_threads import n_threads
from skdpmf.mechanisms.device_reports import item_means as items
from skdpmf.mechanisms.device_reports.item_means import LocalItemMeans, Rows
from skdpmf.mechanisms.device_reports.privunit import DEVICES, PrivUnit
from skdpmf.privacy.sampler.cipher import stream_key

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Settings(NamedTuple):
    """What is public before the first round, as for `skdpmf.local.Announcement`."""

    protocol: str
    epsilon: float
    n_items: int
    rating_range: tuple[float, float]
    user_damping: float
    fractions: tuple[float, ...]
    n_devices: int = 0


class Round(NamedTuple):
    """What devices are told of a round: its kind, and releases so far."""

    number: int
    kind: Literal["statistics", "residuals"]
    item_means: Floats | None = None
    mass: Floats | None = None


class Released(NamedTuple):
    """What is published at the end, in rating units."""

    item_means: Floats
    user_damping: float
    significant: bool
    popularity: Floats


def report_dimension(kind: str, n_items: int) -> int:
    """Return the number of values of a report, with its dummy."""
    of = items.statistics_dimension if kind == "statistics" else items.residual_dimension
    return of(n_items) + 1


def announced_rows(told: Any, R: Any, settings: Any) -> Rows:
    """Return the vectors that devices report, before they are randomised.

    told: a `Round`, or its announcement; R (csr_array of shape (n_devices, n_items)): their ratings
    in quarter ranges from the middle of the scale, columns ascending; settings: `Settings`, or an
    announcement. Result: a vector of length at most 1 for each.
    """
    user_damping = settings.user_damping
    if told.item_means is None or told.mass is None:
        weight = items.count_weight(settings.epsilon, settings.n_items, settings.n_devices)
        return items.statistics_rows(R, user_damping, weight)
    return items.residual_rows(R, told.item_means, told.mass, user_damping)


def report_id(key: bytes, protocol: str) -> str:
    """Return the report id, 32 hexadecimal digits, of the device with this key."""
    return _hex(stream_key(key, "report id", protocol, 0)[:4])


def report_key(key: bytes, protocol: str, number: int) -> NDArray[np.uint32]:
    """Return the key, (8,) uint32, that a device with this key draws its report of a round from."""
    return stream_key(key, "device", protocol, number)


def device_key(secret: bytes, slot: int) -> bytes:
    """Return the key of the simulated device of a row."""
    return stream_key(secret, "simulated device", "", slot).astype("<u4").tobytes()


def protocol_name(secret: bytes) -> str:
    """Return the public name of a simulated protocol, which does not reveal the secret."""
    return _hex(stream_key(secret, "simulated protocol", "", 0)[:4])


def group_of(protocol: str, fractions: tuple[float, ...], own_id: str) -> int:
    """Return the round in which the device with this report id reports.

    A public hash decides: the first 8 bytes, little-endian, of BLAKE2b with person "skdpmf group"
    of the bytes of protocol and report id, over 2^64, against the cumulated fractions.
    """
    text = bytes.fromhex(protocol + own_id)
    digest = hashlib.blake2b(text, digest_size=8, person=b"skdpmf group").digest()
    return bisect.bisect_right(_limits(fractions), int.from_bytes(digest, "little"))


@lru_cache
def _limits(fractions: tuple[float, ...]) -> list[int]:
    """Return floor(2^64 F_k) of the cumulated fractions F_k without the last, which is 1."""
    cumulated = list(accumulate(map(Fraction, fractions)))
    return [int(2**64 * part / cumulated[-1]) for part in cumulated[:-1]]


def _hex(words: NDArray[np.uint32]) -> str:
    return words.astype("<u4").tobytes().hex()


class Protocol:
    """The server of one run: sums of reports, and what is released of them round by round.

    settings: has the fields of `Settings`, which are checked before, such as a first announcement;
    public: as for `LocalItemMeans`.
    """

    def __init__(self, settings: Any, public: Any = None) -> None:
        self.settings = settings
        self.closed: list[tuple[int, Ints]] = []  # reports and sum of each round
        weight = items.count_weight(settings.epsilon, settings.n_items, settings.n_devices)
        self.means = LocalItemMeans(settings.n_items, settings.user_damping, weight, public)
        self._open(Round(0, "statistics"))

    @property
    def n_reports(self) -> tuple[int, ...]:
        """Reports of each round so far, the current one last."""
        return (*(n for n, _ in self.closed), *(() if self.round is None else (self.n,)))

    def add(self, total: NDArray[Any], n_reports: int) -> None:
        """Take in the sum, (dimension,), of some reports of the current round."""
        self.sum += total
        self.n += n_reports

    def close(self) -> Round | None:
        """End the current round, use its reports, and return the next one; None after the last."""
        current = self.round
        if current is None:
            raise RuntimeError("all rounds are closed: there is nothing left to close.")
        if self.n:  # a round without any report says nothing
            told = self.randomiser.estimate(self.sum, self.n)[:-1], self.n, self.randomiser.variance
            if current.kind == "statistics":
                self.means.add_statistics(*told)
            else:
                self.means.add_residuals(*told)
        self.closed.append((self.n, self.sum))
        self._open(self._next(current.number + 1))
        return self.round

    def model(self) -> Released:
        """Return what is published; without any report item means are the middle of the scale."""
        if self.round is not None:
            raise RuntimeError(f"round {self.round.number} is open: close all rounds first.")
        found: Any = np.zeros(self.settings.n_items), self.settings.user_damping, False
        if self.means.means is not None:
            found = self.means.model()[:3]
        means, damping, significant = found
        means = in_rating_units(means, self.settings.rating_range)
        return Released(means, damping, significant, self.means.popularity)

    def _open(self, told: Round | None) -> None:
        self.round, self.n, self.sum = told, 0, np.zeros(0, np.int64)
        if told is not None:
            dimension = report_dimension(told.kind, self.settings.n_items)
            self.randomiser = PrivUnit(self.settings.epsilon, dimension)
            self.sum = np.zeros(dimension, np.int64)

    def _next(self, number: int) -> Round | None:
        if number == len(self.settings.fractions):
            return None
        if self.means.means is None:  # nobody has reported: there is nothing to release
            return Round(number, "statistics")
        return Round(number, "residuals", self.means.item_means, self.means.mass)


def simulate(
    run: Protocol,
    R: Any,
    secret: bytes,
    *,
    steps: Iterable[int],
    n_parts: int,
    n_jobs: int | None,
) -> Released:
    """Let one device for each row of R take part in all rounds.

    To the bit what `skdpmf.local.LocalDevice` objects with the keys ``device_key(secret, row)``
    would do: their reports are drawn one by one, and only their sums are kept.

    run: new, without any report; R (csr_array of shape (n_devices, n_items)): ratings in quarter
    ranges from the middle of the scale, columns ascending; secret: never used before; steps: one
    for each part of a round, possibly wrapped in a progress display; n_parts: of a round.
    """
    steps, at_once = iter(steps), DEVICES * n_threads(n_jobs)
    keys = [device_key(secret, row) for row in range(R.shape[0])]
    name, fractions = run.settings.protocol, run.settings.fractions
    groups = np.array([group_of(name, fractions, report_id(key, name)) for key in keys])
    while (told := run.round) is not None:
        taking_part = np.flatnonzero(groups == told.number)
        sums = np.zeros_like(run.sum)
        for part in np.array_split(taking_part, n_parts):
            next(steps, None)
            for start in range(0, part.size, at_once):
                some = part[start : start + at_once]
                drawn = [report_key(keys[row], name, told.number) for row in some]
                rows = announced_rows(told, R[some], run.settings)
                sums += run.randomiser.sum_reports(np.stack(drawn), *rows, n_jobs=n_jobs)
        run.add(sums, taking_part.size)
        run.close()
    return run.model()
