r"""Attacks on a private estimator's claim: what it releases, with which noise, and who shows.

The curator's tool: it reads exact statistics. Three attacks, none of which trusts the estimator:

1. **Record and replay.** All releases of a fit are recorded; then the fit is repeated on
   neighbouring data with every earlier outcome held fixed. No statistic may move farther than its
   declared sensitivity, nothing but releases may change, and the releases must be the plan's.
   (Re:cord-play, arXiv 2602.17454.)
2. **Gaussian audit.** With v the vector of all statistics' moves over their declared noise, |v| is
   the mu that this pair of neighbours attains, and the noise's projection on v is standard normal
   in every fit. Its sample variance over ``n_runs`` fits gives an upper confidence limit of the
   noise there is, hence a lower one of mu and of epsilon.
3. **Canaries.** Made-up users are in the data of one fit, each with probability 1/2. Whoever sees
   the model guesses which. With r guesses, v of them right, epsilon-DP allows at most
   P[Binomial(r, e^eps / (1 + e^eps)) >= v], up to delta. (Steinke, Nasr, Jagielski, NeurIPS 2023.)
   It needs no access to the inside, and certifies far less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy import sparse, stats
from sklearn.base import clone

from skdpmf.data import as_rating_matrix
from skdpmf.estimators._private import PrivateRecommender
from skdpmf.privacy import PrivacyBudget, record_releases
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.auditing import canary_epsilon
from skdpmf.privacy.noise import derived_key, initial_normals

__all__ = ["AuditCheck", "AuditReport", "audit"]

_ROUNDING = 1.0 + 1e-9
_ALARM = 1e-6  # false alarms of each statistical check
_SAME = 1e-6  # of a sensitivity: float rounding
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
class AuditReport:
    """What an audit found. For the curator: it was made from exact statistics.

    Parameters
    ----------
    estimator : str
        Class and parameters of the estimator.
    checks : tuple of AuditCheck
        In their order.
    epsilon, delta : float
        As claimed.
    epsilon_attained : float
        Epsilon at this delta that the worst neighbours found attain, by declared noise.
    epsilon_lower : float
        Lower confidence limit of it by the noise that was seen, attack 2; NaN if not run.
    epsilon_canaries : float
        Lower confidence limit by attack 3; NaN if not run.
    confidence : float
        Of both limits.
    ratios : dict
        Largest move over sensitivity of each release, by name.
    """

    estimator: str
    checks: tuple[AuditCheck, ...]
    epsilon: float
    delta: float
    epsilon_attained: float
    epsilon_lower: float
    epsilon_canaries: float
    confidence: float
    ratios: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no check found anything."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers.

        Returns
        -------
        dict
            Fields by name, and "passed".
        """
        return {"passed": self.passed, **asdict(self)}

    def __str__(self) -> str:
        verdict = "nothing found" if self.passed else "THE CLAIM DOES NOT HOLD"
        lines = [f"Privacy audit: {verdict}", "", self.estimator, ""]
        lines.append(f"claimed          epsilon {self.epsilon:.4g}, delta {self.delta:.4g}")
        sure = f"at least, {100 * self.confidence:g} % sure"
        for name, value, how in (
            ("neighbours reach", self.epsilon_attained, "by declared noise"),
            ("in repeated fits", self.epsilon_lower, sure),
            ("by canaries", self.epsilon_canaries, sure),
        ):
            if not math.isnan(value):
                lines.append(f"{name:<16} epsilon {value:.4g} ({how})")
        lines.append("")
        for check in self.checks:
            lines.append(f"[{'ok' if check.passed else 'FAILED'}] {check.name}: {check.finding}")
        return "\n".join(lines)


def audit(
    estimator: PrivateRecommender,
    X: Any,
    *,
    n_neighbors: int = 24,
    n_runs: int = 0,
    n_canaries: int = 0,
    confidence: float = 0.95,
    random_state: int = 0,
) -> AuditReport:
    """Attack a private estimator's claim on given ratings.

    Parameters
    ----------
    estimator : estimator
        With a finite budget; not fitted, and not changed. No ledger is charged.
    X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
        Ratings. At most 400 rows of them are used for attacks 1 and 2.
    n_neighbors : int, default=24
        Neighbours tried in attack 1, at least 8. Each takes a fit.
    n_runs : int, default=0
        Fits of attack 2, each with a repetition; 100 find noise that is too small by sqrt(2). 0
        leaves it out.
    n_canaries : int, default=0
        Canaries of attack 3; 0 leaves it out.
    confidence : float, default=0.95
        Of the lower limits.
    random_state : int, default=0
        Which neighbours and canaries; never the noise, which is fresh.

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
    _check(estimator, n_neighbors, n_runs, n_canaries, confidence)
    run = _Audit(estimator, X, random_state)
    checks = run.replay(n_neighbors)
    lower = canaries = math.nan
    if n_runs and run.worst is not None:
        check, lower = run.gaussian(n_runs, confidence)
        checks.append(check)
    if n_canaries:
        check, canaries = run.canaries(n_canaries, confidence)
        checks.append(check)
    spent = run.model.privacy_spent_
    return AuditReport(
        estimator=repr(estimator),
        checks=tuple(checks),
        epsilon=spent.epsilon,
        delta=spent.delta,
        epsilon_attained=run.attained(),
        epsilon_lower=lower,
        epsilon_canaries=canaries,
        confidence=float(confidence),
        ratios=run.ratios,
    )


def _check(estimator: Any, n_neighbors: Any, n_runs: Any, n_canaries: Any, sure: Any) -> None:
    budget = getattr(estimator, "budget", None)
    if not isinstance(budget, PrivacyBudget) or not budget.is_private:
        raise ValueError(
            f"estimator={estimator!r} must have a budget with a finite epsilon: there is no claim "
            "to attack. Pass a private estimator."
        )
    for name, value, least in (
        ("n_neighbors", n_neighbors, 8),
        ("n_runs", n_runs, 0),
        ("n_canaries", n_canaries, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} must be an integer >= {least}: use the default.")
    if not 0.5 <= sure < 1.0:
        raise ValueError(f"confidence={sure!r} must be in [0.5, 1): use 0.95.")


class _Audit:
    def __init__(self, estimator: Any, X: Any, random_state: int) -> None:
        params = {**estimator.budget.get_params(), "ledger": None}
        self.estimator = clone(estimator).set_params(
            budget=PrivacyBudget(**params), random_state=None
        )
        R = as_rating_matrix(X, rating_range=estimator.rating_range)
        self.everybody, self.R = R, _some_rows(R)
        self.key = derived_key(random_state, "audit")
        self.low, self.high = (float(end) for end in estimator.rating_range)
        self.ratios: dict[str, float] = {}
        self.worst: tuple[Any, Any] | None = None  # neighbours
        self.mu, self.pure = 0.0, 0.0  # that they attain, with Gaussian and Laplace noise
        self.model, self.records = self.fit(self.R)

    def fit(self, R: Any, replay: Any = None) -> tuple[Any, Any]:
        with record_releases(replay) as records:
            model = clone(self.estimator).fit(R)
        return model, records

    # -- attack 1 ----------------------------------------------------------------------------------

    def replay(self, n_neighbors: int) -> list[AuditCheck]:
        if not self.records:
            text = "the releases are no sums with noise, and cannot be replayed: try canaries."
            return [self._statement(), AuditCheck("record and replay", True, text)]
        checks = [self._statement(), self._plan(), *self._noise()]
        others: set[str] = set()
        strange = 0.0
        for without, with_, slot in self._neighbors(n_neighbors):
            base, before = self.fit(without, self.records)
            model, after = self.fit(with_, self.records)
            others |= _differences(base, model)
            self._compare(without, with_, before, after)
            alone = [self.fit(_only(R, slot), self.records)[1] for R in (without, with_)]
            strange = max(strange, *map(_strangeness, before, after, *alone))
        name, ratio = max(self.ratios.items(), key=lambda item: item[1])
        text = f"{name} moves by {ratio:.3f} of its declared sensitivity at most"
        checks.append(AuditCheck("sensitivities", ratio <= _ROUNDING, text))
        text = f"others' contributions to a release move by {strange:.2g} of its sensitivity"
        checks.append(AuditCheck("users are on their own", strange <= _SAME, text))
        text = "all that differs between neighbours, releases being equal: "
        text += ", ".join(sorted(others)) or "nothing"
        checks.append(AuditCheck("nothing else is released", not others, text))
        return checks

    def _compare(self, without: Any, with_: Any, before: Any, after: Any) -> None:
        """Note the largest moves, of single releases and of all together."""
        squares = pure = 0.0
        for a, b in zip(before, after, strict=True):
            ratio = a.distance(b) / a.sensitivity
            self.ratios[a.name] = max(self.ratios.get(a.name, 0.0), ratio)
            if a.noise == "laplace":
                pure += _over(a.distance(b), a.noise_scale)
            else:
                squares += _over(a.distance(b), a.noise_scale) ** 2
        if squares > self.mu**2 or pure > self.pure:
            self.worst = without, with_
        self.mu, self.pure = max(self.mu, math.sqrt(squares)), max(self.pure, pure)

    def _neighbors(self, n: int) -> Iterator[tuple[Any, Any, int]]:
        """Yield pairs of neighbours, and the row in which they differ."""
        budget, m = self.estimator.budget, self.R.shape[1]
        rows = self._rows(n)
        slot = int(np.argmax(np.diff(self.R.indptr)))
        for i, row in enumerate(rows):
            other = np.full(m, np.nan)
            if budget.unit == "rating":
                known = np.flatnonzero(~np.isnan(row))
                cell = known[i % known.size] if known.size else i % m
                other = row.copy()
                other[cell] = np.nan
                if budget.neighbors == "replace":
                    other[cell] = self.low + self.high - row[cell] if known.size else self.low
                    row = row if known.size else np.where(np.arange(m) == cell, self.high, np.nan)
            elif budget.neighbors == "replace":
                other = rows[(7 * i + 3) % len(rows)]
            yield _with_row(self.R, slot, other), _with_row(self.R, slot, row), slot

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
        return rows

    # -- what one fit shows ------------------------------------------------------------------------

    def _statement(self) -> AuditCheck:
        spent, budget = self.model.privacy_spent_, self.estimator.budget
        planned = self.model.plan(self.R.shape[1], self.R.shape[0])
        same = spent.releases == planned.releases and spent.epsilon == planned.epsilon
        within = spent.epsilon <= budget.epsilon and spent.delta <= budget.delta
        text = f"states epsilon {spent.epsilon:.4g} of {budget.epsilon:.4g}"
        text += ", as planned" if same else ", which is NOT its plan"
        return AuditCheck("statement", bool(same and within), text)

    def _plan(self) -> AuditCheck:
        planned = {r.name: r for r in self.model.privacy_spent_.releases}
        expected = sorted((r.name, i) for r in planned.values() for i in range(r.count))
        made = sorted((r.name, r.index) for r in self.records)
        if made != expected:
            missing = set(expected) ^ set(made)
            text = f"planned and made differ in {sorted(missing)[:5]}"
            return AuditCheck("releases", False, text)
        for record in self.records:
            least = record.noise_multiplier * record.sensitivity
            stated = planned[record.name].noise_multiplier
            if not (record.noise_multiplier >= stated and record.noise_scale >= least):
                return AuditCheck("releases", False, f"less noise than stated: {record}")
        return AuditCheck("releases", True, f"{len(made)}, with the noise that was planned")

    def _noise(self) -> Iterator[AuditCheck]:
        """Check that every value has its noise, of the right size, and its own."""
        noises = [(record.name, standard_noise(record)) for record in self.records]
        parts = [z for _, z in noises]
        several = {"all releases": parts}
        for name, z in noises:
            several.setdefault(name, []).append(z)
        worst, chance = "", 1.0
        for name, some in several.items():
            z = np.concatenate(some)
            if (z == 0.0).any():
                worst, chance = f"{name} has values without noise", 0.0
                break
            below = float(stats.chi2.cdf(z @ z, z.size))
            if 2.0 * min(below, 1.0 - below) < chance:
                chance = 2.0 * min(below, 1.0 - below)
                worst = f"{name}: variance {z @ z / z.size:.3f} of what is declared"
        yield AuditCheck("size of the noise", chance > _ALARM, f"{worst} (p = {chance:.2g})")
        chance = 1.0
        for i, one in enumerate(parts):
            for other in parts[:i]:
                size = min(one.size, other.size)
                if size > 3 and one[:size].std() > 0.0 and other[:size].std() > 0.0:
                    chance = min(chance, float(stats.pearsonr(one[:size], other[:size]).pvalue))
        pairs = max(len(parts) * (len(parts) - 1) // 2, 1)
        text = f"smallest p of {pairs} correlations: {chance:.2g}"
        yield AuditCheck("noise is fresh", chance > _ALARM / pairs, text)

    # -- attack 2 ----------------------------------------------------------------------------------

    def gaussian(self, n_runs: int, confidence: float) -> tuple[AuditCheck, float]:
        """Return whether the noise along the worst change is as declared, and a lower limit."""
        assert self.worst is not None
        without, with_ = self.worst
        projections, moves = np.empty(n_runs), np.empty(n_runs)
        squares: dict[str, np.ndarray] = {}
        for run in range(n_runs):
            _, before = self.fit(without)
            _, after = self.fit(with_, before)
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
        check = AuditCheck("noise in repeated fits", chances[name] > _ALARM, text)
        mu = float(np.median(moves)) / max(largest, 1e-300)
        return check, self._epsilon_of(mu)

    def attained(self) -> float:
        """Return the epsilon that the worst neighbours attain, at the stated delta."""
        if self.model.privacy_spent_.delta == 0.0:
            return self.pure or math.nan
        return self._epsilon_of(self.mu) if self.records else math.nan

    def _epsilon_of(self, mu: float) -> float:
        delta = self.model.privacy_spent_.delta
        if delta == 0.0:  # a variance says nothing about pure epsilon
            return math.nan
        return gaussian_epsilon(mu, delta)

    # -- attack 3 ----------------------------------------------------------------------------------

    def canaries(self, n: int, confidence: float) -> tuple[AuditCheck, float]:
        """Return whether guesses from one model contradict the claim, and a lower limit."""
        m = self.everybody.shape[1]
        normal = initial_normals(self.key, (n, m), "canaries")
        inside = initial_normals(self.key, (n,), "inside") > 0
        known = initial_normals(self.key, (n, m), "known") > 0
        values = np.where(normal > 0, self.high, self.low)
        member = known & inside[:, None]
        mask = sparse.csr_array(member)
        arrays = values[member], mask.indices, mask.indptr
        extra = sparse.csr_array(arrays, shape=mask.shape)
        model = clone(self.estimator).fit(sparse.vstack((self.everybody, extra), format="csr"))
        # a canary in the data has drawn the model towards its ratings: predict half from half
        centre, agreement = (self.low + self.high) / 2.0, np.zeros(n)
        for half in (0, 1):
            told = known & (np.arange(m) % 2 == half)
            asked = sparse.csr_array(known & ~told)
            rows = sparse.csr_array(told)
            own = sparse.csr_array((values[told], rows.indices, rows.indptr), shape=told.shape)
            predicted = model.predict_entries(own, asked).toarray() - centre
            agreement += np.sum(predicted * (values - centre) * asked.toarray(), axis=1)
        order = np.argsort(agreement)
        guessed = max(n // 4, 1)
        right = int(inside[order[-guessed:]].sum() + (~inside[order[:guessed]]).sum())
        spent = self.model.privacy_spent_
        limit = canary_epsilon(right, 2 * guessed, n, spent.delta, confidence)
        text = f"{right} of {2 * guessed} guesses right, epsilon at least {limit:.3g}"
        return AuditCheck("canaries", limit <= spent.epsilon, text), limit


def standard_noise(record: Any) -> np.ndarray:
    """Return the noise of a release, standard normal if it is what was declared."""
    if record.noise_scale == 0.0:
        return np.zeros(record.statistic.size)
    z = (record.output - record.statistic) / record.noise_scale
    if record.noise == "laplace":
        z = np.sign(z) * stats.norm.isf(0.5 * np.exp(-np.abs(z)))
    return np.asarray(_unpacked(z, record.layout))


def _standard(record: Any, other: Any) -> np.ndarray:
    """Return the difference of two statistics over the noise's scale."""
    difference = (record.statistic - other.statistic) / (record.noise_scale or 1e-300)
    return np.asarray(_unpacked(difference, record.layout))


def _over(distance: float, scale: float) -> float:
    if scale == 0.0:
        return math.inf if distance > 0.0 else 0.0
    return distance / scale


def _unpacked(values: np.ndarray, layout: str) -> np.ndarray:
    """Flatten; entries off the diagonal of a packed triangle count twice."""
    if layout == "packed":
        d = int(np.sqrt(2 * values.shape[-1]))
        rows, columns = np.tril_indices(d)
        values = np.where(rows == columns, values, math.sqrt(2.0) * values)
    return values.ravel()


def _differences(model: Any, other: Any) -> set[str]:
    """Return the names of fitted attributes that differ; private ones and diagnostics excepted."""
    found = set()
    for name, value in vars(model).items():
        if not name.endswith("_") or name.startswith(("_", "nonprivate")):
            continue
        theirs = getattr(other, name)
        if isinstance(value, np.ndarray):
            same = value.shape == theirs.shape and value.tobytes() == theirs.tobytes()
        else:
            same = repr(value) == repr(theirs)
        if not same:
            found.add(name)
    return found


def _strangeness(before: Any, after: Any, own_before: Any, own_after: Any) -> float:
    """Return how far a release moves beyond what the row alone contributes, over sensitivity."""
    rest = (after.statistic - before.statistic) - (own_after.statistic - own_before.statistic)
    return float(np.abs(rest).max(initial=0.0) / before.sensitivity)


def _only(R: Any, slot: int) -> Any:
    """Return the ratings of one row, all others empty."""
    n = np.zeros(R.shape[0], R.indptr.dtype)
    n[slot] = R.indptr[slot + 1] - R.indptr[slot]
    own = slice(R.indptr[slot], R.indptr[slot + 1])
    indptr = np.concatenate(([0], np.cumsum(n))).astype(R.indptr.dtype)
    return sparse.csr_array((R.data[own], R.indices[own], indptr), shape=R.shape)


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
