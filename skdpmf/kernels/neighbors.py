"""Predictions by neighbours from a packed item covariance; see `covariance` for the packing.

A compiled form took a sixth of the time for whole lists. It went, as neighbours gain nothing over
factors.
"""

import numpy as np

from skdpmf.kernels.als import factored
from skdpmf.kernels.covariance import entries
from skdpmf.kernels.jit_and_threads import Array

# A system with a pivot that is not above this part of its ridge is solved again with that many
# times the ridge. Pivots of a positive semidefinite matrix plus the ridge are at least the ridge.
_SMALLEST_PIVOT = 0.5
_RIDGE_GROWTH = 2.0
_ATTEMPTS = 100
_ENTRIES = 1 << 20  # of all systems that are solved at a time


def _solutions(systems: Array, rhs: Array, ridge: float) -> Array:
    """Return the solution of each system plus its ridge, with a larger ridge if need be.

    A system without a solution, which takes an A that is not finite, has zeros.
    """
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
    weights = np.where(known == targets[:, None], -np.inf, entries(wgt, targets[:, None], known))
    near = np.sort(np.argsort(-weights, axis=1, kind="stable")[:, :n_neighbors], axis=1)
    N = known[near]
    own = targets[:, None] == N
    right = np.where(own, 0.0, entries(cov, targets[:, None], N))
    if N.shape[1] == len(known) and not own.any():
        N, near, own = N[:1], near[:1], own[:1]  # one system
    among = entries(cov, known[:, None], known).astype(np.float64)
    systems = among[near[:, :, None], near[:, None, :]]
    systems[own[:, :, None] | own[:, None, :]] = 0.0  # no pivot or unknown but its own sees it
    return np.sum(_solutions(systems, r[near], ridge) * right, axis=1)


@np.errstate(all="ignore")
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
    for u in range(start, stop):
        own = slice(indptr[u], indptr[u + 1])
        known, asked = indices[own], np.arange(t_indptr[u], t_indptr[u + 1])
        out[asked] = 0.0
        asked = asked[t_indices[asked] >= 0]
        k = min(n_neighbors, len(known))
        # where all known items are neighbours, the targets that are not known share a system
        inside = np.isin(t_indices[asked], known) & (k == len(known))
        for group in (asked[inside], asked[~inside]):
            step = max(1, _ENTRIES // max(k, 1) ** 2)
            for first in range(0, len(group) if k else 0, step):
                some = group[first : first + step]
                given = residuals[own], t_indices[some], k, ridge
                out[some] = _user_scores(cov, wgt, known, *given)
