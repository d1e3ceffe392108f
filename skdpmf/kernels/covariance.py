"""Item covariances: exact sums over pairs of ratings, products, and predictions by neighbours.

A symmetric h x h matrix is its packed lower triangle, row by row: entry (i, j), j <= i, stands at
i (i + 1) / 2 + j. Offsets are int64: a triangle may have more than 2^31 entries.
"""

from math import isqrt
from typing import Any

import numpy as np
from numba.core import config
from numpy.typing import NDArray

from skdpmf.kernels._blocks import balanced_blocks
from skdpmf.kernels._gram import TILE, cholesky, new_gram, scratch, solve_factored
from skdpmf.kernels._jit import jit, jit_fast
from skdpmf.kernels._simd import VECTOR_BYTES
from skdpmf.kernels.topk import _scan

__all__ = [
    "accumulate_pairs",
    "item_major",
    "knn_scores",
    "packed_product",
    "packed_rows",
    "pair_blocks",
    "pair_work",
    "triangle_starts",
]

Array = NDArray[Any]

# How many entries of the next user's row are asked for while one row is read.
_AHEAD = 128
# Rows and columns of a tile of a product: in float64 it fills 32 KiB, and is read once for each
# column of the other factor.
_TILE_ROWS, _TILE_COLUMNS = 4, 1024
# A system with a pivot that is not above this part of its ridge is solved again with that many
# times the ridge. Pivots of a positive semidefinite matrix plus the ridge are at least the ridge.
_SMALLEST_PIVOT = 0.5
_RIDGE_GROWTH = 2.0
_ATTEMPTS = 100
_LANES = VECTOR_BYTES // 8

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
def _place(known: Any, i: Any) -> Any:
    """Return where i stands in an ascending array, or -1."""
    place = np.searchsorted(known, i)
    return place if place < known.shape[0] and known[place] == i else -1


@jit
def _neighbours(wgt: Any, known: Any, i: Any, own: Any, near: Any, row: Any, heap: Any) -> Any:
    """Put the places of the known items with the largest weights to i into `near`, ascending.

    Return how many there are, at most the length of `near`. Place `own`, if it is not -1, is left
    out. `row` and `heap` (places and weights) are overwritten.
    """
    n = known.shape[0]
    for c in range(n):
        row[c] = _entry(wgt, i, known[c])
    if own >= 0:
        row[own] = -np.inf
    places, weights = heap
    places[:] = -1
    weights[:] = -np.inf
    _scan(row[:n], places[:0], places, weights)
    # The root is the last in rank of the k: it and what ranks ahead of it are the neighbours.
    last, least = places[0], weights[0]
    count = 0
    for c in range(n):
        if row[c] > least or (row[c] == least and c <= last):
            near[count] = c
            count += 1
    return count


@jit
def _load_system(cov: Any, known: Any, near: Any, ridge: Any, gram: Any) -> None:
    """Put the upper triangle of A_NN + ridge I into gram, zeros elsewhere."""
    n = near.shape[0]
    gram[:] = 0
    for a in range(n):
        i = known[near[a]]
        for b in range(a, n):
            gram[a, b] = _entry(cov, i, known[near[b]])
        gram[a, a] += ridge


@jit
def _fit_row(
    cov: Any, known: Any, residuals: Any, near: Any, ridge: Any, flat: Any, vectors: Any, z: Any
) -> None:
    """Put the solution of (A_NN + ridge I) z = r_N into z, with a larger ridge if need be.

    `flat` and the three `vectors` are working memory for the largest system. Without a solution,
    which takes an A that is not finite, z is zero.
    """
    n = near.shape[0]
    n_rows, width = (n + TILE - 1) // TILE * TILE, (n + _LANES - 1) // _LANES * _LANES
    gram = flat[: n_rows * width].reshape((n_rows, width))
    floor, inverse, rhs = vectors
    z[:] = 0
    for _ in range(_ATTEMPTS):
        _load_system(cov, known, near, ridge, gram)
        floor[:n] = _SMALLEST_PIVOT * ridge
        if cholesky(gram, n, floor, inverse):
            rhs[:width] = 0
            for a in range(n):
                rhs[a] = residuals[near[a]]
            solve_factored(gram, n, inverse, rhs, z)
            return
        ridge *= _RIDGE_GROWTH


@jit
def knn_scores(
    cov: Array,
    wgt: Array,
    indptr: Array,
    indices: Array,
    residuals: Array,
    t_indptr: Array,
    t_indices: Array,
    n_neighbors: int,
    ridge: float,
    start: int,
    stop: int,
    out: Array,
) -> None:
    """Interpolate residuals at target items from those at their neighbours.

    The neighbours N of item i for a user are those n_neighbors of the user's known items j != i
    with the largest W_ij, of equal ones the smaller j. The score is omega . r_N with
    (A_NN + ridge I) omega = A_Ni.

    Parameters
    ----------
    cov : float array of shape (h (h + 1) / 2,)
        Packed lower triangle of the covariance A, float32 or float64.
    wgt : float array of shape (h (h + 1) / 2,)
        Packed lower triangle of W, finite.
    indptr : integer array of shape (n_users + 1,)
        User u knows the positions indptr[u] to indptr[u + 1].
    indices : integer array of shape (n_known,)
        Known items, below h, ascending for each user.
    residuals : float array of shape (n_known,)
        r of each known item.
    t_indptr : integer array of shape (n_users + 1,)
        User u is asked for the positions t_indptr[u] to t_indptr[u + 1].
    t_indices : integer array of shape (n_targets,)
        Target items in any order; -1 for an item that A does not cover, whose score is 0.
    n_neighbors : int
        K, at least 1.
    ridge : float
        > 0, in units of A.
    start, stop : int
        Users to score.
    out : float array of shape (n_targets,)
        Positions t_indptr[start] to t_indptr[stop] are overwritten; 0 without neighbours.

    Notes
    -----
    A_NN + ridge I need not be positive definite where A is a noisy estimate. Where Cholesky's
    method, items in ascending order, meets a pivot that is not above half the ridge, the system is
    solved with twice the ridge, and so on: barely definite systems would give huge scores. This
    never happens for a positive semidefinite A, whose pivots are at least the ridge.

    Where all known items are neighbours, a user's targets share one system.

    References
    ----------
    R. Bell, Y. Koren, "Scalable collaborative filtering with jointly derived neighborhood
    interpolation weights", ICDM 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.covariance import knn_scores
    >>> cov = np.array([1.0, 0.5, 1.0])  # [[1, 0.5], [0.5, 1]]
    >>> known, asked = (np.array([0, 1]), np.array([0]), np.array([3.0])), np.array([1, -1])
    >>> out = np.empty(2)
    >>> knn_scores(cov, cov, *known, np.array([0, 2]), asked, 30, 0.5, 0, 1, out)
    >>> out
    array([1., 0.])
    """
    longest = 0
    for u in range(start, stop):
        longest = max(longest, indptr[u + 1] - indptr[u])
    k = min(n_neighbors, longest)
    like = np.empty(0)  # systems are float64
    flat = new_gram(k, like).reshape(-1)
    size = k + _LANES
    vectors = scratch(size, like), scratch(size, like), scratch(size, like)
    z = scratch(size, like)
    near, row = np.empty(k, np.int64), np.empty(longest, wgt.dtype)
    heap = np.empty(k, np.int64), np.empty(k, wgt.dtype)
    for u in range(start, stop):
        known = indices[indptr[u] : indptr[u + 1]]
        r = residuals[indptr[u] : indptr[u + 1]]
        n, all_solved = 0, False
        for t in range(t_indptr[u], t_indptr[u + 1]):
            i, total = t_indices[t], 0.0
            if i >= 0 and known.shape[0] > 0:
                own = _place(known, i)
                if own >= 0 or not all_solved:
                    n = _neighbours(wgt, known, i, own, near, row, heap)
                    _fit_row(cov, known, r, near[:n], ridge, flat, vectors, z)
                    all_solved = n == known.shape[0]
                for a in range(n):
                    total += z[a] * _entry(cov, i, known[near[a]])
            out[t] = total
