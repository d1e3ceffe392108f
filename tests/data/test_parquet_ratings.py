"""Parquet ratings: what was written comes back, and a user's ratings are in one part."""

import gc
import os
import pickle
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from scipy import sparse

from skdpmf.data import ParquetRatings, ratings_to_matrix, table_chunks
from skdpmf.data import parquet_ratings as module
from skdpmf.data.validation import as_rating_matrix
from skdpmf.exceptions import MissingExtraError, RatingStoreError

from .twins import NAN, SMALL, SMALL_ROWS, rating_rows, rows_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def chunk(*columns):
    return pd.DataFrame(dict(zip(table_chunks.COLUMNS, columns, strict=True)))


def table(n=2000, n_users=60, n_items=25, seed=0):
    """Ratings in random order, with duplicates, NaN and ids that are no positions."""
    rng = np.random.default_rng(seed)
    ratings = rng.integers(1, 11, n) / 2
    ratings[rng.random(n) < 0.05] = np.nan
    users, items = 1000 - 7 * rng.integers(n_users, size=n), rng.integers(n_items, size=n)
    return pd.DataFrame({"user": users, "item": [f"i{j}" for j in items], "rating": ratings})


# Ratings come out as they went in, and a user goes to one part


@settings(max_examples=40)
@given(
    entries=st.lists(
        st.tuples(
            st.integers(0, 9),
            st.integers(0, 4),
            st.integers(-8, 8).map(lambda v: v / 4) | st.sampled_from([NAN, 0.1, 3e5]),
        ),
        max_size=40,
    ),
    size=st.integers(1, 20),
    rows_per_part=st.sampled_from([1, 2, 3, 5, 16384]),
    piece=st.integers(1, 12),
)
def test_tables_in_any_order_equal_the_twin(entries, size, rows_per_part, piece):
    frame = pd.DataFrame(entries, columns=["user", "item", "rating"])
    chunks = (frame[at : at + size] for at in range(0, len(frame), size))
    codes = {user: k for k, user in enumerate(dict.fromkeys(frame["user"]))}
    expected = rating_rows([(codes[u], i, r) for u, i, r in entries], (len(codes), 5))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_chunks, "_PIECE", piece)
        patch.setattr(table_chunks, "_BUCKET_ROWS", 4)
        patch.setattr(module, "_GROUP_ROWS", 2)
        path = Path(folder) / "p"
        ratings = ParquetRatings.write(path, chunks, items=range(5), rows_per_part=rows_per_part)
        assert next(chunks, None) is None
        assert ratings.shape == (len(codes), 5)
        assert ratings.nnz == sum(map(len, expected))
        assert ratings.user_ids.tolist() == list(codes)
        assert ratings.item_ids.tolist() == [*range(5)]
        stored = [{j: float(np.float32(v)) for j, v in row.items()} for row in expected]
        assert rows_of(ratings.read_rows()) == stored
        ratings.check()
        ratings.verify()
        assert ratings.n_parts == -(-ratings.shape[0] // rows_per_part)
        # By the files alone: how many of them hold a user?
        parts = Counter()
        for file in path.glob("*.parquet"):
            parts.update(set(pq.read_table(file)["user"].to_pylist()))
        assert set(parts.values()) <= {1}


def test_all_sources_give_the_same_parts(tmp_path):
    frame = table()
    frame.to_parquet(tmp_path / "whole.parquet", row_group_size=170)
    frame[:700].to_parquet(tmp_path / "a.parquet")
    frame[700:].to_parquet(tmp_path / "b.parquet")
    matrix = ratings_to_matrix(frame, users=frame["user"].unique())
    expected = rows_of(as_rating_matrix(matrix.X, dtype=np.float32))
    sources = {
        "frame": frame,
        "chunks": [frame[:300], frame[300:]],
        "file": tmp_path / "whole.parquet",
        "name": str(tmp_path / "whole.parquet"),
        "files": [tmp_path / "a.parquet", tmp_path / "b.parquet"],
        "arrow": pa.Table.from_pandas(frame),
        "other parts": ParquetRatings.write(tmp_path / "p", frame, rows_per_part=30),
        "matrix": matrix,
    }
    for name, source in sources.items():
        ratings = ParquetRatings.write(tmp_path / f"to {name}", source, rows_per_part=10)
        assert rows_of(ratings.read_rows()) == expected
        assert ratings.user_ids.tolist() == frame["user"].drop_duplicates().tolist()
        assert ratings.item_ids.tolist() == sorted(set(frame["item"]))
        assert ratings.undeclared == (("items",) if name == "matrix" else ("users", "items"))
        if name != "matrix":
            whole = ParquetRatings(tmp_path / "to frame")
            assert ratings.fingerprint == whole.fingerprint, name


def test_columns_of_other_names_items_and_categories(path, tmp_path):
    file = tmp_path / "t.parquet"
    frame = pd.DataFrame({"a": pd.Categorical(["x", "y"]), "b": [2, 1], "c": [4, 5], "rating": 0})
    frame.to_parquet(file)
    names = {"user": "a", "item": "b", "rating": "c"}
    ratings = ParquetRatings.write(path, file, columns=names, items=[2, 3, 1])
    assert rows_of(ratings.read_rows()) == [{0: 4.0}, {2: 5.0}]
    assert (ratings.user_ids.tolist(), ratings.item_ids.tolist()) == (["x", "y"], [2, 3, 1])


def test_parts_are_what_the_module_says(small, path):
    files = ["rows-000000000000.parquet", "rows-000000000002.parquet", "rows-000000000004.parquet"]
    assert sorted(os.listdir(path)) == ["manifest.json", *files]
    middle = pq.read_table(path / files[1])
    assert [str(t) for t in middle.schema.types] == ["int32", "int32", "float"]
    assert middle.to_pydict() == {
        "user": [2, 2, 3, 3],
        "item": [0, 1, 1, 2],
        "rating": [1.0, 2.5, 4.0, -3.0],
    }
    about = "7 ratings of 5 users for 3 items in 3 parts"
    assert repr(small) == f"<ParquetRatings: {about} at {str(path)!r}>"
    assert rows_of(small.read_rows(1, 2)) == SMALL_ROWS[2:4]
    assert rows_of(small.read_rows(1)) == SMALL_ROWS[2:]
    assert small.read_rows(2, 2).shape == (0, 3)
    small.verify()


@pytest.mark.parametrize("shape", [(0, 3), (0, 0), (3, 0), (4, 2)])
def test_without_ratings(path, shape):
    ratings = ParquetRatings.write(path, sparse.csr_array(shape), rows_per_part=3)
    ratings.check()
    ratings.verify()
    R = ratings.read_rows()
    assert (ratings.shape, R.shape, ratings.nnz, R.nnz) == (shape, shape, 0, 0)
    assert ratings.n_parts == -(-shape[0] // 3)


# Types of ids and ratings


def test_means_of_duplicates_are_taken_before_rounding_to_float32(path):
    # 2**24 + 1 is no float32: rounded first, the mean would be 2**24 + 1.
    entries = ([0, 0], [0, 0], [2.0**24 + 1, 2.0**24 + 3])
    for source in ([chunk(*entries)], sparse.coo_array((entries[2], entries[:2]), shape=(1, 1))):
        ratings = ParquetRatings.write(path, source, overwrite=True)
        assert ratings.read_rows().toarray() == [[2.0**24 + 2]]


def test_unknown_ratings_leave_their_user_and_item(path):
    ratings = ParquetRatings.write(path, [chunk([7, 8, 7], [3, 1, 2], [NAN, NAN, 4.0])])
    assert rows_of(ratings.read_rows()) == [{1: 4.0}, {}]
    assert (ratings.user_ids.tolist(), ratings.item_ids.tolist()) == ([7, 8], [1, 2, 3])


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
def test_ids_keep_their_type_and_cannot_be_written_to(path, users, expected):
    frame = pd.DataFrame({"user": users, "item": users, "rating": [1.0, 2.0, 4.0]})
    ratings = ParquetRatings.write(path, [frame[:1], frame[1:]])
    ids = ratings.user_ids.tolist()
    assert ids == expected
    assert [type(label) for label in ids] == [type(label) for label in expected]
    with pytest.raises(ValueError, match="read-only"):
        ratings.item_ids[0] = ratings.item_ids[1]


# The folder


def test_pickles_as_its_path(small, path, monkeypatch):
    pickled = pickle.dumps(small)
    assert len(pickled) < 500
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert again.fingerprint == small.fingerprint == ParquetRatings(path).fingerprint
    (path / "rows-000000000002.parquet").unlink()
    with pytest.raises(RatingStoreError):
        pickle.loads(pickled)


def test_writing_needs_memory_for_some_parts(path, monkeypatch):
    monkeypatch.setattr(table_chunks, "_PIECE", 1 << 12)
    monkeypatch.setattr(table_chunks, "_BUCKET_ROWS", 64)
    n_ratings = 400_000

    def chunks():
        rng = np.random.default_rng(0)
        for size in [1000] * (n_ratings // 2000) + [n_ratings // 20] * 10:  # small and large
            codes = rng.integers(2048 * 300, size=size, dtype=np.int32)
            yield chunk(codes // 300, codes % 300, np.ones(codes.size, np.float32))

    def write():
        options = {"items": range(300), "rows_per_part": 64, "overwrite": True}
        return ParquetRatings.write(path, chunks(), **options)

    write()  # what is imported and cached on the first use is no part of the measurement
    gc.collect()
    tracemalloc.start()
    assert write().nnz > 200_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.3 * 16 * n_ratings  # of the records


# Writing: what is refused, and what is left behind


@pytest.mark.parametrize("rows", [0, -1, 2.0, True, None])
def test_rows_per_part_that_are_none(path, rows):
    with pytest.raises(ValueError, match=f"rows_per_part={rows!r} must be an integer >= 1"):
        ParquetRatings.write(path, SMALL, rows_per_part=rows)


ONE = chunk([1], [2], [3.0])


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (np.array([[1.0, np.inf]]), {}, "infinite"),
        (sparse.csr_array((1, 2**31)), {}, "items and must have"),
        (SMALL, {"items": range(3)}, "leave them out"),
        (SMALL, {"columns": {"user": "u"}}, "leave it out"),
        ([[1.0, 2.0]], {}, r"chunk 0 is a list.*\[table\]"),
        ([pd.DataFrame({"user": [1], "item": [2]})], {}, "chunk 0 has no column 'rating'"),
        ([chunk([1], [2], [np.inf])], {}, "column 'rating' of chunk 0 is infinite"),
        ([chunk([1], [2], ["5"])], {}, "pandas.to_numeric"),
        (
            [chunk([1.5], [2], [3.0])],
            {},
            r"column 'user' of chunk 0 holds the id 1\.5 of type float",
        ),
        (
            [chunk([1, None], [2, 2], [3.0, 4.0])],
            {},
            r"'user' of chunk 0 lacks an id .*first of them row 1",
        ),
        (
            [chunk([1, 1], [2, 9], [3.0, 4.0])],
            {"items": [2, 3]},
            "not declared.*such as 9.*by items=",
        ),
        ([ONE], {"items": ["2"]}, "'2'|such as 2.*are different ids"),
        ([ONE, chunk([1], ["x"], [3.0])], {}, r"dtype=\{'item': str\}"),
        ([ONE], {"items": [2, 4, 2]}, "holds 2 more than once"),
    ],
)
def test_sources_that_are_refused(path, source, options, message):
    with pytest.raises(ValueError, match=message):
        ParquetRatings.write(path, source, **options)
    assert os.listdir(path.parent) == []


class Interruption(BaseException):
    """Neither an Exception nor anything else that somebody may catch on the way."""


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("step", ["reading", "_size_and_digest", "write_file"])
def test_interrupted_write_leaves_nothing(path, monkeypatch, existing, step):
    if existing:
        ParquetRatings.write(path, SMALL)
    seen = []

    def interrupt(*_):
        seen.extend(path.parent.rglob(".*"))
        raise Interruption

    def chunks():
        yield chunk(np.arange(100), np.zeros(100, int), np.ones(100))
        if step == "reading":
            interrupt()

    if step != "reading":
        of = module.store if step == "write_file" else module
        monkeypatch.setattr(of, step, interrupt)
    with pytest.raises(Interruption):
        ParquetRatings.write(path, chunks(), overwrite=True)
    assert seen  # something had been written by then
    assert os.listdir(path.parent) == (["ratings"] if existing else [])
    if existing:
        assert ParquetRatings(path).nnz == 7


def test_failed_exchange_brings_the_old_ratings_back(small, path, monkeypatch):
    rename = Path.rename

    def failing(self, target):
        if self.name == "new":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"):
        ParquetRatings.write(path, np.ones((1, 1)), overwrite=True)
    assert os.listdir(path.parent) == ["ratings"]
    assert ParquetRatings(path).nnz == 7


def test_overwriting_never_deletes_what_holds_no_ratings(small, path):
    with pytest.raises(FileExistsError, match="overwrite=True"):
        ParquetRatings.write(path, SMALL)
    (path / "manifest.json").unlink()
    assert ParquetRatings.write(path, SMALL[:1], overwrite=True).shape == (1, 3)
    (path / "part.0.parquet").write_text("mine")
    with pytest.raises(FileExistsError, match=r"part\.0\.parquet"):
        ParquetRatings.write(path, SMALL, overwrite=True)
    other = path.parent / "file"
    other.write_text("mine")
    with pytest.raises(FileExistsError, match="it is a file"):
        ParquetRatings.write(other, SMALL, overwrite=True)
    assert other.read_text() == "mine"
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ParquetRatings.write(path.parent / "no" / "ratings", SMALL)


def test_without_pyarrow(small, path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    opened = ParquetRatings(path)  # the manifest alone
    for action in (
        opened.check,
        opened.read_rows,
        lambda: ParquetRatings.write(tmp_path / "new", SMALL),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install skdpmf\[parquet\]"):
            action()
    assert os.listdir(tmp_path) == ["ratings"]
