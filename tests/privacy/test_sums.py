"""Bounded sums: what is given in several parts has the norm of the whole."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.users import Users, reveal

GRID = 2.0**-20
N_USERS, N_ITEMS = 5, 4


@pytest.fixture
def users():
    R = sparse.csr_array(np.ones((N_USERS, N_ITEMS)))
    relation = {"unit": "user", "neighbors": "add-remove"}
    return Users(R, n_slots=N_USERS, private=True, n_jobs=1, **relation)


def doubled(n_users, n_columns, value):
    """Every entry twice, of rows that hold all columns."""
    places = np.tile(np.arange(n_columns), 2 * n_users)
    ends = 2 * n_columns * np.arange(n_users + 1)
    given = np.full(places.size, value), places, ends
    return sparse.csr_array(given, shape=(n_users, n_columns))


def test_products_takes_one_vector_for_each_user(users):
    def twice(rows, start, stop):
        return np.full((2 * (stop - start), 2), 0.5)

    with pytest.raises(PrivacyParameterError, match="must be one that returns a vector for each"):
        sums.products(users, twice, clip=1.0, grid=GRID)


def test_products_clips_whole_vectors(users):
    def halves(rows, start, stop):
        return doubled(stop - start, 1, np.sqrt(0.5))

    made = sums.products(users, halves, clip=1.0, grid=GRID)
    assert 0.999 * N_USERS < reveal(made)[0] <= N_USERS


def test_ratings_are_one_for_each_user_and_item(users):
    kept = users.keep(lambda rows: doubled(rows.n_users, N_ITEMS, 1.0))
    ones = kept.map(lambda rows: rows.data)
    made = sums.item_scalars(kept, ones, clip=1.0, grid=GRID)
    assert np.linalg.norm(reveal(made)) <= N_USERS
