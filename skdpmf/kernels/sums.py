"""Exact sums over users for releases, and the norms that users are clipped by.

Terms are truncated towards zero to a public grid, which raises no norm; products and sums of such
terms are exact in float64, so that neither order nor blocks nor threads change a bit. What bounds
a user's contribution is the callers' part: `skdpmf.privacy.sums`.
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
def _size(x, l1):
    return abs(x) if l1 else x * x


def _row_norms_plain(indptr, terms, l1, start, stop, out):
    # reduceat adds a row pairwise, its last 128 terms in 8 chains: a sum of positive terms, each of
    # which is rounded at most 20 + log2(n) times, is right to so many units of 2^-53.
    own, counts = terms[indptr[start] : indptr[stop]], np.diff(indptr[start : stop + 1])
    held, norms = np.flatnonzero(counts), out[start:stop]
    norms[:] = 0.0
    if len(held):
        first = (indptr[start:stop] - indptr[start])[held]
        norms[held] = np.add.reduceat(np.abs(own) if l1 else own * own, first)
    norms[:] = norms if l1 else np.sqrt(norms)


@jit(plain=_row_norms_plain)
def row_norms(indptr, terms, l1, start, stop, out):
    """Norm of every row of terms: l2, or l1.

    Sums of 256 terms are added up with compensation (Kahan): the relative error stays below 100
    units in the last place, 2^-46, however long a row is. A bound on the norm may count with that.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; terms
    (n_stored,) float64: values; l1: sum of magnitudes rather than root of the sum of squares; out
    (n_rows,) float64: rows [start, stop) are overwritten.
    """
    for i in range(start, stop):
        total, lost = 0.0, 0.0
        for first in range(indptr[i], indptr[i + 1], 256):
            last = min(first + 256, indptr[i + 1])
            a, b, c, d = 0.0, 0.0, 0.0, 0.0  # chains that do not wait for one another
            for p in range(first, last - 3, 4):
                a += _size(terms[p], l1)
                b += _size(terms[p + 1], l1)
                c += _size(terms[p + 2], l1)
                d += _size(terms[p + 3], l1)
            for p in range(first + (last - first) // 4 * 4, last):
                a += _size(terms[p], l1)
            part = (a + b) + (c + d) - lost
            grown = total + part
            lost = (grown - total) - part
            total = grown
        out[i] = total if l1 else np.sqrt(total)


def _accumulate_rhs_plain(indptr, indices, terms, scale, factors, grid, start, stop, out):
    own = slice(indptr[start], indptr[stop])
    rows = np.repeat(np.arange(start, stop), np.diff(indptr[start : stop + 1]))
    finite = np.isfinite(terms[own])
    items, rows = indices[own][finite].astype(np.intp), rows[finite]
    t = _truncated.function(scale[rows] * terms[own][finite], grid)
    z = _truncated.function(factors[start:stop].T, grid)
    for c in range(len(z)):
        out[:, c] += np.bincount(items, t * z[c, rows - start], len(out))


@jit(plain=_accumulate_rhs_plain)
def accumulate_rhs(indptr, indices, terms, scale, factors, grid, start, stop, out):
    """Add sum_i t_ij z_i over the rows i in [start, stop) of a CSR matrix to row j of `out`.

    t_ij = trunc(scale_i terms_ij) and z_i = trunc(u_i), both truncated *towards zero* to multiples
    of `grid`. So |z_i| sqrt(sum_j t_ij^2), the norm of what row i adds to all items together, is
    at most |u_i| scale_i sqrt(sum_j terms_ij^2): truncation never raises a sensitivity.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item j of each position; terms (n_stored,) float64: such as weighted
    residuals. What is not finite counts as 0. scale (n_rows,) float64: such as clip factors, in [0,
    1]; factors (n_rows, k) float64: rows u_i; grid: a power of two, or 0 for no truncation (the
    non-private limit); out (n_items, k) float64: the sums are added to it.

    Notes
    -----
    Products and sums are exact, so that neither the order of the rows nor how they are shared out
    to calls (whose results are added) can change a bit, as long as sum_i |t_ij z_ic| stays below
    2^53 grid^2 for all items and columns: the caller's condition. Without a grid sums are rounded.
    """
    k, z = factors.shape[1], _vectors.scratch(factors.shape[1], out)
    for i in range(start, stop):
        for c in range(k):
            z[c] = _truncated(factors[i, c], grid)
        for p in range(indptr[i], indptr[i + 1]):
            if not np.isfinite(terms[p]):
                continue
            j, t = indices[p], _truncated(scale[i] * terms[p], grid)
            for c in range(k):
                out[j, c] += t * z[c]


@part
def _truncated(x, grid):
    """Return x truncated towards zero to the grid, a power of two: both scalings are exact."""
    return np.trunc(x / grid) * grid if grid > 0.0 else x


@part
def _truncate(array, grid):
    """Truncate towards zero to the grid, a power of two: both scalings are exact."""
    inverse = 1.0 / grid
    for c in range(array.shape[0]):
        array[c] = np.trunc(array[c] * inverse) * grid


@part
def _truncate_panel(panel, n, grid):
    lanes = _vectors.lanes_of(panel)
    for at in range(0, panel.shape[0], _vectors.slab_of(panel)):
        _truncate(panel[at : at + n * lanes], grid)


def _accumulate_items_plain(
    indptr, users, weights, targets, factors, grid, start, stop, out_gram, out_rhs
):
    lower = np.tril_indices(factors.shape[1])
    for j in range(start, stop):
        own = slice(indptr[j], indptr[j + 1])
        roots = np.sqrt(weights[own])
        z = _truncated.function(roots[:, None] * factors.take(users[own], axis=0), grid)
        t = _truncated.function(roots * targets[own], grid)
        out_gram[j] = (z.T @ z)[lower] + 0.0  # no negative zero
        out_rhs[j] = t @ z + 0.0


@jit(plain=_accumulate_items_plain)
def accumulate_items(
    indptr, users, weights, targets, factors, grid, start, stop, out_gram, out_rhs
):
    """Sufficient statistics of every item's regression on its users, exact on a grid.

    With z_ij = trunc(sqrt(w_ij) u_i) and t_ij = trunc(sqrt(w_ij) y_ij), truncated *towards zero*
    to multiples of `grid`: gram_j = sum_i z_ij z_ij^T and rhs_j = sum_i t_ij z_ij. Truncation
    never raises the norm of what sensitivities are stated for: the double sqrt(w_ij) u_i.

    indptr (n_items + 1,) integer: item j (a column in CSC) owns the positions indptr[j] to indptr[j
    + 1]; users (n_stored,) integer: user i of each position; weights, targets (n_stored,) float64:
    w_ij >= 0 and y_ij; factors (n_users, k) float64: rows u_i, C-contiguous; grid: a power of two,
    or 0 for no truncation (the non-private limit); out_gram (n_items, k (k + 1) / 2) float64: rows
    [start, stop) are overwritten with the packed lower triangles: element (c, d), d <= c, stands at
    c (c + 1) / 2 + d. Zeros for an item without ratings. out_rhs (n_items, k) float64: rows [start,
    stop) are overwritten.

    Notes
    -----
    Products and sums are exact, so that no order of the ratings can change a bit, as long as
    sum_i |z_ic z_id| and sum_i |t_i z_ic| stay below 2^53 grid^2: the caller's condition, a bound
    on the number of ratings times the squared norm. Without a grid the sums are rounded.
    """
    k = factors.shape[1]
    panel, gram = _vectors.new_panel(k, out_gram), _vectors.new_gram(k, out_gram)
    rhs = _vectors.scratch(gram.shape[1], out_gram)
    roots, t = np.empty(_vectors.PANEL_ROWS), np.empty(_vectors.PANEL_ROWS)
    for j in range(start, stop):
        gram[:] = 0.0
        rhs[:] = 0.0
        for first in range(indptr[j], indptr[j + 1], _vectors.PANEL_ROWS):
            n = min(_vectors.PANEL_ROWS, indptr[j + 1] - first)
            for p in range(n):
                roots[p] = np.sqrt(weights[first + p])
                t[p] = roots[p] * targets[first + p]
            _vectors.load_panel(factors, users[first : first + n], roots, n, panel)
            if grid > 0.0:
                _truncate_panel(panel, n, grid)
                _truncate(t[:n], grid)
            _vectors.add_panel(panel, t, n, gram, rhs)
        _vectors.pack_lower(gram, k, out_gram[j])
        for c in range(k):
            out_rhs[j, c] = rhs[c]


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


@part
def _add_row(indices, x, begin, last, left, n, sums):
    """Add one user's share to one row of sums: even places for cov, odd ones for wgt."""
    for p in range(np.uint64(begin), np.uint64(last + 1)):  # unsigned: no test for negative indices
        j = np.uint64(2) * np.uint64(indices[p])
        sums[j] += np.int64(left * x[p])
        sums[j + np.uint64(1)] += n


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
    / 2 - start (start + 1) / 2,) int64: overwritten with these rows of the triangles.

    Notes
    -----
    Sums of integers depend on no order and no cut into blocks. They wrap around unless
    sum_u w_u max(x_ui^2, 1) < 2^62 unit for every item i: the caller's condition.

    The two products raise a magnitude by less than 2^-51 relative. With weights rounded down by
    2^-50 no user counts for more than its exact abs(w_u x_ui x_uj / unit).
    """
    per_unit = 1.0 / unit
    sums = _vectors.scratch(2 * stop, np.int64)
    n_stored = item_user.shape[0]
    at = 0
    for i in range(start, stop):
        for t in range(item_ptr[i], item_ptr[i + 1]):
            ahead = min(t + 1, n_stored - 1)
            begin = indptr[item_user[ahead]]
            for p in range(begin, min(begin + _AHEAD, item_entry[ahead]), 16):
                _vectors.prefetch(indices, p)
                _vectors.prefetch(x, p)
                _vectors.prefetch(x, p + 8)
            u, last = item_user[t], item_entry[t]
            scaled = weight[u] * per_unit  # exact
            _add_row(indices, x, indptr[u], last, scaled * x[last], np.int64(scaled), sums)
        for j in range(i + 1):  # loops compile sooner than slices
            cov[at + j], wgt[at + j] = sums[2 * j], sums[2 * j + 1]
            sums[2 * j] = sums[2 * j + 1] = 0
        at += i + 1


def pair_products(indptr: Array, indices: Array, x: Array, items: Any, unit: float) -> Array:
    """Sum x x^T over users, exactly, in whole numbers of a unit, by `accumulate_pairs`.

    indptr, indices, x: the users' rows, as there; items: item_ptr, item_user and item_entry,
    as there; unit: a power of two of which all products are multiples. Returns
    (n_items (n_items + 1) / 2,) int64: the packed triangle.
    """
    h = len(items[0]) - 1
    cov, wgt = np.empty((2, h * (h + 1) // 2), np.int64)
    columns = indices.astype(np.uint16 if h < 2**16 else np.int64)
    accumulate_pairs(indptr, columns, x, np.ones(len(indptr) - 1), *items, unit, 0, h, cov, wgt)
    return cov
