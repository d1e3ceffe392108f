"""What the base does, on the stand-in: formulas, blocks, callbacks, errors."""

import pickle
import tracemalloc

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone

from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract import recommend
from skdpmf.estimators.contract.base import BaseRecommender, ItemModel
from tests.estimators.common import MeansSVD, ratings

HAS_CALLBACKS = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 9)
needs_callbacks = pytest.mark.skipif(not HAS_CALLBACKS, reason="callbacks came with 1.9")


def ridge_by_hand(model, row):
    known = ~np.isnan(row)
    F = model.factors[known]
    return np.linalg.solve(F.T @ F + model.ridge, F.T @ (row - model.offsets)[known])


def a_model(n_items=12, d=4, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(d, d))
    return ItemModel(
        rng.normal(size=n_items) + 3, rng.normal(size=(n_items, d)), root @ root.T + np.eye(d)
    )


def with_model(model, k):
    """A fitted stand-in whose model is the given one."""
    fitted = MeansSVD().fit(ratings(n_items=len(model.offsets)))
    d = model.factors.shape[1]
    fitted._item_model_, fitted.components_ = model, model.factors[:, d - k :].T
    return fitted


@pytest.mark.parametrize("k", [0, 3, 4])
def test_fold_in_and_scores_are_the_formula(k):
    model, X = a_model(), ratings()
    X[2] = np.nan
    fitted = with_model(model, k)
    Z = np.array([ridge_by_hand(model, row) for row in X])
    assert not Z[2].any()
    np.testing.assert_allclose(fitted.transform(X), Z[:, 4 - k :], rtol=1e-9, atol=1e-12)
    scores = model.offsets + Z @ model.factors.T
    np.testing.assert_allclose(fitted.decision_function(X), scores, rtol=1e-9)
    assert (scores < 1).any()
    np.testing.assert_allclose(fitted.predict(X), np.clip(scores, 1, 5), rtol=1e-9)


def test_blocks_change_nothing(monkeypatch):
    X = ratings(n_users=70, density=0.6)
    X[10:30] = np.nan  # a run of empty rows
    model = a_model()
    fitted = with_model(model, 3)
    expected = (
        fitted.transform(X),
        fitted.predict_entries(X, X).data,
        *fitted.recommend(X, 5),
        *fitted.similar_items(np.arange(12)),
    )
    for entries, rows, scores in ((1, 1, 1), (50, 7, 30), (1 << 20, 64, 25)):
        monkeypatch.setattr(recommend, "_FOLD_IN_ENTRIES", entries)
        monkeypatch.setattr(recommend, "_TASK_ROWS", rows)
        monkeypatch.setattr(recommend, "_GEMM_SCORES", scores)
        for n_jobs in (1, 3):
            fitted.set_params(n_jobs=n_jobs)
            np.testing.assert_array_equal(fitted.transform(X), expected[0])
            np.testing.assert_array_equal(fitted.predict_entries(X, X).data, expected[1])
            items, best = fitted.recommend(X, 5)
            np.testing.assert_array_equal(items, expected[2])
            np.testing.assert_allclose(best, expected[3])
            items, similarities = fitted.similar_items(np.arange(12))
            np.testing.assert_array_equal(items, expected[4])
            np.testing.assert_allclose(similarities, expected[5], atol=1e-12)


def test_recommend_holds_no_dense_matrix():
    n_users, n_items = 6000, 2000
    columns = np.sort(np.random.default_rng(0).integers(n_items, size=(n_users, 10)), axis=1)
    rows = np.repeat(np.arange(n_users), 10)
    R = sparse.coo_array((np.full(rows.size, 4.0), (rows, columns.ravel())), (n_users, n_items))
    R = as_rating_matrix(R)
    fitted = with_model(a_model(n_items), 3)
    fitted.recommend(R[:10], 5)
    tracemalloc.start()
    try:
        fitted.recommend(R, 5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.25 * 8 * n_users * n_items


def test_hidden_fifth_is_a_fifth_of_each_row():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 40, size=3000)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    indices = np.concatenate([np.sort(rng.choice(60, n, replace=False)) for n in lengths])
    R = sparse.csr_array((np.ones(indices.size), indices, indptr), shape=(3000, 60))
    hidden = recommend.hidden_fifth(R)
    counts = np.add.reduceat(np.append(hidden, False), indptr[:-1]) * (lengths > 0)
    assert np.all((counts == lengths // 5) | (counts == lengths // 5 + 1))
    assert np.all(counts <= lengths)
    # A binomial share of some 58,000 entries: 0.2 +- 0.002; five of these.
    assert abs(hidden.mean() - 0.2) < 0.01
    # Each item hidden in its share of rows: some 1,000 rows each, standard error 0.013; six.
    shares = np.bincount(indices, weights=hidden) / np.bincount(indices)
    assert np.all(np.abs(shares - 0.2) < 0.08)


def test_hidden_fifth_of_a_row_depends_on_the_row_alone():
    R = as_rating_matrix(ratings(n_users=50, n_items=30))
    hidden = np.split(recommend.hidden_fifth(R), R.indptr[1:-1])
    order = np.random.default_rng(1).permutation(50)[:20]
    moved = np.split(recommend.hidden_fifth(R[order]), R[order].indptr[1:-1])
    for place, row in enumerate(order):
        np.testing.assert_array_equal(moved[place], hidden[row])
    assert 0 < sum(part.sum() for part in hidden) < R.nnz


def test_score_without_y_hides_what_it_scores_on():
    X = ratings(n_users=60, n_items=20)
    fitted = MeansSVD().fit(X)
    R = as_rating_matrix(X)
    hidden = recommend.hidden_fifth(R)
    rows, columns = np.repeat(np.arange(60), np.diff(R.indptr))[hidden], R.indices[hidden]
    known, truth = X.copy(), X[rows, columns]
    known[rows, columns] = np.nan
    error = fitted.predict(known)[rows, columns] - truth
    assert fitted.score(X) == pytest.approx(-np.sqrt(np.mean(error**2)))
    with pytest.raises(ValueError, match="too few ratings"):
        fitted.score(np.full_like(X, np.nan))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e, X: e.recommend(X, 0), r"n=0 must be an integer >= 1"),
        (
            lambda e, X: e.recommend(X, candidates=[0, 12]),
            r"candidates holds 12 and must .* from 0 to 11",
        ),
        (lambda e, X: e.recommend(X, candidates=[]), r"candidates=\[\] must be column indices"),
        (lambda e, X: e.similar_items("Up"), r"items=\['Up'\] must .* to name items by ids"),
        (lambda e, X: e.similar_items(12), r"items holds 12"),
        (lambda e, X: e.similar_items(1, n=True), r"n=True must"),
    ],
)
def test_arguments_out_of_range(call, message):
    X = ratings()
    with pytest.raises(ValueError, match=message):
        call(MeansSVD().fit(X), X)


class Recorder:
    """A callback that notes what it is told, and asks to stop if told to."""

    def __init__(self, stop=False):
        self.events, self.stop = [], stop

    def setup(self, estimator, context):
        self.events.append(("setup", context.max_subtasks))

    def on_fit_task_begin(
        self, estimator, context, *, X=None, y=None, metadata=None, fitted_estimator=None
    ):
        if isinstance(estimator, BaseRecommender):  # a search tells its X
            assert [X, y, metadata, fitted_estimator] == [None] * 4
        self.events.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(
        self, estimator, context, *, X=None, y=None, metadata=None, fitted_estimator=None
    ):
        if isinstance(estimator, BaseRecommender):  # a search tells its X
            assert [X, y, metadata, fitted_estimator] == [None] * 4
        self.events.append(("end", context.task_name, context.task_id))
        return self.stop

    def teardown(self, estimator, context):
        self.events.append(("teardown",))


EVENTS = [
    ("setup", 2),
    ("begin", "fit", 0),
    ("begin", "round", 0),
    ("end", "round", 0),
    ("begin", "round", 1),
    ("end", "round", 1),
    ("end", "fit", 0),
    ("teardown",),
]


@needs_callbacks
@pytest.mark.parametrize("stop", [False, True])
def test_callbacks_hear_of_the_rounds_and_of_nothing_else(stop):
    recorder = Recorder(stop)
    fitted = MeansSVD(max_iter=2).set_callbacks(recorder).fit(ratings())
    assert recorder.events == EVENTS
    assert not hasattr(fitted, "_callback_fit_ctx")
    pickle.loads(pickle.dumps(fitted)).predict(ratings())
    recorder.events.clear()
    clone(fitted).fit(ratings())
    assert recorder.events == EVENTS


class Failing(MeansSVD):
    def _fit(self, R, y):
        next(self._rounds())
        raise RuntimeError("in round 0")


@needs_callbacks
def test_callbacks_are_torn_down_after_an_error():
    recorder = Recorder()
    with pytest.raises(RuntimeError, match="in round 0"):
        Failing().set_callbacks(recorder).fit(ratings())
    assert recorder.events == [*EVENTS[:3], ("teardown",)]


@pytest.mark.skipif(HAS_CALLBACKS, reason="this scikit-learn calls callbacks")
def test_old_scikit_learn_ignores_callbacks():
    recorder = Recorder()
    estimator = MeansSVD().set_callbacks(recorder)
    clone(estimator.fit(ratings())).fit(ratings())
    assert recorder.events == []
