"""Sorting the ratings of a block of rows by item."""

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, jit

__all__ = ["count_items", "order_by_item", "standardise"]


@jit
def count_items(indptr: Array, indices: Array, start: int, stop: int, out: Array) -> None:
    """Add to `out` how often each item is stored in rows [start, stop).

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item of each position; start, stop: the rows; out (n_items,) int64: counts.
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

    indptr, indices: the rows, as in `count_items`; values (n_stored,) float64: rating of each
    position; start, stop: the rows; mean, std: a rating r becomes (r - mean) / std; places
    (n_items,) int64: where each item's first rating goes; overwritten; users: row of each rating,
    counted from `start`; out (float32 array of the shape of `users`): the ratings.
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

    low, high, mean, std: in units of the ratings; out: the ratings.
    """
    for p in range(out.shape[0]):
        rating = min(max(np.float64(out[p]), low), high)
        out[p] = (rating - mean) / std
