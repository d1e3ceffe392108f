"""Blocks of users give the rows of the matrix, each user once, or refuse."""

import pickle
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse

from skdpmf.data import ParquetRatings
from skdpmf.data.parquet_ratings import PartRows, row_blocks
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


def test_matrix_blocks_share_the_ratings_and_pickle_their_own():
    X = many()
    blocks = row_blocks(X, 5)
    for block in blocks:
        assert np.shares_memory(block.load().data, X.data)
        assert np.shares_memory(block.load().indices, X.indices)
        assert block.load() is block.load()
        assert len(pickle.dumps(block)) < 0.4 * len(pickle.dumps(X))


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
