"""Gradients of single users in matrix factorisation, as their devices need them.

With e_ij = r_ij - u_i . v_j, user i's gradient by the item factors is the matrix X_i with rows
-2 e_ij u_i at the items that the user rated, and 0 elsewhere. A report needs one value of X_i, or
of Phi X_i, and costs one pass over the user's own ratings.
"""

from collections.abc import Iterator

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, jit_fast, part_fast


def _each(
    indptr: Array, indices: Array, ratings: Array, U: Array, V: Array, start: int, stop: int
) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yield users with what they rated: number, items, rows of V and e_ij."""
    for i in range(start, stop):
        own = slice(indptr[i], indptr[i + 1])
        items = indices[own]
        rated = V.take(items, axis=0)
        yield i, items, rated, ratings[own] - rated @ U[i]


@part_fast
def _residual(ratings, p, U, i, V, j):
    """Return e_ij for the rating at position p."""
    total = ratings[p]
    for c in range(U.shape[1]):
        total -= U[i, c] * V[j, c]
    return total


def _gradient_values_plain(indptr, indices, ratings, U, V, items, components, start, stop, out):
    out[start:stop] = 0.0
    for i in range(start, stop):
        for p in indptr[i] + np.flatnonzero(indices[indptr[i] : indptr[i + 1]] == items[i]):
            out[i] = -2.0 * U[i, components[i]] * (ratings[p] - U[i] @ V[items[i]])


@jit_fast(plain=_gradient_values_plain)
def gradient_values(indptr, indices, ratings, U, V, items, components, start, stop, out):
    """Value X_i[s_i, l_i] of each user's gradient, for rows [start, stop) of a CSR matrix.

    indptr (n_users + 1,) integer: user i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item of each position, at most once for a user; ratings (n_stored,)
    float64: r_ij; U, V (n_users, k) and (n_items, k) float64: factors; items, components (n_users,)
    int64: s_i and l_i; out (n_users,) float64: rows [start, stop) are overwritten; 0 where the user
    did not rate the item.
    """
    for i in range(start, stop):
        out[i] = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            if indices[p] == items[i]:
                out[i] = -2.0 * U[i, components[i]] * _residual(ratings, p, U, i, V, indices[p])


def _projected_gradient_values_plain(
    indptr, indices, ratings, U, V, projection, rows, components, start, stop, out
):
    for i, items, _, errors in _each(indptr, indices, ratings, U, V, start, stop):
        total = projection[rows[i], items].astype(np.float64) @ errors
        out[i] = -2.0 * U[i, components[i]] * total


@jit_fast(plain=_projected_gradient_values_plain)
def projected_gradient_values(
    indptr, indices, ratings, U, V, projection, rows, components, start, stop, out
):
    """Value (Phi X_i)[s_i, l_i] of each user's projected gradient: sum_j Phi[s_i, j] X_i[j, l_i].

    indptr, indices, ratings, U, V: as for `gradient_values`; projection (q, n_items) float: phi,
    C-contiguous; rows, components (n_users,) int64: s_i and l_i; out (n_users,) float64: rows
    [start, stop) are overwritten; 0 for a user without ratings.
    """
    for i in range(start, stop):
        row = projection[rows[i]]
        total = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            total += row[indices[p]] * _residual(ratings, p, U, i, V, indices[p])
        out[i] = -2.0 * U[i, components[i]] * total


def _step_users_plain(indptr, indices, ratings, V, step, penalty, limit, start, stop, out):
    for i, items, rated, errors in _each(indptr, indices, ratings, out, V, start, stop):
        slope = -2.0 * (errors @ rated) / max(1, len(items)) + 2.0 * penalty * out[i]
        out[i] -= step * slope
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
            e = _residual(ratings, p, out, i, V, j)
            for c in range(k):
                gradient[c] -= 2.0 * e * V[j, c]
        n = max(1, indptr[i + 1] - indptr[i])
        for c in range(k):
            u = out[i, c] - step * (gradient[c] / n + 2.0 * penalty * out[i, c])
            out[i, c] = min(max(u, -limit), limit)
