"""Slow twin of skdpmf.mechanisms.gram.covariance without privacy, and of its predictions.

Dense matrices, with NaN for an unknown rating. `fit` is in quarter ranges from the middle of the
scale, predictions are in rating units.
"""

from typing import NamedTuple

import numpy as np

from skdpmf.mechanisms.gram import covariance_factors as constants
from skdpmf.mechanisms.item_means.joint_release import FIT_DAMPING


class Fitted(NamedTuple):
    means: np.ndarray
    covariance: np.ndarray  # A
    weights: np.ndarray  # Wgt
    factors: np.ndarray  # L, n_items x k
    ridges: tuple[float, float]  # of factors and of users' offsets; None: not estimated


def fit(y, k, *, item_damping, user_damping, clamp, clean, power=0.5):
    """The published algorithm, or cleaning; users with c ratings have the weight w = c^-power."""
    known = ~np.isnan(y)
    n = known.sum(axis=0)
    G = np.nansum(y) / max(n.sum(), 1)
    means = (np.nansum(y, axis=0) + item_damping * G) / (n + item_damping)
    if clean:
        means = least_squares(y, FIT_DAMPING)
    means = means + (G - n @ means / max(n.sum(), 1))
    x = centred(y, means, user_damping, clamp)
    w = np.where(known.any(axis=1), np.maximum(known.sum(axis=1), 1.0) ** -power, 0.0)
    cov, wgt = (x * w[:, None]).T @ x, (known * w[:, None]).T @ known
    pairs = ~np.eye(len(n), dtype=bool)
    average = safe_ratio(cov[pairs].sum(), wgt[pairs].sum())
    N = np.maximum(n, 1.0)
    typical = max(np.rint(n.sum() / max(len(y), 1)), 1.0) ** -power
    A = cleaned(cov, wgt, average, pairs, N, typical) if clean else safe_ratio(cov, wgt)
    L = principal_axes(A, N, min(k, len(n)), average if clean else None)
    number = n.sum() / max(len(y), 1)
    ridges = noise_level(A, L, N, average, number, user_damping) if clean else None
    return Fitted(means, A, wgt, L, ridges)


def least_squares(y, damping, n_rounds=10):
    """Items' means by sweeps, with the penalty that an analysis of variance of each sweep gives."""
    known = ~np.isnan(y)
    n, N = known.sum(axis=1), known.sum(axis=0)
    means, G = np.full(y.shape[1], np.nanmean(y)), np.nanmean(y)
    freedom = max(N.sum() - (N > 0).sum() - np.sum(n / (n + damping)), 1.0)
    for _ in range(n_rounds):
        offset = np.nansum(y - means, axis=1) / (n + damping)
        x = y - offset[:, None] - G
        own = np.nansum(x, axis=0) / np.maximum(N, 1)
        within = np.nansum((x - own) ** 2) / freedom
        between = N @ (own - N @ own / N.sum()) ** 2 - ((N > 0).sum() - 1) * within
        spread = max(between / (N.sum() - N @ N / N.sum()), 0.0)
        means = G + N * own * spread / (N * spread + within)
    return means


def centred(y, means, damping, clamp):
    """clip(y - b - o, -B, B) with the users' damped means o; 0 where unknown."""
    residual = y - means
    offset = np.nansum(residual, axis=1) / ((~np.isnan(y)).sum(axis=1) + damping)
    return np.nan_to_num(np.clip(residual - offset[:, None], -clamp, clamp))


def safe_ratio(a, b):
    return np.where(np.asarray(b) > 0, a / np.where(np.asarray(b) > 0, b, 1.0), 0.0)


def cleaned(cov, wgt, average, pairs, N, typical):
    """Pairs shrunk to their average covariance, variances to theirs."""
    variances, counts = np.diag(cov), np.diag(wgt)
    v = max(safe_ratio(variances.sum(), counts.sum()), 1e-6)
    E = np.outer(N, N)[pairs]
    E = E * safe_ratio(wgt[pairs] @ E, E @ E)  # the least-squares multiple
    noise = typical * v**2
    spread = np.sum((cov[pairs] - average * E) ** 2) - noise * E.sum()
    part = np.clip(safe_ratio(spread, v**2 * (E @ E)), 1e-100, 1.0)
    b = constants._SHRINKAGE * typical / part
    A = (cov + b * average) / np.maximum(wgt + b, 1e-300)
    own = counts.mean()
    shrunk = (variances + own * v) / np.maximum(counts + own, 1e-300)
    np.fill_diagonal(A, np.maximum(shrunk, constants.LEAST_OWN * v))
    return A


def noise_level(A, L, N, average, n, d):
    """psi and the offsets' ridge: what a says of the variance of users' levels."""
    own = np.diag(A)
    left = own - max(average, 0.0) - (L**2).sum(axis=1)
    psi = np.average(np.maximum(left, constants.LEAST_OWN * own), weights=N)
    level = (average * (n + d) ** 2 + psi * (n + 2 * d)) / d**2
    return psi, psi / max(level, constants.LEAST_OWN * psi)


def principal_axes(A, N, k, average):
    """L with L L^T ~ A, weighted by popularity; `average`: four steps from that diagonal."""
    clean, edge = average is not None, 0.0
    root = np.sqrt(N)
    level = max(average, 0.0) if clean else 0.0
    M, constant = (A - level) * np.outer(root, root), N / root
    if clean:
        np.fill_diagonal(M, (average - level) * root**2)
    P = np.eye(len(N)) - np.outer(constant, constant) / np.sum(constant**2)
    for _ in range(4 if clean else 1):
        if clean:
            edge = max(-np.linalg.eigvalsh(P @ M @ P)[0], 0.0)
        values, vectors = np.linalg.eigh(M)
        top = np.argsort(-values)[:k]
        top = top[values[top] > edge]
        L = vectors[:, top] * (values[top] ** 2 - edge**2) ** 0.25
        np.fill_diagonal(M, (L**2).sum(axis=1))
    return L / root[:, None]


def ridge_users(r, means, V, damping, ridge):
    """Each user's offset and coordinates: two columns of one ridge regression."""
    Z = np.zeros((len(r), 1 + V.shape[1]))
    penalty = np.diag([damping, *[ridge] * V.shape[1]])
    for i, row in enumerate(r):
        own = np.flatnonzero(~np.isnan(row))
        F = np.column_stack((np.ones(len(own)), V[own]))
        Z[i] = np.linalg.solve(F.T @ F + penalty, F.T @ (row[own] - means[own]))
    return Z


def svd_scores(r, means, V, damping, ridge):
    Z = ridge_users(r, means, V, damping, ridge)
    return means + Z[:, :1] + Z[:, 1:] @ V.T


def knn_scores(r, means, offsets, A, W, n_neighbors, ridge):
    """Interpolation from the known items of largest weight, equal ones by index."""
    scores = means + offsets[:, None] * np.ones_like(means)
    for i, row in enumerate(r):
        own = np.flatnonzero(~np.isnan(row))
        for j in range(len(means)):
            near = sorted(own[own != j], key=lambda a: (-round(W[j, a], 9), a))[:n_neighbors]
            inner = A[np.ix_(near, near)] + ridge * np.eye(len(near))
            x = row[near] - means[near] - offsets[i]
            scores[i, j] += A[j, near] @ np.linalg.solve(inner, x)
    return scores
