"""Blocks of users give the rows of the matrix, each user once, or refuse."""

import gc
import pickle
import shutil
import tempfile
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse

from skdpmf.data import ParquetRatings
from skdpmf.data.parquet_ratings import MatrixRows, PartRows, row_blocks
from skdpmf.data.validation import as_rating_matrix
from skdpmf.exceptions import RatingStoreError

from .twins import rows_of

pytest.importorskip("pyarrow")
KINDS = ("matrix", "parquet")


def many(n_users=200, n_items=30, seed=0):
    """Ratings of which every tenth user has none; stored zeros among them."""
    rng = np.random.default_rng(seed)
    known = rng.random((n_users, n_items)) < 0.3 * rng.random((n_users, 1))
    known[::10] = False
    users, items = np.nonzero(known)
    ratings = rng.integers(0, 11, users.size) / 2
    return as_rating_matrix(sparse.coo_array((ratings, (users, items)), shape=known.shape))


def source(kind, X, folder, rows=16):
    folder.mkdir(exist_ok=True)
    if kind == "parquet":
        return ParquetRatings.write(folder / "parquet", X, rows_per_part=rows)
    return X


def assert_covers(blocks, X):
    """Assert that the blocks are the rows of X, one after another, none empty."""
    row = 0
    for block in blocks:
        R = block.load()
        assert isinstance(R, sparse.csr_array)
        assert R.dtype == np.float64
        assert R.has_canonical_format
        assert R.indices.dtype == R.indptr.dtype == np.int32
        assert block.first_row == row
        assert block.n_rows > 0
        assert R.shape == (block.n_rows, block.n_items)
        assert block.n_items == X.shape[1]
        assert R.nnz == block.n_ratings
        assert rows_of(R) == rows_of(X[row : row + block.n_rows])
        row += block.n_rows
    assert row == X.shape[0]


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(0, 40), st.integers(0, 6)),
    rows=st.integers(1, 12),
    n_blocks=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_any_cut_of_any_kind_gives_the_rows(shape, rows, n_blocks, seed):
    X = many(*shape, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            ratings = source(kind, X, Path(folder), rows)
            blocks = row_blocks(ratings, n_blocks)
            assert len(blocks) <= n_blocks
            for block in blocks:
                block.check()
            assert_covers(blocks, X)
            assert_covers(pickle.loads(pickle.dumps(blocks)), X)


def test_parts_are_grouped_to_equal_work(tmp_path):
    X = many(400)
    ratings = source("parquet", X, tmp_path, rows=4)
    for n_blocks in (1, 2, 3, 7):
        blocks = row_blocks(ratings, n_blocks)
        work = [block.n_ratings + block.n_rows for block in blocks]
        assert len(blocks) == n_blocks
        # Each cut is at most half a part away from where it should be: a part has 4 + 4 * 30.
        assert max(work) - (X.nnz + 400) / n_blocks <= 124


def test_matrix_blocks_share_the_ratings_and_pickle_their_own():
    X = many()
    blocks = row_blocks(X, 5)
    for block in blocks:
        assert np.shares_memory(block.load().data, X.data)
        assert np.shares_memory(block.load().indices, X.indices)
        assert block.load() is block.load()
        assert len(pickle.dumps(block)) < 0.4 * len(pickle.dumps(X))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_matrix_rows_are_canonical(dtype):
    # Two ratings of one pair, columns out of order, and an infinite one.
    fields = (np.array([1, 2, 4, np.inf], dtype), np.array([2, 0, 0, 1]), np.array([0, 3, 4]))
    X = sparse.csr_array(fields, shape=(2, 3))
    (block,) = row_blocks(X, 1)
    assert isinstance(block, MatrixRows)
    assert rows_of(block.load()) == [{0: 3.0, 2: 1.0}, {}]
    assert (block.first_row, block.n_rows, block.n_items, block.n_ratings) == (0, 2, 3, 2)
    assert block.load().indices.dtype == np.int32
    dense = np.array([[1.0, np.nan], [np.nan, 0.0]])
    assert_covers(row_blocks(dense, 2), as_rating_matrix(dense))


def test_blocks_on_disk_are_values_that_travel_without_ratings(tmp_path):
    X = many(2000)
    ratings = source("parquet", X, tmp_path)
    blocks = row_blocks(ratings, 3)
    assert blocks == row_blocks(ratings, 3) == pickle.loads(pickle.dumps(blocks))
    assert len(set(blocks)) == 3
    assert all(isinstance(block, PartRows) for block in blocks)
    assert len(pickle.dumps(blocks[0])) < 1000
    other = X.copy()
    other.data[-1] += 1
    assert row_blocks(source("parquet", other, tmp_path / "other"), 3)[2] != blocks[2]


@pytest.mark.parametrize("action", ["check", "load"])
def test_other_ratings_at_the_path_are_refused(tmp_path, action):
    X = many()
    blocks = row_blocks(source("parquet", X, tmp_path), 2)
    path = blocks[0].path
    shutil.rmtree(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        getattr(blocks[0], action)()
    X.data[-1] += 1  # of a user of the other block: the file of this one is the same
    source("parquet", X, tmp_path)
    for block in blocks:
        with pytest.raises(RatingStoreError, match=r"now holds other ratings.*start again"):
            getattr(block, action)()


def test_check_reads_no_rating_and_sees_missing_files(tmp_path, monkeypatch):
    block = row_blocks(source("parquet", many(), tmp_path), 2)[1]

    def read(*_):
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(ParquetRatings, "_matrix", read)
        block.check()
    file = sorted(block.path.glob("*.parquet"))[-1]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RatingStoreError, match=f"{file.name}: it has .* bytes; expected"):
        block.check()
    file.unlink()
    with pytest.raises(RatingStoreError, match=f"{file.name}: there is no such file"):
        block.check()


def test_loading_needs_the_result_and_a_part(tmp_path):
    X = many(20_000, 100)
    block = row_blocks(source("parquet", X, tmp_path, rows=500), 1)[0]
    block.load()
    gc.collect()
    tracemalloc.start()
    R = block.load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    result = R.data.nbytes + R.indices.nbytes + R.indptr.nbytes
    assert result == 12 * X.nnz + 4 * 20_001
    assert peak < 1.3 * result  # a part is a fortieth


@pytest.mark.parametrize("n_blocks", [0, -1, 1.0, True, None, "2"])
def test_numbers_of_blocks_that_are_none(n_blocks):
    with pytest.raises(ValueError, match=f"n_blocks={n_blocks!r} must be an integer from 1 on"):
        row_blocks(many(), n_blocks)
