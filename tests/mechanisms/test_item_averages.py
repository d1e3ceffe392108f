"""Item averages: what is released, what is made of it, and how releases are combined."""

import numpy as np
import pytest

from skdpmf.mechanisms.gram.covariance import COVARIANCE, Settings, make_plan
from skdpmf.mechanisms.item_means import averages as ia
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import Rows
from tests.core.audit import base_ratings, recorded_curator
from tests.matrices import csr

NOISES = pytest.mark.parametrize("noise", ["gaussian", "laplace"])
DAMPING = 5.0, 20.0  # of items and of users


def quarters():
    X = base_ratings() - 3.0
    X[4] = np.nan
    return X


def averages(X, noise="gaussian", *, epsilon=20.0, seed=0, unit="rating"):
    settings = Settings(noise, 3, *DAMPING, 1.0, True, (0.1, 0.5, 0.4))
    plan = make_plan(PrivacyBudget(epsilon, 1e-5, unit=unit), settings, X.shape[1], len(X))
    curator, records = recorded_curator(csr(X), plan, seed=seed)
    terms = {"norm": settings.norm, "damping": DAMPING}
    grid = exact_grid(len(X), 1.0, degree=1)
    return ia.averages_for(unit, curator, curator.users, grid=grid, **terms), records


def made(X, noise="gaussian", *, names=(ia.STATISTICS,), **how):
    """Averages after some releases, and the records of these."""
    found, records = averages(X, noise, **how)
    for name in names:
        found.release(name)
    assert [record.name for record in records] == list(names)
    return found, records


def deviation(record):
    """Standard deviation of a release's noise."""
    return record.noise_scale * (np.sqrt(2.0) if record.noise == "laplace" else 1.0)


@NOISES
def test_the_statistic_of_ratings_is_counts_and_sums(noise):
    X = quarters()
    _, (record,) = made(X, noise)
    known = ~np.isnan(X)
    expected = np.stack((ia.COUNT_WEIGHT * known.sum(axis=0), np.nansum(X, axis=0) / 2.0))
    np.testing.assert_allclose(record.statistic, expected, rtol=1e-9)
    s = ia.COUNT_WEIGHT
    assert record.sensitivity == pytest.approx(1 + s if noise == "laplace" else np.hypot(1, s))
    # the noise of a mean whose square is expected to be 2 * 0.1 is least
    noises = [(1.0 + x**2) * (1.0 + 0.2 / (2.0 * x) ** 2) for x in (0.99 * s, s, 1.01 * s)]
    assert noises[1] == min(noises)


def test_averages_without_noise_are_the_published_ones():
    X = quarters()
    found, popularity = ia.plain_averages(Rows(csr(X), 1), 3.0)
    n, total = (~np.isnan(X)).sum(axis=0), np.nansum(X, axis=0)
    expected = (total + 3.0 * total.sum() / n.sum()) / (n + 3.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(popularity.n_ratings, n)
    np.testing.assert_array_equal(popularity.mass, np.maximum(n, 1))
    assert popularity.n_users == len(X)
    assert not ia.plain_averages(Rows(csr(np.full((3, 4), np.nan)), 1), 5.0)[0].any()


@NOISES
@pytest.mark.parametrize("epsilon", [3.0, 100.0])
def test_averages_are_posterior_means(noise, epsilon):
    """Of a prior variance around that of item_damping ratings, each of RATING_VARIANCE."""
    found, _ = made(quarters(), noise, epsilon=epsilon)
    guess, N = im.RATING_VARIANCE / DAMPING[0], found.popularity.mass
    x, variance = found.shift / found.precision, 1.0 / found.precision
    t, prior = im.item_prior(x, variance, im.design_of(N, np.log(N)), guess)
    np.testing.assert_allclose(found.mean, (t * x + variance * prior) / (t + variance), atol=1e-9)


@NOISES
def test_measured_means_are_unbiased_with_the_variance_of_their_noise(noise):
    """At unit "rating", S / N: (2 sd / N)^2 (1 + x^2) by the noise of S and of N.

    The mean of 400 draws within 5 standard errors, and their variance within 5 of its own:
    false alarms in 5e-5 of all seeds, which are fixed.
    """
    rng = np.random.default_rng(0)
    X = np.clip(rng.normal(0.0, 0.6, (1500, 12)) + rng.uniform(-1, 1, 12), -2.0, 2.0)
    X[rng.random(X.shape) < 0.4] = np.nan
    fits = [made(X, noise, seed=seed, epsilon=6.0) for seed in range(400)]
    draws, (record,) = np.array([f.shift / f.precision for f, _ in fits]), fits[0][1]
    N, truth = (~np.isnan(X)).sum(axis=0), np.nanmean(X, axis=0)
    variance = (2.0 * deviation(record) / N) ** 2 * (1.0 + truth**2)
    z = (draws.mean(axis=0) - truth) / np.sqrt(variance / 400)
    assert abs(z).max() < 5.0
    # the fourth moment is 3 or, for Laplace, 6 squared variances
    spread = np.sqrt((5.0 if noise == "laplace" else 2.0) / 400)
    assert abs(draws.var(axis=0) / variance - 1.0).max() < 5.0 * spread


@NOISES
def test_sums_are_combined_by_their_precision(noise):
    X = quarters()
    found, (one, two) = made(X, noise, names=(ia.STATISTICS, COVARIANCE))
    np.testing.assert_array_equal(one.statistic, two.statistic)
    assert one.noise_multiplier != two.noise_multiplier
    a, b = deviation(one) ** -2.0, deviation(two) ** -2.0
    counts, sums = (a * one.output + b * two.output) / (a + b)
    np.testing.assert_allclose(found.counts, counts / ia.COUNT_WEIGHT, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.shift / found.precision, 2.0 * sums / found.popularity.mass)
    N = found.popularity.mass
    expected = 4.0 / ((a + b) * N**2) + im.RATING_VARIANCE / N
    np.testing.assert_allclose(1.0 / found.precision, expected, rtol=1e-9)


def test_the_overall_mean():
    X = quarters()
    n = np.count_nonzero(~np.isnan(X))
    for seed in range(5):
        found, (record,) = made(X, epsilon=20.0, seed=seed)
        # 16 sums of half the ratings: 5 standard deviations
        error = 5.0 * 2.0 * 4.0 * deviation(record) / n
        assert found.overall_mean == pytest.approx(np.nanmean(X), abs=error)
    for seed in range(20):
        drowned, _ = made(X, "laplace", epsilon=1e-3, seed=seed)
        assert -2.0 <= drowned.overall_mean <= 2.0
