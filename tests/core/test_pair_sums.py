"""Item covariances as bounded sums: the slow twin, the bound under attack, and exactness."""

import numpy as np
import pytest

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.pair_sensitivity import pair_sensitivity, pair_sums
from skdpmf.privacy.users import reveal
from tests.core.audit import users_of
from tests.matrices import csr
from tests.privacy.covariance_attack import evolve

N_ITEMS, N_SLOTS = 7, 30
RANGE, CLAMP, DAMPING, SCALE = (-2.0, 2.0), 1.0, 4.0, 0.25
TERMS = {"value_range": RANGE, "clamp": CLAMP, "damping": DAMPING, "weight_scale": SCALE}
HEAD = np.array([0, 1, 2, 4, 5, 6])
KINDS = [
    (unit, noise, neighbors)
    for unit in ("user", "rating")
    for noise in ("gaussian", "laplace")
    for neighbors in ("add-remove", "replace")
]
every_kind = pytest.mark.parametrize(("unit", "noise", "neighbors"), KINDS)


def means(seed=0):
    return np.random.default_rng(seed).uniform(-3.0, 3.0, N_ITEMS)


def triangles(X, unit, noise, neighbors, *, private=True, head=HEAD, **terms):
    """Both packed triangles, and what they come from."""
    users = users_of(csr(X), n_slots=N_SLOTS, unit=unit, neighbors=neighbors, private=private)
    made = pair_sums(users, head, means(), noise=noise, n_pieces=4, **(TERMS | terms))
    out = np.full(made.shape, np.nan)
    for start, stop in made.pieces:
        for matrix, entries, place, values in reveal(made).sums_of(start, stop):
            assert place == matrix * made.shape[1] + entries.start
            out[matrix, entries] = values
    return out, made


def twin(X, unit, noise):
    """Cov and t Wgt by the docstrings, in loops."""
    b, h = np.clip(means()[HEAD], *RANGE), len(HEAD)
    both = np.zeros((2, h, h))
    for row in X[:, HEAD]:
        e = np.isfinite(row) | np.isinf(row)
        c = e.sum()
        if not c:
            continue
        y = np.where(e, np.clip(np.where(np.isfinite(row), row, 0.0), *RANGE) - b, 0.0)
        x = np.where(e, np.clip(y - y.sum() / (c + DAMPING), -CLAMP, CLAMP), 0.0)
        size = c if unit == "rating" else c * c if noise == "gaussian" else c * (c + 1) / 2
        w = 1.0 / size if noise == "laplace" else size**-0.5
        both += w * np.stack((np.outer(x, x), SCALE * np.outer(e, e)))
    return both[:, *np.tril_indices(h)]


def some_rows(n=N_SLOTS, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.5, 2.5, (n, N_ITEMS))
    X[rng.random(X.shape) < 0.4] = np.nan
    return X


@pytest.mark.parametrize("private", [True, False])
@every_kind
def test_both_triangles_are_the_twin(unit, noise, neighbors, private):
    X = some_rows()
    X[3], X[4, 0], X[5, 1] = np.nan, 1e300, -np.inf
    found, made = triangles(X, unit, noise, neighbors, private=private)
    expected = twin(X, unit if private else "rating", noise)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert (made.unit, made.neighbors, made.private) == (unit, neighbors, private)


def distance(made, change):
    if made.norm == "l1":
        return np.abs(change).sum()
    rows, columns = np.tril_indices(len(HEAD))
    return np.sqrt((np.square(change) * np.where(rows == columns, 1.0, 2.0)).sum())


def rows_of(free):
    """Two rows from numbers in [0, 1]: of two users, or of one without and with a rating."""
    X = np.where(free[: 2 * N_ITEMS] > 0.15, 5.0 * free[: 2 * N_ITEMS] - 2.75, np.nan)
    return X.reshape(2, N_ITEMS)


def neighbours_of(free, unit, neighbors):
    """Matrices of two users that neighbours have."""
    rows = rows_of(free)
    nothing = np.full(N_ITEMS, np.nan)
    if unit == "user":
        other = nothing if neighbors == "add-remove" else rows[1]
        return np.stack((rows[0], nothing)), np.stack((other, nothing))
    item, other = (min(int(N_ITEMS * x), N_ITEMS - 1) for x in free[-4:-2])
    values = 5.0 * free[-2:] - 2.5
    without = rows.copy()
    without[0, item] = np.nan
    one, two = without.copy(), without.copy()
    one[0, item] = values[0]
    if neighbors == "replace":  # a rating of the same user, or of another one
        place = int(free[0] > 0.5)
        one[place, other] = two[place, other] = np.nan
        one[0, item] = values[0]
        two[place, other] = values[1]
    return one, two


@every_kind
def test_no_neighbour_is_farther_than_the_bound(unit, noise, neighbors):
    """A search moves both triangles as far as it can: users to the bound, ratings near it."""
    bounds = []

    def value(population):
        moved = []
        for free in population:
            pair = [
                triangles(X, unit, noise, neighbors) for X in neighbours_of(free, unit, neighbors)
            ]
            bounds.append(pair[0][1].sensitivity)
            moved.append(distance(pair[0][1], pair[0][0] - pair[1][0]))
            assert moved[-1] <= bounds[-1] * (1.0 + 1e-12), (free, moved[-1], bounds[-1])
        return np.array(moved)

    best, _ = evolve(value, 2 * N_ITEMS + 4, seed=0, rounds=12, population=24)
    assert len(set(bounds)) == 1
    assert best >= {"user": 0.7, "rating": 0.3}[unit] * bounds[0], (best, bounds[0])


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_users_attain_the_bound(noise):
    """All items, as far from the means as the clamp reaches."""
    b = np.clip(means(), *RANGE)
    row = np.where(b < 0, 2.0, -2.0)
    X = np.stack((row, np.full(N_ITEMS, np.nan)))
    found, made = triangles(X, "user", noise, "add-remove", damping=1e6)
    assert distance(made, found) == pytest.approx(made.sensitivity, rel=1e-6)


@every_kind
def test_bounds_are_those_that_a_plan_may_state(unit, noise, neighbors):
    """Of a head, and of its means: at most the planned one, of all items and any means."""
    _, made = triangles(some_rows(), unit, noise, neighbors)
    terms = {name: value for name, value in TERMS.items() if name != "value_range"}
    planned = pair_sensitivity(
        (unit, neighbors), noise=noise, n_items=N_ITEMS, centred_range=8.0, grid=made.grid, **terms
    )
    assert 0.0 < made.sensitivity <= planned


def test_sums_do_not_depend_on_blocks_and_order():
    X = some_rows()
    kind = "rating", "gaussian", "replace"
    whole, _ = triangles(X, *kind)
    order = np.random.default_rng(2).permutation(len(X))
    np.testing.assert_array_equal(triangles(X[order], *kind)[0], whole)
    parts = [triangles(part, *kind)[0] for part in (X[:9], X[9:10], X[10:])]
    np.testing.assert_array_equal(sum(parts), whole)
    nobody, _ = triangles(np.full((3, N_ITEMS), np.nan), *kind)
    assert not nobody.any()


@pytest.mark.parametrize("head", [[0, 1, 1], [2, 1, 0]])
def test_a_head_without_order_or_with_repetitions_is_refused(head):
    with pytest.raises(PrivacyParameterError, match="must be ascending, without repetitions"):
        triangles(some_rows(), "rating", "gaussian", "replace", head=np.array(head))
