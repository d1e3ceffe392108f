"""What changes no fit, over all mechanisms: threads and the order of users; and almost no data.

Seeds repeat a fit, and a seed on other data or for another plan shares no noise with it: two noise
levels of one noise, and one noise on two data sets, give the statistic away.
"""

import math

import numpy as np
import pytest

from skdpmf import PrivacyBudget
from skdpmf.estimators.contract.public import is_model
from skdpmf.privacy import frame
from tests.core.audit import N_ITEMS, N_USERS, alone, fitted_state, noise_of
from tests.core.cases import CASES
from tests.core.test_planted import ALL

pytestmark = pytest.mark.every_case
every_mechanism = pytest.mark.parametrize("name", ALL)
# Subsets of a user's ratings are drawn by the user's slot; features of tasks are those of a row.
BY_SLOT = ("trimmed", "tail", "uniform", "tasks")
IN_THREADS = [name for name in CASES if not name.startswith("selector")]


def assert_same_releases(records, others):
    for a, b in zip(records, others, strict=True):
        np.testing.assert_array_equal(a.statistic, b.statistic, err_msg=str(a))
        np.testing.assert_array_equal(a.output, b.output, err_msg=str(a))


def without_privacy(case):
    params = case.params  # models are beside private fits alone
    kept = {k: v for k, v in params.items() if k != "public" or not is_model(v)}
    return case._replace(epsilon=math.inf, delta=0.0, levels=None, params=kept)


@pytest.mark.parametrize("private", [True, False], ids=["private", "exact"])
@pytest.mark.parametrize("name", IN_THREADS)
def test_threads_do_not_change_a_bit(name, private):
    case = CASES[name] if private else without_privacy(CASES[name])
    one, records = case.fit()
    many, others = case.fit(n_jobs=3)
    assert fitted_state(one) == fitted_state(many)
    assert_same_releases(records, others)


@pytest.mark.parametrize("name", [name for name in CASES if not any(w in name for w in BY_SLOT)])
def test_order_of_users_does_not_change_a_bit(name):
    case, order = CASES[name], np.random.default_rng(0).permutation(N_USERS)
    model, records = case.fit()
    if case.levels is not None:
        case = case._replace(levels=case.levels[order])
    shuffled, others = case.replayed(case.ratings[order], records)
    assert_same_releases(records, others)
    assert fitted_state(model) == fitted_state(shuffled)


ALMOST_NOTHING = {
    "nobody": np.full((N_USERS, N_ITEMS), np.nan),
    "one rating": alone(np.where(np.arange(N_ITEMS) == 3, 4.0, np.nan)),
    "one user, one item": np.full((1, 1), 4.0),
}


@pytest.mark.parametrize(
    ("data", "epsilon"),
    [("nobody", 0.01), ("nobody", math.inf), ("one rating", 50.0), ("one user, one item", 50.0)],
)
@pytest.mark.parametrize("name", CASES)
def test_almost_no_data_give_finite_models(name, data, epsilon):
    if name.startswith("tasks") and data == "one user, one item":
        pytest.skip("features are those of so many rows")
    case, X = CASES[name]._replace(epsilon=epsilon, levels=None), ALMOST_NOTHING[data]
    if math.isinf(epsilon):
        case = without_privacy(case)
    params = {}
    if X.size == 1 and "item_features" in case.params:
        params = {"item_features": np.ones((1, 2))}
    if X.size == 1 and "public" in case.params:
        params = {"public": np.ones((2, 1))}
    model, records = case.fit(X, **params)
    assert all(np.isfinite(record.output).all() for record in records)
    for attribute, value in vars(model).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.isfinite(value).all(), attribute
    if hasattr(model, "decision_function"):
        assert np.isfinite(model.decision_function(X)).all()


# -- seeds -----------------------------------------------------------------------------------------


def assert_no_shared_noise(records, others):
    """No value of the noise is the same, standardised; equal doubles have chance about 1e-9."""
    own = {(record.name, record.index): record for record in others}
    shared = [
        (record, own[key]) for record in records if (key := (record.name, record.index)) in own
    ]
    assert shared
    for record, other in shared:
        z, y = noise_of(record), noise_of(other)
        n = min(z.size, y.size)
        assert np.all(abs(z[:n] - y[:n]) > 1e-9), record


def other_data(X):
    """One rating a little less, the largest user emptied."""
    changed, emptied = X.copy(), X.copy()
    i, j = np.argwhere(~np.isnan(X))[0]
    changed[i, j] -= 1e-9
    emptied[np.argmax((~np.isnan(X)).sum(axis=1))] = np.nan
    return changed, emptied


@every_mechanism
def test_seeded_fits_on_other_data_share_no_noise(name):
    case = CASES[name]
    model, records = case.fit()
    assert fitted_state(case.fit()[0]) == fitted_state(model)
    for X in other_data(case.ratings)[name.startswith("selector") :]:  # which reads no values
        assert_no_shared_noise(records, case.fit(X)[1])
    assert_no_shared_noise(records, case.fit(random_state=1)[1])
    fresh = [case.fit(random_state=None)[1] for _ in range(2)]
    assert_no_shared_noise(*fresh)
    assert_no_shared_noise(records, fresh[0])


# As text to four digits, most of these plans are the same.
TINY = 1.0 + 1e-12
OTHER_PARAMS = {
    "als": [
        {"alpha": TINY},
        {"user_damping": 10.0 * TINY},
        {"n_components": 2},
        {"max_iter": 4},
        {"rating_range": (1.0, 5.0 * TINY)},
    ],
    "als dpals": [
        {"weight_exponent": 0.25 * TINY},
        {"weighting": "tail", "max_ratings_per_user": 5},
    ],
    "clicks": [{"alpha": TINY}, {"unobserved_weight": 0.5}, {"weight_exponent": 0.3}],
    "means": [{"user_damping": 21.0}, {"rating_range": (1.0, 5.0 * TINY)}],
    "covariance": [
        {"clamp": TINY},
        {"user_damping": 21.0},
        {"item_damping": 6.0},
        {"n_components": 2},
        {"clean": False},
        {"shares": (0.1, 0.4 + 1e-12, 0.5)},
        {"rating_range": (1.0, 5.0 * TINY)},
    ],
    "sampler": [{"alpha": TINY}, {"user_damping": 10.0 * TINY}, {"max_ratings_per_user": 9}],
    "tasks": [{"alpha": TINY}, {"weight_exponent": 0.5 * TINY}],
}


@every_mechanism
def test_seeded_fits_of_other_plans_share_no_noise(name):
    case = CASES[name]
    _, records = case.fit()
    for change in (
        {"epsilon": case.epsilon / 2},
        {"epsilon": math.nextafter(case.epsilon, 0.0)},
        {"neighbors": "replace"},
        *([{"delta": 1.00001 * case.delta}] if case.delta else []),
    ):
        assert_no_shared_noise(records, case._replace(**change).fit()[1])
    for start, changes in OTHER_PARAMS.items():
        for params in changes if name.startswith(start) else ():
            if name == "covariance of ratings" and "shares" in params:
                params = {"shares": (0.0, 0.4 + 1e-12, 0.6)}
            assert_no_shared_noise(records, case.fit(**params)[1])


@pytest.mark.parametrize("n_parts", [0, 1], ids=["seed alone", "seed and plan"])
def test_planted_keys_that_forget_the_data_are_noticed(n_parts, monkeypatch):
    real = frame.derived_key
    monkeypatch.setattr(frame, "derived_key", lambda seed, *parts: real(seed, *parts[:n_parts]))
    with pytest.raises(AssertionError):
        test_seeded_fits_on_other_data_share_no_noise("als dpals")
    if n_parts == 0:
        with pytest.raises(AssertionError):
            test_seeded_fits_of_other_plans_share_no_noise("als dpals")


def test_levels_at_the_budget_change_no_statistic():
    case = CASES["sampler"]
    model, records = case.fit()
    leveled = case._replace(levels=np.full(N_USERS, case.epsilon))
    other, others = leveled.replayed(case.ratings, records)
    assert_same_releases(records, others)
    assert other.privacy_spent_.releases == model.privacy_spent_.releases
    assert case.budget == PrivacyBudget(case.epsilon, case.delta)
