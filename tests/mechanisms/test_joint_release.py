"""The prior of item means, and what one joint release shows of them."""

import numpy as np
import pytest

from skdpmf.mechanisms.item_means import joint_release as im

C, S, Q = 0.8, 0.4, im.USER_WEIGHT
HOW = {"count_weight": S, "clip": C}


def statistic(X, damping=3.0):
    """The module's docstring in loops."""
    out = np.zeros((2, X.shape[1] + 1))
    for row in X:
        items = np.flatnonzero(~np.isnan(row))
        w, o = len(items) ** -0.5, row[items].sum() / (len(items) + damping)
        c = min(1.0, C / np.linalg.norm(w * (row[items] - o)))
        out[0, items] += S * w
        out[1, items] += c * w * (row[items] - o) / C
        out[:, -1] += Q, Q * c
    return out


@pytest.mark.parametrize("noise", [1.0, 1e3])
@pytest.mark.parametrize("guess", [0.03, 0.3])
def test_the_posterior_of_averages(guess, noise):
    """By the joint normal law of each t tried, and of items that do not differ."""
    rng = np.random.default_rng(0)
    n_items, truth = 40, 0.3
    variance, N = rng.uniform(0.01, 0.5, n_items), rng.uniform(1.0, 50.0, n_items)
    variance *= noise
    design = im.design_of(N, np.log(N))
    np.testing.assert_allclose(N @ design, [N.sum(), 0.0], atol=1e-9)
    x = design @ [0.3, 0.1] + rng.normal(0.0, np.sqrt(truth + variance))
    found, spread = im.posterior(x, variance, design, guess)

    def law(t):
        S = design @ np.diag([im.PRIOR_VARIANCE, t]) @ design.T
        total = S + np.diag(variance + t)
        line = S @ np.linalg.solve(total, x)
        return -0.5 * (x @ np.linalg.solve(total, x) + np.linalg.slogdet(total)[1]), line

    tried = guess * np.geomspace(1e-3, 10.0, 2001)
    prior = np.exp(-0.5 * np.log(tried / guess) ** 2)
    alike, level = law(0.0)
    chance = prior / prior.sum() * np.exp([law(t)[0] - alike for t in tried])
    t, differ = np.exp(np.average(np.log(tried), weights=chance)), chance.sum() / (1 + chance.sum())
    assert (differ > 0.99) == (noise == 1.0)
    line = level + differ * (law(t)[1] - level)
    t *= differ
    expected = (t * x + variance * line) / (t + variance)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=5e-3)
    np.testing.assert_allclose(spread, t * variance / (t + variance), rtol=0.02)


def test_errors_of_the_measured_means_are_those_of_the_noise():
    """(sd / N)^2 ((C / c)^2 + (x / s)^2), plus that of the clip factor, common to all items.

    The stated variance is the first part, which is all at x = 0. Mean and variance of 500 draws
    within 5 standard errors: false alarms in 1e-4 of all seeds, which are fixed.
    """
    rng = np.random.default_rng(7)
    X = 0.8 * rng.normal(size=(3000, 1)) + 1.2 * rng.normal(size=(3000, 10))
    X += np.linspace(-0.6, 0.6, 10)
    X[rng.random(X.shape) < 0.3] = np.nan
    exact, sd, n_draws = statistic(X), 3.0, 500
    truth = im.estimate_item_means(exact, 0.0, len(X), **HOW)
    noisy = (exact + sd * rng.normal(size=exact.shape) for _ in range(n_draws))
    draws = [im.estimate_item_means(x, sd, len(X), **HOW).raw_mean for x in noisy]
    draws = np.array(draws)
    x, N = truth.raw_mean, exact[0, :-1] / S
    c = exact[1, -1] / exact[0, -1]
    assert 0.3 < c < 0.95
    common = x * sd / (c * Q * len(X))  # n_users is at its limit, the rows
    variance = (sd / N) ** 2 * ((C / c) ** 2 + (x / S) ** 2)
    stated = im.estimate_item_means(exact, sd, len(X), **HOW).variance - truth.variance
    np.testing.assert_allclose(stated, (sd * C / (c * N)) ** 2, rtol=1e-6)
    # n_users moves below its limit only: 0.4 of its deviation on average
    most = 5.0 * np.sqrt((variance + common**2) / n_draws) + 0.4 * c * abs(common)
    assert np.all(abs(draws.mean(axis=0) - x) < most)
    most = (variance + 2.0 * common**2) * (1.0 + 5.0 * np.sqrt(2.0 / n_draws))
    assert np.all(draws.var(axis=0) < most)
    assert np.all(draws.var(axis=0) > variance * (1.0 - 5.0 * np.sqrt(2.0 / n_draws)))
