"""Slow twin of skdpmf.mechanisms.gram.covariance without privacy, and of its predictions.

Dense matrices, with NaN for an unknown rating. `fit` is in quarter ranges from the middle of the
scale, predictions are in rating units.
"""

from typing import NamedTuple

import numpy as np

from skdpmf.mechanisms.gram import covariance_factors as constants


class Fitted(NamedTuple):
    means: np.ndarray
    covariance: np.ndarray  # A
    weights: np.ndarray  # Wgt
    factors: np.ndarray  # L, n_items x k


def fit(y, k, *, item_damping, user_damping, clamp, clean, power=0.5):
    """The published algorithm; users with c ratings have the weight w = c^-power."""
    known = ~np.isnan(y)
    n = known.sum(axis=0)
    G = np.nansum(y) / max(n.sum(), 1)
    means = (np.nansum(y, axis=0) + item_damping * G) / (n + item_damping)
    means = means + (G - n @ means / max(n.sum(), 1))
    x = centred(y, means, user_damping, clamp)
    w = np.where(known.any(axis=1), np.maximum(known.sum(axis=1), 1.0) ** -power, 0.0)
    cov, wgt = (x * w[:, None]).T @ x, (known * w[:, None]).T @ known
    pairs = ~np.eye(len(n), dtype=bool)
    average = safe_ratio(cov[pairs].sum(), wgt[pairs].sum())
    A = cleaned(cov, wgt, average, pairs) if clean else safe_ratio(cov, wgt)
    N = np.maximum(n, 1.0)
    return Fitted(means, A, wgt, principal_axes(A, N, min(k, len(n)), average if clean else None))


def centred(y, means, damping, clamp):
    """clip(y - b - o, -B, B) with the users' damped means o; 0 where unknown."""
    residual = y - means
    offset = np.nansum(residual, axis=1) / ((~np.isnan(y)).sum(axis=1) + damping)
    return np.nan_to_num(np.clip(residual - offset[:, None], -clamp, clamp))


def safe_ratio(a, b):
    return np.where(np.asarray(b) > 0, a / np.where(np.asarray(b) > 0, b, 1.0), 0.0)


def cleaned(cov, wgt, average, pairs):
    """Pairs shrunk to their average covariance, variances to theirs."""
    h = len(cov)
    b = constants._WEIGHT_SHRINKAGE * (wgt[pairs].mean() if h > 1 else 0.0)
    A = (cov + b * average) / np.maximum(wgt + b, 1e-300)
    variances, counts = np.diag(cov), np.diag(wgt)
    typical = max(safe_ratio(variances.sum(), counts.sum()), 1e-6)
    own = constants._WEIGHT_SHRINKAGE * counts.mean()
    shrunk = (variances + own * typical) / np.maximum(counts + own, 1e-300)
    np.fill_diagonal(A, np.clip(shrunk, typical / 20.0, typical * 20.0))
    return A


def principal_axes(A, N, k, average):
    """L with L L^T ~ A, weighted by popularity; `average`: two steps from that diagonal."""
    M = A * np.sqrt(np.outer(N, N))
    if average is not None:
        np.fill_diagonal(M, average * N)
    for last in (False, True) if average is not None else (True,):
        values, vectors = np.linalg.eigh(M)
        top = np.argsort(-values)[:k]
        top = top[values[top] > 0]
        L = vectors[:, top] * np.sqrt(values[top])
        if not last:
            np.fill_diagonal(M, (L**2).sum(axis=1))
    return L / np.sqrt(N)[:, None]


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


def process_scores(r, means, K, noise):
    """Gaussian process with the items' covariance K and normal errors of variance `noise`."""
    scores = np.tile(means, (len(r), 1))
    for i, row in enumerate(r):
        own = np.flatnonzero(~np.isnan(row))
        inner = K[np.ix_(own, own)] + noise * np.eye(len(own))
        scores[i] += K[:, own] @ np.linalg.solve(inner, row[own] - means[own])
    return scores


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
