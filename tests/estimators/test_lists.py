"""Item-item lists: EASE of clicks, lists beside ratings, and what explains a recommendation."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from skdpmf import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    NearestItems,
    PrivacyBudget,
)
from skdpmf.estimators.contract.recommend import (
    ItemModel,
    Ranking,
    all_scores,
    contributions,
    entry_scores,
    fold_in,
)
from skdpmf.estimators.contract.recommend import top_items as ranked
from skdpmf.mechanisms.als.pooled import user_features
from skdpmf.mechanisms.gram.item_item import EXACT_RIDGE
from tests.built import built
from tests.estimators.common import ranking_scores, ratings
from tests.matrices import csr

NONPRIVATE = PrivacyBudget.nonprivate()
LARGE, TINY = PrivacyBudget(50.0, 1e-5), PrivacyBudget(0.05, 1e-5)


def choices(n_users=400, n_items=30, n_groups=3, seed=0):
    """Which items are chosen, 0 or 1: popular ones, and those of a user's own group.

    Row 5 has chosen nothing.
    """
    rng = np.random.default_rng(seed)
    own = rng.integers(n_groups, size=(n_users, 1)) == np.arange(n_items) % n_groups
    popularity = 0.5 / np.sqrt(1.0 + np.arange(n_items) // n_groups)
    X = (rng.random((n_users, n_items)) < popularity * np.where(own, 1.6, 0.3)).astype(float)
    X[5] = 0.0
    return X


def clustered_ratings(n_users=1500, n_items=60, seed=0):
    """Ratings of clustered choices that say nothing of the clusters; NaN is unknown."""
    rng = np.random.default_rng(seed)
    X = choices(n_users, n_items, seed=seed)
    quality = rng.normal(3.2, 0.5, n_items) + rng.normal(0.0, 0.4, (n_users, 1))
    stars = np.clip(np.rint(quality + rng.normal(0.0, 0.7, X.shape)), 1.0, 5.0)
    return np.where(X > 0, stars, np.nan)


def clicks_model(budget=LARGE, **params):
    params = {"feedback": "implicit", "random_state": 0, **params}
    return built(DPCovarianceRecommender, budget, **params)


def rated_model(budget=LARGE, **params):
    params = {"n_components": 3, "max_iter": 3, "random_state": 0, **params}
    return built(AdaptiveWeightALS, budget, **params)


@pytest.mark.parametrize("implicit", [False, True])
def test_scores_of_an_encoder_are_the_loops(implicit):
    """Dense, at entries and in lists; no item adds to its own score."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((25, 9)) < 0.4, rng.uniform(0.1, 1.0, (25, 9)), np.nan)
    X[3], X[4] = np.nan, 0.5
    b, (W, V) = rng.normal(size=9), rng.normal(size=(2, 9, 3))
    model = ItemModel(b, V, np.empty((0, 0)), implicit=implicit, encoder=W)
    expected = np.tile(b, (25, 1))
    for i, j, other in np.ndindex(25, 9, 9):
        if other != j and not np.isnan(X[i, other]):
            expected[i, j] += (X[i, other] if implicit else 1.0) * (W[other] @ V[j])
    R = csr(X)
    np.testing.assert_allclose(all_scores(model, R), expected, rtol=0, atol=1e-12)
    where = csr(np.where(rng.random(X.shape) < 0.5, 1.0, np.nan))
    rows = np.repeat(np.arange(25), np.diff(where.indptr))
    found = entry_scores(model, R, where, 2)
    np.testing.assert_allclose(found, expected[rows, where.indices], rtol=0, atol=1e-12)
    for items in (None, np.array([1, 4, 8])):
        allowed = np.isin(np.arange(9), np.arange(9) if items is None else items)
        for unseen in (False, True):
            left = np.where(allowed & (np.isnan(X) | (not unseen)), expected, -np.inf)
            best, scores = ranked(model, R, 2, exclude_seen=unseen, items=items)
            order = np.argsort(-left, axis=1)[:, :2]
            top = np.take_along_axis(left, order, axis=1)
            np.testing.assert_array_equal(best, np.where(np.isneginf(top), -1, order))
            np.testing.assert_allclose(scores, top, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"noise": "laplace"}, "noise='laplace' must be 'gaussian' for feedback='implicit'"),
        ({"budget": PrivacyBudget(1.0, 1e-5, unit="rating")}, "unit='rating' must be 'user'"),
        ({"budget": PrivacyBudget(1.0)}, "delta=0.* must be"),
        ({"feedback": "clicks"}, "feedback='clicks' must be 'explicit', 'implicit'"),
    ],
    ids=str,
)
def test_what_clicks_cannot_have_is_refused(params, words):
    with pytest.raises(ValueError, match=words):
        clicks_model().set_params(**params).fit(choices())


def test_without_privacy_it_is_ease():
    """B = I - P diag(1 / diag P) of the dense inverse P; a score is the row times B."""
    X = choices() * np.random.default_rng(1).choice([0.5, 1.0], size=(400, 30))
    G, n = X.T @ X, X.sum(axis=1)
    N = G.diagonal()
    ridge = EXACT_RIDGE * math.sqrt((N @ N) / N.sum() * (n @ n) / n.sum())
    P = np.linalg.inv(G + ridge * np.eye(30))
    B = np.eye(30) - P / P.diagonal()
    np.testing.assert_allclose(B.diagonal(), 0.0, atol=1e-12)
    model = clicks_model(NONPRIVATE).fit(X)
    scores = model.decision_function(X) - model.item_means_
    np.testing.assert_allclose(scores, X @ B, rtol=0, atol=1e-10)
    assert 0.0 < model.item_means_.min() <= model.item_means_.max() <= 1e-3


def recall(hidden, items):
    """Mean over users with hidden items of the share of them that is listed."""
    shares = [
        np.isin(np.flatnonzero(row), own).sum() / min(np.count_nonzero(row), len(own))
        for row, own in zip(hidden, items, strict=True)
        if row.any()
    ]
    return float(np.mean(shares))


@pytest.fixture(scope="module")
def split():
    """Known ratings, and which items the users have chosen besides."""
    X = clustered_ratings()
    hidden = (np.random.default_rng(3).random(X.shape) < 0.3) & ~np.isnan(X)
    return np.where(hidden, np.nan, X), hidden.astype(float)


@pytest.mark.parametrize("budget", [PrivacyBudget(8.0, 1e-5), NONPRIVATE], ids=["8", "inf"])
def test_lists_by_choice_find_more(budget, split):
    """Recall of ten items: of lists by choice, by predicted rating, and of the most popular."""
    known, hidden = split
    popularity = (~np.isnan(known)).sum(axis=0)
    popular = np.argsort(-np.where(np.isnan(known), popularity, -1), axis=1)[:, :10]
    found = {
        share: recall(hidden, rated_model(budget, list_share=share).fit(known).recommend(known)[0])
        for share in ("auto", None)
    }
    assert found["auto"] > recall(hidden, popular) + 0.05
    assert found["auto"] > found[None] + 0.1


SINGLE = 2e-5  # what a ranking adds by choices is in single precision


@pytest.mark.parametrize("budget", [TINY, LARGE, NONPRIVATE], ids=lambda b: f"{b.epsilon:g}")
def test_ranking_is_the_loops_and_changes_no_prediction(budget, split):
    X = split[0][:60]
    model = rated_model(budget).fit(split[0])
    assert (model._ranking_.lists.encoder.shape[1] > 0) == (budget is not TINY)
    expected = ranking_scores(model, X)
    said = [model.predict(X), model.decision_function(X), model.score(X), model.transform(X)]
    said.append(model.predict_entries(X, X).data)
    for unseen in (True, False):
        scores = np.where(np.isnan(X) | (not unseen), expected, -np.inf)
        items, best = model.recommend(X, 8, exclude_seen=unseen)
        np.testing.assert_allclose(best, -np.sort(-scores, axis=1)[:, :8], rtol=0, atol=SINGLE)
        found = np.take_along_axis(scores, items, axis=1)
        np.testing.assert_allclose(found, best, rtol=0, atol=SINGLE)
    model._ranking_ = None
    again = [model.predict(X), model.decision_function(X), model.score(X), model.transform(X)]
    again.append(model.predict_entries(X, X).data)
    for one, two in zip(said, again, strict=True):
        np.testing.assert_array_equal(one, two)


def test_no_share_is_no_list(split):
    """Predicted ratings beside popularity alone; clicks are ranked by what is predicted."""
    model = rated_model(list_share=None).fit(split[0])
    assert not model._ranking_.lists.factors.shape[1]
    names = [release.name for release in model.privacy_spent_.releases]
    assert "Gram matrix of what is rated" not in names
    assert not rated_model(solver="dpals").fit(split[0][:200])._ranking_.lists.factors.shape[1]
    assert rated_model(feedback="implicit").fit(split[0][:200])._ranking_ is None


@pytest.mark.parametrize("n_listed", [0, 1, 7, 20])
@pytest.mark.parametrize("candidates", [None, np.array([2, 3, 5, 8, 13, 19])])
def test_items_without_lists_are_ranked_by_the_rest(n_listed, candidates):
    """Only items with a list factor are read for it: the ranks are those of the whole product."""
    rng = np.random.default_rng(n_listed)
    X = np.where(rng.random((6, 20)) < 0.3, rng.integers(1, 6, (6, 20)), np.nan)
    R = csr(X)
    listed = np.sort(rng.choice(20, n_listed, replace=False))
    factors = np.zeros((20, 4))
    factors[listed] = rng.normal(size=(n_listed, 4))
    encoder = rng.normal(size=(20, 4))
    N = np.exp(rng.normal(size=20))
    lists = ItemModel(N, factors, np.empty((0, 0)), encoder=encoder)
    model = ItemModel(rng.normal(size=20), rng.normal(size=(20, 2)), np.eye(2))
    ranking = Ranking(lists, 0.7)
    fitted = SimpleNamespace(_item_model_=model, _ranking_=ranking)
    expected = ranking_scores(fitted, X)
    expected[np.repeat(np.arange(6), np.diff(R.indptr)), R.indices] = -np.inf
    columns = np.arange(20) if candidates is None else candidates
    order = np.argsort(-expected[:, columns], axis=1, kind="stable")[:, :5]
    best, scores = ranked(model, R, 5, items=candidates, ranking=ranking)
    found = np.isfinite(scores)
    np.testing.assert_array_equal(best[found], columns[order][found])
    top = np.take_along_axis(expected[:, columns], order, axis=1)
    np.testing.assert_allclose(scores, top, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, math.nan, "half", True, [0.5]])
def test_a_share_must_be_one(value):
    with pytest.raises(ValueError, match=r"list_share=.*must be 'auto', a number between 0 and 1"):
        rated_model(list_share=value).fit(choices())


MODELS = {
    "clicks": clicks_model(),
    "popularity": clicks_model(TINY),
    "ratings": rated_model(),
    "no lists": rated_model(list_share=None),
    "folded-in clicks": rated_model(NONPRIVATE, feedback="implicit"),
    "svd": DPCovarianceRecommender(NONPRIVATE, n_components=2),
    "knn": DPCovarianceRecommender(NONPRIVATE, predictor=NearestItems(n_neighbors=4)),
    "features": DPItemMeans(NONPRIVATE, item_features=np.eye(3)[np.arange(12) % 3]),
}


@pytest.fixture(scope="module")
def explained():
    X = ratings(80, 12, density=0.5)
    X[7] = np.nan
    Y = np.where(X > 2, (X - 2) / 3, np.nan)
    return {
        name: (model.fit(rows), rows)
        for name, model in MODELS.items()
        for rows in [Y if getattr(model, "feedback", "") == "implicit" else X]
    }


def scored(model, X, item):
    """What an item is ranked by, for each row, seen or not."""
    return model.recommend(X, 1, exclude_seen=False, candidates=[item])[1][:, 0]


def said_by_the_prior(model, R, item):
    """What the prior mean adds to the ranking score of an item, for each row."""
    items, ranking = model._item_model_, model._ranking_
    if ranking is None or items.prior is None:
        return 0.0
    p, n = user_features(R.indptr, R.indices, items.factors) @ items.prior, np.diff(R.indptr)
    table = model._score_table()
    scales = ranking.scales(items, fold_in(items, R), fold_in(ranking.lists, R), table)
    return np.where(n > 0, (scales * p) @ table.first[2:, item], 0.0)


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_constants_and_contributions(name, explained):
    """The constant depends on which items a row has, and not on how they are rated.

    Where ratings rank beside popularity, they weigh what the prior mean says.
    """
    model, X = explained[name]
    rng = np.random.default_rng(0)
    low, high = (0.05, 1.0) if name in ("clicks", "folded-in clicks", "popularity") else (1.0, 5.0)
    others = np.where(np.isnan(X), np.nan, rng.uniform(low, high, X.shape))
    for item in (0, 5):
        constants = []
        for rows in (X, others):
            parts = model.explain(rows, np.full(len(X), item))
            assert parts.shape == X.shape
            np.testing.assert_array_equal(parts.indices, csr(X).indices)
            constants.append(scored(model, rows, item) - parts.sum(axis=1))
            constants[-1] -= said_by_the_prior(model, csr(rows), item)
        if name == "folded-in clicks":  # it has no prior
            constants.append(np.full(len(X), model.item_means_[item]))
        np.testing.assert_allclose(constants[0], constants[-1], rtol=0, atol=1e-9)
        assert not parts[[7]].nnz
        if name != "popularity":
            assert np.abs(parts.data).max() > 1e-7


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("n_prior", [0, 1])
def test_contributions_to_a_ridge_fold_in_are_the_dense_solve(implicit, n_prior):
    """Column by column: the solution for a target of one entry, all others at 0."""
    rng = np.random.default_rng(4)
    X = np.where(rng.random((12, 8)) < 0.6, rng.uniform(0.2, 1.0, (12, 8)), np.nan)
    b, V, root = rng.normal(size=8), rng.normal(size=(8, 3)), rng.normal(size=(3, 3))
    ridge, prior = root @ root.T, rng.normal(size=(4, 3)) if n_prior else None
    model = ItemModel(b, V, ridge, 0.3, prior, implicit)
    items = rng.integers(8, size=12)
    found = contributions(model, csr(X), items)
    at = 0
    for row, item in zip(X, items, strict=True):
        own = np.flatnonzero(~np.isnan(row))
        p = np.zeros(3)
        if n_prior:
            p = np.append(np.log1p(own.size) - 4.5, V[own].mean(axis=0)) @ prior
        w = row[own] if implicit else np.ones(own.size)
        target = (1.0 if implicit else row[own]) - b[own] - V[own] @ p
        A = V[own].T @ (w[:, None] * V[own]) + ridge + 0.3 * own.size * np.eye(3)
        for entry, j in enumerate(own):
            y = np.linalg.solve(A, w[entry] * target[entry] * V[j])
            assert found[at] == pytest.approx(y @ V[item], abs=1e-12)
            at += 1
    assert at == found.size


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (12, "items holds 12 and must hold indices from 0 to 11"),
        ([1, 2], "items has 2 entries and must be one item, or one for each of the 80 rows"),
        (np.zeros((80, 1), int), "must be column indices, integers in one dimension"),
        ("film", "must be column indices"),
    ],
    ids=str,
)
def test_items_to_explain_must_be_items(items, words, explained):
    model, X = explained["ratings"]
    with pytest.raises(ValueError, match=words):
        model.explain(X, items)


RATED = {
    "als": rated_model(PrivacyBudget(8.0, 1e-5)),
    "als, no lists": rated_model(PrivacyBudget(8.0, 1e-5), list_share=None),
    "covariance": built(DPCovarianceRecommender, PrivacyBudget(8.0, 1e-5), random_state=0),
    "knn": built(DPCovarianceRecommender, NONPRIVATE, predictor="knn"),
    "means": built(DPItemMeans, PrivacyBudget(8.0, 1e-5), random_state=0),
    "sampler": built(DPMFSampler, PrivacyBudget(8.0, 1e-5), max_iter=2, random_state=0),
    "local": built(LocalDPGDDR, PrivacyBudget(8.0), random_state=0),
    "sgd": built(CacheSGDFactorizer, 3, max_iter=3, random_state=0),
}


@pytest.mark.parametrize("name", RATED)
def test_taste_leads_from_what_is_chosen_to_what_is_liked(name, split):
    """Predicted ratings alone are the one end, and lists are no worse than the other one."""
    known, hidden = split
    model = RATED[name].fit(known)
    rows, some = known[:200], hidden[:200]
    lists = model._ranking_.lists
    found = model.recommend(rows, 10)[0]
    popular = np.argsort(-np.where(np.isnan(rows), lists.offsets, -1.0), axis=1)[:, :10]
    assert recall(some, found) >= recall(some, popular) - 0.02
    liked, scores = model.recommend(rows, 10, taste=1)
    left = np.where(np.isnan(rows), model.decision_function(rows), -np.inf)
    np.testing.assert_allclose(scores, -np.sort(-left, axis=1)[:, :10], rtol=0, atol=1e-10)
    found = np.take_along_axis(left, liked, axis=1)
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-10)
    if not lists.factors.shape[1]:
        chosen, scores = model.recommend(rows, 10, taste=0)
        found = np.take_along_axis(np.where(np.isnan(rows), lists.offsets, 0.0), chosen, axis=1)
        np.testing.assert_allclose(np.exp(scores), found, rtol=1e-12)
        assert (np.diff(scores) <= 0.0).all()


GENRES = np.eye(6)[np.arange(60) % 6]  # two in each cluster of choices


@pytest.fixture(scope="module", params=["als", "covariance", "means"])
def with_genres(request, split):
    return RATED[request.param].set_params(item_features=GENRES).fit(split[0])


@pytest.mark.parametrize("candidates", [None, np.arange(0, 60, 7)])
def test_lists_by_features_are_the_loops(with_genres, candidates, split):
    X = split[0][:40]
    expected = np.where(np.isnan(X), ranking_scores(with_genres, X), -np.inf)
    if candidates is not None:
        expected[:, np.setdiff1d(np.arange(60), candidates)] = -np.inf
    items, best = with_genres.recommend(X, 4, candidates=candidates)
    np.testing.assert_allclose(best, -np.sort(-expected, axis=1)[:, :4], rtol=0, atol=SINGLE)
    found = np.take_along_axis(expected, items, axis=1)
    np.testing.assert_allclose(found[items >= 0], best[items >= 0], rtol=0, atol=SINGLE)


def test_explain_says_in_words_why(with_genres, split):
    """Names are those of the columns of features where the catalogue has no genres."""
    names = [f"genres={name}" for name in "ABCDEF"]
    model = clone(with_genres).set_params(item_features=pd.DataFrame(GENRES, columns=names))
    model.fit(split[0]).set_output(recommend="pandas")
    said = model.explain(dict.fromkeys((1, 7, 13, 19), 5.0), 25)
    assert said["why"].unique().size == 1
    assert "you rated B high" in said["why"][0]
    for low in (model.explain({1: 1.0, 7: 1.0}, 25), model.explain({1: 5.0, 7: 5.0}, 26)):
        assert not low["why"].str.contains("you rated . high").any()
    clicks = clicks_model(TINY).fit(choices()).set_output(recommend="pandas")
    said = [
        clicks.explain({1: 1.0}, item)["why"].unique().tolist() for item in range(30) if item != 1
    ]
    assert sorted(map(tuple, said))[0] == ("popular with everybody",)
    assert sorted(map(tuple, said))[-1] == ("your ratings say nothing about it",)


@pytest.mark.parametrize("taste", [-0.1, 1.1, math.nan, "much", [0.5]])
def test_taste_must_be_a_share(taste, explained):
    model, X = explained["ratings"]
    with pytest.raises(ValueError, match=r"taste=.* must be None or a number from 0 to 1"):
        model.recommend(X, taste=taste)
