"""Scorers: equal to the metrics on recommend and predict_entries; in searches; picklable."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_validate

from skdpmf import DPItemMeans, PrivacyBudget
from skdpmf import evaluation as ev
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.data.matrix import keep_entries
from skdpmf.estimators.contract.recommend import hidden_fifth
from skdpmf.evaluation.metrics import average_precision_at_k, reciprocal_rank_at_k
from tests.evaluation.standin import MeansRecommender
from tests.matrices import dense

OF_LISTS = {
    "recall": ev.recall_at_k,
    "ndcg": ev.ndcg_at_k,
    "precision": ev.precision_at_k,
    "average_precision": average_precision_at_k,
    "reciprocal_rank": reciprocal_rank_at_k,
}


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(0)
    known = rng.random((60, 15)) < 0.5
    rows, columns = np.nonzero(known)
    data = np.clip(np.round(3 + 0.1 * columns + rng.normal(0, 1, rows.size)), 1, 5)
    return sparse.csr_array((data, (rows, columns)), shape=known.shape)


@pytest.mark.parametrize("name", OF_LISTS)
def test_ranking_scorers_equal_the_metric(ratings, name):
    scorer, metric = ev.recommender_scorer(name, 3), OF_LISTS[name]
    model = MeansRecommender().fit(ratings)
    known, y = ev.leave_one_out(ratings, random_state=0)
    items, _ = model.recommend(known, n=3)
    assert 0 < scorer(model, known, y) == metric(y, items, 3)
    train, held_out = ev.split_ratings(ratings, test_size=0.3, random_state=0)
    items, _ = model.recommend(train, n=3)
    assert 0 < scorer(model, train, held_out) == metric(held_out, items, 3)
    assert ev.recommender_scorer(name).k == 10


@pytest.mark.parametrize("name", OF_LISTS)
def test_item_names_stand_for_columns(ratings, name):
    scorer = ev.recommender_scorer(name, 4)
    known, y = ev.leave_one_out(ratings, random_state=0)
    keep = y >= 0
    stored = known.toarray()
    stored[known.toarray() == 0] = np.nan
    names = np.array([f"item{index:02d}" for index in range(15)])
    X = pd.DataFrame(stored, columns=names)[keep]
    model = MeansRecommender().fit(X)
    expected = scorer(model, X, y[keep])
    assert scorer(model, X, names[y[keep]]) == expected
    assert scorer(model, X, pd.Series(names[y[keep]])) == expected


def test_scorers_refuse_items_outside_the_catalogue(ratings):
    y, scorer = np.zeros(60, dtype=int), ev.recommender_scorer("recall", 2)
    model = MeansRecommender().fit(ratings)
    with pytest.raises(ValueError, match="y names item 15 and X has 15 columns"):
        scorer(model, ratings, y + 15)
    with pytest.raises(ValueError, match="fitted without item names"):
        scorer(model, ratings, y.astype(str))
    with pytest.raises(ValueError, match="y of dtype float64 must hold column indices"):
        scorer(model, ratings, y.astype(float))
    frame = pd.DataFrame(ratings.toarray(), columns=[f"i{index}" for index in range(15)])
    with pytest.raises(ValueError, match=r"y names the item .*and 59 more items"):
        scorer(MeansRecommender().fit(frame), frame, np.array(["other"] * 60))


def test_rmse_scorer(ratings):
    rmse_scorer = ev.recommender_scorer("rmse")
    train, test = ev.split_ratings(ratings, random_state=0)
    model = MeansRecommender().fit(train)
    expected = -ev.rmse(test, model.predict_entries(train, test))
    assert -2 < rmse_scorer(model, train, test) == expected
    assert rmse_scorer(model, train, dense(test)) == expected
    assert rmse_scorer(model, train, pd.DataFrame(dense(test))) == expected
    with pytest.raises(ValueError, match=r"y of shape \(60,\) must be a users x items matrix"):
        rmse_scorer(model, train, np.zeros(60))


@pytest.mark.parametrize("name", [*OF_LISTS, "rmse"])
def test_all_scorers_are_used_in_the_same_way(name, ratings):
    train, test = ev.split_ratings(ratings, random_state=0)
    model = MeansRecommender().fit(train)
    scorer = ev.recommender_scorer(name, 7)
    search = GridSearchCV(model, {}, cv=2, scoring=scorer, error_score="raise")
    assert search.fit(train, test).best_score_ == pytest.approx(scorer(model, train, test), abs=1)
    assert pickle.loads(pickle.dumps(scorer)) == scorer
    assert (scorer == ev.recommender_scorer(name, 8)) == (name == "rmse")


@pytest.mark.parametrize("name", ["recall", "ndcg", "rmse", None])
def test_held_out_ratings_in_both_searches(name, ratings):
    """As RatingMatrix also where scikit-learn takes no sparse y; zeros for unknown are refused."""
    known, hidden = ev.split_ratings(ratings, random_state=0)
    model = DPItemMeans(PrivacyBudget.nonprivate())
    scoring = None if name is None else ev.recommender_scorer(name, 3)
    search = GridSearchCV(model, {}, cv=3, scoring=scoring, error_score="raise").fit(known, hidden)
    scores = [search.cv_results_[f"split{i}_test_score"][0] for i in range(3)]
    options = {"cv": 3, "scoring": scoring, "error_score": "raise"}
    found = cross_validate(model, known, RatingMatrix(hidden), **options)["test_score"]
    np.testing.assert_array_equal(found, scores)
    for y in (hidden.toarray(), pd.DataFrame(hidden.toarray())):
        with pytest.raises(
            ValueError, match=r"y has a value in each of its 300 cells, and \d+ .*: "
        ):
            cross_validate(model, known, y, **options)


@pytest.mark.parametrize("name", ["recall", "precision", "rmse"])
def test_without_y_a_fifth_of_each_row_is_hidden(name, ratings):
    """The same one as that of `score`, whatever holds the rows."""
    scorer, model = ev.recommender_scorer(name, 3), DPItemMeans(PrivacyBudget.nonprivate())
    hidden = hidden_fifth(ratings)
    known, held_out = keep_entries(ratings, ~hidden), keep_entries(ratings, hidden)
    expected = scorer(model.fit(ratings), known, held_out)
    names = [f"i{j}" for j in range(15)]
    frame = pd.DataFrame(dense(ratings), columns=names)
    for X in (ratings, frame, RatingMatrix(ratings, None, names)):
        assert scorer(model.fit(X), X) == pytest.approx(expected, abs=1e-12)
    if name == "rmse":
        assert model.fit(ratings).score(ratings) == pytest.approx(expected, abs=1e-12)
    grid = {"user_damping": [1.0, 50.0]}
    search = GridSearchCV(model, grid, cv=2, scoring=scorer, error_score="raise").fit(ratings)
    best = clone(model).set_params(**search.best_params_).fit(ratings[:30])
    assert search.cv_results_["split1_test_score"][search.best_index_] == scorer(best, ratings[30:])
    with pytest.raises(ValueError, match="too few ratings"):
        scorer(model, sparse.csr_array((2, 15)))
