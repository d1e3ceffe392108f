"""The server of the local model: it adds up randomised reports, and publishes what follows."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.data.files import replaced_file, sync_folder
from skdpmf.data.scale import in_rating_units, middle_and_quarter
from skdpmf.local import messages
from skdpmf.local.messages import Announcement, MessageError, ReleasedModel, Report
from skdpmf.mechanisms.device_reports.factors import add_covariance, choose_head
from skdpmf.mechanisms.device_reports.item_means import LocalItemMeans, make_plan
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.device_reports.randomizers import shuffle_note
from skdpmf.mechanisms.gram.covariance import RIDGE
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.sampler.noise import fresh_key
from skdpmf.privacy.statement import PrivacyStatement

__all__ = ["MAX_REPORTS", "LocalAggregator"]

MAX_REPORTS = 2**32  # so that sums stay below 2^63
_DIGEST = 16
_NO_HEAD = np.zeros(0, np.int64)


class LocalAggregator:
    """Makes a released item model from the reports of `LocalDevice` objects; nobody trusts it.

    Round by round it announces public parameters, adds up the reports that come in, and closes the
    round. It keeps their sum in 64-bit integers and their random ids, nothing else of any report.
    The first round that is not empty measures item popularity and means; later ones measure what
    is left of the means' error, on other devices: each sends one report, with its whole epsilon.
    The last of several rounds measures covariances of the most popular items as well, where what is
    known by then lets it expect more of factors than it costs
    (`skdpmf.mechanisms.device_reports.factors`).

    Reports that are malformed, for another protocol, version or round (or from a device whose id
    belongs to another round), of the wrong length, or seen before are refused and counted in
    `refused`; they change nothing else. So are those with a value or a norm that an honest report
    has less than once in a billion (`PrivUnit.objection`). A device that lies about its ratings, or
    that forges a report within these limits, cannot be distinguished from an honest one: the guide
    says how far some of them move an item's mean.

    All methods may be called from several threads.

    Parameters
    ----------
    n_items : int
        Size of the public catalogue.
    rating_range : (float, float)
        Smallest and largest possible rating, public.
    epsilon : float
        Epsilon of one report, in (0, 16].
    fractions : tuple of float, default=(1.0,)
        Share of the devices that report in each round: > 0, of sum 1.
    user_damping : float, default=10.0
        Fictitious ratings in a user's own mean, in [1e-6, 1e6].
    n_components : int, default=8
        Largest number of factors, >= 0; 0 for none.
    protocol : str, default=None
        Identity of this run, 32 hexadecimal digits. None: random. Two runs must not share one.

    Attributes
    ----------
    refused : collections.Counter
        Refused reports by reason.

    Raises
    ------
    MessageError
        If a parameter is invalid; a ValueError.
    PrivacyParameterError
        If epsilon is too small for so many items.

    References
    ----------
    H. Asi, V. Feldman, K. Talwar, "Optimal algorithms for mean estimation under local differential
    privacy", ICML 2022.

    Examples
    --------
    >>> from skdpmf.local import LocalDevice
    >>> aggregator = LocalAggregator(4, (1, 5), 8.0, fractions=(0.8, 0.2))
    >>> devices = [
    ...     LocalDevice([i % 4], [4.0], n_items=4, rating_range=(1, 5), epsilon=8.0)
    ...     for i in range(50)
    ... ]
    >>> announcement = aggregator.announcement
    >>> while announcement is not None:
    ...     for device in devices:
    ...         report = device.report(announcement)
    ...         if report is not None:
    ...             assert aggregator.receive(report.to_bytes())
    ...     announcement = aggregator.close_round()
    >>> model = aggregator.model()
    >>> sum(model.n_reports), model.n_items
    (50, 4)
    >>> devices[0].predict(model, [0, 3]).shape
    (2,)
    >>> aggregator.statement().local
    True
    """

    def __init__(
        self,
        n_items: int,
        rating_range: tuple[float, float],
        epsilon: float,
        *,
        fractions: tuple[float, ...] = (1.0,),
        user_damping: float = 10.0,
        n_components: int = 8,
        protocol: str | None = None,
    ) -> None:
        self.protocol = fresh_key()[:16].hex() if protocol is None else protocol
        first = Announcement(
            *(self.protocol, 0, "statistics", epsilon, n_items, rating_range, user_damping),
            fractions,
        )
        self.n_items, self.rating_range = first.n_items, first.rating_range
        self.fractions, self.user_damping = first.fractions, first.user_damping
        self.epsilon = first.epsilon
        self.n_components = _rank(n_components)
        self.refused: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._ids: set[bytes] = set()
        self._closed: list[tuple[int, NDArray[np.int64]]] = []  # reports and sum of each round
        self._means = LocalItemMeans(first.n_items, first.user_damping)
        self._head: NDArray[np.int64] | None = None  # of the last round, once it is decided
        self._factors = np.zeros((0, 0))
        self._open(first)

    def __repr__(self) -> str:
        return (
            f"LocalAggregator(n_items={self.n_items}, rating_range={self.rating_range}, "
            f"epsilon={self.epsilon:g}, fractions={self.fractions}, protocol={self.protocol!r}, "
            f"n_reports={self.n_reports})"
        )

    @property
    def announcement(self) -> Announcement | None:
        """The current round's public parameters; None when all rounds are closed."""
        return self._announcement

    @property
    def n_reports(self) -> tuple[int, ...]:
        """Accepted reports of each round so far, the current one last."""
        with self._lock:
            current = () if self._announcement is None else (self._n,)
            return (*(n for n, _ in self._closed), *current)

    def receive(self, report: Report | bytes) -> bool:
        """Take in a report, or refuse it.

        Parameters
        ----------
        report : Report or bytes
            From a device, as it is or by ``to_bytes``.

        Returns
        -------
        bool
            Whether it was accepted. If not, `refused` says why. Whatever it is, nothing is
            raised.
        """
        reason = ""
        if not isinstance(report, Report):
            try:
                report = Report.from_bytes(report)
            except messages.VersionError:
                reason = "wrong version"
            except MessageError:
                reason = "malformed"
        with self._lock:
            reason = reason or self._objection(report)  # type: ignore[arg-type]
            if reason:
                self.refused[reason] += 1
                return False
            self._sum += report.payload  # type: ignore[union-attr]
            self._ids.add(bytes.fromhex(report.report_id))  # type: ignore[union-attr]
            self._n += 1
            return True

    def close_round(self) -> Announcement | None:
        """End the current round, and use its reports.

        Returns
        -------
        Announcement or None
            Announcement of the next round; None after the last.

        Raises
        ------
        RuntimeError
            If all rounds are closed.
        """
        with self._lock:
            current = self._announcement
            if current is None:
                raise RuntimeError("all rounds are closed: there is nothing left to close.")
            if self._n:  # a round without any report says nothing
                mean = self._randomiser.estimate(self._sum, self._n)[:-1]
                told = mean, self._n, self._randomiser.variance
                if current.kind == "statistics":
                    self._means.add_statistics(*told)
                elif current.kind == "residuals":
                    self._means.add_residuals(*told)
                elif current.head is not None:
                    terms = self._means, current.head, *told, self.n_components
                    self._factors = add_covariance(*terms)
            self._closed.append((self._n, self._sum))
            following = self._next(current)
            self._open(following)
            return following

    def model(self) -> ReleasedModel:
        """Return the model to be published.

        Returns
        -------
        ReleasedModel
            In rating units. If no device reported at all, every item mean is the middle of the
            scale.

        Raises
        ------
        RuntimeError
            If a round is still open.
        """
        with self._lock:
            if self._announcement is not None:
                raise RuntimeError(
                    f"round {self._announcement.round} is open: close all rounds first."
                )
            means, damping, significant = np.zeros(self.n_items), self.user_damping, False
            if self._means.means is not None:
                means, damping, significant = self._means.model()
            unit = middle_and_quarter(self.rating_range)[1]
            factors = (self._head, unit * self._factors.ravel(), RIDGE * unit**2)
            return ReleasedModel(
                self.protocol,
                in_rating_units(means, self.rating_range),
                damping,
                self.rating_range,
                self.epsilon,
                self.n_reports,
                significant,
                *(factors if self._factors.size else ()),
            )

    def add_simulated(self, total: NDArray[np.int64], n_reports: int) -> None:
        """Take in the sum of simulated reports; no device in the field sends such a thing.

        Parameters
        ----------
        total : ndarray of int64, shape (dimension,)
            From `PrivUnit.sum_reports`.
        n_reports : int
            How many.

        Raises
        ------
        ValueError
            If the sum has not the length of this round's reports.

        Examples
        --------
        >>> aggregator = LocalAggregator(4, (1, 5), 8.0)
        >>> aggregator.add_simulated(np.zeros(aggregator.announcement.dimension, np.int64), 20)
        >>> aggregator.n_reports
        (20,)
        """
        with self._lock:
            self._sum += total
            self._n += n_reports

    def statement(self, delta: float | None = None) -> PrivacyStatement:
        """Say what is protected, against whom, and what that rests on.

        Parameters
        ----------
        delta : float, default=None
            If given, a note has the central epsilon of shuffled reports at this delta, for the
            smallest round so far.

        Returns
        -------
        PrivacyStatement
            Read it with ``print``, or keep its ``to_json``.

        Raises
        ------
        PrivacyParameterError
            If delta is not in [0, 1).
        """
        budget = PrivacyBudget(self.epsilon, neighbors="replace")
        plan = make_plan(budget, self.n_items, len(self.fractions))
        counts = [n for n in self.n_reports if n]
        if delta is not None and counts:
            note = shuffle_note(self.epsilon, min(counts), delta)
            plan = replace(plan, notes=(*plan.notes, note))
        return PrivacyStatement.from_plan(plan)

    def snapshot(self) -> bytes:
        """Return the exact state: sums, counts, ids and the current announcement.

        Returns
        -------
        bytes
            For `restore`; with a digest, so that damage is noticed.

        Examples
        --------
        >>> aggregator = LocalAggregator(4, (1, 5), 8.0)
        >>> isinstance(aggregator.snapshot(), bytes)
        True
        """
        with self._lock:
            plain = {
                "protocol": self.protocol,
                "n_items": self.n_items,
                "rating_range": self.rating_range,
                "epsilon": self.epsilon,
                "user_damping": self.user_damping,
                "n_components": self.n_components,
                "fractions": self.fractions,
                "n_reports": self.n_reports,
                "refused": dict(self.refused),
            }
            sums = [total for _, total in self._closed]
            current = b""
            if self._announcement is not None:
                sums.append(self._sum)
                current = self._announcement.to_bytes()
            arrays: dict[str, Any] = {
                "sums": np.concatenate(sums),
                "ids": np.frombuffer(b"".join(sorted(self._ids)), np.uint8),
                "announcement": np.frombuffer(current, np.uint8),
                "head": np.zeros(0, np.int64) if self._head is None else self._head,
            }
            data = messages.to_bytes("snapshot", plain, arrays)
        return data + _digest(data)

    @classmethod
    def restore(cls, data: bytes) -> LocalAggregator:
        """Return the aggregator of which `snapshot` returned this.

        Parameters
        ----------
        data : bytes
            The snapshot.

        Returns
        -------
        LocalAggregator
            Goes on as if nothing had happened.

        Raises
        ------
        MessageError
            If the snapshot is damaged, or of another version.

        Examples
        --------
        >>> aggregator = LocalAggregator(4, (1, 5), 8.0)
        >>> twin = LocalAggregator.restore(aggregator.snapshot())
        >>> twin.announcement == aggregator.announcement
        True
        """
        body, digest = bytes(data[:-_DIGEST]), bytes(data[-_DIGEST:])
        if _digest(body) != digest:
            raise MessageError("data is no whole snapshot: take the last one that was saved.")
        dtypes = {"sums": "<i8", "ids": "|u1", "announcement": "|u1", "head": "<i8"}
        plain, arrays = messages.parse_bytes("snapshot", body, dtypes)
        counts, refused = plain.pop("n_reports"), plain.pop("refused")
        own = cls(**plain)
        own.refused.update(refused)
        ids = arrays["ids"].tobytes()
        own._ids = {ids[at : at + 16] for at in range(0, len(ids), 16)}
        if len(counts) == len(own.fractions):  # as decided, should this machine round differently
            own._head = arrays["head"]
        sums, written = arrays["sums"], arrays["announcement"].tobytes()
        for n in counts:
            current = own._announcement
            assert current is not None
            own._n, own._sum = n, sums[: current.dimension].copy()
            sums = sums[current.dimension :]
            if not (written and current.round == len(counts) - 1):
                own.close_round()
        if written:  # word for word, for the same reason
            own._announcement = Announcement.from_bytes(written)
        return own

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `snapshot` to a file; a crash at any moment leaves the last one or this one.

        Acknowledge reports only after this has returned, and a crash loses none that was.

        Parameters
        ----------
        path : str or path-like
            The file.

        Raises
        ------
        OSError
            If the file cannot be written, or `path` is a link, a pipe, a device or a folder.

        Examples
        --------
        >>> import tempfile
        >>> aggregator = LocalAggregator(4, (1, 5), 8.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     aggregator.save(Path(folder) / "aggregator")
        ...     LocalAggregator.load(Path(folder) / "aggregator").protocol == aggregator.protocol
        True
        """
        target = Path(path)
        with replaced_file(target) as file:
            file.write(self.snapshot())
        sync_folder(target.parent)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LocalAggregator:
        """Return the aggregator that `save` wrote.

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        LocalAggregator
            As from `restore`.

        Raises
        ------
        MessageError
            If the snapshot is damaged, or of another version.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     LocalAggregator(4, (1, 5), 8.0).save(Path(folder) / "aggregator")
        ...     LocalAggregator.load(Path(folder) / "aggregator").n_reports
        (0,)
        """
        return cls.restore(Path(path).read_bytes())

    def _open(self, announcement: Announcement | None) -> None:
        self._announcement = announcement
        self._n, self._sum = 0, np.zeros(0, np.int64)
        if announcement is not None:
            self._randomiser = PrivUnit(self.epsilon, announcement.dimension)
            self._sum = np.zeros(announcement.dimension, np.int64)

    def _objection(self, report: Report) -> str:
        """Return why a report is refused, or nothing."""
        current = self._announcement
        if report.protocol != self.protocol:
            return "wrong protocol"
        if current is None or report.round != current.round:
            return "wrong round"
        if current.group_of(report.report_id) != current.round:
            return "wrong round"
        if report.payload.shape[0] != current.dimension:
            return "wrong length"
        if objection := self._randomiser.objection(report.payload):
            return objection
        if bytes.fromhex(report.report_id) in self._ids:
            return "duplicate"
        return "too many" if len(self._ids) >= MAX_REPORTS else ""

    def _next(self, current: Announcement) -> Announcement | None:
        number, last = current.round + 1, len(self.fractions) - 1
        if number > last:
            return None
        if self._means.means is None:  # nobody has reported: there is nothing to release
            return replace(current, round=number)
        kind, head, released = "residuals", None, (self._means.item_means, self._means.mass)
        if number == last:
            if self._head is None:
                self._head = self._choose_head()
            if self._head.size:
                kind, head = "covariance", self._head
        return replace(
            current, round=number, kind=kind, item_means=released[0], mass=released[1], head=head
        )

    def _choose_head(self) -> NDArray[np.int64]:
        if not self.n_components:
            return _NO_HEAD
        share = self.fractions[-1] / sum(self.fractions[:-1])
        expected = share * sum(n for n, _ in self._closed)
        return choose_head(self._means, expected, self._randomiser.variance)


def _rank(value: Any) -> int:
    integral = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integral or value < 0:
        raise MessageError(
            f"n_components={value!r} must be an integer >= 0: pass the largest number of factors."
        )
    return int(value)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST, person=b"skdpmf snapshot").digest()
