"""Slow twin of skdpmf.mechanisms.als.pooled without privacy: loops over users and items."""

import numpy as np

from skdpmf.mechanisms.als import pooled as constants


def rated(y, i):
    return np.flatnonzero(~np.isnan(y[i]))


def ridge_regression(A, t, penalty):
    return np.linalg.solve(A.T @ A + penalty, A.T @ t)


def counts(y):
    """N_j, a user's ratings sharing the weight sqrt(n_i)."""
    N = np.zeros(y.shape[1])
    for i in range(len(y)):
        own = rated(y, i)
        N[own] += max(len(own), 1) ** -0.5
    return np.maximum(N, 1e-6 * N.max())


def columns(b, V, N):
    def centred(x):
        return x - N @ x / N.sum()

    return np.column_stack((np.ones(len(b)), centred(b), 0.3 * centred(np.log(N)), V))


def fit(y, V, b, *, rounds, alpha, damping):
    """Item means, columns, ridge and prior of the fold-in from given starting factors and means."""
    N, k = counts(y), V.shape[1]
    overall = np.nanmean(y)
    n_users = sum(len(rated(y, i)) > 0 for i in range(len(y)))
    slope = 15.0 * (1.0 + 30.0 * (n_users / N.sum()) ** 2)
    penalty = np.diag([damping, slope, slope] + [alpha * constants.EXACT_USER_RIDGE] * k)
    item_penalty = np.diag(
        [constants.EXACT_ITEM_RIDGE] + [alpha * constants.EXACT_FACTOR_RIDGE] * k
    )
    for _ in range(rounds):
        X = columns(b, V, N)
        Z = users(y, b, X, penalty, np.zeros((len(X[0]) + 1, len(X[0]))))
        for j in range(len(b)):
            raters = np.flatnonzero(~np.isnan(y[:, j]))
            left = y[raters, j] - overall - Z[raters, :3] @ X[j, :3]
            phi = np.column_stack((np.ones(len(raters)), Z[raters, 3:]))
            theta = ridge_regression(phi, left, item_penalty)
            b = np.where(np.arange(len(b)) == j, overall + theta[0], b)
            V = np.where((np.arange(len(V)) == j)[:, None], theta[1:], V)
    X = columns(b, V, N)
    prior = np.zeros((X.shape[1] + 1, X.shape[1]))
    for _ in range(2):
        F, Z = features(y, X), users(y, b, X, penalty, prior)
        # the ridge is 1e-6 of the largest eigenvalue, in the scaled features
        scale = np.full(F.shape[1], constants.COLUMN_SCALE)
        scale[:2] = constants.LOG_COUNT_SCALE, constants.ONE_SCALE
        S = F * scale
        values, vectors = np.linalg.eigh(S.T @ S)
        inverse = (vectors * (values / (values**2 + (1e-6 * values.max()) ** 2))) @ vectors.T
        prior = scale[:, None] * (inverse @ S.T @ Z)
    return b, X, penalty, prior


def features(y, X):
    F = np.zeros((len(y), X.shape[1] + 1))
    for i in range(len(y)):
        own = rated(y, i)
        if len(own):
            F[i] = np.append(np.log(1.0 + len(own)) - 4.5, X[own].mean(axis=0))
    return F


def users(y, b, X, penalty, prior):
    """Each user's coefficients around their prior mean; zeros without ratings."""
    Z = features(y, X) @ prior
    for i in range(len(y)):
        own = rated(y, i)
        if len(own):
            Z[i] += ridge_regression(X[own], y[i, own] - b[own] - X[own] @ Z[i], penalty)
    return Z
