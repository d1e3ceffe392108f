"""Sorting the ratings of a block of rows by item."""

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, jit

__all__ = ["count_items", "order_by_item", "standardise"]


def _count_items_plain(indptr: Array, indices: Array, start: int, stop: int, out: Array) -> None:
    out += np.bincount(indices[indptr[start] : indptr[stop]], minlength=len(out))


@jit(plain=_count_items_plain)
def count_items(indptr: Array, indices: Array, start: int, stop: int, out: Array) -> None:
    """Add to `out` how often each item is stored in rows [start, stop).

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item of each position; start, stop: the rows; out (n_items,) int64: counts.
    """
    for p in range(indptr[start], indptr[stop]):
        out[indices[p]] += 1


def _order_by_item_plain(
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
    own = slice(indptr[start], indptr[stop])
    order = np.argsort(indices[own], kind="stable")
    counts = np.bincount(indices[own], minlength=len(places))
    place = np.arange(len(order)) + np.repeat(places - (np.cumsum(counts) - counts), counts)
    rows = np.repeat(np.arange(stop - start), np.diff(indptr[start : stop + 1]))
    users[place] = rows[order]
    out[place] = (values[own][order] - mean) / std
    places += counts


@jit(plain=_order_by_item_plain)
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


def _standardise_plain(low: float, high: float, mean: float, std: float, out: Array) -> None:
    out[:] = (np.clip(out.astype(np.float64), low, high) - mean) / std


@jit(plain=_standardise_plain)
def standardise(low: float, high: float, mean: float, std: float, out: Array) -> None:
    """Clip ratings to [low, high] and turn each r into (r - mean) / std, in place.

    low, high, mean, std: in units of the ratings; out: the ratings.
    """
    for p in range(out.shape[0]):
        rating = min(max(np.float64(out[p]), low), high)
        out[p] = (rating - mean) / std
