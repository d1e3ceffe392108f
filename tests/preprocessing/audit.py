"""Audit of DPItemSelector: its release on all neighbours of a small catalogue, and its noise."""

from itertools import product

import numpy as np
from scipy import stats

from skdpmf import PrivacyBudget
from skdpmf.preprocessing import DPItemSelector
from skdpmf.privacy._recording import record_releases

N_USERS, N_ITEMS = 30, 5
SLOT = 7
ROUNDING = 1.0 + 1e-9
# all rows of a catalogue, the empty one first
ROWS = [np.where(rated, 3.0, np.nan) for rated in product([False, True], repeat=N_ITEMS)]


def base_ratings(n_users=N_USERS, n_items=N_ITEMS, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(1.0, 5.0, (n_users, n_items))
    X[rng.random(X.shape) < 0.5] = np.nan
    return X


def with_row(X, row):
    X = X.copy()
    X[SLOT] = row
    return X


def recorded(X, replay=None, *, budget, **params):
    """Fitted selector and its one release."""
    selector = DPItemSelector(budget, random_state=0, **params)
    with record_releases(replay) as records:
        selector.fit(X)
    (record,) = records
    return selector, record, records


def state(selector):
    """All that a fit leaves, bit by bit."""
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else repr(value)
        for name, value in vars(selector).items()
        if name not in selector.get_params(deep=False)
    }


def neighbours(unit, relation):
    """Yield pairs of rows of the one slot; a rating exchanged between rows is in `audit`."""
    for one, two in product(ROWS, ROWS):
        cells = int(np.sum(np.isnan(one) != np.isnan(two)))
        sizes = np.isfinite(one).sum(), np.isfinite(two).sum()
        if unit == "user":
            if relation == "replace" or one is ROWS[0]:
                yield one, two
        elif (relation == "add-remove" and cells == 1) or (
            relation == "replace" and cells == 2 and sizes[0] == sizes[1]
        ):
            yield one, two


def audit(budget, **params):
    """Raise AssertionError unless a fit keeps to its plan whatever a neighbour does."""
    X = base_ratings()
    selector, record, records = recorded(X, budget=budget, **params)
    plan = selector.plan(N_ITEMS)
    (release,) = plan.releases
    assert selector.privacy_spent_.releases == plan.releases, "plan and statement differ"
    assert 0.999 * budget.epsilon < plan.epsilon <= budget.epsilon, f"epsilon {plan.epsilon}"
    assert record.noise == ("laplace" if budget.delta == 0.0 else "gaussian")
    assert record.sensitivity == release.sensitivity, f"sensitivity of {record}"
    declared = release.noise_scale
    assert declared <= record.noise_scale <= declared * (1.0 + 1e-6), f"scale of {record}"
    by_row = {}
    for row in ROWS:
        fitted, found, _ = recorded(with_row(X, row), records, budget=budget, **params)
        assert state(fitted) == state(selector), "more leaves the fit than the release"
        by_row[row.tobytes()] = found
    check_others(X, by_row, budget, records, **params)
    worst = max(
        by_row[one.tobytes()].distance(by_row[two.tobytes()])
        for one, two in neighbours(budget.unit, budget.neighbors)
    )
    if (budget.unit, budget.neighbors) == ("rating", "replace"):
        worst = max(worst, moved_rating(X, records, budget, **params))
    assert worst <= record.sensitivity * ROUNDING, f"{worst} > {record.sensitivity}"
    assert worst >= 0.999 * record.sensitivity, f"{worst} of {record.sensitivity}: too much noise"
    check_noise_law(budget, **params)


def check_others(X, by_row, budget, records, **params):
    """One row's contribution is of that row alone, the others' are bit-identical."""
    nobody = np.full_like(X, np.nan)
    empty = by_row[ROWS[0].tobytes()].statistic
    for row in ROWS:
        alone = recorded(with_row(nobody, row), records, budget=budget, **params)[1].statistic
        np.testing.assert_array_equal(by_row[row.tobytes()].statistic - empty, alone)


def moved_rating(X, records, budget, **params):
    """Largest distance where a cell of one row is emptied and one of another row is filled."""
    worst = 0.0
    for one, two in product(ROWS[1::6], ROWS[:-1:6]):
        before, after = with_row(X, one), with_row(X, one)
        before[3], after[3] = two, two
        after[SLOT, np.flatnonzero(~np.isnan(one))[0]] = np.nan
        after[3, np.flatnonzero(np.isnan(two))[-1]] = 3.0
        first, second = (recorded(Z, records, budget=budget, **params)[1] for Z in (before, after))
        worst = max(worst, first.distance(second))
    return worst


def check_noise_law(budget, **params):
    """4000 values against the plan's law; false alarm 1e-6 each, seed fixed."""
    selector, record, _ = recorded(base_ratings(10, 4000), budget=budget, **params)
    noise = (selector.counts_ - record.statistic) / selector.plan(4000).releases[0].noise_scale
    law = stats.laplace if budget.delta == 0.0 else stats.norm
    assert stats.kstest(noise, law.cdf).pvalue > 1e-6, "noise is not of the stated law"


def budgets():
    """One budget of each mechanism, unit and relation."""
    return [
        PrivacyBudget(2.0, delta, unit=unit, neighbors=relation)
        for delta in (1e-5, 0.0)
        for unit in ("user", "rating")
        for relation in ("add-remove", "replace")
    ]
