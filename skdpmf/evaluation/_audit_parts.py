"""What an audit does with what leaves a fit: sums with noise, reports and draws; and canaries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats
from sklearn.base import clone

from skdpmf.evaluation._audit_run import (
    ALARM,
    ROUNDING,
    AuditCheck,
    AuditRun,
    Pair,
    only_rows,
    slot_of,
)
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
from skdpmf.privacy.recording import DrawRecord, Recording, ReleaseRecord
from skdpmf.privacy.sampler.noise import initial_normals

__all__ = ["Draws", "Reports", "Sums", "guess_members"]

_SAME = 1e-6  # of a sensitivity: float rounding
_REPORTS = 100  # for each run of attack 2, on either input
_STRESS_EPSILON = 0.25
_WIDE = 1000.0  # standard deviation of the stressed biases, in quarter ranges: far beyond the clip
_STRESS_SWEEPS = 20
_VERDICT = 0.9995  # guesses are few: 1e-6 would want too many of them


class _Part:
    """One kind of what leaves a fit, in an audit.

    `first` checks one fit, `compare` notes what changes between neighbours and returns epsilon,
    `found` returns checks of what the comparisons found, `attained` the epsilon that the worst
    neighbours attain, and `repeated` checks of repeated fits with a lower limit of epsilon.
    """

    mechanisms: ClassVar[set[str]] = set()

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


class Sums(_Part):
    """Releases that `NoiseSource` made: their moves between neighbours, and their noise."""

    def __init__(self, run: AuditRun) -> None:
        super().__init__(run)
        self.worst: tuple[Any, Any] | None = None  # neighbours
        self.mu, self.pure = 0.0, 0.0  # that they attain, with Gaussian and Laplace noise
        self._strange = 0.0

    @classmethod
    def plans(cls, release: Any) -> bool:
        """Whether a planned release is one of these."""
        return release.kind == "gaussian" or release.is_laplace

    @staticmethod
    def made(records: Recording) -> bool:
        """Whether a fit made any."""
        return bool(records)

    def first(self) -> list[AuditCheck]:
        """Check one fit."""
        return [self._plan(), *self._noise()]

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
        alone = [pair.fit(only_rows(R, pair.slots))[1] for R in (pair.without, pair.with_)]
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

    def attained(self) -> float:
        """Return the epsilon that the worst neighbours attain, at the stated delta."""
        return self._epsilon_of(self.mu) if self.run.spent.delta else self.pure

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
        planned: dict[str, list[Any]] = {}
        for release in self.planned():
            planned.setdefault(slot_of(release), []).append(release)
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

    def _noise(self) -> Iterator[AuditCheck]:
        """Check that every value has its noise, of the right size, and its own."""
        noises = [(record.name, standard_noise(record)) for record in self.run.records]
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
    return np.asarray(_unpacked(z, record.layout))


def _standard(record: ReleaseRecord, other: ReleaseRecord) -> NDArray[np.float64]:
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


def _strangeness(
    before: ReleaseRecord, after: ReleaseRecord, own_before: ReleaseRecord, own_after: ReleaseRecord
) -> float:
    """Return how far a release moves beyond what the row alone contributes, over sensitivity."""
    rest = (after.statistic - before.statistic) - (own_after.statistic - own_before.statistic)
    return float(np.abs(rest).max(initial=0.0) / before.sensitivity)


class Reports(_Part):
    """Reports of devices: what goes into each, from which row, how often, and its law."""

    mechanisms: ClassVar[set[str]] = {
        *("PrivUnitG", "sampled sign", "randomised response", "Laplace report")
    }

    def __init__(self, run: AuditRun) -> None:
        super().__init__(run)
        self._strangers = 0  # inputs of other devices that moved
        self._moved = False  # who reports when, or with which key
        self._most, self._spent = 0, 0.0  # reports of one device, and their epsilons

    @staticmethod
    def made(records: Recording) -> bool:
        """Whether a fit made any."""
        return bool(records.reports)

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
        self._spent = max(self._spent, spent)
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
                bool(self._spent <= claimed * (1.0 + ALARM)),
                f"at most {self._most} of a kind, of epsilon {self._spent:.4g} together",
            ),
        ]

    def attained(self) -> float:
        """Return the epsilon of all reports that a row went into, as declared."""
        return self._spent

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


class Draws(_Part):
    """Draws from a posterior: the density that is sampled, and draws of a stressed one."""

    mechanisms: ClassVar[set[str]] = {"posterior sample"}

    def __init__(self, run: AuditRun) -> None:
        super().__init__(run)
        self._needed = 0.0  # epsilon
        self._strange: set[str] = set()

    @staticmethod
    def made(records: Recording) -> bool:
        """Whether a fit made any."""
        return bool(records.draws)

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
        self._needed = max(self._needed, total)
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

    def attained(self) -> float:
        """Return the epsilon that the worst neighbours need."""
        return self._needed

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

    run: the audit; n: canaries. Returns check: its verdict has a confidence of its own; limit: of
    epsilon, at the stated delta.
    """
    m = run.everybody.shape[1]
    normal = initial_normals(run.key, (n, m), "canaries")
    inside = initial_normals(run.key, (n,), "inside") > 0
    known = initial_normals(run.key, (n, m), "known") > 0
    values = np.where(normal > 0, run.high, run.low)
    model = clone(run.estimator).fit(
        sparse.vstack((run.everybody, _rows(values, known & inside[:, None])), format="csr")
    )
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
