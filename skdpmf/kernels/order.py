"""Sorting the ratings of a block of rows by item."""

import numpy as np

from skdpmf.kernels.jit_and_threads import jit

_LARGEST = float(np.finfo(np.float64).max)


def _order_by_item_plain(indptr, indices, values, start, stop, mean, std, places, users, out):
    own = slice(indptr[start], indptr[stop])
    order = np.argsort(indices[own], kind="stable")
    counts = np.bincount(indices[own], minlength=len(places))
    place = np.arange(len(order)) + np.repeat(places - (np.cumsum(counts) - counts), counts)
    rows = np.repeat(np.arange(stop - start), np.diff(indptr[start : stop + 1]))
    users[place] = rows[order]
    out[place] = (values[own][order] - mean) / std
    places += counts


@jit(plain=_order_by_item_plain)
def order_by_item(indptr, indices, values, start, stop, mean, std, places, users, out):
    """Put the ratings of rows [start, stop) in item order, users ascending, standardised.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item of each position; values (n_stored,) float64: rating of each
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


def _item_runs_plain(user, item, rating, rows, n_items, bounds, scale, items, indptr, users, out):
    n = len(item)
    inside = (user >= rows[0]) & (user < rows[1]) & (item >= 0) & (item < n_items)
    new = item[1:] != item[:-1]
    after = np.where(new, item[1:] > item[:-1], user[1:] > user[:-1])
    if not (inside.all() and after.all() and np.isfinite(rating).all()):
        return -1
    starts = np.concatenate(([0], np.flatnonzero(new) + 1))[: n and None]
    items[: len(starts)] = item[starts]
    indptr[: len(starts) + 1] = np.append(starts, n)
    users[:n] = user - rows[0]
    out[:n] = (np.clip(rating.astype(np.float64), *bounds) - scale[0]) / scale[1]
    return len(starts)


@jit(plain=_item_runs_plain)
def item_runs(user, item, rating, rows, n_items, bounds, scale, items, indptr, users, out):
    """Find the runs of items in ratings in item order, users ascending, and standardise these.

    user, item (n_ratings,) integer; rating (n_ratings,) floating; rows: first user, and one past
    the last; bounds: ratings are clipped to them; scale: (mean, std), a rating r becomes
    (r - mean) / std; items (n_runs or more,) int32 and indptr (one more,) int64: get the item of
    each run and where it begins, behind the last one where it ends; users (n_ratings or more,)
    uint16 and out (of the same shape) float32: get users, counted from the first, and ratings.
    Returns the number of runs; -1 if something is out of range or order or no number, and then
    the arrays hold anything.
    """
    n, bad = item.shape[0], 0
    for p in range(n):  # three loops, of which the first two become vectors
        r = np.float64(rating[p])
        bad += not abs(r) <= _LARGEST  # no number is not, either
        out[p] = (min(max(r, bounds[0]), bounds[1]) - scale[0]) / scale[1]
    for p in range(n):
        before = max(p - 1, 0)
        bad += (user[p] < rows[0]) | (user[p] >= rows[1]) | (item[p] < 0) | (item[p] >= n_items)
        bad += (item[p] < item[before]) | (
            (p > 0) & (item[p] == item[before]) & (user[p] <= user[before])
        )
        users[p] = np.uint16(user[p] - rows[0])
    if bad > 0:
        return -1
    n_runs = 0
    for p in range(n):
        if p == 0 or item[p] != item[p - 1]:
            items[n_runs], indptr[n_runs] = item[p], p
            n_runs += 1
    indptr[n_runs] = n
    return n_runs
