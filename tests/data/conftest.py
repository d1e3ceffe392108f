"""Parquet ratings that modules of this folder share."""

import pytest

from skdpmf.data import ParquetRatings

from .twins import SMALL


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ratings"


@pytest.fixture
def small(path):
    """Five users in three parts."""
    return ParquetRatings.write(path, SMALL, rows_per_part=2)
