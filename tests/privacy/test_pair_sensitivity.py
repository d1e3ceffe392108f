"""Every sensitivity of the covariance is attacked by users made for it, and never exceeded."""

import math

import numpy as np
import pytest

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import pair_sensitivity as cov
from skdpmf.privacy.sampler.grid import truncate_to_grid

from .covariance_attack import (
    GROUPS,
    HI,
    KINDS,
    KINDS_IDS,
    LO,
    NOISE,
    SETTINGS,
    attack,
    changes,
    check_realised,
    contribution,
    decode,
    evolve,
    grouped_size,
    realise,
    rows,
    size_of,
    weight,
)


def sensitivity(norm, *, unit="rating", neighbors="add-remove", weight_scale=0.0, grid=0.0, **row):
    """`pair_sensitivity`; where a test has no grid, without the float errors it pays for."""
    terms = {"weight_scale": weight_scale, "noise": NOISE[norm], "grid": grid, **row}
    with pytest.MonkeyPatch.context() as patch:
        if not grid:
            patch.setattr(cov, "_FLOAT_ERROR", 0.0)
        return cov.pair_sensitivity((unit, neighbors), **terms)


# One rating: covariance

# what the search reaches of the bound at least, at every c up to 50: at the settings above, and
# where one rating may move others by more than the clamp
CLOSE = {"l1": (0.58, 0.58), "l2": (0.81, 0.6)}
JUMPING = (6.0, 0.0, 1.0)


def check_profile(norm, entries, setting, counts, **search):
    """Return what users with so many other ratings reach of the bound, which none exceeds."""
    bounds = cov.rating_profile(counts, NOISE[norm], **rows(setting))
    reached = []
    for c, bound in zip(counts, bounds, strict=True):
        value, free = attack(c, setting, norm, entries, **search)
        assert value <= bound, c
        check_realised(free, value, c, setting, norm, entries)
        reached.append(value / bound)
    return reached


@pytest.mark.parametrize("setting", [*SETTINGS, JUMPING], ids=str)
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_no_user_exceeds_the_profile(norm, entries, setting):
    reached = check_profile(norm, entries, setting, [1, 2, 4, 8, 16, 35, 50])
    assert min(reached) >= CLOSE[norm][setting == JUMPING]


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [*SETTINGS, JUMPING, (5.0, 2.0, 0.3), (7.3, 40.0, 0.7)], ids=str
)
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_no_user_exceeds_the_profile_at_length(norm, entries, setting):
    counts = [*range(1, 50, 7), 100, 400]
    check_profile(norm, entries, setting, counts, rounds=300, restarts=2)


@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_no_random_row_exceeds_the_profile(norm, entries):
    """Stars on catalogues with random means: users as they are, by the algorithm in full."""
    rng = np.random.default_rng(5)
    for _ in range(150):
        n, c = 52, int(rng.integers(0, 51))
        means = rng.uniform(LO, HI, n)
        low, high = cov.centred_interval((LO, HI), means)
        beta, B = rng.choice([0.0, 5.0, 20.0]), rng.choice([0.5, 1.0, 2.0])
        after = np.full(n, np.nan)
        after[: c + 1] = rng.choice([1.0, 5.0, 3.0, 4.0], size=c + 1)
        before = after.copy()
        before[c] = np.nan
        rest = (means, rng.uniform(low, high), beta, B, norm)
        moved = [
            b - a
            for a, b in zip(contribution(before, *rest), contribution(after, *rest), strict=True)
        ]
        setting = (high - low, beta, B)
        bound = cov.rating_profile(c, NOISE[norm], **rows(setting))
        assert size_of(moved[0], norm, entries) <= bound
        exact = cov.rating_profile(c, NOISE[norm])
        assert size_of(moved[1], norm, entries) == pytest.approx(exact, rel=1e-11)


def test_first_rating_attains_the_bound():
    """c = 0: the clamp's square, if the damping leaves the rating that far from its mean."""
    for norm, entries in KINDS:
        rest = (np.full(2, 3.0), -2.0, 20.0, 1.0, norm)
        moved = contribution(np.array([5.0, np.nan]), *rest)[0]
        bound = cov.rating_profile(0, NOISE[norm], **rows(SETTINGS[0]))
        assert size_of(moved, norm, entries) == pytest.approx(bound, rel=1e-11)


@pytest.mark.parametrize(
    ("setting", "norm", "expected"),
    [
        (SETTINGS[0], "l1", 5.0853),
        (SETTINGS[0], "l2", 1.6725),
        (SETTINGS[1], "l1", 8.6048),
        (SETTINGS[3], "l2", 6.5047),
    ],
)
def test_known_values(setting, norm, expected):
    profile = cov.rating_profile(np.arange(200.0), NOISE[norm], **rows(setting))
    value = sensitivity(norm, n_items=200, **rows(setting))
    assert value == profile.max() == pytest.approx(expected, abs=6e-5)


# One rating: weights


def test_weights_come_close_to_their_limits():
    for noise, limit in {"laplace": 1.5, "gaussian": math.sqrt(2)}.items():
        profile = cov.rating_profile(np.arange(26_744), noise)
        assert profile[0] == pytest.approx(1.0, rel=1e-11)
        assert limit * (1 - 1e-4) < profile.max() <= limit * (1 + 1e-11)


# Counter-examples to the published bounds, which take the range of the ratings for alpha


def test_published_covariance_bounds_are_exceeded():
    setting = SETTINGS[1]
    value, free = attack(400, setting, "l1", "full")
    check_realised(free, value, 400, setting, "l1", "full")
    assert value > 13 > 2 * 4 + 3
    value, free = attack(35, setting, "l2", "full")
    check_realised(free, value, 35, setting, "l2", "full")
    with_wrong_range = sensitivity(
        "l2", clamp=1.0, centred_range=HI - LO, damping=20.0, n_items=3706
    )
    assert value > with_wrong_range + 0.2


def test_half_of_the_bound_of_the_full_matrix_is_too_little_for_a_triangle():
    """One other rating: (c^2 P + B^2 (3 c + 1)) / 2 n, the full bound's half, is exceeded."""
    setting = SETTINGS[0]
    value, free = attack(1, setting, "l1", "upper")
    check_realised(free, value, 1, setting, "l1", "upper")
    alpha, beta, B = setting
    shift = alpha / (2.0 + beta)
    full = (shift * (2.0 * B - shift) + 4.0 * B**2) / 2.0
    upper = cov.rating_profile(1, "laplace", **rows(setting))
    assert full / 2 + 0.2 < value <= upper


@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_a_trimmed_row_needs_twice_the_bound(norm, entries):
    """A user at the cap: the added rating pushes another one out."""
    cap = 50
    means = np.full(cap + 1, 3.0)
    first = np.append(np.where(np.arange(cap) % 2, 1.0, 5.0), np.nan)
    second = np.append(np.nan, np.append(first[1:cap], 1.0))
    for ratings in (first, second):
        assert np.isfinite(ratings).sum() == cap
    rest = (means, 0.0, 20.0, 1.0, norm)
    pair = [contribution(row, *rest) for row in (first, second)]
    moved = [b - a for a, b in zip(*pair, strict=True)]
    alone = cov.rating_profile(np.arange(cap + 1), NOISE[norm]).max()
    assert alone * 1.3 < size_of(moved[1], norm, entries) <= 2 * alone
    if norm == "l2":
        terms = {"clamp": 1.0, "centred_range": 4.0, "damping": 20.0, "n_items": cap + 1}
        alone = sensitivity(norm, **terms)
        assert alone * 1.1 < size_of(moved[0], norm, entries) <= 2 * alone
        assert sensitivity(norm, neighbors="replace", **terms) == 2 * alone


# Cov and Wgt in one vector


@pytest.mark.parametrize("t", [0.2, 1.0, 50.0])
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_joint_release(norm, entries, t):
    """Never above the joint bound, which Cov alone does not give; near it where Wgt rules."""
    setting = SETTINGS[0]
    alpha, beta, B = setting
    best = 0.0
    for c in (1, 8, 35):
        _, free = attack(c, setting, norm, entries)
        before, after, *rest = realise(decode(free[None], c, alpha), 0, alpha)
        pairs = [contribution(row, *rest, beta, B, norm) for row in (before, after)]
        size = [size_of(b - a, norm, entries) for a, b in zip(*pairs, strict=True)]
        joint = size[0] + t * size[1] if norm == "l1" else math.hypot(size[0], t * size[1])
        bound = sensitivity(norm, n_items=c + 1, weight_scale=t, **rows(setting))
        assert joint <= bound
        best = max(best, joint / bound)
        alone = sensitivity(norm, n_items=c + 1, **rows(setting))
        assert bound > alone
        if t > 0.5:
            assert joint > alone
    assert best > (0.99 if t == 50.0 else 0.85)


# One rating, replaced


def two_changes(free, c, setting, norm, entries):
    """A user loses the last rating, another one with the same items gets it; or one and the same.

    The first numbers are the sizes of groups and g, which both have in common.
    """
    alpha, beta, B = setting
    half = (free.shape[1] - GROUPS) // 2
    parts = [np.hstack([free[:, :GROUPS], own]) for own in np.split(free[:, GROUPS:], [half], 1)]
    both = [changes(decode(part, c, alpha), c, beta, B, norm) for part in parts]
    moved = [b - a for a, b in zip(*both, strict=True)]
    return grouped_size(decode(parts[0], c, alpha).m, *moved, norm, entries), parts


@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[2]], ids=str)
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_replaced_rating(norm, entries, setting):
    """At most two steps, and more than one: also in l2, where the two users oppose each other."""
    alpha, beta, B = setting
    means = np.full(36, (LO + HI) / 2)
    best = 0.0
    for c in (4, 16, 35):
        value, free = evolve(
            lambda free, c=c: two_changes(free, c, setting, norm, entries)[0],
            GROUPS + 2 * (1 + GROUPS),
            seed=1,
            rounds=200,
        )
        bound = sensitivity(norm, n_items=c + 1, neighbors="replace", **rows(setting))
        assert value <= bound
        best = max(best, value / bound)
        moved, parts = 0.0, two_changes(free[None], c, setting, norm, entries)[1]
        for sign, part in zip((-1, 1), parts, strict=True):
            user = decode(part, c, alpha)
            after = LO + np.append(np.repeat(user.y[0], user.m[0].astype(int)), user.new)
            before = np.append(after[:-1], np.nan)
            rest = (means[: c + 1], user.g[0] + LO - means[0], beta, B, norm)
            moved = moved + sign * (contribution(after, *rest)[0] - contribution(before, *rest)[0])
        assert size_of(moved, norm, entries) == pytest.approx(value, rel=1e-9)
    assert best > (0.6 if norm == "l1" else 0.7)


# One user


def random_row(rng, n_items):
    """A row of extremes, of stars, or of anything."""
    c = int(rng.integers(1, n_items + 1))
    values = [[1.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0], list(rng.uniform(LO, HI, 9))]
    row = np.full(n_items, np.nan)
    chosen = rng.choice(n_items, size=c, replace=False)
    row[chosen] = rng.choice(values[rng.integers(3)], size=c)
    return row


@pytest.mark.parametrize("t", [0.0, 0.7])
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_one_user(norm, entries, t):
    n_items, B = 12, 1.2
    rng = np.random.default_rng(3)
    means = np.full(n_items, 3.0)
    # disjoint rows of two extremes, which attain the bounds
    first, second = np.full((2, n_items), np.nan)
    first[:4], second[4:6] = [1.0, 5.0, 1.0, 5.0], [5.0, 1.0]
    pairs = [(first, second)]
    pairs += [(random_row(rng, n_items), random_row(rng, n_items)) for _ in range(300)]

    def joint(row):
        parts = contribution(row, means, 0.0, 5.0, B, norm, "user", entries)
        return np.stack([parts[0], t * parts[1]])

    def size(stack):
        found = [size_of(part, norm, entries) for part in stack]
        return sum(found) if norm == "l1" else math.hypot(*found)

    terms = {"clamp": B, "centred_range": 8.0, "damping": 5.0, "n_items": n_items}
    terms |= {"weight_scale": t, "unit": "user"}
    alone = sensitivity(norm, **terms)
    replaced = sensitivity(norm, neighbors="replace", **terms)
    sizes = [size(joint(a)) for a, _ in pairs]
    distances_ = [size(joint(a) - joint(b)) for a, b in pairs]
    assert sizes[0] == pytest.approx(alone, rel=1e-12)
    assert distances_[0] == pytest.approx(replaced, rel=1e-12)
    assert max(sizes) <= alone * (1 + 1e-12)
    assert max(distances_) <= replaced * (1 + 1e-12)


@pytest.mark.parametrize("unit", ["user", "rating"])
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_weights_of_rows(norm, entries, unit):
    c = np.arange(3000)
    w = cov.covariance_weights(c, NOISE[norm], unit)
    exact = np.array([weight(k, norm, unit, entries) for k in c])
    assert np.all(w <= exact)
    np.testing.assert_allclose(w, exact, rtol=2e-15)
    if unit == "user":
        n_values = c * c if entries == "full" else c * (c + 1) / 2
        assert np.all((w * n_values if norm == "l1" else w**2 * n_values) <= 1.0)


# Range, rounding, parameters


def test_centred_interval_holds_everything():
    rng = np.random.default_rng(8)
    for _ in range(200):
        means = rng.uniform(LO, HI, 30)
        low, high = cov.centred_interval((LO, HI), means)
        y = rng.choice([LO, HI], 30) - means
        assert low <= y.min() <= y.max() <= high
        assert high - low == pytest.approx(HI - LO + np.ptp(means), rel=1e-12)
        assert LO - HI <= low <= high <= HI - LO


@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_truncated_contributions_need_the_rounding(norm, entries):
    """Truncation lowers the weight at 9 ratings, not the one at 8: Wgt moves by more than W."""
    c, grid, t = 8, 2.0**-4, 1.0
    if norm == "l2":
        c, grid = 16, 2.0**-3
    setting = SETTINGS[0]
    _, free = attack(c, setting, norm, entries, rounds=30)
    before, after, *rest = realise(decode(free[None], c, 4.0), 0, 4.0)
    pairs = [contribution(row, *rest, 20.0, 1.0, norm) for row in (before, after)]
    exact = [b - a for a, b in zip(*pairs, strict=True)]
    moved = [
        truncate_to_grid(b, grid) - truncate_to_grid(a, grid) for a, b in zip(*pairs, strict=True)
    ]
    sizes = [size_of(part, norm, entries) for part in moved]
    assert sizes[1] > size_of(exact[1], norm, entries) * 1.1
    n = c + 1
    assert sizes[1] > cov.rating_profile(np.arange(n), NOISE[norm]).max()
    joint = sum(sizes) if norm == "l1" else math.hypot(*sizes)
    assert joint <= sensitivity(norm, n_items=n, weight_scale=t, grid=grid, **rows(setting))


def test_rounding_is_paid_for_every_entry():
    """But not where a user comes or goes."""
    terms = {"n_items": 10, "weight_scale": 0.5, **rows(SETTINGS[0])}
    for norm, share in (("l1", 0.25 * 2 * 55), ("l2", 0.25 * math.sqrt(2 * 100))):
        for neighbors, factor in (("add-remove", 1.0), ("replace", 2.0)):
            plain, rounded = (
                sensitivity(norm, neighbors=neighbors, grid=h, **terms) for h in (0.0, 0.25)
            )
            assert rounded - plain == pytest.approx(factor * share)
        for neighbors in ("add-remove", "replace"):
            plain, rounded = (
                sensitivity(norm, unit="user", neighbors=neighbors, grid=h, **terms)
                for h in (0.0, 0.25)
            )
            assert (rounded > plain) is (neighbors == "replace")


def good(**change):
    terms = {"clamp": 1.0, "centred_range": 4.0, "damping": 20.0, "n_items": 9}
    return sensitivity("l2", **(terms | change))


@pytest.mark.parametrize(
    ("call", "change", "message"),
    [
        (good, {"clamp": 0.0}, "clamp=0.0 must be a finite number > 0: pass the bound"),
        (good, {"clamp": math.inf}, "clamp=inf must be a finite number > 0"),
        (good, {"clamp": 1e60}, "clamp=1e.60, .* must not be so extreme .* rescale"),
        (good, {"centred_range": -1.0}, "centred_range=-1.0 must be .* centred_interval"),
        (good, {"centred_range": math.nan}, "centred_range=nan must be"),
        (good, {"damping": -1.0}, "damping=-1.0 must be a finite number >= 0"),
        (good, {"damping": None}, "damping=None must be a finite number >= 0"),
    ],
)
def test_bad_parameters(call, change, message):
    with pytest.raises(PrivacyParameterError, match=message):
        call(**change)
