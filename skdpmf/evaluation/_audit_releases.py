"""What leaves a fit, in an audit: how far a neighbour moves it, and what repetition shows of it.

Three kinds of things leave a fit: sums with noise, reports of devices, and draws from a posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats
from scipy.special import logsumexp, ndtr

from skdpmf.data.validation import as_rating_matrix
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.device_reports.randomizers import DeviceStreams
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.frame import with_rows
from skdpmf.privacy.recording import DrawRecord, Recording, ReleaseRecord, ReportRecord
from skdpmf.privacy.sampler.streams import derived_key, initial_normals

ALARM = 1e-6  # false alarms of each statistical check
_SAME = 1e-6  # of a sensitivity: float rounding
_REPORTS = 100  # for each run of the attack, on either input
_FAR = 1e6  # beyond every clip
_PARTS = "indptr", "indices", "data"
_POINTS = 64  # of the users' factors, each with its opposite


@dataclass(frozen=True)
class AuditCheck:
    """One check of an audit."""

    name: str
    passed: bool  # nothing was found
    finding: str  # in words


# -- replay: what one neighbour moves --------------------------------------------------------------


def move_of(
    before: Recording, after: Recording, alone: Any, slots: tuple[int, ...], n_rows: int, spent: Any
) -> tuple[float, dict[str, float], set[str]]:
    """Return what a neighbour moves, all that left before being held fixed.

    That is: the epsilon that it attains, by what is declared; by name, the move over what is
    declared; and what moves beside its own part.

    before, after: of the fits of neighbouring data; alone: the sums of their differing rows alone;
    slots: these rows, of so many; spent: the statement. Raises ValueError if the fits made other
    releases.
    """
    ratios: dict[str, float] = {}
    strange: set[str] = set()
    squares = epsilon = 0.0

    def note(name: str, ratio: float) -> None:
        ratios[name] = max(ratios.get(name, 0.0), math.inf if math.isnan(ratio) else ratio)

    for a, b, own_a, own_b in zip(before, after, *alone, strict=True):
        distance = a.distance(b)
        note(a.name, distance / a.sensitivity)
        over = distance / a.noise_scale if a.noise_scale else math.inf if distance else 0.0
        if a.noise == "laplace":
            epsilon += over
        else:
            squares += over**2
        rest = (b.statistic - a.statistic) - (own_b.statistic - own_a.statistic)
        if not np.abs(rest).max(initial=0.0) <= _SAME * a.sensitivity:
            strange.add(f"others' part of {a.name}")
    for one, other in zip(before.reports, after.reports, strict=True):
        if not np.array_equal(one.keys, other.keys):
            strange.add("who reports when")
            continue
        rows = _changed(one.inputs, other.inputs)
        if rows.size > len(slots) or (len(one.keys) == n_rows and not np.isin(rows, slots).all()):
            strange.add(f"other devices' {one.mechanism}")
        note(one.mechanism, _reach_of(one, other))
        epsilon += one.randomiser.epsilon * rows.size
    stated = {one.name: one.epsilon for one in spent.releases if one.kind == "pure"}
    for draw, again in zip(before.draws, after.draws, strict=True):
        # Theorem 2: a g, and twice that for "replace"
        factor = 2.0 if spent.neighbors == "replace" else 1.0
        needed = factor * max(_largest_loss(record, slots[0]) for record in (draw, again))
        note(draw.name, needed / stated.get(draw.name, math.inf))
        epsilon += needed
        strange |= _strange(draw, again, slots[0])
    return epsilon + gaussian_epsilon(math.sqrt(squares), spent.delta), ratios, strange


def _reach_of(record: ReportRecord, other: ReportRecord) -> float:
    """Return how far inputs go over what epsilon covers.

    For `PrivUnit` it is the length of a vector, for `CoordinateSampling` the magnitude of a value.
    """
    x, y = record.inputs, other.inputs
    if isinstance(record.randomiser, PrivUnit):
        squares = [np.asarray(z.multiply(z).sum(axis=1)).max(initial=0.0) for z in (x, y)]
        # `PrivUnit` covers what rounding leaves of it
        return float(np.sqrt(np.max(squares))) / (1.0 + 1e-11)
    return float(np.max(np.abs([x, y]), initial=0.0))


def _changed(x: Any, y: Any) -> NDArray[np.int64]:
    """Return the rows in which inputs differ."""
    if x.shape != y.shape:
        return np.arange(max(x.shape[0], y.shape[0]))
    if isinstance(x, np.ndarray):
        return np.flatnonzero(~((x == y) | (np.isnan(x) & np.isnan(y))).all(axis=1))
    return np.unique((x != y).nonzero()[0])


def _largest_loss(record: DrawRecord, slot: int) -> float:
    r"""Return the largest a g over points V that are tried.

    g = -(1/a) ln E[exp(-a f(u, V))] over the prior of the user's factors u. Draws of u and their
    opposites have the symmetry that the proof needs, so that no honest loss exceeds its bound. V is
    far off: predictions are at either end of their range for all items, or for half of them. The
    arithmetic here is its own, and shares nothing with the samplers.
    """
    start, stop = record.targets.indptr[slot : slot + 2]
    e, w = record.targets.data[start:stop], float(record.weights[slot])
    half = initial_normals(derived_key(0, "audit"), (_POINTS, 1), "users' factors")
    u = np.concatenate((half, -half))
    sign, odd = np.where(e < 0.0, -1.0, 1.0), np.where(np.arange(e.size) % 2, -1.0, 1.0)
    biases = [np.zeros(e.size)] + [-_FAR * sign] * (record.stds[2] > 0.0)
    largest = 0.0
    for v in (sign, sign * odd, odd, np.ones(e.size), np.zeros(e.size)):
        for b in biases:
            p = np.clip(u * (_FAR**2 * v) + b, -record.clip, record.clip)
            loss = record.inverse_temperature * w * np.sum((e - p) ** 2, axis=1)
            largest = max(largest, math.log(loss.size) - float(logsumexp(-loss)))
    return largest


def _strange(a: DrawRecord, b: DrawRecord, slot: int) -> set[str]:
    """Return what differs in two densities beside one user's own terms."""
    scalars = "inverse_temperature", "clip", "stds"
    found = {f"a density's {name}" for name in scalars if getattr(a, name) != getattr(b, name)}
    own = np.arange(a.weights.size) == slot
    one, other = (with_rows(record.targets, ~own) for record in (a, b))
    same = np.array_equal(a.weights[~own], b.weights[~own])
    if not (same and all(np.array_equal(getattr(one, n), getattr(other, n)) for n in _PARTS)):
        found.add("others' part of a density")
    return found


# -- the noise of sums -----------------------------------------------------------------------------


def size_of_noise(records: Iterable[ReleaseRecord], name: str) -> AuditCheck:
    """Check that every value has noise, of the size that is declared, by release and in all."""
    found: dict[str, NDArray[np.float64]] = {}
    for record in records:
        z = _standard_noise(record)
        if not z.all():
            return AuditCheck(name, False, f"{record.name} has values without noise")
        for release in ("all releases", record.name):
            found[release] = found.get(release, 0.0) + np.array([z @ z, z.size])
    worst, chance = "", 1.0
    for release, (square, size) in found.items():
        below = float(stats.chi2.cdf(square, max(size, 1)))
        if size and 2.0 * min(below, 1.0 - below) < chance:
            chance = 2.0 * min(below, 1.0 - below)
            worst = f"{release}: variance {square / size:.3f} of what is declared"
    return AuditCheck(name, chance > ALARM, f"{worst} (p = {chance:.2g})")


def noise_is_fresh(records: Iterable[ReleaseRecord]) -> AuditCheck:
    """Check that no two releases have the same noise."""
    parts, chance = [_standard_noise(record) for record in records], 1.0
    for two in combinations(parts, 2):
        one, other = (part[: min(z.size for z in two)] for part in two)
        if one.size > 3 and one.std() > 0.0 and other.std() > 0.0:
            chance = min(chance, float(stats.pearsonr(one, other).pvalue))
    pairs = max(len(parts) * (len(parts) - 1) // 2, 1)
    text = f"smallest p of {pairs} correlations: {chance:.2g}"
    return AuditCheck("noise is fresh", chance > ALARM / pairs, text)


def _standard_noise(record: ReleaseRecord) -> NDArray[np.float64]:
    """Return the noise of a release, standard normal if it is what was declared."""
    z = _in_noise(record, record.output)
    if record.noise == "laplace":
        z = np.sign(z) * stats.norm.isf(0.5 * np.exp(-np.abs(z)))
    return z


def _in_noise(record: ReleaseRecord, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values less the statistic, over the noise's scale, flat.

    Entries off the diagonal of a packed triangle count twice.
    """
    z = (values - record.statistic) / (record.noise_scale or 1e-300)
    if record.layout == "packed":
        rows, columns = np.tril_indices(int(np.sqrt(2 * z.shape[-1])))
        z = np.where(rows == columns, z, math.sqrt(2.0) * z)
    return np.asarray(z.ravel())


# -- repetition ------------------------------------------------------------------------------------


def attack_sums(
    fit: Callable[..., Any], worst: tuple[Any, Any], delta: float, n_runs: int, confidence: float
) -> tuple[AuditCheck, float]:
    """Return whether noise has its size in repeated fits, and a lower limit of epsilon.

    fit: returns a model and a recording of ratings, and replays one; worst: neighbouring ratings.
    The noise's projection on the move is standard normal in every fit.
    """
    projections, moves = np.empty(n_runs), np.empty(n_runs)

    def releases() -> Iterator[ReleaseRecord]:
        for run in range(n_runs):
            _, before = fit(worst[0])
            _, after = fit(worst[1], before)
            both = list(zip(before, after, strict=True))
            along = np.concatenate([_in_noise(a, b.statistic) for a, b in both])
            noise = np.concatenate([_standard_noise(a) for a, _ in both])
            moves[run] = np.linalg.norm(along)
            projections[run] = along @ noise / max(moves[run], 1e-300)
            yield from before

    check = size_of_noise(releases(), "noise in repeated fits")
    if delta == 0.0:  # a variance says nothing about pure epsilon
        return check, math.nan
    deviation = math.sqrt(projections @ projections / stats.chi2.ppf(1.0 - confidence, n_runs))
    return check, gaussian_epsilon(float(np.median(moves)) / max(deviation, 1e-300), delta)


def event_epsilon(n_first: int, n_second: int, n_runs: int, confidence: float) -> float:
    r"""Return a lower confidence limit of epsilon from an event on either of two neighbours.

    A pure epsilon is at least log(P / P'), P and P' the event's probabilities. They are bounded by
    Clopper and Pearson's limits, each with half of the error. n_first, n_second: runs in which the
    event was seen, on the one and on the other; n_runs: runs on each. Result: at least 0.

    Examples
    --------
    >>> round(event_epsilon(950, 50, 1000, 0.95), 2)
    2.66
    """
    level = (1.0 - confidence) / 2.0
    if n_first == 0:
        return 0.0
    low = float(stats.beta.ppf(level, n_first, n_runs - n_first + 1))
    high = 1.0
    if n_second < n_runs:
        high = float(stats.beta.ppf(1.0 - level, n_second + 1, n_runs - n_second))
    return max(0.0, math.log(low / high))


def attack_reports(
    records: Iterable[ReportRecord], releases: Iterable[Any], n_runs: int, confidence: float
) -> tuple[AuditCheck, float]:
    """Return whether an event in reports is as likely as stated, and a lower limit of epsilon.

    Each kind of report is drawn for the two inputs that are farthest apart; the odds of the event
    differ by exactly its epsilon. records: of a fit; releases: that were stated.
    """
    both_of = ((record.mechanism, record.randomiser) for record in records)
    kinds = {(name, r.epsilon, vars(r).get("dimension")): r for name, r in both_of}
    counts = {release.mechanism: release.count for release in releases}
    chance, worst = 1.0, ""
    limits: dict[str, float] = {}
    for (mechanism, stated, _), randomiser in kinds.items():
        n = n_runs * _REPORTS
        seen, p = _events(randomiser, n)
        both = zip(seen, (p, p * math.exp(-stated)), strict=True)
        found = min(float(stats.binomtest(count, n, one).pvalue) for count, one in both)
        if found <= chance:
            chance, worst = found, f"{mechanism} at epsilon {stated:.4g}"
        limit = event_epsilon(*seen, n, 1.0 - (1.0 - confidence) / len(kinds))
        limits[mechanism] = max(limits.get(mechanism, 0.0), limit)
    total = sum(limit * counts.get(mechanism, 0) for mechanism, limit in limits.items())
    passed = chance > ALARM / (2 * max(len(kinds), 1))
    return AuditCheck("law of the reports", passed, f"{worst}: p = {chance:.2g}"), total


def _events(randomiser: Any, n_reports: int) -> tuple[tuple[int, int], float]:
    """Return how often an event is seen for either input, and p.

    p: what it should be for the first input; for the other it is less by the factor of epsilon.
    Inputs are three times too large, so that a device that does not bound them shows.
    """
    streams = DeviceStreams()
    sides = [(streams.keys("audit", i, n_reports), x) for i, x in enumerate((3.0, -3.0))]
    if isinstance(randomiser, PrivUnit):
        t, scale = randomiser.parameters.t, 2.0**-randomiser.parameters.bits
        tail = math.exp(randomiser.epsilon) * float(ndtr(-t))
        p = tail / (float(ndtr(t)) + tail)
        reports = ([scale * randomiser.report(k, [0], [x])[0] for k in keys] for keys, x in sides)
    else:
        t, p = np.nextafter(0.0, 1.0), 1.0 / (1.0 + math.exp(-randomiser.epsilon))
        reports = (randomiser.report(keys, np.full(n_reports, x)) for keys, x in sides)
    first, second = (int((np.asarray(own) >= t).sum()) for own in reports)
    return (first, second), p


def attack_draws(
    fit: Callable[..., Any], row: NDArray[np.float64], n_runs: int, confidence: float
) -> tuple[float, float]:
    """Return lower limits of epsilon by draws for a user and for none: one, and one that is sure.

    fit: returns a model and a recording; row (n_items,): the user's ratings. The event is that
    drawn items are large, or small: a quarter of the draws chooses it, the others count it.
    """
    one = as_rating_matrix(row[None])

    def size(R: Any) -> float:
        biases, factors = fit(R)[1].draws[0].output
        return float(np.log(np.square(biases).sum() + np.square(factors).sum()))

    seen = np.array([[size(R) for R in (sparse.csr_array(one.shape), one)] for _ in range(n_runs)])
    first, rest = np.split(seen, [max(n_runs // 4, 1)])
    values = np.sort(first.ravel())
    cuts = (values[1:] + values[:-1]) / 2.0
    above = (first[:, :, np.newaxis] > cuts).mean(axis=0)
    best = int(np.argmax(np.abs(above[0] - above[1])))
    sign = 1.0 if above[0, best] >= above[1, best] else -1.0
    one_seen, two_seen = (sign * (rest - cuts[best]) > 0.0).sum(axis=0).tolist()
    both = (one_seen, two_seen), (two_seen, one_seen)
    usual, surely = (
        max(event_epsilon(p, q, len(rest), 1.0 - level / 2.0) for p, q in both)
        for level in (1.0 - confidence, ALARM)
    )
    return usual, surely
