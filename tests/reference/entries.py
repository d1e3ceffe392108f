"""Slow twin of skdpmf.kernels.entries."""

import numpy as np


def predict_entries(indptr, indices, U, V):
    out = np.zeros(len(indices))
    for i in range(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            out[p] = sum(float(a) * float(b) for a, b in zip(U[i], V[indices[p]], strict=True))
    return out
