"""Popularity from noisy counts: limits, a posterior in closed form, and a long tail."""

import numpy as np

from skdpmf.mechanisms.item_means import popularity as item_popularity
from skdpmf.mechanisms.item_means.popularity import estimate_popularity

TAIL = np.minimum(0.3 * np.random.default_rng(7).pareto(0.7, 3000) + 0.02, 300.0)


def noisy(counts, deviation, seed=0):
    return counts + np.random.default_rng(seed).normal(0.0, deviation, len(counts))


def test_without_noise_counts_are_the_popularity():
    counts = np.array([0.0, 0.5, 3.0, 1000.0])
    found = estimate_popularity(counts, 0.0)
    np.testing.assert_array_equal(found.mean, [1e-3, 0.5, 3.0, 1000.0])
    np.testing.assert_array_equal(found.log_mean, np.log(found.mean))
    assert not found.variance.any()


def two_kinds(a, b, share, deviation, n_items=20_000):
    """Noisy counts of items with N = b (a part `share`) or a, and P(N = b) by Bayes' rule."""
    counts = np.where(np.random.default_rng(1).random(n_items) < share, b, a)
    x = noisy(counts, deviation)
    odds = share / (1.0 - share) * np.exp((b - a) * (2.0 * x - a - b) / (2.0 * deviation**2))
    return counts, x, odds / (1.0 + odds)


def test_the_posterior_of_a_known_population():
    """Of two parts without width: moments of two points."""
    a, b, share = 20.0, 100.0, 0.25
    _, x, p = two_kinds(a, b, share, 30.0, 500)
    grid, weights = np.array([a, b]), np.array([1.0 - share, share])
    mean, log_mean, variance = item_popularity._posterior(
        x, 30.0, "gaussian", grid, 1e-9 * grid, weights
    )
    np.testing.assert_allclose(mean, a + p * (b - a), rtol=1e-9)
    np.testing.assert_allclose(log_mean, np.log(a) + p * np.log(b / a), rtol=1e-9)
    np.testing.assert_allclose(variance, p * (1.0 - p) * (b - a) ** 2, rtol=1e-6, atol=1e-9)


def test_laplace_noise_is_read_by_its_own_law():
    """Two points: P(b | x) by Bayes' rule; on a long tail better than as normal noise, 5 seeds."""
    a, b, share, deviation = 20.0, 100.0, 0.25, 30.0
    x, grid, weights = np.linspace(-50.0, 200.0, 26), np.array([a, b]), np.array([0.75, 0.25])
    odds = share / (1 - share) * np.exp(np.sqrt(2.0) / deviation * (abs(x - a) - abs(x - b)))
    mean, _, _ = item_popularity._posterior(x, deviation, "laplace", grid, 1e-9 * grid, weights)
    np.testing.assert_allclose(mean, a + (b - a) * odds / (1.0 + odds), rtol=1e-7)
    errors = []
    for seed in range(5):
        x = TAIL + np.random.default_rng(seed).laplace(0.0, 20.0 / np.sqrt(2.0), len(TAIL))
        found = [estimate_popularity(x, 20.0, law).mean for law in ("laplace", "gaussian")]
        errors.append([np.mean((mean - TAIL) ** 2) for mean in found])
    assert np.less(*np.mean(errors, axis=0))
