"""Ratings as a dense array, NaN for unknown, as a CSR matrix of the known ones, and as a table."""

import numpy as np
import pandas as pd
from scipy import sparse

from skdpmf.data.validation import as_rating_matrix


def csr(X):
    X = np.asarray(X)
    known = ~np.isnan(X)
    pointers = np.concatenate(([0], np.cumsum(known.sum(axis=1))))
    return sparse.csr_array((X[known], np.nonzero(known)[1], pointers), shape=X.shape)


def dense(R):
    R = R.tocoo()
    X = np.full(R.shape, np.nan)
    X[R.row, R.col] = R.data
    return X


def matrix_to_ratings(X, users=None, items=None):
    """List the ratings of a matrix, one a row, under the ids of its rows and columns."""
    R = as_rating_matrix(X).tocoo()
    users, items = (
        range(n) if ids is None else ids for ids, n in zip((users, items), R.shape, strict=True)
    )
    ids = {"user": pd.Index(users).take(R.row), "item": pd.Index(items).take(R.col)}
    return pd.DataFrame({**ids, "rating": R.data})
