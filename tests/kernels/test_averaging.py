"""The averaged regression is the mean of separate ones by their evidence."""

import numpy as np
import pytest

from skdpmf.kernels.averaging import solve_rows_averaged
from tests.reference.averaging import averaged_row

pytestmark = pytest.mark.usefixtures("form")


def problem(k, d, n=30, seed=0):
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(50, k + d))
    sizes = np.array([n, 0, 1, n // 2])
    indptr = np.concatenate(([0], np.cumsum(sizes)))
    indices = np.concatenate([np.sort(rng.choice(50, size, replace=False)) for size in sizes])
    values = columns[indices, k:] @ rng.normal(size=d) * 0.3 + rng.normal(size=indices.size)
    root = rng.normal(size=(k, k))
    return indptr, indices, values, columns, root @ root.T + np.eye(k)


def solved(given, row_ridge, strengths, prior, variance=0.7):
    n_rows, width = given[0].size - 1, given[3].shape[1]
    out, weights = np.empty((n_rows, width)), np.empty((n_rows, len(prior)))
    terms = np.asarray(row_ridge), (np.asarray(strengths), np.asarray(prior), variance)
    solve_rows_averaged(*given, *terms, 0, n_rows, out, weights)
    return out, weights


@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 20), (5, 3), (19, 23), (0, 4), (3, 0)])
@pytest.mark.parametrize("with_row_ridge", [False, True])
def test_kernel_is_the_slow_twin(k, d, with_row_ridge):
    given = problem(k, d)
    row_ridge = np.array([0.5, 1.0, 2.0, 0.0]) if with_row_ridge else np.empty(0)
    strengths, prior = [6.0, 24.0, 200.0], [2.0, 1.0, 1.0, 0.5]
    out, weights = solved(given, row_ridge, strengths, prior)
    for i in range(4):
        own = slice(given[0][i], given[0][i + 1])
        extra = row_ridge[i] if with_row_ridge else 0.0
        ridge = given[4] + extra * np.eye(k)
        C = given[3][given[1][own]]
        z, weight = averaged_row(C, given[2][own], ridge, strengths, prior, 0.7)
        np.testing.assert_allclose(out[i], z, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(weights[i], weight, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("broken", [np.nan, 1e300])
def test_what_is_not_finite_becomes_zero(broken):
    indptr, indices, values, columns, ridge = problem(2, 2)
    values = values.copy()
    values[0] = broken
    with np.errstate(over="ignore", invalid="ignore"):  # without the compiler numpy warns
        out, weights = solved(
            (indptr, indices, values, columns, ridge), np.empty(0), [1.0], [1.0, 1.0]
        )
    assert np.isfinite(out).all()
    assert np.isfinite(weights).all()
    assert out[0].tolist() == [0.0] * 4
