"""The needs of a fit: memory, traffic and time, from trial fits on synthetic ratings."""

import tracemalloc
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import clone

from skdpmf.data.synthetic import make_ratings
from skdpmf.distributed.exchange import Alone
from skdpmf.distributed.resources import FitResources
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.sampler.noise import BlockRelease, NoiseSource

__all__ = ["estimate_resources"]

# of a block of users: what it works with beside its ratings is short-lived, and should stay small
BLOCK_RATINGS = 1e7

# Items and ratings of the trial fits: from first to second more ratings, to the third more items.
_TRIALS = (300, 40_000), (300, 200_000), (600, 200_000)
_MUCH = 50.0  # epsilon of theirs, where it decides what is computed: all factors are in use
_PROCESS = 0.30 * 2**30  # bytes of a process without ratings: Python, libraries, compiled code
# Seconds of a request, of each of its tasks, and of a byte: joblib over dask, docs/benchmarks.
_LATENCY, _TASK, _BYTE = 0.05, 0.005, 4e-9


def estimate_resources(
    estimator: Any, plan: ReleasePlan, n_items: int, n_rows: int, n_ratings: int, n_workers: int
) -> FitResources:
    """Estimate what a fit takes from trial fits on synthetic ratings of few users.

    Time and memory are taken as linear: in the ratings, which workers share, with as many of a user
    as in the fit, and in the items, which all of them have. A covariance grows with the square of
    its items: then what the items take, in the coordinator above all, is more.

    estimator (PrivateRecommender): whose parameters were checked; plan: of the fit; n_items,
    n_rows, n_ratings, n_workers: of the fit.
    """
    budget = estimator.budget.without_ledger()
    if not plan.local:
        budget = clone(budget).set_params(epsilon=_MUCH)
    twin = clone(estimator).set_params(budget=budget, random_state=None, n_jobs=1)
    each = max(n_ratings / n_rows, 1.0)
    _trial(twin, *_TRIALS[0], each)  # compiles
    few, many, wide = (np.array(_trial(twin, *sizes, each)) for sizes in _TRIALS)
    of_rating = np.maximum((many - few)[:3] / (many - few)[3], 0.0)
    of_item = np.maximum((wide - many)[:3] / (wide - many)[4], 0.0)
    rest = np.maximum(few[:3] - of_rating * few[3] - of_item * few[4], 0.0) + of_item * n_items
    own = n_ratings / n_workers
    passing = np.maximum(of_rating[2] - of_rating[1], 0.0) * min(own, BLOCK_RATINGS)
    n_blocks = max(1, round(own / BLOCK_RATINGS))
    memory = _PROCESS + of_rating[1] * own + n_blocks * max(rest[1:]) + passing
    sizes = [8.0 * prod(r.shape) for r in plan.releases for _ in range(r.count)]
    in_all = n_workers * sum(sizes)
    exchange = len(sizes) * (_LATENCY + n_workers * _TASK) + 2.0 * in_all * _BYTE
    return FitResources(
        n_workers=n_workers,
        memory=float(memory),
        n_requests=len(sizes),
        bytes_up=max(sizes),
        bytes_in_all=in_all,
        seconds=float(of_rating[0] * own + rest[0] + exchange * (n_workers > 1)),
    )


def _trial(
    estimator: Any, n_items: int, n_ratings: int, each: float
) -> tuple[float, float, float, float, float]:
    """Seconds, bytes held at requests, most bytes, ratings and items of a trial fit."""
    each = min(each, 0.5 * n_items)
    X = make_ratings(round(n_ratings / each), n_items, n_ratings=n_ratings, random_state=0)
    R = estimator._prepared(estimator._check_ratings(X, reset=True)[0])
    plan = estimator._make_plan(*R.shape[::-1])
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
    return seconds, float(meter.held), float(peak), float(R.nnz), float(n_items)


class _Meter(Alone):
    """An exchange that notes what memory is in use when the users' sums are handed in."""

    held = 0

    def noise(
        self, random_state: int | None, text: str, R: Any, *aligned: Any, stream: Any = None
    ) -> NoiseSource:
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
