"""One audit: fits, recorded and replayed, the neighbours that are tried, and the releases.

Three kinds of things leave a fit, sums with noise, reports of devices and draws from a posterior,
and each kind has its own checks; canaries look at the model alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import joblib
import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter

from skdpmf.data.bounding import without_rows
from skdpmf.data.validation import as_rating_matrix
from skdpmf.evaluation.audit_estimates import (
    attack_reports,
    canary_epsilon,
    draw_epsilon,
    event_epsilon,
    report_reach,
    reports_epsilon,
)
from skdpmf.privacy import PrivacyBudget
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.recording import DrawRecord, Recording, ReleaseRecord, record_releases
from skdpmf.privacy.sampler.noise import derived_key, initial_normals

__all__ = [
    "MOST_ROWS",
    "AuditCheck",
    "AuditRun",
    "Draws",
    "Pair",
    "Part",
    "Reports",
    "Sums",
    "differences",
    "failure",
    "guess_members",
    "noise_checks",
    "some_rows",
    "unpacked",
    "with_row",
]

ALARM = 1e-6  # false alarms of each statistical check
ROUNDING = 1.0 + 1e-9
MOST_ROWS = 400  # sensitivities do not depend on how many users there are
_TYPICAL = 8  # neighbours of the fit as it is, at least
_INFLATED = 50.0, 1000.0  # releases, in exact values: a draw that small data hardly ever give
_LITTLE_NOISE = 10.0  # epsilon, in the budget's: plans then promise what they do not else
_MOST_ITEMS = 160  # of these fits: what then follows takes the cube; heads of 150 are chosen
_LEVELS = 0.5, 0.125, 0.0  # personal epsilons of users that are exchanged, in the budget's
_WILD = 50.0  # values beyond the rating range, in its widths
_SAME = 1e-6  # of a sensitivity: float rounding
_REPORTS = 100  # for each run of attack 2, on either input
_STRESS_EPSILON = 0.25
_WIDE = 1000.0  # standard deviation of the stressed biases, in quarter ranges: far beyond the clip
_STRESS_SWEEPS = 20
_VERDICT = 0.9995  # guesses are few: 1e-6 would want too many of them


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

    without: sparse.csr_array
    with_: sparse.csr_array
    slots: tuple[int, ...]
    replay: Callable[[sparse.csr_array, tuple[int, ...]], tuple[Any, Recording]]
    level: float | None  # personal epsilon of the user
    typical: bool  # whether it is the fit as it is

    def fit(self, R: sparse.csr_array) -> tuple[Any, Recording]:
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
        self.everybody, self.R = R, some_rows(R, MOST_ROWS)
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

    def planner(self) -> Any:
        """Return what plans the fit."""
        return self.model

    def statement(self) -> AuditCheck:
        """Check that what was stated is what was planned, within the budget."""
        spent, budget = self.spent, self.estimator.budget
        planned = self.planner().plan(self.R.shape[1], self.R.shape[0])
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
                    others |= differences(before[0], after[0])
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
            R = some_rows(R.T, _MOST_ITEMS).T.tocsr()
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
                without, with_ = with_row(without, at, before), with_row(with_, at, after)
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


def _only_rows(R: sparse.csr_array, slots: tuple[int, ...]) -> Any:
    """Return the ratings of some rows, all others empty."""
    return without_rows(R, ~np.isin(np.arange(R.shape[0]), slots))


def differences(model: Any, other: Any) -> set[str]:
    """Return the names of attributes that differ, those that `save` reads among them.

    Diagnostics that say that they are not private are left out.
    """
    states = vars(model), vars(other)
    names = {name for state in states for name in state if not name.startswith("nonprivate")}
    return {name for name in names if len({joblib.hash(state.get(name)) for state in states}) > 1}


def some_rows(R: sparse.csr_array, most: int) -> sparse.csr_array:
    """Return at most so many rows, evenly spaced: no function of the ratings."""
    n = R.shape[0]
    return R if n <= most else R[np.linspace(0, n - 1, most).astype(int)]


def _slots(R: sparse.csr_array) -> list[int]:
    """Return the row with most ratings, the first and the last."""
    longest, last = int(np.argmax(np.diff(R.indptr))), R.shape[0] - 1
    return list(dict.fromkeys((longest, 0, last)))


def with_row(R: sparse.csr_array, slot: int, row: np.ndarray) -> Any:
    """Return the ratings with one row exchanged."""
    known = np.flatnonzero(~np.isnan(row))
    own = sparse.csr_array(
        (row[known], known.astype(R.indices.dtype), np.array([0, known.size])),
        shape=(1, R.shape[1]),
    )
    return sparse.vstack((R[:slot], own, R[slot + 1 :]), format="csr")


def _by_slot(releases: Any) -> dict[str, list[Any]]:
    """Return stated releases by planned name; a slot may have held another statistic."""
    slots: dict[str, list[Any]] = {}
    for release in releases:
        slots.setdefault(str(release.name).split(": ")[0], []).append(release)
    return slots


def _is_plan(spent: Any, planned: Any) -> bool:
    """Whether a statement has all slots of a plan, each as often and with as much noise."""
    stated = _by_slot(spent.releases)
    if stated.keys() != {release.name for release in planned.releases}:
        return False
    return bool(spent.epsilon == planned.epsilon) and all(
        sum(own.count for own in stated[slot.name]) == slot.count
        and all(own.event == replace(slot.event, count=own.count) for own in stated[slot.name])
        for slot in planned.releases
    )


# -- what leaves a fit -----------------------------------------------------------------------------


class Part:
    """One kind of what leaves a fit, in an audit.

    `first` checks one fit, `compare` notes what changes between neighbours and returns epsilon,
    `found` returns checks of what the comparisons found, and `repeated` checks of repeated fits
    with a lower limit of epsilon.
    """

    mechanisms: ClassVar[set[str]] = set()
    attained = 0.0  # epsilon, by the worst neighbours

    def __init__(self, run: AuditRun) -> None:
        self.run = run

    @classmethod
    def plans(cls, release: Any) -> bool:
        """Whether a planned release is of this kind."""
        return release.kind == "pure" and release.mechanism in cls.mechanisms

    def planned(self) -> list[Any]:
        """Return the stated releases of this kind."""
        return [release for release in self.run.spent.releases if self.plans(release)]

    def largest(self) -> tuple[str, float]:
        """Return which release reaches most of what is declared, and how much."""
        return max(self.run.ratios.items(), key=lambda item: item[1], default=("", 0.0))


class Sums(Part):
    """Releases that `NoiseSource` made: their moves between neighbours, and their noise."""

    worst: tuple[Any, Any] | None = None  # neighbours
    mu, pure = 0.0, 0.0  # that they attain, with Gaussian and Laplace noise
    _strange = 0.0

    @classmethod
    def plans(cls, release: Any) -> bool:
        """Whether a planned release is one of these."""
        return release.kind == "gaussian" or release.is_laplace

    def first(self) -> list[AuditCheck]:
        """Check one fit."""
        return [self._plan(), *noise_checks(self.run.records)]

    def compare(self, pair: Pair, before: Recording, after: Recording) -> float:
        """Note the largest moves, of single releases and of all together; return epsilon."""
        squares = pure = 0.0
        for a, b in zip(before, after, strict=True):
            distance = a.distance(b)
            self.run.note(a.name, distance / a.sensitivity)
            if a.noise == "laplace":
                pure += _over(distance, a.noise_scale)
            else:
                squares += _over(distance, a.noise_scale) ** 2
        mu = math.sqrt(squares)
        if pair.typical:
            if mu > self.mu or pure > self.pure:
                self.worst = pair.without, pair.with_
            self.mu, self.pure = max(self.mu, mu), max(self.pure, pure)
            self.attained = self._epsilon_of(self.mu) if self.run.spent.delta else self.pure
        alone = [pair.fit(_only_rows(R, pair.slots))[1] for R in (pair.without, pair.with_)]
        strange = [_strangeness(*some) for some in zip(before, after, *alone, strict=True)]
        self._strange = max(self._strange, *strange, 0.0)
        return self._epsilon_of(mu) if self.run.spent.delta else pure

    def found(self) -> list[AuditCheck]:
        """Return what the comparisons found."""
        name, ratio = self.largest()
        text = f"{name} moves by {ratio:.3f} of its declared sensitivity at most"
        alone = f"others' contributions to a release move by {self._strange:.2g} of its sensitivity"
        return [
            AuditCheck("sensitivities", ratio <= ROUNDING, text),
            AuditCheck("users are on their own", self._strange <= _SAME, alone),
        ]

    def repeated(self, n_runs: int, confidence: float) -> tuple[list[AuditCheck], float]:
        """Return whether the noise along the worst change is as declared, and a lower limit."""
        if self.worst is None:
            return [], math.nan
        without, with_ = self.worst
        projections, moves = np.empty(n_runs), np.empty(n_runs)
        squares: dict[str, np.ndarray] = {}
        for run in range(n_runs):
            _, before = self.run.fit(without)
            _, after = self.run.fit(with_, before)
            along = np.concatenate([_standard(b, a) for a, b in zip(before, after, strict=True)])
            noises = [(record.name, standard_noise(record)) for record in before]
            for name, z in noises:
                squares[name] = squares.get(name, np.zeros(2)) + np.array([z @ z, z.size])
            moves[run] = np.linalg.norm(along)
            everything = np.concatenate([z for _, z in noises])
            projections[run] = along @ everything / max(moves[run], 1e-300)
        square = float(projections @ projections)
        largest = math.sqrt(square / stats.chi2.ppf(1.0 - confidence, n_runs))
        chances = {name: float(stats.chi2.cdf(*found)) for name, found in squares.items()}
        name = min(chances, key=lambda release: chances[release])
        total, size = squares[name]
        text = f"{name}: variance {total / size:.3f} of what is declared (p = {chances[name]:.2g})"
        check = AuditCheck("noise in repeated fits", chances[name] > ALARM, text)
        mu = float(np.median(moves)) / max(largest, 1e-300)
        return [check], self._epsilon_of(mu)

    def _epsilon_of(self, mu: float) -> float:
        delta = self.run.spent.delta
        if delta == 0.0:  # a variance says nothing about pure epsilon
            return math.nan
        return gaussian_epsilon(mu, delta)

    def _plan(self) -> AuditCheck:
        planned = _by_slot(self.planned())
        counts = {name: sum(release.count for release in own) for name, own in planned.items()}
        expected = sorted((name, i) for name, count in counts.items() for i in range(count))
        made = sorted((r.name, r.index) for r in self.run.records)
        if made != expected:
            missing = set(expected) ^ set(made)
            text = f"planned and made differ in {sorted(missing)[:5]}"
            return AuditCheck("releases", False, text)
        for record in self.run.records:
            least = record.noise_multiplier * record.sensitivity
            stated = max(release.noise_multiplier for release in planned[record.name])
            if not (record.noise_multiplier >= stated and record.noise_scale >= least):
                return AuditCheck("releases", False, f"less noise than stated: {record}")
        return AuditCheck("releases", True, f"{len(made)}, with the noise that was planned")


def noise_checks(records: Iterable[ReleaseRecord]) -> Iterator[AuditCheck]:
    """Check that every value has its noise, of the right size, and its own."""
    noises = [(record.name, standard_noise(record)) for record in records]
    parts = [z for _, z in noises]
    several = {"all releases": parts}
    for name, z in noises:
        several.setdefault(name, []).append(z)
    worst, chance = "", 1.0
    for name, some in several.items():
        z = np.concatenate(some) if some else np.empty(0)
        if (z == 0.0).any():
            worst, chance = f"{name} has values without noise", 0.0
            break
        below = float(stats.chi2.cdf(z @ z, max(z.size, 1)))
        if z.size and 2.0 * min(below, 1.0 - below) < chance:
            chance = 2.0 * min(below, 1.0 - below)
            worst = f"{name}: variance {z @ z / z.size:.3f} of what is declared"
    yield AuditCheck("size of the noise", chance > ALARM, f"{worst} (p = {chance:.2g})")
    chance = 1.0
    for i, one in enumerate(parts):
        for other in parts[:i]:
            size = min(one.size, other.size)
            if size > 3 and one[:size].std() > 0.0 and other[:size].std() > 0.0:
                chance = min(chance, float(stats.pearsonr(one[:size], other[:size]).pvalue))
    pairs = max(len(parts) * (len(parts) - 1) // 2, 1)
    text = f"smallest p of {pairs} correlations: {chance:.2g}"
    yield AuditCheck("noise is fresh", chance > ALARM / pairs, text)


def standard_noise(record: ReleaseRecord) -> NDArray[np.float64]:
    """Return the noise of a release, standard normal if it is what was declared."""
    if record.noise_scale == 0.0:
        return np.zeros(record.statistic.size)
    z = (record.output - record.statistic) / record.noise_scale
    if record.noise == "laplace":
        z = np.sign(z) * stats.norm.isf(0.5 * np.exp(-np.abs(z)))
    return np.asarray(unpacked(z, record.layout))


def _standard(record: ReleaseRecord, other: ReleaseRecord) -> NDArray[np.float64]:
    """Return the difference of two statistics over the noise's scale."""
    difference = (record.statistic - other.statistic) / (record.noise_scale or 1e-300)
    return np.asarray(unpacked(difference, record.layout))


def _over(distance: float, scale: float) -> float:
    if scale == 0.0:
        return math.inf if distance > 0.0 else 0.0
    return distance / scale


def unpacked(values: np.ndarray, layout: str) -> np.ndarray:
    """Flatten; entries off the diagonal of a packed triangle count twice."""
    if layout == "packed":
        d = int(np.sqrt(2 * values.shape[-1]))
        rows, columns = np.tril_indices(d)
        values = np.where(rows == columns, values, math.sqrt(2.0) * values)
    return values.ravel()


def _strangeness(
    before: ReleaseRecord, after: ReleaseRecord, own_before: ReleaseRecord, own_after: ReleaseRecord
) -> float:
    """Return how far a release moves beyond what the row alone contributes, over sensitivity."""
    rest = (after.statistic - before.statistic) - (own_after.statistic - own_before.statistic)
    return float(np.abs(rest).max(initial=0.0) / before.sensitivity)


class Reports(Part):
    """Reports of devices: what goes into each, from which row, how often, and its law."""

    mechanisms: ClassVar[set[str]] = {
        *("PrivUnitG", "sampled sign", "randomised response", "Laplace report")
    }
    _strangers = 0  # inputs of other devices that moved
    _moved = False  # who reports when, or with which key
    _most = 0  # reports of one device

    def first(self) -> list[AuditCheck]:
        """Check one fit."""
        n = self.run.R.shape[0]
        planned: Counter[Any] = Counter()
        for release in self.planned():
            planned[release.mechanism, release.epsilon] += n * release.count
        made: Counter[Any] = Counter()
        for record in self.run.records.reports:
            made[record.mechanism, record.randomiser.epsilon] += len(record.keys)
        wrong = {kind: made[kind] for kind in {*planned, *made} if made[kind] != planned[kind]}
        text = f"{made.total()} of {n} devices, with the epsilons that were planned"
        if wrong:
            text = f"planned and made differ, (mechanism, epsilon): reports made {wrong}"
        keys = [record.keys for record in self.run.records.reports]
        every = np.concatenate(keys) if keys else np.empty((0, 8), np.uint32)
        distinct = len(np.unique(every, axis=0))
        return [
            AuditCheck("reports", not wrong, text),
            AuditCheck(
                "randomness is fresh",
                distinct == len(every),
                f"{distinct} different keys for {len(every)} reports",
            ),
        ]

    def compare(self, pair: Pair, before: Recording, after: Recording) -> float:
        """Note whose reports changed, and how far; return epsilon."""
        own: Counter[str] = Counter()
        spent = 0.0
        everybody = self.run.R.shape[0]
        for a, b in zip(before.reports, after.reports, strict=True):
            if not np.array_equal(a.keys, b.keys):
                self._moved = True
                continue
            rows = _changed(a.inputs, b.inputs)
            own[a.mechanism] += rows.size
            foreign = max(rows.size - len(pair.slots), 0)
            if len(a.keys) == everybody:  # in the order of the rows
                foreign = int(np.count_nonzero(~np.isin(rows, pair.slots)))
            self._strangers = max(self._strangers, foreign)
            self.run.note(a.mechanism, report_reach(a, b))
            spent += reports_epsilon(a, b, rows.size)
        self._most = max(self._most, *own.values(), 0)
        self.attained = max(self.attained, spent)
        return spent

    def found(self) -> list[AuditCheck]:
        """Return what the comparisons found."""
        name, ratio = self.largest()
        alone = f"{self._strangers} reports of others change with a row"
        if self._moved:
            alone = "who reports when changes with a row"
        claimed = self.run.spent.epsilon
        return [
            AuditCheck(
                "inputs are bounded",
                ratio <= 1.0 + ALARM,
                f"{name}: an input goes to {ratio:.3f} of what its report covers at most",
            ),
            AuditCheck("devices are on their own", not (self._strangers or self._moved), alone),
            AuditCheck(
                "reports of one device",
                bool(self.attained <= claimed * (1.0 + ALARM)),
                f"at most {self._most} of a kind, of epsilon {self.attained:.4g} together",
            ),
        ]

    def repeated(self, n_runs: int, confidence: float) -> tuple[list[AuditCheck], float]:
        """Draw each kind of report many times, for the two inputs that are farthest apart."""
        kinds: dict[Any, Any] = {}
        for record in self.run.records.reports:
            r = record.randomiser
            kinds.setdefault((record.mechanism, r.epsilon, vars(r).get("dimension")), r)
        counts = {r.mechanism: r.count for r in self.planned()}
        limits: dict[str, float] = {}
        surely, chance, worst = 0.0, 1.0, ""
        for (mechanism, stated, _), randomiser in kinds.items():
            n = n_runs * _REPORTS
            shared = 1.0 - (1.0 - confidence) / len(kinds)
            attack = attack_reports(randomiser, n, shared)
            limits[mechanism] = max(limits.get(mechanism, 0.0), attack.epsilon)
            if attack.chance <= chance:
                chance, worst = attack.chance, f"{mechanism} at epsilon {stated:.4g}"
            surely = max(surely, attack.surely / stated)
        total = sum(limits[mechanism] * counts.get(mechanism, 0) for mechanism in limits)
        text = f"{worst}: p = {chance:.2g}; epsilon is at least {surely:.3f} of what is declared"
        passed = chance > ALARM / max(len(kinds), 1) and surely <= 1.0
        return [AuditCheck("law of the reports", passed, text)], total if kinds else math.nan


def _changed(x: Any, y: Any) -> np.ndarray:
    """Return the rows in which inputs differ."""
    if x.shape != y.shape:
        return np.arange(max(x.shape[0], y.shape[0]))
    if isinstance(x, np.ndarray):
        return np.flatnonzero(~((x == y) | (np.isnan(x) & np.isnan(y))).all(axis=1))
    return np.unique((x != y).nonzero()[0])


class Draws(Part):
    """Draws from a posterior: the density that is sampled, and draws of a stressed one."""

    mechanisms: ClassVar[set[str]] = {"posterior sample"}
    _strange: frozenset[str] = frozenset()

    def first(self) -> list[AuditCheck]:
        """Check one fit."""
        planned = sorted((r.name, i) for r in self.planned() for i in range(r.count))
        made = sorted((r.name, r.index) for r in self.run.records.draws)
        text = f"{len(made)} draws made of {len(planned)} planned"
        return [AuditCheck("draws", made == planned, text)]

    def compare(self, pair: Pair, before: Recording, after: Recording) -> float:
        """Note what a row does to the density; return epsilon."""
        stated = {r.name: r.epsilon for r in self.planned()}
        relation, total = self.run.spent.neighbors, 0.0
        for a, b in zip(before.draws, after.draws, strict=True):
            needed = draw_epsilon(a, b, pair.slots[0], relation)
            self.run.note(a.name, needed / stated.get(a.name, math.inf))
            total += needed
            self._strange |= _strange(a, b, pair.slots[0])
        self.attained = max(self.attained, total)
        return total

    def found(self) -> list[AuditCheck]:
        """Return what the comparisons found."""
        name, ratio = self.largest()
        text = f"{name}: a user's loss needs {ratio:.3f} of the declared epsilon at most"
        alone = ", ".join(sorted(self._strange)) or "nothing"
        return [
            AuditCheck("losses are bounded", ratio <= ROUNDING, text),
            AuditCheck(
                "users are on their own",
                not self._strange,
                f"other changes in the density with a row: {alone}",
            ),
        ]

    def repeated(self, n_runs: int, confidence: float) -> tuple[list[AuditCheck], float]:
        """Draw often for one user and for none, as claimed, and from a prior beyond the clip.

        The latter at an epsilon so small that a loss without bound shows. A quarter of the draws
        chooses the event, the others count it. They are made after few sweeps.
        """
        claimed, _ = self._attack(n_runs, confidence)
        epsilon = min(self.run.spent.epsilon, _STRESS_EPSILON)
        # item biases are there because a user's factors cannot make up for them
        wide = {"guarantee__bias_std": _WIDE, "guarantee__item_bias": True}
        budget = {**self.run.estimator.budget.get_params(), "epsilon": epsilon}
        _, surely = self._attack(n_runs, confidence, budget=PrivacyBudget(**budget), **wide)
        text = f"with epsilon {epsilon:g} and a prior that is far wider than the clip, epsilon is "
        text += f"at least {surely:.3g}"
        return [AuditCheck("draws of a wide prior", surely <= epsilon, text)], claimed

    def _attack(self, n_runs: int, confidence: float, **params: Any) -> tuple[float, float]:
        m = self.run.R.shape[1]
        values = np.where(np.arange(m) % 2, self.run.low, self.run.high)
        one = sparse.csr_array((values, np.arange(m), np.array([0, m])), shape=(1, m))
        nobody = sparse.csr_array(one.shape)
        seen = np.array([[self._size(R, params) for R in (nobody, one)] for _ in range(n_runs)])
        first, rest = np.split(seen, [max(n_runs // 4, 1)])
        cut, sign = _event(first)
        n_events = (sign * (rest - cut) > 0.0).sum(axis=0)
        pairs = (n_events, n_events[::-1])
        levels = (1.0 - confidence) / 2.0, ALARM / 2.0
        found = [
            max(event_epsilon(int(p), int(q), len(rest), 1.0 - level) for p, q in pairs)
            for level in levels
        ]
        return found[0], found[1]

    def _size(self, R: Any, params: dict[str, Any]) -> float:
        """Return how large the drawn items are: on a logarithmic scale, in units of the prior."""
        sweeps = min(self.run.model.n_iter_, _STRESS_SWEEPS)
        _, records = self.run.fit(R, max_iter=sweeps, **params)
        biases, factors = records.draws[0].output
        return float(np.log(np.square(biases).sum() + np.square(factors).sum()))


def _event(seen: np.ndarray) -> tuple[float, float]:
    """Return a cut, and the side of it, that separates two columns best."""
    values = np.sort(seen.ravel())
    cuts = (values[1:] + values[:-1]) / 2.0
    above = (seen[:, :, np.newaxis] > cuts).mean(axis=0)
    best = int(np.argmax(np.abs(above[0] - above[1])))
    return float(cuts[best]), 1.0 if above[0, best] >= above[1, best] else -1.0


def _strange(a: DrawRecord, b: DrawRecord, slot: int) -> set[str]:
    """Return what differs in two densities beside one user's own terms."""
    found = set()
    for name in ("inverse_temperature", "clip", "stds"):
        if getattr(a, name) != getattr(b, name):
            found.add(name)
    if not np.array_equal(np.delete(a.weights, slot), np.delete(b.weights, slot)):
        found.add("weights of others")
    others = [_without(record.targets, slot) for record in (a, b)]
    if not all(map(np.array_equal, *others)):
        found.add("targets of others")
    return found


def _without(R: Any, slot: int) -> tuple[np.ndarray, ...]:
    start, stop = R.indptr[slot : slot + 2]
    n = np.delete(np.diff(R.indptr), slot)
    own = np.s_[start:stop]
    return n, np.delete(R.indices, own), np.delete(R.data, own)


# -- canaries ------------------------------------------------------------------------------------


def guess_members(run: AuditRun, n: int, confidence: float) -> tuple[AuditCheck, float]:
    """Return whether guesses from one model contradict the claim, and a lower limit of epsilon.

    run: the audit; n: canaries, users or, if that is the unit, users' only ratings, which have
    the opposite value outside for "replace". Returns check: its verdict has a confidence of its
    own; limit: of epsilon, at the stated delta.
    """
    m = run.everybody.shape[1]
    normal = initial_normals(run.key, (n, m), "canaries")
    inside = initial_normals(run.key, (n,), "inside") > 0
    draws = initial_normals(run.key, (n, m), "known")
    known, values = draws > 0, np.where(normal > 0, run.high, run.low)
    if run.estimator.budget.unit == "rating":  # the claim covers one rating of a user
        known = draws == draws.max(axis=1, keepdims=True)
    added = _rows(values, known & inside[:, None])
    if run.estimator.budget.unit == "rating" and run.spent.neighbors == "replace":
        added = _rows(np.where(inside[:, None], values, run.low + run.high - values), known)
    model = clone(run.estimator).fit(sparse.vstack((run.everybody, added), format="csr"))
    # a canary in the data has drawn the model towards its ratings: predict half from half
    centre, agreement = (run.low + run.high) / 2.0, np.zeros(n)
    for half in (0, 1):
        told = known & (np.arange(m) % 2 == half)
        asked = sparse.csr_array(known & ~told)
        predicted = model.predict_entries(_rows(values, told), asked).toarray() - centre
        agreement += np.sum(predicted * (values - centre) * asked.toarray(), axis=1)
    order = np.argsort(agreement)
    guessed = max(n // 4, 1)
    right = int(inside[order[-guessed:]].sum() + (~inside[order[:guessed]]).sum())
    guesses = right, 2 * guessed, n, run.spent.delta
    limit = canary_epsilon(*guesses, confidence)
    text = f"{right} of {2 * guessed} guesses right, epsilon at least {limit:.3g}"
    holds = canary_epsilon(*guesses, _VERDICT) <= run.spent.epsilon
    return AuditCheck("canaries", holds, text), limit


def _rows(values: np.ndarray, mask: np.ndarray) -> Any:
    places = sparse.csr_array(mask)
    return sparse.csr_array((values[mask], places.indices, places.indptr), shape=mask.shape)
