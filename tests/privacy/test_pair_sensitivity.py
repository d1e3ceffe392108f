"""Every sensitivity of the covariance is attacked by users made for it, and never exceeded."""

import itertools
import math

import numpy as np
import pytest

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import pair_sensitivity as cov
from skdpmf.privacy.sampler.grid import truncate_to_grid
from skdpmf.privacy.sensitivity import item_statistics_sensitivity

from .covariance_attack import (
    GROUPS,
    HI,
    KINDS,
    KINDS_IDS,
    LO,
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

# One rating: covariance

# what the search reaches of the bound at least, at every c up to 50: at the settings above, and
# where one rating may move others by more than the clamp
CLOSE = {"l1": (0.58, 0.58), "l2": (0.81, 0.6)}
JUMPING = (6.0, 0.0, 1.0)


@pytest.mark.parametrize("setting", [*SETTINGS, JUMPING], ids=str)
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_no_user_exceeds_the_profile(norm, entries, setting):
    counts = [1, 2, 4, 8, 16, 35, 50]
    bounds = cov.covariance_profile(counts, **rows(setting), norm=norm, entries=entries)
    for c, bound in zip(counts, bounds, strict=True):
        value, free = attack(c, setting, norm, entries)
        assert CLOSE[norm][setting == JUMPING] * bound <= value <= bound, c
        check_realised(free, value, c, setting, norm, entries)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [*SETTINGS, JUMPING, (5.0, 2.0, 0.3), (7.3, 40.0, 0.7)], ids=str
)
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_no_user_exceeds_the_profile_at_length(norm, entries, setting):
    counts = [*range(1, 50, 3), 100, 400]
    bounds = cov.covariance_profile(counts, **rows(setting), norm=norm, entries=entries)
    for c, bound in zip(counts, bounds, strict=True):
        value, free = attack(c, setting, norm, entries, rounds=300, restarts=4)
        assert value <= bound
        check_realised(free, value, c, setting, norm, entries)


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
        bound = cov.covariance_profile(c, **rows(setting), norm=norm, entries=entries)
        assert size_of(moved[0], norm, entries) <= bound
        exact = cov.weight_profile(c, norm=norm, entries=entries)
        assert size_of(moved[1], norm, entries) == pytest.approx(exact, rel=1e-11)


def test_first_rating_attains_the_bound():
    """c = 0: the clamp's square, if the damping leaves the rating that far from its mean."""
    for norm, entries in KINDS:
        rest = (np.full(2, 3.0), -2.0, 20.0, 1.0, norm)
        moved = contribution(np.array([5.0, np.nan]), *rest)[0]
        bound = cov.covariance_profile(0, **rows(SETTINGS[0]), norm=norm, entries=entries)
        assert size_of(moved, norm, entries) == pytest.approx(bound, rel=1e-11)


# setting; then l1 full at 50 and 200 items, l1 upper at 200, l2 full and upper
TABLE = [
    (SETTINGS[0], (8.2912, 10.1247, 5.0853, 1.6725, 1.2015)),
    (SETTINGS[1], (13.3088, 17.1285, 8.6048, 2.1674, 1.5574)),
    (SETTINGS[2], (9.8106, 10.6788, 5.3637, 2.0727, 1.5387)),
    (SETTINGS[3], (25.5555, 27.3387, 13.7280, 6.5047, 4.8283)),
]
COLUMNS = [(50, "l1", "full"), (200, "l1", "full"), (200, "l1", "upper")]
COLUMNS += [(200, "l2", "full"), (200, "l2", "upper")]


@pytest.mark.parametrize(("setting", "values"), TABLE, ids=str)
def test_table(setting, values):
    for (n_items, norm, entries), expected in zip(COLUMNS, values, strict=True):
        kwargs = {"norm": norm, "entries": entries}
        profile = cov.covariance_profile(np.arange(float(n_items)), **rows(setting), **kwargs)
        alpha, beta, B = setting
        value = cov.covariance_sensitivity(
            B, centred_range=alpha, damping=beta, n_items=n_items, unit="rating", **kwargs
        )
        assert value == profile.max() == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_limits_for_any_number_of_ratings(setting):
    alpha, _, B = setting
    c = np.unique(np.geomspace(1, 1e7, 400).astype(int)) - 1
    limits = {
        ("l1", "full"): 2 * B * alpha + 3 * B**2,
        ("l1", "upper"): B * alpha + 1.5 * B**2,
    }
    for (norm, entries), limit in limits.items():
        profile = cov.covariance_profile(c, **rows(setting), norm=norm, entries=entries)
        assert np.all(profile < limit)
        assert profile[-1] > 0.999 * limit
    full, upper = (
        cov.covariance_profile(c, **rows(setting), norm="l1", entries=entries)
        for entries in ("full", "upper")
    )
    assert np.all(upper > full / 2)
    if setting[1] >= alpha**2 / (4 * B**2):  # the published bound, at the right range
        l2 = cov.covariance_profile(c, **rows(setting))
        assert l2.max() < (1 + 2 * math.sqrt(2)) * B**2 / 1.5


# One rating: weights


def test_weights_known_values():
    full = cov.weight_profile([0, 1, 2, 10, 200], norm="l1")
    np.testing.assert_allclose(full, [1, 2, 7 / 3, 31 / 11, 601 / 201], rtol=1e-11)
    l2 = cov.weight_profile([0, 1, 2, 10, 200])
    np.testing.assert_allclose(l2, [1, 1.25928, 1.31682, 1.38951, 1.41289], atol=6e-6)
    n = 26_744
    values = {
        kind: cov.weight_sensitivity(n, norm=kind[0], entries=kind[1], unit="rating")
        for kind in KINDS
    }
    limits = {("l1", "full"): 3, ("l1", "upper"): 1.5, ("l2", "full"): math.sqrt(2)}
    for kind, limit in limits.items():
        assert limit * (1 - 1e-4) < values[kind] <= limit * (1 + 1e-11)
    assert values["l2", "upper"] == pytest.approx(1.04201, abs=5e-6)
    assert cov.weight_sensitivity(n, neighbors="replace", unit="rating") == 2 * values["l2", "full"]


# Counter-examples to the published bounds, which take the range of the ratings for alpha


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_trimmed_row_needs_twice_the_bound(norm):
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
    kwargs = {"n_items": cap + 1, "unit": "rating", "norm": norm}
    alone = cov.weight_sensitivity(**kwargs)
    assert alone * 1.3 < size_of(moved[1], norm, "full") <= 2 * alone
    if norm == "l2":
        alone = cov.covariance_sensitivity(1.0, centred_range=4.0, damping=20.0, **kwargs)
        assert alone * 1.1 < size_of(moved[0], norm, "full") <= 2 * alone
    assert cov.weight_sensitivity(neighbors="replace", **kwargs) == pytest.approx(
        2 * cov.weight_sensitivity(**kwargs)
    )


# Cov and Wgt in one vector


@pytest.mark.parametrize("t", [0.2, 1.0, 50.0])
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_joint_release(norm, entries, t):
    """Never above the joint bound, which Cov alone does not give; near it where Wgt rules."""
    setting = SETTINGS[0]
    alpha, beta, B = setting
    kwargs = {"centred_range": alpha, "damping": beta, "norm": norm, "entries": entries}
    kwargs["unit"] = "rating"
    best = 0.0
    for c in (1, 8, 35):
        _, free = attack(c, setting, norm, entries)
        before, after, *rest = realise(decode(free[None], c, alpha), 0, alpha)
        pairs = [contribution(row, *rest, beta, B, norm) for row in (before, after)]
        size = [size_of(b - a, norm, entries) for a, b in zip(*pairs, strict=True)]
        joint = size[0] + t * size[1] if norm == "l1" else math.hypot(size[0], t * size[1])
        bound = cov.covariance_sensitivity(B, n_items=c + 1, weight_scale=t, **kwargs)
        assert joint <= bound
        best = max(best, joint / bound)
        alone = cov.covariance_sensitivity(B, n_items=c + 1, **kwargs)
        assert bound > alone
        if t > 0.5:
            assert joint > alone
    assert best > (0.99 if t == 50.0 else 0.85)


@pytest.mark.parametrize("entries", ["full", "upper"])
def test_joint_bound_needs_one_user_for_both(entries):
    """Cov is worst at some twenty ratings, Wgt elsewhere: the joint bound knows it."""
    kwargs = {"unit": "rating", "entries": entries}
    t, n_items = 1.0, 3706
    cov_rows = {"centred_range": 4.0, "damping": 20.0, "n_items": n_items}
    joint = cov.covariance_sensitivity(1.0, **cov_rows, weight_scale=t, **kwargs)
    apart = (
        cov.covariance_sensitivity(1.0, **cov_rows, **kwargs),
        cov.weight_sensitivity(n_items, **kwargs),
    )
    assert max(apart) < joint < math.hypot(*apart) - 1e-3
    c = np.arange(n_items)
    profile = cov.covariance_profile(c, **rows(SETTINGS[0]), entries=entries)
    both = np.hypot(profile, t * cov.weight_profile(c, entries=entries))
    assert joint == pytest.approx(both.max(), rel=1e-12)


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
    kwargs = {"centred_range": alpha, "damping": beta, "norm": norm, "entries": entries}
    means = np.full(36, (LO + HI) / 2)
    best = 0.0
    for c in (4, 16, 35):
        value, free = evolve(
            lambda free, c=c: two_changes(free, c, setting, norm, entries)[0],
            GROUPS + 2 * (1 + GROUPS),
            seed=1,
            rounds=200,
        )
        bound = cov.covariance_sensitivity(
            B, n_items=c + 1, neighbors="replace", unit="rating", **kwargs
        )
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

    kwargs = {"centred_range": 8.0, "damping": 5.0, "n_items": n_items, "weight_scale": t}
    kwargs |= {"norm": norm, "entries": entries}
    alone = cov.covariance_sensitivity(B, **kwargs)
    replaced = cov.covariance_sensitivity(B, neighbors="replace", **kwargs)
    sizes = [size(joint(a)) for a, _ in pairs]
    distances_ = [size(joint(a) - joint(b)) for a, b in pairs]
    assert sizes[0] == pytest.approx(alone, rel=1e-12)
    assert distances_[0] == pytest.approx(replaced, rel=1e-12)
    assert max(sizes) <= alone * (1 + 1e-12)
    assert max(distances_) <= replaced * (1 + 1e-12)
    wgt = cov.weight_sensitivity(n_items, norm=norm, entries=entries, neighbors="replace")
    assert wgt == (2.0 if norm == "l1" else math.sqrt(2.0))


def test_weights_of_the_triangle_are_too_large_for_packed_noise():
    """Their full matrix has Frobenius norm sqrt(2 c / (c + 1)), not 1."""
    for c in (2, 10, 200):
        w = cov.covariance_weights(c, entries="upper")
        assert w * c == pytest.approx(math.sqrt(2 * c / (c + 1)))
        assert w * c > cov.weight_sensitivity(c) + 0.1


@pytest.mark.parametrize("unit", ["user", "rating"])
@pytest.mark.parametrize(("norm", "entries"), KINDS, ids=KINDS_IDS)
def test_weights_of_rows(norm, entries, unit):
    c = np.arange(3000)
    w = cov.covariance_weights(c, norm=norm, entries=entries, unit=unit)
    exact = np.array([weight(k, norm, unit, entries) for k in c])
    assert np.all(w <= exact)
    np.testing.assert_allclose(w, exact, rtol=2e-15)
    if unit == "user":
        n_values = c * c if entries == "full" else c * (c + 1) / 2
        assert np.all((w * n_values if norm == "l1" else w**2 * n_values) <= 1.0)


# Item statistics


@pytest.mark.parametrize("s", [0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("unit", ["user", "rating"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_item_statistics(norm, unit, neighbors, s):
    """Attained by some row or pair of rows, or of cells, and exceeded by none."""
    n_items, rng = 6, np.random.default_rng(2)

    def vector(row):
        e = np.isfinite(row)
        size = 1 if unit == "rating" else e.sum() if norm == "l1" else math.sqrt(e.sum())
        return np.concatenate([s * e, np.where(e, (row - 3.0) / 2.0, 0.0)]) / size

    users = [random_row(rng, n_items) for _ in range(200)]
    for length in (1, 3):
        for place, value in itertools.product((0, 3), (1.0, 5.0)):
            row = np.full(n_items, np.nan)
            row[place : place + length] = value
            users.append(row)
    if unit == "rating":
        users = [row for row in users if np.isfinite(row).sum() == 1]
    power = 1 if norm == "l1" else 2
    vectors = np.array([vector(row) for row in users])
    others = vectors[:, None] if neighbors == "replace" else np.zeros((1, 1, 2 * n_items))
    reached = (np.abs(vectors - others) ** power).sum(axis=-1).max() ** (1 / power)
    bound = item_statistics_sensitivity(s, norm=norm, neighbors=neighbors, unit=unit)
    assert reached == pytest.approx(bound, rel=1e-12)


# Range, rounding, parameters


def test_centred_interval_holds_everything():
    rng = np.random.default_rng(8)
    for _ in range(200):
        means = rng.uniform(LO, HI, 30)
        low, high = cov.centred_interval((LO, HI), means)
        y = rng.choice([LO, HI], 30) - means
        assert low <= y.min() <= y.max() <= high
        assert high - low == pytest.approx(HI - LO + np.ptp(means), rel=1e-12)
        public = cov.centred_interval((LO, HI))
        assert public[0] <= low <= high <= public[1]


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
    kwargs = {"norm": norm, "entries": entries, "unit": "rating"}
    sizes = [size_of(part, norm, entries) for part in moved]
    assert sizes[1] > size_of(exact[1], norm, entries) * 1.1
    n = c + 1
    assert sizes[1] > cov.weight_sensitivity(n, **kwargs)
    assert sizes[1] <= cov.weight_sensitivity(n, rounding=grid, **kwargs)
    joint = sum(sizes) if norm == "l1" else math.hypot(*sizes)
    bound = cov.covariance_sensitivity(
        1.0,
        **(kwargs | {"centred_range": 4.0, "damping": 20.0, "n_items": n}),
        weight_scale=t,
        rounding=grid,
    )
    assert joint <= bound


def test_rounding_is_paid_for_every_entry():
    kwargs = {"centred_range": 4.0, "damping": 20.0, "n_items": 10, "unit": "rating"}
    for norm, entries in KINDS:
        n_values = 100 if entries == "full" else 55
        for t, n_matrices in ((0.0, 1), (0.5, 2)):
            plain, rounded = (
                cov.covariance_sensitivity(
                    1.0, norm=norm, entries=entries, weight_scale=t, rounding=h, **kwargs
                )
                for h in (0.0, 0.25)
            )
            total = n_matrices * n_values
            share = 0.25 * (total if norm == "l1" else math.sqrt(total))
            assert rounded - plain == pytest.approx(share)


GOOD = {"clamp": 1.0, "centred_range": 4.0, "damping": 20.0, "n_items": 9}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clamp": 0.0}, "clamp=0.0 must be a finite number > 0: pass the bound"),
        ({"clamp": math.inf}, "clamp=inf must be a finite number > 0"),
        ({"clamp": 1e60}, "clamp=1e.60, .* must not be so extreme .* rescale"),
        ({"centred_range": -1.0}, "centred_range=-1.0 must be .* centred_interval"),
        ({"damping": -1.0}, "damping=-1.0 must be a finite number >= 0"),
        ({"damping": None}, "damping=None must be a finite number >= 0"),
        ({"n_items": 0}, "n_items=0 must be a finite number > 0"),
        ({"n_items": 2.5}, "n_items=2.5 must be an integer >= 1"),
        ({"weight_scale": -0.1}, "weight_scale=-0.1 must be"),
        ({"rounding": math.nan}, "rounding=nan must be"),
        ({"norm": "L2"}, r"norm='L2' must be one of \('l1', 'l2'\): 'l1' for Laplace"),
        ({"entries": "lower"}, "entries='lower' must be one of"),
        ({"neighbors": "swap"}, "neighbors='swap'"),
        ({"unit": "row"}, "unit='row'"),
    ],
)
def test_bad_parameters(change, message):
    with pytest.raises(PrivacyParameterError, match=message):
        cov.covariance_sensitivity(**(GOOD | change))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cov.centred_interval((5, 1)), r"rating_range=\(5, 1\) must be"),
        (lambda: cov.centred_interval((1, math.inf)), "rating_range=.* two finite numbers"),
        (lambda: cov.centred_interval(3), "rating_range=3 must be"),
        (lambda: cov.centred_interval((1, 5), [2.0, 5.3]), r"5.3 for item 1, .* clamp released"),
        (lambda: cov.centred_interval((1, 5), [math.nan]), "nan for item 0"),
        (lambda: cov.centred_interval((1, 5), []), r"item_means of shape \(0,\)"),
        (lambda: item_statistics_sensitivity(0.0), "count_scale=0.0 must be"),
        (lambda: item_statistics_sensitivity(1.0, norm="l0"), "norm='l0'"),
        (lambda: item_statistics_sensitivity(1.0, unit="cell"), "unit='cell'"),
        (lambda: cov.covariance_weights([1, -1]), "n_ratings hold -1.0, .* integer >= 0"),
        (lambda: cov.covariance_weights([1], unit="row"), "unit='row'"),
        (lambda: cov.weight_profile([0.5]), "n_others hold 0.5"),
        (lambda: cov.covariance_profile([math.inf], **rows(SETTINGS[0])), "n_others hold inf"),
        (lambda: cov.weight_sensitivity(True - 1), "n_items=0"),
        (lambda: cov.weight_sensitivity(9, entries="all"), "entries='all'"),
    ],
)
def test_bad_calls(call, message):
    with pytest.raises(PrivacyParameterError, match=message):
        call()
