"""What an audit does with draws from a posterior."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import sparse

from skdpmf.evaluation._audit_run import ALARM, ROUNDING, AuditCheck, AuditRun, Pair
from skdpmf.evaluation.audit_estimates import draw_epsilon, event_epsilon
from skdpmf.privacy import PrivacyBudget

__all__ = ["Draws"]

_MECHANISM = "posterior sample"
_STRESS_EPSILON = 0.25
_WIDE = 1000.0  # standard deviation of the stressed biases, in quarter ranges: far beyond the clip
_STRESS_SWEEPS = 20


class Draws:
    """Draws from a posterior: the density that is sampled, and draws of a stressed one.

    Parameters
    ----------
    run : AuditRun
        The audit.
    """

    def __init__(self, run: AuditRun) -> None:
        self.run = run
        self._needed = 0.0  # epsilon
        self._strange: set[str] = set()

    @staticmethod
    def plans(release: Any) -> bool:
        """Whether a planned release is one of these."""
        return release.kind == "pure" and release.mechanism == _MECHANISM

    @staticmethod
    def made(records: Any) -> bool:
        """Whether a fit made any."""
        return bool(records.draws)

    def first(self) -> list[AuditCheck]:
        """Check one fit."""
        planned = sorted((r.name, i) for r in self._planned() for i in range(r.count))
        made = sorted((r.name, r.index) for r in self.run.records.draws)
        text = f"{len(made)} draws made of {len(planned)} planned"
        return [AuditCheck("draws", made == planned, text)]

    def compare(self, pair: Pair, before: Any, after: Any) -> float:
        """Note what a row does to the density; return epsilon."""
        stated = {r.name: r.epsilon for r in self._planned()}
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
        name, ratio = max(self.run.ratios.items(), key=lambda item: item[1], default=("", 0.0))
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

    def _planned(self) -> list[Any]:
        return [release for release in self.run.spent.releases if self.plans(release)]


def _event(seen: np.ndarray) -> tuple[float, float]:
    """Return a cut, and the side of it, that separates two columns best."""
    values = np.sort(seen.ravel())
    cuts = (values[1:] + values[:-1]) / 2.0
    above = (seen[:, :, np.newaxis] > cuts).mean(axis=0)
    best = int(np.argmax(np.abs(above[0] - above[1])))
    return float(cuts[best]), 1.0 if above[0, best] >= above[1, best] else -1.0


def _strange(a: Any, b: Any, slot: int) -> set[str]:
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
