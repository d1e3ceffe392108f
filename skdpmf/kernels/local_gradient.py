"""Gradients of single users in matrix factorisation, as their devices need them.

With e_ij = r_ij - u_i . v_j, user i's gradient by the item factors is the matrix X_i with rows
-2 e_ij u_i at the items that the user rated, and 0 elsewhere. A report needs one value of X_i, or
of Phi X_i, and costs one pass over the user's own ratings.
"""

import numpy as np
import scipy.sparse as sp

from skdpmf.kernels.jit_and_threads import Array
from skdpmf.kernels.rows import predict_entries, rows_of


def _residuals(
    indptr: Array, indices: Array, ratings: Array, U: Array, V: Array, start: int, stop: int
) -> sp.csr_array:
    """Return e_ij of the rows [start, stop)."""
    own, ptr = slice(indptr[start], indptr[stop]), indptr[start : stop + 1] - indptr[start]
    predicted = np.empty(own.stop - own.start)
    predict_entries(ptr, indices[own], U[start:stop], V, 0, stop - start, predicted)
    shape = stop - start, len(V)
    return sp.csr_array((ratings[own] - predicted, indices[own], ptr), shape)


def gradient_values(indptr, indices, ratings, U, V, items, components, start, stop, out):
    """Value X_i[s_i, l_i] of each user's gradient, for rows [start, stop) of a CSR matrix.

    indptr (n_users + 1,) integer: user i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item of each position, at most once for a user; ratings (n_stored,)
    float64: r_ij; U, V (n_users, k) and (n_items, k) float64: factors; items, components (n_users,)
    int64: s_i and l_i; out (n_users,) float64: rows [start, stop) are overwritten; 0 where the user
    did not rate the item.
    """
    own, rows = rows_of(indptr, start, stop)
    hit = np.flatnonzero(indices[own] == items[start:stop][rows])
    i, p = start + rows[hit], own.start + hit
    out[start:stop] = 0.0
    out[i] = -2.0 * U[i, components[i]] * (ratings[p] - (U[i] * V[items[i]]).sum(axis=1))


def projected_gradient_values(
    indptr, indices, ratings, U, V, projection, rows, components, start, stop, out
):
    """Value (Phi X_i)[s_i, l_i] of each user's projected gradient: sum_j Phi[s_i, j] X_i[j, l_i].

    indptr, indices, ratings, U, V: as for `gradient_values`; projection (q, n_items) float: phi,
    C-contiguous; rows, components (n_users,) int64: s_i and l_i; out (n_users,) float64: rows
    [start, stop) are overwritten; 0 for a user without ratings.
    """
    E, own = _residuals(indptr, indices, ratings, U, V, start, stop), slice(start, stop)
    E.data *= projection[np.repeat(rows[own], np.diff(E.indptr)), E.indices]
    out[own] = -2.0 * U[np.arange(start, stop), components[own]] * E.sum(axis=1)


def step_users(indptr, indices, ratings, V, step, penalty, limit, start, stop, out):
    """One gradient step of every user on (1 / n_i) sum_j e_ij^2 + penalty |u_i|^2.

    indptr, indices, ratings, V: as for `gradient_values`; step, penalty: step size, and penalty;
    limit: values stop at magnitude `limit`; out (n_users, k) float64: U; rows [start, stop) are
    moved in place. n_i counts as 1 for a user without ratings.
    """
    E, U = _residuals(indptr, indices, ratings, out, V, start, stop), out[start:stop]
    slope = -2.0 * (E @ V) / np.maximum(1, np.diff(E.indptr))[:, None] + 2.0 * penalty * U
    np.clip(U - step * slope, -limit, limit, out=U)
