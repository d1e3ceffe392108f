"""Checks of parameters, and the one form of their errors."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy import sparse

from skdpmf.data.validation import as_rating_matrix
from skdpmf.privacy.budget import PrivacyBudget

__all__ = [
    "check_count",
    "check_items",
    "check_where",
    "is_count",
    "is_finite",
    "is_int",
    "require",
    "require_budget",
    "require_random_state",
]


def is_int(value: Any) -> bool:
    """Return whether a value is an integer, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether a value is an integer >= 1."""
    return is_int(value) and int(value) >= 1


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite real number, and no bool."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(float(value))


def require(holds: bool, name: str, value: Any, rule: str, remedy: str) -> None:
    """Raise ValueError, naming parameter, value, rule and remedy, unless the rule holds."""
    if not holds:
        raise ValueError(f"{name}={value!r} must be {rule}: {remedy}.")


def require_budget(budget: Any) -> None:
    """Raise unless `budget` is a PrivacyBudget of valid parameters."""
    if not isinstance(budget, PrivacyBudget):
        raise TypeError(
            f"budget={budget!r} must be a PrivacyBudget: pass PrivacyBudget(epsilon, delta), for "
            "example PrivacyBudget(1.0, 1e-5)."
        )
    budget.validate()


def require_random_state(random_state: Any) -> None:
    """Raise unless `random_state` is None or an integer >= 0."""
    if random_state is not None and not (is_int(random_state) and random_state >= 0):
        raise ValueError(
            f"random_state={random_state!r} must be None or an integer >= 0. None draws fresh "
            "randomness from the operating system; an integer repeats a fit."
        )


def check_items(items: Any, n_items: int, parameter: str = "items") -> np.ndarray:
    """Return column indices as a 1-D array of int64, or raise ValueError."""
    array = np.atleast_1d(np.asarray(items))
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise ValueError(
            f"{parameter}={items!r:.99} must be column indices, integers in one dimension: the "
            "model knows no names. Fit it with a RatingMatrix or a DataFrame to name items by ids."
        )
    outside = (array < 0) | (array >= n_items)
    if outside.any():
        raise ValueError(
            f"{parameter} holds {array[outside][0]}; indices must lie in 0..{n_items - 1}, the "
            "columns of the X of fit."
        )
    return array.astype(np.int64)


def check_where(where: Any, shape: tuple[int, int]) -> Any:
    """Return a canonical CSR array of the stored positions of `where`, or raise ValueError."""
    is_sparse: Any = sparse.issparse(where)
    if is_sparse and where.format not in ("bsr", "dia"):
        where = where.tocoo()
        ones = np.ones(where.data.size)
        where = sparse.coo_array((ones, (where.row, where.col)), shape=where.shape)
    elif hasattr(where, "dtype") and where.dtype == bool:
        where = np.where(where, 1.0, np.nan)
    where = as_rating_matrix(where)
    if where.shape != shape:
        raise ValueError(
            f"where has shape {where.shape}; it must have the shape of X, {shape}: the positions "
            "to predict."
        )
    return where


def check_count(value: Any, name: str) -> None:
    """Raise ValueError unless a number of items to return is an integer >= 1."""
    require(is_count(value), name, value, "an integer >= 1", "how many items to return")
