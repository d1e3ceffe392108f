"""Slow twins with plain dicts, and containers of one and the same set of stored entries."""

import math
from fractions import Fraction

import numpy as np
from scipy import sparse

NAN = float("nan")
SMALL = np.array(
    [[5.0, NAN, 0.0], [NAN, NAN, NAN], [1.0, 2.5, NAN], [NAN, 4.0, -3.0], [NAN, 1.0, NAN]]
)
SMALL_ROWS = [{0: 5.0, 2: 0.0}, {}, {0: 1.0, 1: 2.5}, {1: 4.0, 2: -3.0}, {1: 1.0}]

FORMATS = ("csr_array", "csc_array", "coo_array", "csr_matrix", "csc_matrix", "coo_matrix")


def rating_rows(entries, shape, rating_range=None):
    """One dict {column: rating} a row: finite entries inside the shape, exact means, clipped."""
    n_users, n_items = shape
    rows = [{} for _ in range(n_users)]
    for user, item, value in entries:
        if 0 <= user < n_users and 0 <= item < n_items and math.isfinite(value):
            rows[user].setdefault(item, []).append(Fraction(float(value)))
    merged = [{j: float(sum(v) / len(v)) for j, v in sorted(row.items())} for row in rows]
    if rating_range is not None:
        low, high = rating_range
        merged = [{j: min(max(v, low), high) for j, v in row.items()} for row in merged]
    return merged


def rows_of(R):
    """The same of a CSR container, in storage order."""
    parts = [slice(a, b) for a, b in zip(R.indptr[:-1], R.indptr[1:], strict=True)]
    return [dict(zip(R.indices[p].tolist(), R.data[p].tolist(), strict=True)) for p in parts]


def bounded_rows(rows, limit, priorities):
    """The `limit` entries of each row with the smallest (priority, column)."""
    bounded, at = [], 0
    for row in rows:
        keyed = sorted((priorities[at + k], j) for k, j in enumerate(row))
        kept = {j for _, j in keyed[:limit]}
        bounded.append({j: v for j, v in row.items() if j in kept})
        at += len(row)
    return bounded


def container(entries, shape, kind, index_dtype=np.int32, dtype=np.float64, layout="plain"):
    """A sparse container that stores exactly `entries`, also those that scipy would refuse."""
    rows, cols = (np.array([e[k] for e in entries], index_dtype) for k in (0, 1))
    data = np.array([e[2] for e in entries], dtype)
    X = getattr(sparse, kind)(shape, dtype=dtype)
    if X.format == "coo":
        rows, cols, data = (laid_out(a, layout) for a in (rows, cols, data))
        X.data = data
        if hasattr(X, "coords"):  # scipy >= 1.13
            X.coords = (rows, cols)
        else:
            X.row, X.col = rows, cols
        return X
    major, minor = (rows, cols) if X.format == "csr" else (cols, rows)
    order = np.argsort(major, kind="stable")
    indptr = np.searchsorted(major[order], np.arange(X.indptr.size)).astype(index_dtype)
    X.indptr = laid_out(indptr, "plain" if layout == "strided" else layout)
    X.indices, X.data = laid_out(minor[order], layout), laid_out(data[order], layout)
    return X


def laid_out(array, layout):
    if layout == "strided":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "fortran":
        return np.asfortranarray(array)
    array = array.copy()
    array.flags.writeable = layout != "read-only"
    return array
