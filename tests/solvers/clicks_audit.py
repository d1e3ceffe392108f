"""What the tests of the solvers for clicks share: clicks, users who attack, and the audit."""

import numpy as np

from skdpmf import PrivacyBudget
from tests.solvers.audit import (
    N_ITEMS,
    N_USERS,
    ROUNDING,
    SLOT,
    TIED,
    UNRATED,
    alone,
    check_neighbours,
    check_noise_law,
    check_plan,
    recorded_fit,
    with_row,
)

# Few users: a budget that supports factors, see `test_the_usual_audit_is_of_factors`.
BUDGET = PrivacyBudget(50.0, 1e-5)
CLICKS = {"feedback": "implicit", "n_inner_steps": 2, "budget": BUDGET}


def base_clicks(seed=0):
    """Clicks of rank two, a tenth of them of half weight; nobody but an adversary on UNRATED."""
    rng = np.random.default_rng(seed)
    taste = rng.normal(size=(N_USERS, 2)) @ rng.normal(size=(2, N_ITEMS))
    X = np.where(taste + np.linspace(1.0, -2.0, N_ITEMS) > 0.0, 1.0, np.nan)
    X[rng.random(X.shape) < 0.1] *= 0.5
    X[:, UNRATED] = np.nan
    X[:, TIED[1]] = X[:, TIED[0]]
    X[SLOT] = np.nan
    X[SLOT, :4] = 1.0
    return X


def adversaries(model, seed=1):
    """Rows by name; two of them know the released model."""
    rng = np.random.default_rng(seed)

    def clicked(places, values=1.0):
        row = np.full(N_ITEMS, np.nan)
        row[places] = values
        return row

    taste = model.components_[0]
    return {
        "everything": np.ones(N_ITEMS),
        "everything, hardly": np.full(N_ITEMS, 1e-3),
        "one popular item": clicked(0),
        "one item that nobody clicked": clicked(UNRATED),
        "one of two tied items": clicked(TIED[1]),
        "a popular and a rare item": clicked([0, UNRATED]),
        "nothing": clicked([]),
        "random weights": rng.random(N_ITEMS),
        "follows the first factor": clicked(taste > np.median(taste)),
        "against the first factor": clicked(taste < np.median(taste)),
        "beyond the scale": clicked(np.arange(N_ITEMS), rng.choice([-1e6, 1e6], N_ITEMS)),
    }


def audit(**params):
    """Raise AssertionError unless the fit keeps to its plan, whatever one user does."""
    params, X = {**CLICKS, **params}, base_clicks()
    model, records = recorded_fit(X, **params)
    check_plan(model, records)
    check_noise_law(records)
    check_neighbours(X, adversaries(model), model, records, 1.0, **params)
    signs = np.where(np.arange(N_ITEMS) % 3, 1.0, -1.0)
    _, wild = recorded_fit(with_row(X, 1e6 * signs), records, **params)
    _, bounded = recorded_fit(with_row(X, np.where(signs > 0, 1.0, np.nan)), records, **params)
    for a, b in zip(wild, bounded, strict=True):
        np.testing.assert_array_equal(a.statistic, b.statistic, err_msg=f"weights beyond 1: {a}")


def worst_ratios(*, n=40, pairs=False, seed=0, **params):
    """Largest distance over sensitivity by release: adversaries and random rows, or pairs of them.

    The releases are replayed with one user in the data, whose contributions are then all there is.
    """
    params = {**CLICKS, **params}
    rng = np.random.default_rng(seed)
    model, records = recorded_fit(base_clicks(), **params)
    rows = list(adversaries(model).values())
    for _ in range(n):
        row = rng.random(N_ITEMS) ** rng.choice([0.0, 0.0, 1.0])
        row[rng.random(N_ITEMS) < rng.choice([0.0, 0.5, 0.8])] = np.nan
        rows.append(row)
    own = [recorded_fit(alone(row), records, **params)[1] for row in rows]
    nobody = recorded_fit(alone(None), records, **params)[1]
    found = {}
    for one in own:
        for other in own if pairs else [nobody]:
            for a, b in zip(one, other, strict=True):
                ratio = a.distance(b) / a.sensitivity
                found[a.name] = max(found.get(a.name, 0.0), ratio)
    assert max(found.values()) <= ROUNDING, found
    return found
