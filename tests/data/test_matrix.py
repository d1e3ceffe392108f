import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from skdpmf import DPItemMeans, PrivacyBudget
from skdpmf.data import item_features, ratings_to_matrix
from skdpmf.data.matrix import RatingMatrix
from skdpmf.evaluation import RatingRegressor, split_table
from tests.matrices import matrix_to_ratings

from .twins import rating_rows, rows_of

IDS = {
    "int": st.integers(-9, 9),
    "str": st.sampled_from(["b", "a", "", "Ä", "10", "9"]),
    "mixed": st.sampled_from([3, "a", 1, "b"]),
}


@st.composite
def tables(draw):
    ids = [IDS[draw(st.sampled_from(sorted(IDS)))] for _ in range(2)]
    ratings = st.integers(0, 20).map(lambda v: v / 4) | st.just(np.nan)
    rows = draw(st.lists(st.tuples(*ids, ratings), min_size=1, max_size=30))
    return pd.DataFrame(rows, columns=["user", "item", "rating"])


@settings(max_examples=150, deadline=None)
@given(frame=tables())
def test_equals_dict_twin_and_round_trips(frame):
    before = frame.copy()
    X, users, items = ratings_to_matrix(frame)
    pd.testing.assert_frame_equal(frame, before)
    assert set(users) == set(frame["user"])
    assert set(items) == set(frame["item"])
    codes = [({i: k for k, i in enumerate(index)}) for index in (users, items)]
    entries = [(codes[0][u], codes[1][i], r) for u, i, r in frame.itertuples(index=False)]
    expected = rating_rows(entries, (len(users), len(items)))
    assert rows_of(X) == expected

    table = matrix_to_ratings(X, users, items)
    assert [tuple(row) for row in table.itertuples(index=False)] == [
        (users[k], items[j], v) for k, row in enumerate(expected) for j, v in row.items()
    ]
    again = ratings_to_matrix(table, users=users, items=items)
    assert rows_of(again.X) == expected
    assert again.X.shape == X.shape
    assert again.users.equals(users)
    assert again.items.equals(items)


def test_undeclared_ids_are_sorted_and_named():
    frame = pd.DataFrame({"u": [5, 2, 5], "movie": ["x", "y", "a"], "stars": [1, 2, 3]})
    matrix = ratings_to_matrix(frame, "u", "movie", "stars")
    assert isinstance(matrix, RatingMatrix)
    assert (list(matrix.users), list(matrix.items)) == ([2, 5], ["a", "x", "y"])
    assert (matrix.users.name, matrix.users.dtype) == ("u", np.int64)


def test_declared_ids_keep_their_order_and_empty_lines():
    frame = pd.DataFrame({"user": ["b"], "item": [30], "rating": [4.5]})
    X, users, items = ratings_to_matrix(frame, users=["c", "b", "a"], items=[99, 30, 10])
    assert rows_of(X) == [{}, {1: 4.5}, {}]
    assert (list(users), list(items)) == (["c", "b", "a"], [99, 30, 10])


def test_implicit_ratings():
    frame = pd.DataFrame({"user": [0, 0, 1], "item": [1, 1, 0]})
    assert rows_of(ratings_to_matrix(frame, rating=None).X) == [{1: 1.0}, {0: 1.0}]


@pytest.mark.parametrize("dtype", ["category", "Int64", "string", "object", "datetime64[ns]"])
def test_id_types(dtype):
    ids = pd.Series([2010, 2009, 2010]).astype(str if dtype in ("string", "category") else "int64")
    frame = pd.DataFrame({"user": ids.astype(dtype), "item": [0, 1, 1], "rating": [1, 2, 3]})
    X, users, _ = ratings_to_matrix(frame)
    assert rows_of(X) == [{1: 2.0}, {0: 1.0, 1: 3.0}]
    assert users.is_monotonic_increasing
    declared = ratings_to_matrix(frame, users=users[::-1])
    assert rows_of(declared.X) == rows_of(X)[::-1]


def table(**columns):
    return pd.DataFrame({"user": [1, 2], "item": ["a", "b"], "rating": [3.0, 4.0]} | columns)


@pytest.mark.parametrize(
    ("frame", "arguments", "message"),
    [
        (table().drop(columns=["item", "rating"]), {}, r"no column 'item', 'rating'.*\['user'\]"),
        (table(), {"user": "who"}, r"no column 'who'.*user="),
        (table(user=[1, None]), {}, r"'user' lacks an id in 1 row, the first of them row 1"),
        (table(rating=["3", "many"]), {}, r"'rating' has dtype.*'many' in row 1.*to_numeric"),
        (
            table(rating=[1.0, -np.inf]),
            {},
            r"'rating' is infinite in 1 row, the first of them row 1",
        ),
        (table(), {"items": ["a", "c"]}, r"'item' has 1 row whose id is not in items= \('b'\)"),
        (table(), {"items": [1, 2]}, r"\('a', 'b'\).*one type.*int64"),
        (table(), {"items": ["a", "b", "a"]}, r"items holds 'a' more than once"),
        *(
            (table(), {name: value}, rf"{name}=.* must be an array of ids in one dimension")
            for name in ("users", "items")
            for value in (300, 1.5, "abc", {1, 2}, [[1, 2]], np.ones((2, 2)))
        ),
        (table(), {"users": table()}, r"users is a table with the columns .*users=table\['user'\]"),
    ],
)
def test_bad_tables_are_refused(frame, arguments, message):
    with pytest.raises(ValueError, match=message):
        ratings_to_matrix(frame, **arguments)


def test_what_is_no_table_with_single_columns_is_refused():
    with pytest.raises(ValueError, match=r"frame='str' must be .*: pass read_ratings\(path\)"):
        ratings_to_matrix("ratings.csv")
    with pytest.raises(ValueError, match=r"frame='ndarray' must be a DataFrame.*pandas\.DataFrame"):
        ratings_to_matrix(np.ones((3, 3)))
    twice = pd.DataFrame([[1, 2, 3, 4.0]], columns=["user", "item", "user", "rating"])
    with pytest.raises(ValueError, match=r"several columns named 'user'.*rename"):
        ratings_to_matrix(twice)


def _as(kind, frame):
    if kind == "pandas":
        return frame
    if kind == "sparse":  # of pandas
        dense = frame.select_dtypes("number").columns
        return frame.astype({name: pd.SparseDtype(frame[name].dtype) for name in dense})
    columns = {name: [None if x != x else x for x in frame[name]] for name in frame}
    if kind in ("arrow", "batches"):
        table = pytest.importorskip("pyarrow").table(columns)
        return table if kind == "arrow" else table.to_reader()
    table = pytest.importorskip("polars").DataFrame(columns)
    return table.lazy() if kind == "lazy" else table


KINDS = ["pandas", "sparse", "polars", "lazy", "arrow", "batches"]


@pytest.mark.parametrize("kind", KINDS)
def test_titles_come_with_a_table_of_items(kind):
    frame = pd.DataFrame({"user": ["b", "a"], "item": ["y", "x"], "rating": [4.0, 2.0]})
    items = pd.DataFrame({"item": ["z", "y", "x"], "title": ["Z!", "Why", "X"]})
    matrix = ratings_to_matrix(_as(kind, frame), items=_as(kind, items))
    assert (list(matrix.users), list(matrix.items)) == (["a", "b"], ["z", "y", "x"])
    assert matrix.titles == ["Z!", "Why", "X"]
    items["title"] = ["Z!", None, "X"]
    assert ratings_to_matrix(_as(kind, frame), items=_as(kind, items)).titles == ["Z!", "", "X"]
    assert matrix.undeclared == ("users",)
    np.testing.assert_array_equal(matrix.X.toarray(), [[0, 0, 2], [0, 4, 0]])
    with pytest.raises(ValueError, match="items has no column 'item'"):
        ratings_to_matrix(frame, items=items[["title"]])


@pytest.mark.parametrize("kind", KINDS)
def test_other_takers_of_tables(kind):
    frame = pd.DataFrame({"user": [2, 1, 2], "item": ["y", "x", "z"], "rating": [4.0, 2.0, 3.0]})
    X, _, items = ratings_to_matrix(frame)
    years = item_features(_as(kind, frame.assign(Release_Year=[1990, 2000, 2010])))
    assert list(years) == ["year<2000", "2000<=year<2010", "year>=2010"]
    train, test = split_table(_as(kind, frame), 0.5, random_state=0)
    assert (len(train), len(test)) == (1, 2)
    model = RatingRegressor(DPItemMeans(PrivacyBudget.nonprivate()))
    model.fit(_as(kind, frame[["user", "item"]]), frame["rating"])
    np.testing.assert_array_equal(model.ratings_.toarray(), X.toarray())
    if kind not in ("pandas", "sparse", "polars"):
        wide = pd.DataFrame(X.toarray(), columns=items)
        with pytest.raises(
            ValueError, match=r"X=\w+ must be a matrix in memory.*: pass X\.\w+\(\)"
        ):
            DPItemMeans(PrivacyBudget(1.0, 1e-5)).fit(_as(kind, wide))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [object, float])
def test_empty_tables(kind, dtype):
    frame = pd.DataFrame({"user": [], "item": [], "rating": []}, dtype=dtype)
    assert ratings_to_matrix(_as(kind, frame)).X.shape == (0, 0)
    matrix = ratings_to_matrix(_as(kind, frame), users=[1, 2], items=(j for j in [3]))
    assert (matrix.shape, matrix.nnz) == ((2, 1), 0)


def test_rows_and_columns_keep_their_labels():
    frame = pd.DataFrame({"user": [1, 2, 3], "item": ["x", "y", "x"], "rating": [1.0, 2.0, 3.0]})
    matrix = ratings_to_matrix(frame)
    some = matrix[[2, 0]]
    assert list(some.users) == [3, 1]
    np.testing.assert_array_equal(some.X.toarray(), [[3, 0], [1, 0]])
    assert list(matrix[:, [1]].items) == ["y"]
    assert matrix.rows(2).X.toarray().tolist() == [[0.0, 2.0]]
    for users in ([3, 1], np.array([3, 1]), pd.Series([3, 1]), pd.array([3, 1]), {3: 0, 1: 0}):
        np.testing.assert_array_equal(matrix.rows(users).X.toarray(), some.X.toarray())
    with pytest.raises(ValueError, match="users names 9, which has no row"):
        matrix.rows([1, 9])
    with pytest.raises(ValueError, match="items has 1 values and must have 2"):
        RatingMatrix(matrix.X, None, ["x"])
