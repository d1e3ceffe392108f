"""The accountant against mpmath, dp-accounting and simulated samplers."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import accounting as ac
from skdpmf.privacy.accounting import bisect, log_delta
from skdpmf.privacy.plan import Release
from skdpmf.privacy.pure import mu_to_pure_epsilon, pure_epsilon_to_mu
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU

DELTA = 1e-5


EPSILON_TO_MU = {
    0.1: 0.03252,
    0.5: 0.14221,
    1: 0.26805,
    2: 0.50155,
    4: 0.92493,
    5: 1.12124,
    8: 1.66603,
    10: 2.00044,
    16: 2.90548,
    20: 3.44778,  # not 3.44781, whose epsilon is above 20
}

levels = st.floats(min_value=1e-6, max_value=1e3)
multipliers = st.floats(min_value=1e-8, max_value=1e3)
deltas = st.floats(min_value=-300.0, max_value=-0.31).map(lambda x: 10.0**x)


def exact_delta(mu, epsilon):
    """Balle and Wang's formula as it stands, with digits enough for any cancellation."""
    with mpmath.workdps(80):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2

        def tail(x):
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return tail(a) - mpmath.exp(epsilon) * tail(b)


@pytest.mark.parametrize(("epsilon", "mu"), EPSILON_TO_MU.items())
def test_mu_vectors(epsilon, mu):
    assert ac.gaussian_mu(epsilon, DELTA) == pytest.approx(mu, rel=1e-5, abs=6e-6)


@pytest.mark.parametrize("mu", [1e-8, 1e-4, 0.03, 0.7, 0.999, 1.0, 3.0, 40.0, 1e3])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1.0, 20.0, 1e3])
def test_curve_against_mpmath(mu, epsilon):
    a = epsilon / mu - mu / 2
    if a > 40:  # below 1e-300
        assert ac.gaussian_delta(mu, epsilon) == 0.0
        return
    exact = exact_delta(mu, epsilon)
    assert log_delta(mu, epsilon) == pytest.approx(float(mpmath.log(exact)), abs=1e-10, rel=0)
    assert ac.gaussian_delta(mu, epsilon) == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-5, 0.5])
def test_rounding_is_to_the_private_side_and_tight(epsilon, delta):
    mu = ac.gaussian_mu(epsilon, delta)
    assert exact_delta(mu, epsilon) < delta  # a mu rounded up, or to nearest, fails in some cell
    assert exact_delta(mu * (1 + 1e-8), epsilon) > delta
    spent = ac.gaussian_epsilon(mu, delta)
    assert exact_delta(mu, spent) < delta
    assert spent <= epsilon
    # epsilon is determined as well as ln delta depends on it, which is little where delta is large
    least = ac.gaussian_epsilon(mu * (1 - 1e-8), delta)
    assert least <= spent
    assert spent == 0.0 or exact_delta(mu, spent * (1 - 1e-6) - 1e-8 * mu) > delta


@given(levels, deltas)
def test_round_trip_never_exceeds_the_budget(epsilon, delta):
    mu = ac.gaussian_mu(epsilon, delta)
    assert mu > 0.0
    assert ac.gaussian_epsilon(mu, delta) <= epsilon
    # ten thousand releases composed in floating point are no loophole either
    z = math.sqrt(10_000) / mu
    assert ac.gaussian_epsilon(ac.compose_gaussian([z] * 10_000), delta) <= epsilon


@given(multipliers, levels, levels, deltas)
def test_monotone(mu, epsilon, other, delta):
    low, high = sorted((epsilon, other))
    assert ac.gaussian_delta(mu, high) <= ac.gaussian_delta(mu, low) * (1 + 1e-10)
    assert ac.gaussian_mu(low, delta) <= ac.gaussian_mu(high, delta)
    assert ac.gaussian_epsilon(mu, delta) <= ac.gaussian_epsilon(1.01 * mu, delta)
    assert ac.gaussian_epsilon(mu, min(0.9, 2 * delta)) <= ac.gaussian_epsilon(mu, delta)


def test_limits():
    assert ac.gaussian_mu(math.inf, 0.0) == math.inf
    assert ac.gaussian_mu(1.0, 0.0) == 0.0
    assert ac.gaussian_epsilon(1.0, 0.0) == math.inf
    assert ac.gaussian_epsilon(math.inf, 0.1) == math.inf
    assert ac.gaussian_epsilon(0.0, 0.0) == 0.0
    assert ac.gaussian_delta(0.0, 0.0) == 0.0
    assert ac.gaussian_delta(math.inf, 1.0) == 1.0
    assert ac.gaussian_delta(1.0, math.inf) == 0.0
    assert ac.gaussian_delta(1.0, 0.0) == pytest.approx(math.erf(1 / math.sqrt(8)), rel=1e-12)
    assert ac.gaussian_epsilon(1e-6, 1e-5) == 0.0  # delta(0) is 4e-7
    for end in (0.0, math.inf):
        assert pure_epsilon_to_mu(end) == mu_to_pure_epsilon(end) == end


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ac.gaussian_delta(-1.0, 1.0), "mu=-1.0"),
        (lambda: ac.gaussian_delta(1.0, math.nan), "epsilon=nan"),
        (lambda: ac.gaussian_mu("one", 0.1), "epsilon='one'"),
        (lambda: ac.gaussian_mu(1.0, 1.0), "delta=1.0"),
        (lambda: ac.gaussian_epsilon(1.0, -0.1), "delta=-0.1"),
        (lambda: ac.gaussian_mu(1.0, 0.1, n_values=1.5), "n_values=1.5"),
        (lambda: ac.gaussian_mu(1.0, 0.1, n_values=1, eta=-1.0), "eta=-1.0"),
        (lambda: ac.gaussian_mu(1.0, 0.1, n_values=1, tau=0.5), "tau=0.5"),
        (lambda: ac.gaussian_mu(1.0, 0.1, n_values=1, largest=0.0), "largest=0.0"),
        (lambda: ac.gaussian_epsilon(1.0, 0.1, n_values=1, largest=1.5), "largest=1.5"),
        (lambda: ac.compose_gaussian([1.0, -1.0]), "noise_multiplier=-1.0"),
        (lambda: pure_epsilon_to_mu(-1.0), "epsilon=-1.0"),
        (lambda: mu_to_pure_epsilon(None), "mu=None"),
    ],
)
def test_errors_name_the_parameter(call, name):
    with pytest.raises(PrivacyParameterError, match=name):
        call()


# --- finite-precision sampler -------------------------------------------------------------------


@given(
    st.floats(min_value=0.01, max_value=20.0),
    st.floats(min_value=-12.0, max_value=-2.0).map(lambda x: 10.0**x),
    st.integers(min_value=1, max_value=10**9),
)
def test_calibration_pays_the_slack(epsilon, delta, n_values):
    slack = {"n_values": n_values, "eta": SAMPLER_ETA, "tau": SAMPLER_TAU}
    mu = ac.gaussian_mu(epsilon, delta, **slack)
    assert ac.gaussian_epsilon(mu, delta, **slack) <= epsilon
    assert mu <= ac.gaussian_mu(epsilon, delta)
    assert ac.gaussian_epsilon(mu, delta, **slack) >= ac.gaussian_epsilon(mu, delta)
    # by hand: what is left for the ideal mechanism after the terms of the theorem
    n = mpmath.mpf(n_values)
    z = mpmath.mpf(special.ndtri(SAMPLER_TAU))
    t = n * SAMPLER_TAU + mpmath.npdf(z) * mu * mpmath.sqrt(n) + mpmath.ncdf(z + mu)
    grown = mpmath.exp(n * SAMPLER_ETA)
    ideal = exact_delta(mu, epsilon - 2 * n_values * SAMPLER_ETA)
    assert grown * (ideal + t) + n * SAMPLER_TAU <= delta


def test_slack_beyond_the_budget():
    with pytest.raises(PrivacyParameterError, match="release fewer values"):
        ac.gaussian_mu(1.0, 1e-5, n_values=10**9, eta=1e-9, tau=0.0)
    with pytest.raises(PrivacyParameterError, match="release fewer values"):
        ac.gaussian_mu(1.0, 1e-5, n_values=10**9, eta=0.0, tau=1e-13)
    assert ac.gaussian_epsilon(1.0, 1e-5, n_values=10**9, eta=0.0, tau=1e-13) == math.inf


def rounded_normal(grid, reach):
    """The law of round(grid * N) on -reach..reach, both tails exact."""
    half = np.diff(special.ndtr((np.arange(-reach, 1) - 0.5) / grid))
    return np.concatenate([half, [2 * special.ndtr(0.5 / grid) - 1.0], half[::-1]])


def hockey_stick(p, q, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0.0).sum()


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_slack_theorem_on_a_hostile_sampler(mu, epsilon):
    """One value from a law bent where it hurts most: without the slack the claim is false."""
    grid = 64
    shift, reach = int(mu * grid), 12 * grid
    P = rounded_normal(grid, reach)
    bad = np.cumsum(P) < 5e-4
    # up where the loss exceeds epsilon, down a shift below, and so on
    edge = reach + int((mu / 2 - epsilon / mu) * grid)
    up = (edge - np.arange(P.size)) // shift % 2 == 0
    Q = P * np.where(bad, np.where(up, 1.9, 0.1), np.exp(np.where(up, 0.05, -0.05)))
    Q /= Q.sum()
    eta = np.abs(np.log(Q[~bad] / P[~bad])).max()
    tau = max(P[bad].sum(), Q[bad].sum())
    first, second = np.pad(Q, (0, shift)), np.pad(Q, (shift, 0))
    ideal = ac.gaussian_delta(mu, epsilon)
    assert hockey_stick(first, second, epsilon) > ideal
    slack = {"eta": eta, "tau": tau}
    epsilon_code = epsilon + 2 * eta
    delta_code = math.exp(eta) * ideal + (1 + math.exp(epsilon_code)) * tau
    z = special.ndtri(tau)
    t = tau + mu * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) + special.ndtr(z + mu)
    delta_gaussian = math.exp(eta) * (ideal + t) + tau
    least = ac.gaussian_epsilon(mu, delta_gaussian, n_values=1, **slack)
    assert least == pytest.approx(epsilon + 2 * eta, rel=1e-3)
    for p, q in ((first, second), (second, first)):
        assert hockey_stick(p, q, epsilon_code) <= delta_code
        assert hockey_stick(p, q, least) <= delta_gaussian


@given(
    st.floats(min_value=3.0, max_value=40.0),
    st.floats(min_value=0.01, max_value=1.0),
    st.integers(min_value=1, max_value=10**6),
)
def test_slack_of_many_releases(mu, largest, n_values):
    """Less than that of one release of all mu, never falling with mu, and as the proof says."""
    slack = ac.SamplerSlack(n_values, SAMPLER_ETA, SAMPLER_TAU, largest)
    whole = ac.SamplerSlack(n_values, SAMPLER_ETA, SAMPLER_TAU)
    added = slack.delta(mu)
    assert slack.delta(0.99 * mu) <= added <= whole.delta(mu) * (1.0 + 1e-12)
    assert slack.delta(3.5) == whole.delta(3.5)
    z = special.ndtri(SAMPLER_TAU)
    if added < 1.0:
        # as many of the largest as there are, one of what is left, and the rest is still
        n = min(n_values, int(1.0 / largest**2))
        worst = n * special.ndtr(z + largest * mu) + special.ndtr(
            z + min(largest, math.sqrt(max(0.0, 1.0 - n * largest**2))) * mu * (n < n_values)
        )
        assert worst - special.ndtr(z) <= added
    else:
        m = max(largest * mu, min(mu, 3.5))
        tail = (mu / m) ** 2 * special.ndtr(z + m)
        assert added == 1.0  # nothing is promised, where the proof promises nothing
        assert m > -z - 1.0 or tail > 0.99


@pytest.mark.parametrize(
    ("tau", "mu", "sizes", "limits"),
    [(2.0**-40, 2.0, (1, 3, 50), (2.0,)), (2.0**-72, 9.0, (4, 20, 300), (4.6, 5.5, 7.0))],
)
def test_shifted_tail_bound(tau, mu, sizes, limits):
    """Random shifts, each at most m, with sum of squares mu^2: never more tail than t."""
    rng = np.random.default_rng(1)
    z = special.ndtri(tau)
    for n in sizes:
        for m in limits:
            t = ac.SamplerSlack(n, 0.0, tau, m / mu).delta(mu) - n * tau
            shifts = np.abs(rng.normal(size=(500, n))) ** rng.uniform(0.1, 8, size=(500, 1))
            shifts = np.vstack([shifts, np.ones((1, n)), np.arange(n)[None] < (mu / m) ** 2])
            shifts *= mu / np.linalg.norm(shifts, axis=1, keepdims=True)
            shifts = shifts[(shifts <= m * (1.0 + 1e-12)).all(axis=1)]
            assert len(shifts) > 0
            assert special.ndtr(z + shifts).sum(axis=1).max() <= t


@pytest.mark.parametrize("epsilon", [5.0, 25.0, 40.0])
def test_slack_theorem_on_two_hostile_draws(epsilon):
    """Two values that nearly never come from where the neighbour's would: t is due, and enough."""
    grid, tau, shift = 8, 1e-8, 28
    mu = shift / grid
    P = rounded_normal(grid, 12 * grid)
    bad = np.cumsum(P) < tau / 2
    Q = P * np.where(bad | bad[::-1], 1e-30, 1.0)
    Q /= Q.sum()
    eta, both = np.abs(np.log(Q / P))[~(bad | bad[::-1])].max(), bad | bad[::-1]
    slack = {"n_values": 2, "eta": eta, "tau": P[both].sum()}
    first, second = np.pad(Q, (0, shift)), np.pad(Q, (shift, 0))
    p, q = np.outer(first, first), np.outer(second, second)
    delta = hockey_stick(p, q, epsilon)
    ideal = ac.gaussian_delta(math.sqrt(2) * mu, epsilon)
    paid = ac.SamplerSlack(**slack, largest=math.sqrt(0.5)).delta(math.sqrt(2) * mu)
    assert delta <= ideal + paid
    if epsilon > 30.0:  # nearly all of it is the tail, which no epsilon pays for
        assert delta > 100.0 * ideal
        assert delta > 0.3 * paid
    least = ac.gaussian_epsilon(math.sqrt(2) * mu, ideal + paid, **slack, largest=math.sqrt(0.5))
    assert hockey_stick(p, q, least) <= ideal + paid
    assert ac.SamplerSlack(**slack).delta(math.sqrt(2) * mu) > 10.0 * paid


# --- pure epsilon -------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-10, 1e-3, 0.5, 0.999, 1.0, 2.0, 10.0, 500.0])
def test_pure_epsilon_as_mu(epsilon):
    mu = pure_epsilon_to_mu(epsilon)
    with mpmath.workdps(60 + int(epsilon)):
        ratio = mpmath.ncdf(mpmath.mpf(mu) / 2) / mpmath.ncdf(-mpmath.mpf(mu) / 2)
        implied = mpmath.log(ratio)
        assert implied >= epsilon  # never charged too little
        assert implied == pytest.approx(epsilon, rel=1e-10)
    back = mu_to_pure_epsilon(mu)
    assert back == pytest.approx(epsilon, rel=1e-10)
    assert pure_epsilon_to_mu(mu_to_pure_epsilon(mu)) <= mu * (1 + 1e-12)


def test_pure_epsilon_is_dominated_by_its_mu():
    """Randomized response, the worst mechanism of epsilon = 2, is nowhere above mu-GDP's curve."""
    mu = pure_epsilon_to_mu(2.0)
    for epsilon in np.linspace(0.0, 2.0, 41):
        response = (math.exp(2.0) - math.exp(epsilon)) / (1.0 + math.exp(2.0))
        assert response <= ac.gaussian_delta(mu, epsilon)
        # a mu a tenth smaller would not do
    assert any(
        (math.exp(2.0) - math.exp(e)) / (1.0 + math.exp(2.0)) > ac.gaussian_delta(0.9 * mu, e)
        for e in np.linspace(0.0, 2.0, 41)
    )


# --- composition --------------------------------------------------------------------------------


def test_compose_gaussian():
    assert ac.compose_gaussian([]) == 0.0
    assert ac.compose_gaussian([0.0, 1.0]) == math.inf
    assert ac.compose_gaussian([math.inf, 2.0]) == 0.5
    assert ac.compose_gaussian([1e-200]) == math.inf
    assert ac.compose_gaussian([3.0, 4.0]) == pytest.approx(5.0 / 12.0, rel=1e-15)


@given(st.lists(st.floats(min_value=1e-3, max_value=10.0), min_size=1, max_size=9))
def test_pure_epsilons_add_up_outward(epsilons):
    total = ac.sum_up((e, 1) for e in epsilons)
    exact = sum(map(Fraction, epsilons))
    assert Fraction(math.nextafter(total, 0.0)) < exact <= Fraction(total)
    assert ac.sum_up([(1.0, 1), (math.inf, 2)]) == math.inf


@pytest.mark.parametrize(
    ("multipliers", "interval"),
    [([3.73063], 1e-4), ([5.0] * 5 + [20.0], 1e-4), ([0.29004], 1e-3), ([30.0, 40.0], 1e-5)],
)
def test_dp_accounting_agrees(multipliers, interval):
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    from skdpmf.privacy.pure import to_dp_event

    accountant = PLDAccountant(value_discretization_interval=interval)
    releases = [Release("S", "a sum", (3,), 1.0, z) for z in multipliers]
    accountant.compose(to_dp_event(*releases))
    for delta in (1e-5, 1e-9):
        ours = ac.gaussian_epsilon(ac.compose_gaussian(multipliers), delta)
        assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-4)


def test_bisect_returns_the_last_double_that_is_met():
    assert bisect(lambda x: x <= 0.3, 0.0, 1.0) == 0.3
    assert bisect(lambda x: x >= 0.3, 1.0, 0.0) == 0.3
