import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels._vectors import PANEL_ROWS
from skdpmf.kernels.als import conjugate_rows, invert, solve_rows, solve_rows_weighted
from tests.kernels import _problems as problems

pytestmark = pytest.mark.usefixtures("form")

TOLERANCE = {np.float32: 3e-5, np.float64: 1e-12}
SENTINEL = -77.0


def problem(seed, n_rows, n_columns, k, dtype, index_type=np.int64):
    rng = np.random.default_rng(seed)
    pattern = problems.random_pattern(rng, n_rows, n_columns, index_type)
    n_stored = len(pattern.indices)
    root = rng.standard_normal((k, k)) / np.sqrt(k)
    ridge = np.eye(k) + root @ root.T  # a full matrix: reading only its diagonal is noticed
    values = rng.uniform(1, 5, n_stored).astype(dtype)
    weights = rng.uniform(0, 3, n_stored).astype(dtype)
    factors = rng.standard_normal((n_columns, k)).astype(dtype)
    row_ridge = rng.uniform(0, 2, n_rows).astype(dtype)
    return pattern, values, weights, factors, ridge.astype(dtype), row_ridge


def assert_solves(out, pattern, values, weights, factors, ridge, row_ridge, start=0, stop=None):
    """Dense linear algebra in float64, a row at a time."""
    indptr, indices, _ = pattern
    stop = len(out) if stop is None else stop
    for i in range(start, stop):
        own = slice(indptr[i], indptr[i + 1])
        V, w = factors[indices[own]].astype(np.float64), weights[own].astype(np.float64)
        gram = (V.T * w) @ V + ridge + row_ridge[i] * np.eye(V.shape[1])
        expected = np.linalg.solve(gram, (V.T * w) @ values[own]) * (len(w) > 0)
        tolerance = 10 * TOLERANCE[out.dtype.type]
        np.testing.assert_allclose(out[i], expected, rtol=0, atol=tolerance)
    assert np.all(np.delete(out, np.s_[start:stop], axis=0) == SENTINEL)


@problems.examples
@given(
    seed=st.integers(0, 2**16),
    k=st.integers(1, 40),
    n_rows=st.integers(0, 5),
    n_columns=st.integers(1, 30),
    dtype=problems.float_types,
    index_type=problems.index_types,
    data=st.data(),
)
def test_rows_solve_their_normal_equations(
    form, seed, k, n_rows, n_columns, dtype, index_type, data
):
    """Those in the range; the others are not written."""
    index_type, dtype = problems.types_of(form, index_type, dtype)
    pattern, values, weights, factors, ridge, row_ridge = problem(
        seed, n_rows, n_columns, k, dtype, index_type
    )
    start, stop = problems.part_of(data, n_rows)
    arrays = pattern.indptr, pattern.indices, values, weights, factors, ridge, row_ridge
    indptr, indices, values, weights, factors, ridge, row_ridge = problems.read_only(form, *arrays)
    plain, weighted = np.full((2, n_rows, k), SENTINEL, dtype)
    solve_rows(indptr, indices, values, factors, ridge, start, stop, plain)
    terms = values, weights, factors, ridge, row_ridge
    solve_rows_weighted(indptr, indices, *terms, start, stop, weighted)
    ones, none = np.ones_like(weights), 0 * row_ridge
    assert_solves(plain, pattern, values, ones, factors, ridge, none, start, stop)
    assert_solves(weighted, pattern, *terms, start, stop)


@pytest.mark.parametrize("k", [8, 9, 16, 17, 32])
@pytest.mark.parametrize("extra", [-1, 0, 1, PANEL_ROWS + 3])
def test_rows_longer_than_a_panel(extra, k):
    rng = np.random.default_rng(extra + 5)
    n = PANEL_ROWS + extra
    values, factors = rng.standard_normal(n), rng.standard_normal((n, k))
    ridge, indptr, out = np.eye(k), np.array([0, n]), np.empty((1, k))
    solve_rows(indptr, np.arange(n), values, factors, ridge, 0, 1, out)
    pattern = problems.Pattern(indptr, np.arange(n), n)
    assert_solves(out, pattern, values, np.ones(n), factors, ridge, np.zeros(1))


@pytest.mark.parametrize("k", [9, 14, 16, 17, 40])
def test_what_stands_beside_a_row_of_factors_does_not_matter(k):
    """A vector may cover the end of a row and the start of the next one, which is not rated."""
    _, _, _, factors, ridge, _ = problem(7, 1, 3, k, np.float64)
    out = np.empty((2, k))
    for row, beside in enumerate((0.0, np.nan)):
        factors[[0, 2]] = beside
        indptr, one = np.array([0, 1]), np.array([1])
        solve_rows(indptr, one, np.ones(1), factors, ridge, 0, 1, out[row : row + 1])
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out[0], out[1])


def test_rows_that_are_tried_again_change_no_other_row():
    rng, k, n_rows = np.random.default_rng(0), 5, 11
    # without a ridge every other system is singular; several systems are solved at once
    lengths = np.where(np.arange(n_rows) % 2 == 0, 2, 20)
    indptr, factors = np.append(0, np.cumsum(lengths)), rng.standard_normal((40, k))
    indices = np.concatenate([rng.permutation(40)[:n] for n in lengths])
    values = rng.uniform(1, 5, indptr[-1])
    given = indptr, indices, values, factors, np.zeros((k, k))
    together, alone = np.empty((2, n_rows, k))
    solve_rows(*given, 0, n_rows, together)
    for i in range(n_rows):
        solve_rows(*given, i, i + 1, alone)
        own = slice(indptr[i], indptr[i + 1])
        best = np.linalg.lstsq(factors[indices[own]], values[own], rcond=None)[0]
        np.testing.assert_allclose(
            factors[indices[own]] @ together[i], factors[indices[own]] @ best, rtol=1e-8
        )
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_singular_systems_give_a_finite_least_squares_solution(scale):
    rng = np.random.default_rng(0)
    k, n = 20, 6  # fewer ratings than components, no ridge
    factors = scale * rng.standard_normal((n, k))
    factors[:, 3] = factors[:, 2]
    factors[:, 5] = 0
    values, out = rng.uniform(1, 5, n), np.empty((1, k))
    ridge, indptr = np.zeros((k, k)), np.array([0, n])
    solve_rows(indptr, np.arange(n), values, factors, ridge, 0, 1, out)
    assert np.isfinite(out).all()
    # Six independent equations in twenty unknowns can be met.
    assert np.abs(factors @ out[0] - values).max() < 1e-10


@pytest.mark.parametrize("bad", [0.0, 1e200, np.inf, np.nan])
def test_all_zero_or_overflowing_rows_become_zeros_and_leave_the_next_row_alone(bad):
    factors, out, values = np.ones((2, 3)), np.empty((2, 3)), np.ones(2)
    factors[0] = bad
    ridge = np.zeros((3, 3)) if bad == 0 else np.eye(3)
    with np.errstate(all="ignore"):
        solve_rows(np.arange(3), np.arange(2), values, factors, ridge, 0, 2, out)
    assert (out[0] == 0).all()
    np.testing.assert_allclose(out[1].sum(), 1.0 if bad == 0 else 0.75, rtol=1e-4)


@pytest.mark.parametrize("k", [1, 2, 5, 17])
def test_inverses(k):
    root = np.random.default_rng(k).normal(size=(k, k + 2, 7))
    matrices = np.einsum("arn,brn->abn", root, root) + np.eye(k)[:, :, None]
    inverse = matrices.copy()
    invert(inverse)
    found = np.einsum("abn,bcn->nac", matrices, inverse)
    np.testing.assert_allclose(found, np.broadcast_to(np.eye(k), found.shape), atol=1e-9)


@pytest.mark.parametrize("k", [64, 69, 80])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ridge", [0.2, 20.0])
def test_conjugate_gradients_solve_what_they_can(k, weighted, ridge):
    """And Cholesky the rest, with the same bits in any block; not finite rows become zeros."""
    lengths = np.array([0, 1, 7, 8, 9, 16, 60, PANEL_ROWS + 3])
    rng, indptr = np.random.default_rng(k), np.append(0, np.cumsum(lengths))
    indices = np.concatenate([rng.permutation(200)[:n] for n in lengths])
    values, factors = rng.uniform(1, 5, len(indices)), rng.standard_normal((200, k))
    weights = rng.uniform(0, 3, len(indices)) if weighted else np.ones(len(indices))
    weights[indptr[2]] = 1 - weighted
    diagonal, penalties = ridge * rng.uniform(0.5, 2, k), ridge * lengths
    given = values, weights, factors, np.diag(diagonal), penalties, diagonal
    values, weights, factors, full, penalties, diagonal = (x.astype(np.float32) for x in given)
    out, alone, found = np.empty((3, len(lengths), k), np.float32)
    shared = indptr, indices, values, weights if weighted else weights[:0], factors
    solve_rows_weighted(*shared, full, penalties, 0, len(lengths), out)
    pattern = problems.Pattern(indptr, indices, 200)
    assert_solves(out, pattern, values, weights, factors, full, penalties)
    conjugate_rows(*shared, diagonal, penalties, 0, len(lengths), found)
    unsolved = np.isnan(found).any(axis=1)
    assert unsolved.any() == (ridge < 1)
    assert not unsolved[0]
    np.testing.assert_allclose(found[~unsolved], out[~unsolved], rtol=0, atol=1e-5)
    for i in range(len(lengths)):
        solve_rows_weighted(*shared, full, penalties, i, i + 1, alone)
    np.testing.assert_array_equal(out, alone)
    values[indptr[3]] = np.inf
    with np.errstate(invalid="ignore"):
        solve_rows_weighted(*shared, full, penalties, 0, len(lengths), alone)
    np.testing.assert_array_equal(np.delete(alone, 3, axis=0), np.delete(out, 3, axis=0))
    assert not alone[3].any()


def test_conjugate_gradients_claim_no_more_than_single_precision_has():
    """A residual beside the right-hand side's would leave rows of two scales off by 1e-3."""
    rng = np.random.default_rng(0)
    n, k = 200, 64
    factors, values = rng.standard_normal((n, k)) / 8, rng.uniform(0, 1, n).astype(np.float32)
    ones, none = np.ones(k, np.float32), np.empty(0, np.float32)
    for scale in 10.0 ** np.arange(5):
        V, found = factors.astype(np.float32), np.empty((1, k), np.float32)
        V[:, :2] *= scale
        given = np.array([0, n]), np.arange(n), values, none, V
        conjugate_rows(*given, 20 * ones, none, 0, 1, found)
        V = V.astype(np.float64)
        exact = np.linalg.solve(V.T @ V + 20 * np.eye(k), V.T @ values)
        off = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        assert off < 1e-5 or (scale > 1 and np.isnan(off))
