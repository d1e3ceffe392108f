"""Item popularity and means: the released statistic, and what is made of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.privacy.sensitivity import item_mean_sensitivity
from skdpmf.solvers import item_means as im
from tests.reference.weighted_als import exact_item_means
from tests.solvers.audit import base_ratings

C, S, Q = im.CLIP, im.COUNT_WEIGHT, im.USER_WEIGHT
GRID = 2.0**-30


def csr(X):
    known = ~np.isnan(X)
    indptr = np.concatenate(([0], np.cumsum(known.sum(axis=1))))
    return indptr, np.nonzero(known)[1], X[known]


def statistic(X, *, damping=3.0, clip=True, grid=GRID):
    return im.item_mean_statistics(*csr(X), X.shape[1], damping=damping, clip=clip, grid=grid)


def slow_statistic(X, damping, clip):
    """The module's docstring in loops."""
    out = np.zeros((2, X.shape[1] + 1))
    for row in X:
        items = np.flatnonzero(~np.isnan(row))
        n = len(items)
        if n == 0:
            continue
        w, o = 1 / np.sqrt(n), row[items].sum() / (n + damping)
        norm = np.sqrt(np.sum((w * (row[items] - o)) ** 2))
        c = min(1.0, C / norm) if clip and norm > 0 else 1.0
        out[0, items] += S * w
        out[1, items] += c * w * (row[items] - o) / C
        out[:, -1] += Q, Q * c
    return out


@pytest.mark.parametrize("clip", [True, False])
def test_statistic_is_the_formula(clip):
    X = base_ratings() - 3.0
    X[4] = np.nan
    expected = slow_statistic(X, 3.0, clip)
    np.testing.assert_allclose(statistic(X, clip=clip, grid=0.0), expected, atol=1e-9)
    on_grid = statistic(X, clip=clip)
    np.testing.assert_allclose(on_grid, expected, atol=len(X) * GRID)
    np.testing.assert_array_equal(on_grid % GRID, 0.0)


@given(
    ratings=st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=40),
    damping=st.sampled_from([1e-9, 1.0, 10.0, 1e6]),
)
def test_one_user_stays_within_the_sensitivity(ratings, damping):
    alone = statistic(np.array([ratings]), damping=damping)
    bound = np.hypot(item_mean_sensitivity(S), np.sqrt(2.0) * Q)
    assert np.linalg.norm(alone) <= bound * (1.0 + 1e-12)
    assert np.linalg.norm(alone[0, :-1]) <= S
    assert np.linalg.norm(alone[1, :-1]) <= 1.0


def test_no_ratings_give_zeros():
    np.testing.assert_array_equal(statistic(np.full((3, 5), np.nan)), np.zeros((2, 6)))
    np.testing.assert_array_equal(statistic(np.full((0, 5), np.nan)), np.zeros((2, 6)))


def test_order_of_users_does_not_change_a_bit():
    X = base_ratings() - 3.0
    order = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_array_equal(statistic(X), statistic(X[order]))


@pytest.mark.parametrize(
    ("norm", "expected"), [(0.0, 1.0), (0.5, 1.0), (2.0, 0.5), (np.inf, 0.0), (np.nan, 0.0)]
)
def test_shrink_to_ball(norm, expected):
    factor = im.shrink_to_ball([norm], 1.0)[0]
    assert factor == pytest.approx(expected, abs=1e-9)
    if np.isfinite(norm):
        assert factor * norm <= 1.0


@given(st.floats(1e-300, 1e300), st.sampled_from([0.6, 0.8, 1.0, 2**0.5]))
def test_shrinking_never_rounds_out_of_the_ball(norm, radius):
    assert im.shrink_to_ball([norm], radius)[0] * norm <= radius


@given(st.floats(-4.0, 4.0))
def test_truncation_is_towards_zero(x):
    y = float(im.truncate(np.array([x]), 0.25)[0])
    assert abs(y) <= abs(x) < abs(y) + 0.25
    assert y % 0.25 == 0.0
    assert y * x >= 0.0
    assert im.truncate(x, 0.0) == x


def test_estimate_without_noise_is_the_twin():
    X = base_ratings() - 3.0
    X[4] = np.nan
    means = im.estimate_item_means(statistic(X, clip=False, grid=0.0), 0.0, len(X))
    expected = exact_item_means(X, 3.0)
    np.testing.assert_allclose(means.mass, expected.mass, rtol=1e-12)
    np.testing.assert_allclose(means.mean, expected.mean, atol=1e-10)
    np.testing.assert_allclose(means.prior_mean, expected.prior_mean, atol=1e-10)
    assert means.prior_variance == pytest.approx(expected.prior_variance, rel=1e-9)
    assert means.typical_weight == pytest.approx(expected.typical_weight, rel=1e-12)
    N = expected.mass[:-1]  # the last item is unrated
    assert means.popularity == pytest.approx(np.sum(N**2) / np.sum(N), rel=1e-9)


def test_estimate_recovers_the_means_of_many_users():
    """Up to a common slope: a user's own mean takes about 1 / 8 of each deviation with it."""
    rng = np.random.default_rng(0)
    truth = rng.normal(0.0, 0.5, 16)
    truth -= truth.mean()  # the users' own means take what is common
    X = truth + 0.5 * rng.normal(size=(8000, 1)) + 0.7 * rng.normal(size=(8000, 16))
    X[rng.random(X.shape) < 0.5] = np.nan
    means = im.estimate_item_means(statistic(X, damping=0.0), 0.0, len(X))
    slope = means.mean @ truth / (truth @ truth)
    assert 0.8 < slope < 1.0
    # the error of 4000 ratings an item is 0.02; 5 standard errors
    assert abs(means.mean - slope * truth - np.mean(means.mean)).max() < 0.1
    assert means.typical_weight == pytest.approx(8**-0.5, rel=0.05)


def test_means_are_posterior_means():
    """b = prior + t / (t + v) (x - prior), v falling with popularity."""
    X = base_ratings() - 3.0
    rng = np.random.default_rng(0)
    noisy = statistic(X) + rng.normal(size=(2, 17))
    means = im.estimate_item_means(noisy, 1.0, len(X))
    trust = means.prior_variance / (means.prior_variance + means.variance)
    expected = means.prior_mean + trust * (means.raw_mean - means.prior_mean)
    np.testing.assert_allclose(means.mean, expected, rtol=1e-12)
    assert np.all(np.diff(means.variance[np.argsort(means.mass)]) <= 1e-12)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("n_items", [1, 2, 16])
def test_noise_of_any_size_gives_finite_means(scale, n_items):
    X = (base_ratings() - 3.0)[:, :n_items]
    rng = np.random.default_rng(1)
    for _ in range(20):
        noisy = statistic(X) + scale * rng.normal(size=(2, n_items + 1))
        means = im.estimate_item_means(noisy, scale, len(X))
        for value in vars(means).values():
            assert np.isfinite(value).all()
        assert np.all(means.mass > 0)
        assert means.prior_variance > 0
        assert np.all(means.variance > 0)
        assert means.popularity >= 0
        assert (n_items + 1e-9) ** -0.5 <= means.typical_weight <= 1.0


def test_more_noise_shrinks_more():
    X = base_ratings() - 3.0
    rng = np.random.default_rng(2)
    z = rng.normal(size=(2, 17))
    spreads = []
    for scale in (0.0, 3.0, 100.0):
        means = im.estimate_item_means(statistic(X) + scale * z, scale, len(X))
        spreads.append(np.median(means.variance))
    assert spreads == sorted(spreads)
    assert spreads[-1] > 10 * spreads[0]


def test_popularity_is_seldom_seen_in_noise_alone():
    """One or three standard errors are taken off: one draw in six, or hardly any, stays above 0."""
    rng = np.random.default_rng(3)
    empty = np.zeros((2, 101))
    means = [
        im.estimate_item_means(empty + 50.0 * rng.normal(size=empty.shape), 50.0, 100)
        for _ in range(300)
    ]
    # binomial with p = 0.16, sd 6.3 of 300: 48 + 5 sd
    assert np.count_nonzero([m.popularity for m in means]) < 80
    # chi-squared with 100 degrees of freedom: p = 0.0036; more than 8 of 300 is a chance of 1e-6
    assert np.count_nonzero([m.sure_popularity for m in means]) <= 8
