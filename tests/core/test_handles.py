"""Handles hold nothing, sums take what was made for them, and what fails ends its fit."""

import copy
import dataclasses
import gc
import pickle
import weakref

import numpy as np
import pytest
from scipy import sparse

from skdpmf import AdaptiveWeightALS, DPCovarianceRecommender, DPItemMeans, PrivacyBudget
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy import other_sums
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.pair_sensitivity import pair_sums
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.users import per_user, reveal
from tests.core.audit import users_of

N_USERS, N_ITEMS = 40, 6
GRID, SINGLE = exact_grid(N_USERS, 4.0), exact_grid(N_USERS, 4.0, degree=1)
PAIRS = {"value_range": (-2.0, 2.0), "clamp": 1.0, "damping": 0.0, "weight_scale": 0.9}


def data_of(rows):
    return rows.data


def ones(rows):
    return np.ones(rows.nnz)


def zeros(rows):
    return np.zeros(rows.n_users)


def halves(rows):
    return np.full((rows.n_users, 2), 0.5)


def matrix(first=None):
    """Ratings of all items, but for those that the last users left out, and user 0's own."""
    R = np.ones((N_USERS, N_ITEMS))
    R[-5:, 1:] = 0.0
    R[0] = 1.0 if first is None else first
    return sparse.csr_array(R)


def some_curator(private=True):
    budget = PrivacyBudget(1.0, 1e-5) if private else PrivacyBudget.nonprivate()
    plan = ReleasePlan.from_shares(budget, [Release("a", "x", (N_ITEMS,), 1.0)], {"a": 1.0})
    return Curator(matrix(), plan, NoiseSource(), 1)


def counts(users):
    return sums.item_scalars(users, users.map(ones), clip=1.0, grid=SINGLE)


def pairs(users, **changes):
    terms = {"noise": "laplace", "n_pieces": 1, **PAIRS, **changes}
    return pair_sums(users, np.arange(N_ITEMS), np.zeros(N_ITEMS), **terms)


HANDLES = {
    "users": lambda users: users,
    "values of users": lambda users: users.map(halves),
    "a sum": counts,
    "a sum in pieces": pairs,
}


@pytest.mark.parametrize("kind", HANDLES)
def test_handles_hold_nothing(kind):
    handle = HANDLES[kind](users_of(matrix()))
    reads = vars, dataclasses.astuple, pickle.dumps, copy.copy, copy.deepcopy, np.asarray
    reads += np.exp, list, float, len, bool, lambda values: values[0], lambda values: values + 1.0
    for read in reads:
        with pytest.raises(TypeError):
            read(handle)
    assert gc.get_referents(handle) == [type(handle)]
    with pytest.raises(AttributeError, match="no attribute"):
        handle.values = 1


@pytest.mark.parametrize("kind", ["values of users", "a sum"])
def test_values_are_freed_with_their_handle(kind):
    handle = HANDLES[kind](users_of(matrix()))
    values = weakref.ref(reveal(handle))
    assert values() is not None
    del handle
    gc.collect()
    assert values() is None


def test_the_shape_of_a_sum_is_not_shown():
    assert not hasattr(counts(users_of(matrix())), "shape")


def test_no_class_made_from_a_kind_stands_for_a_handle():
    """It could show another bound than the sum's, or take a sum's place by its hash."""
    curator = some_curator()
    total = counts(curator.users)
    place = hash(total)
    own = {"__hash__": lambda _: place, "__eq__": lambda *_: True, "sensitivity": 0.1}
    kind = type("Sum", (sums.BoundedSum,), {"__slots__": (), **own})
    with pytest.raises(PrivacyParameterError, match="a Sum was made by hand"):
        curator.release("a", kind())
    object.__setattr__(total, "__class__", kind)
    with pytest.raises(PrivacyParameterError, match="a Sum was made by hand"):
        curator.release("a", total)


def as_wide_as_the_longest(rows, start, stop):
    return np.full((stop - start, int(rows.n_ratings.max(initial=0))), 0.1)


def two_or_three(rows):
    return (rows.data,) * (2 + int(rows.nnz > 100))


def as_wide_as_many(rows):
    return np.zeros((rows.n_users, 1 + int(rows.nnz > 100)))


def test_shapes_follow_from_public_and_released_values():
    users = users_of(matrix())
    with pytest.raises(PrivacyParameterError, match="other values among all rows"):
        sums.products(users, as_wide_as_the_longest, clip=1.0, grid=GRID)
    for function in (two_or_three, as_wide_as_many):
        with pytest.raises(PrivacyParameterError, match="other values among all rows"):
            users_of(matrix()).map(function)


def near_the_largest_of_all(rows):
    """Ratings that are chosen by all rows."""
    R = rows.R.copy()
    R.data[R.data < 0.6 * R.data.max(initial=0.0)] = 0.0
    R.eliminate_zeros()
    return R


def test_ratings_chosen_by_all_rows_end_the_fit():
    rng = np.random.default_rng(0)
    users = users_of(sparse.csr_array(rng.normal(size=(N_USERS, N_ITEMS))))
    with pytest.raises(PrivacyParameterError, match="other values among all rows"):
        users.keep(near_the_largest_of_all)


def test_vectors_that_depend_on_all_rows_end_the_fit():
    rng = np.random.default_rng(0)
    users = users_of(sparse.csr_array(rng.normal(size=(N_USERS, N_ITEMS))))

    def centred(rows, start, stop):
        return rows.R[start:stop].toarray() - rows.data.sum() / 99.0

    with pytest.raises(PrivacyParameterError, match="other values among all rows"):
        sums.products(users, centred, clip=1.0, grid=GRID)


# a clip whose square is 0, or that of what it clips, clips nothing
WRONG = (0.0, -1.0, np.nan, np.inf, 1e-101, 1e101)
PARAMETERS = [
    ("item_scalars", ("clip", "scale"), lambda u, **p: sums.item_scalars(u, u.map(ones), **p)),
    (
        "user_scalars",
        ("clip",),
        lambda u, **p: other_sums.user_scalars(u, per_user(u, np.ones(N_USERS), True), **p),
    ),
    (
        "item_vectors",
        ("clip",),
        lambda u, **p: sums.item_vectors(u, u.map(ones), u.map(halves), **p)[0],
    ),
    (
        "item_grams",
        ("clip", "gram_clip"),
        lambda u, **p: other_sums.item_grams(
            u, u.map(ones), u.map(ones), u.map(halves), **{"gram_clip": 1.0, **p}
        )[0],
    ),
    ("gram", ("clip",), lambda u, **p: sums.gram(u, u.map(halves), **p)),
    ("pairs", ("clamp", "weight_scale"), lambda u, clip, grid, **p: pairs(u, **p)),
]


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        pytest.param(make, parameter, id=f"{name}-{parameter}")
        for name, names, make in PARAMETERS
        for parameter in names
    ],
)
def test_parameters_of_sums_are_checked(make, parameter):
    given = {"clip": 1.0, "grid": GRID}
    assert make(users_of(matrix()), **given).sensitivity > 0.0
    for value in WRONG:
        with pytest.raises(PrivacyParameterError, match=rf"({parameter}|bound)=.* must (not )?be"):
            make(users_of(matrix()), **given | {parameter: value})


def test_the_rest_of_the_parameters_is_checked():
    for wrong in ({"presence": -0.5}, {"presence": np.nan}, {"norm": "linf"}):
        users = users_of(matrix())
        with pytest.raises(PrivacyParameterError, match="must be"):
            sums.item_scalars(users, users.map(ones), clip=1.0, grid=SINGLE, **wrong)
    with pytest.raises(PrivacyParameterError, match="n_slots=3 must be at least 40, the number"):
        users_of(matrix(), n_slots=3)


def first_two(rows):
    taken = np.minimum(rows.n_ratings, 2)
    places = [np.arange(a, a + n) for a, n in zip(rows.indptr[:-1], taken, strict=True)]
    at = np.concatenate([np.arange(0), *places])
    ends = np.append(0, np.cumsum(taken))
    return sparse.csr_array((rows.data[at], rows.indices[at], ends), shape=rows.shape)


def test_sums_take_values_of_their_own_users_alone():
    users = users_of(matrix())
    terms, kept = users.map(data_of), users.keep(first_two)
    with pytest.raises(PrivacyParameterError, match="made for other users or ratings"):
        sums.item_scalars(kept, terms, clip=1.0, grid=SINGLE)
    users, others = users_of(matrix()), users_of(matrix())
    with pytest.raises(PrivacyParameterError, match="made for other users or ratings"):
        sums.gram(users, others.map(halves), clip=1.0, grid=GRID)
    curator = some_curator()
    with pytest.raises(PrivacyParameterError, match="is a sum of another fit"):
        curator.release("a", counts(some_curator().users))
    assert curator.release("a", counts(curator.users)).shape == (N_ITEMS,)


def in_one_column(rows):
    """Entries of one place, under a flag that was set before they were."""
    R = rows.R.copy()
    assert R.has_canonical_format
    R.indices[:] = 0
    return R


def beyond_the_last_item(rows):
    return sparse.csr_array((rows.data, rows.indices + N_ITEMS, rows.indptr), shape=rows.shape)


def test_kept_ratings_have_places_of_their_own():
    """Whatever a map says of them: norms are those of rows with an entry per item."""
    kept = users_of(matrix()).keep(in_one_column)
    assert reveal(kept).nnz == N_USERS
    with pytest.raises(ValueError, match="must be <"):
        users_of(matrix()).keep(beyond_the_last_item)


def three_values(rows):
    return np.full(3, 0.001)


def test_values_have_the_length_of_their_users():
    with pytest.raises(PrivacyParameterError, match="an entry or a row for each user, or for each"):
        users_of(matrix()).map(three_values)
    users = users_of(matrix())
    with pytest.raises(PrivacyParameterError, match="a value for each rating"):
        sums.item_scalars(users, per_user(users, np.zeros(3), False), clip=1.0, grid=SINGLE)
    users = users_of(matrix())
    with pytest.raises(PrivacyParameterError, match="a value for each user"):
        sums.gram(users, users.map(ones), clip=1.0, grid=GRID)


@pytest.mark.parametrize("big", [1e290, 1e300, 1e308, np.inf, np.nan])
def test_gigantic_residuals_beside_zeros_move_no_more_than_the_bound(big):
    """Infinity times 0 is no number, and was released as 0 for everybody."""

    def right_hand_sides(R):
        users = users_of(R)
        rows = reveal(users)
        f = np.full((rows.n_users, 2), 0.5)
        f[0] = 0.0
        terms = np.full(rows.nnz, 0.5), np.where(rows.user == 0, big, 1.0)
        values = *(per_user(users, one, False) for one in terms), per_user(users, f, True)
        return other_sums.item_grams(users, *values, gram_clip=1.0, clip=1.0, grid=GRID)

    pair = zip(right_hand_sides(matrix()), right_hand_sides(matrix(0.0)), strict=True)
    for one, two in pair:
        assert np.isfinite(reveal(one)).all()
        assert np.linalg.norm(reveal(one) - reveal(two)) <= one.sensitivity


@pytest.mark.parametrize("seed", range(20))
def test_as_many_ratings_as_users_end_no_fit(seed):
    """Whether a map gave a value for each user or for each rating does not show in its length."""
    rng = np.random.default_rng(seed)
    n, n_items = rng.choice([4, 7, 12, 19, 50]), rng.integers(2, 9)
    X = np.full(n * n_items, np.nan)
    X[rng.permutation(n * n_items)[:n]] = rng.integers(1, 6, n)
    for kind in (DPItemMeans, AdaptiveWeightALS, DPCovarianceRecommender):
        kind(PrivacyBudget(1.0, 1e-5)).fit(X.reshape(n, n_items))


WRITES = {
    "ratings": lambda rows, *_, named: np.clip(rows.data, 0.0, 0.5, out=rows.data),
    "lengths": lambda rows, *_, named: np.minimum(rows.n_ratings, 2, out=rows.n_ratings),
    "places": lambda rows, *_, named: rows.by_item.data.sort(),
    "an attribute": lambda rows, *_, named: setattr(rows, "data", 0.5 * rows.data),
    "values of users": lambda rows, values, _, named: np.negative(values, out=values),
    "released values": lambda rows, _, released, named: np.negative(released, out=released),
    "those by name": lambda rows, *_, named: np.negative(named, out=named),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_map_writes_nothing(what):
    """What it wrote would reach other maps and sums, whose rows would depend on others."""
    curator, released = some_curator(), np.ones(3)
    values = curator.users.map(halves)
    with pytest.raises(PrivacyParameterError, match=r"raised (Value|Attribute)Error"):
        curator.users.map(WRITES[what], values, released, named=released)
    rows = reveal(curator.users)
    for one, like in ((rows.data, matrix().data), (released, np.ones(3))):
        np.testing.assert_array_equal(one, like)


def with_other_values(rows):
    rows.R.data = rows.data - rows.data.sum()
    return rows.data


def test_a_map_has_a_matrix_of_its_own():
    users, X = users_of(matrix()), matrix()
    users.map(with_other_values)
    np.testing.assert_array_equal(reveal(users).R.data, X.data)
    users_of(X)
    X.data[:] = 2.0  # nobody locks the caller's


def raises(rows):
    raise ValueError(f"rating {rows.data[:1]}")


def interrupts(rows):
    raise KeyboardInterrupt(f"rating {rows.data[:1]}")


def frames_of(error):
    """Every local value that an error's tracebacks reach."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            for one in trace.tb_frame.f_locals.values():
                yield from (one, *one) if isinstance(one, list | tuple) else (one,)
            trace = trace.tb_next
        error = error.__context__


@pytest.mark.parametrize("function", [raises, interrupts])
def test_a_map_that_raises_ends_the_fit(function):
    curator = some_curator()
    total = counts(curator.users)
    with pytest.raises((PrivacyParameterError, KeyboardInterrupt)) as caught:
        curator.users.map(function)
    assert "rating" not in str(caught.value).replace("ratings", "")
    found = [*frames_of(caught.value)]
    assert not any(isinstance(one, np.ndarray) or hasattr(one, "indptr") for one in found)
    for again in (
        lambda: curator.release("a", total),
        lambda: curator.users.map(data_of),
        lambda: counts(curator.users),
    ):
        with pytest.raises(PrivacyParameterError, match="this fit has ended"):
            again()
    with pytest.raises(ValueError, match="rating"):
        some_curator(private=False).users.map(raises)  # as it is, to mend it


def test_a_sum_that_fails_shows_no_rows():
    users = users_of(matrix())
    terms = users.map(ones)
    with pytest.raises(PrivacyParameterError, match="grid") as caught:
        sums.item_scalars(users, terms, clip=1.0, grid=2.0**-60)
    assert not any(isinstance(one, np.ndarray) for one in frames_of(caught.value))


def test_kernels_that_add_otherwise_than_their_plain_forms_are_found(monkeypatch):
    real = other_sums.accumulate_items

    class Wrong:
        plain = staticmethod(real.plain)

        def __call__(self, *given):
            real(*given)
            given[-2][:] *= 1.0 + 2.0**-20

    monkeypatch.setattr(other_sums, "accumulate_items", Wrong())
    users = users_of(matrix())
    values = users.map(ones), users.map(ones), users.map(halves)
    with pytest.raises(PrivacyParameterError, match="other sums than its plain form"):
        other_sums.item_grams(users, *values, gram_clip=1.0, clip=1.0, grid=GRID)
    pairs = sums.pair_products
    monkeypatch.setattr(sums, "pair_products", lambda *given: pairs(*given) + 1)
    users = users_of(matrix())
    given = users.map(ones), users.map(zeros), np.arange(N_ITEMS), np.zeros((1, N_ITEMS))
    with pytest.raises(PrivacyParameterError, match="pair_products of item=0 must be those of"):
        sums.centred_products(users, *given, clip=1.0, grid=exact_grid(N_USERS, 2.0))
