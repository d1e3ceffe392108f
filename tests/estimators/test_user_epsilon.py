"""`fit(X, user_epsilon=levels)`: nobody of level 0 counts, searches split levels with the rows."""

import math
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skdpmf import DPMFSampler, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms import noisy_gradient
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.text import PERSONAL_ASSUMPTION
from tests.built import built
from tests.core.audit import cost_of, fitted_state, noise_of
from tests.matrices import dense

N_USERS, N_ITEMS, SLOT = 80, 12, 5
EPSILON = 40.0
BUDGET = PrivacyBudget(EPSILON, 1e-5)
POSTERIOR = {"guarantee": "posterior", "max_iter": 5, "n_components": 3}
MODES = {
    "every-step": {"max_iter": 4, "n_components": 3},
    "every-step, trimmed": {"max_iter": 4, "n_components": 3, "max_ratings_per_user": 4},
    "gibbs": POSTERIOR,
    "gibbs, biases": {**POSTERIOR, "item_bias": True, "sample_precisions": True},
    "sgld": {**POSTERIOR, "sampler": "sgld", "weight_cap": 1.0},
}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def some_ratings():
    return dense(make_ratings(N_USERS, N_ITEMS, density=0.5, random_state=0))


def fitted(X, levels=None, budget=BUDGET, **params):
    return built(DPMFSampler, budget, **{"random_state": 0, **params}).fit(X, user_epsilon=levels)


def some_levels(own=EPSILON):
    levels = np.random.default_rng(0).choice([0.0, 1.0, EPSILON], N_USERS, p=[0.2, 0.3, 0.5])
    levels[SLOT] = own
    return levels


ROWS = {
    "nothing": np.full(N_ITEMS, np.nan),
    "all low": np.full(N_ITEMS, 1.0),
    "extremes": np.where(np.arange(N_ITEMS) % 2, 1.0, 5.0),
    "out of range": np.where(np.arange(N_ITEMS) % 2, -1e300, 1e300),
    "one rating": np.where(np.arange(N_ITEMS) == 3, 5.0, np.nan),
}


@every_mode
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_a_user_of_level_0_changes_no_bit(mode, neighbors, monkeypatch):
    # so few users would not be given factors at every step
    monkeypatch.setattr(noisy_gradient.ir.ResidualAverages, "choose_rank", lambda self, most: 2)
    monkeypatch.setattr(noisy_gradient._Items, "shows_factors", lambda self: True)
    X, levels = some_ratings(), some_levels(0.0)
    budget = PrivacyBudget(EPSILON, 1e-5, neighbors=neighbors)
    states = []
    for row in ROWS.values():
        X[SLOT] = row
        states.append(fitted_state(fitted(X, levels, budget, **mode)))
    assert all(state == states[0] for state in states)
    model = fitted(X, levels, budget, **mode)
    assert np.isfinite(model.components_).all()
    assert model.components_.any()
    # any other level does count
    levels[SLOT] = 1.0
    assert fitted_state(fitted(X, levels, budget, **mode)) != states[0]


@every_mode
def test_levels_leave_the_plan_and_the_statement_says_so(mode):
    X = some_ratings()
    plain, personal = fitted(X, **mode), fitted(X, some_levels(), **mode)
    one, two = plain.privacy_spent_, personal.privacy_spent_
    planned = personal.plan(N_ITEMS).releases
    assert cost_of(two.releases) == cost_of(one.releases) == cost_of(planned)
    assert (two.epsilon, two.delta) == (one.epsilon, one.delta)
    assert (one.personal, two.personal) == (False, True)
    assert PERSONAL_ASSUMPTION in two.assumptions
    assert PERSONAL_ASSUMPTION not in one.assumptions
    assert "Personal" in str(two)
    assert two.epsilon_for(0.0) == 0.0
    assert two.epsilon_for(1.0) == 1.0
    assert two.epsilon_for(1e9) == two.epsilon
    with pytest.raises(PrivacyParameterError, match="personal=False"):
        one.epsilon_for(1.0)


@every_mode
def test_levels_are_not_kept_and_repeat(mode):
    X, levels = some_ratings(), some_levels()
    model = fitted(X, levels, **mode)
    assert fitted_state(model) == fitted_state(fitted(X, levels.tolist(), **mode))
    assert fitted_state(model) == fitted_state(fitted(X, pd.Series(levels, index=levels), **mode))
    for value in (*vars(model).values(), *model._item_model_):
        assert not isinstance(value, np.ndarray) or N_USERS not in value.shape
    others = np.where(levels == 1.0, 1.5, levels)
    state, other = fitted_state(model), fitted_state(fitted(X, others, **mode))
    assert state["_item_model_"] != other["_item_model_"]


def test_seeded_fits_with_other_levels_share_no_noise():
    """One noise with two levels of one user gives that user's contribution away."""
    X, noises = some_ratings(), []
    for own in (1.0, 1.0 + 1e-9):
        with record_releases() as records:
            fitted(X, some_levels(own), max_iter=2)
        noises.append(np.concatenate([noise_of(record) for record in records]))
    n = min(map(len, noises))
    assert np.all(abs(noises[0][:n] - noises[1][:n]) > 1e-9)


def levels_with(value, place=7):
    levels = np.full(N_USERS, 1.0)
    levels[place] = value
    return levels


BAD_LEVELS = {
    "too few": (np.ones(N_USERS - 1), [f"({N_USERS - 1},)", f"{N_USERS} rows"]),
    "one number": (1.0, ["()", "one number for each"]),
    "a column": (np.ones((N_USERS, 1)), [f"({N_USERS}, 1)", "one number for each"]),
    "text": (["1"] * N_USERS, ["dtype <U1", "number"]),
    "bools": (np.ones(N_USERS, bool), ["dtype bool", "number"]),
    "negative": (levels_with(-0.5), ["user_epsilon[7]=", "-0.5", "between 0", "raise", "lower"]),
    "above": (levels_with(40.5), ["user_epsilon[7]=", "40.5", "40.0", "raise", "lower"]),
    "nan": (levels_with(math.nan), ["user_epsilon[7]=", "nan", "between 0", "raise"]),
}


@pytest.mark.parametrize("name", BAD_LEVELS)
@pytest.mark.parametrize("mode", [MODES["every-step"], POSTERIOR], ids=["every-step", "posterior"])
def test_bad_levels(name, mode):
    levels, words = BAD_LEVELS[name]
    with pytest.raises(ValueError, match="user_epsilon") as error:
        fitted(some_ratings(), levels, **mode)
    for word in ("must", *words):
        assert word in str(error.value)


@every_mode
def test_levels_without_privacy_are_refused(mode):
    with pytest.raises(ValueError, match=r"user_epsilon was given with budget=.*leave") as error:
        fitted(some_ratings(), some_levels(), PrivacyBudget.nonprivate(), **mode)
    assert "pass a budget of finite epsilon" in str(error.value)


class Witness(DPMFSampler):
    """Notes which levels came with which rows: row i says i in its first ratings."""

    seen: ClassVar[list] = []  # of (rows, levels), one a fit

    def _fit(self, R, y, fit=None, user_epsilon=None):
        X = R.toarray()
        Witness.seen.append((np.rint(X[:, 0] * 10 + X[:, 1]).astype(int), user_epsilon))
        super()._fit(R, y, fit, user_epsilon=user_epsilon)


def marked():
    """Ratings 0 to 9 whose first two columns spell the row, and levels that are the row's."""
    X = some_ratings()
    X[:, 0], X[:, 1] = np.divmod(np.arange(N_USERS), 10)
    return X, np.arange(N_USERS) / N_USERS * EPSILON


@pytest.fixture
def witness():
    Witness.seen = []
    with config_context(enable_metadata_routing=True):
        model = Witness(BUDGET, rating_range=(0.0, 9.0), max_iter=3, random_state=0)
        yield model.set_fit_request(user_epsilon=True)


def check_seen(n_fits, levels):
    assert len(Witness.seen) == n_fits
    for rows, own in Witness.seen:
        np.testing.assert_array_equal(own, levels[rows])
    # parts of the rows, and not always the same
    assert len({tuple(rows) for rows, _ in Witness.seen}) > 1


@pytest.mark.parametrize("searched", [False, True])
def test_pipelines_route_levels(searched, witness):
    X, levels = marked()
    pipeline = make_pipeline(FunctionTransformer(), witness)
    if not searched:
        pipeline.fit(X, user_epsilon=levels)
        assert len(Witness.seen) == 1
        np.testing.assert_array_equal(Witness.seen[0][1], levels)
        assert pipeline[-1].privacy_spent_.personal
        return
    # With routing, scikit-learn's Pipeline.score needs a last step whose score takes weights.
    search = GridSearchCV(
        pipeline,
        {"witness__alpha": [0.5, 1.0]},
        cv=3,
        scoring=lambda fitted, X, y=None: fitted[-1].score(X),
        error_score="raise",
    )
    search.fit(X, user_epsilon=levels)
    check_seen(2 * 3 + 1, levels)
