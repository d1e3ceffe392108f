"""One audit: the estimator's fits, recorded and replayed, and the neighbours that are tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import joblib
import numpy as np
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter

from skdpmf.data.bounding import without_rows
from skdpmf.data.validation import as_rating_matrix
from skdpmf.privacy import PrivacyBudget
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.sampler.noise import derived_key, initial_normals

__all__ = [
    "ALARM",
    "ROUNDING",
    "AuditCheck",
    "AuditRun",
    "Pair",
    "failure",
    "only_rows",
    "slot_of",
]

ALARM = 1e-6  # false alarms of each statistical check
ROUNDING = 1.0 + 1e-9
_MOST_ROWS = 400  # sensitivities do not depend on how many users there are
_TYPICAL = 8  # neighbours of the fit as it is, at least
_INFLATED = 50.0, 1000.0  # releases, in exact values: a draw that small data hardly ever give
_LITTLE_NOISE = 10.0  # epsilon, in the budget's: plans then promise what they do not else
_MOST_ITEMS = 160  # of these fits: what then follows takes the cube; heads of 150 are chosen
_LEVELS = 0.5, 0.125, 0.0  # personal epsilons of users that are exchanged, in the budget's
_WILD = 50.0  # values beyond the rating range, in its widths


@dataclass(frozen=True)
class AuditCheck:
    """One check of an audit.

    Parameters
    ----------
    name : str
        Name of the check.
    passed : bool
        Whether nothing was found.
    finding : str
        Finding, in words.
    """

    name: str
    passed: bool
    finding: str


@dataclass(frozen=True)
class Pair:
    """Two neighbouring data sets, the rows in which they differ, and the fit that is replayed."""

    without: Any
    with_: Any
    slots: tuple[int, ...]
    replay: Callable[[Any, tuple[int, ...]], tuple[Any, Any]]
    level: float | None  # personal epsilon of the user
    typical: bool  # whether it is the fit as it is

    def fit(self, R: Any) -> tuple[Any, Any]:
        """Return a model and its recording, all that leaves being as recorded."""
        return self.replay(R, self.slots)


class AuditRun:
    """What all checks share.

    Parameters
    ----------
    estimator : estimator
        To be audited.
    X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
        Ratings.
    random_state : int
        Which neighbours.
    """

    def __init__(self, estimator: Any, X: Any, random_state: int) -> None:
        budget = estimator.budget.without_ledger()
        self.estimator = clone(estimator).set_params(budget=budget, random_state=None)
        low, high = getattr(estimator, "_value_range", estimator.rating_range)
        R = as_rating_matrix(X, rating_range=(low, high))
        self.everybody, self.R = R, _some(R, _MOST_ROWS)
        self.key = derived_key(random_state, "audit")
        self.low, self.high = float(low), float(high)
        self.ratios: dict[str, float] = {}
        self.model, self.records = self.fit(self.R)

    @property
    def spent(self) -> Any:
        """The claim."""
        return self.model.privacy_spent_

    def fit(
        self, R: Any, replay: Any = None, *, alter: Any = None, levels: Any = None, **params: Any
    ) -> tuple[Any, Any]:
        """Return a fitted clone and the recording of its fit.

        ``alter`` makes releases of exact and drawn values; ``levels`` are personal epsilons.
        """
        personal = {} if levels is None else {"user_epsilon": levels}
        with record_releases(replay) as records:
            if alter is not None:
                records.alter = alter
            model = clone(self.estimator).set_params(**params).fit(R, **personal)
        return model, records

    def note(self, name: str, ratio: float) -> None:
        """Note how much of what is declared a pair of neighbours reaches."""
        known = math.inf if math.isnan(ratio) else ratio
        self.ratios[name] = max(self.ratios.get(name, 0.0), known)

    def statement(self) -> AuditCheck:
        """Check that what was stated is what was planned, within the budget."""
        spent, budget = self.spent, self.estimator.budget
        planned = self.model.plan(self.R.shape[1], self.R.shape[0])
        same = _is_plan(spent, planned)
        within = spent.epsilon <= budget.epsilon and spent.delta <= budget.delta
        text = f"states epsilon {spent.epsilon:.4g} of {budget.epsilon:.4g}"
        text += ", as planned" if same else ", which is NOT its plan"
        return AuditCheck("statement", bool(same and within), text)

    def replay(self, parts: list[Any], n_neighbors: int) -> list[AuditCheck]:
        """Fit on neighbours with all that leaves held fixed, and let the parts compare."""
        others: set[str] = set()
        raised: set[str] = set()
        excess = 0.0
        for how, n in self._recordings(n_neighbors):
            try:
                pairs = list(self.neighbors(how, n))
            except Exception as error:
                raised.add(failure(error))
                continue
            for pair in pairs:
                try:
                    before, after = pair.fit(pair.without), pair.fit(pair.with_)
                    others |= _differences(before[0], after[0])
                    reached = [part.compare(pair, before[1], after[1]) for part in parts]
                except Exception as error:  # whatever it is, a row must not raise it
                    raised.add(failure(error))
                    continue
                if pair.level is not None and max(reached) > 0.0:
                    excess = max(excess, max(reached) / (pair.level or 1e-300))
        text = "differences between neighbours when their releases are equal: "
        text += ", ".join(sorted(others)) or "nothing"
        course = "; ".join(sorted(raised)) or "fits make the same releases, and raise nothing"
        checks = [
            *(check for part in parts for check in part.found()),
            AuditCheck("one row does not change the course", not raised, course),
            AuditCheck("nothing else is released", not others, text),
        ]
        if self._personal:
            level = f"a user with a level of epsilon of his own reaches {excess:.3f} of it at most"
            checks.append(AuditCheck("personal levels", excess <= ROUNDING, level))
        return checks

    @property
    def _personal(self) -> bool:
        return has_fit_parameter(self.estimator, "user_epsilon")

    def _recordings(self, n: int) -> list[tuple[dict[str, Any], int]]:
        """Return how fits are recorded and replayed, and how many neighbours each has.

        Much of a fit on few users is behind what is released: a rank, a subset of the items.
        """
        unusual: list[dict[str, Any]] = []
        if self.records:
            unusual += [
                {"alter": lambda exact, drawn, scale=scale: scale * exact} for scale in _INFLATED
            ]
            params = self.estimator.budget.get_params()
            params["epsilon"] *= _LITTLE_NOISE
            unusual.append({"budget": PrivacyBudget(**params)})
        if self._personal:
            levels = np.full(self.R.shape[0], self.estimator.budget.epsilon)
            slots = _slots(self.R)
            levels[slots] *= _LEVELS[: len(slots)]
            unusual.append({"levels": levels})
        numbers = [3 if "levels" in how else 2 for how in unusual]
        typical = max(n - sum(numbers), _TYPICAL)
        return [({}, typical), *zip(unusual, numbers, strict=True)]

    def neighbors(self, how: dict[str, Any], n: int) -> Iterator[Pair]:
        """Yield pairs of neighbours; ``how`` is the fit that is recorded, {} as it is."""
        R, records, levels = self.R, self.records, how.get("levels")
        if how:
            R = _some(R.T, _MOST_ITEMS).T.tocsr()
            records = self.fit(R, **how)[1]
        known: dict[Any, Any] = {}
        terms = {name: how[name] for name in how if name != "alter"}

        def replay(R: Any, slots: tuple[int, ...]) -> Any:
            if np.diff(R.indptr)[list(slots)].any():
                return self.fit(R, records, **terms)
            place = slots if R.nnz else ()  # of the row's absence, which many pairs share
            if place not in known:
                known[place] = self.fit(R, records, **terms)
            return known[place]

        slots = _slots(self.R)[: 1 if how and levels is None else None]
        rows = self._unusual_rows(R, slots)[:n] if how else self._rows(n)
        for i, row in enumerate(rows):
            slot = slots[i % len(slots)]
            level = None if levels is None else float(levels[slot])
            pairs = {slot: (self._other(rows, i), row)}
            if self.estimator.budget.unit == "rating":
                pairs = self._one_rating(R, i, row, slot)
            without, with_ = R, R
            for at, (before, after) in pairs.items():
                without, with_ = _with_row(without, at, before), _with_row(with_, at, after)
            yield Pair(without, with_, tuple(pairs), replay, level, not how)

    def _other(self, rows: list[np.ndarray], i: int) -> np.ndarray:
        """Return what a row is exchanged for, where the unit is the user."""
        if self.spent.neighbors == "replace":
            place = (7 * i + 3) % len(rows)
            return rows[place if place != i else i - 1]
        return np.full_like(rows[i], np.nan)

    def _one_rating(self, R: Any, i: int, row: np.ndarray, slot: int) -> dict[int, Any]:
        """Return rows, by their slot, that differ in one rating: without it and with it.

        "replace": another value, another item, or another item and another user.
        """
        m, last = row.size, R.shape[0] - 1
        known = np.flatnonzero(~np.isnan(row))
        cell = int(known[i % known.size]) if known.size else i % m
        other, row = row.copy(), row.copy()
        other[cell] = np.nan
        if self.spent.neighbors != "replace":
            return {slot: (other, row)}
        row[cell] = value = row[cell] if known.size else self.high
        kind, place = (i + i // 3) % 3, (cell + 1 + i) % m
        if kind == 1 and place != cell:
            row[place] = np.nan
            other[place] = value
        elif kind == 2 and last > 0:
            next_, theirs = (slot + 1) % (last + 1), np.full(m, np.nan)
            own = slice(*R.indptr[next_ : next_ + 2])
            theirs[R.indices[own]] = R.data[own]
            more = theirs.copy()
            theirs[place], more[place] = np.nan, value
            return {slot: (other, row), next_: (more, theirs)}
        else:
            other[cell] = self.low + self.high - value
        return {slot: (other, row)}

    def _rows(self, n: int) -> list[np.ndarray]:
        """Rows that try to move much; some know the released model."""
        m, low, high = self.R.shape[1], self.low, self.high
        counts = np.bincount(self.R.indices, minlength=m)
        rare, popular = int(np.argmin(counts)), int(np.argmax(counts))
        places, means = np.arange(m), self.model.item_means_
        one_rare, both, one_popular = (np.full(m, np.nan) for _ in range(3))
        one_rare[rare], one_popular[popular] = high, low
        both[[rare, popular]] = high, low
        rows = [
            np.full(m, low),
            np.full(m, high),
            np.where(places % 2, low, high),
            one_rare,
            both,
            np.where(means > (low + high) / 2, low, high),
            np.where(places == rare, high, low),  # far from its own mean in one item
            np.where(np.any(self.model.components_[:1] > 0, axis=0), high, low),  # if there are any
            one_popular,
        ]
        for number in range(n - len(rows)):
            normal = initial_normals(self.key, (2, m), f"neighbour {number}")
            values = np.where(normal[0] > 0, high, low)
            if number % 2:
                values = np.clip(means + 2.0 * normal[0], low, high)
            share = (0.1, 0.5, 0.9)[number % 3]
            rows.append(np.where(stats.norm.cdf(normal[1]) < share, values, np.nan))
        return rows[:n]

    def _unusual_rows(self, R: Any, slots: list[int]) -> list[np.ndarray]:
        """Rows beyond the range: two that turn the order of the exact counts, and a full one."""
        far, rows = self.high + _WILD * (self.high - self.low), []
        for i in (0, 1):
            slot, row = slots[i % len(slots)], np.full(R.shape[1], np.nan)
            others = np.delete(R.indices, slice(*R.indptr[slot : slot + 2]))
            order = np.argsort(-np.bincount(others, minlength=row.size), kind="stable")
            row[order[i + 1 :: 2]] = far
            rows.append(row)
        return [*rows, np.full(R.shape[1], far)]


def failure(error: Exception) -> str:
    """Return what a fit raised, in short."""
    return f"{type(error).__name__}: {str(error)[:160]}"


def only_rows(R: Any, slots: tuple[int, ...]) -> Any:
    """Return the ratings of some rows, all others empty."""
    return without_rows(R, ~np.isin(np.arange(R.shape[0]), slots))


def _differences(model: Any, other: Any) -> set[str]:
    """Return the names of attributes that differ, those that `save` reads among them.

    Diagnostics that say that they are not private are left out.
    """
    states = vars(model), vars(other)
    names = {name for state in states for name in state if not name.startswith("nonprivate")}
    return {name for name in names if len({joblib.hash(state.get(name)) for state in states}) > 1}


def _some(R: Any, most: int) -> Any:
    """Return at most so many rows, evenly spaced: no function of the ratings."""
    n = R.shape[0]
    return R if n <= most else R[np.linspace(0, n - 1, most).astype(int)]


def _slots(R: Any) -> list[int]:
    """Return the row with most ratings, the first and the last."""
    longest, last = int(np.argmax(np.diff(R.indptr))), R.shape[0] - 1
    return list(dict.fromkeys((longest, 0, last)))


def _with_row(R: Any, slot: int, row: np.ndarray) -> Any:
    """Return the ratings with one row exchanged."""
    known = np.flatnonzero(~np.isnan(row))
    own = sparse.csr_array(
        (row[known], known.astype(R.indices.dtype), np.array([0, known.size])),
        shape=(1, R.shape[1]),
    )
    return sparse.vstack((R[:slot], own, R[slot + 1 :]), format="csr")


def slot_of(release: Any) -> str:
    """Return the planned name of a stated release, which may have held another statistic."""
    return str(release.name).split(": ")[0]


def _is_plan(spent: Any, planned: Any) -> bool:
    """Whether a statement has all slots of a plan, each as often and with as much noise."""
    stated: dict[str, list[Any]] = {}
    for release in spent.releases:
        stated.setdefault(slot_of(release), []).append(release)
    if stated.keys() != {release.name for release in planned.releases}:
        return False
    return bool(spent.epsilon == planned.epsilon) and all(
        sum(own.count for own in stated[slot.name]) == slot.count
        and all(own.event == replace(slot.event, count=own.count) for own in stated[slot.name])
        for slot in planned.releases
    )
