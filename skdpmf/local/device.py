"""One user's device: it keeps the ratings, and lets out randomised reports within its budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from skdpmf.data import validation
from skdpmf.data.feature_columns import aligned_features, check_item_features, item_columns
from skdpmf.estimators.contract import recommend
from skdpmf.estimators.contract.recommend import ItemModel
from skdpmf.exceptions import PrivacyParameterError, require_that
from skdpmf.kernels.averaging import TASTE_VARIANCE
from skdpmf.local.messages import MAX_ITEMS, Announcement, MessageError, ReleasedModel, Report
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.device_reports.protocol import announced_rows, report_id, report_key
from skdpmf.mechanisms.device_reports.randomizers import check_epsilon, check_integer
from skdpmf.privacy.sampler.cipher import require_key
from skdpmf.privacy.sampler.noise import fresh_key

Floats = NDArray[np.float64]


class LocalDevice:
    """A user's device in the local model: nobody else sees the ratings, not even in part.

    In every run of a protocol the device sends one report, in the round that its random report
    id chooses. A report is an epsilon-DP function of all its ratings together (`PrivUnit`; the
    neighbours are any two histories, an empty one among them), so that a device without ratings
    reports as well. The epsilons of its reports add up and never exceed ``epsilon``: the sum is
    exact, and a report is paid before its randomness is drawn. What the device refuses, and
    when, does not depend on the ratings.

    The spend must outlive the program. **Save `state` after `report` and before the report is
    sent**: after a crash in between nothing has left the device. If a report may have been lost on
    its way, send the same one again; the aggregator counts it once.

    A device is neither pickled nor copied and refuses to report in a process forked from its own,
    because the copy would have a budget of its own.

    Parameters
    ----------
    items : array-like of int, shape (n_ratings,)
        Columns of the public catalogue. Those outside of it are dropped.
    ratings : array-like of float, shape (n_ratings,)
        In rating units. Those that are not finite are dropped, several for one item become their
        mean, and the result is clipped to the rating range.
    n_items : int
        Size of the catalogue.
    rating_range : (float, float)
        Smallest and largest possible rating.
    epsilon : float
        All that the device may ever spend, > 0 and finite.
    key : bytes of length 32, default=None
        **Only for tests**: makes the report ids and reports repeatable, one stream for each
        protocol and round. None: fresh randomness of the operating system for each of them.

    Raises
    ------
    PrivacyParameterError
        If epsilon or the key is invalid.
    ValueError
        If another parameter is invalid.

    References
    ----------
    H. Asi, V. Feldman, K. Talwar, "Optimal algorithms for mean estimation under local differential
    privacy", ICML 2022.

    Examples
    --------
    >>> from skdpmf.local import LocalAggregator
    >>> aggregator = LocalAggregator(3, (1, 5), 4.0)
    >>> device = LocalDevice([0, 2], [5.0, 3.0], n_items=3, rating_range=(1, 5), epsilon=4.0)
    >>> report = device.report(aggregator.announcement)
    >>> saved = device.state()  # before the report is sent
    >>> aggregator.receive(report.to_bytes())
    True
    >>> LocalDevice.from_state(saved, [], []).report(LocalAggregator(3, (1, 5), 4.0).announcement)
    Traceback (most recent call last):
        ...
    skdpmf.exceptions.PrivacyParameterError: epsilon of this report=4.0 must be at most 0, ...
    """

    def __init__(
        self,
        items: ArrayLike,
        ratings: ArrayLike,
        *,
        n_items: int,
        rating_range: tuple[float, float],
        epsilon: float,
        key: bytes | None = None,
    ) -> None:
        self.n_items = check_integer("n_items", n_items, MAX_ITEMS)
        self.rating_range = validation.check_rating_range(rating_range)
        self.epsilon = check_epsilon(epsilon, 1e9)
        self.__key = None if key is None else require_key(key)
        self.__ratings = _one_row(items, ratings, self.n_items, self.rating_range)
        self._spent = Fraction(0)
        self._answered: dict[str, int] = {}  # round, by protocol
        self._report_ids: dict[str, str] = {}  # by protocol
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"LocalDevice(ratings=<secret>, n_items={self.n_items}, epsilon={self.epsilon:g}, "
            f"spent={float(self._spent):g})"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a LocalDevice is never pickled or copied: a copy would spend the budget again. Use "
            "state() and from_state()."
        )

    @property
    def spent(self) -> Fraction:
        """The sum of the epsilons of its reports, exact."""
        return self._spent

    def group(self, announcement: Announcement) -> int:
        """Return the round of this protocol in which the device reports.

        It follows from the report id, which is random and drawn the first time that the device
        hears of the protocol: not from the ratings.

        Parameters
        ----------
        announcement : Announcement
            Announcement of any round.

        Returns
        -------
        int
            Number of the round.

        Raises
        ------
        PrivacyParameterError
            If the announcement is for another catalogue or rating range.
        RuntimeError
            In a process forked from the one that made the device.

        Examples
        --------
        >>> from skdpmf.local import LocalAggregator
        >>> aggregator = LocalAggregator(3, (1, 5), 4.0)
        >>> device = LocalDevice([0, 2], [5.0, 3.0], n_items=3, rating_range=(1, 5), epsilon=4.0)
        >>> device.group(aggregator.announcement)  # of one round
        0
        """
        with self._lock:
            self._check(announcement)
            return self._group(announcement)

    def report(self, announcement: Announcement) -> Report | None:
        """Answer an announcement, if it is this device's round.

        Parameters
        ----------
        announcement : Announcement
            From the aggregator. Parse it with ``from_bytes`` or ``from_json``, which refuse
            malformed ones.

        Returns
        -------
        Report or None
            Report to send, once `state` is saved. None: another round is this device's.

        Raises
        ------
        PrivacyParameterError
            If the report would exceed the budget, the protocol was answered before, the
            announcement is for another catalogue or rating range, or its epsilon is too small
            for so many items. Nothing is spent then.
        RuntimeError
            In a process forked from the one that made the device.
        """
        with self._lock:
            self._check(announcement)
            if self._group(announcement) != announcement.round:
                return None
            self._check_budget(announcement)
            randomiser = _randomiser(announcement.epsilon, announcement.dimension)
            row = validation.in_quarter_ranges(self.__ratings, self.rating_range)
            vector = announced_rows(announcement, row, announcement)
            # paid before anything random exists that could leave twice
            self._spent += Fraction(announcement.epsilon)
            self._answered[announcement.protocol] = announcement.round
            key = report_key(self._key(), announcement.protocol, announcement.round)
            payload = randomiser.report(key, vector.indices, vector.values)
            own_id = self._report_ids[announcement.protocol]
            return Report(announcement.protocol, announcement.round, own_id, payload)

    def predict(
        self, model: ReleasedModel, items: ArrayLike, *, item_features: Any = None
    ) -> Floats:
        """Predict the user's own ratings, on the device: this says nothing to anybody.

        Parameters
        ----------
        model : ReleasedModel
            As published.
        items : array-like of int, shape (n_wanted,)
            Columns of the catalogue.
        item_features : {array-like, sparse matrix} of shape (n_items, d), default=None
            Public facts of the catalogue's items, in its order: the user's tastes for them are
            added, from the device's ratings, as by `LocalDPGDDR`.

        Returns
        -------
        ndarray of float64, shape (n_wanted,)
            m_j + o, clipped to the rating range; o as in `ReleasedModel`, from the device's
            ratings.

        Raises
        ------
        ValueError
            If the model or the features are for another catalogue or rating range, or an item is
            not in it.

        Examples
        --------
        >>> from skdpmf.local import LocalAggregator
        >>> aggregator = LocalAggregator(3, (1, 5), 4.0)
        >>> announced = aggregator.close_round()  # nobody has reported
        >>> device = LocalDevice([0, 2], [5.0, 3.0], n_items=3, rating_range=(1, 5), epsilon=4.0)
        >>> device.predict(aggregator.model(), [1]).shape
        (1,)
        """
        found = self._item_model(model, item_features)
        columns = np.asarray(items)
        if columns.size == 0:
            columns = columns.astype(np.int64)
        inside = not columns.size or 0 <= columns.min() <= columns.max() < self.n_items
        if columns.dtype.kind not in "iu" or not inside:
            rule = f"integers in [0, {self.n_items})"
            raise ValueError(f"items must be {rule}: pass columns of the catalogue.")
        scores = recommend.all_scores(found, self.__ratings, 1)[0]
        return np.clip(scores[columns], *self.rating_range)

    def recommend(
        self,
        model: ReleasedModel,
        n: int = 10,
        *,
        item_features: Any = None,
        taste: float | None = None,
    ) -> tuple[NDArray[np.int64], Floats]:
        """Rank the best items that the user has not rated, by popularity and rating, on the device.

        Parameters
        ----------
        model : ReleasedModel
            As published.
        n : int, default=10
            Items wanted.
        item_features : {array-like, sparse matrix} of shape (n_items, d), default=None
            Public facts of the catalogue's items, in its order: the user's tastes for them are
            added, from the device's ratings, as by `LocalDPGDDR`.
        taste : float, default=None
            Between 0, by popularity, and 1, by predicted rating, as for `LocalDPGDDR`. None: 0.5.

        Returns
        -------
        items : ndarray of int64, shape (n_found,)
            At most n, best first; of equal scores the smaller column first.
        scores : ndarray of float64, shape (n_found,)
            Values that rank them, as by `LocalDPGDDR`: the logarithm of the popularity, of 1 at
            most, and what the predicted rating adds.

        Raises
        ------
        ValueError
            If the model or the features are for another catalogue or rating range, n is not an
            integer >= 1, or `taste` is no number from 0 to 1.

        Examples
        --------
        >>> from skdpmf.local import LocalAggregator
        >>> aggregator = LocalAggregator(3, (1, 5), 4.0)
        >>> announced = aggregator.close_round()  # nobody has reported
        >>> device = LocalDevice([0, 2], [5.0, 3.0], n_items=3, rating_range=(1, 5), epsilon=4.0)
        >>> device.recommend(aggregator.model(), n=2)[0]
        array([1])
        """
        holds = validation.is_integer(n, 1)
        validation.require(holds, "n", n, "an integer >= 1", "pass how many items")
        found = self._item_model(model, item_features)
        ranking = recommend.ranking_of(None, np.log(model.popularity), self.rating_range)
        n = min(int(n), self.n_items)
        row, share = self.__ratings, recommend.check_share(taste)
        best, scores = recommend.top_items(found, row, n, n_jobs=1, ranking=ranking, taste=share)
        return best[best >= 0], scores[best >= 0]

    def state(self) -> dict[str, Any]:
        """Return what must outlive the program, as plain values for JSON.

        Returns
        -------
        dict
            Settings, the exact spend, answered rounds, report ids; neither ratings nor a key. Keep
            it on the device: it shows which reports are the user's.
        """
        with self._lock:
            return {
                "version": 1,
                "n_items": self.n_items,
                "rating_range": list(self.rating_range),
                "epsilon": self.epsilon,
                "spent": str(self._spent),
                "answered": dict(self._answered),
                "report_ids": dict(self._report_ids),
            }

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        items: ArrayLike,
        ratings: ArrayLike,
        *,
        key: bytes | None = None,
    ) -> LocalDevice:
        """Return the device as it was: what it spent stays spent.

        Parameters
        ----------
        state : mapping
            The **latest** one from `state`.
        items, ratings : array-like of shape (n_ratings,)
            As for the class.
        key : bytes of length 32, default=None
            As for the class.

        Returns
        -------
        LocalDevice

        Raises
        ------
        PrivacyParameterError
            If the state is broken.
        """
        try:
            if state["version"] != 1:
                raise ValueError(f"version {state['version']!r}")
            device = cls(
                items,
                ratings,
                n_items=state["n_items"],
                rating_range=tuple(state["rating_range"]),
                epsilon=state["epsilon"],
                key=key,
            )
            device._spent = Fraction(state["spent"])
            device._report_ids = {str(k): str(v) for k, v in state["report_ids"].items()}
            device._answered = {str(k): int(v) for k, v in state["answered"].items()}
            if device._spent < 0:
                raise ValueError(f"spent {state['spent']!r}")
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise PrivacyParameterError(
                f"state must be what LocalDevice.state returned ({error!r}): restore it from where "
                "it was saved."
            ) from error
        return device

    def _check(self, announcement: Any) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "a LocalDevice was used in a process forked from its own: both would spend one "
                "budget. Make it after the fork, by from_state()."
            )
        self._check_message("announcement", announcement, Announcement, "an Announcement")

    def _check_message(self, name: str, message: Any, kind: Any, words: str) -> None:
        if not isinstance(message, kind):
            raise MessageError(
                f"{name} of type {type(message).__name__} must be {words}: parse it with "
                "from_bytes or from_json."
            )
        own, given = (self.n_items, self.rating_range), (message.n_items, message.rating_range)
        rule = f"this device's {own}: make one for that catalogue, from this one's state."
        require_that(given == own, f"{name}: (n_items, rating_range)", given, rule)

    def _check_budget(self, announcement: Announcement) -> None:
        protocol = announcement.protocol
        if protocol in self._answered:
            raise PrivacyParameterError(
                f"protocol={protocol!r} was answered in round {self._answered[protocol]}: a device "
                "sends one report in a protocol. If it was lost, send the same report again."
            )
        left = Fraction(self.epsilon) - self._spent
        rule = f"at most {float(left):g}, what is left of this device's {self.epsilon:g}: "
        holds = Fraction(announcement.epsilon) <= left
        rule += "the device takes no further part."
        require_that(holds, "epsilon of this report", announcement.epsilon, rule)

    def _group(self, announcement: Announcement) -> int:
        protocol = announcement.protocol
        if protocol not in self._report_ids:
            self._report_ids[protocol] = report_id(self._key(), protocol)
        return announcement.group_of(self._report_ids[protocol])

    def _key(self) -> bytes:
        return fresh_key() if self.__key is None else self.__key

    def _item_model(self, model: Any, item_features: Any) -> ItemModel:
        """Return the released items as an estimator has them, with columns for tastes."""
        self._check_message("model", model, ReleasedModel, "a ReleasedModel")
        own_mean, ridge = np.ones((self.n_items, 1)), np.array([[model.user_damping]])
        items = ItemModel(model.item_means, own_mean, ridge)
        if item_features is None:
            return items
        check_item_features(item_features)
        D = item_columns(aligned_features(item_features, self.n_items, None)).values
        variance = TASTE_VARIANCE * validation.middle_and_quarter(self.rating_range)[1] ** 2
        return items._replace(features=D, variance=variance) if D.shape[1] else items


_randomiser = lru_cache(maxsize=8)(PrivUnit)


def _one_row(items: Any, ratings: Any, n_items: int, rating_range: tuple[float, float]) -> Any:
    """Return the ratings as a canonical csr_array of one row."""
    columns, values = np.asarray(items), np.asarray(ratings, np.float64)
    if columns.size == 0:
        columns = columns.astype(np.int64)
    if columns.ndim != 1 or columns.shape != values.shape or columns.dtype.kind not in "iu":
        raise ValueError(
            f"items of dtype {columns.dtype} and shape {columns.shape} must be integers, one for "
            f"each of the ratings of shape {values.shape}: pass two equally long lists."
        )
    known = (columns >= 0) & (columns < n_items)
    columns, values = columns[known].astype(np.int64), values[known]
    pointers = np.array([0, columns.shape[0]])
    row = sparse.csr_array((values, columns, pointers), shape=(1, n_items))
    return validation.as_rating_matrix(row, rating_range=rating_range)
