"""A rating store returns the ratings that were written, or refuses them at once."""

import os
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from scipy import sparse

from skdpmf.data import RatingStore, _store_chunks, ratings_to_matrix
from skdpmf.data.rating_store import RatingBlock
from skdpmf.data.validation import as_rating_matrix
from skdpmf.exceptions import MissingExtraError

from .twins import FORMATS, container, rating_rows, rows_of

NAN = float("nan")
SMALL = [[5.0, NAN, 0.0], [NAN, NAN, NAN], [1.0, 2.5, NAN], [NAN, 4.0, -3.0], [NAN, 1.0, NAN]]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ratings"


def table(n=3000, n_users=60, n_items=25, seed=0):
    """Ratings in random order, with duplicates, NaN and ids that are no positions."""
    rng = np.random.default_rng(seed)
    ratings = rng.integers(1, 11, n) / 2
    ratings[rng.random(n) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "user": 1000 - 7 * rng.integers(n_users, size=n) ** 2,
            "item": [f"i{j}" for j in rng.integers(n_items, size=n)],
            "rating": ratings,
        }
    )


def cut(frame, size):
    return (frame[at : at + size] for at in range(0, len(frame), size))


def block_twin(rows, start, stop):
    """What a block of the rows must hold, by plain loops."""
    runs = {}
    for user in range(start, stop):
        for item, value in rows[user].items():
            runs.setdefault(item, []).append((user - start, value))
    items = sorted(runs)
    entries = [entry for item in items for entry in runs[item]]
    indptr = np.cumsum([0, *(len(runs[item]) for item in items)]).tolist()
    return items, indptr, [u for u, _ in entries], [float(np.float32(v)) for _, v in entries]


def assert_holds(store, rows, n_items):
    """Compare blocks, matrix and statistics with rows of dicts."""
    assert store.shape == (len(rows), n_items)
    assert store.nnz == sum(map(len, rows))
    assert store.n_blocks == -(-len(rows) // store.block_rows)
    blocks = list(store.blocks())
    assert len(blocks) == store.n_blocks
    for k, block in enumerate(blocks):
        assert isinstance(block, RatingBlock)
        start, stop = k * store.block_rows, min((k + 1) * store.block_rows, len(rows))
        assert (block.start, block.stop) == (start, stop)
        assert [a.dtype for a in block[2:]] == [np.int32, np.int64, np.uint16, np.float32]
        assert tuple(a.tolist() for a in block[2:]) == block_twin(rows, start, stop)
    stored = [{j: float(np.float32(v)) for j, v in row.items()} for row in rows]
    R = store.to_matrix()
    assert isinstance(R, sparse.csr_array)
    assert R.dtype == np.float64
    assert R.shape == store.shape
    assert rows_of(R) == stored
    values = [v for row in stored for v in row.values()]
    if values:
        np.testing.assert_allclose([store.mean, store.std], [np.mean(values), np.std(values)])
    else:
        assert np.isnan([store.mean, store.std]).all()
    store.verify()


# Ratings come out as they went in


@st.composite
def problems(draw):
    shape = draw(st.integers(0, 9)), draw(st.integers(0, 6))
    indices = st.tuples(st.integers(0, max(shape[0] - 1, 0)), st.integers(0, max(shape[1] - 1, 0)))
    ratings = st.integers(-8, 8).map(lambda v: v / 4) | st.sampled_from([NAN, 0.1, 1e-3, 3e5])
    entries = draw(st.lists(st.tuples(indices, ratings), max_size=40 if min(shape) else 0))
    return [(*index, rating) for index, rating in entries], shape


@settings(max_examples=60)
@given(
    problem=problems(),
    kind=st.sampled_from(FORMATS),
    block_rows=st.sampled_from([1, 2, 3, 5, 9, 4096, 65536]),
)
def test_blocks_of_a_sparse_matrix_equal_their_twin(problem, kind, block_rows):
    entries, shape = problem
    X = container(entries, shape, kind)
    with tempfile.TemporaryDirectory() as folder:
        store = RatingStore.from_matrix(Path(folder) / "s", X, block_rows=block_rows)
        assert store.block_rows == block_rows
        assert_holds(store, rating_rows(entries, shape), shape[1])
        assert store.user_ids is None
        assert store.item_ids is None


@settings(max_examples=60)
@given(
    problem=problems(),
    block_rows=st.sampled_from([1, 2, 3, 4096]),
    size=st.integers(1, 20),
    piece=st.integers(1, 12),
    bucket_rows=st.integers(1, 12),
)
def test_chunks_of_any_size_equal_the_twin(problem, block_rows, size, piece, bucket_rows):
    entries, (_, n_items) = problem
    frame = pd.DataFrame(entries, columns=["user", "item", "rating"])
    codes = {user: k for k, user in enumerate(dict.fromkeys(frame["user"]))}
    rows = rating_rows([(codes[u], i, r) for u, i, r in entries], (len(codes), n_items))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_store_chunks, "_PIECE", piece)
        patch.setattr(_store_chunks, "_BUCKET_ROWS", bucket_rows)
        store = RatingStore.from_chunks(
            Path(folder) / "s", cut(frame, size), n_items=n_items, block_rows=block_rows
        )
        assert_holds(store, rows, n_items)
        assert store.user_ids.tolist() == list(codes)
        assert store.item_ids is None


@pytest.mark.parametrize("size", [1, 170, 3000])
def test_chunks_equal_the_matrix_of_the_whole_table(path, size):
    frame = table()
    assert frame.duplicated(["user", "item"]).sum() > 500
    store = RatingStore.from_chunks(path, cut(frame, size), block_rows=16)
    expected = ratings_to_matrix(frame, users=frame["user"].unique())
    assert store.user_ids.tolist() == expected.users.tolist()
    assert store.item_ids.tolist() == expected.items.tolist()
    assert store.n_blocks > 2
    expected_rows = rows_of(as_rating_matrix(expected.X, dtype=np.float32))
    assert rows_of(store.to_matrix()) == expected_rows


def test_means_of_duplicates_are_taken_before_rounding_to_float32(path):
    # 2**24 + 1 is no float32: rounded first, the mean would be 2**24 + 1.
    entries = ([0, 0], [0, 0], [2.0**24 + 1, 2.0**24 + 3])
    store = RatingStore.from_chunks(path, [entries])
    assert store.to_matrix().toarray() == [[2.0**24 + 2]]
    matrix = sparse.coo_array((entries[2], entries[:2]), shape=(1, 1))
    assert RatingStore.from_matrix(path.parent / "m", matrix).to_matrix().toarray() == 2.0**24 + 2


def test_dense_matrices_and_frames(path, tmp_path):
    store = RatingStore.from_matrix(path, np.array(SMALL), block_rows=2)
    rows = [{0: 5.0, 2: 0.0}, {}, {0: 1.0, 1: 2.5}, {1: 4.0, 2: -3.0}, {1: 1.0}]
    assert_holds(store, rows, 3)
    frame = pd.DataFrame(SMALL, index=[9, 7, 5, 3, 1], columns=["a", "Ä", ""])
    labelled = RatingStore.from_matrix(tmp_path / "frame", frame, block_rows=2)
    assert_holds(labelled, rows, 3)
    assert labelled.user_ids.tolist() == [9, 7, 5, 3, 1]
    assert labelled.item_ids.tolist() == ["a", "Ä", ""]
    assert not np.isnan(store.mean)
    assert store.fingerprint != labelled.fingerprint


def test_generator_is_read_once_and_alone(path):
    frame = table()
    served = []

    def chunks():
        for chunk in cut(frame, 1000):
            served.append(len(chunk))
            yield chunk

    source = chunks()
    store = RatingStore.from_chunks(path, source, block_rows=7)
    assert served == [1000] * 3
    assert next(source, None) is None
    assert store.nnz > 500


@pytest.mark.parametrize("rows", [(0, 3), (3, 0), (0, 0), (2, 3)])
def test_matrices_without_ratings(path, rows):
    store = RatingStore.from_matrix(path, sparse.csr_array(rows), block_rows=2)
    assert_holds(store, [{}] * rows[0], rows[1])
    for block in store.blocks():
        assert block.indptr.tolist() == [0]


@pytest.mark.parametrize("chunks", [[], [pd.DataFrame(columns=["user", "item", "rating"])]])
def test_tables_without_rows(path, chunks):
    store = RatingStore.from_chunks(path, chunks, items=["b", "a"])
    assert_holds(store, [], 2)
    assert store.user_ids.tolist() == []
    assert store.item_ids.tolist() == ["b", "a"]


def test_unknown_ratings_leave_their_user_and_item(path):
    store = RatingStore.from_chunks(path, [([7, 8, 7], [3, 1, 2], [NAN, NAN, 4.0])])
    assert_holds(store, [{1: 4.0}, {}], 3)
    assert store.user_ids.tolist() == [7, 8]
    assert store.item_ids.tolist() == [1, 2, 3]


# Types of ids and ratings


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        (np.array([5, -2, 5], ">i4"), [5, -2]),
        (np.array([5, 2, 5], np.uint8), [5, 2]),
        (np.array([2**64 - 1, 2, 2], np.uint64), [2**64 - 1, 2]),
        (np.array(["b", "a", "b"]), ["b", "a"]),
        (np.array(["b", 3, "b"], object), ["b", 3]),
        (np.array([10**30, np.int8(3), 3], object), [10**30, 3]),
        (pd.array([5, 2, 5], dtype="Int64"), [5, 2]),
        (pd.array(["b", "a", "b"], dtype="string"), ["b", "a"]),
        (pd.Categorical([5, 2, 5], categories=[1, 2, 5]), [5, 2]),
        (pd.Categorical(["x", "", "x"]), ["x", ""]),
    ],
)
def test_ids_keep_their_type(path, users, expected):
    frame = pd.DataFrame({"user": users, "item": users, "rating": [1.0, 2.0, 4.0]})
    ids = RatingStore.from_chunks(path, [frame[:1], frame[1:]]).user_ids.tolist()
    assert ids == expected
    assert [type(label) for label in ids] == [type(label) for label in expected]


def test_mixed_items_are_sorted_integers_first(path):
    items = np.array(["b", 3, "a", 20], object)
    store = RatingStore.from_chunks(path, [([1] * 4, items, [1.0, 2.0, 3.0, 4.0])])
    assert store.item_ids.tolist() == [3, 20, "a", "b"]
    assert store.to_matrix().toarray().tolist() == [[2.0, 4.0, 3.0, 1.0]]


@pytest.mark.parametrize("dtype", [bool, ">i2", np.uint8, ">f8", np.float16, np.longdouble])
def test_ratings_of_any_number_type(path, dtype):
    values = np.array([1, 0, 1], dtype)
    store = RatingStore.from_chunks(path, [([0, 1, 2], [0, 0, 1], values)])
    assert_holds(store, [{0: 1.0}, {0: 0.0}, {1: 1.0}], 2)
    if dtype is not np.float16:  # scipy has no sparse matrices of it
        native = values.astype(values.dtype.newbyteorder("="))
        X = sparse.coo_array((native, ([0, 1, 2], [0, 0, 1])))
        again = RatingStore.from_matrix(path, X, overwrite=True)
        assert_holds(again, [{0: 1.0}, {0: 0.0}, {1: 1.0}], 2)


def test_big_endian_matrices(path):
    store = RatingStore.from_matrix(path, np.array(SMALL, ">f4"))
    assert store.nnz == 7
    assert all(array.dtype.isnative for array in store.read_block(0)[2:])


def test_nullable_ratings(path):
    frame = pd.DataFrame(
        {"user": [1, 1], "item": [1, 2], "rating": pd.array([3, None], dtype="Int8")}
    )
    assert_holds(RatingStore.from_chunks(path, [frame]), [{0: 3.0}], 2)


def test_ratings_beyond_float32_become_its_largest(path):
    store = RatingStore.from_chunks(path, [([0, 0], [0, 1], [1e300, -1e300])])
    largest = float(np.finfo(np.float32).max)
    assert store.to_matrix().toarray().tolist() == [[largest, -largest]]
    assert store.std == pytest.approx(largest)


def test_mean_and_deviation_are_sums_of_float64(path):
    # In float32 both the sum and the squares would lose the deviations.
    values = 1e6 + np.arange(20_000) % 2 / 4
    store = RatingStore.from_chunks(path, [(np.arange(20_000), 0 * values.astype(int), values)])
    assert store.n_blocks == 5
    assert store.mean == pytest.approx(1e6 + 0.125, rel=1e-14)
    assert store.std == pytest.approx(0.125, rel=1e-9)


# Parquet


@pytest.mark.parametrize("row_group_size", [200, 10_000])
def test_parquet(path, tmp_path, monkeypatch, row_group_size):
    monkeypatch.setattr(_store_chunks, "_PIECE", 170)
    frame = table()
    file = tmp_path / "t.parquet"
    frame.assign(extra=1).rename(columns={"item": "movieId", "rating": "stars"}).to_parquet(
        file, row_group_size=row_group_size, index=False
    )
    store = RatingStore.from_parquet(path, file, block_rows=16)
    same = RatingStore.from_chunks(tmp_path / "same", [frame], block_rows=16)
    assert store.fingerprint == same.fingerprint


def test_parquet_columns_items_and_categories(path, tmp_path):
    file = tmp_path / "t.parquet"
    frame = pd.DataFrame({"a": pd.Categorical(["x", "y"]), "b": [2, 1], "c": [4, 5], "rating": 0})
    frame.to_parquet(file)
    names = {"user": "a", "item": "b", "rating": "c"}
    store = RatingStore.from_parquet(path, file, columns=names, items=[2, 3, 1])
    assert_holds(store, [{0: 4.0}, {2: 5.0}], 3)
    assert store.user_ids.tolist() == ["x", "y"]


def test_unusable_parquet_files(path, tmp_path, monkeypatch):
    file = tmp_path / "t.parquet"
    with pytest.raises(FileNotFoundError, match=r"t\.parquet"):
        RatingStore.from_parquet(path, file)
    file.write_text("user,item,rating\n1,2,3\n")
    with pytest.raises(ValueError, match=r"t\.parquet is not a readable Parquet file"):
        RatingStore.from_parquet(path, file)
    pd.DataFrame({"user": [1], "item": [2]}).to_parquet(file)
    with pytest.raises(ValueError, match="chunk 0 has no column 'rating'"):
        RatingStore.from_parquet(path, file)
    with pytest.raises(ValueError, match=r"columns=.*must be a dict"):
        RatingStore.from_parquet(path, file, columns=["user", "item", "rating"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"skdpmf\[parquet\]"):
        RatingStore.from_parquet(path, file)
    assert os.listdir(tmp_path) == ["t.parquet"]


# Input that is refused


@pytest.mark.parametrize(
    ("chunk", "options", "message"),
    [
        (([1], [2], [np.inf]), {}, "chunk 0 holds infinite ratings"),
        (([1], [2], ["5"]), {}, "pandas.to_numeric"),
        (([1], [2], [1j]), {}, "must be numbers"),
        (([1, 2], [2], [1.0]), {}, "one length"),
        (([[1]], [[2]], [[1.0]]), {}, "1-d"),
        (([1], [2]), {}, "chunk 0 is a tuple"),
        (pd.DataFrame({"user": [1], "item": [2]}), {}, "no column 'rating'"),
        (([1.5], [2], [3.0]), {}, r"column 'user' of chunk 0 holds the id 1\.5 of type float"),
        (([1], [True], [3.0]), {}, "column 'item' of chunk 0 holds the id True"),
        (([1, None], [2, 2], [3.0, 4.0]), {}, r"rows without an id of the user \(first: row 1"),
        (([1], [None], [3.0]), {}, "without an id of the item"),
        (([1, 1], [2, 9], [3.0, 4.0]), {"items": [2, 3]}, "item that are not declared.*such as 9"),
        (([1], ["2"], [3.0]), {"items": [2]}, "'2'.*are different ids"),
        (([1], [5], [3.0]), {"n_items": 5}, "such as 5"),
        (([1], [-1], [3.0]), {"n_items": 5}, "such as -1"),
        (([1], [2], [3.0]), {"items": [2, 4, 2]}, "2 occurs more than once"),
        (([1], [2], [3.0]), {"items": [2.5]}, "items holds the id 2.5"),
        (([1], [2], [3.0]), {"items": [2], "n_items": 3}, "pass one of them"),
        (([1], [2], [3.0]), {"n_items": 2.0}, r"n_items=2\.0 must be"),
        (([1], [2], [3.0]), {"n_items": -1}, "n_items=-1 must be"),
        (([1], [2], [3.0]), {"n_items": 2**31}, "n_items=2147483648 must be"),
        (([1], [2], [3.0]), {"block_rows": 0}, "block_rows=0 must be"),
        (([1], [2], [3.0]), {"block_rows": 65537}, "block_rows=65537 must be"),
        (([1], [2], [3.0]), {"block_rows": True}, "block_rows=True must be"),
        (([1], [2], [3.0]), {"block_rows": 8.0}, r"block_rows=8\.0 must be"),
    ],
)
def test_unusable_chunks_leave_nothing(path, chunk, options, message):
    with pytest.raises(ValueError, match=message):
        RatingStore.from_chunks(path, [chunk], **options)
    assert os.listdir(path.parent) == []


def test_single_table_is_no_iterable_of_chunks(path):
    with pytest.raises(ValueError, match=r"chunk 0 is a str.*\[table\]"):
        RatingStore.from_chunks(path, table())


@pytest.mark.parametrize("kind", ["dense", "csr_array", "csc_array", "coo_array"])
def test_infinite_ratings_of_a_matrix_are_refused(path, kind):
    entries = [(0, 1, 1.0), (1, 0, -np.inf)]
    X = np.array([[NAN, 1.0], [-np.inf, 2.0]])
    if kind != "dense":
        X = container(entries, (2, 2), kind)
    with pytest.raises(ValueError, match="infinite"):
        RatingStore.from_matrix(path, X)
    with pytest.raises(ValueError, match="infinite"):  # the same where no pass over X finds it
        RatingStore.from_matrix(path, pd.DataFrame([[np.inf]]))
    assert os.listdir(path.parent) == []


def test_labels_of_other_types_are_refused(path):
    frame = pd.DataFrame(SMALL, index=pd.date_range("2020", periods=5))
    with pytest.raises(ValueError, match="user_ids holds the id Timestamp"):
        RatingStore.from_matrix(path, frame)
    assert os.listdir(path.parent) == []
