"""AdaptiveWeightALS beyond the common contract: parameters, limits, searches and accuracy."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, ParameterGrid, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from skdpmf import DPALS, DPSGD, AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix
from skdpmf.evaluation import (
    RatingRegressor,
    leave_one_out,
    recommender_scorer,
    split_ratings,
)
from skdpmf.mechanisms.als import pooled as pooled_als
from tests.built import built, nested

BUDGET = PrivacyBudget(8.0, 1e-5)


@pytest.fixture(scope="module")
def data():
    """Training and held-out ratings of 2000 users and 60 items."""
    X = make_ratings(2000, 60, density=0.35, noise_std=0.6, random_state=0)
    return split_ratings(X, test_size=0.15, random_state=1)


def fitted(X, epsilon=8.0, **params):
    budget = PrivacyBudget(epsilon, 1e-5) if math.isfinite(epsilon) else PrivacyBudget.nonprivate()
    return built(AdaptiveWeightALS, budget, **{"random_state": 0, **params}).fit(X)


# -- parameters ------------------------------------------------------------------------------------


class Untouchable:
    """Data that must not be looked at."""

    def __getattr__(self, name):
        raise RuntimeError(f"data touched: {name}")

    def __len__(self):
        raise RuntimeError("data touched: len")


BAD_PARAMETERS = [
    ("budget", None, "must be a PrivacyBudget", "pass PrivacyBudget"),
    ("budget", 1.0, "must be a PrivacyBudget", "pass PrivacyBudget"),
    ("n_components", 0, ">= 1", "use"),
    ("n_components", 2.0, "integer", "use"),
    ("n_components", True, "integer", "use"),
    ("rating_range", (5.0, 1.0), "", ""),
    ("rating_range", (1.0, math.inf), "", ""),
    ("rating_range", 5.0, "", ""),
    ("solver", "sgd", "'dpals', 'dpsgd'", "default"),
    ("solver", None, "DPALS(...) or DPSGD(...)", "default"),
    ("n_inner_steps", 0, ">= 1", "use"),
    ("n_inner_steps", 2.0, "integer", "use"),
    ("weighting", "popular", "'adaptive', 'tail' or 'uniform'", "use"),
    ("weighting", None, "'adaptive', 'tail' or 'uniform'", "use"),
    ("weight_exponent", -0.5, ">= 0", "use"),
    ("weight_exponent", math.nan, ">= 0", "use"),
    ("weight_exponent", "0.5", ">= 0", "use"),
    ("max_ratings_per_user", 0, ">= 1", "use"),
    ("max_ratings_per_user", 2.5, "integer", "use"),
    ("max_iter", 0, ">= 1", "use"),
    ("max_iter", "10", "integer", "use"),
    ("alpha", 0.0, "> 0", "use"),
    ("alpha", math.inf, "finite", "use"),
    ("alpha", False, "> 0", "use"),
    ("user_damping", 0.0, "> 0", "use"),
    ("user_damping", -1.0, "> 0", "use"),
    ("random_state", -1, ">= 0", ""),
    ("random_state", np.random.RandomState(0), "integer", ""),
    ("n_jobs", 0, "other than 0", ""),
]


@pytest.mark.parametrize(("name", "value", "rule", "remedy"), BAD_PARAMETERS)
def test_bad_parameters(name, value, rule, remedy):
    """Parameter, value, rule and remedy, before the data are touched."""
    model = AdaptiveWeightALS(BUDGET, solver="dpsgd")
    model.set_params(**nested(AdaptiveWeightALS, {name: value}))
    with pytest.raises((ValueError, TypeError)) as error:
        model.fit(Untouchable())
    for words in (f"{name}={value!r}", "must", rule, remedy):
        assert words in str(error.value)
    with pytest.raises((ValueError, TypeError)):
        model.plan(10)
    assert not [key for key in vars(model) if key.endswith("_")]


@pytest.mark.parametrize("value", ["yes", None, 1.5])
def test_item_means_is_a_bool(value):
    with pytest.raises(ValueError, match="item_means"):
        AdaptiveWeightALS(BUDGET, solver=DPALS(item_means=value)).fit(Untouchable())


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0.0), ("epsilon", -1.0), ("delta", 0.0), ("delta", 1.0), ("unit", "rating")],
)
def test_bad_budgets_are_refused_before_the_data(name, value):
    model = AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5)).set_params(**{f"budget__{name}": value})
    with pytest.raises(ValueError, match=f"{name}={value!r} must be"):
        model.fit(Untouchable())


def test_data_that_may_not_be_touched_would_be():
    with pytest.raises(RuntimeError, match="data touched"):
        AdaptiveWeightALS(BUDGET).fit(Untouchable())


EXTREMES = [
    {"alpha": 1e-12},
    {"alpha": 1e12},
    {"user_damping": 1e-9},
    {"user_damping": 1e9},
    {"weight_exponent": 3.0},
    {"n_components": 100},
    {"max_ratings_per_user": 1},
    {"solver": "dpals", "max_ratings_per_user": 1, "weighting": "tail"},
    {"solver": "dpals", "max_ratings_per_user": 1, "weighting": "uniform"},
    {"max_iter": 1},
    {"list_share": None},
    {"list_share": 1e-6},
    {"list_share": 0.999},
    {"solver": "dpsgd", "n_inner_steps": 1},
    {"solver": "dpsgd", "n_components": 100, "alpha": 1e-12},
    {"solver": "dpsgd", "weight_exponent": 3.0, "item_means": False},
    {"rating_range": (-1e6, 1e6)},
    {"rating_range": (2.0, 2.0 + 1e-9)},
]


@pytest.mark.parametrize("epsilon", [0.05, 8.0, math.inf])
@pytest.mark.parametrize("params", EXTREMES, ids=str)
def test_extreme_parameters_give_finite_models(params, epsilon, data):
    model = fitted(data[0][:300], epsilon, **{"max_iter": 3, **params})
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.item_means_).all()
    predicted = model.predict(data[0][:20])
    low, high = model.rating_range
    assert np.all((low <= predicted) & (predicted <= high))


@pytest.mark.parametrize("exponent", [10.0, 100.0, 1e4])
@pytest.mark.parametrize("epsilon", [8.0, math.inf])
def test_a_large_weight_exponent_does_not_overflow(exponent, epsilon, data):
    model = fitted(data[0][:300], epsilon, max_iter=2, weight_exponent=exponent)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.item_means_).all()


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 8.0, math.inf])
@pytest.mark.parametrize("form", ["csr_array", "csc_matrix", "coo_array"])
def test_sparse_is_dense(form, epsilon, data):
    X = data[0][:400]
    rows, columns = X.nonzero()
    dense = np.full(X.shape, np.nan)
    dense[rows, columns] = np.asarray(X[rows, columns]).ravel()
    one, other = fitted(dense, epsilon), fitted(getattr(sparse, form)(X), epsilon)
    np.testing.assert_array_equal(one.components_, other.components_)
    np.testing.assert_array_equal(one.item_means_, other.item_means_)


def test_float32_is_close_to_float64(data):
    """Statistics are double in any case; only the ratings' own digits are lost."""
    X = data[0][:500].copy()
    X.data = np.clip(X.data + 0.1, 1.0, 5.0)
    exact = fitted(X, math.inf, n_components=2)
    rounded = fitted(X.astype(np.float32), math.inf, n_components=2)
    assert rounded.components_.dtype == np.float64
    np.testing.assert_allclose(rounded.item_means_, exact.item_means_, atol=1e-5)
    np.testing.assert_allclose(
        rounded.components_.T @ rounded.components_,
        exact.components_.T @ exact.components_,
        atol=1e-4,
    )
    whole = np.round(data[0][:500].toarray())
    whole[whole == 0] = np.nan
    np.testing.assert_array_equal(
        fitted(whole.astype(np.float32)).components_, fitted(whole).components_
    )


@pytest.mark.parametrize("epsilon", [0.1, 8.0, math.inf])
@pytest.mark.parametrize("item_means", [True, False])
def test_an_empty_row_gets_the_item_means(epsilon, item_means, data):
    solver = "pooled" if item_means else "dpals"
    model = fitted(data[0][:400], epsilon, solver=solver, item_means=item_means)
    empty = sparse.csr_array((2, 60))
    np.testing.assert_allclose(model.decision_function(empty), [model.item_means_] * 2, rtol=1e-12)
    np.testing.assert_array_equal(model.transform(empty), 0.0)
    if not item_means:
        np.testing.assert_array_equal(model.item_means_, 3.0)


def test_the_range_is_a_unit():
    """Ratings on another scale give the same model on that scale."""
    X = make_ratings(300, 20, random_state=0)
    other = X.copy()
    other.data = 10.0 + 8.0 * (X.data - 1.0)
    one = fitted(X, math.inf, n_components=3)
    two = fitted(other, math.inf, n_components=3, rating_range=(10.0, 42.0))
    np.testing.assert_allclose(
        two.decision_function(other), 10.0 + 8.0 * (one.decision_function(X) - 1.0), atol=1e-8
    )


@given(
    X=arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.integers(1, 6)),
        elements=st.one_of(st.just(np.nan), st.floats(0.0, 6.0), st.floats(-1e300, 1e300)),
    ),
    epsilon=st.sampled_from([0.1, 5.0, 50.0]),
    weighting=st.sampled_from(["adaptive", "tail", "uniform"]),
    item_means=st.booleans(),
    solver=st.sampled_from(["pooled", "dpals", "dpsgd"]),
)
@hypothesis_settings(max_examples=60)
def test_rows_of_any_content_give_finite_models(X, epsilon, weighting, item_means, solver):
    params = {"weighting": weighting, "item_means": item_means, "solver": solver}
    if solver == "pooled":
        params = {}
    model = fitted(X, epsilon, max_iter=2, n_components=2, **params)
    assert np.isfinite(model.components_).all()
    assert model.components_.shape == (2, X.shape[1])
    assert np.isfinite(model.predict(X)).all()


# -- searches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["typo", ["pooled"]])
def test_a_wrong_solver_can_be_looked_at(value):
    model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), solver=value)
    assert "solver" in dir(model)
    assert not hasattr(model, "n_components_")
    with pytest.raises(ValueError, match="solver="):
        model.plan(3)


@pytest.mark.parametrize(
    "scoring",
    [recommender_scorer("hit_rate", 3), recommender_scorer("recall", 3)],
    ids=["hits", "recall"],
)
@pytest.mark.parametrize("kind", ["index", "matrix"])
def test_grid_search_with_scorers_at_k(scoring, kind):
    X = make_ratings(200, 20, random_state=0)
    known, last = leave_one_out(X, random_state=0)
    target = last
    if kind == "matrix":
        rows = np.flatnonzero(last >= 0)
        ones = np.ones(len(rows))
        target = sparse.csr_array((ones, (rows, last[rows])), shape=X.shape)
    grid = {"budget__epsilon": [1.0, 20.0], "n_components": [1, 3]}
    model = AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5), random_state=0, max_iter=2)
    search = GridSearchCV(model, grid, cv=2, n_jobs=2, scoring=scoring, error_score="raise")
    search.fit(known, target)
    scores = search.cv_results_["mean_test_score"]
    assert len(scores) == 4
    assert np.all((scores > 0.0) & (scores <= 1.0))
    best = search.best_estimator_
    assert best.budget.epsilon == search.best_params_["budget__epsilon"]
    assert best.privacy_spent_.epsilon <= best.budget.epsilon
    # a search changes copies of the budget, not the one it was given
    assert model.budget.epsilon == 1.0


def test_six_methods_run_from_one_grid():
    """DPALS and DPSGD, uniform and tail, AdaDPALS and AdaDPSGD: no two are the same."""
    X = make_ratings(200, 20, random_state=0)
    known, last = leave_one_out(X, random_state=0)
    weightings = ["uniform", "tail", "adaptive"]
    grid = [
        {"solver": [DPALS(item_means=False)], "solver__weighting": weightings},
        {"solver": [DPSGD(item_means=False, n_inner_steps=2)], "solver__weighting": weightings},
    ]
    # without item means there is at least one factor, however few the ratings
    model = AdaptiveWeightALS(
        PrivacyBudget(20.0, 1e-05),
        max_ratings_per_user=4,
        max_iter=2,
        random_state=0,
    )
    search = GridSearchCV(
        model, grid, cv=2, scoring=recommender_scorer("recall", 3), error_score="raise"
    )
    search.fit(known, last)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    fits = [clone(model).set_params(**params).fit(known) for params in ParameterGrid(grid)]
    assert len({fit.components_.tobytes() for fit in fits}) == 6
    for fit in fits:
        assert 19.98 < fit.privacy_spent_.epsilon <= 20.0


def test_gradient_descent_keeps_the_contract():
    """The checks of scikit-learn, for the solver that is not the default."""
    check_estimator(AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5), solver="dpsgd"), on_skip=None)


def test_rating_regressor_under_cross_validation():
    X = make_ratings(400, 30, random_state=0)
    rows, columns = X.nonzero()
    table = pd.DataFrame({"user": rows, "item": columns})
    y = np.asarray(X[rows, columns]).ravel()
    scores = {
        epsilon: cross_val_score(
            RatingRegressor(
                AdaptiveWeightALS(PrivacyBudget(epsilon, 1e-5), random_state=0, max_iter=3),
                items=np.arange(30),
            ),
            table,
            y,
            cv=KFold(3, shuffle=True, random_state=0),
            scoring="neg_root_mean_squared_error",
            error_score="raise",
        ).mean()
        for epsilon in (0.01, 20.0)
    }
    assert -1.5 < scores[0.01] < scores[20.0] < -0.5


@pytest.mark.parametrize("output", ["pandas", "default"])
def test_set_output(output):
    X = make_ratings(100, 12, random_state=0)
    model = fitted(X, n_components=3).set_output(transform=output)
    Z = model.transform(X)
    names = ["adaptiveweightals0", "adaptiveweightals1", "adaptiveweightals2"]
    assert model.get_feature_names_out().tolist() == names
    if output == "pandas":
        assert Z.columns.tolist() == names
        Z = Z.to_numpy()
    np.testing.assert_array_equal(Z, fitted(X, n_components=3).transform(X))


def test_clone_copies_the_budget():
    model = AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5))
    other = clone(model).set_params(budget__epsilon=2.0)
    assert (model.budget.epsilon, other.budget.epsilon) == (1.0, 2.0)
    X = make_ratings(100, 12, random_state=0)
    model.fit(X).set_params(budget__epsilon=5.0)
    # what was spent stays what it was
    assert model.privacy_spent_.epsilon <= 1.0


# -- accuracy --------------------------------------------------------------------------------------


def baselines(train, test):
    """RMSE of the global mean and of each user's own damped mean."""
    rows, columns = test.nonzero()
    y = np.asarray(test[rows, columns]).ravel()
    n, mean = np.diff(train.indptr), train.data.mean()
    own = (np.asarray(train.sum(axis=1)).ravel() + 5.0 * mean) / (n + 5.0)
    return np.sqrt(np.mean((y - mean) ** 2)), np.sqrt(np.mean((y - own[rows]) ** 2))


def means_only(train, test, epsilon):
    """RMSE of noisy item means and the users' offsets, for the whole budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooled_als.PooledFit, "choose_rank", lambda self: 0)
        model = fitted(train, epsilon, list_share=None)
    assert not model.components_.any()
    return -model.score(train, test)


def test_private_factors_beat_means(data):
    """The whole budget is for ratings. Gaps are about 0.09 RMSE at 20; seeds change it by 0.005."""
    train, test = data
    overall, own = baselines(train, test)
    params = {"n_components": 5, "list_share": None}
    rmse = {
        epsilon: -fitted(train, epsilon, **params).score(train, test)
        for epsilon in (4.0, 20.0, math.inf)
    }
    assert rmse[20.0] < means_only(train, test, 20.0) - 0.04
    assert rmse[20.0] < own - 0.1 < overall
    assert rmse[math.inf] < rmse[20.0] < rmse[4.0] + 0.005
    assert rmse[20.0] < rmse[math.inf] + 0.03


@pytest.mark.parametrize("k", [5, 16])
def test_lists_do_no_harm_where_choices_say_nothing(k, data):
    """These users choose at random: such directions are no start of the factors of ratings.

    Means of three seeds; over eight they are .000 and .014 apart, for a quarter of the budget.
    """
    train, test = data

    def rmse(seed, share):
        model = fitted(train, 20.0, n_components=k, list_share=share, random_state=seed)
        return -model.score(train, test)

    with_lists, without = (
        np.mean([rmse(seed, share) for seed in range(3)]) for share in ("auto", None)
    )
    assert with_lists < without + 0.02


def test_factors_that_would_drown_do_no_harm(data):
    """At small epsilon, mean of three seeds, within the noise of the means alone."""
    train, test = data
    for epsilon in (0.1, 0.3):
        found = [-fitted(train, epsilon, random_state=s).score(train, test) for s in range(3)]
        assert np.mean(found) < means_only(train, test, epsilon) + 0.05


@pytest.mark.parametrize("weighting", ["uniform", "tail"])
def test_baselines_of_the_paper_learn_something(weighting, data):
    train, test = data
    model = fitted(train, 20.0, solver="dpals", weighting=weighting, max_ratings_per_user=30)
    assert -model.score(train, test) < baselines(train, test)[1] - 0.05


# RMSE of the table, mean of five seeds; one seed may be 0.01 worse.
MOVIELENS = {1.0: 0.945, 4.0: 0.925, 8.0: 0.915, 20.0: 0.895, math.inf: 0.855}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", MOVIELENS)
def test_movielens(epsilon, ml1m_path):
    pytest.importorskip("pyarrow")
    frame = pd.read_parquet(ml1m_path)
    held_out = np.random.default_rng(0).random(len(frame)) < 0.1
    ids = {"users": np.unique(frame["user"]), "items": np.unique(frame["item"])}
    X = ratings_to_matrix(frame[~held_out], **ids).X
    Y = ratings_to_matrix(frame[held_out], **ids).X
    model = fitted(X, epsilon, n_jobs=2)
    assert -model.score(X, Y) <= MOVIELENS[epsilon] + 0.01
