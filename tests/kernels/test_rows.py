"""Small passes over rows, and centred rows; and that a row's bits are its own, in all kernels."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from skdpmf.kernels.als import row_posteriors, solve_rows_weighted
from skdpmf.kernels.averaging import solve_rows_averaged
from skdpmf.kernels.covariance import pair_products
from skdpmf.kernels.gibbs import sample_rows
from skdpmf.kernels.rows import (
    centre_rows,
    centred_residuals,
    hash_rows,
    predict_entries,
    weigh_by_item,
    weigh_residuals,
)
from tests.reference import rows as reference

pytestmark = pytest.mark.usefixtures("form")

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


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("size", [1.0, 400.0])
def test_weights(R, order, size):
    logs, out = size * np.random.default_rng(2).normal(size=N_ITEMS), np.full(R.nnz, np.nan)
    given = R.indptr, R.indices, logs, order == 1
    in_two(lambda a, b: weigh_by_item(*given, a, b, out), N_USERS)
    for _, own, j, _ in each(R):
        raw = np.exp(logs[j] - logs[j].max(initial=-np.inf))
        expected = raw / max(np.linalg.norm(raw, order), 1.0)
        np.testing.assert_allclose(out[own], expected, rtol=1e-11)
        assert np.linalg.norm(out[own], order) <= 1.0


@pytest.mark.parametrize("damping", [0.0, 7.0])
def test_residuals(R, damping):
    rng, out = np.random.default_rng(3), np.full(R.nnz, np.nan)
    weights, mean = rng.random(R.nnz), rng.normal(size=N_ITEMS)
    given = R.indptr, R.indices, R.data, weights, mean, damping
    in_two(lambda a, b: centred_residuals(*given, a, b, out), N_USERS)
    for _, own, j, x in each(R):
        r = x - mean[j]
        expected = weights[own] * (r - r.sum() / max(len(r) + damping, 1e-300))
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


LENGTHS, N_COLUMNS, K = (20, 0, 1, 300, 7, 3, 0, 33, 130), 400, 16
EMPTY = np.empty(0)


def bits_of_rows(kernel, order, cuts):
    """The bits that each row gets in a call with these rows, in this order."""
    rng, n = np.random.default_rng(5), len(LENGTHS)
    V, U, roots = rng.normal(size=(N_COLUMNS, K)), rng.normal(size=(n, K)), rng.random(n)
    ridge, public = np.eye(K) + 0.1, rng.random(N_COLUMNS)
    rows = [rng.permutation(N_COLUMNS)[:length] for length in LENGTHS]
    stored = [rng.normal(size=(2, length)) for length in LENGTHS]
    stored[4][0][2], stored[5][0][0] = np.nan, 1e300  # not of this world
    normals, uniforms = rng.normal(size=(2, n, K + 1)), rng.random((n, 9))
    indptr = np.append(0, np.cumsum(np.array(LENGTHS)[order]))
    indices = np.concatenate([rows[i] for i in order])
    values, weights = np.ascontiguousarray(np.hstack([stored[i] for i in order]))
    weights, pattern = abs(weights), (indptr, indices)
    U, roots, normals, uniforms = U[order], roots[order], normals[:, order], uniforms[order]
    n, by_entry = len(order), np.zeros(len(indices))
    (by_row, second), number = np.zeros((2, n, K)), np.zeros(n)
    place, e = np.arange(N_COLUMNS) % 16 - 1, np.full(15, 15**-0.5)
    given = {
        solve_rows_weighted: (values, weights, V, ridge, roots),
        solve_rows_averaged: (values, V, ridge[:9, :9], roots, (public[:2], np.ones(3), 1.0)),
        row_posteriors: (values, V, abs(U), ridge, U, 0.7),
        predict_entries: (U, V),
        weigh_residuals: (values, weights, U, V, 1.0),
        weigh_by_item: (public, False),
        centred_residuals: (values, weights, public, 5.0),
        centre_rows: (values, place, e, 0.5, 0.25, np.arange(9)[:, None] * e, 0.0, 4.0),
        sample_rows: (np.ones(K + 1), 1.5, (*normals, uniforms)),
    }
    out = {
        solve_rows_averaged: (by_row, second[:, :3]),
        row_posteriors: (by_row, second, number),
        weigh_residuals: (by_entry, number),
        centre_rows: (by_entry, number.astype(np.int64)),
        sample_rows: (by_row, number, np.zeros(n, bool)),
        solve_rows_weighted: (by_row,),
        **dict.fromkeys((predict_entries, weigh_by_item, centred_residuals), (by_entry,)),
    }[kernel]
    with np.errstate(all="ignore"):
        for start, stop in pairwise(cuts):
            if kernel is sample_rows:
                first = indptr, roots, (indices, values, EMPTY, public, V)
                kernel(*first, *given[kernel], start, stop, out)
            else:
                kernel(*pattern, *given[kernel], start, stop, *out)
    return {
        i: [part[slice(*indptr[at : at + 2]) if part is by_entry else at].tobytes() for part in out]
        for at, i in enumerate(order)
    }


@pytest.mark.parametrize(
    "kernel",
    [
        *(solve_rows_weighted, solve_rows_averaged, row_posteriors, sample_rows, centre_rows),
        *(predict_entries, weigh_residuals, weigh_by_item, centred_residuals),
    ],
    ids=lambda kernel: kernel.__name__,
)
def test_the_bits_of_a_row_are_its_own(kernel):
    """Not those of the rows beside it, nor of its place, nor of the cut into blocks."""
    n = len(LENGTHS)
    together = bits_of_rows(kernel, list(range(n)), [0, n])
    assert len({str(bits) for bits in together.values()}) > 4
    shuffled = np.random.default_rng(6).permutation(n).tolist()
    assert bits_of_rows(kernel, shuffled, [0, 1, 5, n]) == together
    for i in range(n):
        assert bits_of_rows(kernel, [i], [0, 1]) == {i: together[i]}


@pytest.mark.parametrize("even", [False, True])
def test_pair_products(R, even):
    x = np.trunc(R.data * 64) / 64
    if even:  # a user's values are all the same, and sums are of weights
        x = np.repeat(np.arange(1, R.shape[0] + 1) / 64, np.diff(R.indptr))
    found = pair_products(R, x, 2.0**-12)
    X = sparse.csr_array((x, R.indices, R.indptr), R.shape).toarray()
    np.testing.assert_array_equal(found * 2.0**-12, (X.T @ X)[np.tril_indices(N_ITEMS)])
