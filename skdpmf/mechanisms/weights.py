"""Weights of ratings by the popularity of their items, and what they sum up to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.privacy.users import Rows

__all__ = ["count_weights", "expected_weights", "popularity_weights", "row_norms", "rows_of"]


def popularity_weights(
    R: Any, mass: NDArray[np.float64], exponent: float, norm: str = "l2"
) -> NDArray[np.float64]:
    """Weights w_ij ~ mass_j^-exponent, of norm <= 1 for every user, aligned with R.data."""
    row, log_raw = rows_of(R), -exponent * np.log(mass)
    # less the user's largest, so that no power of the popularity leaves the doubles
    largest = np.full(R.shape[0], -np.inf)
    rated = np.diff(R.indptr) > 0
    largest[rated] = np.maximum.reduceat(log_raw[R.indices], R.indptr[:-1][rated])
    weight = np.exp(log_raw[R.indices] - largest[row])
    size = row_norms(row, weight, R.shape[0], norm)
    # a hair inside: rounding must not exceed the bound
    weight *= ((1.0 - 2.0**-40) / np.maximum(size, 1.0))[row]
    return np.asarray(weight)


def expected_weights(
    N: NDArray[np.float64], typical_weight: float, exponent: float, norm: str = "l2"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each item's expected sum of `popularity_weights` and typical weight, from popularity alone.

    norm_i ~ sqrt(n_i) * root mean square of raw over ratings; N_j ~ sum_i 1 / sqrt(n_i). In l1,
    n_i * the mean of raw, and sum_i 1 / n_i.
    """
    log_raw = -exponent * np.log(N)
    raw = np.exp(log_raw - log_raw.max())
    power = 1.0 if norm == "l1" else 2.0
    level = (np.sum(N * raw**power) / np.sum(N)) ** (1.0 / power)
    total = N * raw / level
    typical = np.clip(typical_weight * raw / level, 1e-12, 1.0)
    return np.maximum(total, 1e-12 * total.max()), typical


def count_weights(rows: Rows, norm: str = "l2") -> NDArray[np.float64]:
    """Return 1 / sqrt(n_i), in l1 1 / n_i, for each of a user's entries: a map of `Users`."""
    n = np.maximum(rows.n_ratings, 1)
    return np.repeat(1.0 / (n if norm == "l1" else np.sqrt(n)), rows.n_ratings)


def row_norms(row: Any, values: Any, n_rows: int, norm: str = "l2") -> NDArray[np.float64]:
    """Norm of each user's values."""
    if norm == "l1":
        return np.asarray(np.bincount(row, weights=np.abs(values), minlength=n_rows), np.float64)
    return np.asarray(np.sqrt(np.bincount(row, weights=values**2, minlength=n_rows)))


def rows_of(R: Any) -> NDArray[np.int64]:
    """User of each stored entry."""
    return np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
