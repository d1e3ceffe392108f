r"""Attacks on a private estimator's claim: do fits release what it says, and does repetition agree?

The curator's tool: it reads exact statistics. Two questions, neither of which trusts the estimator:

1. **Do two neighbours' fits release what the statement says?** All that leaves a fit is recorded;
   then the fit is repeated on neighbouring data with every earlier outcome held fixed. No sum may
   move farther than its declared sensitivity, no input of a device's report and no loss of a
   sampled posterior may go beyond what epsilon was calibrated to, nothing but the user's own part
   may change, and what leaves must be the plan's. (Re:cord-play, arXiv 2602.17454.) A rank or a
   subset of the items is often chosen by what is released, and few users support none. Sums are
   therefore also replayed from releases that are exact and 50 or 1,000 times too large, and with
   ten times the epsilon; personal levels of epsilon, where `fit` takes them, from a fit with some.
2. **What does an attack by repetition find?** *Sums*: with v the vector of all statistics' moves
   over their declared noise, |v| is the mu that this pair of neighbours attains, and the noise's
   projection on v is standard normal in every fit. Its sample variance over ``n_runs`` fits gives
   an upper confidence limit of the noise there is, hence a lower one of mu and of epsilon.
   *Reports* are drawn for the two inputs that are farthest apart, and *draws* for a user and for
   none: how often an event is seen on the one and on the other gives a lower limit of epsilon
   (Clopper and Pearson).

Verdicts are apart from the limits that are reported: an honest estimator fails with a probability
of less than 0.1 %, whatever ``confidence`` is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import joblib
import numpy as np
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter

from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract.parameters import is_int, require
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.evaluation import _audit_releases as of_fits
from skdpmf.evaluation._audit_releases import AuditCheck
from skdpmf.privacy.frame import with_rows
from skdpmf.privacy.recording import Recorder, Recording, record_releases
from skdpmf.privacy.sampler.streams import derived_key, initial_normals

_NOT_TESTED = (
    "neighbours that were not tried, rows beyond the first 400 that are used, the source of random "
    "bits, timing, predictions for private rows"
)
ROUNDING = 1.0 + 1e-9
_MOST_ROWS = 400  # sensitivities do not depend on how many users there are
_TYPICAL = 8  # neighbours of the fit as it is, at least
_INFLATED = 50.0, 1000.0  # releases, in exact values: a draw that small data hardly ever give
_LITTLE_NOISE = 10.0  # epsilon, in the budget's: plans then promise what they do not else
_MOST_ITEMS = 160  # of these fits: what then follows takes the cube; heads of 150 are chosen
_LEVELS = 0.5, 0.125, 0.0  # personal epsilons of users that are exchanged, in the budget's
_WILD = 50.0  # values beyond the rating range, in its widths
_STRESS_EPSILON = 0.25
_WIDE = 1000.0  # standard deviation of the stressed biases, in quarter ranges: far beyond the clip
_STRESS_SWEEPS = 20


@dataclass(frozen=True)
class AuditReport:
    """What an audit found. For the curator: it was made from exact statistics."""

    estimator: str  # its class and parameters
    checks: tuple[AuditCheck, ...]
    epsilon: float  # as claimed, for the unit and the neighbours of the estimator's budget
    delta: float
    epsilon_attained: float  # of the worst neighbours found at this delta, by what is declared
    # Lower confidence limit of it by repeated fits; NaN if nothing can be said. One above the claim
    # is seen as rarely as `confidence` says, and is no verdict by itself.
    epsilon_lower: float
    confidence: float
    # Largest move over sensitivity of each release, by name; for a kind of report the largest input
    # over what is covered, for a draw the epsilon that the losses need over the claimed.
    ratios: dict[str, float] = field(default_factory=dict)
    not_tested: str = _NOT_TESTED

    @property
    def passed(self) -> bool:
        """Whether no check found anything."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        verdict = "nothing found" if self.passed else "THE CLAIM DOES NOT HOLD"
        lower = f"epsilon {self.epsilon_lower:<8.4g} at least, {100 * self.confidence:g} % sure"
        lower = "no limit" if math.isnan(self.epsilon_lower) else lower
        lines = [
            f"Privacy audit: {verdict}\n\n{self.estimator}\n",
            f"claimed:          epsilon {self.epsilon:<8.4g} at delta {self.delta:.4g}",
            f"neighbours reach: epsilon {self.epsilon_attained:<8.4g} by the declared noise",
            f"repetition shows: {lower}\n",
            *(f"[{'ok' if c.passed else 'FAILED'}] {c.name}: {c.finding}" for c in self.checks),
        ]
        return "\n".join([*lines, f"\nNot tested: {self.not_tested}."])


def audit(
    estimator: PrivateRecommender,
    X: Any,
    *,
    n_neighbors: int = 24,
    n_runs: int = 0,
    confidence: float = 0.99,
    random_state: int = 0,
) -> AuditReport:
    """Attack a private estimator's claim on given ratings.

    Parameters
    ----------
    estimator : estimator
        With a finite budget; not fitted, and not changed. No ledger is charged.
    X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
        Ratings. At most 400 rows of them are used.
    n_neighbors : int, default=24
        Neighbours for which the fit is replayed, at least 8. Each takes a fit. For sums with noise
        6 of them are those of the three unusual fits, for personal levels 3; 8 others are tried at
        least.
    n_runs : int, default=0
        Fits of the attack by repetition, each with a replay; 100 find noise that is too small by
        sqrt(2). Of each kind of report 100 times as many are drawn on either side. 0 leaves the
        attack out.
    confidence : float, default=0.99
        Confidence of the lower limit, not of the verdict.
    random_state : int, default=0
        Which neighbours; never the noise, which is fresh.

    Returns
    -------
    AuditReport
        ``print`` it. It passes if nothing was found, which proves nothing.

    Raises
    ------
    ValueError
        If the estimator is not private, or a parameter is out of range.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(60, 10, random_state=0)
    >>> report = audit(AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), max_iter=2), X, n_neighbors=8)
    >>> report.passed, report.epsilon_attained <= report.epsilon
    (True, True)
    """
    private = getattr(getattr(estimator, "budget", None), "is_private", False)
    remedy = "there is no claim to attack, so pass a private estimator"
    require(private, "estimator", estimator, "of a finite budget", remedy)
    for name, n, least in (("n_neighbors", n_neighbors, 8), ("n_runs", n_runs, 0)):
        require(is_int(n) and n >= least, name, n, f"an integer >= {least}", "use the default")
    require(0.5 <= confidence < 1.0, "confidence", confidence, "in [0.5, 1)", "use 0.99")
    run = _Run(estimator, X, random_state)
    spent, lower = run.spent, math.nan
    checks = [*run.one_fit(), *run.replayed(n_neighbors)]
    if n_runs:
        try:
            more, lower = run.repeated(n_runs, confidence)
        except Exception as error:
            more = [AuditCheck("repeated fits", False, _failure(error))]
        checks += more
    condition = f"; the condition that the claim has, {spent.condition}" if spent.condition else ""
    found = repr(estimator), tuple(checks), spent.epsilon, spent.delta, run.attained, lower
    return AuditReport(*found, float(confidence), run.ratios, _NOT_TESTED + condition)


class _Pair(NamedTuple):
    """Two neighbouring data sets, the rows in which they differ, and the fit that is replayed."""

    both: tuple[sparse.csr_array, sparse.csr_array]
    slots: tuple[int, ...]
    replay: Callable[[sparse.csr_array, tuple[int, ...]], tuple[Any, Recording]]
    level: float | None  # personal epsilon of the user
    typical: bool  # whether it is the fit as it is


class _Inflated(Recorder):
    """It releases multiples of the exact values, for what follows on many users."""

    def __init__(self, scale: float, replay: Any) -> None:
        super().__init__(replay)
        self._scale = scale

    def output(self, exact: Any, drawn: Any) -> Any:
        return self._scale * exact


class _Run:
    """The recorded fit of one audit, and what was found so far."""

    def __init__(self, estimator: Any, X: Any, random_state: int) -> None:
        budget = estimator.budget.without_ledger()
        self.estimator = clone(estimator).set_params(budget=budget, random_state=None)
        low, high = getattr(estimator, "_value_range", estimator.rating_range)
        bounds = None if getattr(estimator, "_implicit", False) else (low, high)  # None: counts
        self.R = _some_rows(as_rating_matrix(X, rating_range=bounds), _MOST_ROWS)
        self.key = derived_key(random_state, "audit")
        self.low, self.high = float(low), float(high)
        self.personal = has_fit_parameter(self.estimator, "user_epsilon")
        self.model, self.records = self.fit(self.R)
        self.spent = self.model.privacy_spent_
        self.ratios: dict[str, float] = {}
        self.attained, self.worst = 0.0, (self.R, self.R)
        # what moves beside a row's own part; attributes of models with equal releases; errors
        sets: list[set[str]] = [set(), set(), set()]
        self.strange, self.differing, self.raised = sets
        self.excess = 0.0  # of a personal level of epsilon

    def fit(
        self, R: Any, replay: Any = None, *, alter: Any = None, levels: Any = None, **params: Any
    ) -> tuple[Any, Recording]:
        """Return a fitted clone and the recording of its fit.

        ``alter`` makes releases of exact values; ``levels`` are personal epsilons.
        """
        personal = {} if levels is None else {"user_epsilon": levels}
        with record_releases(replay, Recorder if alter is None else alter) as records:
            model = clone(self.estimator).set_params(**params).fit(R, **personal)
        return model, records

    def one_fit(self) -> Iterator[AuditCheck]:
        """Check that what was stated is what was planned, and what left what was stated."""
        spent, budget, records = self.spent, self.estimator.budget, self.records
        same = _is_plan(spent, self.model.plan(self.R.shape[1], self.R.shape[0]))
        within = spent.epsilon <= budget.epsilon and spent.delta <= budget.delta
        how = "as planned" if same else "which is NOT its plan"
        text = f"states epsilon {spent.epsilon:.4g} of {budget.epsilon:.4g}, {how}"
        yield AuditCheck("statement", bool(same and within), text)
        yield self._releases()
        if records:
            yield of_fits.size_of_noise(records, "size of the noise")
            yield of_fits.noise_is_fresh(records)
        if records.reports:
            keys = np.concatenate([record.keys for record in records.reports])
            n = len(np.unique(keys, axis=0))
            text = f"{n} different keys for {len(keys)} reports"
            yield AuditCheck("randomness is fresh", n == len(keys), text)

    def _releases(self) -> AuditCheck:
        """Check that everything that left was stated, with as much noise, and nothing else."""
        stated, expected = _by_slot(self.spent.releases), Counter[Any]()
        made = Counter[Any]((one.name, one.index) for one in (*self.records, *self.records.draws))
        for report in self.records.reports:
            made[report.mechanism, report.randomiser.epsilon] += len(report.keys)
        reported = {report.mechanism for report in self.records.reports}
        for name, own in stated.items():
            if own[0].kind == "pure" and own[0].mechanism in reported:
                for release in own:
                    expected[release.mechanism, release.epsilon] += self.R.shape[0] * release.count
            else:
                expected.update((name, i) for i in range(sum(release.count for release in own)))
        wrong = {one: made[one] for one in {*expected, *made} if made[one] != expected[one]}
        if wrong:
            return AuditCheck("releases", False, f"made otherwise than stated: {wrong}")
        for record in self.records:
            least = max(release.noise_multiplier for release in stated[record.name])
            scale = record.noise_multiplier * record.sensitivity
            if not (record.noise_multiplier >= least and record.noise_scale >= scale):
                return AuditCheck("releases", False, f"less noise than stated: {record}")
        return AuditCheck("releases", True, f"{made.total()}, as stated")

    def replayed(self, n_neighbors: int) -> list[AuditCheck]:
        """Fit on neighbours with all that leaves held fixed, and compare."""
        for how, n in self._recordings(n_neighbors):
            pairs: list[_Pair] = []
            with self._course():
                pairs = list(self._neighbors(how, n))
            for pair in pairs:
                with self._course():
                    self._compare(pair)
        name, ratio = max(self.ratios.items(), key=lambda item: item[1], default=("nothing", 0.0))
        claimed, reached = self.spent.epsilon, f"{name} reaches {ratio:.3f} of what is declared"
        near = f"they reach {self.attained:.4g} of {claimed:.4g}"
        course = "; ".join(sorted(self.raised)) or "fits make the same releases, and raise nothing"
        also = f"a row also moves: {_listed(self.strange)}"
        more = f"with equal releases models differ in: {_listed(self.differing)}"
        own = f"a user with a level of epsilon of his own reaches {self.excess:.3f} of it at most"
        return [
            AuditCheck("sensitivities", bool(ratio <= ROUNDING), reached),
            AuditCheck("epsilon of neighbours", bool(self.attained <= claimed * ROUNDING), near),
            AuditCheck("users are on their own", not self.strange, also),
            AuditCheck("one row does not change the course", not self.raised, course),
            AuditCheck("nothing else is released", not self.differing, more),
            *[AuditCheck("personal levels", bool(self.excess <= ROUNDING), own)] * self.personal,
        ]

    @contextmanager
    def _course(self) -> Iterator[None]:
        """Note what is raised, whatever it is: a row must not raise it."""
        try:
            yield
        except Exception as error:
            self.raised.add(_failure(error))

    def _compare(self, pair: _Pair) -> None:
        """Note what a pair of neighbours moves, and the attributes of models that differ.

        Those that `save` reads are among them; what says that it is not private is left out.
        """
        (model, before), (other, after) = (pair.replay(R, pair.slots) for R in pair.both)
        own = np.isin(np.arange(pair.both[0].shape[0]), pair.slots)
        empty = [with_rows(R, own) for R in pair.both] if before else []  # for sums
        alone = [pair.replay(R, pair.slots)[1] for R in empty] or [before, after]
        moved = before, after, alone, pair.slots, self.R.shape[0], self.spent
        reached, ratios, strange = of_fits.move_of(*moved)
        a, b = ({n: joblib.hash(x) for n, x in vars(m).items()} for m in (model, other))
        differing = {n for n in a.keys() | b.keys() if a.get(n) != b.get(n)}
        self.differing |= {n for n in differing if not n.startswith("nonprivate")}
        self.strange |= strange
        self.ratios |= {n: max(self.ratios.get(n, 0.0), ratio) for n, ratio in ratios.items()}
        if pair.typical and reached > self.attained:
            self.attained, self.worst = reached, pair.both
        if pair.level is not None and reached > 0.0:
            self.excess = max(self.excess, reached / (pair.level or 1e-300))

    def _recordings(self, n: int) -> list[tuple[dict[str, Any], int]]:
        """Return how fits are recorded and replayed, and how many neighbours each has.

        Much of a fit on few users is behind what is released: a rank, a subset of the items.
        """
        unusual: list[tuple[dict[str, Any], int]] = []
        if self.records:
            altered = [partial(_Inflated, scale) for scale in _INFLATED]
            asked = self.estimator.budget.epsilon
            much = clone(self.estimator.budget).set_params(epsilon=_LITTLE_NOISE * asked)
            unusual += [*(({"alter": one}, 2) for one in altered), ({"budget": much}, 2)]
        if self.personal:
            levels = np.full(self.R.shape[0], self.estimator.budget.epsilon)
            slots = _slots(self.R)
            levels[slots] *= _LEVELS[: len(slots)]
            unusual.append(({"levels": levels}, 3))
        return [({}, max(n - sum(number for _, number in unusual), _TYPICAL)), *unusual]

    def _neighbors(self, how: dict[str, Any], n: int) -> Iterator[_Pair]:
        """Yield pairs of neighbours; ``how`` is the fit that is recorded, {} as it is."""
        R, records, levels = self.R, self.records, how.get("levels")
        if how:
            R = _some_rows(R.T, _MOST_ITEMS).T.tocsr()
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
            pairs = {slot: (np.full_like(row, np.nan), row)}
            if self.estimator.budget.unit == "rating":
                pairs = self._one_rating(R, i, row, slot)
            elif self.spent.neighbors == "replace":
                place = (7 * i + 3) % len(rows)
                pairs = {slot: (rows[place if place != i else i - 1], row)}
            without, with_ = R, R
            for at, (before, after) in pairs.items():
                without, with_ = _with_row(without, at, before), _with_row(with_, at, after)
            yield _Pair((without, with_), tuple(pairs), replay, level, not how)

    def _one_rating(self, R: Any, i: int, row: np.ndarray, slot: int) -> dict[int, Any]:
        """Return rows, by their slot, that differ in one rating: without it and with it.

        "replace": another value, another item, or another item and another user.
        """
        m, n = row.size, R.shape[0]
        known = np.flatnonzero(~np.isnan(row))
        cell = int(known[i % known.size]) if known.size else i % m
        other, row = row.copy(), row.copy()
        other[cell] = np.nan
        pairs = {slot: (other, row)}
        if self.spent.neighbors != "replace":
            return pairs
        row[cell] = value = row[cell] if known.size else self.high
        kind, place = (i + i // 3) % 3, (cell + 1 + i) % m
        if kind == 1 and place != cell:
            row[place], other[place] = np.nan, value
        elif kind == 2 and n > 1:
            next_, theirs = (slot + 1) % n, np.full(m, np.nan)
            own = slice(*R.indptr[next_ : next_ + 2])
            theirs[R.indices[own]] = R.data[own]
            more = theirs.copy()
            theirs[place], more[place] = np.nan, value
            pairs[next_] = more, theirs
        else:
            other[cell] = self.low + self.high - value
        return pairs

    def _rows(self, n: int) -> list[np.ndarray]:
        """Rows that try to move much; some know the released model."""
        m, low, high = self.R.shape[1], self.low, self.high
        counts = np.bincount(self.R.indices, minlength=m)
        rare, popular = int(np.argmin(counts)), int(np.argmax(counts))
        places, means = np.arange(m), self.model.item_means_
        one_popular = np.where(places == popular, low, np.nan)
        rows = [
            np.full(m, low),
            np.full(m, high),
            np.where(places % 2, low, high),
            np.where(places == rare, high, np.nan),
            np.where(places == rare, high, one_popular),
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

    def repeated(self, n_runs: int, confidence: float) -> tuple[list[AuditCheck], float]:
        """Return checks of what leaves repeated fits, and a lower limit of epsilon."""
        found, spent, terms = [], self.spent, (n_runs, confidence)
        if self.records:
            found.append(of_fits.attack_sums(self.fit, self.worst, spent.delta, *terms))
        if self.records.reports:
            found.append(of_fits.attack_reports(self.records.reports, spent.releases, *terms))
        if self.records.draws:
            found.append(self._stressed(*terms))
        limits = [limit for _, limit in found if not math.isnan(limit)]
        return [check for check, _ in found], max(limits, default=math.nan)

    def _stressed(self, n_runs: int, confidence: float) -> tuple[AuditCheck, float]:
        """Draw often, as claimed, and from a prior beyond the clip at a small epsilon.

        A loss without bound then shows. Draws are made after few sweeps.
        """
        sweeps = {"max_iter": min(self.model.n_iter_, _STRESS_SWEEPS)}
        values = np.where(np.arange(self.R.shape[1]) % 2, self.low, self.high)
        claimed, _ = of_fits.attack_draws(partial(self.fit, **sweeps), values, n_runs, confidence)
        epsilon = min(self.spent.epsilon, _STRESS_EPSILON)
        budget = clone(self.estimator.budget).set_params(epsilon=epsilon)
        # item biases are there because a user's factors cannot make up for them
        wide = {"guarantee__bias_std": _WIDE, "guarantee__item_bias": True, "budget": budget}
        fit = partial(self.fit, **sweeps, **wide)
        _, surely = of_fits.attack_draws(fit, values, n_runs, confidence)
        text = f"with epsilon {epsilon:g} and a prior that is far wider than the clip, epsilon is "
        text += f"at least {surely:.3g}"
        return AuditCheck("draws of a wide prior", surely <= epsilon, text), claimed


def _failure(error: Exception) -> str:
    """Return what a fit raised, in short."""
    return f"{type(error).__name__}: {str(error)[:160]}"


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _some_rows(R: sparse.csr_array, most: int) -> sparse.csr_array:
    """Return at most so many rows, evenly spaced: no function of the ratings."""
    n = R.shape[0]
    return R if n <= most else R[np.linspace(0, n - 1, most).astype(int)]


def _slots(R: sparse.csr_array) -> list[int]:
    """Return the row with most ratings, the first and the last."""
    longest, last = int(np.argmax(np.diff(R.indptr))), R.shape[0] - 1
    return list(dict.fromkeys((longest, 0, last)))


def _with_row(R: sparse.csr_array, slot: int, row: np.ndarray) -> Any:
    """Return the ratings with one row exchanged."""
    return sparse.vstack((R[:slot], as_rating_matrix(row[None]), R[slot + 1 :]), format="csr")


def _by_slot(releases: Any) -> dict[str, list[Any]]:
    """Return stated releases by planned name; a slot may have held another statistic."""
    slots: dict[str, list[Any]] = {}
    for release in releases:
        slots.setdefault(str(release.name).split(": ")[0], []).append(release)
    return slots


def _is_plan(spent: Any, planned: Any) -> bool:
    """Whether a statement has all slots of a plan, each as often and with as much noise."""
    counts: list[Counter[Any]] = [Counter(), Counter()]
    for count, releases in zip(counts, (spent.releases, planned.releases), strict=True):
        for name, own in _by_slot(releases).items():
            for one in own:
                noise = one.noise_multiplier if one.kind == "gaussian" else one.epsilon
                count[name, one.kind, noise] += one.count
    return bool(spent.epsilon == planned.epsilon) and counts[0] == counts[1]
