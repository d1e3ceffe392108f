"""Draws from clipped-loss posteriors: their bounds attacked, their calibration rounded safely."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.posterior_draw.guarantee import (
    inverse_temperature,
    item_loss_bound,
    loss_bound,
    personal_scales,
    posterior_epsilon,
    rounding_share,
    user_weights,
)
from skdpmf.privacy.accounting import gaussian_epsilon, gaussian_mu
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import Release, ReleasePlan
from tests.privacy.grids import noise_parameters

STARS = (200, 2.0, 1.0)  # tau, h, kappa of 1..5 stars
NEIGHBORS = ("add-remove", "replace")
FACTOR = {"add-remove": 1, "replace": 2}
finite = {"allow_nan": False, "allow_infinity": False}


def loss(e, p, w, h, kappa):
    """Return f of one user for predictions p (..., m)."""
    return w * np.sum((e - np.clip(p, -h - kappa, h + kappa)) ** 2, axis=-1)


def test_the_numbers_of_stars():
    assert loss_bound(*STARS) == 5000.0
    assert loss_bound(200, 2.0, 0.0) == 3200.0
    assert item_loss_bound(*STARS) == 5000.0 * (4 + 9) / 25
    assert item_loss_bound(200, 2.0, 0.0) == 1600.0
    assert user_weights([200, 20, 1, 0], *STARS).tolist() == [1.0, 10.0, 200.0, 0.0]
    assert user_weights([200, 20, 1, 0], *STARS, max_weight=1.0).tolist() == [1.0, 1.0, 1.0, 0.0]
    assert user_weights([20], *STARS, max_weight=3.0).tolist() == [3.0]


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("level", [1.0, 0.3])
def test_no_record_exceeds_the_loss_bound_and_some_reach_it(kappa, level):
    rng = np.random.default_rng(0)
    tau, h = 20, 2.0
    B, worst = loss_bound(tau, h, kappa), 0.0
    for _ in range(400):
        m = int(rng.integers(1, tau + 1))
        w = user_weights([m], tau, h, kappa, levels=[level], epsilon=1.0)[0]
        e = rng.choice([rng.uniform(-h, h, m), np.full(m, h), rng.choice([-h, h], m)])
        V, U = rng.standard_normal((m, 2)), rng.standard_normal((50, 2)) * 10
        V = V * rng.choice([0.1, 1.0, 1e3]) if rng.random() < 0.5 else np.outer(e, [1.0, 1.0])
        worst = max(worst, float(loss(e, U @ V.T, w, h, kappa).max()))
    assert 0.999 * level * B <= worst <= level * B * (1 + 1e-13)


def symmetric_users(n, scale, rng):
    """Return support points of a symmetric prior, which is what the bound asks for."""
    U = rng.standard_normal((n, 2)) * scale
    return np.vstack([U, -U])


def effective_loss(a, f):
    """Return -(1/a) ln E exp(-a f) over the last axis."""
    return (math.log(f.shape[-1]) - logsumexp(-a * f, axis=-1)) / a


@pytest.mark.parametrize("kappa", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("biased", [False, True])
def test_item_factors_alone_reveal_less_unless_there_is_an_item_bias(kappa, biased):
    rng = np.random.default_rng(1)
    tau, h = 6, 1.0
    B, BV = loss_bound(tau, h, kappa), item_loss_bound(tau, h, kappa)
    worst, least = 0.0, math.inf
    for _ in range(300):
        m = int(rng.integers(1, tau + 1))
        w = user_weights([m], tau, h, kappa)[0]
        U = symmetric_users(200, rng.choice([0.1, 1.0, 5.0]), rng)
        V = rng.standard_normal((m, 2)) * rng.choice([0.1, 1.0, 100.0])
        if rng.random() < 0.3:
            V = np.tile(V[:1], (m, 1))
        e = rng.choice([rng.uniform(-h, h, m), rng.choice([-h, h], m), np.full(m, h)])
        c = -e * rng.choice([0.0, 1.0, 1e3]) if biased else 0.0
        f = effective_loss(rng.choice([1e-4, 0.1, 1.0]) / B, loss(e, U @ V.T + c, w, h, kappa))
        worst, least = max(worst, float(f)), min(least, float(f))
    assert least >= -1e-9
    if biased:
        assert BV < 0.999 * B < worst <= B * (1 + 1e-9)
    else:
        assert 0.95 * BV < worst <= BV * (1 + 1e-9)


H, KAPPA, TAU = 1.0, 0.5, 2
GRID = np.linspace(-4.0, 4.0, 13)
U1, U2, V1, V2 = np.meshgrid(GRID, GRID, GRID, GRID, indexing="ij")
CENTRES = {"symmetric": (0.0, 2.0), "concentrated": (4.0, 0.15), "narrow": (0.0, 0.7)}
RECORDS = [
    (items, values)
    for items in [(), (0,), (1,), (0, 1)]
    for values in itertools.product([-H, 0.0, H], repeat=len(items))
]


def grid_posterior(record, a, prior, level, epsilon, clip=True):
    """Return ln density of (u_1, u_2, v_1, v_2); user 1 has the record, user 2 a fixed one."""
    mean, sd = CENTRES[prior]
    density = -sum((x - mean) ** 2 for x in (U1, U2, V1, V2)) / (2 * sd**2)
    for (items, values), u, own in ((record, U1, level), (((0,), (H,)), U2, epsilon)):
        w = user_weights([len(items)], TAU, H, KAPPA, levels=[own], epsilon=epsilon)[0]
        for item, e in zip(items, values, strict=True):
            p = u * (V1, V2)[item]
            p = np.clip(p, -H - KAPPA, H + KAPPA) if clip else p
            density = density - a * w * (e - p) ** 2
    return density - logsumexp(density)


def largest_log_ratio(neighbors, posteriors):
    empty, *others = posteriors
    pairs = ((empty, q) for q in others)
    if neighbors == "replace":
        pairs = itertools.combinations(posteriors, 2)
    return max(float(np.abs(p - q).max()) for p, q in pairs)


@pytest.mark.parametrize("neighbors", NEIGHBORS)
@pytest.mark.parametrize(("epsilon", "level"), [(4.0, 4.0), (0.5, 0.5), (4.0, 1.0), (4.0, 0.0)])
def test_a_draw_is_as_private_as_it_says_and_no_more(neighbors, epsilon, level):
    a = inverse_temperature(epsilon, loss_bound(TAU, H, KAPPA), neighbors=neighbors)
    worst = max(
        largest_log_ratio(
            neighbors, [grid_posterior(record, a, prior, level, epsilon) for record in RECORDS]
        )
        for prior in CENTRES
    )
    assert worst <= level * (1 + 1e-9)
    assert worst >= 0.9 * level


@pytest.mark.parametrize("neighbors", NEIGHBORS)
@pytest.mark.parametrize("prior", ["symmetric", "narrow"])
def test_item_factors_alone_on_a_grid(neighbors, prior):
    epsilon = 4.0
    a = inverse_temperature(epsilon, item_loss_bound(TAU, H, KAPPA), neighbors=neighbors)
    joint = [grid_posterior(record, a, prior, epsilon, epsilon) for record in RECORDS]
    alone = [logsumexp(p, axis=(0, 1)) for p in joint]
    assert largest_log_ratio(neighbors, alone) <= epsilon
    # the prior matters: "concentrated" is not symmetric, and U itself must not leave
    assert largest_log_ratio(neighbors, joint) > epsilon or neighbors == "replace"


def test_without_symmetry_the_item_bound_fails():
    a = inverse_temperature(4.0, item_loss_bound(TAU, H, KAPPA))
    joint = [grid_posterior(record, a, "concentrated", 4.0, 4.0) for record in RECORDS]
    alone = [logsumexp(p, axis=(0, 1)) for p in joint]
    assert largest_log_ratio("add-remove", alone) > 4.0 * 1.2


def test_without_the_clip_nothing_holds():
    a = inverse_temperature(4.0, loss_bound(TAU, H, KAPPA))
    posteriors = [
        grid_posterior(record, a, "symmetric", 4.0, 4.0, clip=False) for record in RECORDS
    ]
    assert largest_log_ratio("add-remove", posteriors) > 100.0


positive = st.floats(1e-3, 1e3, **finite)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.floats(0.0, 50.0, **finite)), min_size=1),
    st.integers(1, 300),
    positive,
    st.floats(0.0, 10.0, **finite),
    positive,
    st.sampled_from(NEIGHBORS),
    st.sampled_from([math.inf, 1.0]),
)
def test_every_rounding_is_to_the_private_side(users, tau, h, kappa, epsilon, neighbors, cap):
    m, levels = (np.array(column) for column in zip(*users, strict=True))
    B = loss_bound(tau, h, kappa)
    weights = {"levels": levels, "epsilon": epsilon, "max_weight": cap}
    w = user_weights(m, tau, h, kappa, **weights)
    L2 = (2.0 * h + kappa) ** 2
    bounds = B * (np.minimum(levels, epsilon) / epsilon)
    assert (m * w * L2 <= bounds).all()
    assert (w <= cap).all()
    bounds = np.where(levels < 1e-100 * epsilon, 0.0, bounds)
    full = np.where(m > 0, np.minimum(bounds / (np.maximum(m, 1) * L2), cap), 0.0)
    np.testing.assert_allclose(w, full, rtol=1e-15)
    a = inverse_temperature(epsilon, B, neighbors=neighbors)
    exact_L = 2 * Fraction(h) + Fraction(kappa)
    for count, weight, level in zip(m.tolist(), w.tolist(), levels.tolist(), strict=True):
        spent = FACTOR[neighbors] * Fraction(a) * count * Fraction(weight) * exact_L**2
        assert spent <= Fraction(min(level, epsilon))
    spent = posterior_epsilon(a, B, neighbors=neighbors)
    assert FACTOR[neighbors] * Fraction(a) * tau * exact_L**2 <= Fraction(spent)
    assert epsilon * (1 - 1e-13) <= spent <= epsilon


BUDGET = PrivacyBudget(2.0, 1e-6)
RELEASES = (
    Release("means", "item means", (40, 2), 1.5),
    Release("Gram", "Gram matrices", (40, 6), 0.7, count=3, layout="packed"),
)


def epsilon_of(factor, plan, shares):
    """Return a user's epsilon, from the releases themselves: nothing here knows the formula."""
    squares = 0.0
    for release, s in zip(plan.releases, shares, strict=True):
        moved = factor * release.sensitivity  # and the rounding, as if nothing were scaled
        rounding = release.sensitivity * s / (1.0 - s) if factor > 0.0 else 0.0
        noise = release.noise_multiplier * release.sensitivity / (1.0 - s)
        squares += release.count * ((moved + rounding) / noise) ** 2
    return gaussian_epsilon(math.sqrt(squares), plan.delta, **plan.slack)


@pytest.mark.parametrize("rounding", [0.0, 1e-4, 0.3])
def test_every_user_gets_the_chosen_level(rounding):
    plan = ReleasePlan.from_shares(BUDGET, RELEASES, {"means": 0.3, "Gram": 0.7})
    levels = np.concatenate(
        [[0.0, 5e-324, 1e-9, 1e-4, 2.0, 3.0, math.inf], np.geomspace(0.002, 2.1, 70)]
    )
    f = personal_scales(levels, 2.0, 1e-6, rounding=rounding, **plan.slack)
    assert ((f >= 0.0) & (f <= 1.0)).all()
    assert (f[levels >= 2.0] == 1.0).all()
    assert f[:2].tolist() == [0.0, 0.0]
    assert (np.diff(f[np.argsort(levels)]) >= 0.0).all()
    for level, factor in zip(levels, f, strict=True):
        if factor == 0.0:
            continue
        # one release may round less than the others
        epsilon = epsilon_of(factor, plan, (rounding, rounding / 3))
        assert epsilon <= min(level, 2.0) * (1 + 1e-9)
        if rounding == 0.0:
            assert epsilon >= 0.98 * min(level, 2.0) - 1e-4


def test_the_samplers_slack_counts_for_each_level():
    """2 n eta = 0.02 in epsilon: nothing is left of a level of 0.02, half of one of 0.04."""
    slack = {"n_values": 1000, "eta": 1e-5, "tau": 0.0}
    f = personal_scales([0.0199, 0.02, 0.04, 0.1], 2.0, 1e-6, rounding=0.0, **slack)
    assert f[:2].tolist() == [0.0, 0.0]
    whole = gaussian_mu(2.0 - 0.02, 1e-6 / math.exp(0.01))
    for factor, level in zip(f[2:], (0.04, 0.1), strict=True):
        ideal = gaussian_mu(level - 0.02, 1e-6 / math.exp(0.01)) / whole
        assert 0.99 * ideal < factor <= ideal * (1 + 1e-9)


def test_levels_of_others_do_not_matter():
    rng = np.random.default_rng(3)
    levels = rng.uniform(0.0, 2.2, 300)
    together = personal_scales(levels, 2.0, 1e-6, rounding=1e-6)
    alone = [personal_scales([level], 2.0, 1e-6, rounding=1e-6)[0] for level in levels[:40]]
    np.testing.assert_array_equal(together[:40], alone)
    assert personal_scales([], 2.0, 1e-6, rounding=0.0).shape == (0,)


@pytest.mark.parametrize("layout", ["full", "packed"])
def test_the_rounding_share_is_what_the_noise_pays(layout):
    release = Release("a", "b", (5000, 6), 0.7, noise_multiplier=9.0, layout=layout)
    bound = 1e9
    share = rounding_share(release, bound)
    assert 1e-4 < share < 0.5
    common = {"sensitivity": 0.7, "noise_multiplier": 9.0, "bound": bound, "layout": layout}
    scale = noise_parameters(release.shape, **common)[0]
    assert scale == pytest.approx(9.0 * 0.7 / (1.0 - share), rel=1e-11)
    assert rounding_share(Release("a", "b", (5,), 0.7), bound) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loss_bound(0, 2.0, 1.0), "max_ratings=0 must"),
        (lambda: loss_bound(2, 1e-200, 0.0), r"half_range \+ margin=2e-200"),
        (lambda: user_weights([1], *STARS, levels=[1.0]), "epsilon=None"),
        (lambda: user_weights([1], *STARS, levels=[math.nan], epsilon=1.0), r"levels\[0\]=nan"),
        (lambda: inverse_temperature(math.inf, 5.0), "choose the inverse temperature yourself"),
        (lambda: inverse_temperature(1.0, 5.0, calibration="loose"), "calibration='loose'"),
        (lambda: personal_scales([1.0], 1.0, 0.1, rounding=1.0), r"rounding=1\.0"),
    ],
)
def test_errors(call, message):
    with pytest.raises(PrivacyParameterError, match=message):
        call()
