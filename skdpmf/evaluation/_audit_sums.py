"""What an audit does with sums that get noise, Gaussian or Laplace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from skdpmf.evaluation._audit_run import (
    ALARM,
    ROUNDING,
    AuditCheck,
    AuditRun,
    Pair,
    only_rows,
    slot_of,
)
from skdpmf.privacy.accounting import gaussian_epsilon

__all__ = ["Sums"]

_SAME = 1e-6  # of a sensitivity: float rounding


class Sums:
    """Releases that `NoiseSource` made: their moves between neighbours, and their noise.

    Parameters
    ----------
    run : AuditRun
        The audit.
    """

    def __init__(self, run: AuditRun) -> None:
        self.run = run
        self.worst: tuple[Any, Any] | None = None  # neighbours
        self.mu, self.pure = 0.0, 0.0  # that they attain, with Gaussian and Laplace noise
        self._strange = 0.0

    @staticmethod
    def plans(release: Any) -> bool:
        """Whether a planned release is one of these."""
        return release.kind == "gaussian" or release.is_laplace

    @staticmethod
    def made(records: Any) -> bool:
        """Whether a fit made any."""
        return bool(records)

    def first(self) -> list[AuditCheck]:
        """Check one fit."""
        return [self._plan(), *self._noise()]

    def compare(self, pair: Pair, before: Any, after: Any) -> float:
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
        name, ratio = max(self.run.ratios.items(), key=lambda item: item[1], default=("", 0.0))
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
        for release in filter(self.plans, self.run.spent.releases):
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


def _strangeness(before: Any, after: Any, own_before: Any, own_after: Any) -> float:
    """Return how far a release moves beyond what the row alone contributes, over sensitivity."""
    rest = (after.statistic - before.statistic) - (own_after.statistic - own_before.statistic)
    return float(np.abs(rest).max(initial=0.0) / before.sensitivity)
