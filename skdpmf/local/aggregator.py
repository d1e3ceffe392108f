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

from skdpmf.data.files import replaced_file, sync_folder
from skdpmf.local import messages
from skdpmf.local.messages import Announcement, MessageError, ReleasedModel, Report
from skdpmf.mechanisms.device_reports.item_means import make_plan
from skdpmf.mechanisms.device_reports.protocol import Protocol
from skdpmf.mechanisms.device_reports.randomizers import shuffle_note
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.sampler.noise import fresh_key
from skdpmf.privacy.statement import PrivacyStatement

MAX_REPORTS = 2**32  # so that sums stay below 2^63
_DIGEST = 16


class LocalAggregator:
    """Makes a released item model from the reports of `LocalDevice` objects; nobody trusts it.

    Round by round it announces public parameters, adds up the reports that come in, and closes the
    round. It keeps their sum in 64-bit integers and their random ids, nothing else of any report.
    The first round that is not empty measures item popularity and means; later ones measure what
    is left of the means' error, on other devices: each sends one report, with its whole epsilon.

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
        Fictitious ratings in a user's own mean, in [1e-6, 1e6]; in predictions at most 1.
    n_devices : int, default=0
        Devices that are expected: reports of few devices give more to counts of items, on which
        lists rest. 0: not known, taken as many.
    protocol : str, default=None
        Identity of this run, 32 hexadecimal digits. None: random. Two runs must not share one.
    public : matrix-like of shape (n_people, n_items), default=None
        Rows of people who agreed that their ratings are used openly, as for `LocalDPGDDR`: what
        they show is combined with the first reports. Only their sums are kept, and the statement
        counts those who have ratings.

    Attributes
    ----------
    refused : collections.Counter
        Refused reports by reason.

    Raises
    ------
    MessageError
        If another parameter than `public` is invalid; a ValueError.
    ValueError
        If `public` is no matrix of ratings of these items.
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
        n_devices: int = 0,
        protocol: str | None = None,
        public: Any = None,
    ) -> None:
        protocol = fresh_key()[:16].hex() if protocol is None else protocol
        settings = epsilon, n_items, rating_range, user_damping, fractions
        first = Announcement(protocol, 0, "statistics", *settings, n_devices=n_devices)
        self.protocol, self.epsilon = first.protocol, first.epsilon
        self.n_items, self.rating_range = first.n_items, first.rating_range
        self.fractions, self.user_damping = first.fractions, first.user_damping
        self.refused: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._ids: set[bytes] = set()
        self._run = Protocol(first, None if public is None else _averages_of(public, first))
        self._first = first
        self._announcement = self._announce()

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
            return self._run.n_reports

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
        with self._lock:
            try:
                found = report if isinstance(report, Report) else Report.from_bytes(report)
                reason = self._objection(found)
            except messages.VersionError:
                reason = "wrong version"
            except MessageError:
                reason = "malformed"
            if reason:
                self.refused[reason] += 1
                return False
            self._run.add(found.payload, 1)
            self._ids.add(bytes.fromhex(found.report_id))
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
            self._run.close()
            self._announcement = self._announce()
            return self._announcement

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
            names = ("protocol", "rating_range", "epsilon", "n_reports")
            own = {name: getattr(self, name) for name in names}
            return ReleasedModel(**own, **self._run.model()._asdict())

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
        public, said = self._run.means.public, []
        if public is not None:
            from skdpmf.estimators.contract.public import PUBLIC_ASSUMPTION  # heavy

            said.append(PUBLIC_ASSUMPTION.format(int(public.n_users)))
        return PrivacyStatement.from_plan(plan, assumptions=said)

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
            run, told = self._run, self._announcement
            data = messages.Snapshot(
                first=self._first.to_bytes(),
                n_reports=self.n_reports,
                refused=dict(self.refused),
                sums=[total for _, total in run.closed] + ([] if told is None else [run.sum]),
                ids=sorted(self._ids),
                announcement=None if told is None else told.to_bytes(),
                public=run.means.public,
            ).to_bytes()
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
        saved = messages.Snapshot.from_bytes(body)
        first = Announcement.from_bytes(saved.first)
        names = ("fractions", "user_damping", "n_devices", "protocol")
        facts = {name: getattr(first, name) for name in names}
        own = cls(first.n_items, first.rating_range, first.epsilon, **facts)
        own.refused.update(saved.refused)
        own._ids, own._run = set(saved.ids), Protocol(first, saved.public)
        for at, terms in enumerate(zip(saved.sums, saved.n_reports, strict=True), 1):
            own._run.add(*terms)
            if saved.announcement is None or at < len(saved.sums):
                own._run.close()
        own._announcement = None
        if saved.announcement is not None:  # word for word, should this machine round
            own._announcement = Announcement.from_bytes(saved.announcement)
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

    def _announce(self) -> Announcement | None:
        told = self._run.round
        if told is None:
            return None
        settings = self.epsilon, self.n_items, self.rating_range, self.user_damping, self.fractions
        released = told.item_means, told.mass, self._first.n_devices
        return Announcement(self.protocol, told.number, told.kind, *settings, *released)

    def _objection(self, report: Report) -> str:
        """Return why a report is refused, or nothing."""
        told = self._announcement
        if report.protocol != self.protocol:
            return "wrong protocol"
        if told is None or not report.round == told.round == told.group_of(report.report_id):
            return "wrong round"
        if report.payload.shape[0] != told.dimension:
            return "wrong length"
        if objection := self._run.randomiser.objection(report.payload):
            return objection
        if bytes.fromhex(report.report_id) in self._ids:
            return "duplicate"
        return "too many" if len(self._ids) >= MAX_REPORTS else ""


def _averages_of(public: Any, first: Announcement) -> Any:
    """Return what public rows show; None where they hold no rating."""
    # devices import this module, and need none of these
    from skdpmf.estimators.contract.public import public_of
    from skdpmf.estimators.local_dpgddr import LocalDPGDDR
    from skdpmf.mechanisms.item_means.baseline import averages_of_rows

    budget, bounds = PrivacyBudget(first.epsilon), first.rating_range
    simulated = LocalDPGDDR(budget, public=public, rating_range=bounds)
    people = public_of(simulated, np.empty((0, first.n_items)), first.n_items)
    return people and averages_of_rows(people.rows, first.user_damping, 1)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST, person=b"skdpmf snapshot").digest()
