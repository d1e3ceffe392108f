import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels.local_gradient import (
    gradient_values,
    projected_gradient_values,
    step_users,
)
from tests.kernels._problems import examples, float_types, index_types, random_pattern, read_only
from tests.reference import local_gradient as twin

LIMIT = 1e50


class Problem:
    def __init__(self, seed, k, index_type=np.int64, n_users=11, n_items=7):
        self.rng = rng = np.random.default_rng(seed)
        pattern = random_pattern(rng, n_users, n_items, index_type)
        ratings = rng.standard_normal(len(pattern.indices))
        self.U, self.V = rng.standard_normal((n_users, k)), rng.standard_normal((n_items, k))
        self.dense = np.full((n_users, n_items), np.nan)
        self.dense[np.repeat(np.arange(n_users), np.diff(pattern.indptr)), pattern.indices] = (
            ratings
        )
        self.csr = read_only(pattern.indptr, pattern.indices, ratings)

    def gradients(self):
        pairs = zip(self.dense, self.U, strict=True)
        return np.array([twin.gradient(y, u, self.V) for y, u in pairs])

    def draws(self, n_rows):
        n_users, k = self.U.shape
        return self.rng.integers(0, n_rows, n_users), self.rng.integers(0, k, n_users)


seeds, widths = st.integers(0, 2**16), st.integers(1, 20)


@examples
@given(seed=seeds, k=widths, index_type=index_types)
def test_values_are_those_of_the_twins_gradient(seed, k, index_type):
    p = Problem(seed, k, index_type)
    items, components = p.draws(7)
    out = np.full(11, np.nan)
    gradient_values(*p.csr, *read_only(p.U, p.V, items, components), 0, 11, out)
    expected = p.gradients()[np.arange(11), items, components]
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@examples
@given(seed=seeds, k=widths, index_type=index_types, dtype=float_types)
def test_projected_values_are_those_of_the_twins_gradient(seed, k, index_type, dtype):
    p = Problem(seed, k, index_type)
    Phi = p.rng.standard_normal((4, 7)).astype(dtype)
    rows, components = p.draws(4)
    out = np.full(11, np.nan)
    arrays = read_only(p.U, p.V, Phi, rows, components)
    projected_gradient_values(*p.csr, *arrays, 0, 11, out)
    projected = np.einsum("sj,ijl->isl", Phi.astype(np.float64), p.gradients())
    expected = projected[np.arange(11), rows, components]
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-11)


@examples
@given(seed=seeds, k=widths, index_type=index_types)
def test_users_step_as_the_twins_do(seed, k, index_type):
    p = Problem(seed, k, index_type)
    U = p.U.copy()
    step_users(*p.csr, *read_only(p.V), 0.3, 0.2, LIMIT, 0, 11, U)
    pairs = zip(p.dense, p.U, strict=True)
    expected = [twin.stepped_user(y, u, p.V, 0.3, 0.2) for y, u in pairs]
    np.testing.assert_allclose(U, expected, rtol=1e-11, atol=1e-11)


def test_a_step_follows_the_objective_downhill():
    """Against the objective itself, by differences: no formula of a gradient is shared."""
    p = Problem(5, 3)

    def objective(i, u):
        known = ~np.isnan(p.dense[i])
        loss = np.sum((p.dense[i, known] - p.V[known] @ u) ** 2) / max(1, known.sum())
        return loss + 0.2 * u @ u

    U, step, h = p.U.copy(), 1e-3, 1e-5
    step_users(*p.csr, p.V, step, 0.2, LIMIT, 0, 11, U)
    for i in range(11):
        slope = [
            (objective(i, p.U[i] + h * one) - objective(i, p.U[i] - h * one)) / (2 * h)
            for one in np.eye(3)
        ]
        np.testing.assert_allclose((p.U[i] - U[i]) / step, slope, rtol=1e-6, atol=1e-8)


def test_only_the_rows_asked_for_change_and_blocks_change_no_bit():
    p = Problem(8, 15, n_users=11)
    items, components = p.draws(7)
    Phi = p.rng.standard_normal((7, 7)).astype(np.float32)
    head = p.csr, (p.U, p.V)

    def run(blocks):
        x, z, U = np.full(11, np.nan), np.full(11, np.nan), p.U.copy()
        for start, stop in blocks:
            gradient_values(*head[0], *head[1], items, components, start, stop, x)
            projected_gradient_values(*head[0], *head[1], Phi, items, components, start, stop, z)
            step_users(*head[0], p.V, 0.3, 0.2, LIMIT, start, stop, U)
        return x, z, U

    whole, parts, some = run([(0, 11)]), run([(7, 11), (0, 2), (2, 7)]), run([(3, 6)])
    for one, other, piece in zip(whole, parts, some, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one[3:6], piece[3:6])
    rest = np.delete(np.arange(11), np.s_[3:6])
    assert np.isnan(some[0][rest]).all()
    assert np.isnan(some[1][rest]).all()
    np.testing.assert_array_equal(some[2][rest], p.U[rest])


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_values_stop_at_the_limit(sign):
    indptr, indices, ratings = np.array([0, 1]), np.array([0]), np.array([1e49 * sign])
    U = np.zeros((1, 1))
    step_users(indptr, indices, ratings, np.array([[1e50]]), 1.0, 0.0, LIMIT, 0, 1, U)
    assert U[0, 0] == sign * LIMIT
