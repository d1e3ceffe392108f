"""Item covariances: exact sums over pairs of ratings, and products.

A symmetric h x h matrix is its packed lower triangle, row by row: entry (i, j), j <= i, stands at
i (i + 1) / 2 + j. Offsets are int64: a triangle may have more than 2^31 entries.
"""

from math import isqrt
from typing import Any

import numpy as np
from numba.core import config
from numpy.typing import NDArray

from skdpmf.kernels._blocks import balanced_blocks
from skdpmf.kernels._jit import jit, jit_fast

__all__ = [
    "accumulate_pairs",
    "clean_pairs",
    "item_major",
    "packed_product",
    "packed_rows",
    "pair_blocks",
    "pair_sums",
    "pair_work",
    "triangle_starts",
]

Array = NDArray[Any]

# How many entries of the next user's row are asked for while one row is read.
_AHEAD = 128
# Rows and columns of a tile of a product: in float64 it fills 32 KiB, and is read once for each
# column of the other factor.
_TILE_ROWS, _TILE_COLUMNS = 4, 1024

if config.DISABLE_JIT:

    def prefetch(array: Any, offset: int) -> None:
        """Do nothing."""

else:
    from skdpmf.kernels._lanes import prefetch


def triangle_starts(n_rows: int) -> NDArray[np.int64]:
    """Return where each row of a packed triangle begins, and where the last one ends.

    Parameters
    ----------
    n_rows : int
        h.

    Returns
    -------
    int64 array of shape (n_rows + 1,)
        i (i + 1) / 2: also the work of the rows for `balanced_blocks` and `packed_product`.

    Examples
    --------
    >>> from skdpmf.kernels.covariance import triangle_starts
    >>> triangle_starts(3)
    array([0, 1, 3, 6])
    """
    rows = np.arange(n_rows + 1, dtype=np.int64)
    return rows * (rows + 1) // 2


@jit
def _fill_item_major(indptr: Any, indices: Any, item_ptr: Any, users: Any, entries: Any) -> None:
    """Counting sort; item_ptr holds zeros."""
    for p in range(indices.shape[0]):
        item_ptr[indices[p] + 1] += 1
    for i in range(item_ptr.shape[0] - 1):
        item_ptr[i + 1] += item_ptr[i]
    places = item_ptr[:-1].copy()
    for u in range(indptr.shape[0] - 1):
        for p in range(indptr[u], indptr[u + 1]):
            place = places[indices[p]]
            places[indices[p]] = place + 1
            users[place] = u
            entries[place] = p


def item_major(indptr: Array, indices: Array, n_items: int) -> tuple[Array, Array, Array]:
    """Return who rated each item, and where the rating stands in the users' rows.

    Parameters
    ----------
    indptr : integer array of shape (n_users + 1,)
        User u owns the positions indptr[u] to indptr[u + 1]; indptr[0] is 0.
    indices : integer array of shape (n_stored,)
        Item of each position.
    n_items : int
        Items of the catalogue.

    Returns
    -------
    item_ptr : int64 array of shape (n_items + 1,)
        Item i owns item_ptr[i] to item_ptr[i + 1] of the other two.
    item_user : int32 or int64 array of shape (n_stored,)
        Users of each item, ascending.
    item_entry : int32 or int64 array of shape (n_stored,)
        Position of each rating in `indices`.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.covariance import item_major
    >>> pointers, users, entries = item_major(np.array([0, 2, 3]), np.array([0, 2, 2]), 3)
    >>> pointers.tolist(), users.tolist(), entries.tolist()
    ([0, 1, 1, 3], [0, 0, 1], [0, 1, 2])
    """
    n_stored = len(indices)
    item_ptr = np.zeros(n_items + 1, np.int64)
    users, entries = (
        np.empty(n_stored, np.int32 if size < 2**31 else np.int64)
        for size in (len(indptr), n_stored)
    )
    _fill_item_major(indptr, indices, item_ptr, users, entries)
    return item_ptr, users, entries


@jit
def pair_work(
    indptr: Array, item_ptr: Array, item_user: Array, item_entry: Array, out: Array
) -> None:
    """Cumulative work of `accumulate_pairs`: pairs of ratings plus entries of the triangle.

    Parameters
    ----------
    indptr : integer array of shape (n_users + 1,)
        Row pointers of the users.
    item_ptr, item_user, item_entry
        What `item_major` returns.
    out : int64 array of shape (n_items + 1,)
        Overwritten: rows [start, stop) of the triangle take out[stop] - out[start].

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.covariance import item_major, pair_work
    >>> indptr, work = np.array([0, 2, 3]), np.empty(4, np.int64)
    >>> pair_work(indptr, *item_major(indptr, np.array([0, 2, 2]), 3), work)
    >>> work
    array([ 0,  2,  4, 10])
    """
    out[0] = 0
    for i in range(item_ptr.shape[0] - 1):
        work = out[i] + i + 1
        for t in range(item_ptr[i], item_ptr[i + 1]):
            work += item_entry[t] - indptr[item_user[t]] + 1
        out[i + 1] = work


def pair_blocks(work: Array, n_blocks: int, max_entries: int) -> list[tuple[int, int]]:
    """Cut the rows of a triangle into blocks of about equal work and bounded size.

    Parameters
    ----------
    work : int64 array of shape (n_items + 1,)
        Cumulative work of the rows: of `pair_work`, or `triangle_starts`.
    n_blocks : int
        Number of blocks wished for, at least 1; the bound on their size can make it more.
    max_entries : int
        Most entries of the triangle in a block, at least 1; a single longer row is a block.

    Returns
    -------
    list of (start, stop)
        Half-open row ranges that cover all rows in order.

    Raises
    ------
    ValueError
        If `n_blocks` or `max_entries` is smaller than 1.

    Examples
    --------
    >>> from skdpmf.kernels.covariance import pair_blocks, triangle_starts
    >>> pair_blocks(triangle_starts(6), 2, 8)
    [(0, 3), (3, 4), (4, 5), (5, 6)]
    """
    if max_entries < 1:
        raise ValueError(
            f"max_entries={max_entries!r} must be at least 1; pass how many entries fit in memory."
        )
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


@jit
def _add_row(indices: Any, x: Any, left: Any, count: Any, sums: Any) -> None:
    """Add one user's share to one row of sums: even places for cov, odd ones for wgt."""
    for p in range(indices.shape[0]):
        j = np.uint64(2) * np.uint64(indices[p])  # unsigned: no test for negative indices
        sums[j] += np.int64(left * x[p])
        sums[j + np.uint64(1)] += count


@jit
def _move_row(sums: Any, at: Any, n: Any, cov: Any, wgt: Any) -> None:
    """Write the sums of a row of n entries from place `at` on and leave zeros."""
    for j in range(n):
        cov[at + j] = sums[2 * j]
        wgt[at + j] = sums[2 * j + 1]
    sums[: 2 * n] = 0


@jit
def accumulate_pairs(
    indptr: Array,
    indices: Array,
    x: Array,
    weight: Array,
    item_ptr: Array,
    item_user: Array,
    item_entry: Array,
    unit: float,
    start: int,
    stop: int,
    cov: Array,
    wgt: Array,
) -> None:
    """Sum w x x^T and w e e^T over users, exactly, in whole numbers of a unit.

    Rows [start, stop) of the packed triangles of Cov and Wgt: each user u who rated i and j <= i
    adds trunc(((w_u / unit) x_ui) x_uj) to Cov_ij and trunc(w_u / unit) to Wgt_ij; trunc rounds
    towards zero, the products are rounded to float64 in this order.

    Parameters
    ----------
    indptr : integer array of shape (n_users + 1,)
        User u owns the positions indptr[u] to indptr[u + 1].
    indices : integer array of shape (n_stored,)
        Items, ascending for each user. Fast in int32, faster in uint16.
    x : float64 or float32 array of shape (n_stored,)
        Centred ratings. Float32 is read faster and taken for the float64 that it equals.
    weight : float64 array of shape (n_users,)
        w_u >= 0.
    item_ptr, item_user, item_entry
        What `item_major` returns for the same pattern.
    unit : float
        A power of two.
    start, stop : int
        Rows of the triangle.
    cov, wgt : int64 arrays of shape (stop (stop + 1) / 2 - start (start + 1) / 2,)
        Overwritten with these rows of the triangles.

    Notes
    -----
    Sums of integers depend on no order and no cut into blocks. They wrap around unless
    sum_u w_u max(x_ui^2, 1) < 2^62 unit for every item i: the caller's condition.

    The two products raise a magnitude by less than 2^-51 relative. With weights rounded down by
    2^-50 no user counts for more than its exact abs(w_u x_ui x_uj / unit).

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.covariance import accumulate_pairs, item_major
    >>> indptr, indices = np.array([0, 2, 3]), np.array([0, 1, 1])
    >>> x, weight = np.array([1.0, -0.5, 0.25]), np.array([1.0, 2.0])
    >>> cov, wgt = np.empty(3, np.int64), np.empty(3, np.int64)
    >>> items = item_major(indptr, indices, 2)
    >>> accumulate_pairs(indptr, indices, x, weight, *items, 0.125, 0, 2, cov, wgt)
    >>> cov, wgt
    (array([ 8, -4,  3]), array([ 8,  8, 24]))
    """
    per_unit = 1.0 / unit
    sums = np.zeros(2 * stop, np.int64)
    n_stored = item_user.shape[0]
    at = 0
    for i in range(start, stop):
        for t in range(item_ptr[i], item_ptr[i + 1]):
            ahead = min(t + 1, n_stored - 1)
            begin = indptr[item_user[ahead]]
            for p in range(begin, min(begin + _AHEAD, item_entry[ahead]), 16):
                prefetch(indices, p)
                prefetch(x, p)
                prefetch(x, p + 8)
            u, last = item_user[t], item_entry[t]
            scaled = weight[u] * per_unit  # exact
            own = slice(indptr[u], last + 1)
            _add_row(indices[own], x[own], scaled * x[last], np.int64(scaled), sums)
        _move_row(sums, at, i + 1, cov, wgt)
        at += i + 1


@jit_fast
def _multiply_tile(packed: Any, at: Any, i: Any, begin: Any, end: Any, Y: Any, Z: Any) -> None:
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


@jit_fast
def _multiply_row(packed: Any, at: Any, i: Any, begin: Any, Y: Any, Z: Any) -> None:
    """Add columns from `begin` to the diagonal of row i, and of its mirror image, to Z = P Y."""
    for c in range(Y.shape[0]):
        for j in range(begin, i):
            Z[c, i] += packed[at + j] * Y[c, j]
            Z[c, j] += packed[at + j] * Y[c, i]
        Z[c, i] += packed[at + i] * Y[c, i]


@jit
def packed_product(
    packed: Array, scale: Array, X: Array, start: int, stop: int, out: Array
) -> None:
    """Add to `out` the part of (D P D) X that rows [start, stop) of a packed triangle give.

    P is symmetric, D = diag(scale). Row i of the triangle stands for row i of P up to the diagonal
    and for column i above it, so that the parts of disjoint ranges add up to the whole.

    Parameters
    ----------
    packed : float array of shape (h (h + 1) / 2,)
        Lower triangle of P, float32 or float64.
    scale : float64 array of shape (h,)
        Diagonal of D.
    X : float64 array of shape (h, m)
        Columns to multiply.
    start, stop : int
        Rows of the triangle. `triangle_starts` has their work.
    out : float64 array of shape (h, m)
        Rows [0, stop) are added to: every thread needs its own, summed in a fixed order after.

    Notes
    -----
    A call takes 16 m stop bytes of working memory, and time to fill it: a few large blocks a
    thread, no more. Sums are of float64 in an order that depends on start and stop alone.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.covariance import packed_product
    >>> packed, X, out = np.array([2.0, 1.0, 3.0]), np.array([[1.0], [10.0]]), np.zeros((2, 1))
    >>> packed_product(packed, np.ones(2), X, 0, 2, out)
    >>> out
    array([[12.],
           [31.]])
    """
    Y = np.ascontiguousarray((scale[:stop, None] * X[:stop]).T)
    Z = np.zeros_like(Y)
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
    out[:stop] += scale[:stop, None] * Z.T


@jit
def _entry(packed: Any, i: Any, j: Any) -> Any:
    """Return entry (i, j) of a packed symmetric matrix, in either order."""
    low, high = np.int64(min(i, j)), np.int64(max(i, j))
    return packed[high * (high + 1) // 2 + low]


@jit
def packed_rows(packed: Array, rows: Array, columns: Array, out: Array) -> None:
    """Gather a block of a packed symmetric matrix.

    Parameters
    ----------
    packed : array of shape (h (h + 1) / 2,)
        Lower triangle.
    rows, columns : integer arrays of shape (n,) and (m,)
        Items, in any order.
    out : array of shape (n, m)
        out[a, b] = P[rows[a], columns[b]].

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.covariance import packed_rows
    >>> out = np.empty((1, 2))
    >>> packed_rows(np.array([1.0, 2.0, 3.0]), np.array([0]), np.array([1, 0]), out)
    >>> out
    array([[2., 1.]])
    """
    for a in range(rows.shape[0]):
        for b in range(columns.shape[0]):
            out[a, b] = _entry(packed, rows[a], columns[b])


@jit
def pair_sums(cov: Array, wgt: Array, mass: Array, start: int, stop: int, out: Array) -> None:
    """Sums over the entries off the diagonal of two packed triangles, rows [start, stop).

    Parameters
    ----------
    cov, wgt : float arrays of shape (h (h + 1) / 2,)
        Packed triangles C and W.
    mass : float64 array of shape (h,)
        Popularity N.
    start, stop : int
        Rows.
    out : float64 array of shape (4,)
        Overwritten: sums of C_ij, W_ij, W_ij N_i N_j and W_ij^2.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.covariance import pair_sums
    >>> out = np.empty(4)
    >>> packed = np.array([7.0, 2.0, 9.0])
    >>> pair_sums(packed, 2.0 * packed, np.array([1.0, 5.0]), 0, 2, out)
    >>> out
    array([ 2.,  4., 20., 16.])
    """
    out[:] = 0.0
    for i in range(start, stop):
        at = np.int64(i) * (i + 1) // 2
        total, weights, cross, squares = 0.0, 0.0, 0.0, 0.0
        for j in range(i):
            w = np.float64(wgt[at + j])
            total += np.float64(cov[at + j])
            weights += w
            cross += w * mass[j]
            squares += w * w
        out[0] += total
        out[1] += weights
        out[2] += cross * mass[i]
        out[3] += squares


@jit
def clean_pairs(
    cov: Array,
    wgt: Array,
    mass: Array,
    slope: float,
    relative: float,
    noise: float,
    least: float,
    shrinkage: float,
    mean: float,
    start: int,
    stop: int,
) -> None:
    """Shrink weights to their expectation and divide: rows [start, stop), in place.

    With E = slope N_i N_j, W <- max(E + (W - E) s / (s + noise^2), least E), s = relative E^2; and
    then C <- (C + shrinkage mean) / (W + shrinkage). Without noise W stays.

    Parameters
    ----------
    cov, wgt : float arrays of shape (h (h + 1) / 2,)
        Packed triangles C and W, overwritten.
    mass : float64 array of shape (h,)
        Popularity N.
    slope, relative : float
        Slope of the expectation, and variance of the weights around it, relative to its square.
    noise : float
        Standard deviation of the noise in W.
    least : float
        Smallest weight relative to its expectation.
    shrinkage, mean : float
        Weight of the average and the average.
    start, stop : int
        Rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.covariance import clean_pairs
    >>> cov, wgt, mass = np.array([2.0, 1.0, 3.0]), np.array([4.0, 1.0, 6.0]), np.ones(2)
    >>> clean_pairs(cov, wgt, mass, 2.0, 0.0, 1.0, 0.2, 2.0, 0.5, 0, 2)
    >>> cov, wgt
    (array([0.75, 0.5 , 1.  ]), array([2., 2., 2.]))
    """
    for i in range(start, stop):
        at = np.int64(i) * (i + 1) // 2
        for j in range(i + 1):
            w = np.float64(wgt[at + j])
            if noise > 0.0:
                expected = slope * mass[i] * mass[j]
                signal = relative * expected * expected
                w = expected + (w - expected) * (signal / (signal + noise * noise))
                w = max(w, least * expected)
                wgt[at + j] = w
            # a pair without ratings has the average, whatever that is
            total = max(w + shrinkage, 1e-300)
            cov[at + j] = (np.float64(cov[at + j]) + shrinkage * mean) / total
