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

from skdpmf.data import ParquetRatings, RatingStore, _store_chunks, _store_files
from skdpmf.data import parquet_ratings as module
from skdpmf.data.validation import as_rating_matrix
from skdpmf.exceptions import MissingExtraError, RatingStoreError

from .twins import NAN, SMALL, SMALL_ROWS, rows_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ratings"


@pytest.fixture
def small(path):
    """Five users in three parts."""
    return ParquetRatings.write(path, SMALL, rows_per_part=2)


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
    n_chunks=st.integers(1, 4),
    rows_per_part=st.sampled_from([1, 2, 3, 5, 16384]),
    piece=st.integers(1, 12),
)
def test_tables_in_any_order_equal_the_store(entries, n_chunks, rows_per_part, piece):
    frame = pd.DataFrame(entries, columns=["user", "item", "rating"])
    chunks = [frame.iloc[k::n_chunks] for k in range(n_chunks)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_store_chunks, "_PIECE", piece)
        patch.setattr(_store_chunks, "_BUCKET_ROWS", 4)
        patch.setattr(module, "_GROUP", 3)
        path = Path(folder)
        ratings = ParquetRatings.write(
            path / "p", iter(chunks), n_items=5, rows_per_part=rows_per_part
        )
        store = RatingStore.from_chunks(path / "s", chunks, n_items=5)
        assert ratings.shape == store.shape
        assert ratings.nnz == store.nnz
        assert ratings.user_ids.tolist() == store.user_ids.tolist()
        assert ratings.item_ids is None
        assert rows_of(ratings.read_rows()) == rows_of(store.to_matrix())
        ratings.check()
        ratings.verify()
        assert ratings.n_parts == -(-ratings.shape[0] // rows_per_part)
        # By the files alone: how many of them hold a user?
        parts = Counter()
        for file in (path / "p").glob("*.parquet"):
            parts.update(set(pq.read_table(file)["user"].to_pylist()))
        assert set(parts.values()) <= {1}


def test_all_sources_give_the_same_parts(tmp_path):
    frame = table()
    frame.to_parquet(tmp_path / "whole.parquet")
    store = RatingStore.from_chunks(tmp_path / "store", [frame], block_rows=5)
    R = store.to_matrix()
    dense = np.full(R.shape, NAN)
    dense[R.nonzero()] = R.data  # none of them is 0
    sources = {
        "frame": frame,
        "chunks": [frame[:300], frame[300:]],
        "tuples": [tuple(frame[name].to_numpy() for name in frame)],
        "file": tmp_path / "whole.parquet",
        "name": str(tmp_path / "whole.parquet"),
        "store": store,
        "matrix": pd.DataFrame(dense, index=store.user_ids, columns=store.item_ids),
    }
    for name, source in sources.items():
        ratings = ParquetRatings.write(tmp_path / f"to {name}", source, rows_per_part=10)
        assert rows_of(ratings.read_rows()) == rows_of(R)
        assert ratings.user_ids.tolist() == frame["user"].drop_duplicates().tolist()
        assert ratings.item_ids.tolist() == sorted(set(frame["item"]))
        assert ratings.undeclared == (() if name == "matrix" else ("users", "items"))
        if name != "matrix":
            whole = ParquetRatings(tmp_path / "to frame")
            assert ratings.fingerprint == whole.fingerprint, name


def test_several_files_and_columns_of_other_names(tmp_path):
    frame = table().rename(columns={"user": "u"})
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    frame[:700].to_parquet(files[0])
    frame[700:].to_parquet(files[1])
    ratings = ParquetRatings.write(tmp_path / "p", files, columns={"user": "u"})
    store = RatingStore.from_chunks(tmp_path / "s", [table()])
    assert rows_of(ratings.read_rows()) == rows_of(store.to_matrix())


@pytest.mark.parametrize("kind", [np.array, sparse.csc_array, sparse.coo_matrix])
def test_matrices_keep_their_rows(path, kind):
    X = kind(SMALL) if kind is np.array else kind(np.nan_to_num(SMALL))
    ratings = ParquetRatings.write(path, X, rows_per_part=2)
    assert (ratings.shape, ratings.n_parts) == ((5, 3), 3)
    assert rows_of(ratings.read_rows()) == rows_of(as_rating_matrix(X))
    assert ratings.user_ids is ratings.item_ids is None
    assert repr(ratings) == (
        f"<ParquetRatings: {ratings.nnz} ratings of 5 users for 3 items in 3 parts at "
        f"{str(path)!r}>"
    )


def test_parts_are_what_the_module_says(small, path):
    files = ["rows-000000000000.parquet", "rows-000000000002.parquet", "rows-000000000004.parquet"]
    assert sorted(os.listdir(path)) == ["manifest.json", *files]
    middle = pq.read_table(path / files[1])
    assert [str(t) for t in middle.schema.types] == ["int64", "int32", "float"]
    assert middle.to_pydict() == {
        "user": [2, 2, 3, 3],
        "item": [0, 1, 1, 2],
        "rating": [1.0, 2.5, 4.0, -3.0],
    }
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


def test_ratings_are_rounded_as_in_a_store(path, tmp_path):
    X = np.array([[0.1, 1e300], [NAN, 1 / 3]])
    ratings = ParquetRatings.write(path, X)
    store = RatingStore.from_matrix(tmp_path / "s", X)
    assert rows_of(ratings.read_rows()) == rows_of(store.to_matrix())


def test_pickles_as_its_path(small, path, monkeypatch):
    pickled = pickle.dumps(small)
    assert len(pickled) < 500
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert again.fingerprint == small.fingerprint == ParquetRatings.open(path).fingerprint
    (path / "rows-000000000002.parquet").unlink()
    with pytest.raises(RatingStoreError):
        pickle.loads(pickled)


def test_fingerprint_identifies_the_content(small, tmp_path):
    other = SMALL.copy()
    other[4, 1] = 2.0
    found = {
        ParquetRatings.write(tmp_path / str(k), X, rows_per_part=rows).fingerprint
        for k, (X, rows) in enumerate(
            [(SMALL, 3), (other, 2), (SMALL[:, [1, 0, 2]], 2), (pd.DataFrame(SMALL), 2)]
        )
    }
    assert len(found | {small.fingerprint}) == 5
    assert ParquetRatings.write(tmp_path / "n", SMALL, rows_per_part=2).fingerprint not in found


def test_parts_end_with_blocks_of_a_store(path, tmp_path):
    X = np.ones((12, 1))
    store = RatingStore.from_matrix(tmp_path / "s", X, block_rows=5)
    for rows, sizes in [(2, [2, 2, 1, 2, 2, 1, 2]), (9, [5, 5, 2]), (10, [10, 2]), (99, [12])]:
        ratings = ParquetRatings.write(path, store, rows_per_part=rows, overwrite=True)
        assert [ratings.read_rows(k, k + 1).shape[0] for k in range(ratings.n_parts)] == sizes


def test_writing_needs_memory_for_some_parts(path, monkeypatch):
    monkeypatch.setattr(_store_chunks, "_PIECE", 1 << 12)
    monkeypatch.setattr(_store_chunks, "_BUCKET_ROWS", 64)
    n_ratings = 300_000

    def chunks():
        rng = np.random.default_rng(0)
        for _ in range(100):
            codes = rng.integers(2048 * 300, size=n_ratings // 100)
            yield codes // 300, codes % 300, np.ones(codes.size)

    def write():
        return ParquetRatings.write(path, chunks(), n_items=300, rows_per_part=64, overwrite=True)

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
    with pytest.raises(ValueError, match=f"rows_per_part={rows!r} must be an integer from 1 on"):
        ParquetRatings.write(path, SMALL, rows_per_part=rows)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (np.array([[1.0, np.inf]]), {}, "infinite"),
        ([([1], [2], [np.inf])], {}, "infinite"),
        ([([1], [2], [3.0])], {"items": [1]}, "not declared"),
        ([([1, None], [2, 2], [3.0, 4.0])], {}, "without an id of the user"),
        ([[1.0, 2.0]], {}, "chunk 0 is a list"),
        (SMALL, {"n_items": 3}, "omit them"),
        (SMALL, {"columns": {"user": "u"}}, "omit it"),
        ([([1], [2], [3.0])], {"columns": {"user": "u"}}, "omit it"),
        (sparse.csr_array((1, 2**31)), {}, "items; a store holds at most"),
    ],
)
def test_sources_that_are_refused(path, source, options, message):
    with pytest.raises(ValueError, match=message):
        ParquetRatings.write(path, source, **options)
    assert os.listdir(path.parent) == []


def test_source_files_that_are_missing(path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.parquet"):
        ParquetRatings.write(path, tmp_path / "none.parquet")
    assert os.listdir(tmp_path) == []


class Interruption(BaseException):
    """Neither an Exception nor anything else that somebody may catch on the way."""


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("step", ["reading", "parts", "manifest"])
def test_interrupted_write_leaves_nothing(path, monkeypatch, existing, step):
    if existing:
        ParquetRatings.write(path, SMALL)
    seen = []

    def interrupt(*_):
        seen.extend(path.parent.rglob(".*"))
        raise Interruption

    def chunks():
        yield np.arange(100), np.zeros(100, int), np.ones(100)
        if step == "reading":
            interrupt()

    if step == "parts":
        monkeypatch.setattr(module, "_digest", interrupt)
    if step == "manifest":
        monkeypatch.setattr(_store_files.FolderWriter, "_write", interrupt)
    with pytest.raises(Interruption):
        ParquetRatings.write(path, chunks(), overwrite=True)
    assert seen  # something had been written by then
    assert os.listdir(path.parent) == (["ratings"] if existing else [])
    if existing:
        assert ParquetRatings.open(path).nnz == 7


def test_overwriting(small, path, tmp_path):
    with pytest.raises(FileExistsError, match="overwrite=True"):
        ParquetRatings.write(path, SMALL)
    (path / "manifest.json").unlink()
    assert ParquetRatings.write(path, SMALL[:1], overwrite=True).shape == (1, 3)
    (path / "part.0.parquet").write_text("mine")
    with pytest.raises(FileExistsError, match=r"part\.0\.parquet"):
        ParquetRatings.write(path, SMALL, overwrite=True)


def test_without_pyarrow(small, path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    opened = ParquetRatings.open(path)  # the manifest alone
    for action in (
        opened.check,
        opened.read_rows,
        lambda: ParquetRatings.write(tmp_path / "new", SMALL),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install skdpmf\[parquet\]"):
            action()
    assert os.listdir(tmp_path) == ["ratings"]
