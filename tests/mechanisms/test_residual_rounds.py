"""Counts and residuals by user: what is released, what is made of it, and limits."""

import numpy as np
import pytest

from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from tests.mechanisms.test_item_averages import DAMPING, NOISES, averages, deviation, quarters


def made(X, noise="gaussian", *, n_rounds=0, **how):
    """Averages after the counts and some rounds, and the records of these."""
    found, records = averages(X, noise, unit="user", **how)
    found.release(ir.COUNTS)
    for t in range(n_rounds):
        found.release(ir.RESIDUALS, t)
    return found, records


@NOISES
def test_counts_are_weighted_by_user(noise):
    X = quarters()
    _, (record,) = made(X, noise)
    expected = np.zeros(X.shape[1] + 1)
    for row in X:
        known = ~np.isnan(row)
        if known.any():
            weight = 1.0 / known.sum() if noise == "laplace" else known.sum() ** -0.5
            expected += np.append(weight * known, 0.1)
    np.testing.assert_allclose(record.statistic, expected, rtol=0.0, atol=1e-9)


def slow_residuals(X, b, mass, power):
    """The second statistic of the module's docstring in loops, and the users' norms."""
    out, norms = np.zeros(X.shape[1] + 1), []
    for row in X:
        known = np.flatnonzero(~np.isnan(row))
        if not known.size:
            continue
        e = row[known] - b[known]
        e = e - e.sum() / (known.size + DAMPING[1])
        w = mass[known] ** -ir.EXPONENT
        w = w / np.sum(w**power) ** (1.0 / power)
        norms.append(np.sum(abs(w * e) ** power) ** (1.0 / power))
        c = min(1.0, ir.CLIP / norms[-1])
        out[known] += c * w * e / ir.CLIP
        out[-1] += 0.1 * c
    return out, norms


@NOISES
def test_residuals_are_those_of_slow_loops(noise):
    X = quarters()
    found, records = made(X, noise, n_rounds=1)
    b, mass = found.mean.copy(), found.mass
    found.release(ir.RESIDUALS, 1)
    expected, norms = slow_residuals(X, b, mass, 1.0 if noise == "laplace" else 2.0)
    np.testing.assert_allclose(records[-1].statistic, expected, rtol=0.0, atol=1e-8)
    assert min(norms) < ir.CLIP < max(norms)  # the clipping matters for some


@NOISES
def test_the_popularity_is_the_posterior_of_released_counts(noise):
    found, (record,) = made(quarters(), noise)
    expected = estimate_popularity(record.output[:-1], deviation(record), noise)
    np.testing.assert_allclose(found.mass, expected.mean, rtol=1e-9)
    np.testing.assert_array_equal(found.counts, found.mass)
    np.testing.assert_array_equal(found.popularity.mass, found.mass)
    np.testing.assert_allclose(found.popularity.n_ratings, found.mass / found.typical_weight)
    assert found.popularity.n_users == np.clip(record.output[-1] / 0.1, 16.0, 160.0)
    assert not found.mean.any()  # before any residuals


@NOISES
def test_a_round_measures_the_averages(noise):
    """b + sums / slope, of variance (noise + slope's doubt) / slope^2; rounds add up."""
    found, records = made(quarters(), noise, n_rounds=1)
    b, doubt = found.mean.copy(), found._variance.copy()
    before = found.precision.copy(), found.shift.copy(), found._clip_precision, found._clip_shift
    found.release(ir.RESIDUALS, 1)
    record = records[-1]
    power = 1.0 if noise == "laplace" else 2.0
    raw = found.mass**-ir.EXPONENT
    expected = found.mass * raw / np.average(raw**power, weights=found.mass) ** (1.0 / power)
    # the mean clip factor: a normal prior, and one measurement a round
    own = (0.1 * found.n_users / deviation(record)) ** 2
    c = before[3] + own * record.output[-1] / (0.1 * found.n_users)
    slope = np.clip(c / (before[2] + own), 0.3, 1.0) * expected / ir.CLIP
    doubt = doubt * (slope / found.mass) ** 2 * found.mass_variance
    noises = deviation(record) ** 2 + (0.0 if noise == "laplace" else doubt)
    np.testing.assert_allclose(found.precision - before[0], slope**2 / noises, rtol=1e-9)
    measured = (found.shift - before[1]) / (found.precision - before[0])
    np.testing.assert_allclose(measured, b + record.output[:-1] / slope, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_sensitivities_are_least_upper_bounds(norm, neighbors):
    """Attained by users with disjoint items, or one item rated from both ends."""
    (_, _, shape, counts), (_, _, _, residuals) = ir.residual_releases(neighbors, norm, 4)
    assert shape == (5,)
    order = 1 if norm == "l1" else 2
    q, one, two = im.USER_WEIGHT, np.eye(5)[0], np.eye(5)[1]
    end = q * np.eye(5)[4]
    if neighbors == "add-remove":
        assert counts == residuals == pytest.approx(np.linalg.norm(one + end, order))
    else:
        assert counts == pytest.approx(np.linalg.norm(one - two, order))
        # the clip factors' part is not reached together with the whole of the sums'
        assert residuals == pytest.approx(np.linalg.norm(2.0 * one + end, order))
