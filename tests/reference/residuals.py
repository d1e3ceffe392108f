"""Slow twins of sums over residuals of skdpmf.kernels.sums."""

import itertools
import math
from fractions import Fraction

import numpy as np

from tests.reference.als import truncated


def accumulate_rhs(indptr, indices, terms, scale, factors, grid, n_items):
    """In rational numbers, as floats."""
    sums = [[Fraction(0)] * factors.shape[1] for _ in range(n_items)]
    for i in range(len(indptr) - 1):
        z = [truncated(x, grid) for x in factors[i]]
        for p in range(indptr[i], indptr[i + 1]):
            t = truncated(scale[i] * terms[p], grid)
            sums[indices[p]] = [a + t * b for a, b in zip(sums[indices[p]], z, strict=True)]
    return np.array([[float(x) for x in row] for row in sums]).reshape(n_items, -1)


def row_norms(indptr, terms, l1):
    """In rational numbers, as floats; roots by `math.sqrt`."""
    out = []
    for start, stop in itertools.pairwise(indptr):
        own = [Fraction(float(x)) for x in terms[start:stop]]
        total = sum((abs(x) if l1 else x * x for x in own), Fraction(0))
        out.append(float(total) if l1 else math.sqrt(total))
    return np.array(out)
