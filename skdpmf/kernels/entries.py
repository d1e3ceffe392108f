"""Predictions, and residuals, at stored positions only: no dense users x items matrix is formed."""

import numpy as np

from skdpmf.kernels.jit_and_threads import jit_fast
from skdpmf.kernels.rows import rows_of

_AT_A_TIME = 1 << 12  # entries whose factors are gathered


def _predict_entries_plain(indptr, indices, user_factors, item_factors, start, stop, out):
    own, rows = rows_of(indptr, start, stop)
    for first in range(0, rows.size, _AT_A_TIME):
        some = slice(own.start + first, min(own.start + first + _AT_A_TIME, own.stop))
        # `take` gives C order whatever it is given: the order of sums depends on no entry's place
        u = np.take(user_factors, start + rows[first : first + _AT_A_TIME], axis=0)
        np.einsum("pk,pk->p", u, np.take(item_factors, indices[some], axis=0), out=out[some])


@jit_fast(plain=_predict_entries_plain)
def predict_entries(indptr, indices, user_factors, item_factors, start, stop, out):
    """Dot products u_i . v_j at the stored positions of rows [start, stop) of a CSR pattern.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item j of each position; user_factors (n_rows, k) float: U, one row per row
    of the pattern; item_factors (n_items, k) float: V, of the same dtype as `user_factors`; fastest
    if both are C-contiguous; out (n_stored,) float: overwritten from indptr[start] to indptr[stop];
    other positions are left alone.
    """
    k = user_factors.shape[1]
    for i in range(start, stop):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            total = user_factors.dtype.type(0)
            for c in range(k):
                total += user_factors[i, c] * item_factors[j, c]
            out[p] = total


def _weigh_residuals_plain(
    indptr, indices, values, weights, user_factors, item_factors, bound, start, stop, out, out_norms
):
    own, rows = rows_of(indptr, start, stop)
    _predict_entries_plain(indptr, indices, user_factors, item_factors, start, stop, out)
    out[own] = weights[own] * np.clip(values[own] - out[own], -bound, bound)
    out_norms[start:stop] = np.sqrt(np.bincount(rows, out[own] ** 2, stop - start))


@jit_fast(plain=_weigh_residuals_plain)
def weigh_residuals(
    indptr, indices, values, weights, user_factors, item_factors, bound, start, stop, out, out_norms
):
    """Weighted residuals w_ij e_ij of the rows [start, stop) of a CSR matrix, and their norms.

    e_ij = y_ij - u_i . v_j, clipped to [-bound, bound].

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item j of each position; values, weights (n_stored,) float64: y_ij and
    w_ij; user_factors (n_rows, k) float64: U, one row per row of the matrix; item_factors (n_items,
    k) float64: V; fastest if both are C-contiguous; bound: at least 0; infinity for none; out
    (n_stored,) float64: overwritten from indptr[start] to indptr[stop]; other positions are left
    alone; out_norms (n_rows,) float64: rows [start, stop) are overwritten with sqrt(sum_j (w_ij
    e_ij)^2): 0 for an empty row.
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
