"""The declared sensitivities hold for the worst users that a search finds, and are nearly reached.

Re:cord-play (arXiv 2602.17454): a fit's releases are recorded and replayed with only one user in
the data, whose contribution is then all that a statistic holds. That statistics are sums of such
contributions, bit by bit, is checked by `tests.core.audit`.
"""

import numpy as np
import pytest
from scipy import sparse

from skdpmf import PrivacyBudget
from skdpmf.privacy._recording import record_releases
from skdpmf.privacy.noise import NoiseSource, derived_key
from skdpmf.solvers import adaptive_weight_als as solver
from tests.core.audit import (
    HIGH,
    LOW,
    N_ITEMS,
    ROUNDING,
    SLOT,
    adversaries,
    base_ratings,
    is_means,
    left_out_seed,
    recorded_fit,
)

MIDDLE, UNIT = (LOW + HIGH) / 2, (HIGH - LOW) / 4
NAMES = [solver.ITEM_STATISTICS, solver.START, solver.GRAM, solver.RHS]
# Equal weights 1 / sqrt(tau) give their all only to a user with tau ratings or more.
CASES = {
    "adaptive": {},
    "without item means": {"item_means": False},
    "tail": {"weighting": "tail", "max_ratings_per_user": N_ITEMS},
    "uniform": {"weighting": "uniform", "max_ratings_per_user": N_ITEMS},
    "trimmed": {"max_ratings_per_user": 8},
}


class Replay:
    """Contributions of a single user to all releases of one recorded fit."""

    solver = solver

    def __init__(self, **params):
        self.model, self.records = recorded_fit(base_ratings(), **params)
        self.settings = self.model._settings()
        self.plan = self.solver.make_plan(self.model.budget, self.settings, N_ITEMS)
        self.n_rows = len(base_ratings())

    def __call__(self, row):
        items = np.flatnonzero(~np.isnan(row))
        indptr = np.where(np.arange(self.n_rows + 1) > SLOT, len(items), 0)
        y = (np.clip(row[items], LOW, HIGH) - MIDDLE) / UNIT
        R = sparse.csr_array((y, items, indptr), shape=(self.n_rows, N_ITEMS))
        with record_releases(self.records) as own:
            self.solver.fit(
                R,
                self.settings,
                self.plan,
                NoiseSource(derived_key(0)),
                rounds=range(self.settings.max_iter),
                n_jobs=None,
            )
        return own

    def ratios(self, row, other=None):
        """Largest distance over sensitivity, by name; `other` is the user without ratings."""
        other = self(np.full(N_ITEMS, np.nan) if other is None else other)
        found = {}
        for a, b in zip(self(row), other, strict=True):
            assert a.name == b.name
            found[a.name] = max(found.get(a.name, 0.0), a.distance(b) / a.sensitivity)
        return found

    def candidates(self, rng, n):
        """Rows that know the released model, with random items and amplitudes."""
        yield from adversaries(self.model).values()
        for _ in range(n):
            direction = rng.normal(size=self.model.n_components) @ self.model.components_
            row = self.model.item_means_ + rng.uniform(0, 3) * np.sign(direction)
            row += rng.uniform(0, 0.5) * rng.normal(size=N_ITEMS)
            row[rng.random(N_ITEMS) < rng.choice([0.0, 0.3, 0.7])] = np.nan
            yield np.clip(row, LOW, HIGH)

    def search(self, name, *, n_random=15, n_steps=40, pairs=False, seed=0):
        """Worst ratio of release `name` over users, or over pairs of users."""
        rng = np.random.default_rng(seed)
        best, ratio = None, -1.0
        for row in self.candidates(rng, n_random):
            rows = [row, _partner(row, rng) if pairs else None]
            if (found := self.ratios(*rows)[name]) > ratio:
                best, ratio = rows, found
        for _ in range(n_steps):
            rows = [None if row is None else row.copy() for row in best]
            row = rows[rng.integers(1 + pairs)]
            items = rng.integers(N_ITEMS, size=rng.integers(1, 4))
            row[items] = np.clip(
                np.where(np.isnan(row[items]), MIDDLE, row[items]) + rng.normal(size=len(items)),
                LOW,
                HIGH,
            )
            if rng.random() < 0.2:
                row[items] = np.nan
            if (found := self.ratios(*rows)[name]) > ratio:
                best, ratio = rows, found
        return ratio


def _partner(row, rng):
    """Another user: of the opposite opinion, with other items, or both."""
    kind = rng.integers(3)
    other = 2 * MIDDLE - row if kind != 1 else row.copy()
    if kind:
        keep = rng.random(N_ITEMS) < 0.5
        other[keep] = np.nan
        row[~keep] = np.nan
    return other


# Which ratings weigh what matters for the item half; the means are the same under all weightings.
SEARCHES = [
    *(("adaptive", name) for name in NAMES[:2]),
    ("trimmed", solver.START),
    *((case, name) for case in CASES for name in NAMES[2:]),
]


@pytest.mark.parametrize(("case", "name"), SEARCHES)
def test_search_reaches_the_declared_sensitivity_and_not_more(case, name):
    ratio = Replay(**CASES[case]).search(name)
    assert ratio <= ROUNDING
    # the search bites; every sensitivity is attained in the limit
    assert ratio >= 0.9, ratio


@pytest.mark.parametrize("name", NAMES)
def test_search_over_pairs_of_users(name):
    replay = Replay(budget=PrivacyBudget(20.0, 1e-5, neighbors="replace"))
    ratio = replay.search(name, pairs=True)
    assert ratio <= ROUNDING
    assert ratio >= 0.9, ratio


@pytest.mark.parametrize(
    ("epsilon", "max_iter", "all_rounds"), [(0.1, 2, True), (8.0, 10, False)], ids=["all", "some"]
)
def test_means_in_place_of_factors_keep_their_sensitivity(epsilon, max_iter, all_rounds):
    """What is released once more has the item statistics' sensitivity, not the factors'."""
    params = {"budget": PrivacyBudget(epsilon, 1e-5), "max_iter": max_iter}
    replay = Replay(random_state=left_out_seed(all_rounds=all_rounds, **params), **params)
    again = [record for record in replay.records if is_means(record)]
    assert len(again) > 1
    assert len({record.sensitivity for record in again}) == 1
    for name in {record.name for record in again}:
        assert 0.9 <= replay.search(name, n_random=5, n_steps=5) <= ROUNDING


def test_replacing_a_user_is_farther_than_removing_one():
    """The larger sensitivities of the replace relation are needed."""
    replay = Replay()
    for name in NAMES:
        assert replay.search(name, pairs=True, n_steps=20) > 1.05
