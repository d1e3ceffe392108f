"""Item means from local reports: the devices' vectors, and what the server makes of their mean.

Reports are replaced by what they estimate, the mean of the vectors, with or without normal noise of
the variance that they would have. Statistical tests have fixed seeds, and alarm falsely in fewer
than 1e-4 of all seeds.
"""

import copy
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse

from skdpmf.mechanisms.device_reports import item_means as li
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.item_means import joint_release as im
from tests.matrices import csr

C, S, Q = 0.6, 1.0, im.USER_WEIGHT
WEIGHTS = [1.0, 1.2, 1.5]  # s
EXPONENT = 0.25
L = np.sqrt(S**2 + 1.0 + 3.0 * Q**2)
L_LATER = np.sqrt(1.0 + Q**2)
POPULARITY = np.where(np.arange(16) % 2, 0.3, 0.8)
TINY = 1e-12  # variance of a nearly noise-free round


def dense(rows, n_coordinates):
    arrays = rows.values, rows.indices, rows.indptr
    return sparse.csr_array(arrays, shape=(len(rows.indptr) - 1, n_coordinates)).toarray()


def statistics(X, damping=3.0, s=S):
    return dense(li.statistics_rows(csr(X), damping, s), li.statistics_dimension(X.shape[1]))


def residuals(X, b, mass, damping=3.0):
    return dense(li.residual_rows(csr(X), b, mass, damping), li.residual_dimension(X.shape[1]))


def sparse_ratings(n_users=60, n_items=7, seed=0):
    """Ratings in quarter ranges; some users have none, some one, and the last item has none."""
    rng = np.random.default_rng(seed)
    X = np.clip(rng.normal(0.3, 1.2, (n_users, n_items)), -2.0, 2.0)
    X[rng.random(X.shape) < rng.uniform(0.2, 1.0, (n_users, 1))] = np.nan
    X[:, -1] = X[3] = np.nan
    return X


def planted(n_users, truth, rng, *, offset=0.0, popularity=1.0):
    """Users' own levels around `offset`, plus the item means `truth`, plus noise."""
    X = truth + offset + 0.3 * rng.normal(size=(n_users, 1))
    X = np.clip(X + 0.5 * rng.normal(size=X.shape), -2.0, 2.0)
    X[rng.random(X.shape) > popularity] = np.nan
    return X


def with_statistics(X, *, damping=1e-6, variance=TINY, noise=0.0):
    n, m = X.shape
    server = li.LocalItemMeans(m, damping)
    mean = statistics(X, damping).mean(axis=0)
    server.add_statistics(mean + np.sqrt(variance / n) * noise, n, variance)
    return server


def add_later(server, X, *, variance=TINY, noise=0.0):
    """Add a round; return b as sent, the round's own x, its error variance, and the mean."""
    n, b = len(X), server.item_means
    precision, shift = server.precision, server.shift
    mean = residuals(X, b, server.mass, server.user_damping).mean(axis=0)
    server.add_residuals(mean + np.sqrt(variance / n) * noise, n, variance)
    gain = server.precision - precision
    return b, (server.shift - shift) / gain, 1.0 / gain, mean


def slow_statistics(X, damping, s):
    """The module's docstring in loops."""
    m = X.shape[1]
    out = np.zeros((len(X), 2 * m + 3))
    for row, y in zip(out, X, strict=True):
        rated = [j for j in range(m) if not np.isnan(y[j])]
        if n := len(rated):
            o = sum(y[j] for j in rated) / (n + damping)
            norm = sum((y[j] - o) ** 2 / n for j in rated) ** 0.5
            c = min(1.0, C / norm) if norm > 0 else 1.0
            a = {j: max(1.0 + (s - 1.0) * (y[j] - o), 0.1) for j in rated}
            for j in rated:
                row[j] = s * a[j] / sum(value**2 for value in a.values()) ** 0.5
                row[m + 1 + j] = c * (y[j] - o) / n**0.5 / C
            row[m], row[2 * m + 1] = Q, Q * c
            row[2 * m + 2] = Q * sum(y[j] for j in rated) / n / 2.0
    return out / np.sqrt(L**2 - S**2 + s**2)


def slow_residuals(X, b, mass, damping):
    m = X.shape[1]
    out = np.zeros((len(X), m + 1))
    for row, y in zip(out, X - b, strict=True):
        rated = [j for j in range(m) if not np.isnan(y[j])]
        if n := len(rated):
            o = sum(y[j] for j in rated) / (n + damping)
            norm = sum(mass[j] ** (-2 * EXPONENT) for j in rated) ** 0.5
            e = {j: mass[j] ** -EXPONENT / norm * (y[j] - o) for j in rated}
            length = sum(value**2 for value in e.values()) ** 0.5
            c = min(1.0, C / length) if length > 0 else 1.0
            for j in rated:
                row[j] = c * e[j] / C
            row[m] = Q * c
    return out / L_LATER


@pytest.mark.parametrize("damping", [1e-6, 3.0, 1e3])
@pytest.mark.parametrize("n_items", [2, 3, 7])
def test_rows_are_the_formulas(n_items, damping):
    X = sparse_ratings(n_items=n_items)
    for s in WEIGHTS:
        expected = slow_statistics(X, damping, s)
        np.testing.assert_allclose(statistics(X, damping, s), expected, atol=1e-11)
    b, mass = np.linspace(-1.0, 1.0, n_items), np.geomspace(0.5, 50.0, n_items)
    found, expected = residuals(X, b, mass, damping), slow_residuals(X, b, mass, damping)
    np.testing.assert_allclose(found, expected, atol=1e-11)
    if n_items == 7:  # both sides of the clip are seen
        clipped = found[:, -1][found[:, -1] > 0] < 0.99 * Q / L_LATER
        assert 0 < clipped.sum() < len(clipped)


def square(row):
    """Squared length without rounding."""
    return sum(Fraction(float(value)) ** 2 for value in row)


@given(
    values=st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=12),
    damping=st.sampled_from([1e-9, 0.5, 2.0, 10.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([0.0, 1.0, 1e6, 1e100]),
)
@example([2.0, 2.0, 2.0], 2.0, 0, 0.0)
@example([2.0] * 12, 8.0, 0, 0.0)
def test_no_row_is_longer_than_1(values, damping, seed, size):
    """Whatever a server sends."""
    X, rng = np.array([values]), np.random.default_rng(seed)
    b, mass = size * rng.normal(size=len(values)), np.exp(rng.normal(0, 20.0, len(values)))
    assert all(square(statistics(X, damping, s)[0]) <= 1 for s in WEIGHTS)
    assert square(residuals(X, b, mass, damping)[0]) <= 1


def test_length_1_is_attained():
    """With ratings 2 and damping 3 n / 7, o = 1.4: deviations are C, and no clip is needed."""
    for n in (1, 3, 12):
        assert square(statistics(np.full((1, n), 2.0), 3.0 * n / 7.0)[0]) > 1 - 1e-9
        # damping n: o = C is half of the ratings
        row = residuals(np.full((1, n), 2.0 * C), np.zeros(n), np.ones(n), float(n))[0]
        assert square(row) > 1 - 1e-9


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2, 0.11])
@pytest.mark.parametrize("sent", ["zeros", "truth"])
def test_slope_of_a_later_round(sent, share):
    """x is b plus what is left, whatever share of the devices has ratings.

    The user's own mean of about 8 ratings takes 1 / 8 of the rest.
    """
    rng, n, m = np.random.default_rng(6), 3000, 16
    truth = rng.permutation(np.linspace(-0.5, 0.5, m))
    X, Y = (planted(k * n, truth, rng, offset=0.2, popularity=POPULARITY) for k in (1, 2))
    empty = np.full((round(n / share) - n, m), np.nan)
    server = with_statistics(np.vstack((X, empty)))
    sure = 1e12 if sent == "truth" else 1e-12  # too sure to be shrunk, or not at all
    server.precision, server.shift = np.full(m, sure), sure * truth
    overall = np.nanmean(X[~np.isnan(X).all(axis=1)], axis=1).mean()
    assert server.overall == pytest.approx(overall, abs=1e-6)
    weighted = server.model().item_means @ server.mass / server.mass.sum()
    assert weighted == pytest.approx(overall, abs=1e-6)
    later = np.vstack((Y, empty, empty))  # twice as many
    b, x, error, mean = add_later(server, later)
    np.testing.assert_allclose(b, 0.0 if sent == "zeros" else truth, rtol=0, atol=1e-6)
    slope = np.polyfit(truth, x, 1)[0]
    # 0.012 is the standard error: 0.015 of an item's mean, over 16 items of spread 0.31
    least, most = (0.80, 0.95) if sent == "zeros" else (0.94, 1.06)
    assert least < slope < most
    # what divides: the sum of c_i w_ij / C over the users
    known = ~np.isnan(later)
    raw = known * server.mass**-EXPONENT
    w = raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-300)
    c = residuals(later, b, server.mass, 1e-6)[:, -1:] * L_LATER / Q
    divisor = mean[:-1] * len(later) * L_LATER / (x - b)
    np.testing.assert_allclose(divisor, (c * w).sum(axis=0) / C, rtol=0.12)
    # sampling error of 0.7 / number of raters, if all had the same weights
    np.testing.assert_allclose(error, 0.7 / known.sum(axis=0), rtol=0.25)


def server_of(counts, sums, noise, *, n=1000, overall=0.0):
    """After a statistics round whose noise, in the sums, has the standard deviation `noise`."""
    server = li.LocalItemMeans(counts.size, 10.0)
    total = np.concatenate((S * counts, [Q * n], sums, [Q * n], [overall * n * Q / 2.0]))
    server.add_statistics(total / (n * L), n, (noise / L) ** 2 / n)
    return server


def test_means_differ_if_that_is_more_likely_than_not():
    """Their spread falls with noise, and then at once to next to nothing."""
    N, pattern = np.full(12, 60.0), np.random.default_rng(8).normal(size=12)
    servers = [server_of(N, 20.0 * pattern, sd) for sd in np.geomspace(0.1, 1e4, 50)]
    spread = np.array([np.ptp(server.item_means) for server in servers])
    fall = spread[1:] / spread[:-1]
    at_once, *slowly = np.sort(fall)
    assert at_once < 0.01
    assert all(0.5 < one < 1.0 for one in slowly)
    significant = np.array([server.model().significant for server in servers])
    n = np.count_nonzero(significant)
    assert 0 < n <= np.argmin(fall) + 1
    assert significant[:n].all()


def test_damping_knows_how_well_the_overall_mean_is_known():
    """1 / damping' = 1 + (posterior variance of the overall mean) / 0.7, of a damping above 1."""
    for noise in (1e-6, 5.0, 30.0, 1e4):
        model = server_of(np.full(4, 1e6), np.zeros(4), noise, overall=0.5).model()
        error = (2.0 * noise / (Q * 1000)) ** 2
        posterior = 1.0 / (1.0 / 0.1 + 1.0 / error)
        assert model.user_damping == pytest.approx(1.0 / (1.0 + posterior / 0.7), rel=1e-6)
        np.testing.assert_allclose(model.item_means, 0.5 * posterior / error, rtol=1e-6)


def check_draws(draws, mean, variance, slack):
    """Mean and variance of each column within 5 standard errors, and a bit of its size."""
    far = 5.0 * np.sqrt(2.0 / len(draws)) + slack
    np.testing.assert_allclose(draws.var(axis=0) / variance, 1.0, rtol=0, atol=far)
    far = 5.0 * np.sqrt(variance / len(draws)) + slack * abs(mean)
    assert np.all(abs(draws.mean(axis=0) - mean) < far)


def test_error_of_the_statistics_round_is_that_of_its_noise():
    """Every value's noise has variance v / n."""
    rng, n, m, variance = np.random.default_rng(10), 2000, 8, 0.05
    X = planted(n, 0.03 * rng.normal(size=m), rng, offset=0.3)
    quiet, stated, draws = with_statistics(X), with_statistics(X, variance=variance), []
    for _ in range(300):
        server = with_statistics(X, variance=variance, noise=rng.normal(size=2 * m + 3))
        draws.append([*(server.shift / server.precision), server.overall])
    noise_part = 1.0 / stated.precision - 1.0 / quiet.precision
    clip = statistics(X, 1e-6)[:, 2 * m + 1].mean() * L / Q
    np.testing.assert_allclose(noise_part, variance * m * (L * C / clip) ** 2 / n, rtol=0.01)
    # shrunk by t / (t + error), the overall mean has t / (t + error) of its posterior variance
    error = variance * (2.0 * L / Q) ** 2 / n
    trust = 0.1 / (0.1 + error)
    assert stated.overall_variance == pytest.approx(trust * error, rel=1e-3)
    # the numbers of raters and of users are noisy too, and the latter at most n
    mean = np.append(quiet.shift / quiet.precision, trust * quiet.overall)
    check_draws(np.array(draws), mean, np.append(noise_part, trust**2 * error), 0.1)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_error_of_a_later_round_is_that_of_its_noise(share):
    rng, n, m, variance = np.random.default_rng(12), 3000, 8, 0.05
    X = planted(n, 0.03 * rng.normal(size=m), rng)
    X[int(share * n) :] = np.nan
    start = with_statistics(X)
    mean = residuals(X, start.item_means, start.mass, 1e-6).mean(axis=0)

    def round_alone(noise, variance):
        server = copy.copy(start)
        server.add_residuals(mean + np.sqrt(variance / n) * noise, n, variance)
        gain = server.precision - start.precision
        return (server.shift - start.shift) / gain, 1.0 / gain

    (truth, sampling), (_, stated) = round_alone(0.0, TINY), round_alone(0.0, variance)
    slope = mean[-1] * L_LATER / Q * n / np.sqrt(m) / C  # all items are as popular
    expected = variance * n * (L_LATER / slope) ** 2
    np.testing.assert_allclose(stated - sampling, expected, rtol=0.02)
    draws = [round_alone(rng.normal(size=m + 1), variance)[0] for _ in range(300)]
    check_draws(np.array(draws), truth, expected, 0.1)  # the clip factor's noise too


def test_rounds_are_combined_by_precision(monkeypatch):
    """At the same b, in any order; what is released is shrunk by the whole precision."""
    rng, m = np.random.default_rng(14), 6
    first, *later = (planted(n, np.linspace(-0.4, 0.4, m), rng) for n in (800, 300, 600))
    start = with_statistics(first, variance=0.1)
    monkeypatch.setattr(li.LocalItemMeans, "item_means", np.zeros(m))  # all are sent
    one, two = copy.copy(start), copy.copy(start)
    _, x0, e0, _ = add_later(one, later[0], variance=0.5)
    _, x1, e1, _ = add_later(one, later[1], variance=4.0)
    add_later(two, later[1], variance=4.0)
    add_later(two, later[0], variance=0.5)
    total = start.precision + 1.0 / e0 + 1.0 / e1
    combined = (start.shift + x0 / e0 + x1 / e1) / total
    monkeypatch.undo()
    for server in (one, two):
        np.testing.assert_allclose(server.precision, total, rtol=1e-12)
        np.testing.assert_allclose(server.shift / server.precision, combined, rtol=1e-10)
        design = im.design_of(server.mass, np.log(server.mass))
        expected = im.posterior(combined, 1 / total, design, im.PRIOR_VARIANCE, decide=True)[0]
        np.testing.assert_allclose(server.item_means, expected, rtol=1e-9)
    before = one.item_means
    add_later(one, later[0], variance=1e12, noise=rng.normal(size=m + 1))  # tells nothing
    np.testing.assert_allclose(one.item_means, before, rtol=0, atol=1e-4)


@pytest.mark.parametrize("s", WEIGHTS)
def test_popularity_is_that_of_the_counts(s):
    """The sum of unit vectors of choices; with noise, in the order of what was released."""
    X = planted(2000, np.zeros(16), np.random.default_rng(20), popularity=POPULARITY)
    mean, rng = statistics(X, 10.0, s).mean(axis=0), np.random.default_rng(21)
    counts = mean[:16] * 2000 * np.sqrt(L**2 - S**2 + s**2) / s
    if s == 1.0:
        known = ~np.isnan(X)
        n = np.maximum(known.sum(axis=1, keepdims=True), 1)
        np.testing.assert_allclose(counts, (known / np.sqrt(n)).sum(axis=0))
    for variance in (TINY, 400.0):
        server = li.LocalItemMeans(16, 10.0, s)
        sent = mean + np.sqrt(variance / 2000) * rng.normal(size=mean.size)
        server.add_statistics(sent, 2000, variance)
        popularity = server.model().popularity
        assert np.all(popularity > 0.0)
        np.testing.assert_array_equal(np.argsort(popularity), np.argsort(sent[:16]))
        if variance == TINY:
            np.testing.assert_allclose(popularity, counts, rtol=1e-3)


def test_counts_get_what_their_noise_asks_for():
    """The noise of a mean of unit vectors, in all: by its length, and by the public numbers."""
    epsilon, n_items, n_devices = 4.0, 300, 2000
    randomiser = PrivUnit(epsilon, li.statistics_dimension(n_items) + 1)
    noise = li.mean_noise(epsilon, n_items, n_devices)
    assert noise == pytest.approx(np.sqrt(n_items * randomiser.variance / n_devices), rel=1e-9)
    assert li.mean_noise(epsilon, n_items, 0) == 0.0

    def design(n_devices, n_rounds=None):
        public = epsilon, n_items, n_devices
        return len(li.fractions_of(li.mean_noise(*public), n_rounds)), li.count_weight(*public)

    at_one = randomiser.variance * n_items  # devices for a noise of length 1
    for r, n_rounds, s in (
        (0.24, 3, 1.0),
        (0.26, 1, 1.0),
        (0.4, 1, 1.2),
        (0.6, 1, 1.5),
        (9, 1, 1.5),
    ):
        found = design(round(at_one / r**2))
        assert found[0] == n_rounds
        assert found[1] == pytest.approx(s, rel=0.01)
    assert design(0) == (3, 1.0)
    assert design(10, 2) == (2, 1.5)
