"""Item covariances: exact sums of pairs, packed.

A symmetric h x h matrix is its packed lower triangle, row by row: entry (i, j), j <= i, stands at
i (i + 1) / 2 + j. Offsets are int64: a triangle may have more than 2^31 entries.
"""

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.jit_and_threads import Array, balanced_blocks, jit, later, part

_vectors = later("_vectors")

# How many entries of the next user's row are asked for while one row is read.
_AHEAD = 128


@part
def _entry(packed, i, j):
    """Return entry (i, j) of a packed symmetric matrix, in either order."""
    low, high = np.int64(np.minimum(i, j)), np.int64(np.maximum(i, j))
    return packed[high * (high + 1) // 2 + low]


_entries = _entry.function  # the same of arrays


def triangle_starts(n_rows: int) -> NDArray[np.int64]:
    """Return where each row of a packed triangle begins, and where the last one ends.

    n_rows: h. Returns (n_rows + 1,) int64: i (i + 1) / 2: also the work of the rows for
    `balanced_blocks`.
    """
    rows = np.arange(n_rows + 1, dtype=np.int64)
    return rows * (rows + 1) // 2


def pair_blocks(work: Array, n_blocks: int, max_entries: int) -> list[tuple[int, int]]:
    """Cut the rows of a triangle into blocks of about equal work and bounded size.

    work (n_items + 1,) int64: cumulative work of the rows, such as `triangle_starts`; n_blocks:
    number of blocks wished for, at least 1; the bound on their size can make it more;
    max_entries: most entries of the triangle in a block, at least 1; a single longer row is a
    block. Result: half-open row ranges that cover all rows in order.
    """
    blocks = []
    for start, stop in balanced_blocks(work, n_blocks):
        while start < stop:
            room = start * (start + 1) // 2 + max_entries
            # the largest row number whose row begins at or before `room`
            end = (isqrt(8 * room + 1) - 1) // 2
            end = min(stop, max(end, start + 1))
            blocks.append((start, end))
            start = end
    return blocks


def _accumulate_pairs_plain(
    indptr, indices, x, weight, item_ptr, item_user, item_entry, unit, start, stop, cov, wgt
):
    cov[:], wgt[:] = 0, 0
    own = slice(item_ptr[start], item_ptr[stop])
    users, entries = item_user[own], item_entry[own].astype(np.int64)
    starts = triangle_starts(stop)[start:]
    places = np.repeat(starts[:-1] - starts[0], np.diff(item_ptr[start : stop + 1]))
    first, scaled = indptr[users].astype(np.int64), weight[users] * (1.0 / unit)
    counts = entries - first + 1
    left, whole = scaled * x[entries], scaled.astype(np.int64)
    after = np.append(0, np.cumsum(counts))
    block, done = 1 << 17, 0  # pairs at a time, which stay in the second-level cache
    while done < len(users):
        end = max(np.searchsorted(after, after[done] + block), done + 1)
        t = np.repeat(np.arange(done, min(end, len(users))), counts[done:end])
        entry = first[t] + np.arange(after[done], after[done] + len(t)) - after[t]
        place = places[t] + indices[entry]
        if cov.size:
            np.add.at(cov, place, (left[t] * x[entry]).astype(np.int64))
        if wgt.size:
            np.add.at(wgt, place, whole[t])
        done = end


@jit(plain=_accumulate_pairs_plain)
def accumulate_pairs(
    indptr, indices, x, weight, item_ptr, item_user, item_entry, unit, start, stop, cov, wgt
):
    """Sum w x x^T and w e e^T over users, exactly, in whole numbers of a unit.

    Rows [start, stop) of the packed triangles of Cov and Wgt: each user u who rated i and j <= i
    adds trunc(((w_u / unit) x_ui) x_uj) to Cov_ij and trunc(w_u / unit) to Wgt_ij; trunc rounds
    towards zero, the products are rounded to float64 in this order.

    indptr (n_users + 1,) integer: user u owns the positions indptr[u] to indptr[u + 1]; indices
    (n_stored,) integer: items, ascending for each user. Fast in int32, faster in uint16. x
    (n_stored,) float64 or float32: centred ratings. Float32 is read faster and taken for the
    float64 that it equals. weight (n_users,) float64: w_u >= 0; item_ptr, item_user,
    item_entry: who rated each item, users ascending, and where the rating stands in the users'
    rows: a CSC pattern and positions; unit: a power of two; cov, wgt (stop (stop + 1)
    / 2 - start (start + 1) / 2,) int64: overwritten with these rows of the triangles; wgt may be
    empty, which takes a third less time, or cov, which takes two thirds less.

    Notes
    -----
    Sums of integers depend on no order and no cut into blocks. They wrap around unless
    sum_u w_u max(x_ui^2, 1) < 2^62 unit for every item i: the caller's condition.

    The two products raise a magnitude by less than 2^-51 relative. With weights rounded down by
    2^-50 no user counts for more than its exact abs(w_u x_ui x_uj / unit).
    """
    per_unit = 1.0 / unit
    rated, weighted = cov.shape[0] > 0, wgt.shape[0] > 0
    both = rated and weighted
    sums = _vectors.scratch(2 * stop, np.int64)
    n_stored = item_user.shape[0]
    at = 0
    for i in range(start, stop):
        for t in range(item_ptr[i], item_ptr[i + 1]):
            ahead = min(t + 1, n_stored - 1)
            first = indptr[item_user[ahead]]
            for near in range(first, min(first + _AHEAD, item_entry[ahead]), 16):
                _vectors.prefetch(indices, near)
                if rated:
                    _vectors.prefetch(x, near)
                    _vectors.prefetch(x, near + 8)
            u, last = item_user[t], item_entry[t]
            scaled = weight[u] * per_unit  # exact
            begin, end = np.uint64(indptr[u]), np.uint64(last + 1)  # unsigned: no test of signs
            left, n = scaled * x[last] if rated else scaled, np.int64(scaled)
            for p in range(begin, begin if both else end):
                sums[np.uint64(indices[p])] += np.int64(left * x[p]) if rated else n
            for p in range(begin, end if both else begin):  # even places: cov; odd ones: wgt
                at_cov = np.uint64(2) * np.uint64(indices[p])
                sums[at_cov] += np.int64(left * x[p])
                sums[at_cov + np.uint64(1)] += n
        for j in range(i + 1):  # loops compile sooner than slices
            of = 2 * j if both else j
            if rated:
                cov[at + j], sums[of] = sums[of], 0
            if weighted:
                wgt[at + j], sums[of + both] = sums[of + both], 0
        at += i + 1


def pair_products(R: Any, x: Array, unit: float) -> Array:
    """Sum x x^T over users, exactly, in whole numbers of a unit, by `accumulate_pairs`.

    R: CSR pattern of the users' rows, items ascending; x (n_stored,): as there; unit: a power of
    two of which all products are multiples. Returns (n_items (n_items + 1) / 2,) int64: the packed
    triangle. A user's products are one number where all x are: such sums are of weights alone.
    """
    h, indptr = R.shape[1], R.indptr
    sums, none = np.empty(h * (h + 1) // 2, np.int64), np.empty(0, np.int64)
    columns = R.indices.astype(np.uint16 if h < 2**16 else np.int64)
    at = np.arange(len(x), dtype=np.int32 if len(x) < 2**31 else np.int64)
    C, weight = type(R)((at, R.indices, indptr), R.shape).tocsc(), np.append(x, 0.0)[indptr[:-1]]
    even = np.array_equal(np.repeat(weight, np.diff(indptr)), x)
    weight, out = (weight**2, (none, sums)) if even else (np.ones(len(weight)), (sums, none))
    accumulate_pairs(indptr, columns, x, weight, C.indptr, C.indices, C.data, unit, 0, h, *out)
    return sums
