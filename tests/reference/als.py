"""Slow twins of sums of skdpmf.kernels.sums, in exact rational arithmetic."""

from fractions import Fraction

import numpy as np


def truncated(x, grid):
    """The exact value of the double x, truncated towards zero to the grid."""
    x = Fraction(float(x))
    return int(x / Fraction(grid)) * Fraction(grid) if grid > 0 else x


def outer_sum(rows, weights, grid, targets=None):
    """Packed sum of z z^T and sum of t z in rational numbers, as floats."""
    k = rows.shape[1]
    gram = [Fraction(0)] * (k * (k + 1) // 2)
    rhs = [Fraction(0)] * k
    for i in range(len(rows)):
        root = np.sqrt(weights[i])
        z = [truncated(root * x, grid) for x in rows[i]]
        t = truncated(root * targets[i], grid) if targets is not None else Fraction(0)
        for c in range(k):
            rhs[c] += t * z[c]
            for d in range(c + 1):
                gram[c * (c + 1) // 2 + d] += z[c] * z[d]
    return np.array([float(x) for x in gram]), np.array([float(x) for x in rhs])


def accumulate_items(indptr, users, weights, targets, factors, grid):
    k = factors.shape[1]
    grams, rhs = np.zeros((len(indptr) - 1, k * (k + 1) // 2)), np.zeros((len(indptr) - 1, k))
    for j in range(len(grams)):
        own = slice(indptr[j], indptr[j + 1])
        grams[j], rhs[j] = outer_sum(factors[users[own]], weights[own], grid, targets[own])
    return grams, rhs
