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
