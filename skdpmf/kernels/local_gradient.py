"""Gradients of single users in matrix factorisation, as their devices need them.

With e_ij = r_ij - u_i . v_j, user i's gradient by the item factors is the matrix X_i with rows
-2 e_ij u_i at the items that the user rated, and 0 elsewhere. A report needs one value of X_i, or
of Phi X_i, and costs one pass over the user's own ratings.
"""

import numpy as np

from skdpmf.kernels.jit_and_threads import jit_fast
from skdpmf.kernels.rows import predict_entries, row_blocks, rows_of


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
    errors = np.empty(len(ratings))
    predict_entries(indptr, indices, U, V, start, stop, errors)
    for block, own, row in row_blocks(indptr, start, stop):
        terms = (ratings[own] - errors[own]) * projection[rows[block][row], indices[own]]
        total = np.bincount(row, terms, block.stop - block.start)
        out[block] = -2.0 * U[block][np.arange(len(total)), components[block]] * total


def _step_users_plain(indptr, indices, ratings, V, step, penalty, limit, start, stop, out):
    for i in range(start, stop):
        own, u = slice(indptr[i], indptr[i + 1]), out[i]
        rated = V.take(indices[own], axis=0)
        slope = (ratings[own] - rated @ u) @ rated / max(1, len(rated)) - penalty * u
        u += 2.0 * step * slope
    np.clip(out[start:stop], -limit, limit, out=out[start:stop])


@jit_fast(plain=_step_users_plain)
def step_users(indptr, indices, ratings, V, step, penalty, limit, start, stop, out):
    """One gradient step of every user on (1 / n_i) sum_j e_ij^2 + penalty |u_i|^2.

    indptr, indices, ratings, V: as for `gradient_values`; step, penalty: step size, and penalty;
    limit: values stop at magnitude `limit`; out (n_users, k) float64: U; rows [start, stop) are
    moved in place. n_i counts as 1 for a user without ratings.
    """
    k = out.shape[1]
    gradient = np.empty(k)
    for i in range(start, stop):
        gradient[:] = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            e = ratings[p]
            for c in range(k):
                e -= out[i, c] * V[j, c]
            for c in range(k):
                gradient[c] -= 2.0 * e * V[j, c]
        n = max(1, indptr[i + 1] - indptr[i])
        for c in range(k):
            u = out[i, c] - step * (gradient[c] / n + 2.0 * penalty * out[i, c])
            out[i, c] = min(max(u, -limit), limit)
