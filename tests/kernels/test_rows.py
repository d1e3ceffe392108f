"""Small passes over rows, and centred rows, against their twins."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf.kernels.centring import centre_rows
from skdpmf.kernels.rows import centred_residuals, hash_rows, mean_rows, weigh_by_item
from skdpmf.kernels.sums import pair_products
from tests.reference import rows as reference

N_USERS, N_ITEMS = 30, 12
ODD = np.array([0x243F6A8885A308D3, 0xB7E151628AED2A6B, 0x6A09E667F3BCC909], np.uint64)


@pytest.fixture(name="R")
def ratings():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_USERS, N_ITEMS)) * (rng.random((N_USERS, N_ITEMS)) < 0.4)
    X[3] = 0.0
    return sparse.csr_array(X)


def each(R):
    """Rows and their places."""
    for i in range(R.shape[0]):
        own = slice(R.indptr[i], R.indptr[i + 1])
        yield i, own, R.indices[own], R.data[own]


def in_two(kernel, n):
    kernel(0, n // 3)
    kernel(n // 3, n)


def test_hashes(R):
    out, words = np.zeros(N_USERS, np.uint64), R.data.view(np.uint64)
    with np.errstate(over="ignore"):  # words wrap; only seen with the JIT off
        hash_rows(R.indptr, R.indices, words, ODD, 5, 9, out[5:9])
        hash_rows(R.indptr, R.indices, words, ODD, 0, 5, out[:5])
        hash_rows(R.indptr, R.indices, words, ODD, 9, N_USERS, out[9:])
    assert out.tolist() == [reference.hash_of(j, x, ODD) for _, _, j, x in each(R)]


def test_means(R):
    columns, out = np.random.default_rng(1).normal(size=(N_ITEMS, 3)), np.full((N_USERS, 3), np.nan)
    in_two(lambda a, b: mean_rows(R.indptr, R.indices, columns, a, b, out), N_USERS)
    expected = [reference.mean_of(j, columns) for _, _, j, _ in each(R)]
    np.testing.assert_allclose(out, expected, atol=1e-14)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("size", [1.0, 400.0])
def test_weights(R, order, size):
    logs, out = size * np.random.default_rng(2).normal(size=N_ITEMS), np.full(R.nnz, np.nan)
    given = R.indptr, R.indices, logs, order == 1
    in_two(lambda a, b: weigh_by_item(*given, a, b, out), N_USERS)
    for _, own, j, _ in each(R):
        np.testing.assert_allclose(out[own], reference.weights_of(j, logs, order), rtol=1e-11)
        assert np.linalg.norm(out[own], order) <= 1.0


@pytest.mark.parametrize("damping", [0.0, 7.0])
def test_residuals(R, damping):
    rng, out = np.random.default_rng(3), np.full(R.nnz, np.nan)
    weights, mean = rng.random(R.nnz), rng.normal(size=N_ITEMS)
    given = R.indptr, R.indices, R.data, weights, mean, damping
    in_two(lambda a, b: centred_residuals(*given, a, b, out), N_USERS)
    for _, own, j, x in each(R):
        expected = reference.residuals_of(j, x, weights[own], mean, damping)
        np.testing.assert_allclose(out[own], expected, atol=1e-14)


@pytest.mark.parametrize("most", [4.0, 1.1])
def test_centred_rows(R, most):
    R.data = np.abs(R.data)
    head, rng = np.array([0, 2, 3, 7, 11]), np.random.default_rng(4)
    place = np.full(N_ITEMS, -1, np.int32)
    place[head] = np.arange(5)
    direction = rng.random(5)
    direction /= np.linalg.norm(direction)
    step, centres = most / 16, most / 16 * np.arange(16)[:, None] * direction
    out, number = np.full(R.nnz, np.nan), np.full(N_USERS, -1)
    given = R.indptr, R.indices, R.data, place, direction, 0.5, step, centres, 0.0, most
    in_two(lambda a, b: centre_rows(*given, a, b, out, number), N_USERS)
    found = sparse.csr_array((out, R.indices, R.indptr), R.shape).toarray()
    assert not np.delete(found, head, axis=1).any()
    for x, mine, w in zip(R.toarray()[:, head], found[:, head], number, strict=True):
        expected, centre = reference.centred(x, direction, 0.5, step, centres, most)
        assert w == centre
        np.testing.assert_allclose(mine, expected, atol=1e-8)
        assert np.linalg.norm(mine - centres[w]) <= 1.0


def test_pair_products(R):
    x = np.trunc(R.data * 64) / 64
    places = sparse.csr_array((np.arange(R.nnz), R.indices, R.indptr), R.shape).tocsc()
    found = pair_products(
        R.indptr, R.indices, x, (places.indptr, places.indices, places.data), 2.0**-12
    )
    X = sparse.csr_array((x, R.indices, R.indptr), R.shape).toarray()
    np.testing.assert_array_equal(found * 2.0**-12, (X.T @ X)[np.tril_indices(N_ITEMS)])
