"""AdaptiveWeightALS with clicks: what counts as one, scores, rankings and the common contract."""

import math

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from skdpmf import AdaptiveWeightALS, Clicks, DPCovarianceRecommender, PrivacyBudget, load_model
from skdpmf.data import make_ratings, validate_ratings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract.recommend import hidden_fifth
from skdpmf.evaluation import PrivateSearchCV, recall_at_k, split_users
from skdpmf.mechanisms.als.clicks import TIE
from skdpmf.mechanisms.als.loop import FOLD_IN_RIDGE
from tests.built import built

BUDGET = PrivacyBudget(20.0, 1e-5)


def make_clicks(n_users=600, n_items=30, seed=0):
    """Clicks of rank two on items of falling popularity, 0 for none."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=(n_users, 2)) @ rng.normal(size=(2, n_items))
    score += np.linspace(0.5, -1.5, n_items) + rng.normal(size=(n_users, n_items))
    return (score > 0.0).astype(float)


def model_of(solver="dpals", budget=BUDGET, **params):
    params = {"n_components": 4, "max_iter": 4, "random_state": 0, **params}
    params = {"feedback": "implicit", "solver": solver, **params}
    return built(AdaptiveWeightALS, budget, **params)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["pooled", "dpals"])
def test_estimator_checks(solver):
    """Those of ratings are in test_common."""
    model = AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5), feedback="implicit", solver=solver)
    check_estimator(model, on_skip=None)


def test_what_is_a_click():
    """Values above 0, at most 1; the rating range and the terms of means play no part."""
    X = make_clicks()
    model = model_of().fit(X)
    wild = np.where(X > 0, 7.0, np.where(np.arange(30) % 2, -3.0, np.nan))
    for other, params in (
        (wild, {}),
        (sparse.csr_array(X), {"rating_range": (-2.0, 10.0)}),
        (np.where(X > 0, 1.0, np.nan), {"user_damping": 3.0}),
    ):
        again = clone(model).set_params(random_state=None, **params).set_params(random_state=0)
        again.fit(other)
        np.testing.assert_array_equal(again.predict(X[:9]), again.predict(other[:9]))
        seen = again.recommend(other[:50], 30)[0]
        down = wild < 0 if other is wild else X < 0  # zeros of a dense row without NaN say nothing
        for row, marked, items in zip(X, down, seen, strict=False):
            assert set(items) - {-1} == set(np.flatnonzero((row == 0) & ~marked))
    np.testing.assert_array_equal(
        model.decision_function(wild[:20]), model.decision_function(X[:20])
    )
    # half a click is less than one, and more than none
    item = int(np.argmax(np.abs(model.components_).sum(axis=0)))
    scores = [model.decision_function(v * np.eye(30)[[item]])[0, item] for v in (0.0, 0.5, 1.0)]
    assert scores[0] < scores[1] < scores[2]


@pytest.mark.parametrize("weights", [(-1.0, 2.0), (0.0, 1.0), (-7.0, 0.3, 0.0)])
@pytest.mark.parametrize("kind", [AdaptiveWeightALS, DPCovarianceRecommender])
def test_what_is_marked_down_is_never_recommended(kind, weights):
    """It is no click either, and the report for the curator counts it."""
    C = make_ratings(60, 30, density=0.2, user_exponent=0.0, random_state=0)
    C.data = np.resize(weights, C.nnz)
    liked, down = as_rating_matrix(np.where(C.toarray() > 0, C.toarray(), np.nan)), C.data <= 0
    model = kind(PrivacyBudget.nonprivate(), feedback="implicit")
    report = validate_ratings(C, model)
    assert report.n_marked_down == down.sum()
    assert f"{down.sum()} ({down.mean():.0%})" in report.problems["n_marked_down"]
    model.fit(C)
    np.testing.assert_array_equal(model.transform(C), clone(model).fit(liked).transform(liked))
    rows = np.repeat(np.arange(60), np.diff(C.indptr))
    bad = set(zip(rows[down].tolist(), C.indices[down].tolist(), strict=True))
    column = sparse.csr_array(([1.0], ([0], [3])), shape=C.shape)
    for options in ({}, {"exclude_seen": False}, {"exclude": column}, {"exclude": [3]}):
        lists = model.recommend(C, 30, **options)[0]
        assert not {(i, j) for i, row in enumerate(lists.tolist()) for j in row} & bad
    one = {int(j): float(w) for j, w in zip(C.indices[: C.indptr[1]], C.data, strict=False)}
    np.testing.assert_array_equal(model.recommend(one, 30)[0], model.recommend(C[[0]], 30)[0])
    model.fit(C, np.zeros(60, int))
    assert not set(enumerate(model.predict(C).tolist())) & bad
    assert model.score(C, model.predict(C)) == 1.0


def test_fold_in_is_weighted_ridge_regression():
    """With the weights of clicks, and V'V for all that was not clicked."""
    X = make_clicks()
    model = model_of(alpha=0.5, unobserved_weight=0.3).fit(X)
    row = np.random.default_rng(1).random(30) * X[0]
    V, b = model.components_.T, model.item_means_
    A = (V * row[:, None]).T @ V + 0.3 * V.T @ V + 0.5 * FOLD_IN_RIDGE * np.eye(4)
    u = np.linalg.solve(A, V.T @ (row * (1.0 - b)))
    np.testing.assert_allclose(model.transform(row[None])[0], u, atol=1e-10)
    np.testing.assert_allclose(model.decision_function(row[None])[0], b + V @ u, atol=1e-10)
    scores = model.predict(X)
    assert scores.min() >= 0.0
    assert scores.max() <= 1.0
    assert 0.0 < b.max() <= TIE


def test_score_is_recall_at_20():
    X = make_clicks(n_items=60)
    model = model_of().fit(X)
    R = as_rating_matrix(np.where(X > 0, X, np.nan))
    hidden = hidden_fifth(R)
    known, targets = (
        sparse.csr_array((R.data[keep], (R.nonzero()[0][keep], R.indices[keep])), shape=X.shape)
        for keep in (~hidden, hidden)
    )
    expected = recall_at_k(targets, model.recommend(known, 20)[0], 20)
    assert model.score(X) == pytest.approx(expected, abs=1e-12)
    held_out = np.where(targets.toarray() > 0, 1.0, 0.0)
    assert model.score(known, held_out) == pytest.approx(expected, abs=1e-12)
    last = np.array([row.nonzero()[0][-1] if row.any() else -1 for row in held_out])
    best = model.recommend(known, 1)[0][:, 0]
    assert model.score(known, last) == pytest.approx(np.mean((best == last)[last >= 0]))
    with pytest.raises(ValueError, match="nothing to score on"):
        model.score(known, np.zeros(X.shape))


@pytest.mark.parametrize("solver", ["pooled", "dpals"])
def test_better_than_popularity(solver):
    """Fitted on other users, at a budget that supports factors; below, popularity is the model."""
    known, new, targets = split_users(make_clicks(3000, 80), random_state=0)
    recalls = {}
    for epsilon in (0.5, 20.0, math.inf):
        budget = PrivacyBudget(epsilon, 1e-5) if epsilon < math.inf else PrivacyBudget.nonprivate()
        model = model_of(solver, budget, max_iter=8).fit(known)
        recalls[epsilon] = recall_at_k(targets, model.recommend(new, 10)[0], 10)
    popular = np.argsort(-known.sum(axis=0), kind="stable")
    ranked = [[j for j in popular if not row[j]][:10] for row in new.toarray()]
    popularity = recall_at_k(targets, np.array(ranked), 10)
    assert recalls[0.5] > 0.9 * popularity
    assert recalls[20.0] > 1.05 * popularity
    assert recalls[math.inf] > 1.05 * popularity


def plays_of(seed=0, n_users=300, n_items=30):
    """Counts of plays, some of 0 and below, a row of none and one of the largest number."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n_users, n_items)) < 0.4, rng.poisson(9.0, (n_users, n_items)), np.nan)
    X[0], X[1, 3], X[2, 4] = np.nan, -2.0, 1e308
    return X


@pytest.mark.parametrize("kind", [AdaptiveWeightALS, DPCovarianceRecommender])
def test_counts_weigh_by_their_logarithm(kind, tmp_path):
    """A fit on counts is that on the weights by hand, in the fold-in and from a file as well."""
    X, weights = plays_of(), np.full((300, 30), np.nan)
    for row, own in zip(X, weights, strict=True):
        played = row > 0
        if played.any():
            own[played] = 0.5 + 0.5 * np.log1p(row[played]) / np.log1p(row[played].max())
    params = {"budget": BUDGET, "random_state": 0}
    model = kind(feedback=Clicks(weighting="log"), **params).fit(X)
    twin = kind(feedback="implicit", **params).fit(weights)
    assert 0.5 <= np.nanmin(weights) < np.nanmax(weights) == 1.0
    np.testing.assert_allclose(model.components_, twin.components_, atol=1e-9)
    np.testing.assert_allclose(
        model.decision_function(X), twin.decision_function(weights), atol=1e-9
    )
    lists = model.recommend(X, 5)
    np.testing.assert_array_equal(lists[0][3:], twin.recommend(weights, 5)[0][3:])
    row = {j: X[9, j] for j in np.flatnonzero(X[9] > 0).tolist()}
    np.testing.assert_array_equal(model.recommend(row, 5)[0][0], lists[0][9])
    # counts of twice the size are about the same taste, equal ones and likes the same
    equal = np.where(X > 0, 7.0, np.nan)
    np.testing.assert_array_equal(model.transform(equal), model.transform(equal / 7.0))
    model.save(tmp_path / "plays.skdpmf")
    again = load_model(tmp_path / "plays.skdpmf")
    assert again.feedback == Clicks(weighting="log")
    np.testing.assert_array_equal(again.recommend(X, 5)[0], lists[0])
    # without the weighting a count says no more than one play
    plain, once = (kind(feedback="implicit", **params).fit(Y) for Y in (X, np.where(X > 0, 1.0, X)))
    np.testing.assert_array_equal(plain.components_, once.components_)


def test_the_private_search_compares_ratings_only():
    search = PrivateSearchCV(model_of(budget=None), {"alpha": [0.5, 1.0]}, BUDGET, n_trials=2)
    with pytest.raises(ValueError, match="must be a recommender of ratings"):
        search.fit(make_clicks())
