"""An audit of a fit and its refreshes: a person is in one month, and all months are replayed.

Each month is attacked as one fit is, with everything that leaves any month held fixed. Beside that
nothing of the person may be in another month, the months' noises are apart, and a ledger by person
leaves out whoever has taken part as often as allowed.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

from skdpmf.books.ledger import PrivacyLedger
from skdpmf.data.labels import RatingMatrix, catalogue_of, labels_of
from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract.private import is_by_person
from skdpmf.evaluation._audit_run import (
    MOST_ROWS,
    AuditCheck,
    AuditRun,
    Pair,
    Part,
    differences,
    noise_checks,
    some_rows,
    with_row,
)
from skdpmf.privacy.recording import Recording, record_releases

__all__ = ["MonthRun", "OtherMonths", "merged", "months_of", "whole_year"]


class YearRecording(Recording):
    """What left in one month, and the recordings and the models of all of them.

    Parameters
    ----------
    month : int
        Whose releases these are.
    models : list of estimator
        By month.
    months : list of Recording
        By month.
    """

    def __init__(self, month: int, models: list[Any], months: list[Recording]) -> None:
        super().__init__(months[month])
        self.models, self.months = models, months


class MonthRun(AuditRun):
    """An audit of one month: its rows change, and all months are fitted or replayed.

    Parameters
    ----------
    estimator : estimator
        To be audited.
    months : list of csr_array
        Ratings, the first of the fit, the others of its refreshes.
    month : int
        Whose rows change.
    random_state : int
        Which neighbours.
    """

    def __init__(
        self, estimator: Any, months: list[sparse.csr_array], month: int, random_state: int
    ) -> None:
        self.months, self.month = months, month
        super().__init__(estimator, months[month], random_state)

    def fit(
        self, R: Any, replay: Any = None, *, alter: Any = None, levels: Any = None, **params: Any
    ) -> tuple[Any, Any]:
        months = [some_rows(X.T, R.shape[1]).T.tocsr() for X in self.months]
        months[self.month] = R
        known = None if replay is None else replay.months
        estimator = clone(self.estimator).set_params(**params)
        models, records = _fit_year(estimator, months, known, alter)
        return models[self.month], YearRecording(self.month, models, records)

    def planner(self) -> Any:
        if self.month == 0:
            return self.model
        before = self.records.models[self.month - 1]
        planner = clone(self.model)
        planner._prior_, planner._features_ = before._knowledge_, before._features_
        return planner


class OtherMonths(Part):
    """What a person does to the months that it is not in."""

    run: MonthRun

    def __init__(self, run: MonthRun) -> None:
        super().__init__(run)
        self._moved: set[str] = set()
        self._learned: set[str] = set()

    def first(self) -> list[AuditCheck]:
        """Return no checks of one year."""
        return []

    def repeated(self, n_runs: int, confidence: float) -> tuple[list[AuditCheck], float]:
        """Return no checks and no limit."""
        return [], math.nan

    def compare(self, pair: Pair, before: Any, after: Any) -> float:
        """Note which statistics and models of other months differ; return no epsilon."""
        for month in set(range(len(before.months))) - {self.run.month}:
            text = f" of month {month + 1}"
            for a, b in zip(before.months[month], after.months[month], strict=True):
                if not np.array_equal(a.statistic, b.statistic):
                    self._moved.add(a.name + text)
            others = differences(before.models[month], after.models[month])
            self._learned |= {name + text for name in others}
        return 0.0

    def found(self) -> list[AuditCheck]:
        """Return what the comparisons found."""
        moved, learned = (", ".join(sorted(s)) or "nothing" for s in (self._moved, self._learned))
        return [
            AuditCheck(
                "other months do not move",
                not self._moved,
                f"sums that a person in another month moves: {moved}",
            ),
            AuditCheck(
                "other months know releases alone",
                not self._learned,
                f"differences between models when releases are equal: {learned}",
            ),
        ]


def months_of(estimator: Any, cohorts: Sequence[Any]) -> list[sparse.csr_array]:
    """Return the ratings of all months, at most 400 rows each.

    cohorts: matrices of the same columns. Raises ValueError for other columns.
    """
    value_range = getattr(estimator, "_value_range", estimator.rating_range)
    months = [as_rating_matrix(X, rating_range=value_range) for X in cohorts]
    names = [catalogue_of(X) for X in cohorts]
    items = [None if own is None else own.items.tolist() for own in names]
    for R, own in zip(months, items, strict=True):
        if R.shape[1] != months[0].shape[1] or own != items[0]:
            raise ValueError(
                "refreshes must have the columns of X, in their order: leave new items out of an "
                "audit."
            )
    return [some_rows(R, MOST_ROWS) for R in months]


def whole_year(run: MonthRun, estimator: Any, cohorts: Sequence[Any]) -> list[AuditCheck]:
    """Check what is not of one month: that noises are apart, and who is in which months.

    run: the audit of any month; estimator: with its ledger; cohorts: as they were passed.
    """
    same = [run.months[0]] * max(len(cohorts), 3)  # as seeded noise may follow from the rows
    seeded = clone(run.estimator).set_params(random_state=0)
    years = run.records.months, _fit_year(seeded, same)[1]
    noise = [
        check
        for months in years
        for check in noise_checks(record for month in months for record in month)
        if check.name == "noise is fresh"
    ]
    worst = next((check for check in noise if not check.passed), noise[0])
    checks = [AuditCheck("noise of months is apart", worst.passed, worst.finding)]
    if run.estimator.budget.unit == "user":
        by_person = is_by_person(estimator.budget)
        checks.append(
            _left_out(run, estimator.budget.ledger) if by_person else _in_one_month(cohorts)
        )
    return checks


def merged(checks: Sequence[Sequence[AuditCheck]]) -> list[AuditCheck]:
    """Return one check for each name, which passes if it does in all months; checks: by month."""
    found: dict[str, AuditCheck] = {}
    for month, own in enumerate(checks):
        for check in own:
            text = f"month {month + 1}{', as in the others' * check.passed}: {check.finding}"
            if check.name not in found or (found[check.name].passed and not check.passed):
                found[check.name] = AuditCheck(check.name, check.passed, text)
    return list(found.values())


def _fit_year(
    estimator: Any,
    months: Sequence[Any],
    known: Sequence[Recording] | None = None,
    alter: Callable[[Any, Any], Any] | None = None,
) -> tuple[list[Any], list[Recording]]:
    """Return the models and the recordings of a fit and its refreshes.

    known: recordings to replay; alter: as for `Recording`.
    """
    models: list[Any] = []
    records = []
    for month, X in enumerate(months):
        with record_releases(None if known is None else known[month]) as made:
            if alter is not None:
                made.alter = alter
            models.append(models[-1].refresh(X) if models else clone(estimator).fit(X))
        records.append(made)
    return models, records


def _in_one_month(cohorts: Sequence[Any]) -> AuditCheck:
    """Check, where rows have ids, that everybody is in one cohort; numbered rows have none."""
    from pandas import RangeIndex

    name = "people are in one month"
    ids = [labels_of(X)[0] for X in cohorts]
    if any(own is None or isinstance(own, RangeIndex) for own in ids):
        return AuditCheck(name, True, "this is assumed, as rows have no ids")
    times = Counter(person for own in ids for person in set(own))
    n = sum(often > 1 for often in times.values())
    return AuditCheck(name, n == 0, f"{n} are in several, and no ledger by person counts them")


def _left_out(run: MonthRun, ledger: Any) -> AuditCheck:
    """Check that months do not move by who has been in as many as a ledger allows."""
    name, most = "whoever is spent is left out", ledger.at_most
    if most >= len(run.months):
        return AuditCheck(name, True, f"each may be in {most} months, and there are no more")
    row = np.full(run.R.shape[1], run.high)

    def year(file: Path, n_months: int, known: Any = None) -> list[Recording]:
        own = PrivacyLedger(file, ledger.limit, at_most=most)
        estimator = clone(run.estimator)
        estimator.set_params(budget=clone(estimator.budget).set_params(ledger=own))
        months = []
        for month, R in enumerate(run.months):
            values = row if month < n_months else np.full_like(row, np.nan)
            ids = ["again", *(f"{month}, {i}" for i in range(1, R.shape[0]))]
            months.append(RatingMatrix(with_row(R, 0, values), ids))
        return _fit_year(estimator, months, known)[1]

    with tempfile.TemporaryDirectory() as folder:
        always = year(Path(folder, "always"), len(run.months))
        allowed = year(Path(folder, "allowed"), most, always)
    moved = {
        f"{a.name} of month {month + 1}"
        for month, records in enumerate(zip(always, allowed, strict=True))
        for a, b in zip(*records, strict=True)
        if not np.array_equal(a.statistic, b.statistic)
    }
    text = f"sums that a person in more than {most} moves: {', '.join(sorted(moved)) or 'nothing'}"
    return AuditCheck(name, not moved, text)
