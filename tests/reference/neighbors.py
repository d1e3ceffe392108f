"""Slow twin of `skdpmf.kernels.neighbors`, on full matrices."""

import numpy as np


def pivots(matrix):
    reduced, found = matrix.copy(), []
    for r in range(len(matrix)):
        found.append(reduced[r, r])
        reduced[r + 1 :] -= np.outer(reduced[r + 1 :, r] / reduced[r, r], reduced[r])
    return np.array(found)


def knn_score(A, W, items, residuals, target, n_neighbors, ridge):
    others = [a for a in range(len(items)) if items[a] != target]
    near = sorted(others, key=lambda a: (-W[target, items[a]], items[a]))[:n_neighbors]
    if target < 0 or not near:
        return 0.0
    N = items[sorted(near)]
    while pivots(A[np.ix_(N, N)] + ridge * np.eye(len(N))).min() <= 0.5 * ridge:
        ridge = 2.0 * ridge
    omega = np.linalg.solve(A[np.ix_(N, N)] + ridge * np.eye(len(N)), A[N, target])
    return float(omega @ residuals[sorted(near)])
