"""A cheap private recommender, and attacks on a search among its candidates.

`audit_search` raises AssertionError if a search of one trial (every number of trials costs that of
one at least) releases what its plan does not cover.
"""

import math
from functools import cache, partial

import numpy as np
from scipy import sparse, stats
from sklearn.base import BaseEstimator

from skdpmf.data.validation import as_rating_matrix
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.privacy import PrivacyBudget, ReleasePlan
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.plan import Release
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.sampler.noise import fresh_key, noise_source, recorded_key
from skdpmf.privacy.sampler.streams import derived_key

N_USERS, N_ITEMS, SLOT = 30, 8, 4
LOW, HIGH = 1.0, 5.0
BUDGET = PrivacyBudget(2.0, 1e-5)


class ConstantRecommender(BaseEstimator):
    """Predicts `level` everywhere; releases the number of users with ratings."""

    n_fits = 0  # of all instances

    def __init__(self, budget, *, level=3.0, rating_range=(LOW, HIGH), random_state=None):
        self.budget = budget
        self.level = level
        self.rating_range = rating_range
        self.random_state = random_state

    def plan(self, n_items, n_rows=None):
        return _plan(self.budget)

    def fit(self, X, y=None):
        ConstantRecommender.n_fits += 1
        R = as_rating_matrix(X)
        make = fresh_key
        if self.random_state is not None:
            data = repr(self.level), R.indptr, R.indices, R.data
            make = partial(derived_key, self.random_state, *data)
        release = self.plan(R.shape[1]).releases[0]
        users = np.array([np.count_nonzero(np.diff(R.indptr))], np.float64)
        self.n_users_ = noise_source(recorded_key(make)).release(
            users,
            name=release.name,
            sensitivity=release.sensitivity,
            noise_multiplier=release.noise_multiplier,
            bound=float(N_USERS),
        )[0]
        return self

    def predict_entries(self, X, where):
        where = sparse.csr_array(where)
        data = np.full(where.nnz, float(self.level))
        return sparse.csr_array((data, where.indices, where.indptr), shape=where.shape)


@cache
def _plan(budget):
    users = Release("users", "number of users with ratings", (1,), 1.0)
    return ReleasePlan.from_shares(budget, [users], {"users": 1.0})


def ratings(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(2, 5, (N_USERS, N_ITEMS)).astype(float)
    X[rng.random(X.shape) > 0.6] = np.nan
    return X


def with_row(X, row):
    X = X.copy()
    X[SLOT] = np.nan if row is None else row
    return X


def adversaries():
    rng = np.random.default_rng(1)
    one = np.full(N_ITEMS, np.nan)
    one[3] = HIGH
    return {
        "all high": np.full(N_ITEMS, HIGH),
        "all low": np.full(N_ITEMS, LOW),
        "wild": 1e9 * np.where(np.arange(N_ITEMS) % 2, 1.0, -1.0),
        "one": one,
        "nothing": np.full(N_ITEMS, np.nan),
        "random": np.where(rng.random(N_ITEMS) < 0.5, rng.uniform(LOW, HIGH, N_ITEMS), np.nan),
    }


def recorded(search, X, replay=None):
    with record_releases(replay) as records:
        search.fit(X)
    return search, records


def one_trial(estimator=None, space=None, budget=BUDGET, **params):
    estimator = ConstantRecommender(budget) if estimator is None else estimator
    space = {"level": [2.0, 4.0]} if space is None else space
    return PrivateSearchCV(estimator, space, budget, n_trials=1, **{"test_size": 0.4, **params})


def audit_search(search, X, rows):
    """Every release is planned, bounded on neighbours, and all together are within the budget."""
    search, records = recorded(search, X)
    budget, statement = search.budget, search.privacy_spent_
    planned = {(r.name, t): r for r in statement.releases for t in range(r.count)}
    names = [(record.name, record.index) for record in records]
    assert set(names) == set(planned), f"releases {names}, planned {sorted(planned)}"
    assert names.count(("score", 0)) == 1
    assert all(record.noise_multiplier > 0.0 for record in records), "a release without noise"
    for record in records:
        declared = record.noise_multiplier * record.sensitivity
        assert declared <= record.noise_scale <= declared * (1.0 + 1e-6), f"scale of {record}"
        if record.name == "score":
            assert record.sensitivity == planned["score", 0].sensitivity
    mu = math.sqrt(sum(record.noise_multiplier**-2.0 for record in records))
    spent = gaussian_epsilon(mu, budget.delta)
    assert spent <= budget.epsilon, f"{spent} spent of {budget.epsilon}"
    _, absent = recorded(search, with_row(X, None), records)
    _, nobody = recorded(search, with_row(np.full_like(X, np.nan), None), records)
    for record in nobody:
        if record.name == "score":
            assert not record.statistic.any(), "no ratings have a score"
    for name, row in rows.items():
        _, present = recorded(search, with_row(X, row), records)
        _, alone = recorded(search, with_row(np.full_like(X, np.nan), row), records)
        for a, b, own in zip(present, absent, alone, strict=True):
            assert a.distance(b) <= a.sensitivity * (1.0 + 1e-9), f"{name}: {a}"
            if a.name == "score":
                assert (a.statistic - b.statistic == own.statistic).all(), f"others move: {name}"


def lower_epsilon(hits, others, n, delta):
    """Lower bound on epsilon from counts of one event in n runs on each of two neighbours.

    Clopper-Pearson at 1e-4 each: above the truth once in 5,000 at most.
    """
    found = 0.0
    for a, b in ((hits, others), (others, hits), (n - hits, n - others), (n - others, n - hits)):
        low = stats.beta.ppf(1e-4, a, n - a + 1) if a else 0.0
        high = stats.beta.ppf(1.0 - 1e-4, b + 1, n - b) if b < n else 1.0
        if low > delta:
            found = max(found, math.log((low - delta) / high))
    return found
