import dataclasses
import re
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from scipy import sparse

import skdpmf
import skdpmf.data
from skdpmf import DPItemMeans, PrivacyBudget, PrivacyLedger
from skdpmf.data import validate_ratings
from skdpmf.data.validation import as_rating_matrix, check_rating_range
from skdpmf.preprocessing import ContributionBounder, DPItemSelector

from .twins import FORMATS, container, laid_out, rating_rows, rows_of

GRID = st.integers(-8, 40).map(lambda v: v / 4)  # sums of these are exact, in float32 too
VALUES = GRID | st.sampled_from([np.nan, np.inf, -np.inf])


@st.composite
def entries_and_shape(draw, outside=0):
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    users = st.integers(0, shape[0] - 1)
    items = st.integers(-outside, shape[1] - 1 + outside)
    values = draw(st.sampled_from([GRID, VALUES]))
    return draw(st.lists(st.tuples(users, items, values), min_size=1, max_size=30)), shape


def stored_bytes(X):
    names = {"csr": ("data", "indices", "indptr"), "csc": ("data", "indices", "indptr")}
    return [getattr(X, n).tobytes() for n in names.get(X.format, ("data", "row", "col"))]


@settings(max_examples=300, deadline=None)
@given(
    case=entries_and_shape(),
    kind=st.sampled_from(FORMATS),
    index_dtype=st.sampled_from([np.int32, np.int64]),
    dtype=st.sampled_from([np.float32, np.float64]),
    layout=st.sampled_from(["plain", "read-only", "strided"]),
    rating_range=st.sampled_from([None, (1.0, 5.0), (-0.5, 0.25)]),
)
def test_sparse_equals_dict_twin(case, kind, index_dtype, dtype, layout, rating_range):
    entries, shape = case
    X = container(entries, shape, kind, index_dtype, dtype, layout)
    before = stored_bytes(X)
    R = as_rating_matrix(X, rating_range=rating_range)
    assert isinstance(R, sparse.csr_array)
    assert R.shape == shape
    assert (R.data.dtype, R.indices.dtype, R.indptr.dtype) == (np.float64, np.int32, np.int32)
    expected = rating_rows(entries, shape, rating_range)
    assert rows_of(R) == expected
    assert [list(row) for row in rows_of(R)] == [sorted(row) for row in expected]
    assert R.nnz == sum(map(len, expected))  # rows_of would hide a repeated column
    assert stored_bytes(X) == before


@settings(max_examples=150, deadline=None)
@given(case=entries_and_shape(outside=3), kind=st.sampled_from(FORMATS))
def test_indices_outside_the_shape_are_dropped(case, kind):
    entries, shape = case
    if kind.startswith("csc"):  # there the row is the stored index
        entries, shape = [(j, i, v) for i, j, v in entries], shape[::-1]
    X = container(entries, shape, kind)
    expected = rating_rows(entries, shape)
    assert rows_of(as_rating_matrix(X)) == expected
    n_outside = sum(not (0 <= i < shape[0] and 0 <= j < shape[1]) for i, j, _ in entries)
    assert validate_ratings(X).n_bad_indices == n_outside


@settings(max_examples=200, deadline=None)
@given(
    case=entries_and_shape(),
    dtype=st.sampled_from([np.float32, np.float64]),
    layout=st.sampled_from(["plain", "read-only", "strided", "fortran", "frame"]),
)
def test_dense_equals_dict_twin(case, dtype, layout):
    entries, shape = case
    dense = np.full(shape, np.nan, dtype)
    for user, item, value in entries:
        dense[user, item] = value
    X = pd.DataFrame(dense) if layout == "frame" else laid_out(dense, layout)
    before = np.asarray(X).tobytes()
    expected = rating_rows([(*ij, v) for ij, v in np.ndenumerate(dense)], shape, (0.0, 4.0))
    assert rows_of(as_rating_matrix(X, rating_range=(0, 4))) == expected
    assert np.asarray(X).tobytes() == before


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.uint64, np.float16, ">f8"])
def test_every_real_type_is_taken(dtype):
    dense = np.array([[1, 0, 1], [0, 0, 1]], dtype)
    expected = [{0: 1.0, 1: 0.0, 2: 1.0}, {0: 0.0, 1: 0.0, 2: 1.0}]
    assert rows_of(as_rating_matrix(dense)) == expected
    if np.dtype(dtype) != np.float16:  # scipy has no sparse float16
        stored = sparse.coo_array(dense.astype(np.dtype(dtype).newbyteorder("=")))
        assert rows_of(as_rating_matrix(stored)) == [{0: 1.0, 2: 1.0}, {2: 1.0}]


@settings(max_examples=100, deadline=None)
@given(case=entries_and_shape(), seed=st.integers(0, 99), kind=st.sampled_from(FORMATS))
def test_order_in_storage_does_not_matter(case, seed, kind):
    # Decimal ratings, so that sums do depend on the order of their terms.
    entries, shape = [(i, j, v * 0.1) for i, j, v in case[0]], case[1]
    shuffled = [entries[k] for k in np.random.default_rng(seed).permutation(len(entries))]
    a, b = (as_rating_matrix(container(e, shape, kind)) for e in (entries, shuffled))
    assert stored_bytes(a) == stored_bytes(b)


@settings(max_examples=100, deadline=None)
@given(case=entries_and_shape(), others=st.lists(st.tuples(st.integers(0, 5), GRID), max_size=9))
def test_a_row_is_a_function_of_itself_alone(case, others):
    entries, (n_users, _) = [(i, j, v * 0.1) for i, j, v in case[0]], case[1]
    shape = n_users, 6
    rows = rows_of(as_rating_matrix(container(entries, shape, "csr_array")))
    for user in range(n_users):
        changed = [e for e in entries if e[0] == user] + [
            ((user + 1) % n_users, item, value) for item, value in others if n_users > 1
        ]
        alone = rows_of(as_rating_matrix(container(changed, shape, "csr_array")))
        assert alone[user] == rows[user]


def test_canonical_input_is_not_copied_and_the_flag_of_x_is_not_believed():
    X = sparse.csr_array(np.array([[5.0, 0.0, 3.0], [0.0, 2.0, 0.0]]))
    R = as_rating_matrix(X, rating_range=(1, 5))
    assert np.shares_memory(R.data, X.data)
    assert np.shares_memory(R.indices, X.indices)
    lied = container([(0, 1, 2.0), (0, 0, 1.0), (0, 1, 4.0)], (1, 2), "csr_array")
    lied.has_canonical_format = True
    assert rows_of(as_rating_matrix(lied)) == [{0: 1.0, 1: 3.0}]


def test_stored_zero_is_a_rating_and_unused_capacity_is_not():
    X = sparse.csr_array(np.eye(3))
    X.data[1] = 0.0
    assert rows_of(as_rating_matrix(X)) == [{0: 1.0}, {1: 0.0}, {2: 1.0}]
    X.data = np.append(X.data, 4.0)
    X.indices = np.append(X.indices, 0).astype(np.int32)
    R = as_rating_matrix(X)
    assert rows_of(R) == [{0: 1.0}, {1: 0.0}, {2: 1.0}]
    assert R.data.size == R.indices.size == 3
    assert validate_ratings(X).n_ratings == 3


@pytest.mark.parametrize("n", [2, 3, 5, 7])
@pytest.mark.parametrize("value", [1.7976931348623157e308, -1.5e308, 0.1, 5e-324])
def test_mean_of_equal_ratings_is_exact_and_never_overflows(n, value):
    X = container([(0, 0, value)] * n + [(0, 1, 1.0)], (1, 2), "csr_array")
    assert rows_of(as_rating_matrix(X)) == [{0: value, 1: 1.0}]


def test_large_shapes_get_wide_indices():
    X = sparse.coo_array(([1.0, 2.0], ([0, 1], [0, 2**40])), shape=(2, 2**40 + 1))
    R = as_rating_matrix(X)
    assert R.indices.dtype == R.indptr.dtype == np.int64
    assert rows_of(R) == [{0: 1.0}, {2**40: 2.0}]
    wide = container([(0, 2**33, 1.0), (0, 1, 2.0)], (1, 2), "csr_array", np.int64)
    assert rows_of(as_rating_matrix(wide)) == [{1: 2.0}]  # not wrapped around to column 0


def test_data_frames():
    nullable = pd.DataFrame({"a": [1, None], "b": [None, 2.5]}).astype("Float64")
    assert rows_of(as_rating_matrix(nullable)) == [{0: 1.0}, {1: 2.5}]
    objects = pd.DataFrame({"a": [1, None], "b": [None, 2]}, dtype=object)
    assert rows_of(as_rating_matrix(objects)) == [{0: 1.0}, {1: 2.0}]
    gaps_zero = pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix([[0.0, 4.0], [0.0, 0.0]]))
    assert rows_of(as_rating_matrix(gaps_zero)) == [{1: 4.0}, {}]
    gaps_nan = pd.DataFrame({"a": [1.0, np.nan], "b": [0.0, np.nan]}).astype(pd.SparseDtype(float))
    assert rows_of(as_rating_matrix(gaps_nan)) == [{0: 1.0, 1: 0.0}, {}]


@pytest.mark.parametrize("fmt", ["csr", "csc"])
@pytest.mark.parametrize(
    "indptr", [[0, 2, 1, 3], [1, 1, 2, 3], [0, 1, 2, 9], [0, 1, 3], [0, -1, 2, 3]]
)
def test_broken_indptr_is_refused(fmt, indptr):
    X = sparse.coo_array(np.eye(3)).asformat(fmt)
    X.indptr = np.array(indptr, np.int32)
    for function in (as_rating_matrix, validate_ratings):
        with pytest.raises(ValueError, match=r"indptr.*broken.*Rebuild"):
            function(X)


@pytest.mark.parametrize(
    "bad",
    [*((5, 1), (1, 1), (0, np.inf), (np.nan, 1), (1,), (1, 2, 3), "15", 3, ("1", "5"), (1, 2j))],
)
def test_rating_range_is_checked(bad):
    for call in (
        lambda: check_rating_range(bad),
        lambda: as_rating_matrix(np.ones((1, 1)), rating_range=bad),
        lambda: validate_ratings(np.ones((1, 1)), rating_range=bad),
    ):
        with pytest.raises(ValueError, match=r"rating_range=.*low < high"):
            call()


@settings(max_examples=150, deadline=None)
@given(case=entries_and_shape(), kind=st.sampled_from(FORMATS))
def test_report_counts(case, kind):
    entries, shape = case
    report = validate_ratings(container(entries, shape, kind), rating_range=(1, 5))
    values = np.array([v for _, _, v in entries])
    finite = values[np.isfinite(values)]
    rows = rating_rows(entries, shape)
    n_ratings = sum(map(len, rows))
    assert dataclasses.asdict(report) == {
        "n_users": shape[0],
        "n_items": shape[1],
        "n_ratings": n_ratings,
        "n_duplicates": finite.size - n_ratings,
        "n_nan": np.isnan(values).sum(),
        "n_infinite": np.isinf(values).sum(),
        "n_out_of_range": ((finite < 1) | (finite > 5)).sum(),
        "n_bad_indices": 0,
        "n_empty_users": sum(not row for row in rows),
        "n_empty_items": shape[1] - len({j for row in rows for j in row}),
        "n_zeros": (n_zeros := sum(value == 0.0 for row in rows for value in row.values())),
        "all_rated": n_zeros > 0 and shape[1] > 1 and n_ratings == shape[0] * shape[1],
        "large_delta": 0.0,
        "rating_range": (1.0, 5.0),
        "n_marked_down": 0,
    }


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 2)])
def test_empty_matrix(shape):
    for X in (np.full(shape, np.nan), *(container([], shape, kind) for kind in FORMATS)):
        R = as_rating_matrix(X, rating_range=(1, 5))
        assert (R.shape, R.nnz, R.data.dtype) == (shape, 0, np.float64)
        assert validate_ratings(X).problems["n_ratings"].startswith("no usable rating")


def estimators():
    budget = skdpmf.PrivacyBudget(1.0, 1e-5)
    return (
        skdpmf.DPItemMeans(budget),
        skdpmf.DPItemMeans(budget, rating_range=(0, 10)),
        skdpmf.AdaptiveWeightALS(budget, feedback="implicit"),
        skdpmf.CacheSGDFactorizer(),
    )


def test_zeros_for_unknown_ratings_are_found():
    X = container([(0, 0, 5), (1, 1, 4), (2, 2, 1), (2, 0, 5)], (4, 3), "csr_array")
    for estimator in (None, *estimators()):
        assert "all_rated" not in validate_ratings(X, estimator).problems
        report = validate_ratings(X.toarray(), estimator)
        assert report.problems["all_rated"].startswith("every cell is rated, and 8 by 0: where 0")
        assert (report.all_rated, report.n_zeros) == (True, 8)
    for complete in (np.ones((3, 2)), np.zeros((3, 1))):
        assert not validate_ratings(complete).all_rated


def test_a_scale_that_is_not_the_estimators_is_found():
    X = container([(i, 0, i) for i in range(1, 11)], (11, 2), "csr_array")
    stars, wide, implicit, _ = estimators()
    said = "ratings outside 1 to 5: 5 (50%). fit clips them. Pass the scale as rating_range."
    assert validate_ratings(X, stars).problems["n_out_of_range"] == said
    assert validate_ratings(X, wide).n_out_of_range == 0
    assert validate_ratings(X, implicit).n_out_of_range == 0
    assert validate_ratings(X, wide, rating_range=(1, 5)).n_out_of_range == 5


def test_a_delta_above_one_by_the_users_is_found():
    X = container([(0, 0, 5)], (1000, 2), "csr_array")
    for delta, found in ((1e-5, 0.0), (1e-3, 0.0), (1.1e-3, 1.1e-3)):
        report = validate_ratings(X, skdpmf.DPItemMeans(skdpmf.PrivacyBudget(1.0, delta)))
        assert report.large_delta == found
        assert ("large_delta" in report.problems) == (found > 0.0)
    assert "delta=0.0011 exceeds 1 / users" in str(report)


def test_no_private_fit_makes_this_check(tmp_path, monkeypatch):
    """It is for the curator: an error or a warning inside a fit would show what a row holds."""

    def called(*_, **__):
        raise AssertionError("a fit has validated its ratings")

    monkeypatch.setattr("skdpmf.data.validation.validate_ratings", called)
    monkeypatch.setattr("skdpmf.data.validate_ratings", called)
    X = np.zeros((9, 3))
    for estimator in estimators()[:3]:
        estimator.fit(X)
    package = Path(skdpmf.data.__file__).parents[1]
    users = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"(?<!; )validate_ratings", file.read_text(encoding="utf-8"))
    }
    assert users == {"commands/with_ratings.py", "data/__init__.py", "data/validation.py"}


LONG = {"user": ["u1", "u2"], "item": ["m1", "m1"], "rating": [4.0, 2.0], "time": [7, 9]}
OTHER = {"userId": [1, 2], "movieId": [7, 7], "seen": [1, 1]}


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize(
    ("table", "call"),
    [
        (LONG, "ratings_to_matrix(X)"),
        (OTHER, "ratings_to_matrix(X, user='userId', item='movieId', rating=None)"),
    ],
)
def test_a_long_table_is_told_which_call_to_use(library, table, call, tmp_path):
    table = pytest.importorskip(library).DataFrame(table)
    ledger = PrivacyLedger(tmp_path / "own.ledger", PrivacyBudget(8.0, 1e-5))
    fitted = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(np.array([[4.0, 2.0]]))
    charged = DPItemMeans(PrivacyBudget(4.0, 1e-5, ledger=ledger))
    selector = DPItemSelector(PrivacyBudget(1.0, 1e-5, ledger=ledger))
    for asked in (
        *(charged.fit, selector.fit, ContributionBounder().fit, validate_ratings),
        *(fitted.predict, fitted.recommend, fitted.transform),
    ):
        with pytest.raises(ValueError, match=re.escape(f"pass {call}.")):
            asked(table)
    with pytest.raises(ValueError, match=re.escape(f"pass {call.replace('(X', '(y')}.")):
        fitted.score(np.array([[4.0, 2.0]]), table)
    assert not ledger.report().entries  # nothing was read, and nothing is charged


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ("ratings.csv", r"X='ratings.csv' must be .* not a file: pass ratings_to_matrix\(read_"),
        (Path("a/b"), "X='a/b' must be .* not a file"),
        ("u3", r"X='u3' must be rows of ratings, not ids.*matrix.rows\(users\)"),
        (["u1", "u2", "u3", "u4"], r"X=\['u1', 'u2', 'u3'\] must be rows"),
        (7, "X=7 must be rows of ratings, not ids"),
    ],
)
def test_what_is_no_matrix(X, words):
    model = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(np.array([[4.0, 2.0]]))
    for asked in (model.fit, model.predict, model.recommend, validate_ratings):
        with pytest.raises(ValueError, match=words):
            asked(X)


def test_dicts_are_for_answers_and_not_for_fits():
    for rows in ({"m1": 4.0}, [{"m1": 4.0}, {"m2": 3.0}]):
        with pytest.raises(ValueError, match=r"X holds dicts .* pass ratings_to_matrix\(table\)"):
            DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(rows)
