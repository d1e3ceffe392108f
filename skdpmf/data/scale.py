"""Ratings in quarters of their range from its middle, as the solvers want them, and back."""

from typing import Any

import numpy as np
from scipy import sparse

__all__ = ["in_quarter_ranges", "in_rating_units", "middle_and_quarter"]


def in_quarter_ranges(R: Any, rating_range: tuple[float, float]) -> Any:
    """Return the ratings of a csr_array as (r - middle) / quarter."""
    middle, unit = middle_and_quarter(rating_range)
    y = R.data - middle
    y /= unit  # in place: there are many ratings
    return sparse.csr_array((y, R.indices, R.indptr), shape=R.shape)


def in_rating_units(means: Any, rating_range: tuple[float, float]) -> Any:
    """Return the way back, for means."""
    middle, unit = middle_and_quarter(rating_range)
    return np.asarray(middle + unit * means)


def middle_and_quarter(rating_range: tuple[float, float]) -> tuple[float, float]:
    """Return middle and quarter of the rating range."""
    low, high = rating_range
    return (low + high) / 2.0, (high - low) / 4.0
