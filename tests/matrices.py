"""Ratings as a dense array, NaN for unknown, and as a CSR matrix of the known entries."""

import numpy as np
from scipy import sparse


def csr(X):
    known = ~np.isnan(X)
    pointers = np.concatenate(([0], np.cumsum(known.sum(axis=1))))
    return sparse.csr_array((X[known], np.nonzero(known)[1], pointers), shape=X.shape)


def dense(R):
    R = R.tocoo()
    X = np.full(R.shape, np.nan)
    X[R.row, R.col] = R.data
    return X
