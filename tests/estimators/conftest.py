"""Ratings that modules of this folder share."""

import pytest

from skdpmf.data import make_ratings
from skdpmf.evaluation import split_ratings


@pytest.fixture(scope="session")
def data():
    """Training and held-out ratings of 2000 users and 150 items."""
    X = make_ratings(2000, 150, density=0.35, random_state=0)
    return split_ratings(X, test_size=0.1, random_state=1)


@pytest.fixture(scope="session")
def small():
    return make_ratings(80, 12, density=0.5, random_state=0)
