"""The contract, on the stand-in and on every public estimator."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import skdpmf
from skdpmf.estimators.contract import answers
from skdpmf.estimators.contract.base import BaseRecommender
from tests.estimators import common

ESTIMATORS = [common.MeansSVD(), *common.public_estimators()]

# Checks that check_estimator runs on a transformer, by the scikit-learn they were counted with.
CHECKS = {(1, 6): 45, (1, 9): 45}
# Skipped by scikit-learn itself unless SCIPY_ARRAY_API is set.
SKIPPED = {"check_array_api_input"}

every_estimator = pytest.mark.parametrize(
    "estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__
)


def seeded(estimator, **params):
    estimator = clone(estimator).set_params(**params)
    if "random_state" in estimator.get_params():
        estimator.set_params(random_state=0)
    return estimator


def containers(X):
    coo = common.as_coo(X)
    return {
        "fortran": np.asfortranarray(X),
        "strided": np.repeat(X, 2, axis=1)[:, ::2],
        "csr": coo.tocsr(),
        "csr_matrix": sparse.csr_matrix(coo),
        "csc": coo.tocsc(),
        "coo": coo,
        "lil": coo.tolil(),
        "dok": coo.todok(),
        "int64 indices": with_int64_indices(coo.tocsr()),
        "int8 ratings": coo.astype(np.int8),
    }


def with_int64_indices(R):
    R.indices, R.indptr = R.indices.astype(np.int64), R.indptr.astype(np.int64)
    return R


# A list, because pytest 9 refuses the generator that scikit-learn 1.6 hands it.
CASES = list(parametrize_with_checks(ESTIMATORS).args[1])


@pytest.mark.parametrize(
    ("estimator", "check"), CASES, **parametrize_with_checks(ESTIMATORS).kwargs
)
@pytest.mark.every_case
def test_sklearn_check(estimator, check):
    try:
        check(estimator)
    except SkipTest:
        assert check.func.__name__ in SKIPPED


@every_estimator
def test_all_sklearn_checks_are_among_the_cases(estimator):
    cases = [getattr(case, "values", case) for case in CASES]
    own = [check.func.__name__ for one, check in cases if type(one) is type(estimator)]
    version = tuple(int(part) for part in sklearn.__version__.split(".")[:2])
    floor = max(count for counted, count in CHECKS.items() if counted <= version)
    assert len([name for name in own if name not in SKIPPED]) >= floor
    assert not any(getattr(case, "marks", ()) for case in CASES)
    assert {"check_fit_idempotent", "check_methods_subset_invariance"} <= set(own)


def test_public_estimators_are_found():
    found = [type(estimator) for estimator in common.public_estimators()]
    assert all(issubclass(estimator, BaseRecommender) for estimator in found)
    # one class a file: a new file whose class is not exported would go untested
    folder = Path(skdpmf.estimators.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    files.remove("multi_task_ridge")  # a function
    assert {estimator.__module__.rpartition(".")[2] for estimator in found} == files


@every_estimator
def test_any_container_gives_the_same(estimator):
    X = common.ratings()
    expected = seeded(estimator).fit(X)
    scores, embedding = expected.decision_function(X), expected.transform(X)
    for name, container in containers(X).items():
        fitted = seeded(estimator).fit(container)
        np.testing.assert_allclose(fitted.components_, expected.components_, err_msg=name)
        np.testing.assert_allclose(fitted.decision_function(container), scores, err_msg=name)
        np.testing.assert_allclose(fitted.transform(container), embedding, err_msg=name)


@every_estimator
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_repeated_entries_are_averaged(estimator, dtype, form):
    X = common.ratings()
    R = common.as_coo(X)
    ends = np.concatenate((R.data - 1, R.data + 1)).astype(dtype)  # their mean is the rating
    rows, columns = np.tile(R.row, 2), np.tile(R.col, 2)
    twice = unmerged(ends, rows, columns, R.shape, form)
    range_ = {"rating_range": (0.0, 6.0)}
    expected = seeded(estimator, **range_).fit(X)
    fitted = seeded(estimator, **range_).fit(twice)
    np.testing.assert_allclose(fitted.components_, expected.components_)
    np.testing.assert_allclose(fitted.transform(twice), expected.transform(X), rtol=1e-5, atol=1e-5)


def unmerged(data, rows, columns, shape, form):
    if form == "coo":
        return sparse.coo_array((data, (rows, columns)), shape=shape)
    major, minor = (rows, columns) if form == "csr" else (columns, rows)
    n_major = shape[0] if form == "csr" else shape[1]
    order = np.argsort(major, kind="stable")
    indptr = np.searchsorted(major[order], np.arange(n_major + 1))
    container = sparse.csr_array if form == "csr" else sparse.csc_array
    result = container((data[order], minor[order], indptr), shape=shape)
    assert result.nnz == data.size
    return result


@every_estimator
def test_ratings_outside_of_the_range_are_clipped(estimator):
    X = common.ratings()
    wild = np.where(X == 5, 1e9, np.where(X == 1, -40.0, X))
    expected, fitted = seeded(estimator).fit(X), seeded(estimator).fit(wild)
    np.testing.assert_array_equal(fitted.components_, expected.components_)
    np.testing.assert_array_equal(fitted.transform(wild), expected.transform(X))


@every_estimator
def test_a_stored_zero_is_a_rating(estimator):
    X = common.ratings() - 1.0
    assert (X == 0).sum() > 10
    R = common.as_coo(X).tocsr()
    assert (R.data == 0).any()
    range_ = {"rating_range": (0.0, 4.0)}
    expected, fitted = seeded(estimator, **range_).fit(X), seeded(estimator, **range_).fit(R)
    np.testing.assert_allclose(fitted.predict(R), expected.predict(X))


@every_estimator
def test_item_names(estimator):
    X = common.ratings()
    names = [f"film {j}" for j in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=names, index=[f"user {i}" for i in range(len(X))])
    fitted = seeded(estimator).set_output(transform="pandas").fit(frame)
    assert list(fitted.feature_names_in_) == names
    embedding = fitted.transform(frame)
    k = fitted.components_.shape[0]
    prefix = type(estimator).__name__.lower()
    assert list(embedding.columns) == [f"{prefix}{c}" for c in range(k)]
    assert list(embedding.columns) == list(fitted.get_feature_names_out())
    assert list(embedding.index) == list(frame.index)
    assert fitted.recommend(frame, 3)[0].dtype == np.int64
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[names[::-1]])


@every_estimator
def test_predict_mirrors_y(estimator):
    X = common.ratings()
    X[0] = 3.0  # nothing is left for this user
    y = np.arange(len(X)) % X.shape[1]
    low, high = estimator.rating_range
    expected = seeded(estimator).fit(X)
    scores = expected.decision_function(X)
    assert scores.shape == X.shape
    np.testing.assert_array_equal(expected.predict(X), np.clip(scores, low, high))
    for matrix in (X, sparse.csr_array(np.nan_to_num(X)), pd.DataFrame(X)):
        by_matrix = seeded(estimator).fit(X, matrix)
        np.testing.assert_allclose(by_matrix.predict(X), np.clip(scores, low, high))
    best = np.where(np.isnan(X), common.ranking_scores(expected, X), -np.inf).argmax(axis=1)
    best[0] = -1
    for target in (y, y.astype(float), list(y), pd.Series(y)):
        predicted = seeded(estimator).fit(X, target).predict(X)
        assert predicted.dtype == np.int64
        np.testing.assert_array_equal(predicted, best)
    names = np.array([*(f"film {j}" for j in range(X.shape[1])), ""], dtype=object)
    frame = pd.DataFrame(X, columns=names[:-1])
    for target in (names[y], list(names[y]), pd.Series(names[y]), names[y].astype(str)):
        predicted = seeded(estimator).fit(frame, target).predict(frame)
        np.testing.assert_array_equal(predicted, names[best])


@every_estimator
def test_y_of_a_wrong_shape(estimator):
    X = common.ratings()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        seeded(estimator).fit(X, np.zeros(3))
    for y in (np.zeros((len(X), 2)), X[:-1], sparse.csr_array((3, 3)), np.array(1.0)):
        with pytest.raises(ValueError, match=r"y has shape .* matrix of the shape of X"):
            seeded(estimator).fit(X, y)
    with pytest.raises(ValueError, match="column indices"):
        seeded(estimator).fit(X, ["film"] * len(X))


@every_estimator
def test_grid_search_on_users(estimator):
    X = common.ratings(n_users=120)
    known, held_out = X.copy(), np.full_like(X, np.nan)
    last = X.shape[1] - 1 - np.argmax(~np.isnan(X[:, ::-1]), axis=1)
    rows = np.arange(len(X))
    held_out[rows, last] = X[rows, last]
    known[rows, last] = np.nan
    params = estimator.get_params()
    grid = {
        name: values
        for name, values in {"n_components": [1, 2], "budget__epsilon": [1.0, 4.0]}.items()
        if name in params
    }
    # A scorer for each kind of y; all must be finite numbers in their range.
    for target, scoring, low, high in (
        (None, None, -4.0, 0.0),
        (held_out, None, -4.0, 0.0),
        (last, "accuracy", 0.0, 1.0),
    ):
        search = GridSearchCV(
            seeded(estimator), grid, cv=2, n_jobs=2, scoring=scoring, error_score="raise"
        )
        search.fit(X if target is None else known, target)
        scores = search.cv_results_["mean_test_score"]
        assert np.all((low <= scores) & (scores <= high))
        assert len(scores) == 2 ** len(grid)
        best = search.best_estimator_.predict(known)
        assert best.shape == ((len(X),) if scoring else X.shape)


@every_estimator
@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("items", [None, [7, 2, 3, 7]])
def test_recommend_is_brute_force(estimator, exclude_seen, items):
    X = common.ratings()
    X[0], X[1] = 3.0, np.nan
    fitted = seeded(estimator).fit(X)
    scores = common.ranking_scores(fitted, X)
    if exclude_seen:
        scores[~np.isnan(X)] = -np.inf
    if items is not None:
        scores[:, np.setdiff1d(np.arange(X.shape[1]), items)] = -np.inf
    for n in (1, 5, X.shape[1], 2**40):  # no more columns than X has
        expected = np.argsort(-scores, axis=1, kind="stable")[:, :n]
        best = np.take_along_axis(scores, expected, axis=1)
        got, got_scores = fitted.recommend(X, n, exclude_seen, items)
        np.testing.assert_array_equal(got, np.where(np.isneginf(best), -1, expected))
        np.testing.assert_allclose(got_scores, best)
        assert got.dtype == np.int64
        assert got_scores.dtype == np.float64


@every_estimator
def test_similar_items_is_brute_force(estimator):
    X = common.ratings()
    fitted = seeded(estimator).fit(X)
    V = fitted.components_.T
    tanimoto = np.zeros((len(V), len(V)))
    squares = (V**2).sum(axis=1)
    union = squares[:, None] + squares - V @ V.T
    np.divide(V @ V.T, union, out=tanimoto, where=union > 0)
    np.fill_diagonal(tanimoto, -np.inf)
    items, scores = fitted.similar_items([3, 0, 3], n=2**40)
    assert items.shape == scores.shape == (3, len(V))
    if fitted.n_components_ == 0:  # it has no neighbours, and says so
        assert (items == -1).all()
        assert np.isneginf(scores).all()
        return
    for row, query in enumerate([3, 0, 3]):
        assert sorted(items[row]) == [-1, *np.setdiff1d(np.arange(len(V)), query)]
        np.testing.assert_allclose(scores[row], np.sort(tanimoto[query])[::-1], atol=1e-12)
        np.testing.assert_allclose(scores[row, :-1], tanimoto[query][items[row, :-1]], atol=1e-12)
    single, _ = fitted.similar_items(3, n=2)
    np.testing.assert_array_equal(single, items[0, :2])


@every_estimator
def test_similar_users_is_brute_force(estimator, monkeypatch):
    monkeypatch.setattr(answers, "_COSINES", 7)  # blocks of one row
    X = common.ratings()
    fitted = seeded(estimator).fit(X)
    Y = X[5:30].copy()
    Y[0] = np.nan  # nobody is near to somebody without ratings, nor the other way round
    A, B = fitted.transform(X[:9]), fitted.transform(Y)
    lengths = np.linalg.norm(A, axis=1)[:, None] * np.linalg.norm(B, axis=1)
    cosine = np.full(lengths.shape, -np.inf)
    np.divide(A @ B.T, lengths, out=cosine, where=lengths > 0)
    users, scores = fitted.similar_users(X[:9], Y, n=2**40)
    assert users.shape == scores.shape == (9, 25)
    np.testing.assert_allclose(scores, -np.sort(-cosine, axis=1), atol=1e-12)
    for row in range(9):
        there = users[row] >= 0
        assert sorted(users[row][there]) == np.flatnonzero(np.isfinite(cosine[row])).tolist()
        np.testing.assert_allclose(scores[row][there], cosine[row][users[row][there]], atol=1e-12)
    few = fitted.similar_users(X[:9], Y, n=2)[0]
    np.testing.assert_array_equal(few, users[:, :2])
    if fitted.n_components_:  # oneself, but for rounding between equal directions
        np.testing.assert_allclose(fitted.similar_users(Y[1:], Y, n=1)[1], 1.0)


@every_estimator
def test_one_object_holds_one_fit_at_a_time(estimator):
    X, model = common.ratings(), seeded(estimator)
    started, go = threading.Event(), threading.Event()

    class Waiting(type(model)):
        def _check_params(self):
            super()._check_params()
            started.set()
            assert go.wait(60)

    model.__class__ = Waiting
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(model.fit, X)
        assert started.wait(60)
        try:
            with pytest.raises(RuntimeError, match=r"fitted by another thread.*clone"):
                model.fit(X)
        finally:
            go.set()
        assert first.result() is model
    assert model.fit(X) is model


@every_estimator
def test_predict_entries_reads_the_matrix(estimator):
    X = common.ratings()
    fitted = seeded(estimator).fit(X)
    matrix = fitted.predict(X)
    asked = np.isnan(X)
    asked[3] = False
    positions = np.nonzero(asked)
    rng = np.random.default_rng(0)
    stored = rng.choice([np.nan, np.inf, 0.0, 1.0], size=positions[0].size)
    where = sparse.coo_array((stored, positions), shape=X.shape)
    for pattern in (where, where.tocsr(), where.tocsc(), np.where(asked, 0.0, np.nan), asked):
        got = fitted.predict_entries(X, pattern)
        assert got.format == "csr"
        np.testing.assert_array_equal(got.nonzero(), positions)
        np.testing.assert_allclose(got.data, matrix[positions])
    with pytest.raises(ValueError, match=r"where has shape .* shape of X"):
        fitted.predict_entries(X, where.tocsr()[:-1])


def arrays_of(X):
    if isinstance(X, np.ndarray):
        return {"X": X}
    parts = {name: getattr(X, name, None) for name in ("data", "indices", "indptr", "row", "col")}
    return {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}


@every_estimator
def test_read_only_ratings_stay_as_they_are(estimator):
    X = common.ratings()
    X[5, 5] = 17.0  # to be clipped, elsewhere
    for name, container in {"dense": X, **containers(X)}.items():
        before = {part: array.copy() for part, array in arrays_of(container).items()}
        for array in arrays_of(container).values():
            array.setflags(write=False)
        fitted = seeded(estimator).fit(container)
        for method in ("transform", "predict", "decision_function", "recommend", "score"):
            getattr(fitted, method)(container)
        fitted.predict_entries(container, container)
        fitted.explain(container, 0)
        after = arrays_of(container)
        assert after.keys() == before.keys()
        for part in before:
            np.testing.assert_array_equal(after[part], before[part], err_msg=name)


@every_estimator
def test_unknown_rows(estimator):
    X = common.ratings()
    X[[0, 7]] = np.nan
    fitted = seeded(estimator).fit(X)
    assert not fitted.transform(X)[[0, 7]].any()
    low, high = estimator.rating_range
    nothing = fitted.predict(np.full_like(X, np.nan))
    assert np.all((low <= nothing) & (nothing <= high))
    assert np.all(nothing == nothing[0])
    assert np.isfinite(seeded(estimator).fit(sparse.csr_array(X.shape)).predict(X)).all()


@every_estimator
def test_no_row_content_raises_or_warns(estimator):
    X = common.as_coo(common.ratings()).tocsr()
    X.data[:4] = np.nan, 1e300, -1e300, 5e-324
    seeded(estimator).fit(X)  # warnings are errors here


@every_estimator
def test_shapes_that_are_refused(estimator):
    fitted = seeded(estimator).fit(common.ratings())
    for answer in (fitted.transform, fitted.predict):
        with pytest.raises(ValueError, match="infinity"):
            answer(np.full((2, 12), np.inf))
    for form in ("bsr", "dia"):
        with pytest.raises(ValueError, match="must be sparse as csr"):
            seeded(estimator).fit(sparse.csr_array(np.eye(4)).asformat(form))
    for X in (np.ones((2, 5)), sparse.csr_array(np.ones((2, 5)))):
        with pytest.raises(ValueError, match="5 features"):
            fitted.predict(X)


@every_estimator
def test_scores(estimator):
    X = common.ratings()
    known, held_out = X.copy(), np.full_like(X, np.nan)
    known[:, ::4], held_out[:, ::4] = np.nan, X[:, ::4]
    fitted = seeded(estimator).fit(known)
    error = (fitted.predict(known) - held_out)[~np.isnan(held_out)]
    expected = -np.sqrt(np.mean(error**2))
    for y in (held_out, common.as_coo(held_out).tocsc()):
        assert fitted.score(known, y) == pytest.approx(expected)
    scores = np.where(np.isnan(known), common.ranking_scores(fitted, known), -np.inf)
    best = scores.argmax(axis=1)
    y = np.where(np.arange(len(X)) % 3, best, (best + 1) % X.shape[1]).astype(float)
    assert fitted.score(known, y) == pytest.approx(np.mean(best == y))
    y[:10], y[10] = -1, np.nan  # users without a held-out item
    assert fitted.score(known, y) == pytest.approx(np.mean(best[11:] == y[11:]))
    own = fitted.score(X)
    assert -4.0 <= own < 0.0
    assert fitted.score(X) == own
    assert fitted.score(X[::-1]) == pytest.approx(own)
    for y in (np.full(len(X), -1), np.full_like(X, np.nan)):
        with pytest.raises(ValueError, match="nothing to score on"):
            fitted.score(known, y)


@every_estimator
def test_nothing_of_a_user_stays(estimator):
    n_users, n_items = 241, 13  # sizes that no parameter has
    fitted = seeded(estimator).fit(common.ratings(n_users, n_items), np.zeros(n_users))

    def walk(value, path):
        if isinstance(value, dict):
            value = list(value.items())
        if sparse.issparse(value):
            value = value.toarray()
        if isinstance(value, np.ndarray):
            assert n_users not in value.shape, path
            assert value.size < n_users * 5 or n_items in value.shape, path
        elif isinstance(value, (list, tuple, set, frozenset)):
            assert len(value) != n_users, path
            for n, part in enumerate(value):
                walk(part, f"{path}[{n}]")
        elif type(value).__module__.startswith("skdpmf") and hasattr(value, "__dict__"):
            walk(vars(value), path)

    kept = {} if common.is_private(fitted) else {"user_factors_", "user_biases_"}
    parts = {name: value for name, value in vars(fitted).items() if name not in kept}
    walk(parts, type(estimator).__name__)
    walk([{"planted": (fitted.components_,)}], "planted")
    with pytest.raises(AssertionError, match="planted"):
        walk([{"planted": (np.zeros(n_users),)}], "planted")


@every_estimator
def test_plan_needs_no_data(estimator):
    before = dict(vars(clone(estimator)))
    planned = clone(estimator)
    planned.plan(n_items=12, n_rows=40)
    assert vars(planned).keys() == before.keys()
