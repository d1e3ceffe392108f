import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import config

from skdpmf.kernels.gibbs import diffuse_rows, diffusion
from tests.kernels._problems import examples, float_types, forms
from tests.reference import langevin as twin


@pytest.mark.parametrize("time", [0.0, 1e-12, 1e-6, 0.3, 1e4])
def test_diffusion_is_the_twin(time):
    precision = np.array([1e-3, 0.7, 4.0, 500.0])
    for got, wanted in zip(
        diffusion(precision, time), twin.diffusion(precision, time), strict=True
    ):
        assert got.shape == (4,)
        np.testing.assert_allclose(got, wanted, rtol=1e-10)


@pytest.mark.parametrize("gap", [1, 7, 50])
@pytest.mark.parametrize("step", [1e-9, 0.051, 0.51, 3.0])
def test_the_prior_variance_is_kept_over_any_gap(gap, step):
    """Also where the prior on each touch would be wrong (steps of .51) or diverge (3)."""
    precision = np.array([0.2, 1.0, 30.0])
    decay, scale = diffusion(precision, gap * step)
    np.testing.assert_allclose((1 - decay) ** 2 / precision + scale**2, 1 / precision, rtol=1e-14)


def random_problem(seed, k, dtype, table):
    rng = np.random.default_rng(seed)
    n_rows, start, n = 12, int(rng.integers(0, 5)), int(rng.integers(0, 8))
    F = rng.standard_normal((n_rows, k + int(rng.integers(0, 4)))).astype(np.float32)
    decay, scale = (part.astype(dtype) for part in diffusion(rng.uniform(0.1, 4, k), 0.7))
    if table:
        values, offsets = rng.standard_normal(k + 20), rng.integers(0, 21, n)
    else:
        values, offsets = rng.standard_normal(n * k), np.arange(n) * k
    return F, start, decay, scale, values.astype(dtype), offsets


@examples
@given(seed=st.integers(0, 2**16), k=st.integers(1, 40), dtype=float_types, table=st.booleans())
def test_forms_agree_to_the_bit(seed, k, dtype, table):
    F, start, *rest = random_problem(seed, k, dtype, table)
    after, expected = F.copy(), F.copy()
    diffuse_rows.compiled(after, start, *rest)
    diffuse_rows.plain(expected, start, *rest)
    np.testing.assert_array_equal(after, expected)
    n = len(rest[-1])
    others = np.delete(np.arange(len(F)), np.s_[start : start + n])
    np.testing.assert_array_equal(after[others], F[others])
    np.testing.assert_array_equal(after[:, k:], F[:, k:])
    assert n == 0 or (after[start : start + n, :k] != F[start : start + n, :k]).all()


@forms
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_decay_below_the_rounding_of_float32_is_not_lost(form, dtype):
    """Noise and its negative cancel in the mean, which then falls by the decay alone."""
    n, n_steps, decay = 2000 if config.DISABLE_JIT else 100_000, 50, 2e-8
    rng = np.random.default_rng(0)
    F = np.ones((n, 1), np.float32)
    for _ in range(n_steps):
        xi = rng.standard_normal(n // 2)
        values = np.concatenate((xi, -xi)).astype(dtype)
        step = (np.array([part], dtype) for part in (decay, np.sqrt(2 * decay)))
        getattr(diffuse_rows, form)(F, 0, *step, values, np.arange(n))
    # each rounding is off by 3e-8 at most: 2e-8 on average of n * n_steps of them
    slack = 5 * 2e-8 / np.sqrt(n * n_steps)
    assert 1 - F.mean(dtype=np.float64) == pytest.approx(n_steps * decay, abs=n_steps * slack)
