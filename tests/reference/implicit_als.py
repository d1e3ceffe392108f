"""Slow twin of the solvers for clicks without privacy: weighted implicit ALS with gravity, loops.

Y. Hu, Y. Koren, C. Volinsky, ICDM 2008, with the items' weights of W. Krichene et al., ICML 2023.
"""

import numpy as np

from skdpmf.mechanisms.als import clicks as constants
from skdpmf.mechanisms.als import loop
from skdpmf.mechanisms.item_means.residual_rounds import ITEM_DAMPING
from tests.reference.weighted_als import leading


class Weights:
    """Popularity, offsets and weights of a dense matrix of click weights, 0 for none."""

    def __init__(self, C, exponent):
        n_users, n_items = C.shape
        n = (C > 0).sum(axis=1)
        N = sum((C[i] > 0) / np.sqrt(max(n[i], 1)) for i in range(n_users))
        N = np.maximum(N, 1e-6 * N.max())
        total = min(max(N.sum(), (n > 0).sum()), (n > 0).sum() * np.sqrt(n_items))
        raw = N**-exponent
        unit = raw / np.sqrt(np.average(raw**2, weights=N))
        self.popularity, self.mass = N, N * unit
        self.click = np.minimum((n > 0).sum() / total * unit, 1.0)  # s
        self.offset = constants.TIE * N / N.max()  # b
        self.w = np.zeros(C.shape)
        for i in np.flatnonzero(n):
            own = C[i] > 0
            self.w[i, own] = C[i, own] * raw[own] / np.linalg.norm(raw[own])


def start(weights, k):
    """Leading eigenvectors of the second moments of weighted clicks."""
    Y = weights.w
    order = sorted(range(Y.shape[1]), key=lambda j: -weights.popularity[j])
    head = sorted(order[: loop.HEAD])
    M = sum(np.outer(y, y) - np.diag(y**2) for y in Y[:, head])
    return leading(M, head, weights.mass, k)


def users(C, V, weights, alpha, unobserved):
    """Ridge regressions of users on their clicks and, by V'V, on everything else."""
    U = np.zeros((len(C), V.shape[1]))
    ridge = unobserved * V.T @ V + alpha * loop.FOLD_IN_RIDGE * np.eye(V.shape[1])
    for i in range(len(C)):
        A, h = ridge.copy(), np.zeros(V.shape[1])
        for j in np.flatnonzero(C[i]):
            A += C[i, j] * np.outer(V[j], V[j])
            h += C[i, j] * (1.0 - weights.offset[j]) * V[j]
        U[i] = np.linalg.solve(A, h)
    return U


def items(U, weights, alpha, unobserved):
    """Weighted ridge regressions of items on their clickers and, by U'U, on everybody."""
    K, k = U.T @ U, U.shape[1]
    V = np.zeros((weights.w.shape[1], k))
    for j in range(len(V)):
        A = weights.click[j] * (unobserved * K + alpha * ITEM_DAMPING * np.eye(k))
        h = np.zeros(k)
        for i in np.flatnonzero(weights.w[:, j]):
            A += weights.w[i, j] * np.outer(U[i], U[i])
            h += weights.w[i, j] * (1.0 - weights.offset[j]) * U[i]
        V[j] = np.linalg.solve(A, h)
    return V


def fit(C, k, *, exponent, rounds, alpha, unobserved):
    """Offsets b and factors V."""
    weights = Weights(C, exponent)
    V = start(weights, k)
    for _ in range(rounds):
        V = items(users(C, V, weights, alpha, unobserved), weights, alpha, unobserved)
    return weights.offset, V
