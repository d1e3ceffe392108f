"""Posteriors of rows, given factors that are themselves uncertain."""

from itertools import pairwise

import numpy as np
import pytest

from skdpmf.kernels.als import row_posteriors
from tests.reference.variational import row_posterior

pytestmark = pytest.mark.usefixtures("form")


def problem(k, seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.array([30, 0, 1, 9])
    indptr = np.concatenate(([0], np.cumsum(sizes)))
    indices = np.concatenate([np.sort(rng.choice(50, size, replace=False)) for size in sizes])
    F, v, root = rng.normal(size=(50, k)), rng.random((50, k)), rng.normal(size=(k, k))
    ridge, priors = root @ root.T + np.eye(k), rng.normal(size=(4, k))
    return indptr, indices, rng.normal(size=indices.size), F, v, ridge, priors


def solved(given, noise=0.7):
    shape = given[0].size - 1, given[3].shape[1]
    x, variances, losses = np.empty(shape), np.empty(shape), np.empty(shape[0])
    indptr, indices, values, F, v, *more = given
    doubts = np.array([v[indices[a:b]].sum(axis=0) for a, b in pairwise(indptr)])
    row_posteriors(indptr, indices, values, F, doubts, *more, noise, 0, 4, x, variances, losses)
    return x, variances, losses


@pytest.mark.parametrize("k", [1, 3, 8, 19, 35])
def test_kernel_is_the_slow_twin(k):
    given = problem(k)
    found = solved(given)
    indptr, indices, values, F, v, ridge, priors = given
    for i in range(4):
        y, own = np.full(50, np.nan), slice(indptr[i], indptr[i + 1])
        y[indices[own]] = values[own]
        twin = row_posterior(y, F, v, ridge, priors[i], 0.7)
        for part, expected in zip(found, twin, strict=True):
            np.testing.assert_allclose(part[i], expected, rtol=1e-9, atol=1e-11)


def test_what_cannot_be_solved_keeps_its_prior():
    indptr, indices, values, F, v, ridge, priors = problem(3)
    x, variances, losses = solved((indptr, indices, values, F, 0.0 * v, -ridge * 1e9, priors))
    np.testing.assert_array_equal(x, priors)
    assert not variances.any()
    assert not losses.any()
