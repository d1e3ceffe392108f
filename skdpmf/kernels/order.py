"""Sorting the ratings of a block of rows by item."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels._jit import jit

__all__ = ["count_items", "order_by_item", "standardise"]

Array = NDArray[Any]


@jit
def count_items(indptr: Array, indices: Array, start: int, stop: int, out: Array) -> None:
    """Add to `out` how often each item is stored in rows [start, stop).

    Parameters
    ----------
    indptr : integer array of shape (n_rows + 1,)
        Row i owns the positions indptr[i] to indptr[i + 1].
    indices : integer array of shape (n_stored,)
        Item of each position.
    start, stop : int
        The rows.
    out : int64 array of shape (n_items,)
        Counts.
    """
    for p in range(indptr[start], indptr[stop]):
        out[indices[p]] += 1


@jit
def order_by_item(
    indptr: Array,
    indices: Array,
    values: Array,
    start: int,
    stop: int,
    mean: float,
    std: float,
    places: Array,
    users: Array,
    out: Array,
) -> None:
    """Put the ratings of rows [start, stop) in item order, users ascending, standardised.

    Parameters
    ----------
    indptr, indices
        The rows, as in `count_items`.
    values : float64 array of shape (n_stored,)
        Rating of each position.
    start, stop : int
        The rows.
    mean, std : float
        A rating r becomes (r - mean) / std.
    places : int64 array of shape (n_items,)
        Where each item's first rating goes; overwritten.
    users : uint16 array
        Row of each rating, counted from `start`.
    out : float32 array of the shape of `users`
        The ratings.
    """
    for i in range(start, stop):
        for p in range(indptr[i], indptr[i + 1]):
            place = places[indices[p]]
            places[indices[p]] = place + 1
            users[place] = i - start
            out[place] = (values[p] - mean) / std


@jit
def standardise(low: float, high: float, mean: float, std: float, out: Array) -> None:
    """Clip ratings to [low, high] and turn each r into (r - mean) / std, in place.

    Parameters
    ----------
    low, high, mean, std : float
        In units of the ratings.
    out : float32 array
        The ratings.
    """
    for p in range(out.shape[0]):
        rating = min(max(np.float64(out[p]), low), high)
        out[p] = (rating - mean) / std
