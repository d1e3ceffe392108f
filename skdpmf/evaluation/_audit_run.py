"""One audit: the estimator's fits, recorded and replayed, and the neighbours that are tried."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse, stats
from sklearn.base import clone

from skdpmf.data import as_rating_matrix
from skdpmf.privacy import PrivacyBudget
from skdpmf.privacy._recording import record_releases
from skdpmf.privacy.noise import derived_key, initial_normals

__all__ = ["ALARM", "AuditCheck", "AuditRun", "Pair", "only_row"]

ALARM = 1e-6  # false alarms of each statistical check
_MOST_ROWS = 400  # sensitivities do not depend on how many users there are


@dataclass(frozen=True)
class AuditCheck:
    """One check of an audit.

    Parameters
    ----------
    name : str
        What was checked.
    passed : bool
        Whether nothing was found.
    finding : str
        What was found, in words.
    """

    name: str
    passed: bool
    finding: str


@dataclass(frozen=True)
class Pair:
    """Two neighbouring data sets, which differ in one row."""

    without: Any
    with_: Any
    slot: int


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
        params = {**estimator.budget.get_params(), "ledger": None}
        self.estimator = clone(estimator).set_params(
            budget=PrivacyBudget(**params), random_state=None
        )
        low, high = getattr(estimator, "_value_range", estimator.rating_range)
        R = as_rating_matrix(X, rating_range=(low, high))
        self.everybody, self.R = R, _some_rows(R)
        self.key = derived_key(random_state, "audit")
        self.low, self.high = float(low), float(high)
        self.ratios: dict[str, float] = {}
        self.model, self.records = self.fit(self.R)

    @property
    def spent(self) -> Any:
        """The claim."""
        return self.model.privacy_spent_

    def fit(self, R: Any, replay: Any = None, **params: Any) -> tuple[Any, Any]:
        """Return a fitted clone and the recording of its fit."""
        with record_releases(replay) as records:
            model = clone(self.estimator).set_params(**params).fit(R)
        return model, records

    def note(self, name: str, ratio: float) -> None:
        """Note how much of what is declared a pair of neighbours reaches."""
        known = math.inf if math.isnan(ratio) else ratio
        self.ratios[name] = max(self.ratios.get(name, 0.0), known)

    def statement(self) -> AuditCheck:
        """Check that what was stated is what was planned, within the budget."""
        spent, budget = self.spent, self.estimator.budget
        planned = self.model.plan(self.R.shape[1], self.R.shape[0])
        same = spent.releases == planned.releases and spent.epsilon == planned.epsilon
        within = spent.epsilon <= budget.epsilon and spent.delta <= budget.delta
        text = f"states epsilon {spent.epsilon:.4g} of {budget.epsilon:.4g}"
        text += ", as planned" if same else ", which is NOT its plan"
        return AuditCheck("statement", bool(same and within), text)

    def replay(self, parts: list[Any], n_neighbors: int) -> list[AuditCheck]:
        """Fit on neighbours with all that leaves held fixed, and let the parts compare."""
        others: set[str] = set()
        raised: set[str] = set()
        fits: dict[int, Any] = {}  # of the row's absence, which many pairs share

        def fit(R: Any) -> Any:
            try:
                return self.fit(R, self.records)
            except Exception as error:  # whatever it is, a row must not raise it
                raised.add(f"{type(error).__name__}: {str(error)[:160]}")
                return None

        for pair in self.neighbors(n_neighbors):
            empty = np.diff(pair.without.indptr)[pair.slot] == 0
            before = fits.get(pair.slot) if empty else None
            before, after = before or fit(pair.without), fit(pair.with_)
            if empty and before is not None:
                fits[pair.slot] = before
            if before is None or after is None:
                continue
            others |= _differences(before[0], after[0])
            for part in parts:
                part.compare(pair, before[1], after[1])
        text = "all that differs between neighbours, what leaves being equal: "
        text += ", ".join(sorted(others)) or "nothing"
        course = "; ".join(sorted(raised)) or "fits make the same releases, and raise nothing"
        return [
            *(check for part in parts for check in part.found()),
            AuditCheck("one row does not change the course", not raised, course),
            AuditCheck("nothing else is released", not others, text),
        ]

    def neighbors(self, n: int) -> Iterator[Pair]:
        """Yield pairs of neighbours; the row is that with most ratings, the first or the last."""
        budget, m = self.estimator.budget, self.R.shape[1]
        rows = self._rows(n)
        longest, last = int(np.argmax(np.diff(self.R.indptr))), self.R.shape[0] - 1
        slots = list(dict.fromkeys((longest, 0, last)))
        for i, row in enumerate(rows):
            other, slot = np.full(m, np.nan), slots[i % len(slots)]
            if budget.unit == "rating":
                known = np.flatnonzero(~np.isnan(row))
                cell = known[i % known.size] if known.size else i % m
                other = row.copy()
                other[cell] = np.nan
                if budget.neighbors == "replace":
                    other[cell] = self.low + self.high - row[cell] if known.size else self.low
                    row = row if known.size else np.where(np.arange(m) == cell, self.high, np.nan)
            elif self.spent.neighbors == "replace":
                other = rows[(7 * i + 3) % len(rows)]
            yield Pair(_with_row(self.R, slot, other), _with_row(self.R, slot, row), slot)

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
            np.where(self.model.components_[0] > 0, high, low),
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


def only_row(R: Any, slot: int) -> Any:
    """Return the ratings of one row, all others empty."""
    n = np.zeros(R.shape[0], R.indptr.dtype)
    n[slot] = R.indptr[slot + 1] - R.indptr[slot]
    own = slice(R.indptr[slot], R.indptr[slot + 1])
    indptr = np.concatenate(([0], np.cumsum(n))).astype(R.indptr.dtype)
    return sparse.csr_array((R.data[own], R.indices[own], indptr), shape=R.shape)


def _differences(model: Any, other: Any) -> set[str]:
    """Return the names of fitted attributes that differ; private ones and diagnostics excepted."""
    found = set()
    for name, value in vars(model).items():
        if not name.endswith("_") or name.startswith(("_", "nonprivate")):
            continue
        theirs = getattr(other, name, None)
        if isinstance(value, np.ndarray) and isinstance(theirs, np.ndarray):
            same = value.shape == theirs.shape and value.tobytes() == theirs.tobytes()
        else:
            same = repr(value) == repr(theirs)
        if not same:
            found.add(name)
    return found


def _some_rows(R: Any) -> Any:
    """Return at most so many rows, evenly spaced: no function of the ratings."""
    n = R.shape[0]
    return R if n <= _MOST_ROWS else R[np.linspace(0, n - 1, _MOST_ROWS).astype(int)]


def _with_row(R: Any, slot: int, row: np.ndarray) -> Any:
    """Return the ratings with one row exchanged."""
    known = np.flatnonzero(~np.isnan(row))
    own = sparse.csr_array(
        (row[known], known.astype(R.indices.dtype), np.array([0, known.size])),
        shape=(1, R.shape[1]),
    )
    return sparse.vstack((R[:slot], own, R[slot + 1 :]), format="csr")
