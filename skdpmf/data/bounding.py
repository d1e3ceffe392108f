"""Contribution bounding: no user keeps more than a fixed number of ratings."""

from typing import Any

import numpy as np
from scipy import sparse

from .validation import is_integer, require


def bound_contributions(X: Any, max_ratings_per_user: Any, priorities: Any) -> Any:
    """Keep in every row the entries with the smallest priorities.

    The entries of row i that stay are a function of row i and its priorities alone, so that a
    user who joins or leaves changes one row of the result and nothing else. A bound that looked
    at other rows (a quantile of the activity, a draw shared by all) would not have this.

    `X` is canonical CSR, `max_ratings_per_user` is public, never read off the data, and
    `priorities` (n_ratings,) are one integer or float for each entry of ``X.data``: ties go to the
    smaller column, and NaN counts as the largest. The result shares memory with `X` if all entries
    are kept.
    """
    tau = max_ratings_per_user
    remedy = "the number of ratings that each user may contribute"
    require(is_integer(tau, 1), "max_ratings_per_user", tau, "an integer >= 1", remedy)
    if getattr(X, "format", None) != "csr":
        raise ValueError(
            f"X must be a scipy sparse CSR container, got {type(X).__name__}. "
            "Call as_rating_matrix(X) first."
        )
    X = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape)
    if not X.has_canonical_format:
        raise ValueError(
            "X has unsorted or repeated columns in a row, so that a user's ratings cannot be "
            "counted. Call as_rating_matrix(X) first."
        )
    priorities = np.asarray(priorities)
    if priorities.shape != (X.nnz,) or priorities.dtype.kind not in "uif":
        raise ValueError(
            f"priorities has shape {priorities.shape} and dtype {priorities.dtype}; it must hold "
            f"one integer or float for each of the {X.nnz} entries of X.data."
        )
    n_rated = np.diff(X.indptr)
    long_rows = n_rated > tau
    if not long_rows.any():
        return X
    entries = np.flatnonzero(np.repeat(long_rows, n_rated))
    lengths = n_rated[long_rows]
    row = np.repeat(np.arange(lengths.size), lengths)
    # A stable sort: equal priorities stay in the order of their columns.
    by_priority = entries[np.lexsort((priorities[entries], row))]
    rank = np.arange(row.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    keep = np.ones(X.nnz, bool)
    keep[by_priority[rank >= tau]] = False
    return keep_entries(X, keep)


def keep_entries(R: sparse.csr_array, keep: np.ndarray) -> sparse.csr_array:
    """Return the CSR array of the stored entries that a mask, aligned with ``R.data``, keeps."""
    indptr = np.concatenate(([0], np.cumsum(keep)))[R.indptr].astype(R.indptr.dtype)
    return sparse.csr_array((R.data[keep], R.indices[keep], indptr), shape=R.shape)


def without_rows(R: sparse.csr_array, rows: np.ndarray) -> sparse.csr_array:
    """Return the CSR array with the rows emptied that a mask selects."""
    return keep_entries(R, ~np.repeat(rows, np.diff(R.indptr)))
