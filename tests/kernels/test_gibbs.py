from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels._vectors import PANEL_ROWS
from skdpmf.kernels.gibbs import sample_rows
from tests.kernels._problems import examples, random_pattern
from tests.reference import gibbs as twin

NONE = np.empty(0)
N_TRIES = 5


def without_turns(p):
    """The problem with no tries left to the second step: it stays where the first one leads."""
    return p._replace(uniforms=p.uniforms[:, :3].copy())


class Problem(NamedTuple):
    """Arguments of the kernel in order, up to `start`; then those that it overwrites."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    column_bias: np.ndarray
    row_roots: np.ndarray
    column_roots: np.ndarray
    factors: np.ndarray
    prior_std: np.ndarray
    bound: float
    normals: np.ndarray
    directions: np.ndarray
    uniforms: np.ndarray
    x: np.ndarray
    bias: np.ndarray


def problem(seed, n_rows, n_columns, k, *, bound=1.5, column_bias=True, own_bias=True):
    rng = np.random.default_rng(seed)
    pattern = random_pattern(rng, n_rows, n_columns)
    roots = rng.uniform(0, 1.5, n_columns) * (rng.random(n_columns) > 0.2)
    return Problem(
        pattern.indptr,
        pattern.indices,
        rng.uniform(-2, 2, len(pattern.indices)),
        rng.normal(size=n_columns) if column_bias else NONE,
        rng.uniform(0.2, 0.8, n_rows) * (rng.random(n_rows) > 0.1),
        roots,
        rng.normal(size=(n_columns, k)),
        rng.uniform(0.5, 1.5, k + own_bias),
        bound,
        rng.normal(size=(n_rows, k + own_bias)),
        rng.normal(size=(n_rows, k + own_bias)),
        rng.random((n_rows, 3 + N_TRIES)),
        rng.normal(size=(n_rows, k)),
        rng.normal(size=n_rows) if own_bias else NONE,
    )


def sample(p):
    """Run the kernel on copies of what it overwrites; the rest stays as it is."""
    x, bias, accepted = p.x.copy(), p.bias.copy(), np.zeros(len(p.x), bool)
    before = [np.copy(part) for part in p]
    columns = p.indices, p.values, p.column_bias, p.column_roots, p.factors
    given = p.indptr, p.row_roots, columns, p.prior_std, p.bound
    sample_rows(*given, (p.normals, p.directions, p.uniforms), 0, len(x), (x, bias, accepted))
    assert_same(p, before)
    return x, bias, accepted


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@examples
@given(
    seed=st.integers(0, 2**16),
    k=st.integers(1, 20),
    n_rows=st.integers(0, 5),
    n_columns=st.integers(1, 30),
    bound=st.sampled_from([0.3, 1.5, 4.0, np.inf]),
    column_bias=st.booleans(),
    own_bias=st.booleans(),
)
def test_rows_step_as_the_twin(seed, k, n_rows, n_columns, bound, column_bias, own_bias):
    p = problem(seed, n_rows, n_columns, k, bound=bound, column_bias=column_bias, own_bias=own_bias)
    x, bias, accepted = sample(p)
    expected_x, expected_bias, chance = twin.sample_rows(*p)
    np.testing.assert_allclose(x, expected_x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(bias, expected_bias, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(accepted, p.uniforms[:, 0] < chance)


@pytest.mark.parametrize("own_bias", [False, True])
def test_both_answers_occur_and_follow_the_chance_of_the_twin(own_bias):
    p = without_turns(problem(0, 90, 12, 3, bound=0.8, own_bias=own_bias))
    chance = twin.sample_rows(*p)[2]
    open_rows = chance < 1 - 1e-6  # the others' chance is 1 but for rounding
    assert (chance[open_rows] > 0.01).sum() > 20
    for factor, answer in [(1 - 1e-9, True), (1 + 1e-9, False)]:
        p.uniforms[:, 0] = chance * factor
        accepted = sample(p)[2]
        np.testing.assert_array_equal(accepted[open_rows], answer)
    p.uniforms[:, 0] = np.linspace(0.01, 0.99, 90)
    x, bias, accepted = sample(p)
    assert 0 < accepted.sum() < len(accepted)
    np.testing.assert_array_equal(x[~accepted], p.x[~accepted])
    assert (x[accepted] != p.x[accepted]).all()
    if own_bias:
        np.testing.assert_array_equal(bias[~accepted], p.bias[~accepted])
        assert (bias[accepted] != p.bias[accepted]).all()


@pytest.mark.parametrize("extra", [-1, 0, 1, PANEL_ROWS + 3])
def test_rows_longer_than_a_panel(extra):
    rng = np.random.default_rng(extra + 5)
    n = PANEL_ROWS + extra
    p = problem(1, 1, n, 17)._replace(
        indptr=np.array([0, n]),
        indices=rng.permutation(n),
        values=rng.uniform(-2, 2, n),
        row_roots=np.ones(1),
    )
    expected = twin.sample_rows(*p)
    assert (p.column_roots == 0).any()
    x, bias, _ = sample(p)
    np.testing.assert_allclose(x, expected[0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(bias, expected[1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("bound", [1.0, np.inf])
def test_ratings_without_weight_change_no_bit(bound):
    rng = np.random.default_rng(2)
    n = 2 * PANEL_ROWS + 40
    p = problem(2, 3, n, 5, bound=bound)
    p = p._replace(
        indptr=np.arange(4) * n,
        indices=np.tile(np.arange(n), 3),
        values=rng.uniform(-2, 2, 3 * n),
        column_roots=0.05 * (rng.random(n) > 0.3),
        row_roots=np.ones(3),
    )
    found = sample(p)
    kept = p.column_roots[p.indices] > 0
    smaller = p._replace(
        indptr=np.concatenate(([0], np.cumsum(kept.reshape(3, n).sum(axis=1)))),
        indices=p.indices[kept],
        values=p.values[kept],
    )
    assert_same(sample(smaller), found)
    # not even by factors and values that would make anything NaN
    factors, values, column_bias = p.factors.copy(), p.values.copy(), p.column_bias.copy()
    factors[p.column_roots == 0] = column_bias[p.column_roots == 0] = np.inf
    values[~kept] = np.nan
    spoilt = p._replace(factors=factors, values=values, column_bias=column_bias)
    with np.errstate(invalid="ignore"):
        assert_same(sample(spoilt), found)


def test_without_a_bound_everything_is_accepted_and_only_the_normals_are_read():
    p = problem(4, 9, 20, 4, bound=np.inf)
    nothing = np.empty((0, 0))
    found = sample(p._replace(uniforms=nothing, directions=nothing))
    assert_same(found, sample(p))
    assert found[2].all()


@pytest.mark.parametrize("own_bias", [False, True])
@pytest.mark.parametrize("bad", [1e200, np.inf, np.nan])
@pytest.mark.parametrize("bound", [2.0, np.inf])
def test_a_row_without_a_finite_draw_keeps_its_value(bound, bad, own_bias):
    p = without_turns(problem(5, 2, 2, 3, bound=bound, own_bias=own_bias))
    factors = p.factors.copy()
    factors[0] = bad
    p = p._replace(
        indptr=np.arange(3), indices=np.arange(2), row_roots=np.ones(2), column_roots=np.ones(2)
    )
    p.uniforms[:, 0] = 0.0
    with np.errstate(all="ignore"):
        x, bias, accepted = sample(p._replace(factors=factors))
    assert accepted.tolist() == [False, True]
    np.testing.assert_array_equal(x[0], p.x[0])
    np.testing.assert_array_equal(bias[:1], p.bias[:1])
    expected = sample(p)
    np.testing.assert_array_equal(x[1], expected[0][1])
    np.testing.assert_array_equal(bias[1:], expected[1][1:])
