"""What an audit does with devices' reports, in the local model."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from skdpmf.evaluation._audit_run import ALARM, AuditCheck, AuditRun, Pair
from skdpmf.evaluation.audit_estimates import attack_reports, report_reach, reports_epsilon

__all__ = ["Reports"]

_MECHANISMS = {"PrivUnitG", "sampled sign", "randomised response", "Laplace report"}
_REPORTS = 100  # for each run of attack 2, on either input


class Reports:
    """Reports of devices: what goes into each, from which row, how often, and its law.

    Parameters
    ----------
    run : AuditRun
        The audit.
    """

    def __init__(self, run: AuditRun) -> None:
        self.run = run
        self._strangers = 0  # inputs of other devices that moved
        self._moved = False  # who reports when, or with which key
        self._most, self._spent = 0, 0.0  # reports of one device, and their epsilons

    @staticmethod
    def plans(release: Any) -> bool:
        """Whether a planned release is one of these."""
        return release.kind == "pure" and release.mechanism in _MECHANISMS

    @staticmethod
    def made(records: Any) -> bool:
        """Whether a fit made any."""
        return bool(records.reports)

    def first(self) -> list[AuditCheck]:
        """Check one fit."""
        n = self.run.R.shape[0]
        planned: Counter[Any] = Counter()
        for release in filter(self.plans, self.run.spent.releases):
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

    def compare(self, pair: Pair, before: Any, after: Any) -> float:
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
        name, ratio = max(self.run.ratios.items(), key=lambda item: item[1], default=("", 0.0))
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
        counts = {r.mechanism: r.count for r in filter(self.plans, self.run.spent.releases)}
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
