"""Batches hold every rating once, standardised, in item order, from matrix or files."""

import numpy as np
import pytest

from skdpmf.data import ParquetRatings, parquet_ratings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.mechanisms.sgd.rating_batches import MatrixBatches, ParquetBatches, Scale, Workers

NAN = float("nan")
BOUNDS = (1.0, 5.0)
# Entries that the kernels may read behind the last rating.
SPARE = 16


def problem(n_users=37, n_items=11, density=0.4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(2, 11, (n_users, n_items)) / 2
    X[rng.random(X.shape) > density] = NAN
    X[[3, n_users - 1]], X[:, 5] = NAN, NAN
    return X


def matrix_batches(X, n_rows, scale=None, n_threads=1, bounds=BOUNDS):
    R = as_rating_matrix(X, rating_range=bounds)
    with Workers(n_threads) as workers:
        return MatrixBatches(R, bounds, n_rows, workers, scale)


def disk_batches(path, X, group_rows, n_rows, bounds=BOUNDS):
    pytest.importorskip("pyarrow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_ratings, "_GROUP_ROWS", group_rows)
        ratings = ParquetRatings.write(path, X, rows_per_part=3 * group_rows, overwrite=True)
    return ParquetBatches(ratings, bounds, n_rows)


def dense(batches, first=0):
    """What all batches together hold; checks each batch's form on the way."""
    out = np.full(batches.shape, NAN)
    row = None
    for batch in batches.read(first):
        assert row in (None, batch.start)
        row = batch.stop
        n = batch.indptr[-1]
        assert batch.users.shape == batch.ratings.shape == (n + SPARE,)
        assert (batch.items.dtype, batch.indptr.dtype) == (np.int32, np.int64)
        assert (batch.users.dtype, batch.ratings.dtype) == (np.uint16, np.float32)
        assert batch.indptr[0] == 0
        assert batch.indptr.shape == (len(batch.items) + 1,)
        assert (np.diff(batch.indptr) > 0).all()
        assert (np.diff(batch.items) > 0).all()
        assert not batch.users[n:].any()
        for item, begin, end in zip(batch.items, batch.indptr[:-1], batch.indptr[1:], strict=True):
            users = batch.users[begin:end].astype(int)
            assert (np.diff(users) > 0).all()
            assert (batch.start + users < batch.stop).all()
            assert np.isnan(out[batch.start + users, item]).all()
            out[batch.start + users, item] = batch.ratings[begin:end]
    assert row in (None, batches.shape[0])
    return out


def standardised(X, bounds=BOUNDS):
    X = np.clip(X, *bounds)
    return (X - np.nanmean(X)) / np.nanstd(X)


# -- scale -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1e-300, 1e-3, 1.0, 1e9, 1e150, 1e300])
def test_mean_and_spread(unit):
    ratings = unit * np.array([1.0, 2.0, 2.0, 5.0])
    mean, std = Scale.of([ratings], (unit, 5 * unit))
    assert mean == pytest.approx(2.5 * unit, rel=1e-14)
    assert std == pytest.approx(1.5 * unit, rel=1e-14)


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e6])
def test_pieces_add_up(offset):
    """Of any size, empty ones among them; a small spread far from 0 is not lost."""
    ratings = offset + np.random.default_rng(0).normal(size=1000)
    pieces = np.split(ratings, [0, 1, 1, 500, 999])
    mean, std = Scale.of(iter(pieces), (-2e6, 2e6))
    assert mean == pytest.approx(ratings.mean(), abs=1e-9)
    assert std == pytest.approx(ratings.std(), rel=1e-8)
    assert Scale.of([], (0.0, 10.0)) == Scale(5.0, 5.0)


@pytest.mark.parametrize("ratings", [[], [4.0], [4.0] * 7, [4.0, 4.0 + 1e-13]])
def test_without_spread_the_unit_is_half_the_range(ratings):
    mean, std = Scale.of([np.array(ratings)], (0.0, 10.0))
    assert mean == pytest.approx(4.0 if ratings else 5.0)
    assert std == 5.0


# -- matrix ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 2, 7, 36, 37, 38, 10**6])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_matrix_in_batches(n_rows, n_threads):
    X = problem()
    batches = matrix_batches(X, n_rows, n_threads=n_threads)
    assert (batches.shape, batches.nnz) == (X.shape, np.count_nonzero(~np.isnan(X)))
    assert batches.item_counts.tolist() == np.count_nonzero(~np.isnan(X), axis=0).tolist()
    assert len(batches) == -(-37 // n_rows)
    assert all(b.stop - b.start <= n_rows for b in batches.read(0))
    np.testing.assert_allclose(dense(batches), standardised(X), atol=1e-6)
    assert batches.spread == pytest.approx(1.0, rel=1e-6)


def test_a_given_scale_shows_in_the_spread():
    X = problem()
    batches = matrix_batches(X, 10, scale=Scale(1.0, 0.5))
    np.testing.assert_allclose(dense(batches), (X - 1.0) / 0.5, atol=1e-5)
    assert batches.spread == pytest.approx(np.sqrt(np.nanmean(((X - 1.0) / 0.5) ** 2)), rel=1e-6)


def test_a_matrix_fingerprint_is_of_ratings_and_cut():
    X = problem()
    other = X.copy()  # of the same mean and spread
    low, high = tuple(np.argwhere(X == 2)[0]), tuple(np.argwhere(X == 4)[-1])
    other[low], other[high] = 4.0, 2.0
    assert matrix_batches(other, 10).scale == matrix_batches(X, 10).scale
    moved = X[:, np.r_[1, 0, 2:11]]
    prints = [
        matrix_batches(X, 10).fingerprint(),
        matrix_batches(X, 9).fingerprint(),
        matrix_batches(other, 10).fingerprint(),
        matrix_batches(moved, 10).fingerprint(),
        matrix_batches(X, 10, scale=Scale(1.0, 1.0)).fingerprint(),
        matrix_batches(X[:-1], 10).fingerprint(),  # the last row is empty
    ]
    assert len(set(prints)) == 6
    assert prints[0] == matrix_batches(X.copy(), 10, n_threads=2).fingerprint()


# -- disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_rows", [1, 5, 37, 50])
@pytest.mark.parametrize("n_rows", [1, 2, 4, 36, 100])
@pytest.mark.parametrize("bounds", [BOUNDS, (2.0, 4.0), (-100.0, 100.0)], ids=str)
def test_files_in_batches(group_rows, n_rows, bounds, tmp_path):
    """Row groups are cut in equal parts where they are too large, and never joined."""
    X = problem()
    batches = disk_batches(tmp_path / "s", X, group_rows, n_rows, bounds)
    assert (batches.shape, batches.nnz) == (X.shape, np.count_nonzero(~np.isnan(X)))
    assert batches.item_counts.tolist() == np.count_nonzero(~np.isnan(X), axis=0).tolist()
    assert len(list(batches.read(0))) == len(batches)
    assert all(b.stop - b.start <= min(n_rows, group_rows) for b in batches.read(0))
    np.testing.assert_allclose(dense(batches), standardised(X, bounds), atol=1e-6)
    clipped = np.clip(X, *bounds)
    assert batches.scale == pytest.approx((np.nanmean(clipped), np.nanstd(clipped)), rel=1e-12)
    assert batches.spread == 1.0


@pytest.mark.parametrize(("group_rows", "n_rows"), [(5, 5), (10, 3), (37, 10), (37, 2), (0, 7)])
def test_rounds_of_batches_from_a_number_on(group_rows, n_rows, tmp_path):
    """Of files and, without row groups, of a matrix; later rounds begin at the first batch."""
    X = problem()
    if group_rows:
        batches = disk_batches(tmp_path / "s", X, group_rows, n_rows)
    else:
        batches = matrix_batches(X, n_rows)
    expected = list(batches.read(0))
    assert len(expected) == len(batches)
    for first in range(len(batches) + 1):
        for n_rounds in (1, 3):
            found = list(batches.read(first, n_rounds))
            wanted = expected[first:] + (n_rounds - 1) * expected
            for one, two in zip(found, wanted, strict=True):
                assert one.start == two.start
                np.testing.assert_array_equal(one.ratings, two.ratings)
                np.testing.assert_array_equal(one.items, two.items)
