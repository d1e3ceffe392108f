"""Stochastic gradient descent for a factor model with biases, one cache-sized batch at a time."""

from typing import Any

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, jit, jit_fast, later

_lanes = later("_lanes")

# A vector is 64 bytes: 16 columns.
CHUNK, VECTOR_BYTES = 16, 64
# At a stride that is a multiple of this, a column of two rows is often at the same place modulo
# 4096 bytes, and a load from one row waits for the store to the other: 10 % at 512 columns.
_ALIASED = 256
_LARGEST = float(np.finfo(np.float64).max)


def _group_size(width: int) -> int:
    """Ratings of a group: with 8, wide rows and the next group's would not fit L1."""
    return 8 if width < 256 else 4


def factor_width(n_components: int) -> int:
    """Return the columns in use of factors with `n_components`: whole vectors of 16."""
    return -(-n_components // CHUNK) * CHUNK


def empty_factors(n_rows: int, n_components: int) -> Array:
    """Return zeros for factors, laid out as :func:`update_batch` is fastest with.

    n_rows: number of rows, spare rows included; n_components: number of components, k. Returns
    (n_rows, stride) float32: on a boundary of 64 bytes; stride = ``factor_width(n_components)``,
    and 16 more where that is a multiple of 256. Columns from `n_components` on are padding and stay
    zero.
    """
    width = factor_width(n_components)
    stride = width + CHUNK if width % _ALIASED == 0 else width
    flat = np.zeros(n_rows * stride + CHUNK, np.float32)
    skip = -flat.ctypes.data % VECTOR_BYTES // flat.itemsize
    return flat[skip : skip + n_rows * stride].reshape(n_rows, stride)


@jit_fast
def _update_loops(model, user_bias, batch, numbers, shrinks, user_weights, bound, group):
    """`update_batch` in plain loops: for other machines, and as plain Python."""
    U, V, item_bias, start, _, width = model
    items, indptr, users, ratings, run_start, run_stop = batch
    step, bias_step, bias_shrink, clip = numbers
    one, squares, new = np.float32(1), 0.0, np.empty(width, np.float32)
    for run in range(run_start, run_stop):
        item, stop = items[run], indptr[run + 1]
        for p in range(indptr[run], stop, len(group)):
            end = min(p + len(group), stop)
            n, total = np.float32(end - p), np.float32(0)
            for c in range(width):
                new[c] = (one - n * shrinks[1, c]) * V[item, c]
            for q in range(p, end):
                row = start + np.int64(users[q])
                error = ratings[q]
                if user_bias is not None:
                    error -= user_bias[row]
                error -= item_bias[item]
                for c in range(width):
                    error -= U[row, c] * V[item, c]
                if bound is not None and not abs(ratings[q] - error) < bound:
                    error = np.float32(0)
                squares += np.float64(error) ** 2
                error = clip if error > clip else -clip if error < -clip else error
                if user_weights is not None:
                    error *= user_weights[row]
                weight = step * error
                for c in range(width):
                    u = U[row, c]
                    new[c] += weight * u
                    U[row, c] = (one - shrinks[0, c]) * u + weight * V[item, c]
                if user_bias is not None:
                    user_bias[row] = (one - bias_shrink) * user_bias[row] + bias_step * error
                total += error
            for c in range(width):
                V[item, c] = new[c]
            item_bias[item] = (one - n * bias_shrink) * item_bias[item] + bias_step * total
    return squares


def update_batch(
    U: Array,
    user_bias: Array | None,
    V: Array,
    item_bias: Array,
    start: int,
    spare: int,
    width: int,
    items: Array,
    indptr: Array,
    users: Array,
    ratings: Array,
    run_start: int,
    run_stop: int,
    step: float,
    bias_step: float,
    penalty: Any,
    clip: float,
    weights: Array | None = None,
    bound: float | None = None,
) -> float:
    """Take one step of stochastic gradient descent for every rating of runs of a batch.

    The model is r_ij ~ <u_i, v_j> + b_i + c_j, and the objective is a sum over ratings::

        1/2 e_ij^2 + penalty / 2 (|u_i|^2 + |v_j|^2 + b_i^2 + c_j^2),
        e_ij = r_ij - <u_i, v_j> - b_i - c_j.

    A batch holds all ratings of a block of users, sorted by item; a *run* is those of one item.
    It goes in groups of G ratings, the last one has what is left: G = 8, and 4 from 256 columns
    on. A group of m ratings takes all its errors e_i, clipped to [-clip, clip], and the u_i and v_j
    on the right from before the group; sums are over its users i::

        u_i <- (1 - step penalty) u_i + step e_i v_j
        v_j <- (1 - m step penalty) v_j + step sum_i e_i u_i
        b_i <- (1 - bias_step penalty) b_i + bias_step e_i
        c_j <- (1 - m bias_step penalty) c_j + bias_step sum_i e_i

    With `weights`, each e_i there is w_i e_i, weighted after the clipping. With a `bound` M the
    loss is (r_ij - clip(p_ij, -M, M))^2 / 2 of the prediction p_ij = r_ij - e_ij, flat from M on:
    e_i is 0 unless -M < p_ij < M.

    With the block's rows of U in the second-level cache, a row of V comes from memory once for
    each batch, not for each rating (sections 5.1-5.3 and Algorithm 2 of Liu, Wang and Smola, "Fast
    Differentially Private Matrix Factorization", RecSys 2015). The groups are ours: they share the
    row of V and make independent work.

    U (n_users + n_spare, stride) float32: factors of the users, overwritten. Made by
    :func:`empty_factors`: C-contiguous, best on a boundary of 64 bytes, columns beyond the number
    of components zero; they stay zero. user_bias (float32 array of shape (n_users + n_spare,) or
    None): biases b, overwritten. None: there are none. V (n_items, stride) float32: factors of the
    items, overwritten; as `U`; item_bias (n_items,) float32: biases c, overwritten; start: row of
    `U` of the batch's first user; spare: row of `U` for lanes without a rating: all zero, bias zero
    too, and stays so. It is written: threads that run at once need one each. width: columns in use,
    ``factor_width(n_components)``; at most the stride; items (n_runs,) int32: item of each run;
    indptr (n_runs + 1,) int64: positions of the runs in `users` and `ratings`; a run may be empty;
    users (uint16 array of shape (n_ratings + 16,) or longer): user of each rating, counted from
    `start`; at most once in a run. What stands behind the last rating is read, and has no effect:
    any value will do. ratings (float32 array of shape (n_ratings + 16,) or longer): ratings,
    standardised to a scale of about one; the end as in `users`; run_start, run_stop: half-open
    range of the runs to do; ranges one after the other do, to the bit, what their union does; step:
    learning rate of the factors, for errors in units of `ratings`; bias_step: learning rate of the
    biases: `step`, or 0 to leave them as they are; penalty: L2 penalty of each rating; or
    (2, width), of each column of its user and of its item, and then none of biases; clip:
    largest error that an update is made with: it bounds what one outlying rating can do; weights
    (n_users + n_spare,) float32: weight w of each row of `U`, finite; of spare rows too, where it
    has no effect. None: all 1. bound: M > 0, from which on predictions do not move. None: none. A
    prediction that overflows is beyond any bound. Result: sum of squared errors of the ratings in
    the range, each before its update and not clipped or weighted; accumulated in float64. NaN or
    infinite when the descent has diverged. With a bound, of the predictions within it only.

    Notes
    -----
    Nothing is checked. Threads with disjoint users may share `V` and `item_bias` without a lock, as
    in the paper: an update may then be lost, and the result depends on the timing.
    """
    if run_start >= run_stop:
        return 0.0
    update = _lanes.update_lanes if _lanes.USE_VECTORS else _update_loops
    rates = (step, bias_step, bias_step * penalty if np.ndim(penalty) == 0 else 0.0, clip)
    shrinks = np.ascontiguousarray(np.broadcast_to(step * penalty, (2, width)), np.float32)
    model, batch = (U, V, item_bias, start, spare, width), (items, indptr, users, ratings)
    given: Any = (
        tuple(np.float32(rate) for rate in rates),
        shrinks,
        weights,
        None if bound is None else np.float32(bound),
    )
    place = model, user_bias, (*batch, run_start, run_stop)
    return float(update(*place, *given, (0,) * _group_size(width)))


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
