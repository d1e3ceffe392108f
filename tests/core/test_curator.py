"""Curator, users and their values: what they refuse, what they show, and what they note."""

import copy
import math
import pickle

import numpy as np
import pytest
from scipy import sparse

from skdpmf import PrivacyBudget
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.curator_release import Curator, Released
from skdpmf.privacy.pair_sensitivity import pair_sums
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.sampler.streams import derived_key
from skdpmf.privacy.statement import as_made
from skdpmf.privacy.users import Rows, reveal
from tests.core.audit import cost_of, recorded_curator, users_of

pytestmark = pytest.mark.every_case
BUDGET = PrivacyBudget(2.0, 1e-5)
N_USERS, N_ITEMS = 12, 4
GRID = exact_grid(N_USERS, 1.0, degree=1)
SECRET = 0.123456789  # a rating that nothing shows
RELEASES = [
    Release("counts", "counts", (N_ITEMS,), 1.0, count=2, alternatives=("sums",)),
    Release("sums", "sums", (N_ITEMS,), 2.0),
    Release("products", "products", (10,), 4.0, layout="packed", alternatives=("sums",)),
]
SHARES = {"counts": 0.2, "sums": 0.3, "products": 0.5}


def some_ratings():
    rng = np.random.default_rng(0)
    R = sparse.csr_array(
        rng.normal(size=(N_USERS, N_ITEMS)) * (rng.random((N_USERS, N_ITEMS)) < 0.6)
    )
    R.data[0] = SECRET
    return R


def some_plan(budget=BUDGET, releases=RELEASES, shares=SHARES):
    return ReleasePlan.from_shares(budget, releases, shares)


def data_of(rows):
    return rows.data


def rows_as_they_are(rows, start, stop):
    return rows.R[start:stop]


@pytest.fixture
def curator():
    return Curator(some_ratings(), some_plan(), NoiseSource(derived_key(0)), None)


def total(curator, clip=1.0, scale=0.5):
    terms = curator.users.map(data_of)
    return sums.item_scalars(curator.users, terms, clip=clip, grid=GRID, scale=scale)


def product(curator):
    grid = exact_grid(N_USERS, 4.0)
    return sums.products(curator.users, rows_as_they_are, clip=2.0, grid=grid)


def test_releases_are_noisy_sums_and_are_noted(curator):
    found = [curator.release("counts", total(curator), t) for t in (0, 1)]
    assert np.abs(found[0] - found[1]).min() > 0.0
    curator.release("products", product(curator))
    assert [(one.slot, one.index, one.statistic, one.shape) for one in curator.record] == [
        ("counts", 0, "counts", (N_ITEMS,)),
        ("counts", 1, "counts", (N_ITEMS,)),
        ("products", 0, "products", (10,)),
    ]
    slots = curator.releases
    for one in curator.record:
        assert one.noise_multiplier == slots[one.slot].noise_multiplier
        assert one.sensitivity == slots[one.slot].sensitivity


class Late(int):
    """Says of itself that it comes before all others."""

    __lt__ = __ge__ = lambda *_: True


def test_a_release_once_more_than_planned_is_refused(curator):
    """Also at the index that comes next."""
    for t in (0, 1):
        curator.release("counts", total(curator), t)
    for index in (2, Late(2)):
        with pytest.raises(PrivacyParameterError, match="is one too many"):
            curator.release("counts", total(curator), index)


def test_alternatives_keep_the_slots_multiplier_and_have_their_own_sensitivity():
    curator, records = recorded_curator(some_ratings(), some_plan())
    curator.release("products", total(curator, scale=1.0), statistic="sums")
    (record,), (noted,) = records, curator.record
    slot, kind = curator.releases["products"], curator.releases["sums"]
    assert record.noise_multiplier == slot.noise_multiplier
    assert record.sensitivity == kind.sensitivity == 2.0
    assert record.layout == "full"
    assert noted == Released("products", 0, "sums", (N_ITEMS,), 2.0, slot.noise_multiplier)
    assert curator.deviation("products", "sums") == slot.noise_multiplier * 2.0


def test_sums_of_fits_without_privacy_are_refused(curator):
    free = Curator(some_ratings(), some_plan(PrivacyBudget.nonprivate()), NoiseSource(), None)
    assert not free.private
    with pytest.raises(PrivacyParameterError, match="has private=False: the fit has private=True"):
        curator.release("counts", total(free))
    np.testing.assert_array_equal(
        free.release("counts", total(free)), total(free).without_privacy()
    )
    assert free.deviation("counts") == 0.0


def test_deviations_are_those_of_the_noise(curator):
    for name, slot in curator.releases.items():
        assert curator.deviation(name) == slot.noise_scale
    laplace = PureRelease("counts", "counts", (4,), math.inf, "laplace", 1.0, "l1")
    plan = some_plan(PrivacyBudget(1.0), [laplace], {"counts": 1.0})
    curator = Curator(some_ratings(), plan, NoiseSource(), None)
    scale = curator.releases["counts"].noise_scale
    assert curator.deviation("counts") == pytest.approx(math.sqrt(2.0) * scale)


def test_nothing_shows_a_rating(curator):
    values = curator.users.map(data_of)
    for one in (curator, curator.users, values, total(curator), [curator.users]):
        assert str(SECRET) not in repr(one)
        assert str(SECRET) not in str(one)
    for take in (pickle.dumps, copy.copy, copy.deepcopy):  # handles: see test_handles
        with pytest.raises(TypeError):
            take(curator)


def without_small_ones(rows):
    R = rows.R.copy()
    R.data[np.abs(R.data) < 0.5] = 0.0
    R.eliminate_zeros()
    return R


def fewer_rows(rows):
    return rows.R[1:]


def test_users_keep_rows_and_what_bounds_rest_on(curator):
    users = curator.users
    kept = users.keep(without_small_ones)
    assert (kept.n_slots, kept.unit, kept.neighbors, kept.private) == (
        users.n_slots,
        users.unit,
        users.neighbors,
        users.private,
    )
    assert reveal(kept).nnz < reveal(users).nnz
    with pytest.raises(PrivacyParameterError, match="must keep the shape"):
        users.keep(fewer_rows)
    with pytest.raises(PrivacyParameterError, match="are of a private fit"):
        users.without_privacy()
    assert users_of(some_ratings(), private=False).without_privacy().nnz == reveal(users).nnz


def test_rows_know_their_users_and_items():
    rows = Rows(some_ratings(), None)
    dense = some_ratings().toarray()
    np.testing.assert_array_equal(rows.n_ratings, (dense != 0).sum(axis=1))
    np.testing.assert_array_equal(dense[rows.user, rows.indices], rows.data)
    by_item = rows.by_item
    columns = np.repeat(np.arange(N_ITEMS), np.diff(by_item.indptr))
    np.testing.assert_array_equal(dense[by_item.indices, columns], rows.data[by_item.data])


def test_pieces_are_one_release():
    terms = {"value_range": (-2.0, 2.0), "clamp": 1.0, "damping": 5.0, "weight_scale": 0.25}
    release = Release("pairs", "pairs", (2, 10), 9.0, layout="packed")
    plan = some_plan(releases=[release], shares={"pairs": 1.0})
    curator, records = recorded_curator(some_ratings(), plan)
    pairs = pair_sums(
        curator.users,
        np.arange(N_ITEMS),
        np.zeros(N_ITEMS),
        noise="gaussian",
        n_pieces=3,
        **terms,
    )
    with curator.release_pieces("pairs", pairs) as made:
        for piece in pairs.pieces:
            for matrix, entries, values in made(*piece):
                assert matrix in (0, 1)
                assert values.shape == (entries.stop - entries.start,)
    assert len(records) == len(curator.record) == 1
    # noise is for the smaller of two public bounds
    assert records[0].sensitivity == pairs.sensitivity < 9.0
    with pytest.raises(PrivacyParameterError, match="was made before"):
        curator.release_pieces("pairs", pairs).__enter__()


def test_a_plan_as_made_says_what_its_slots_held():
    curator, _ = recorded_curator(some_ratings(), some_plan())
    curator.release("counts", total(curator), 0)
    curator.release("counts", total(curator, scale=1.0), 1, statistic="sums")
    curator.release("products", total(curator, scale=1.0), statistic="sums")
    plan = some_plan()
    made = as_made(plan, curator.record)
    held = {r.name: (r.shape, r.sensitivity, r.count, r.layout) for r in made.made}
    assert held == {
        "counts": ((4,), 1.0, 1, "full"),
        "counts: sums": ((4,), 2.0, 1, "full"),
        "sums": ((4,), 2.0, 1, "full"),  # was not made, and counts as if it were
        "products: sums": ((4,), 2.0, 1, "full"),
    }
    assert cost_of(made.made) == cost_of(plan.releases)
    # the charge does not depend on what was released
    assert (made.epsilon, made.delta, made.mu) == (plan.epsilon, plan.delta, plan.mu)
