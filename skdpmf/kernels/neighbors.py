"""Predictions by neighbours from a packed item covariance; see `covariance` for the packing."""

import numpy as np

from skdpmf.kernels.als import factored
from skdpmf.kernels.covariance import _entries, _entry
from skdpmf.kernels.jit_and_threads import Array, jit, later, part
from skdpmf.kernels.topk import _scan

_gram = later("_gram")
_vectors = later("_vectors")

# A system with a pivot that is not above this part of its ridge is solved again with that many
# times the ridge. Pivots of a positive semidefinite matrix plus the ridge are at least the ridge.
_SMALLEST_PIVOT = 0.5
_RIDGE_GROWTH = 2.0
_ATTEMPTS = 100
_LANES = 8  # float64 in a vector
_PLAIN_ENTRIES = 1 << 20  # of all systems that the plain form solves at a time


@part
def _place(known, i):
    """Return where i stands, or -1: a search by halves compiles longer than the rest."""
    for c in range(known.shape[0]):
        if known[c] == i:
            return c
    return -1


@part
def _neighbours(wgt, known, i, own, near, row, heap):
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
    for c in range(places.shape[0]):  # loops compile sooner than slices
        places[c], weights[c] = -1, -np.inf
    _scan(row[:n], places[:0], places, weights)
    # The root is the last in rank of the k: it and what ranks ahead of it are the neighbours.
    last, least = places[0], weights[0]
    count = 0
    for c in range(n):
        if row[c] > least or (row[c] == least and c <= last):
            near[count] = c
            count += 1
    return count


@part
def _load_system(cov, known, near, ridge, gram):
    """Put the upper triangle of A_NN + ridge I into gram, zeros elsewhere."""
    n = near.shape[0]
    for a in range(gram.shape[0]):
        for b in range(gram.shape[1]):
            gram[a, b] = 0.0
    for a in range(n):
        i = known[near[a]]
        for b in range(a, n):
            gram[a, b] = _entry(cov, i, known[near[b]])
        gram[a, a] += ridge


@part
def _fit_row(cov, known, residuals, near, ridge, flat, vectors, z):
    """Put the solution of (A_NN + ridge I) z = r_N into z, with a larger ridge if need be.

    `flat` and the three `vectors` are working memory for the largest system. Without a solution,
    which takes an A that is not finite, z is zero.
    """
    n = near.shape[0]
    n_rows, width = _gram.rows_of(n), (n + _LANES - 1) // _LANES * _LANES
    gram = flat[: n_rows * width].reshape((n_rows, width))
    floor, inverse, rhs = vectors
    z[:] = 0
    for _ in range(_ATTEMPTS):
        _load_system(cov, known, near, ridge, gram)
        floor[:n] = _SMALLEST_PIVOT * ridge
        rhs[:width] = 0
        for a in range(n):
            rhs[a] = residuals[near[a]]
        if _gram.cholesky(gram, n, floor, inverse, rhs, z):
            _gram.substitute_backward(gram, n, inverse, z)
            return
        ridge *= _RIDGE_GROWTH
    z[:] = 0


def _solutions(systems: Array, rhs: Array, ridge: float) -> Array:
    """Return the solution of each system plus its ridge, as `_fit_row`."""
    z, left, diagonal = np.zeros(rhs.shape), np.arange(len(systems)), np.eye(rhs.shape[1])
    for _ in range(_ATTEMPTS):
        L, x, definite = factored(systems[left] + ridge * diagonal, rhs[left])
        pivots = np.diagonal(L, axis1=1, axis2=2) ** 2
        definite &= (pivots > _SMALLEST_PIVOT * ridge).all(axis=1)
        z[left[definite]] = x[definite]
        left, ridge = left[~definite], _RIDGE_GROWTH * ridge
        if not len(left):
            break
    return z


def _user_scores(
    cov: Array, wgt: Array, known: Array, r: Array, targets: Array, n_neighbors: int, ridge: float
) -> Array:
    """Return the scores of one user's targets, all of them covered."""
    weights = np.where(known == targets[:, None], -np.inf, _entries(wgt, targets[:, None], known))
    near = np.sort(np.argsort(-weights, axis=1, kind="stable")[:, :n_neighbors], axis=1)
    N = known[near]
    own = targets[:, None] == N
    right = np.where(own, 0.0, _entries(cov, targets[:, None], N))
    if N.shape[1] == len(known) and not own.any():
        N, near, own = N[:1], near[:1], own[:1]  # one system
    among = _entries(cov, known[:, None], known).astype(np.float64)
    systems = among[near[:, :, None], near[:, None, :]]
    systems[own[:, :, None] | own[:, None, :]] = 0.0  # no pivot or unknown but its own sees it
    return np.sum(_solutions(systems, r[near], ridge) * right, axis=1)


def _knn_scores_plain(
    cov, wgt, indptr, indices, residuals, t_indptr, t_indices, n_neighbors, ridge, start, stop, out
):
    for u in range(start, stop):
        own = slice(indptr[u], indptr[u + 1])
        known, asked = indices[own], np.arange(t_indptr[u], t_indptr[u + 1])
        out[asked] = 0.0
        asked = asked[t_indices[asked] >= 0]
        k = min(n_neighbors, len(known))
        # where all known items are neighbours, the targets that are not known share a system
        inside = np.isin(t_indices[asked], known) & (k == len(known))
        for group in (asked[inside], asked[~inside]):
            step = max(1, _PLAIN_ENTRIES // max(k, 1) ** 2)
            for first in range(0, len(group) if k else 0, step):
                some = group[first : first + step]
                given = residuals[own], t_indices[some], k, ridge
                out[some] = _user_scores(cov, wgt, known, *given)


@jit(plain=_knn_scores_plain)
def knn_scores(
    cov, wgt, indptr, indices, residuals, t_indptr, t_indices, n_neighbors, ridge, start, stop, out
):
    """Interpolate residuals at target items from those at their neighbours.

    The neighbours N of item i for a user are those n_neighbors of the user's known items j != i
    with the largest W_ij, of equal ones the smaller j. The score is omega . r_N with
    (A_NN + ridge I) omega = A_Ni.

    cov (h (h + 1) / 2,) float: packed lower triangle of the covariance A, float32 or float64; wgt
    (h (h + 1) / 2,) float: packed lower triangle of W, finite; indptr (n_users + 1,) integer: user
    u knows the positions indptr[u] to indptr[u + 1]; indices (n_known,) integer: known items, below
    h, ascending for each user; residuals (n_known,) float: r of each known item; t_indptr (n_users
    + 1,) integer: user u is asked for the positions t_indptr[u] to t_indptr[u + 1]; t_indices
    (n_targets,) integer: target items in any order; -1 for an item that A does not cover, whose
    score is 0; n_neighbors: K, at least 1; ridge: > 0, in units of A; out (n_targets,) float:
    positions t_indptr[start] to t_indptr[stop] are overwritten; 0 without neighbours.

    Notes
    -----
    A_NN + ridge I need not be positive definite where A is a noisy estimate. Where Cholesky's
    method, items in ascending order, meets a pivot that is not above half the ridge, the system is
    solved with twice the ridge, and so on: barely definite systems would give huge scores. This
    never happens for a positive semidefinite A, whose pivots are at least the ridge.

    Where all known items are neighbours, a user's targets share one system.
    """
    longest = 0
    for u in range(start, stop):
        longest = max(longest, indptr[u + 1] - indptr[u])
    k = min(n_neighbors, longest)
    like = np.empty(0)  # systems are float64
    flat = _vectors.new_gram(k, like).reshape(-1)
    size = k + _LANES
    floor, inverse = _vectors.scratch(size, like), _vectors.scratch(size, like)
    rhs, z = _vectors.scratch(size, like), _vectors.scratch(size, like)
    vectors = floor, inverse, rhs
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
