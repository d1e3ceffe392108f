"""What a fit will take: memory, traffic and time, from trial fits on synthetic ratings."""

import tracemalloc
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import clone

from skdpmf.data.synthetic import make_ratings
from skdpmf.distributed._exchange import Alone
from skdpmf.estimators._blocks import BLOCK_RATINGS
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.noise import BlockRelease, NoiseSource
from skdpmf.privacy.plan import ReleasePlan

__all__ = ["FitResources", "estimate_resources"]

_TRIALS = 40_000, 160_000  # ratings of the trial fits
_MUCH = 50.0  # epsilon of theirs: all factors are in use
_PROCESS = 0.30 * 2**30  # bytes of a process without ratings: Python, libraries, compiled code
_LATENCY = 0.10  # seconds of a request: tasks of a joblib backend go out and come back


@dataclass(frozen=True)
class FitResources:
    """Estimates for a fit whose blocks of users are spread over workers.

    Attributes
    ----------
    n_workers : int
        Worker processes of one thread each.
    memory : float
        Bytes of each worker.
    n_requests : int
        Times that all workers hand in their sums and get what was released.
    bytes_up : float
        Most bytes that a worker sends at a request. It gets as many back at the next.
    bytes_in_all : float
        Bytes that the coordinator receives from all workers in all requests; it sends as many.
    seconds : float
        Of the whole fit, reading the ratings apart.
    """

    n_workers: int
    memory: float
    n_requests: int
    bytes_up: float
    bytes_in_all: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.n_workers} workers of {_bytes(self.memory)} each; {self.n_requests} requests "
            f"of at most {_bytes(self.bytes_up)} a worker, {_bytes(self.bytes_in_all)} in all; "
            f"about {_time(self.seconds)}"
        )


def estimate_resources(
    estimator: Any, plan: ReleasePlan, n_items: int, n_rows: int, n_ratings: int, n_workers: int
) -> FitResources:
    """Estimate what a fit takes from two trial fits on synthetic ratings of few users.

    Time and memory of a fit are those of its users, in proportion to their ratings, and those of
    the items, which each worker has as well. The users of the trials have as many ratings each.

    Parameters
    ----------
    estimator : PrivateRecommender
        Whose parameters were checked.
    plan : ReleasePlan
        Of the fit.
    n_items, n_rows, n_ratings, n_workers : int
        Of the fit.

    Returns
    -------
    FitResources
    """
    delta = 1e-5 if plan.budget.delta > 0.0 else 0.0
    budget = PrivacyBudget(_MUCH, delta, unit=plan.budget.unit, neighbors=plan.budget.neighbors)
    twin = clone(estimator).set_params(budget=budget, random_state=None, n_jobs=1)
    each = min(max(n_ratings / n_rows, 1.0), 0.5 * n_items)
    trials = np.array([_trial(twin, n_items, max(2, round(n / each)), n) for n in _TRIALS])
    # of a rating, and of what there is without any
    slope = np.maximum(np.diff(trials[:, :3], axis=0)[0] / np.diff(trials[:, 3]), 0.0)
    rest = np.maximum(trials[0, :3] - slope * trials[0, 3], 0.0)
    own = n_ratings / n_workers
    passing = np.maximum(slope[2] - slope[1], 0.0) * min(own, BLOCK_RATINGS)
    memory = _PROCESS + slope[1] * own + max(rest[1], rest[2]) + passing
    sizes = [8.0 * prod(r.shape) for r in plan.releases for _ in range(r.count)]
    return FitResources(
        n_workers=n_workers,
        memory=float(memory),
        n_requests=len(sizes),
        bytes_up=max(sizes),
        bytes_in_all=n_workers * sum(sizes),
        seconds=float(slope[0] * own + rest[0] + _LATENCY * len(sizes) * (n_workers > 1)),
    )


def _trial(estimator: Any, n_items: int, n_rows: int, n_ratings: int) -> tuple[float, ...]:
    """Seconds, bytes held at requests, most bytes, and ratings of a trial fit."""
    n_ratings = min(n_ratings, n_rows * n_items // 2)
    X = make_ratings(n_rows, n_items, n_ratings=n_ratings, random_state=0)
    R = estimator._prepared(estimator._check_ratings(X, reset=True)[0])
    plan = estimator._make_plan(n_items, n_rows)
    estimator._release(R, plan, Alone())  # compiles
    begin = perf_counter()
    estimator._release(R, plan, Alone())
    seconds = perf_counter() - begin
    meter = _Meter()
    tracemalloc.start()
    try:
        estimator._release(R.copy(), plan, meter)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return seconds, float(meter.held), float(peak), float(R.nnz)


class _Meter(Alone):
    """An exchange that notes what memory is in use when the users' sums are handed in."""

    held = 0

    def noise(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> NoiseSource:
        """Return a source that notes it."""
        return _MeteredNoise(self)

    def total(self, name: str, index: int, values: Any) -> Any:
        """Note it."""
        self.note()
        return values

    def note(self) -> None:
        """Note what is in use now."""
        self.held = max(self.held, tracemalloc.get_traced_memory()[0])


class _MeteredNoise(NoiseSource):
    def __init__(self, meter: _Meter) -> None:
        super().__init__()
        self._meter = meter

    def blocks(self, **terms: Any) -> BlockRelease:
        self._meter.note()
        return super().blocks(**terms)


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000.0 or unit == "TB":
            break
        n /= 1000.0
    return f"{n:.3g} {unit}"


def _time(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2.0 * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} seconds"
