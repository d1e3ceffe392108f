"""X as it comes to an estimator: checked, and made canonical ratings."""

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import validate_data

from skdpmf.data.validation import as_rating_matrix

__all__ = ["check_ratings", "unsummed"]


def check_ratings(
    estimator: Any, X: Any, *, reset: bool, rating_range: Any = None
) -> tuple[Any, np.dtype]:
    """Canonical ratings, clipped to the range, and the floating type of X.

    Names and number of columns are noted on the estimator, or compared with what was noted.
    """
    columns: Any = getattr(X, "columns", None)
    if not getattr(columns, "is_unique", True):
        raise ValueError(
            f"X has several columns named {columns[columns.duplicated()][0]!r}: each item must "
            "have one column. Rename or drop the others."
        )
    try:
        X = validate_data(
            estimator,
            unsummed(X),
            reset=reset,
            accept_sparse=("csr", "csc", "coo"),
            dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan",
        )
    except (TypeError, ValueError) as error:
        remedy = next((remedy for words, remedy in _REMEDIES.items() if words in str(error)), None)
        if remedy is None:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"X must hold finite real numbers, or NaN where unknown: {error} {remedy}"
        ) from None
    return as_rating_matrix(X, rating_range=rating_range), X.dtype


_NOT_NUMBERS = "Convert X, of a DataFrame each column by pandas.to_numeric, or leave out text."
# by words of scikit-learn's and numpy's errors
_REMEDIES = {
    "could not convert": _NOT_NUMBERS,
    "must be a string or a real number": _NOT_NUMBERS,
    "contains infinity": "Replace infinite ratings by NaN; validate_ratings(X) counts them.",
}


def unsummed(X: Any) -> Any:
    """Sparse X made ready for ``validate_data``, whose conversions would sum repeated entries."""
    is_sparse: Any = sparse.issparse(X)
    if not is_sparse:
        return X
    if X.format in ("dok", "lil"):  # these hold no entry twice
        X = X.tocsr()
    if X.dtype.kind == "f" and X.format not in ("bsr", "dia"):
        assert_all_finite(X.data, allow_nan=True, input_name="X")
        if X.dtype in (np.float64, np.float32):
            return X
    return as_rating_matrix(X) if X.dtype.kind in "buif" else X
