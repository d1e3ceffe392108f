"""Bounded sums: their slow twins, their bounds under attack, exactness, and the limit."""

import math
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy import other_sums
from skdpmf.privacy.clipped_sums import lengths_of, shrink_to_ball
from skdpmf.privacy.other_sums import padded, stack
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import Users, per_user, reveal
from tests.matrices import csr

N_ITEMS, K, N_SLOTS = 6, 3, 40
GRID, SINGLE = exact_grid(N_SLOTS, 4.0), exact_grid(N_SLOTS, 2.0, degree=1)
CENTRED = exact_grid(N_SLOTS, 10.0)
EXACT = 1.0 + 2.0**-48  # of a distance that is computed in float64
WILD = [0.0, 1.0, -1.0, 5e-324, 1e-170, 1e154, -1e200, 1e300, -1.7e308, np.inf, -np.inf, np.nan]


class Row(NamedTuple):
    """Items, and values: t, w and e of ratings, u, v, g and f of the user."""

    items: np.ndarray
    t: np.ndarray
    w: np.ndarray
    e: np.ndarray
    u: np.ndarray
    v: float
    g: float
    f: float = 1.0


def row_of(items, t=0.0, w=0.0, e=0.0, u=0.0, v=0.0, g=1.0, f=1.0):
    items = np.asarray(items)
    n = len(items)
    whole = [np.broadcast_to(np.asarray(value, float), n).copy() for value in (t, w, e)]
    return Row(items, *whole, np.array(np.broadcast_to(u, (K,)), float), v, g, f)


NOBODY = row_of([])


def random_row(rng):
    """Values of any size, ties, wild ones, signs that agree or not; sometimes empty."""
    items = np.flatnonzero(rng.random(N_ITEMS) < rng.choice([0.0, 0.3, 0.7, 1.0]))

    def values(*shape):
        found = rng.normal(size=shape) * 10.0 ** rng.choice([-3, 0, 0, 0, 3])
        if rng.random() < 0.3:
            found = np.full(shape, rng.choice([-1.0, 0.5, 2.0]))
        if rng.random() < 0.25:
            found = np.where(rng.random(shape) < 0.4, rng.choice(WILD, shape), found)
        return found

    n = len(items)
    whole = values(n), values(n), values(n), values(K)
    return Row(items, *whole, *map(float, values(2)), rng.choice([1.0, 0.5, 0.0]))


def built(rows, *, neighbors="add-remove", unit="user", private=True, n_jobs=None):
    """Users with these rows, and their values side by side."""
    indptr = np.append(0, np.cumsum([len(row.items) for row in rows]))
    items = np.concatenate([row.items for row in rows]).astype(np.int64)
    R = sparse.csr_array(
        (np.concatenate([row.t for row in rows]), items, indptr), (len(rows), N_ITEMS)
    )
    users = Users(
        R, n_slots=N_SLOTS, unit=unit, neighbors=neighbors, private=private, n_jobs=n_jobs
    )
    values = Row(
        items,
        *(np.concatenate([getattr(row, name) for row in rows]) for name in ("t", "w", "e")),
        np.array([row.u for row in rows]),
        *(np.array([getattr(row, name) for row in rows]) for name in ("v", "g", "f")),
    )
    return users, values


def vectors(rows, start, stop, U, kind):
    """Vectors of `sums.products`: those of users, or their ratings, sparse."""
    if kind == "sparse":
        return rows.R[start:stop]
    return U[start:stop]


def each(users, values):
    """Values of ratings."""
    return per_user(users, values, False)


def own(users, values):
    """Values of users."""
    return per_user(users, values, True)


def item_scalars(**terms):
    return lambda users, a: [sums.item_scalars(users, each(users, a.t), grid=SINGLE, **terms)]


def item_grams(users, a):
    given = each(users, a.w), each(users, a.e), own(users, a.u)
    terms = {"gram_clip": 2.0, "clip": 0.7, "grid": GRID * users.private}
    return other_sums.item_grams(users, *given, **terms)


def gram(users, a, **terms):
    return [sums.gram(users, own(users, a.u), clip=1.5, grid=GRID * users.private, **terms)]


def products(kind, diagonal=True):
    return lambda users, a: [
        sums.products(
            users,
            vectors,
            own(users, a.u),
            kind,
            clip=1.5,
            grid=GRID * users.private,
            diagonal=diagonal,
        )
    ]


HEAD = np.array([1, 2, 3, 5])
CENTRES = np.array([[0.0, 0.0, 0.0, 0.0], [0.7, -0.3, 0.4, 0.2], [1.5, 1.5, -1.5, 1.5]])


def centred_products(users, a):
    """Terms of items, less a centre by the sign and size of v."""
    place = per_user(users, (np.abs(np.nan_to_num(a.v)) % 3).astype(np.int64), True)
    given = each(users, a.t), place, HEAD, CENTRES
    return [sums.centred_products(users, *given, clip=1.5, grid=CENTRED)]


def user_scalars(**terms):
    return lambda users, a: [
        other_sums.user_scalars(users, own(users, a.v), clip=0.8, grid=SINGLE, **terms)
    ]


def item_vectors(users, a, **terms):
    return [
        sums.item_vectors(
            users,
            each(users, a.t),
            own(users, a.u),
            clip=0.7,
            grid=GRID * users.private,
            **terms,
        )[0]
    ]


def stacked(users, a):
    one, two = (item_scalars(clip=c, presence=0.1)(users, a)[0] for c in (1.0, 0.3))
    return [stack(one, two)]


BOTH = {"scale": 0.3, "presence": 0.1}
STATISTICS = {
    "scalars": item_scalars(clip=0.7),
    "scalars and users": item_scalars(clip=0.7, **BOTH),
    "many users": item_scalars(clip=0.7, scale=0.1, presence=0.9),
    "unsigned scalars": item_scalars(clip=0.7, signed=False),
    "unsigned scalars and users": item_scalars(clip=0.7, signed=False, **BOTH),
    "scalars in l1": item_scalars(clip=0.7, norm="l1", **BOTH),
    "unsigned scalars in l1": item_scalars(clip=0.7, norm="l1", signed=False, **BOTH),
    "user scalars": user_scalars(),
    "user scalars and users": user_scalars(presence=0.3),
    "user scalars in l1": user_scalars(presence=0.3, norm="l1"),
    "many users, and scalars": user_scalars(presence=2.0),
    "vectors": item_vectors,
    "grams": item_grams,
    "gram": gram,
    "weighted gram": lambda users, a: gram(users, a, weights=own(users, a.g)),
    "products": products("dense"),
    "products of ratings": products("sparse"),
    "products off the diagonal": products("sparse", diagonal=False),
    "centred products": centred_products,
    "stack": stacked,
}
WITH_INFLUENCE = {
    "scalars": lambda users, a: item_scalars(clip=0.7, influence=a.f, **BOTH)(users, a),
    "vectors": lambda users, a: item_vectors(users, a, influence=a.f),
    "gram": lambda users, a: gram(users, a, weights=own(users, a.g), influence=a.f),
}
pytestmark = pytest.mark.every_case  # a clip that is a little too large shows in few of them
every_sum = pytest.mark.parametrize("name", STATISTICS)
relations = pytest.mark.parametrize("neighbors", ["add-remove", "replace"])


def distance(total, a, b):
    change = a - b
    if total.norm == "l1":
        return float(np.abs(change).sum())
    squares = np.square(change)
    if total.layout == "packed":
        rows, columns = np.tril_indices(math.isqrt(2 * change.shape[-1]))
        squares = squares * np.where(rows == columns, 1.0, 2.0)
    return math.sqrt(squares.sum())


def contributions(statistic, rows, **relation):
    """Each row's own sums."""
    return [statistic(*built([row], **relation)) for row in rows]


def attack(statistic, rows, neighbors, share=None):
    """Return the largest distance over sensitivity of neighbours that are among the rows."""
    own = contributions(statistic, [NOBODY, *rows], neighbors=neighbors)
    worst = np.zeros(len(own[0]))
    for one, two in combinations(range(len(own)), 2):
        if neighbors == "add-remove" and one > 0:
            break
        for place, (a, b) in enumerate(zip(own[one], own[two], strict=True)):
            most = a.sensitivity * (1.0 if share is None else share[two - 1])
            moved = distance(a, reveal(a), reveal(b))
            assert moved <= most * EXACT, (rows[two - 1], moved, most)
            worst[place] = max(worst[place], moved / a.sensitivity)
    return worst


@every_sum
@relations
def test_no_values_whatever_move_a_sum_too_far(name, neighbors):
    rng = np.random.default_rng(0)
    attack(STATISTICS[name], [random_row(rng) for _ in range(60)], neighbors)


@pytest.mark.parametrize("name", WITH_INFLUENCE)
def test_influence_is_a_share_of_the_bound(name):
    rng = np.random.default_rng(1)
    rows = [random_row(rng) for _ in range(80)]
    attack(WITH_INFLUENCE[name], rows, "add-remove", share=[row.f for row in rows])


@every_sum
def test_an_empty_row_contributes_nothing_whatever_was_computed_of_it(name):
    """The bounds of adding and removing a user stand on this."""
    rest = [row_of([], u=u, v=v) for u, v in product(WILD[::2], WILD[1::2])]
    for total in STATISTICS[name](*built(rest)):
        assert not reveal(total).any()


@pytest.mark.parametrize("influence", [1.5, np.inf, np.nan, -1.0])
@pytest.mark.parametrize("name", WITH_INFLUENCE)
def test_influence_outside_of_0_to_1_is_clipped(name, influence):
    row = row_of(range(N_ITEMS), t=3.0, u=2.0)._replace(f=influence)
    assert attack(WITH_INFLUENCE[name], [row], "add-remove").max() <= EXACT
    rest = WITH_INFLUENCE[name](*built([row._replace(f=0.0)]))[0]
    own = WITH_INFLUENCE[name](*built([row]))[0]
    assert reveal(own).any() == (influence > 1.0)
    assert not reveal(rest).any()


E0, E1 = np.eye(K)[0], np.eye(K)[1]
EVERY, ODD = range(N_ITEMS), [1, 3, 5]
BIG = [
    row_of(EVERY, t=9e6, w=9.0, e=0.01, u=9.0 * E0, v=9.0),
    row_of(EVERY, t=-9e6, w=9.0, e=-0.01, u=9.0 * E0, v=-9.0),
    row_of(EVERY, t=9.0, w=0.01, e=9.0, u=9.0 * E1, v=9.0),
    row_of(EVERY, t=9.0, w=0.01, e=-9.0, u=9.0 * E1, v=9.0),
    row_of(ODD, t=9.0, w=9.0, e=0.01, u=9.0 * E1, v=9.0),
    row_of([0, 2, 4], t=9.0, w=9.0, e=0.01, u=9.0 * E0, v=9.0),
    row_of([1], t=9.0),
    row_of([2], t=9.0),
    row_of([2], t=-9e6),
    row_of([2], t=0.7),
    row_of([3], t=-0.7),
    row_of([3], t=0.3),
    row_of([3], v=0.0),
    row_of([2], t=1.5 - 2.0**-20, u=9.0),
    row_of([3], t=1.5 - 2.0**-20, u=9.0),
]
# both parts of a stack are not at their bounds at once
NOT_ATTAINED = {
    ("stack", "add-remove"): 0.98,
    ("stack", "replace"): 0.98,
    ("products off the diagonal", "add-remove"): 0.8,
    ("products off the diagonal", "replace"): 0.8,
}


@every_sum
@relations
def test_bounds_are_attained(name, neighbors):
    found = attack(STATISTICS[name], BIG, neighbors)
    assert min(found) > NOT_ATTAINED.get((name, neighbors), 0.999), found


def cells(values, neighbors):
    """Pairs of neighbouring matrices of two users; values of cells that are known."""
    empty = np.full((2, N_ITEMS), np.nan)
    full = empty.copy()
    full[0, :3], full[1, 3:] = 1.0, -0.5
    for base in (empty, full):
        edited = []
        for place in ((0, 0), (0, 4), (1, 0)):
            for value in values:
                one = base.copy()
                one[place] = np.nan
                two = one.copy()
                two[place] = value
                edited.append((one, two, place))
        for one, two, _ in edited:
            if neighbors == "add-remove":
                yield one, two
        for _, a, place in edited:
            for _, b, other in edited:
                known = np.isnan(base[place]) == np.isnan(base[other])
                if neighbors == "replace" and known and np.isnan(base[place]):
                    yield a, b


def of_matrix(X, neighbors):
    return Users(
        csr(X), n_slots=N_SLOTS, unit="rating", neighbors=neighbors, private=True, n_jobs=None
    )


def value_of_user(rows):
    return np.bincount(rows.user, weights=rows.data, minlength=rows.n_users)


OF_RATINGS = {
    "counts": {"largest": None},
    "counts in l1": {"largest": None, "norm": "l1"},
    "counts and sums": {"largest": 2.0},
    "counts and sums in l1": {"largest": 2.0, "norm": "l1"},
    "all": {"largest": 2.0, "by_item": False},
    "all in l1": {"largest": 2.0, "by_item": False, "norm": "l1"},
}
VALUES = (-1e300, -9.0, -2.0, 0.3, 2.0, 9.0, np.inf)


@pytest.mark.parametrize("name", OF_RATINGS)
@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
@relations
def test_no_rating_moves_sums_of_ratings_too_far(name, scale, neighbors):
    worst = 0.0
    for one, two in cells(VALUES, neighbors):
        a, b = (
            other_sums.rating_sums(
                of_matrix(X, neighbors), scale=scale, grid=2.0**-30, **OF_RATINGS[name]
            )
            for X in (one, two)
        )
        moved = distance(a, reveal(a), reveal(b))
        assert moved <= a.sensitivity * EXACT
        worst = max(worst, moved / a.sensitivity)
    if not name.startswith("all"):
        assert worst > 0.999


@pytest.mark.parametrize("norm", ["l1", "l2"])
@relations
def test_no_rating_moves_scalars_of_users_too_far(norm, neighbors):
    for one, two in cells((-1e300, -0.5, 9.0), neighbors):
        a, b = (
            other_sums.user_scalars(
                users, users.map(value_of_user), clip=0.8, grid=2.0**-30, norm=norm
            )
            for users in (of_matrix(X, neighbors) for X in (one, two))
        )
        assert distance(a, reveal(a), reveal(b)) <= a.sensitivity * EXACT


USER_SUMS = [name for name in STATISTICS if name != "user scalars"]


@pytest.mark.parametrize("name", USER_SUMS)
def test_sums_of_users_are_refused_where_a_rating_is_the_unit(name):
    with pytest.raises(PrivacyParameterError, match="unit='rating' must be 'user'"):
        STATISTICS[name](*built(BIG, unit="rating"))


def test_sums_of_ratings_are_refused_where_a_user_is_the_unit():
    users, _ = built(BIG)
    with pytest.raises(PrivacyParameterError, match="unit='user' must be 'rating'"):
        other_sums.rating_sums(users, scale=1.0, grid=SINGLE)


def clipped(x, radius, private, order=2):
    norm = np.linalg.norm(np.ravel(x), order)
    return x * min(1.0, radius / norm) if private and norm > 0 else x


def packed(A):
    return A[np.tril_indices(len(A))]


def twin(name, row, private=True):
    """One user's contributions by the docstrings, in loops and without a grid."""
    some = float(len(row.items) > 0)
    dense = np.zeros(N_ITEMS)
    of_users = "user scalars" in name or name == "many users, and scalars"
    if ("scalars" in name and not of_users) or name in ("many users", "stack"):
        s, q = {"many users": (0.1, 0.9), "stack": (1.0, 0.1)}.get(name, (0.3, 0.1))
        if name in ("scalars", "unsigned scalars"):
            s, q = 1.0, 0.0
        t = np.maximum(row.t, 0.0) if "unsigned" in name else row.t
        order = 1 if "l1" in name else 2
        parts = []
        for radius in (1.0, 0.3) if name == "stack" else (0.7,):
            norm = np.linalg.norm(t, order) if len(t) else 0.0
            c = min(1.0, radius / norm) if norm and private else 1.0
            dense[row.items] = s * c * t / radius
            presence = q * (1.0 if "unsigned" in name else c) * some
            parts.append(np.append(dense, presence) if q else dense.copy())
        return [np.stack(parts) if name == "stack" else parts[0]]
    if of_users:
        v = np.clip(row.v, -0.8, 0.8) if private else row.v
        q = 2.0 if name.startswith("many") else 0.3
        return [np.array([v * some] if name == "user scalars" else [q * some, v * some])]
    if name == "vectors":
        X = np.zeros((N_ITEMS, K))
        X[row.items] = row.t[:, None] * row.u
        return [clipped(X, 0.7, private)]
    if name == "grams":
        w = np.maximum(row.w, 0.0)
        A, b = np.zeros((N_ITEMS, K, K)), np.zeros((N_ITEMS, K))
        for p, j in enumerate(row.items):
            A[j], b[j] = w[p] * np.outer(row.u, row.u), w[p] * row.e[p] * row.u
        norms = np.linalg.norm(A), np.linalg.norm(b)
        c = min([1.0] + [r / n for r, n in zip((2.0, 0.7), norms, strict=True) if n > 0])
        c = c if private else 1.0
        return [np.array([packed(c * one) for one in A]), c * b]
    if name.endswith("gram"):
        weight = np.clip(row.g, 0.0, 1.0) if name == "weighted gram" else 1.0
        x = clipped(math.sqrt(weight) * row.u, 1.5, private) * some
        return [packed(np.outer(x, x))]
    if name == "centred products":
        dense[row.items] = row.t
        x = dense[HEAD] - CENTRES[int(abs(row.v)) % 3]
        inside = np.isin(row.items, HEAD).any() and np.linalg.norm(x) <= 1.5
        return [packed(np.outer(x, x) * inside)]
    x = row.u * some
    if name != "products":
        x = dense
        x[row.items] = row.t
    x = clipped(x, 1.5, private)
    A = np.outer(x, x)
    if "off" in name:
        np.fill_diagonal(A, 0.0)
    return [packed(A)]


def tame_row(rng):
    row = random_row(rng)
    tame = (rng.normal(size=np.shape(value)) * rng.choice([0.1, 3.0]) for value in row[1:-1])
    return Row(row.items, *tame)


@every_sum
@pytest.mark.parametrize("private", [True, False])
def test_sums_are_those_of_their_slow_twins(name, private):
    rng = np.random.default_rng(2)
    rows = [tame_row(rng) for _ in range(25)]
    made = STATISTICS[name](*built(rows, private=private))
    for place, total in enumerate(made):
        expected = sum(twin(name, row, private)[place] for row in rows)
        values = reveal(total) if private else total.without_privacy()
        truncated = private or name == "centred products"
        tolerance = 1e-4 if truncated else 1e-9
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)
        assert total.private == private


@every_sum
def test_sums_do_not_depend_on_blocks_order_and_threads(name):
    rng = np.random.default_rng(3)
    rows = [random_row(rng) for _ in range(N_SLOTS)]
    whole = STATISTICS[name](*built(rows))
    shuffled = STATISTICS[name](*built([rows[i] for i in rng.permutation(N_SLOTS)], n_jobs=3))
    parts = [STATISTICS[name](*built(part)) for part in (rows[:7], rows[7:8], rows[8:])]
    for place, total in enumerate(whole):
        values, blocks = reveal(total), sum(reveal(part[place]) for part in parts)
        np.testing.assert_array_equal(values, reveal(shuffled[place]))
        np.testing.assert_array_equal(values, blocks)
        assert np.isfinite(values).all()


def test_a_grid_that_is_too_fine_is_refused():
    users, a = built(BIG)
    with pytest.raises(PrivacyParameterError, match="grid"):
        sums.item_scalars(users, each(users, a.t), clip=1.0, grid=2.0**-60)
    users, a = built(BIG)
    with pytest.raises(PrivacyParameterError, match="grid"):
        sums.gram(users, own(users, a.u), clip=1.0, grid=2.0**-40)


def test_shrink_to_ball_ends_a_hair_inside():
    rng = np.random.default_rng(4)
    for radius in (1e-6, 0.6, 1.0, 1e6):
        for _ in range(300):
            x = rng.normal(size=5) * 10.0 ** rng.uniform(-8, 8) * radius
            norm = np.linalg.norm(x)
            factor = shrink_to_ball(norm, radius)
            assert np.linalg.norm(factor * x) <= radius * (1.0 - 2.0**-46)
            assert factor == 1.0 or np.linalg.norm(factor * x) >= radius * (1.0 - 2.0**-38)
    assert shrink_to_ball(1.0 - 2.0**-40, 1.0) == 1.0
    for norm in (np.inf, np.nan):
        assert shrink_to_ball(norm, 1.0) == 0.0
    np.testing.assert_array_equal(shrink_to_ball([0.0, 1.0], 0.0), [1.0, 0.0])


@pytest.mark.parametrize("order", ["C", "F"])
def test_lengths_are_right_for_all_widths(order):
    for k in (1, 512, 513, 2**15, 2**18):
        U = np.full((2, k), 1.0 / 3.0, order=order)
        np.testing.assert_allclose(lengths_of(U), math.sqrt(k) * U[0, 0], rtol=2.0**-44, atol=0)
    with pytest.raises(PrivacyParameterError, match=r"number of components=262145 must be at most"):
        lengths_of(np.empty((0, 2**18 + 1)))


def test_stacks_and_padding_keep_bound_and_values():
    users = built(BIG)
    one, two = (item_scalars(clip=c, **BOTH)(*users)[0] for c in (1.0, 0.3))
    both = stack(one, two)
    assert both.sensitivity == math.hypot(one.sensitivity, two.sensitivity)
    l1 = item_scalars(clip=1.0, norm="l1")(*users)[0]
    assert stack(l1, l1).sensitivity == 2.0 * l1.sensitivity
    with pytest.raises(PrivacyParameterError, match="which must be equal"):
        stack(one, l1)
    wide = padded(item_vectors(*built(BIG))[0], (N_ITEMS + 2, K + 1))
    assert wide.sensitivity == 0.7
    np.testing.assert_array_equal(reveal(wide)[:N_ITEMS, :K], reveal(item_vectors(*built(BIG))[0]))
    assert not reveal(wide)[N_ITEMS:].any()
    assert not reveal(wide)[:, K:].any()
