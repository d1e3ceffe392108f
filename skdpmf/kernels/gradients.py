"""Sums over users of residuals times the users' vectors, from the users x items matrix as it is.

Residuals are computed in one pass and summed up in a second one, since a user's clip factor is not
known before all of the user's residuals are. Nothing is sorted by item: the sums are exact, so that
users may be added in any order, and those of blocks of users may be added up.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels._jit import jit, jit_fast

__all__ = ["accumulate_rhs", "row_norms", "weigh_residuals"]

Array = NDArray[Any]


@jit_fast
def weigh_residuals(
    indptr: Array,
    indices: Array,
    values: Array,
    weights: Array,
    user_factors: Array,
    item_factors: Array,
    bound: float,
    start: int,
    stop: int,
    out: Array,
    out_norms: Array,
) -> None:
    """Weighted residuals w_ij e_ij of the rows [start, stop) of a CSR matrix, and their norms.

    e_ij = y_ij - u_i . v_j, clipped to [-bound, bound].

    Parameters
    ----------
    indptr : integer array of shape (n_rows + 1,)
        Row i owns the positions indptr[i] to indptr[i + 1].
    indices : integer array of shape (n_stored,)
        Item j of each position.
    values, weights : float64 arrays of shape (n_stored,)
        y_ij and w_ij.
    user_factors : float64 array of shape (n_rows, k)
        U, one row per row of the matrix.
    item_factors : float64 array of shape (n_items, k)
        V; fastest if both are C-contiguous.
    bound : float
        At least 0; infinity for none.
    start, stop : int
        Rows to fill.
    out : float64 array of shape (n_stored,)
        Overwritten from indptr[start] to indptr[stop]; other positions are left alone.
    out_norms : float64 array of shape (n_rows,)
        Rows [start, stop) are overwritten with sqrt(sum_j (w_ij e_ij)^2): 0 for an empty row.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.gradients import weigh_residuals
    >>> U, V = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])
    >>> indptr, indices, values = np.array([0, 2]), np.array([0, 1]), np.array([14.0, 0.0])
    >>> out, norms = np.empty(2), np.empty(1)
    >>> weigh_residuals(indptr, indices, values, np.array([1.0, 0.5]), U, V, 8.0, 0, 1, out, norms)
    >>> out, norms
    (array([ 3., -4.]), array([5.]))
    """
    k = user_factors.shape[1]
    for i in range(start, stop):
        squares = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            predicted = 0.0
            for c in range(k):
                predicted += user_factors[i, c] * item_factors[j, c]
            out[p] = weights[p] * min(max(values[p] - predicted, -bound), bound)
            squares += out[p] * out[p]
        out_norms[i] = np.sqrt(squares)


@jit
def accumulate_rhs(
    indptr: Array,
    indices: Array,
    terms: Array,
    scale: Array,
    factors: Array,
    grid: float,
    start: int,
    stop: int,
    out: Array,
) -> None:
    """Add sum_i t_ij z_i over the rows i in [start, stop) of a CSR matrix to row j of `out`.

    t_ij = trunc(scale_i terms_ij) and z_i = trunc(u_i), both truncated *towards zero* to multiples
    of `grid`. So |z_i| sqrt(sum_j t_ij^2), the norm of what row i adds to all items together, is
    at most |u_i| scale_i sqrt(sum_j terms_ij^2): truncation never raises a sensitivity.

    Parameters
    ----------
    indptr : integer array of shape (n_rows + 1,)
        Row i owns the positions indptr[i] to indptr[i + 1].
    indices : integer array of shape (n_stored,)
        Item j of each position.
    terms : float64 array of shape (n_stored,)
        Such as weighted residuals. What is not finite counts as 0.
    scale : float64 array of shape (n_rows,)
        Such as clip factors, in [0, 1].
    factors : float64 array of shape (n_rows, k)
        Rows u_i.
    grid : float
        A power of two, or 0 for no truncation (the non-private limit).
    start, stop : int
        Rows to sum.
    out : float64 array of shape (n_items, k)
        The sums are added to it.

    Notes
    -----
    Products and sums are exact, so that neither the order of the rows nor how they are shared out
    to calls (whose results are added) can change a bit, as long as sum_i |t_ij z_ic| stays below
    2^53 grid^2 for all items and columns: the caller's condition. Without a grid sums are rounded.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.gradients import accumulate_rhs
    >>> indptr, items = np.array([0, 2, 3]), np.array([0, 1, 1])
    >>> terms, scale = np.array([4.0, 2.0, 1.0]), np.array([0.5, 1.0])
    >>> U, out = np.array([[1.0, -2.0], [0.3, 0.0]]), np.zeros((2, 2))
    >>> accumulate_rhs(indptr, items, terms, scale, U, 0.25, 0, 2, out)
    >>> out
    array([[ 2.  , -4.  ],
           [ 1.25, -2.  ]])
    """
    k = factors.shape[1]
    z = np.empty(k)
    for i in range(start, stop):
        for c in range(k):
            z[c] = _truncated(factors[i, c], grid)
        for p in range(indptr[i], indptr[i + 1]):
            if not np.isfinite(terms[p]):
                continue
            j, t = indices[p], _truncated(scale[i] * terms[p], grid)
            for c in range(k):
                out[j, c] += t * z[c]


@jit
def _size(x: Any, l1: Any) -> Any:
    return abs(x) if l1 else x * x


@jit
def row_norms(indptr: Array, terms: Array, l1: bool, start: int, stop: int, out: Array) -> None:
    """Norm of every row of terms: l2, or l1.

    Sums of 256 terms are added up with compensation (Kahan): the relative error stays below 100
    units in the last place, 2^-46, however long a row is. A bound on the norm may count with that.

    Parameters
    ----------
    indptr : integer array of shape (n_rows + 1,)
        Row i owns the positions indptr[i] to indptr[i + 1].
    terms : float64 array of shape (n_stored,)
        Values.
    l1 : bool
        Sum of magnitudes rather than root of the sum of squares.
    start, stop : int
        Rows to fill.
    out : float64 array of shape (n_rows,)
        Rows [start, stop) are overwritten.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.gradients import row_norms
    >>> out = np.empty(2)
    >>> row_norms(np.array([0, 2, 2]), np.array([3.0, -4.0]), False, 0, 2, out)
    >>> out
    array([5., 0.])
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


@jit
def _truncated(x: Any, grid: Any) -> Any:
    """Return x truncated towards zero to the grid, a power of two: both scalings are exact."""
    return np.trunc(x / grid) * grid if grid > 0.0 else x
