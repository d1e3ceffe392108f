"""Item factors from local reports: the devices' vectors, the server's factors, and the decision.

Reports are replaced by what they estimate, the mean of the vectors, with or without normal noise of
the variance that they would have. Statistical tests have fixed seeds, and alarm falsely in fewer
than 1e-4 of all seeds.
"""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse, stats

from skdpmf.mechanisms.device_reports import factors as lf
from skdpmf.mechanisms.device_reports import item_means as li
from skdpmf.mechanisms.item_means import joint_release as im
from tests.matrices import csr

C, Q, K, BETA = 0.6, im.USER_WEIGHT, 40, 0.2
LENGTH = np.sqrt(1.0 - 1.0 / K + Q**2)
TINY = 1e-12  # variance of a nearly noise-free round


def covariance(X, b, mass, head, damping=3.0):
    rows = lf.covariance_rows(csr(X), b, mass, head, damping)
    for at in range(len(X)):
        assert (np.diff(rows.indices[rows.indptr[at] : rows.indptr[at + 1]]) > 0).all()
    return dense(rows, lf.covariance_dimension(X.shape[1], len(head)))


def pairs(*arguments, damping=3.0):
    """The p_i, taken out of the vectors."""
    m = arguments[0].shape[1]
    return covariance(*arguments, damping)[:, m + 1 :] / np.sqrt(BETA)


def dense(rows, n_coordinates):
    arrays = rows.values, rows.indices, rows.indptr
    return sparse.csr_array(arrays, shape=(len(rows.indptr) - 1, n_coordinates)).toarray()


def slow_pairs(X, b, mass, head, damping=3.0):
    """The p_i of the module's docstring in loops."""
    h = len(head)
    out = np.zeros((len(X), h * (h - 1) // 2 + 1))
    for row, y in zip(out, X - b, strict=True):
        rated = [j for j in range(X.shape[1]) if not np.isnan(y[j])]
        o = sum(y[j] for j in rated) / (len(rated) + damping)
        own = sorted((j for j in head if j in rated), key=lambda j: -mass[j])[:K]
        if len(own) < 2:
            continue
        norm = sum(mass[j] ** -0.5 for j in own) ** 0.5
        w = {j: mass[j] ** -0.25 / norm for j in own}
        size = sum((w[j] * (y[j] - o)) ** 2 for j in own) ** 0.5
        c = min(1.0, C / size)
        z = {j: c * w[j] * (y[j] - o) / C for j in own}
        at = a = 0
        for p, j in enumerate(head):
            for q in head[:p]:
                if j in own and q in own:
                    row[at] = np.sqrt(2.0) * z[j] * z[q]
                    a += 2.0 * w[j] * w[q]
                at += 1
        row[at] = Q * c**2 * a / (K - 1)
    return out / LENGTH


def sparse_ratings(n_users, n_items, seed=0, share=0.9):
    rng = np.random.default_rng(seed)
    X = np.clip(rng.normal(0.3, 0.7, (n_users, n_items)), -2.0, 2.0)
    X[rng.random(X.shape) > rng.uniform(0.0, share, (n_users, 1))] = np.nan
    return X


@pytest.mark.parametrize("damping", [1e-6, 3.0])
@pytest.mark.parametrize(
    ("n_items", "head"), [(2, [0, 1]), (7, [1, 2, 5, 6]), (9, range(9)), (70, range(66))]
)
def test_rows_are_the_formulas(n_items, head, damping):
    X, head = sparse_ratings(40, n_items, share=1.0), np.array(head)
    X[3] = np.nan
    X[4, :] = 0.3  # the devices that know all items, more than 40 of the head in one case
    b = np.linspace(-1.0, 1.0, n_items)
    mass = np.random.default_rng(1).permutation(np.geomspace(0.5, 50.0, n_items))
    found = pairs(X, b, mass, head, damping=damping)
    expected = slow_pairs(X, b, mass, head, damping)
    np.testing.assert_allclose(found, expected, atol=1e-11)
    # and the vectors of a round "residuals" before them
    x = dense(li.residual_rows(csr(X), b, mass, damping), n_items + 1)
    first = covariance(X, b, mass, head, damping)[:, : n_items + 1]
    np.testing.assert_allclose(first, np.sqrt(1.0 - BETA) * x, rtol=1e-15)
    few = (~np.isnan(X[:, head])).sum(axis=1) < 2
    assert few.any()
    assert not found[few].any()
    assert found[~few].any(axis=1).all()
    assert ((found != 0).sum(axis=1) <= comb(K, 2) + 1).all()
    if n_items == 70:
        assert (found[4] != 0).sum() == comb(K, 2) + 1


def square(row):
    """Squared length without rounding."""
    return sum(Fraction(float(value)) ** 2 for value in row)


@given(
    values=st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=60),
    damping=st.sampled_from([1e-9, 0.5, 10.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([0.0, 1.0, 1e6]),
    spread=st.sampled_from([0.0, 1.0, 200.0]),
)
@example([2.0, -2.0] * 20, 1e6, 0, 0.0, 0.0)
@example([2.0, -2.0] * 30, 1e6, 0, 0.0, 0.0)
@example([0.6, -0.6] * 20, 1e6, 0, 0.0, 0.0)
@example([2.0] * 50, 1e-9, 0, 1e6, 200.0)
def test_no_row_is_longer_than_1(values, damping, seed, size, spread):
    rng, m = np.random.default_rng(seed), len(values) + 1
    b, mass = size * rng.uniform(-1.0, 1.0, m), 10.0 ** rng.uniform(-spread / 2, spread / 2, m)
    X = np.append(values, np.nan)[None]
    row = covariance(X, b, mass, np.sort(rng.permutation(m)[: max(2, m - seed % 3)]), damping)
    assert np.isfinite(row).all()
    assert square(row[0]) <= 1


def test_length_1_is_attained():
    # 40 equal head items at +-C: nothing is clipped, and nothing of the length is wasted
    X = np.tile([0.6, -0.6], K // 2)[None]
    arguments = np.zeros(K), np.ones(K), np.arange(K)
    row, own = (f(X, *arguments, damping=1e6) for f in (covariance, pairs))
    assert 1 - 1e-9 < square(row[0]) <= 1
    assert 1 - 1e-9 < square(own[0]) <= 1
    larger = pairs(3.0 * X, *arguments, damping=1e6)
    assert 1 - 0.011 < square(larger[0]) < square(own[0])


def make_known(n_devices, popularity, ratings=16.0, *, variance=TINY, noise=0.0, means=None):
    """The server after a round of users with so many ratings each, spread by popularity.

    The item means are those given, and significant if they differ.
    """
    m = len(popularity)
    share = np.asarray(popularity) / np.sum(popularity)
    mean = np.zeros(2 * m + 3)
    mean[:m] = share * np.sqrt(ratings)
    mean[m] = mean[2 * m + 1] = Q
    if means is not None:
        mean[m + 1 : 2 * m + 1] = means * mean[:m] / im.CLIP
    known = li.LocalItemMeans(m, 3.0)
    mean = mean / np.sqrt(2.0 + 2.0 * Q**2 + 0.15**2)
    known.add_statistics(mean + np.sqrt(variance / n_devices) * noise, n_devices, variance)
    return known


def planted(n_users, L, rng, *, popularity=1.0, noise=0.6):
    """Ratings with factors L and users' own levels."""
    X = rng.normal(size=(n_users, L.shape[1])) @ L.T + 0.3 * rng.normal(size=(n_users, 1))
    X += noise * rng.normal(size=X.shape)
    X[rng.random(X.shape) > popularity] = np.nan
    return X


def test_factors_are_those_of_a_plain_computation():
    """Without noise: Cov and the sum of its weights from dense z and w, and all eigenvalues > 0."""
    rng, m, n = np.random.default_rng(80), 9, 3000
    X = planted(n, rng.normal(0.0, 0.4, (m, 2)), rng, popularity=np.linspace(0.2, 0.9, m))
    known, head = make_known(n, np.nanmean(~np.isnan(X), axis=0)), np.array([1, 2, 4, 5, 7, 8])
    mean = pairs(X, known.item_means, known.mass, head).mean(axis=0)
    found = lf._estimate_factors(known, head, mean, n, 0.0, 3)
    N = known.mass[head]
    E = X - np.nansum(X, axis=1, keepdims=True) / ((~np.isnan(X)).sum(axis=1) + 3.0)[:, None]
    E = E[:, head]
    w = np.where(np.isnan(E), 0.0, N**-0.25)
    several = (w > 0).sum(axis=1) > 1
    E, w = np.nan_to_num(E[several]), w[several] / np.linalg.norm(w[several], axis=1)[:, None]
    c = np.minimum(1.0, C / np.linalg.norm(w * E, axis=1))
    z, v = c[:, None] * w * E / C, c[:, None] * w / C
    off = ~np.eye(6, dtype=bool)
    u = N**0.75
    u *= np.sqrt((v.T @ v)[off].sum() / np.outer(u, u)[off].sum())
    cov, own = (z.T @ z) * off, np.zeros(6)
    for _ in range(4):
        values, vectors = np.linalg.eigh(cov + np.diag(own))
        values, vectors = np.maximum(values[-3:], 0.0), vectors[:, -3:]
        product = (vectors * values) @ vectors.T
        own = np.diag(product)
    np.testing.assert_allclose(found @ found.T, product / np.outer(u, u), atol=1e-9)
    assert np.abs(product / np.outer(u, u)).max() < 4.0  # the clip at 2 is not seen


def test_both_parts_of_the_vectors_are_used():
    rng, m, n = np.random.default_rng(86), 12, 900
    X = planted(n, rng.normal(0.0, 0.3, (m, 1)), rng, popularity=0.7)
    head, popularity = np.arange(2, 12), np.mean(~np.isnan(X), axis=0)
    both, means = (make_known(n, popularity, means=0.3 * SPREAD[:m]) for _ in range(2))
    mean = covariance(X, both.item_means, both.mass, head).mean(axis=0)
    own = pairs(X, both.item_means, both.mass, head).mean(axis=0)
    before = both.item_means
    found = lf.add_covariance(both, head, mean, n, 0.01, 8)
    expected = lf._estimate_factors(means, head, own, n, 0.01 / BETA, 8)
    assert found.shape == (10, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    # less noise would have made them stronger
    assert np.sum(lf._estimate_factors(means, head, own, n, 0.01, 8)[:, 0] ** 2) > 1.01 * np.sum(
        found**2
    )
    means.add_residuals(mean[: m + 1] / np.sqrt(1.0 - BETA), n, 0.01 / (1.0 - BETA))
    np.testing.assert_allclose(both.item_means, means.item_means, rtol=1e-12)
    assert np.abs(both.item_means - before).max() > 1e-3


def test_planted_factors_are_recovered():
    rng, m, n = np.random.default_rng(81), 30, 20_000
    L = rng.normal(0.0, 0.2, (m, 2))
    L -= L.mean(axis=0)  # or the users' own means take part of them
    X = planted(n, L, rng, popularity=0.6, noise=0.3)
    known, head = make_known(n, np.ones(m), 18.0), np.arange(m)
    mean = pairs(X, known.item_means, known.mass, head).mean(axis=0)
    truth = L @ L.T
    # nearly no noise, or that of reports at epsilon 8
    for variance, tolerance in ((TINY, 0.15), (0.13, 0.5)):
        noisy = mean + np.sqrt(variance / n) * rng.normal(size=mean.size)
        found = lf._estimate_factors(known, head, noisy, n, variance, 8)
        assert found.shape[1] == 2 or variance == TINY
        found = found[:, :2]
        error = np.linalg.norm(found @ found.T - truth) / np.linalg.norm(truth)
        assert error < tolerance
    assert lf._estimate_factors(known, head, noisy, n, variance, 1).shape == (m, 1)
    assert lf._estimate_factors(known, head, noisy, n, 1e6, 8).shape == (m, 0)


def test_the_scale_is_measured_as_far_as_noise_allows():
    """Factors are weaker, the more weight their covariance is thought to have."""
    rng, m, n = np.random.default_rng(82), 25, 4000
    L = 0.2 * np.where(np.arange(m) % 2, 1.0, -1.0)[:, None]
    # three in ten know all items, the others none: half as much weight as popularity tells
    X = planted(n, L, rng, noise=0.3)
    X[rng.random(n) > 0.3] = np.nan
    known, head = make_known(n, np.ones(m), 25.0), np.arange(m)
    mean = pairs(X, known.item_means, known.mass, head).mean(axis=0)
    found = lf._estimate_factors(known, head, mean, n, TINY, 1)
    np.testing.assert_allclose(np.abs(found), np.abs(L), rtol=0.2)
    expected = lf._expected_scale(known, known.mass, n)
    u = known.mass**0.75
    unit = (K - 1) / Q / C**2 / (u.sum() ** 2 - u @ u) * n * LENGTH
    assert 0.4 < mean[-1] * unit / expected < 0.7
    # L^2 goes as 1 / kappa, of which a value in noise is half believed, and an absurd one not
    for variance in (TINY, (0.5 * expected / unit) ** 2 * n):
        trust = 0.25 / (0.25 + variance / n * (unit / expected) ** 2)
        for told in (0.6, 1.0, 1.7, -3.0, 0.0):
            spoiled = np.append(1e3 * mean[:-1], told * expected / unit)
            kappa = max(1.0 + trust * (told - 1.0), 0.2) * expected
            scaled = lf._factors_above_noise(
                _symmetric(1e3 * mean[:-1] * n * LENGTH / np.sqrt(2.0), m),
                LENGTH * np.sqrt(n * variance / 2.0),
                1,
            )
            truth = np.clip(scaled / u[:, None] / np.sqrt(kappa), -2.0, 2.0)
            found = lf._estimate_factors(known, head, spoiled, n, variance, 1)
            np.testing.assert_allclose(found, truth, rtol=1e-9)


def _symmetric(below, m):
    out = np.zeros((m, m))
    out[np.tril_indices(m, -1)] = below
    return out + out.T


@pytest.mark.parametrize("h", [4, 25, 60])
def test_noise_alone_seldom_makes_factors(h):
    """One of 20 cases at most; the test allows for that rate, and needs one of 2000 for h > 4."""
    rng, n, draws = np.random.default_rng([83, h]), 1000, 600
    known = make_known(n, np.ones(h))
    alarms, zeros = 0, np.zeros(comb(h, 2) + 1)
    for _ in range(draws):
        mean = zeros + np.sqrt(0.5 / n) * rng.normal(size=zeros.size)
        alarms += lf._estimate_factors(known, np.arange(h), mean, n, 0.5, 8).size > 0
    assert stats.binom.sf(alarms - 1, draws, 0.05) > 1e-4
    assert alarms > 0 or h == 4


@pytest.mark.parametrize("excess", [1.0, 1.5, 3.0])
def test_eigenvalues_and_angles_in_noise(excess):
    """theta and cos^2 of the docstring, for an eigenvalue so many times sd sqrt(h)."""
    rng, h, sd = np.random.default_rng(84), 250, 0.3
    theta = excess * sd * np.sqrt(h)
    v = rng.choice([-1.0, 1.0], h) / np.sqrt(h)
    found = []
    for _ in range(6):
        noise = np.tril(rng.normal(0.0, sd, (h, h)), -1)
        cov = theta * np.outer(v, v) + noise + noise.T
        scaled = lf._factors_above_noise(cov - np.diag(np.diag(cov)), sd, 5)
        if excess == 1.0:
            assert scaled.shape[1] <= 1
            continue
        assert scaled.shape[1] >= 1
        own = scaled[:, 0]
        found.append([own @ own, (v @ own) ** 2 / (own @ own)])
    if found:
        cosine = 1.0 - excess**-2
        np.testing.assert_allclose(np.mean(found, axis=0), [theta * cosine, cosine], rtol=0.12)


POPULARITY = np.geomspace(1.0, 0.02, 300)
SPREAD = 0.3 * np.where(np.arange(300) % 2, 1.0, -1.0)


def test_head_is_what_is_popular_once_many_report():
    sizes = []
    for n in (3000, 100_000, 3_000_000, 100_000_000):
        known = make_known(n, POPULARITY[::-1], 40.0, variance=0.13, means=SPREAD)
        assert known.significant
        head = lf.choose_head(known, 0.5 * n, 0.13)
        assert head.dtype == np.int64
        # the popular items are the last ones
        np.testing.assert_array_equal(head, np.arange(300 - head.size, 300))
        sizes.append(head.size)
    assert sizes[0] == 0
    assert sizes == sorted(sizes)
    assert sizes[-1] in (25, 50, 100, 200, 300)
    assert sizes[-1] > 25


def test_no_head_where_item_means_are_not_significant():
    known = make_known(100_000_000, POPULARITY, 40.0, variance=0.13)
    assert not known.significant
    assert lf.choose_head(known, 1e8, 0.13).size == 0
    assert lf.choose_head(known, 1e8, 0.13).dtype == np.int64


@pytest.mark.parametrize("m", [1, 2, 24, 25, 26])
def test_tiny_catalogues(m):
    known = make_known(10**9, np.ones(m), 40.0, means=SPREAD[:m])
    head = lf.choose_head(known, 10**9, 0.13)
    assert head.size <= m
    assert head.size != 1


def test_gain_is_the_formula():
    n, h, f, variance = 2_000_000, 50, 0.05, 8.0
    known = make_known(40_000_000, POPULARITY, 40.0, means=SPREAD)
    N, T = known.mass[:h], known.mass.sum()
    share, sd = N.sum() / T, LENGTH * np.sqrt(n * variance / 2.0)
    # users of 40 ratings each, half of a typical square clipped away
    kappa = 0.5 / C**2 * n * 40.0 / np.sum(N * N**-0.5) / np.sqrt(40.0) / 40_000_000
    theta = f * kappa * np.sum(N**1.5)
    cosine = 1.0 - h * sd**2 / theta**2
    assert 0.5 < cosine < 0.95
    reliability = 40.0 * share * f / (40.0 * share * f + 0.7)
    found = lf._factor_gain(known, np.arange(h), n, variance)
    np.testing.assert_allclose(found, share * f * cosine * reliability, rtol=1e-4)
    # below the edge there is nothing
    weak = (theta / sd / np.sqrt(h) / 1.05) ** 2
    assert lf._factor_gain(known, np.arange(h), n, variance * weak) == 0.0


def test_decision_weighs_what_both_kinds_of_round_gain(monkeypatch):
    n = 1_000_000
    known = make_known(n, POPULARITY, 40.0, variance=0.13, means=SPREAD)
    whole, part = (known.residual_gain(n, v) for v in (0.13, 0.13 / (1.0 - BETA)))
    cost = 2.5 * (whole - part)
    assert cost > 0.0
    seen, gains = [], {}

    def gain(known, head, n_devices, variance):
        seen.append((len(head), n_devices, variance))
        return gains[len(head)]

    monkeypatch.setattr(lf, "_factor_gain", gain)
    for each, size in (
        (dict.fromkeys((25, 50, 100, 200, 300), 0.99 * cost), 0),
        ({25: 1.01 * cost, 50: 1.02 * cost, 100: cost, 200: 1.019 * cost, 300: 0.0}, 50),
        ({25: 0.0, 50: 0.0, 100: 0.0, 200: 0.0, 300: 1.01 * cost}, 300),
    ):
        gains.update(each)
        assert lf.choose_head(known, n, 0.13).size == size
    assert seen[:5] == [(h, n, 0.13 / BETA) for h in (25, 50, 100, 200, 300)]


def test_expected_scale_is_that_of_devices():
    """Users of 12 ratings each, items drawn by popularity: kappa within a tenth, but for c^2."""
    rng, m, n = np.random.default_rng(85), 200, 4000
    p = np.geomspace(1.0, 0.2, m)
    p /= p.sum()
    X = np.full((n, m), np.nan)
    for row in X:
        row[rng.choice(m, 12, replace=False, p=p)] = 0.0
    known, head = make_known(n, np.mean(~np.isnan(X), axis=0), 12.0), np.arange(150)
    mean = pairs(X, np.zeros(m), known.mass, head).mean(axis=0)
    measured = (
        mean[-1] * n * LENGTH * (K - 1) / Q / C**2
    )  # without any deviation nothing is clipped
    N = known.mass[head]
    u = N**0.75
    expected = lf._expected_scale(known, N, n) * (u.sum() ** 2 - u @ u)
    np.testing.assert_allclose(0.5 * measured, expected, rtol=0.15)
