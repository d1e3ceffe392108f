import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels._vectors import PANEL_ROWS
from skdpmf.kernels.als import accumulate_items
from tests.kernels import _problems as problems
from tests.reference import als as twin

GRID = 2.0**-17
SENTINEL = -77.0


def problem(seed, n_items, n_users, k, index_type=np.int64):
    rng = np.random.default_rng(seed)
    pattern = problems.random_pattern(rng, n_items, n_users, index_type)
    n_stored = len(pattern.indices)
    weights, targets = rng.uniform(0, 2, n_stored), rng.uniform(-3, 3, n_stored)
    return pattern, weights, targets, rng.uniform(-1, 1, (n_users, k))


def accumulate(form, pattern, weights, targets, factors, grid, start=0, stop=None):
    n_items, k = pattern.n_rows, factors.shape[1]
    gram = np.full((n_items, k * (k + 1) // 2), SENTINEL)
    rhs = np.full((n_items, k), SENTINEL)
    stop = n_items if stop is None else stop
    arrays = problems.read_only(form, pattern.indptr, pattern.indices, weights, targets, factors)
    getattr(accumulate_items, form)(*arrays, grid, start, stop, gram, rhs)
    return gram, rhs


@problems.forms
@problems.examples
@given(
    seed=st.integers(0, 2**16),
    k=st.integers(1, 20),
    n_items=st.integers(0, 4),
    n_users=st.integers(1, 12),
    grid=st.sampled_from([2.0**-20, GRID, 2.0**-3, 1.0]),
    index_type=problems.index_types,
    data=st.data(),
)
def test_items_equal_rational_arithmetic_bit_by_bit(
    form, seed, k, n_items, n_users, grid, index_type, data
):
    """Those in the range; the others are not written."""
    given_problem = problem(seed, n_items, n_users, k, problems.types_of(form, index_type)[0])
    pattern, *rest = given_problem
    start, stop = problems.part_of(data, n_items)
    gram, rhs = accumulate(form, *given_problem, grid, start, stop)
    expected = twin.accumulate_items(pattern.indptr, pattern.indices, *rest, grid)
    for found, whole in zip((gram, rhs), expected, strict=True):
        np.testing.assert_array_equal(found[start:stop], whole[start:stop])
        assert np.all(np.delete(found, np.s_[start:stop], axis=0) == SENTINEL)
    assert not np.signbit(gram[gram == 0]).any()  # one zero only: equal values are equal bits


@pytest.mark.parametrize("k", [3, 16, 33])
def test_no_order_of_users_and_no_form_changes_a_bit(k):
    rng = np.random.default_rng(k)
    n_users = 3 * PANEL_ROWS + 5
    factors = rng.uniform(-1, 1, (n_users, k))
    weights, targets = rng.uniform(0, 2, n_users), rng.uniform(-3, 3, n_users)
    indptr = np.array([0, n_users])
    seen = set()
    for form in ["plain", "compiled"] * 2:
        order = rng.permutation(n_users)
        gram, rhs = np.empty((1, k * (k + 1) // 2)), np.empty((1, k))
        arrays = indptr, order, weights[order], targets[order], factors
        getattr(accumulate_items, form)(*arrays, GRID, 0, 1, gram, rhs)
        seen.add(gram.tobytes() + rhs.tobytes())
    assert len(seen) == 1


@problems.forms
def test_truncation_never_raises_the_norm(form):
    # All just off the grid and negative: floor or rint would raise the sum of squares.
    factors = np.full((1, 9), -(GRID * 5.75))
    gram, rhs, one = np.empty((1, 45)), np.empty((1, 9)), np.ones(1)
    arrays = np.array([0, 1]), np.zeros(1, int), one, one, factors
    getattr(accumulate_items, form)(*arrays, GRID, 0, 1, gram, rhs)
    assert (gram == (5 * GRID) ** 2).all()
