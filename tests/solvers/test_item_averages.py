"""Item averages: what is released, what is made of it, and how releases are combined."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.noise import NoiseSource, derived_key, exact_grid, record_releases
from skdpmf.solvers import item_averages as ia
from skdpmf.solvers import item_means as im
from skdpmf.solvers._releases import Releases
from skdpmf.solvers.item_covariance import COVARIANCE, Settings, make_plan
from tests.solvers.audit import base_ratings

UNITS = pytest.mark.parametrize("unit", ["user", "rating"])
NOISES = pytest.mark.parametrize("noise", ["gaussian", "laplace"])
DAMPING = 5.0, 20.0  # of items and of users


def quarters():
    X = base_ratings() - 3.0
    X[4] = np.nan
    return X


def csr(X):
    known = ~np.isnan(X)
    indptr = np.concatenate(([0], np.cumsum(known.sum(axis=1))))
    return sparse.csr_array((X[known], np.nonzero(known)[1], indptr), shape=X.shape)


def averages(X, unit, noise="gaussian", *, epsilon=20.0, seed=0):
    settings = Settings(noise, 3, *DAMPING, 1.0, True, (0.1, 0.5, 0.4))
    plan = make_plan(PrivacyBudget(epsilon, 1e-5, unit=unit), settings, X.shape[1], len(X))
    planned = Releases(plan, NoiseSource(derived_key(seed, "test")), len(X), 1)
    terms = {"unit": unit, "norm": settings.norm, "damping": DAMPING}
    return ia.ItemAverages(csr(X), planned, grid=exact_grid(len(X), 1.0, degree=1), **terms)


def made(X, unit, noise="gaussian", *, names=(ia.STATISTICS,), **how):
    """Averages after some releases, and the records of these."""
    found = averages(X, unit, noise, **how)
    with record_releases() as records:
        for name in names:
            found.release(name)
    assert [record.name for record in records] == list(names)
    return found, records


def deviation(record):
    """Standard deviation of a release's noise."""
    return record.noise_scale * (np.sqrt(2.0) if record.noise == "laplace" else 1.0)


# -- what is released ------------------------------------------------------------------------------


@NOISES
def test_the_statistic_of_ratings_is_counts_and_sums(noise):
    X = quarters()
    _, (record,) = made(X, "rating", noise)
    known = ~np.isnan(X)
    expected = np.stack((ia.RATING_COUNT_WEIGHT * known.sum(axis=0), np.nansum(X, axis=0) / 2.0))
    np.testing.assert_array_equal(record.statistic, expected)
    assert record.sensitivity == pytest.approx(1.5 if noise == "laplace" else 1.25**0.5, rel=1e-9)


@NOISES
def test_the_statistic_of_users_is_that_of_item_means(noise):
    X = quarters()
    R = csr(X)
    _, (record,) = made(X, "user", noise)
    expected = im.item_mean_statistics(
        R.indptr,
        R.indices,
        R.data,
        X.shape[1],
        damping=DAMPING[1],
        clip=True,
        grid=exact_grid(len(X), 1.0, degree=1),
        norm="l1" if noise == "laplace" else "l2",
    )
    np.testing.assert_array_equal(record.statistic, expected)


def slow_residuals(X, b, mass, power):
    """The second statistic of the module's docstring in loops, and the users' norms."""
    out, norms = np.zeros(X.shape[1] + 1), []
    for row in X:
        own = np.flatnonzero(~np.isnan(row))
        if own.size == 0:
            continue
        w = mass[own] ** -ia._EXPONENT
        w = w / np.sum(w**power) ** (1.0 / power)
        e = row[own] - b[own]
        terms = w * (e - e.sum() / (own.size + DAMPING[1]))
        size = np.sum(abs(terms) ** power) ** (1.0 / power)
        c = min(1.0, ia._RESIDUAL_CLIP / size)
        out[own] += c * terms / ia._RESIDUAL_CLIP
        out[-1] += im.USER_WEIGHT * c
        norms.append(size)
    return out, norms


@NOISES
def test_the_second_statistic_of_users_is_what_is_left(noise):
    X = quarters()
    found, _ = made(X, "user", noise)
    b, mass = found.mean, found.popularity.mass
    with record_releases() as records:
        found.release(ia.RESIDUALS)
    expected, norms = slow_residuals(X, b, mass, 1.0 if noise == "laplace" else 2.0)
    np.testing.assert_allclose(records[0].statistic, expected, rtol=0, atol=1e-8)
    assert min(norms) < ia._RESIDUAL_CLIP < max(norms)  # the clipping matters for some


@UNITS
def test_truncation_is_towards_zero_and_order_does_not_matter(unit):
    X = quarters() * 0.987654321
    order = np.random.default_rng(0).permutation(len(X))
    _, (one,) = made(X, unit)
    _, (two,) = made(X[order], unit)
    np.testing.assert_array_equal(one.statistic, two.statistic)
    if unit == "rating":
        exact = sum(np.nan_to_num(abs(row)) for row in X) / 2.0
        _, (magnitudes,) = made(abs(X), unit)
        assert np.all(magnitudes.statistic[1] <= exact + 1e-12)


# -- what is made of it ----------------------------------------------------------------------------


def test_averages_without_noise_are_the_published_ones():
    X = quarters()
    found, popularity = ia.plain_averages(csr(X), 3.0)
    n, total = (~np.isnan(X)).sum(axis=0), np.nansum(X, axis=0)
    expected = (total + 3.0 * total.sum() / n.sum()) / (n + 3.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(popularity.n_ratings, n)
    np.testing.assert_array_equal(popularity.mass, np.maximum(n, 1))
    assert popularity.n_users == len(X)


def test_no_ratings_at_all_have_average_zero():
    found, popularity = ia.plain_averages(csr(np.full((3, 4), np.nan)), 5.0)
    assert not found.any()
    np.testing.assert_array_equal(popularity.mass, 1.0)


def line(N, x, precision):
    """Weighted regression of x on (1, log N) by the normal equations."""
    D = np.stack((np.ones(len(N)), np.log(N)))
    return np.linalg.solve((D * precision) @ D.T, (D * precision) @ x) @ D


@UNITS
@NOISES
@pytest.mark.parametrize("epsilon", [3.0, 100.0])
def test_averages_are_posterior_means(unit, noise, epsilon):
    """With the prior variance of item_damping ratings, whose own variance is RATING_VARIANCE."""
    found, _ = made(quarters(), unit, noise, epsilon=epsilon)
    t, N = im.RATING_VARIANCE / DAMPING[0], found.popularity.mass
    x, variance = found.shift / found.precision, 1.0 / found.precision
    prior = line(N, x, 1.0 / (t + variance))
    np.testing.assert_allclose(found.mean, (t * x + variance * prior) / (t + variance), atol=1e-9)


@NOISES
def test_variances_at_unit_rating(noise):
    """That of the noise, for sums of half the ratings, and of sampling."""
    found, (record,) = made(quarters(), "rating", noise)
    N = np.maximum(record.output[0] / 0.5, max(deviation(record) / 0.5, 1.0))
    expected = (2.0 * deviation(record) / N) ** 2 + im.RATING_VARIANCE / N
    np.testing.assert_allclose(1.0 / found.precision, expected, rtol=1e-9)
    np.testing.assert_allclose(found.popularity.mass, N, rtol=1e-10)
    np.testing.assert_array_equal(found.popularity.n_ratings, found.popularity.mass)
    np.testing.assert_allclose(found.counts, record.output[0] / 0.5, rtol=0, atol=1e-10)
    assert found.popularity.n_users == 160


@NOISES
def test_popularity_at_unit_user(noise):
    found, (record,) = made(quarters(), "user", noise)
    means = im.estimate_item_means(
        record.output, deviation(record), 160, "l1" if noise == "laplace" else "l2"
    )
    np.testing.assert_array_equal(found.popularity.mass, means.mass)
    np.testing.assert_allclose(found.popularity.n_ratings, means.mass / means.typical_weight)
    np.testing.assert_allclose(found.precision, 1.0 / means.variance)
    np.testing.assert_allclose(found.shift / found.precision, means.raw_mean, atol=1e-12)


def many_draws(X, unit, noise, n_draws, **how):
    """Measured means and the first release's noise, of fits with other seeds."""
    found = [made(X, unit, noise, seed=seed, **how) for seed in range(n_draws)]
    return np.array([f.shift / f.precision for f, _ in found]), found[0]


@NOISES
def test_measured_means_are_unbiased_with_the_variance_of_their_noise(noise):
    """At unit "rating", S / N: (2 sd / N)^2 (1 + x^2) by the noise of S and of N.

    The mean of 400 draws within 5 standard errors, and their variance within 5 of its own:
    false alarms in 5e-5 of all seeds, which are fixed.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(0.0, 0.6, (1500, 12)) + rng.uniform(-1, 1, 12)
    X[rng.random(X.shape) < 0.4] = np.nan
    draws, (_, (record,)) = many_draws(X, "rating", noise, 400, epsilon=6.0)
    N, truth = (~np.isnan(X)).sum(axis=0), np.nanmean(X, axis=0)
    variance = (2.0 * deviation(record) / N) ** 2 * (1.0 + truth**2)
    z = (draws.mean(axis=0) - truth) / np.sqrt(variance / 400)
    assert abs(z).max() < 5.0
    # the fourth moment is 3 or, for Laplace, 6 squared variances
    spread = np.sqrt((5.0 if noise == "laplace" else 2.0) / 400)
    assert abs(draws.var(axis=0) / variance - 1.0).max() < 5.0 * spread


# -- combinations ----------------------------------------------------------------------------------


@NOISES
def test_sums_are_combined_by_their_precision(noise):
    X = quarters()
    found, (one, two) = made(X, "rating", noise, names=(ia.STATISTICS, COVARIANCE))
    np.testing.assert_array_equal(one.statistic, two.statistic)
    assert one.noise_multiplier != two.noise_multiplier
    a, b = deviation(one) ** -2.0, deviation(two) ** -2.0
    counts, sums = (a * one.output + b * two.output) / (a + b)
    np.testing.assert_allclose(found.counts, counts / 0.5, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.shift / found.precision, 2.0 * sums / found.popularity.mass)
    N = found.popularity.mass
    expected = 4.0 / ((a + b) * N**2) + im.RATING_VARIANCE / N
    np.testing.assert_allclose(1.0 / found.precision, expected, rtol=1e-9)


@NOISES
def test_residuals_are_combined_by_their_precision(noise):
    """b + D / slope, slope the mass of the weights over C, with its own variance."""
    X = quarters()
    found, _ = made(X, "user", noise)
    means, b, first = found._by_user, found.mean, found.precision.copy()
    x = found.shift / found.precision
    with record_releases() as records:
        found.release(ia.RESIDUALS)
    (record,) = records
    power = 1.0 if noise == "laplace" else 2.0
    raw = (means.mass / means.mass.min()) ** -ia._EXPONENT
    level = np.average(raw**power, weights=means.mass) ** (1.0 / power)
    mass, typical = means.mass * raw / level, means.typical_weight * raw / level
    c = np.clip(record.output[-1] / im.USER_WEIGHT / means.n_users, 0.3, 1.0)
    slope = c * mass / ia._RESIDUAL_CLIP
    variance = (deviation(record) / slope) ** 2 + im.RATING_VARIANCE * typical / mass
    np.testing.assert_allclose(found.precision, first + 1.0 / variance, rtol=1e-9)
    measured = b + record.output[:-1] / slope
    expected = (first * x + measured / variance) / (first + 1.0 / variance)
    np.testing.assert_allclose(found.shift / found.precision, expected, rtol=0, atol=1e-9)


@UNITS
@NOISES
def test_more_releases_tell_more(unit, noise):
    """Squared errors of averages moved to a common mean, over 30 seeds."""
    X = quarters()
    names = [ia.STATISTICS, *[ia.RESIDUALS] * (unit == "user"), COVARIANCE]
    exact, _ = made(X, unit, noise, names=names, epsilon=1e4)
    truth = exact.shift / exact.precision
    weight = exact.popularity.mass / exact.popularity.mass.sum()
    errors = np.zeros(len(names))
    for seed in range(30):
        found = averages(X, unit, noise, epsilon=8.0, seed=seed)
        for n, name in enumerate(names):
            before = found.precision.sum()
            found.release(name)
            assert found.precision.sum() > before
            error = found.mean - truth
            errors[n] += weight @ (error - error @ weight) ** 2
    assert all(later < earlier for earlier, later in pairwise(errors))


def test_the_overall_mean():
    X = quarters()
    n = np.count_nonzero(~np.isnan(X))
    for seed in range(5):
        found, (record,) = made(X, "rating", epsilon=20.0, seed=seed)
        # 16 sums of half the ratings: 5 standard deviations
        error = 5.0 * 2.0 * 4.0 * deviation(record) / n
        assert found.overall_mean == pytest.approx(np.nanmean(X), abs=error)
    for seed in range(20):
        drowned, _ = made(X, "rating", "laplace", epsilon=1e-3, seed=seed)
        assert -2.0 <= drowned.overall_mean <= 2.0


@UNITS
@NOISES
@pytest.mark.parametrize("n_items", [1, 2, 16])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0])
def test_noise_of_any_size_gives_finite_averages(unit, noise, n_items, epsilon):
    names = [ia.STATISTICS, *[ia.RESIDUALS] * (unit == "user"), COVARIANCE]
    for X in (quarters()[:, :n_items], np.full((5, n_items), np.nan)):
        found, _ = made(X, unit, noise, names=names, epsilon=epsilon)
        assert np.isfinite(found.mean).all()
        assert np.all(found.precision > 0)
        assert np.all(found.popularity.mass > 0)
        assert np.all(found.popularity.n_ratings > 0)
        assert found.popularity.n_users > 0
