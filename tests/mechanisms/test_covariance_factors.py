"""Cleaning of a noisy covariance, and the factors that it gives."""

import numpy as np
import pytest

from skdpmf.mechanisms.gram import covariance_factors as cf


def goe(rng, h, sd=1.0):
    """Noise of a symmetric matrix: deviation sd off the diagonal, sd sqrt(2) on it."""
    G = rng.normal(0.0, sd, (h, h))
    return (G + G.T) / np.sqrt(2.0)


TYPICAL = 0.05  # weight of a user


class Case:
    """A covariance of rank two with weights around their expectation, and its noise."""

    def __init__(self, seed=0, h=30, noise=(0.5, 2.0), relative=0.1):
        rng = np.random.default_rng(seed)
        self.h, self.noise = h, noise
        self.mass = rng.uniform(3, 30, h)
        self.expected = 0.3 * np.outer(self.mass, self.mass)
        E = np.tril(rng.normal(0.0, np.sqrt(relative), (h, h)))
        self.wgt = self.expected * (1.0 + E + np.tril(E, -1).T)
        L = rng.normal(0.0, 0.3, (h, 2))
        self.A = L @ L.T + 0.1 + np.diag(rng.uniform(0.3, 0.6, h))
        self.cov = self.A * self.wgt + goe(rng, h, noise[0])
        self.noisy_wgt = self.wgt + goe(rng, h, noise[1])

    def clean(self):
        """Cleaned A, W and average."""
        given = self.cov.copy(), self.noisy_wgt.copy(), self.mass
        return cf.clean_covariance(*given, noise=self.noise, typical=TYPICAL)[:3]


def slow_clean(cov, wgt, N, noise):
    """The module's docstring on full matrices."""
    i, j = np.triu_indices(len(N), 1)
    shape, w = N[i] * N[j], wgt[i, j]
    q = max(shape @ w, 0.0) / (shape @ shape)
    around = w - (shape @ w) / (shape @ shape) * shape
    excess = max(around @ around - w.size * noise[1] ** 2, 0.0)
    relative = excess / (q**2 * (shape @ shape)) if q > 0.0 else 0.0
    E = q * np.outer(N, N)
    if noise[1] > 0.0:
        trust = relative * E**2 / (relative * E**2 + noise[1] ** 2)
        W = np.maximum(trust * wgt + (1.0 - trust) * E, 0.0)
    else:
        W = wgt.copy()
    a = cov[i, j].sum() / w.sum() if w.sum() > 0 else 0.0
    own, counts = np.diag(cov), np.diag(wgt)
    typical = max(own.sum() / counts.sum(), 1e-6) if counts.sum() > 0 else 1e-6
    off, level = E[i, j], TYPICAL * typical**2
    spread = np.sum((cov[i, j] - a * off) ** 2) - level * off.sum() - off.size * noise[0] ** 2
    part = spread / (typical**2 * (off @ off)) if off @ off > 0.0 else 0.0
    b = 0.5 * TYPICAL / np.clip(part, 1e-100, 1.0)
    A = (cov + b * a) / np.maximum(W + b, 1e-300)
    b = max(counts.mean(), 0.0)
    known = np.maximum(counts, 0.0) + b > 0.0
    mean = (own + b * typical) / np.where(known, np.maximum(counts, 0.0) + b, 1.0)
    own = np.where(known, mean, typical)
    np.fill_diagonal(A, np.maximum(own, cf.LEAST_OWN * typical))
    np.fill_diagonal(W, counts)
    return A, W, a


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [(0.0, 0.0), (0.5, 2.0), (50.0, 200.0), (1e4, 4e4)])
def test_cleaning_is_the_twin(noise, seed):
    case = Case(seed, noise=noise)
    A, W, a = case.clean()
    expected_A, expected_W, expected_a = slow_clean(case.cov, case.noisy_wgt, case.mass, noise)
    # q is a difference of sums of squares: their rounding shows in the trust
    np.testing.assert_allclose(W, expected_W, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(A, expected_A, rtol=1e-8, atol=1e-12)
    assert a == pytest.approx(expected_a, rel=1e-10)


@pytest.mark.parametrize("sd", [0.0, 3.0])
def test_division(sd):
    """Weights that are not positive give 0, those below a deviation count as one."""
    # without noise nothing is known of pairs without weight
    cov = np.array([[2.0, 1.0, 5.0 * (sd > 0)], [1.0, 2.0, 5.0 * (sd > 0)], [5.0 * (sd > 0)] * 3])
    wgt = np.array([[4.0, 2.0, -1.0], [2.0, 8.0, 0.0], [-1.0, 0.0, 1e-3]])
    found = cf.divide_covariance(cov, wgt, noise=(1.0, sd))
    floored = np.maximum(wgt, sd)
    expected = np.where(wgt > 0, cov / np.where(floored > 0, floored, 1), 0.0)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-12)
    np.testing.assert_array_equal(found.weights, wgt)
    assert found.mean == pytest.approx((cov[1, 0] + cov[2, 0] + cov[2, 1]) / (2.0 - 1.0 + 0.0))


def leading(A, mass=None, k=3, *, mean=0.0, cleaning=False):
    clean = cf.ItemCovariance(A, np.ones(A.shape), mean)
    mass = np.ones(len(A)) if mass is None else mass
    return cf.leading_factors(clean, mass, k, cleaning=cleaning)


def planted(seed, h=60, k=3):
    rng = np.random.default_rng(seed)
    L = rng.normal(size=(h, k)) * np.array([2.0, 1.4, 1.0])[:k]
    return L, rng.uniform(1, 9, h)


@pytest.mark.parametrize("seed", range(3))
def test_communalities_replace_the_diagonal(seed):
    """Any diagonal gives the same factors; they reproduce pairs better than those of one step."""
    L, mass = planted(seed)
    A, pairs = L @ L.T, ~np.eye(60, dtype=bool)
    rng = np.random.default_rng(seed)
    one, two = (
        leading(A + np.diag(rng.uniform(0, size, 60)), mass, cleaning=True) for size in (1.0, 100.0)
    )
    np.testing.assert_allclose(one @ one.T, two @ two.T, rtol=0, atol=1e-9)

    def error(found):
        return np.sqrt(np.mean((found @ found.T - A)[pairs] ** 2) / np.mean(A[pairs] ** 2))

    single_step = A - np.diag(np.diag(A))
    assert error(one) < 0.5 * error(leading(single_step, mass))
    assert error(one) < 0.05
    assert error(leading(A + np.diag(np.full(60, 30.0)), mass)) > 5 * error(one)


def test_negative_eigenvalues_are_no_factors():
    A = np.diag([3.0, -5.0, 2.0, -1.0])
    found = leading(A, k=4)
    np.testing.assert_allclose(found @ found.T, np.diag([3.0, 0.0, 2.0, 0.0]), atol=1e-12)
    assert leading(-np.eye(4)).shape == (4, 0)
    # -5 is the noise's edge
    assert leading(A, k=4, cleaning=True).shape[1] <= 1


@pytest.mark.parametrize("strength", [1.5, 3.0, 10.0])
def test_a_planted_factor_stands_out_of_the_noise(strength):
    """At 1.5 times the edge 2 sd sqrt(h), whose fluctuation is 0.1 of it: 4 deviations or more."""
    rng = np.random.default_rng(8)
    h = 100
    for _ in range(4):
        u = rng.normal(size=h)
        u *= np.sqrt(strength * 2.0 * np.sqrt(h)) / np.linalg.norm(u)
        found = leading(np.outer(u, u) + goe(rng, h), k=20, cleaning=True)
        assert 1 <= found.shape[1] <= 3
        cosine = abs(found[:, 0] @ u) / np.linalg.norm(found[:, 0]) / np.linalg.norm(u)
        # theory for a spike of theta / (sd sqrt(h)) = 2 strength: 1 - 1 / (2 strength)^2
        assert cosine > np.sqrt(1.0 - 1.0 / (2.0 * strength) ** 2) - 0.1


@pytest.mark.parametrize("h", [1, 2, 7, 33])
def test_items_that_nobody_rated_together_show_nothing_of_tastes(h):
    rng = np.random.default_rng(h)
    cov, wgt = np.diag(rng.uniform(0.1, 2.0, h)), np.diag(rng.integers(1, 9, h) / 3.0)
    before = cov.copy(), wgt.copy()
    assert cf.likely_shrinkage(cov, wgt, 0.2, TYPICAL) > 1e90
    np.testing.assert_array_equal((cov, wgt), before)
