import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels.neighbors import knn_scores
from tests.kernels import _problems as problems
from tests.reference.covariance import symmetric, triangle
from tests.reference.neighbors import knn_score

SENTINEL = -77


def knn_problem(seed, h, n_users, dtype, index_type, definite):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((h, h))
    A = root @ root.T / h if definite else root + root.T
    cov = triangle(A).astype(dtype)
    wgt = rng.integers(0, 4, len(cov)).astype(dtype)  # many are equal
    known = problems.random_pattern(rng, n_users, h, index_type)
    asked = problems.random_pattern(rng, n_users, h + 1, index_type)
    targets = rng.permuted(asked.indices) - 1
    residuals = rng.uniform(-1, 1, len(known.indices))
    return cov, wgt, known.indptr, known.indices, residuals, asked.indptr, targets


def knn_twin(problem, h, n_neighbors, ridge):
    cov, wgt, indptr, indices, residuals, t_indptr, targets = problem
    A, W = symmetric(cov, h), symmetric(wgt, h)
    scores = np.zeros(len(targets))
    for u in range(len(indptr) - 1):
        own = slice(indptr[u], indptr[u + 1])
        for t in range(t_indptr[u], t_indptr[u + 1]):
            user = indices[own], residuals[own], targets[t]
            scores[t] = knn_score(A, W, *user, n_neighbors, ridge)
    return scores


@problems.forms
@problems.examples
@given(
    seed=st.integers(0, 2**16),
    h=st.integers(1, 20),
    n_users=st.integers(0, 4),
    n_neighbors=st.sampled_from([1, 2, 5, 9, 30]),
    dtype=problems.float_types,
    index_type=problems.index_types,
    definite=st.booleans(),
    data=st.data(),
)
def test_scores_equal_the_twin(
    form, seed, h, n_users, n_neighbors, dtype, index_type, definite, data
):
    index_type, dtype = problems.types_of(form, index_type, dtype)
    problem = knn_problem(seed, h, n_users, dtype, index_type, definite)
    t_indptr = problem[5]
    start, stop = problems.part_of(data, n_users)
    out, whole = np.full((2, len(problem[-1])), float(SENTINEL))
    getattr(knn_scores, form)(
        *problems.read_only(form, *problem), n_neighbors, 0.3, start, stop, out
    )
    getattr(knn_scores, form)(*problem, n_neighbors, 0.3, 0, n_users, whole)
    expected = np.full(len(out), float(SENTINEL))
    own = slice(t_indptr[start], t_indptr[stop])
    expected[own] = knn_twin(problem, h, n_neighbors, 0.3)[own]
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12 if definite else 1e-10)
    np.testing.assert_array_equal(out[own], whole[own])  # no user changes another's bits


@problems.forms
@pytest.mark.parametrize("n_neighbors", [40, 1000])
def test_many_known_items(form, n_neighbors):
    cov, wgt, *_ = knn_problem(3, 170, 1, np.float64, np.int64, definite=True)
    rng = np.random.default_rng(4)
    items = np.sort(rng.choice(170, 150, replace=False))
    known = cov, wgt, np.array([0, 150]), items, rng.uniform(-1, 1, 150)
    inside, outside = items[[0, 77]], np.setdiff1d(np.arange(170), items)[:2]
    targets = np.array([outside[0], inside[0], outside[1], inside[1]])
    problem = (*known, np.array([0, 4]), targets)
    out = np.empty(4)
    getattr(knn_scores, form)(*problem, n_neighbors, 0.3, 0, 1, out)
    np.testing.assert_allclose(out, knn_twin(problem, 170, n_neighbors, 0.3), rtol=0, atol=1e-11)


@problems.forms
@pytest.mark.parametrize(
    ("off_diagonal", "used"), [(0.6, 1.0), (0.8, 2.0), (5.0, 8.0), (0.7071, 1.0), (0.7072, 2.0)]
)
def test_ridge_is_doubled_until_the_pivots_are_half_of_it(form, off_diagonal, used):
    # A_NN = [[0, a], [a, 0]]: pivots ridge and ridge - a^2 / ridge. A_Ni = (1, 0), r = (0, 1).
    cov = np.array([0.0, off_diagonal, 0.0, 1.0, 0.0, 0.0])
    known = np.array([0, 2]), np.array([0, 1]), np.array([0.0, 1.0])
    out = np.empty(1)
    getattr(knn_scores, form)(cov, cov, *known, np.array([0, 1]), np.array([2]), 2, 1.0, 0, 1, out)
    assert out[0] == pytest.approx(-off_diagonal / (used**2 - off_diagonal**2), rel=1e-12)
