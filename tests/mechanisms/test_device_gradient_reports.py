"""What devices report of their gradients: whole ones, the plan, and what one rating changes."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.device_reports import gradient as solver
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.privacy.budget import PrivacyBudget
from tests.mechanisms.test_device_gradient import (
    METHODS,
    N_ITEMS,
    N_USERS,
    D,
    Spy,
    fit,
    ratings,
    settings_of,
    start,
    streams_of,
)
from tests.reference import local_gradient as twin

WHOLE = settings_of("whole")
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)


def unit_gradient(y, u, V):
    """X_i as a vector, of length at most 1."""
    x = twin.gradient(y, u, V).ravel()
    return x / max(1.0, np.sqrt(x @ x))


def recorded(monkeypatch, owner, name):
    """The arguments of all calls of a method from now on."""
    calls, original = [], getattr(owner, name)

    def spy(self, *args, **kwargs):
        calls.append((self, *args))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, spy)
    return calls


def dense(indptr, indices, values):
    rows = np.zeros((len(indptr) - 1, N_ITEMS * D))
    for row, begin, end in zip(rows, indptr[:-1], indptr[1:], strict=True):
        assert np.all(np.diff(indices[begin:end]) > 0)
        row[indices[begin:end]] = values[begin:end]
    return rows


@pytest.mark.parametrize("std", [0.15, 50.0])
def test_whole_gradients_are_the_twins_and_no_longer_than_1(std, monkeypatch):
    Y, (U, V) = ratings(), start(std)
    calls = recorded(monkeypatch, PrivUnit, "sum_reports")
    fit(Y, replace(WHOLE, max_iter=1), 1.0, initial=(U, V))
    ((_, keys, *rows),) = calls
    assert keys.shape == (N_USERS, 8)
    found = dense(*rows)
    expected = [unit_gradient(y, u, V) for y, u in zip(Y, U, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    lengths = [sum(Fraction(float(x)) ** 2 for x in row) for row in found]
    assert max(lengths) <= 1
    # both sides of the clip are seen, and a user without ratings has nothing to say
    assert sum(length > 1 - 1e-9 for length in lengths) >= 5
    assert sum(0 < length < 0.9 for length in lengths) >= (5 if std < 1.0 else 0)
    assert lengths[4] == 0


def test_private_fit_is_the_twin_with_the_same_whole_reports():
    """Devices one after the other, each with a key of its own slot."""
    epsilon, Y, keys = 24.0, ratings(), streams_of()
    randomiser = PrivUnit(epsilon / WHOLE.max_iter, N_ITEMS * D + 1)

    def estimate(t, U, V):
        total = np.zeros(N_ITEMS * D + 1)
        for i in range(N_USERS):
            key = keys.keys(solver.WHOLE, t, 1, first_slot=i)[0]
            x = twin.gradient(Y[i], U[i], V).ravel()
            # the same hair inside as in the solver: a report is a step function of its input
            x *= (1.0 - 2.0**-40) / max(1.0 - 2.0**-40, np.sqrt(x @ x))
            rated = np.repeat(~np.isnan(Y[i]), D)
            total += randomiser.report(key, np.flatnonzero(rated), x[rated])
        return randomiser.estimate(total, N_USERS)[:-1].reshape(N_ITEMS, D)

    model = fit(Y, WHOLE, epsilon)
    U, V = twin.fit(Y, *start(), WHOLE, estimate)
    assert abs(V).max() > 0.8  # the noise is felt
    np.testing.assert_allclose(model.factors, V, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.user_factors, U, rtol=1e-9, atol=1e-9)


def test_whole_estimates_are_unbiased_with_the_stated_variance():
    """Of single rounds. False alarms: 5 sigma in 36 values, 2e-5; 4.5 in the variance, 7e-6."""
    n_repeats, each, Y = 300, 2.0, ratings()
    U, V = start(0.9)
    R = np.array([unit_gradient(y, u, V) for y, u in zip(Y, U, strict=True)])
    assert np.mean([np.linalg.norm(x) > 0.999 for x in R]) > 0.3  # clipping is seen
    one, got = replace(WHOLE, max_iter=1, step_size=1.0, item_penalty=0.0), []
    for seed in range(n_repeats):
        model = fit(Y, one, each, streams_of(1000 + seed), initial=(U, V))
        got.append((V - model.factors).ravel())
    variance = PrivUnit(each, N_ITEMS * D + 1).variance / N_USERS
    z = (np.mean(got, axis=0) - R.mean(axis=0)) / math.sqrt(variance / n_repeats)
    assert abs(z).max() < 5.0
    # 1 + t c - c^2 where a vector points, with t = c: the same in all directions
    ratio = np.var(got, axis=0).mean() / variance
    slack = 4.5 * math.sqrt(2.0 / (n_repeats * N_ITEMS * D))
    assert ratio == pytest.approx(1.0, abs=slack)


def test_a_whole_report_is_the_devices_own(monkeypatch):
    """Neither its key nor its input depend on what others hold, or how many they are."""
    calls = recorded(monkeypatch, PrivUnit, "sum_reports")
    (U, V), Y, one = start(), ratings(), replace(WHOLE, max_iter=1)
    others = Y.copy()
    others[np.arange(N_USERS) != 11] = np.random.default_rng(2).normal(0, 9, (N_USERS - 1, N_ITEMS))
    fit(Y, one, 1.0, initial=(U, V))
    fit(others, one, 1.0, initial=(U, V))
    fit(Y[:20], one, 1.0, initial=(U[:20], V))
    keys = [call[1] for call in calls]
    rows = [dense(*call[2:]) for call in calls]
    for i in (1, 2):
        np.testing.assert_array_equal(keys[i][11], keys[0][11])
        np.testing.assert_array_equal(rows[i][11], rows[0][11])
    assert len({key.tobytes() for key in keys[0]}) == N_USERS


BUDGET = PrivacyBudget(6.0, neighbors="replace")


@EVERY_METHOD
@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_plan_is_what_a_fit_reports(method, k, monkeypatch):
    """Names, numbers and epsilons of the randomisers that a fit makes and the keys it asks for."""
    settings = settings_of(method, max_iter=k)
    made, spy = [], Spy()
    for name in ("CoordinateSampling", "PrivUnit"):
        original = getattr(solver, name)
        monkeypatch.setattr(
            solver, name, lambda *args, make=original: made.append(make(*args)) or made[-1]
        )
    plan = solver.make_plan(BUDGET, settings, N_ITEMS)
    made.clear()
    fit(ratings(), settings, 6.0, spy)
    assert plan.local
    assert plan.delta == 0.0
    assert set(spy.slots) == {(r.name, t) for r in plan.releases for t in range(r.count)}
    assert all(slots == list(range(N_USERS)) for slots in spy.slots.values())
    assert [r.epsilon for r in plan.releases] == [randomiser.epsilon for randomiser in made]
    assert sum(Fraction(r.epsilon) * r.count for r in plan.releases) <= 6
    assert plan.epsilon == pytest.approx(6.0, abs=1e-9)
    assert plan.epsilon <= 6.0
    assert plan.budget == BUDGET


@EVERY_METHOD
@pytest.mark.parametrize("epsilon", [1e-30, 1e6])
def test_a_plan_is_refused_where_the_randomiser_is(method, epsilon):
    budget = PrivacyBudget(epsilon, neighbors="replace")
    with pytest.raises(PrivacyParameterError, match="epsilon="):
        solver.make_plan(budget, settings_of(method), N_ITEMS)
    with pytest.raises(PrivacyParameterError, match="epsilon="):
        fit(ratings(), settings_of(method), epsilon)
