"""Slow twins of `skdpmf.kernels.covariance`, on full matrices."""

import numpy as np


def triangle(matrix):
    return matrix[np.tril_indices(len(matrix))]


def symmetric(packed, h):
    full = np.zeros((h, h))
    full[np.tril_indices(h)] = packed
    return full + np.tril(full, -1).T


def pair_products(pattern, x, weight, unit):
    """Packed triangles of both sums, a user at a time."""
    cov, wgt = np.zeros((2, pattern.n_columns, pattern.n_columns), np.int64)
    for u in range(pattern.n_rows):
        own = slice(pattern.indptr[u], pattern.indptr[u + 1])
        items, values = pattern.indices[own], x[own].astype(np.float64)
        scaled = weight[u] / unit
        cov[np.ix_(items, items)] += np.trunc(np.outer(scaled * values, values)).astype(np.int64)
        wgt[np.ix_(items, items)] += int(scaled)
    return triangle(cov), triangle(wgt)


def product_part(P, scale, X, start, stop):
    """What rows [start, stop) of the triangle give of D P D X."""
    part = np.tril(P[start:stop], start)
    Y, Z = scale[:, None] * X, np.zeros_like(X)
    Z[start:stop] = part @ Y
    Z += np.tril(P[start:stop], start - 1).T @ Y[start:stop]
    return scale[:, None] * Z


def moments(C, W, N, start, stop):
    """Sums of C, W, W N N', W^2, C N N' and C^2 below the diagonal, rows [start, stop)."""
    i, j = (part.astype(int) for part in np.tril_indices(len(N), -1))
    own = (start <= i) & (i < stop)
    i, j = i[own], j[own]
    c, w, product = C[i, j].astype(np.float64), W[i, j].astype(np.float64), N[i] * N[j]
    return [c.sum(), w.sum(), w @ product, w @ w, c @ product, c @ c]


def shrunk_pairs(C, W, N, slope, relative, noise, shrinkage, mean):
    """Weights between what was measured and slope N N', and covariances divided by them."""
    E = slope * np.outer(N, N)
    if noise > 0:
        trust = relative * E**2 / (relative * E**2 + noise**2)
        W = np.maximum(trust * W + (1.0 - trust) * E, 0.0)
    return (C + shrinkage * mean) / np.maximum(W + shrinkage, 1e-300), W
