"""Item covariances: sums of pairs, cleaning and products of packed matrices.

A symmetric h x h matrix is its packed lower triangle, row by row: entry (i, j), j <= i, stands at
i (i + 1) / 2 + j. Offsets are int64: a triangle may have more than 2^31 entries.
"""

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.jit_and_threads import Array, balanced_blocks, jit, later, part, part_fast

_vectors = later("_vectors")

# How many entries of the next user's row are asked for while one row is read.
_AHEAD = 128

# Rows and columns of a tile of a product: in float64 it fills 32 KiB, and is read once for each
# column of the other factor.
_TILE_ROWS, _TILE_COLUMNS = 4, 1024
# Rows of a triangle that plain forms unpack at a time.
_PLAIN_ROWS = 256
# A pair without ratings has the average, whatever that is.
_LEAST_TOTAL = 1e-300


def _rows_below(packed: Array, first: int, last: int) -> Array:
    """Return rows [first, last) of a packed triangle, zeros from the diagonal on, in float64."""
    rows = np.zeros((last - first, last))
    own = slice(first * (first + 1) // 2, last * (last + 1) // 2)
    rows[np.tri(last - first, last, first, dtype=bool)] = packed[own]
    np.fill_diagonal(rows[:, first:], 0.0)
    return rows


@part_fast
def _multiply_tile(packed, at, i, begin, end, Y, Z):
    """Add columns [begin, end) of rows i to i + 3, and of their mirror image, to Z = P Y.

    Row i begins at place `at`; no column reaches the diagonal. Y and Z are transposed.
    """
    n = end - begin
    first = at + begin
    p0 = packed[first : first + n]
    p1 = packed[first + i + 1 :][:n]
    p2 = packed[first + 2 * i + 3 :][:n]
    p3 = packed[first + 3 * i + 6 :][:n]
    for c in range(Y.shape[0]):
        y, z = Y[c, begin:end], Z[c, begin:end]
        y0, y1, y2, y3 = Y[c, i], Y[c, i + 1], Y[c, i + 2], Y[c, i + 3]
        z0, z1, z2, z3 = 0.0, 0.0, 0.0, 0.0
        for j in range(n):
            z0 += p0[j] * y[j]
            z1 += p1[j] * y[j]
            z2 += p2[j] * y[j]
            z3 += p3[j] * y[j]
            z[j] += p0[j] * y0 + p1[j] * y1 + p2[j] * y2 + p3[j] * y3
        Z[c, i] += z0
        Z[c, i + 1] += z1
        Z[c, i + 2] += z2
        Z[c, i + 3] += z3


@part_fast
def _multiply_row(packed, at, i, begin, Y, Z):
    """Add columns from `begin` to the diagonal of row i, and of its mirror image, to Z = P Y."""
    for c in range(Y.shape[0]):
        for j in range(begin, i):
            Z[c, i] += packed[at + j] * Y[c, j]
            Z[c, j] += packed[at + j] * Y[c, i]
        Z[c, i] += packed[at + i] * Y[c, i]


def _packed_product_plain(packed, scale, X, start, stop, out):
    Y = scale[:stop, None] * X[:stop]
    starts = np.arange(start, stop, dtype=np.int64)
    Z = np.zeros_like(Y)
    Z[start:] = packed[starts * (starts + 3) // 2, None] * Y[start:]
    for first in range(start, stop, _PLAIN_ROWS):
        last = min(first + _PLAIN_ROWS, stop)
        below = _rows_below(packed, first, last)
        Z[first:last] += below @ Y[:last]
        Z[:last] += below.T @ Y[first:last]
    out[:stop] += scale[:stop, None] * Z


@jit(plain=_packed_product_plain)
def packed_product(packed, scale, X, start, stop, out):
    """Add to `out` the part of (D P D) X that rows [start, stop) of a packed triangle give.

    P is symmetric, D = diag(scale). Row i of the triangle stands for row i of P up to the diagonal
    and for column i above it, so that the parts of disjoint ranges add up to the whole.

    packed (h (h + 1) / 2,) float: lower triangle of P, float32 or float64; scale (h,) float64:
    diagonal of D; X (h, m) float64: columns to multiply; out (h, m) float64: rows [0, stop) are
    added to: every thread needs its own, summed in a fixed order after.

    Notes
    -----
    A call takes 16 m stop bytes of working memory, and time to fill it: a few large blocks a
    thread, no more. Sums are of float64 in an order that depends on start and stop alone.
    """
    Y, Z = np.empty((X.shape[1], stop)), np.zeros((X.shape[1], stop))
    for j in range(stop):  # loops compile sooner than slices
        for c in range(X.shape[1]):
            Y[c, j] = scale[j] * X[j, c]
    whole = start + (stop - start) // _TILE_ROWS * _TILE_ROWS
    for begin in range(0, whole, _TILE_COLUMNS):
        skipped = max(begin - start + _TILE_ROWS - 1, 0) // _TILE_ROWS
        for i in range(start + skipped * _TILE_ROWS, whole, _TILE_ROWS):
            end = min(begin + _TILE_COLUMNS, i)
            _multiply_tile(packed, i * (i + 1) // 2, i, begin, end, Y, Z)
            if i < begin + _TILE_COLUMNS:
                for r in range(i, i + _TILE_ROWS):
                    _multiply_row(packed, r * (r + 1) // 2, r, i, Y, Z)
    for i in range(whole, stop):
        _multiply_row(packed, i * (i + 1) // 2, i, 0, Y, Z)
    for j in range(stop):
        for c in range(X.shape[1]):
            out[j, c] += scale[j] * Z[c, j]


def _entries(packed: Array, i: Array, j: Array) -> Array:
    """Return entries (i, j) of a packed symmetric matrix, in either order."""
    low, high = np.minimum(i, j).astype(np.int64), np.maximum(i, j).astype(np.int64)
    return packed[high * (high + 1) // 2 + low]


@part
def _entry(packed, i, j):
    """Return entry (i, j) of a packed symmetric matrix, in either order."""
    low, high = np.int64(min(i, j)), np.int64(max(i, j))
    return packed[high * (high + 1) // 2 + low]


def _packed_rows_plain(packed, rows, columns, out):
    out[:] = _entries(packed, rows[:, None], columns)


@jit(plain=_packed_rows_plain)
def packed_rows(packed, rows, columns, out):
    """Gather a block of a packed symmetric matrix.

    packed (h (h + 1) / 2,): lower triangle; rows, columns (n,) and (m,) integer: items, in any
    order; out (n, m): out[a, b] = P[rows[a], columns[b]].
    """
    for a in range(rows.shape[0]):
        for b in range(columns.shape[0]):
            out[a, b] = _entry(packed, rows[a], columns[b])


def _pair_sums_plain(cov, wgt, mass, start, stop, out):
    out[:] = 0.0
    for first in range(start, stop, _PLAIN_ROWS):
        last = min(first + _PLAIN_ROWS, stop)
        C, W = _rows_below(cov, first, last), _rows_below(wgt, first, last)
        own, N = mass[first:last], mass[:last]
        out += C.sum(), W.sum(), own @ (W @ N), np.vdot(W, W), own @ (C @ N), np.vdot(C, C)


@jit(plain=_pair_sums_plain)
def pair_sums(cov, wgt, mass, start, stop, out):
    """Sums over the entries off the diagonal of two packed triangles, rows [start, stop).

    cov, wgt (h (h + 1) / 2,) float: packed triangles C and W; mass (h,) float64: popularity N; out
    (6,) float64: overwritten: sums of C_ij, W_ij, W_ij N_i N_j, W_ij^2, C_ij N_i N_j and C_ij^2.
    """
    out[:] = 0.0
    for i in range(start, stop):
        at = np.int64(i) * (i + 1) // 2
        total, weights, cross, squares = 0.0, 0.0, 0.0, 0.0
        cov_cross, cov_squares = 0.0, 0.0
        for j in range(i):
            c, w = np.float64(cov[at + j]), np.float64(wgt[at + j])
            total += c
            weights += w
            cross += w * mass[j]
            squares += w * w
            cov_cross += c * mass[j]
            cov_squares += c * c
        out[0] += total
        out[1] += weights
        out[2] += cross * mass[i]
        out[3] += squares
        out[4] += cov_cross * mass[i]
        out[5] += cov_squares


def _clean_pairs_plain(cov, wgt, mass, slope, relative, noise, shrinkage, mean, start, stop):
    for i in range(start, stop):
        own = slice(i * (i + 1) // 2, (i + 1) * (i + 2) // 2)
        w = wgt[own].astype(np.float64)
        if noise > 0.0:
            expected = slope * mass[i] * mass[: i + 1]
            signal = relative * expected * expected
            w = expected + (w - expected) * (signal / (signal + noise * noise))
            wgt[own] = w = np.maximum(w, 0.0)
        total = np.maximum(w + shrinkage, _LEAST_TOTAL)
        cov[own] = (cov[own].astype(np.float64) + shrinkage * mean) / total


@jit(plain=_clean_pairs_plain)
def clean_pairs(cov, wgt, mass, slope, relative, noise, shrinkage, mean, start, stop):
    """Shrink weights to their expectation and divide: rows [start, stop), in place.

    With E = slope N_i N_j, W <- max(E + (W - E) s / (s + noise^2), 0), s = relative E^2; and then
    C <- (C + shrinkage mean) / (W + shrinkage). Without noise W stays.

    cov, wgt (h (h + 1) / 2,) float: packed triangles C and W, overwritten; mass (h,) float64:
    popularity N; slope, relative: slope of the expectation, and variance of the weights around it,
    relative to its square; noise: standard deviation of the noise in W; shrinkage, mean: weight of
    the average and the average.
    """
    for i in range(start, stop):
        at = np.int64(i) * (i + 1) // 2
        for j in range(i + 1):
            w = np.float64(wgt[at + j])
            if noise > 0.0:
                expected = slope * mass[i] * mass[j]
                signal = relative * expected * expected
                w = expected + (w - expected) * (signal / (signal + noise * noise))
                w = max(w, 0.0)
                wgt[at + j] = w
            total = max(w + shrinkage, _LEAST_TOTAL)
            cov[at + j] = (np.float64(cov[at + j]) + shrinkage * mean) / total


def triangle_starts(n_rows: int) -> NDArray[np.int64]:
    """Return where each row of a packed triangle begins, and where the last one ends.

    n_rows: h. Returns (n_rows + 1,) int64: i (i + 1) / 2: also the work of the rows for
    `balanced_blocks` and `packed_product`.
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
    empty, which takes a third less time.

    Notes
    -----
    Sums of integers depend on no order and no cut into blocks. They wrap around unless
    sum_u w_u max(x_ui^2, 1) < 2^62 unit for every item i: the caller's condition.

    The two products raise a magnitude by less than 2^-51 relative. With weights rounded down by
    2^-50 no user counts for more than its exact abs(w_u x_ui x_uj / unit).
    """
    per_unit = 1.0 / unit
    weighted = wgt.shape[0] > 0
    sums = _vectors.scratch(2 * stop, np.int64)
    n_stored = item_user.shape[0]
    at = 0
    for i in range(start, stop):
        for t in range(item_ptr[i], item_ptr[i + 1]):
            ahead = min(t + 1, n_stored - 1)
            first = indptr[item_user[ahead]]
            for near in range(first, min(first + _AHEAD, item_entry[ahead]), 16):
                _vectors.prefetch(indices, near)
                _vectors.prefetch(x, near)
                _vectors.prefetch(x, near + 8)
            u, last = item_user[t], item_entry[t]
            scaled = weight[u] * per_unit  # exact
            begin, end = np.uint64(indptr[u]), np.uint64(last + 1)  # unsigned: no test of signs
            left, n = scaled * x[last], np.int64(scaled)
            for p in range(begin, begin if weighted else end):
                sums[np.uint64(indices[p])] += np.int64(left * x[p])
            for p in range(begin, end if weighted else begin):  # even places: cov; odd ones: wgt
                at_cov = np.uint64(2) * np.uint64(indices[p])
                sums[at_cov] += np.int64(left * x[p])
                sums[at_cov + np.uint64(1)] += n
        for j in range(i + 1):  # loops compile sooner than slices
            of = 2 * j if weighted else j
            cov[at + j], sums[of] = sums[of], 0
            if weighted:
                wgt[at + j], sums[of + 1] = sums[of + 1], 0
        at += i + 1


def pair_products(indptr: Array, indices: Array, x: Array, items: Any, unit: float) -> Array:
    """Sum x x^T over users, exactly, in whole numbers of a unit, by `accumulate_pairs`.

    indptr, indices, x: the users' rows, as there; items: item_ptr, item_user and item_entry,
    as there; unit: a power of two of which all products are multiples. Returns
    (n_items (n_items + 1) / 2,) int64: the packed triangle.
    """
    h = len(items[0]) - 1
    cov, wgt = np.empty(h * (h + 1) // 2, np.int64), np.empty(0, np.int64)
    columns = indices.astype(np.uint16 if h < 2**16 else np.int64)
    accumulate_pairs(indptr, columns, x, np.ones(len(indptr) - 1), *items, unit, 0, h, cov, wgt)
    return cov
