"""Users x items ratings in any container become one canonical CSR array.

Two functions, two audiences. `as_rating_matrix` runs inside a private ``fit``: what a row holds
never makes it raise or warn, because an error that one user's row can cause shows that the user
is there. `validate_ratings` is the curator's own check before a fit, and complains.
"""

import math
import warnings
from dataclasses import asdict, dataclass
from numbers import Real
from os import PathLike
from pathlib import PurePath
from typing import Any

import numpy as np
from scipy import sparse

from ..exceptions import counted
from .labelled_rows import RatingMatrix, catalogue_of, labelled_rows, names_items
from .loaders import rating_columns

MAX_ITEMS = np.iinfo(np.int32).max
_FARTHEST = 1e100  # of a rating range
# Lazy tables, and tables and batches of Arrow have these attributes; the methods make DataFrames.
_READ_BY = {"collect": "collect", "column_names": "to_pandas", "read_all": "read_pandas"}
_TABLE_COLUMNS = 12  # at most, of what is taken for a table with a rating in a row


def is_integer(value: Any, least: float, most: float = np.inf) -> bool:
    """Return whether a value is a whole number within bounds, and no truth value."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return bool(whole and least <= value <= most)


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite real number, and no bool."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(float(value))


def require(holds: bool, name: str, value: Any, rule: str, remedy: str) -> None:
    """Raise ValueError, naming parameter, value, rule and remedy, unless the rule holds."""
    if not holds:
        raise ValueError(f"{name}={value!r} must be {rule}: {remedy}.")


def check_rating_range(rating_range: Any) -> tuple[float, float]:
    """Return a rating range, which is public and never read off the data, as two floats."""
    rule = "a pair (low, high) of finite numbers with low < high, the scale on which the ratings "
    rule += "were given, such as (1.0, 5.0). Both must lie between -1e100 and 1e100 and differ by "
    rule += "1e-100 at least, as squares of ratings must be numbers too"
    try:
        low, high = (float(end) if isinstance(end, Real) else math.nan for end in rating_range)
    except (TypeError, ValueError, OverflowError):
        low = high = math.nan
    holds = -_FARTHEST <= low < high <= _FARTHEST and high - low >= 1 / _FARTHEST
    require(holds, "rating_range", rating_range, rule, "pass the scale, or change its unit")
    return low, high


def in_quarter_ranges(R: Any, rating_range: tuple[float, float]) -> Any:
    """Return the ratings of a csr_array as (r - middle) / quarter."""
    middle, unit = middle_and_quarter(rating_range)
    y = R.data - middle
    y /= unit  # in place: there are many ratings
    return sparse.csr_array((y, R.indices, R.indptr), shape=R.shape)


def as_they_are(R: Any) -> Any:
    """Return the ratings."""
    return R


def in_rating_units(means: Any, rating_range: tuple[float, float]) -> Any:
    """Return the way back, for means."""
    middle, unit = middle_and_quarter(rating_range)
    return np.asarray(middle + unit * means)


def middle_and_quarter(rating_range: tuple[float, float]) -> tuple[float, float]:
    """Return middle and quarter of the rating range."""
    low, high = rating_range
    return (low + high) / 2.0, (high - low) / 4.0


def as_rating_matrix(X: Any, *, rating_range: Any = None, dtype: Any = np.float64) -> Any:
    """Turn users x items ratings into a canonical CSR array.

    In a sparse container stored = rated (a stored 0 is the rating 0); in a dense array or
    DataFrame NaN = unknown. In this order: entries that are not finite or whose index lies
    outside the shape are dropped, several ratings of one (user, item) pair become their mean,
    and the result is clipped to `rating_range`. Row i of the result is a function of row i of
    `X` alone, whatever the order in which its entries are stored.

    `X` holds real numbers of any width; sparse formats are csr, csc, coo, lil and dok, as bsr and
    dia cannot tell a rating of 0 from an unknown one. It is never modified. Ratings too large for
    float32 become its largest number. Columns of the result ascend, distinct in every row; indices
    have 32 bits unless more are needed. It shares memory with `X` where nothing had to change: do
    not write into it. What the rows hold raises and warns nothing.

    Examples
    --------
    >>> import numpy as np
    >>> R = as_rating_matrix([[5.0, np.nan, 9.0], [np.nan, 0.0, np.nan]], rating_range=(0, 5))
    >>> R.indices, R.data
    (array([0, 2, 1], dtype=int32), array([5., 5., 0.]))

    Two ratings of one user for one item count as one, their mean:

    >>> from scipy.sparse import coo_array
    >>> as_rating_matrix(coo_array(([2.0, 5.0], ([0, 0], [1, 1])), shape=(1, 2))).toarray()
    array([[0. , 3.5]])
    """
    dtype = np.dtype(dtype)
    if dtype not in (np.float64, np.float32):
        raise ValueError(f"dtype={dtype} must be numpy.float64 or numpy.float32.")
    X = _container(X)
    n_users, n_items = X.shape
    data, indices, indptr = _sparse_parts(X) if sparse.issparse(X) else _dense_parts(X)

    index_dtype = np.int32 if max(n_users, n_items, data.size) <= MAX_ITEMS else np.int64
    # A new array object on the same memory: its cached flags are its own.
    indices, indptr = (part.astype(index_dtype, copy=False) for part in (indices, indptr))
    R = sparse.csr_array((data, indices, indptr), shape=(n_users, n_items))
    if not R.has_canonical_format:
        R = R.copy()
        R.sort_indices()
        R = _merge_duplicates(R)
    if rating_range is not None:
        R = clipped(R, rating_range)
    if dtype == np.float32:
        largest = np.finfo(np.float32).max
        R.data = np.clip(R.data, -largest, largest).astype(np.float32)
    return R


def clipped(R: Any, rating_range: Any, *, warns: str = "") -> Any:
    """Return canonical ratings clipped to a range.

    With `warns`, their name, a warning says where most likely the range is not theirs: one bit,
    that more than a tenth lies outside, for the curator.
    """
    low, high = check_rating_range(rating_range)
    if not R.nnz or (R.data.min() >= low and R.data.max() <= high):
        return R
    if warns:
        warn_of_scale(count_outside(R.data, (low, high)), R.nnz, (low, high), warns)
    return sparse.csr_array((np.clip(R.data, low, high), R.indices, R.indptr), shape=R.shape)


def count_outside(ratings: np.ndarray, rating_range: tuple[float, float]) -> int:
    """Return how many ratings lie outside of the range."""
    low, high = rating_range
    return int(np.count_nonzero(ratings < low) + np.count_nonzero(ratings > high))


def warn_of_scale(
    n_outside: int, n_ratings: int, rating_range: tuple[float, float], name: str = "X"
) -> None:
    """Warn where more than a tenth of the ratings lies outside of the range."""
    low, high = rating_range
    if n_outside > n_ratings / 10:
        warnings.warn(
            f"rating_range=({low:g}, {high:g}) must be the scale that the ratings were given on, "
            f"and more than a tenth of those in {name} lie outside and are clipped: pass their "
            "scale as rating_range. For plays and clicks use feedback='implicit', which some "
            "estimators have. (This warning has read the ratings, and is for their curator alone.)",
            stacklevel=2,
        )


def _container(X: Any) -> Any:
    """Return `X` as a 2-d scipy sparse container or a 2-d float64 array; never copies sparse."""
    if isinstance(X, RatingMatrix):
        X = X.X
    else:
        refuse_what_is_no_matrix(X)
    if _has_sparse_columns(X):
        X = X.sparse.to_coo()
    if sparse.issparse(X):
        if X.format in ("bsr", "dia"):
            raise ValueError(
                f"X must be sparse as csr, csc or coo, and is {X.format}, whose padding "
                "zeros look like ratings of 0: convert what X is built from."
            )
        if X.dtype.kind not in "buif":
            raise ValueError(f"X has dtype {X.dtype}, and ratings must be real numbers: convert X.")
    else:
        X = _dense_float64(X)
    if len(X.shape) != 2:
        raise ValueError(
            f"X has shape {X.shape} and must be a users x items matrix with 2 dimensions: "
            "call ratings_to_matrix first for a table of (user, item, rating) rows."
        )
    return X


def refuse_infinite(X: Any, name: str = "X") -> None:
    """Refuse infinite ratings, which `as_rating_matrix` drops without a word."""
    X = _container(X)
    if sparse.issparse(X):
        X = X.data[: X.indptr[-1]] if X.format in ("csr", "csc") else X.tocoo().data
    if np.isinf(X).any():
        raise ValueError(f"{name} holds infinite ratings, which must be finite: leave them out.")


def _has_sparse_columns(X: Any) -> bool:
    """Tell a DataFrame of sparse columns with gaps of 0, which scikit-learn reads as sparse."""
    if not (hasattr(X, "iloc") and len(X.shape) == 2 and X.shape[1] and hasattr(X, "sparse")):
        return False
    return all(dtype.fill_value == 0 for dtype in X.dtypes)


def _dense_float64(X: Any) -> Any:
    try:
        if hasattr(X, "iloc"):
            return X.to_numpy(dtype=np.float64, na_value=np.nan)
        array = np.asarray(X)
        if array.dtype.kind not in "buifO":
            raise ValueError(f"dtype {array.dtype}")
        with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            "X must be a users x items matrix of real numbers with NaN for unknown ratings, or "
            f"sparse, and cannot be read as one ({error}): convert it."
        ) from None


def _dense_parts(X: Any) -> tuple[Any, Any, Any]:
    known = np.isfinite(X)
    # Both boolean indexing and nonzero go row by row, in whatever order X lies in memory.
    return X[known], known.nonzero()[1], np.concatenate(([0], np.cumsum(known.sum(axis=1))))


def _sparse_parts(X: Any) -> tuple[Any, Any, Any]:
    """Return the usable entries (data float64, indices, indptr), columns in any order."""
    n_users, n_items = X.shape
    if X.format == "csr":
        indptr = _checked_indptr(X)
        indices, data = X.indices[: indptr[-1]], X.data[: indptr[-1]]
    else:
        rows, indices, data = _coordinates(X)
        order, indptr = _group_by_row(rows, n_users)
        if order is not None:
            indices, data = indices[order], data[order]
    with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite
        data = np.ascontiguousarray(data, dtype=np.float64)
    indices = np.ascontiguousarray(indices)
    keep = np.isfinite(data)
    if indices.size and (indices.min() < 0 or indices.max() >= n_items):
        keep &= (indices >= 0) & (indices < n_items)
    if keep.all():
        return data, indices, indptr
    return data[keep], indices[keep], _cumulated(keep)[indptr]


def _checked_indptr(X: Any) -> Any:
    """Return the index pointer of a compressed container, refused if it points nowhere."""
    indptr = np.ascontiguousarray(X.indptr)
    n_major = X.shape[0] if X.format == "csr" else X.shape[1]
    n_stored = min(X.indices.size, X.data.size)
    in_bounds = indptr.shape == (n_major + 1,) and indptr[0] == 0 and indptr[-1] <= n_stored
    if not in_bounds or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(
            f"X.indptr of the {X.format} container is broken: it must hold {n_major + 1} ascending "
            f"positions from 0 to at most {n_stored}. Rebuild X, for example from "
            "(rating, (row, column)) triples."
        )
    return indptr


def _coordinates(X: Any) -> tuple[Any, Any, Any]:
    """Return (rows, columns, ratings) of everything stored, valid or not."""
    if X.format in ("csr", "csc"):
        indptr = _checked_indptr(X)
        major = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        minor, data = X.indices[: indptr[-1]], X.data[: indptr[-1]]
        return (major, minor, data) if X.format == "csr" else (minor, major, data)
    X = X.tocoo()
    return X.row, X.col, X.data


def _group_by_row(rows: Any, n_users: int) -> tuple[Any, Any]:
    """Return a stable order that groups entries by row, and the row pointer into it.

    Rows outside 0..n_users-1 are left out. The order is None if the entries lie that way already.
    """
    valid = (rows >= 0) & (rows < n_users)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows[valid], minlength=n_users))))
    if not valid.all():
        return np.flatnonzero(valid)[np.argsort(rows[valid], kind="stable")], indptr
    if (rows[1:] >= rows[:-1]).all():
        return None, indptr
    # Transposing a matrix with one entry per row is a counting sort, in linear time.
    n = rows.size
    one_each = sparse.csr_array((np.ones(n, bool), rows, np.arange(n + 1)), shape=(n, n_users))
    return one_each.tocsc().indices, indptr


def _cumulated(mask: Any) -> Any:
    return np.concatenate(([0], np.cumsum(mask)))


def _merge_duplicates(R: Any) -> Any:
    """Replace equal neighbours in the sorted rows of `R` by their mean.

    A mean is clipped to its smallest and largest term, so that it can neither overflow nor move
    equal ratings by a rounding error, and its terms are added in ascending order, so that it
    does not depend on their order in storage.
    """
    first = np.ones(R.nnz, bool)
    first[1:] = R.indices[1:] != R.indices[:-1]
    first[R.indptr[:-1][R.indptr[:-1] < R.nnz]] = True
    if first.all():
        return R
    counts = np.diff(np.append(np.flatnonzero(first), R.nnz))
    repeated = counts > 1
    n = counts[repeated]
    group = np.repeat(np.arange(n.size), n)
    terms = R.data[np.repeat(repeated, counts)]
    terms = terms[np.lexsort((terms, group))]
    means = np.bincount(group, weights=terms) / n
    overflowed = ~np.isfinite(means)
    if overflowed.any():
        means[overflowed] = np.bincount(group, weights=terms / n[group])[overflowed]
    end = np.cumsum(n)
    data = R.data[first]
    data[repeated] = np.clip(means, terms[end - n], terms[end - 1])
    indptr = _cumulated(first)[R.indptr].astype(R.indptr.dtype)
    return sparse.csr_array((data, R.indices[first], indptr), shape=R.shape)


@dataclass(frozen=True)
class RatingReport:
    """What `validate_ratings` found: counts, exact and therefore private.

    Attributes
    ----------
    n_users, n_items : int
        Shape of the matrix.
    n_ratings : int
        Usable ratings: distinct (user, item) pairs with a finite rating.
    n_duplicates : int
        Usable entries beyond the first of their (user, item) pair.
    n_nan, n_infinite : int
        Stored NaN (sparse only: in a dense X NaN means unknown) and infinite entries.
    n_out_of_range : int
        Finite entries outside `rating_range`; 0 where no range was given.
    n_bad_indices : int
        Stored entries with a negative or too large row or column index.
    n_empty_users, n_empty_items : int
        Rows and columns without a usable rating.
    n_zeros : int
        Usable ratings that are 0.
    all_rated : bool
        Whether every user has rated every one of several items, some by 0, as it seems where zeros
        stand for unknown ratings.
    large_delta : float
        The estimator's delta if it exceeds 1 / n_users, else 0.
    n_marked_down : int
        Usable clicks with a weight of 0 or below; 0 for an estimator of ratings.
    rating_range : (float, float) or None
        The range that was checked.

    Examples
    --------
    >>> report = validate_ratings([[5.0, np.nan], [9.0, np.nan]], rating_range=(1, 5))
    >>> report.n_ratings, report.n_out_of_range, report.n_empty_items
    (2, 1, 1)
    >>> sorted(report.problems)
    ['n_empty_items', 'n_out_of_range']
    """

    n_users: int
    n_items: int
    n_ratings: int
    n_duplicates: int
    n_nan: int
    n_infinite: int
    n_out_of_range: int
    n_bad_indices: int
    n_empty_users: int
    n_empty_items: int
    n_zeros: int = 0
    all_rated: bool = False
    large_delta: float = 0.0
    rating_range: tuple[float, float] | None = None
    n_marked_down: int = 0

    @property
    def problems(self) -> dict[str, str]:
        """Map the name of each count that is a problem to a sentence about it."""
        found = {name: text for name, text in _PROBLEMS.items() if getattr(self, name)}
        if not self.n_ratings:
            found["n_ratings"] = "no usable rating: there is nothing to learn from."
        share = self.n_out_of_range / max(self.n_ratings + self.n_duplicates, 1)
        down = self.n_marked_down / max(self.n_ratings, 1)
        low, high = self.rating_range or (0.0, 0.0)
        counts = {**asdict(self), "share": share, "down": down, "low": low, "high": high}
        return {name: text.format(**counts) for name, text in found.items()}

    def __str__(self) -> str:
        head = f"{counted(self.n_ratings, 'rating')} of {counted(self.n_users, 'user')} for "
        head += counted(self.n_items, "item")
        problems = list(self.problems.values())
        return "\n- ".join([head + ":", *problems]) if problems else head + "; no problem found."


_PROBLEMS = {
    "n_bad_indices": "row or column indices outside the shape: {n_bad_indices}. fit drops them.",
    "n_nan": "stored NaN: {n_nan}. fit takes them as unknown.",
    "n_infinite": "infinite ratings: {n_infinite}. fit refuses them.",
    "n_out_of_range": "ratings outside {low:g} to {high:g}: {n_out_of_range} ({share:.0%}). fit "
    "clips them. Pass the scale as rating_range.",
    "n_marked_down": "clicks with a weight of 0 or below: {n_marked_down} ({down:.0%}). fit takes "
    "them for no clicks, and their users never get these items.",
    "all_rated": "every cell is rated, and {n_zeros} by 0: where 0 means unknown, pass a sparse "
    "matrix without these cells, or NaN in their place.",
    "large_delta": "delta={large_delta:g} exceeds 1 / users: a mechanism with such a delta may "
    "reveal everything about some user. Choose delta far below.",
    "n_duplicates": "entries that repeat a (user, item) pair: {n_duplicates}. fit takes the "
    "pair's mean.",
    "n_empty_users": "users without a rating: {n_empty_users}. They contribute nothing.",
    "n_empty_items": "items without a rating: {n_empty_items}. Their factors will be noise only.",
}


def validate_ratings(X: Any, estimator: Any = None, *, rating_range: Any = None) -> RatingReport:
    """Count what is wrong with a rating matrix: a check for the curator, before a budget is spent.

    It costs nothing and is outside the guarantee: the report is exact, so it speaks of single
    rows. Keep it with the data and publish neither it nor an error made from it. A private ``fit``
    repairs silently, but for one warning where more than a tenth lies outside of the range.

    Parameters
    ----------
    X : {array-like, DataFrame, sparse matrix, sparse array} of shape (n_users, n_items)
        Ratings, as `as_rating_matrix` takes them. Not modified.
    estimator : estimator, default=None
        The one to be fitted: its ``rating_range``, but for clicks, and the delta of its ``budget``
        are compared with X.
    rating_range : (float, float), default=None
        Count ratings outside this range. None: the estimator's, if there is one.

    Returns
    -------
    report : RatingReport
        The counts; ``print(report)`` lists the problems, ``report.problems`` has them by name.

    Raises
    ------
    ValueError
        If `X` is not a 2-d container of real numbers, or `rating_range` is invalid.

    Examples
    --------
    >>> from scipy.sparse import coo_array
    >>> X = coo_array(([5.0, 3.0, 9.0], ([0, 0, 1], [1, 1, 0])), shape=(3, 2))
    >>> print(validate_ratings(X, rating_range=(1, 5)))
    2 ratings of 3 users for 2 items:
    - ratings outside 1 to 5: 1 (33%). fit clips them. Pass the scale as rating_range.
    - entries that repeat a (user, item) pair: 1. fit takes the pair's mean.
    - users without a rating: 1. They contribute nothing.

    Zeros for unknown ratings, and a scale that is not the estimator's:

    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> estimator = DPItemMeans(PrivacyBudget(1.0, delta=1e-5))
    >>> sorted(validate_ratings([[9.0, 0.0], [0.0, 7.0]], estimator).problems)
    ['all_rated', 'n_out_of_range']
    """
    implicit = getattr(estimator, "_implicit", False)
    if rating_range is None and not implicit:
        rating_range = getattr(estimator, "rating_range", None)
    if rating_range is not None:
        rating_range = check_rating_range(rating_range)
    low, high = rating_range or (-np.inf, np.inf)
    delta = float(getattr(getattr(estimator, "budget", None), "delta", 0.0))
    X = _container(X)
    n_users, n_items = X.shape
    clean = as_rating_matrix(X)
    if sparse.issparse(X):
        rows, columns, values = _coordinates(X)
        inside = (rows >= 0) & (rows < n_users) & (columns >= 0) & (columns < n_items)
        n_nan = int(np.isnan(values).sum())
    else:
        values = X.ravel()
        inside, n_nan = np.ones(values.size, bool), 0
    n_zeros = int((clean.data == 0.0).sum())
    usable = inside & np.isfinite(values)
    outside = usable & ((values < low) | (values > high))
    return RatingReport(
        n_users=n_users,
        n_items=n_items,
        n_ratings=int(clean.nnz),
        n_duplicates=int(usable.sum() - clean.nnz),
        n_nan=n_nan,
        n_infinite=int(np.isinf(values).sum()),
        n_out_of_range=int(outside.sum()),
        n_bad_indices=int((~inside).sum()),
        n_empty_users=int((np.diff(clean.indptr) == 0).sum()),
        n_empty_items=n_items - int(np.unique(clean.indices).size),
        n_zeros=n_zeros,
        all_rated=n_zeros > 0 and n_items > 1 and clean.nnz == n_users * n_items,
        large_delta=delta if delta * n_users > 1.0 else 0.0,
        rating_range=rating_range,
        n_marked_down=int((clean.data <= 0.0).sum()) if implicit else 0,
    )


def check_ratings(
    estimator: Any,
    X: Any,
    *,
    reset: bool,
    rating_range: Any = None,
    warns: bool = False,
    stored: bool = False,
) -> tuple[Any, np.dtype]:
    """Canonical ratings, clipped to the range (with a warning, see `clipped`), and X's float type.

    Names and number of columns are noted on the estimator, or compared with what was noted. Where
    they are not (`reset` is False), rows may be dicts, and the columns of a RatingMatrix are put
    into the order of the noted ones. Where `stored` says so, `fit` takes ratings on disk and of
    Dask, and looks at them later.
    """
    if stored and (hasattr(type(X), "read_rows") or (reset and is_lazy(X))):
        refuse_what_is_no_matrix(X)
        return _checked_stored(estimator, X, reset, rating_range if warns else None)
    if reset or not names_items(X):
        refuse_what_is_no_matrix(X)
    if reset:
        note_catalogue(estimator, X)
    else:
        catalogue, n_items = estimator._catalogue_, estimator.n_features_in_
        if isinstance(X, list | tuple) and not X:  # a batch of nobody
            X = sparse.csr_array((0, n_items))
        own = catalogue_of(X) if hasattr(X, "iloc") else None
        unheard = catalogue is not None and not hasattr(estimator, "feature_names_in_")
        if unheard and own is not None and not own.is_plain:  # of names that are no strings
            X = RatingMatrix(as_rating_matrix(X), X.index, X.columns)
        X = labelled_rows(X, catalogue, n_items)[0]
    if isinstance(X, RatingMatrix):
        R, dtype = _checked_labelled(estimator, X, reset), np.dtype(np.float64)
        return R if rating_range is None else clipped(R, rating_range, warns="X" * warns), dtype
    columns: Any = getattr(X, "columns", None)
    if not getattr(columns, "is_unique", True):
        raise _repeated(columns)
    dtypes = [X.dtype] if hasattr(X, "dtype") else list(getattr(X, "dtypes", ()))
    if any(getattr(dtype, "kind", "") in ("M", "m") for dtype in dtypes):  # numbers to scikit-learn
        raise ValueError("X holds times and must hold finite real numbers, or NaN where unknown.")
    from sklearn.utils.validation import validate_data

    try:
        X = validate_data(
            estimator,
            unsummed(X),
            reset=reset,
            accept_sparse=("csr", "csc", "coo"),
            dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan",
            ensure_min_samples=1 if reset else 0,
        )
    except (TypeError, ValueError) as error:
        remedy = next((remedy for words, remedy in _REMEDIES.items() if words in str(error)), None)
        if remedy is None:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        trouble = str(error).rstrip(".")
        words = f"X must hold finite real numbers, or NaN where unknown: {trouble}. {remedy}"
        raise kind(words) from None
    R = as_rating_matrix(X)
    return R if rating_range is None else clipped(R, rating_range, warns="X" * warns), X.dtype


def refuse_what_is_no_matrix(X: Any) -> None:
    """Raise ValueError for what a newcomer passes in the place of a matrix: by type and names."""
    if isinstance(X, PathLike) or (isinstance(X, str) and PurePath(X).suffix):
        raise ValueError(
            f"X={str(X)!r} must be a users x items matrix of ratings, not a file: pass "
            "ratings_to_matrix(read_ratings(path))."
        )
    listed = X[:3] if isinstance(X, list | tuple) else [X]
    if (listed and all(isinstance(part, str) for part in listed)) or type(X) is int:
        raise ValueError(
            f"X={X if isinstance(X, int | str) else listed!r} must be rows of ratings, not ids, "
            "as a model remembers nobody: pass matrix.rows(users) for known users, or "
            "{item: rating} for a new one."
        )
    if names_items(X):
        raise ValueError(
            "X holds dicts {item: rating} and must be a users x items matrix for this: list all "
            "ratings in a table with the columns user, item, rating, and pass "
            "ratings_to_matrix(table)."
        )
    call = next((call for name, call in _READ_BY.items() if hasattr(type(X), name)), None)
    if call is not None:
        raise ValueError(
            f"X={type(X).__name__} must be a matrix in memory, with a row for each user and a "
            f"column for each item: pass X.{call}(), or ratings_to_matrix(X) of a table with one "
            "rating in a row."
        )
    refuse_table(X, "X")


def held_out_ratings(y: Any, rating_range: Any = None) -> Any:
    """Return held-out ratings as canonical CSR; refused if zeros stand for unknown ratings.

    They do so, as in what ``toarray`` returns, if no cell is unknown and 0 is no rating.
    """
    R = as_rating_matrix(y)
    low, high = rating_range or (1.0, 1.0)
    zero = low <= 0.0 <= high or R.shape[1] == 1 or R.nnz < R.shape[0] * R.shape[1]
    n_zeros = 0 if zero else int((R.data == 0.0).sum())
    if n_zeros:
        raise ValueError(
            f"y has a value in each of its {R.nnz} cells, and {n_zeros} of them are 0, which would "
            "count as held-out ratings: pass a sparse matrix of what was held out, or NaN where "
            "nothing was."
        )
    return R


def refuse_table(X: Any, name: str) -> None:
    """Raise ValueError for a table that has a rating in each row, as the names of columns say."""
    columns = list(X.columns) if hasattr(type(X), "columns") else []  # nothing else is asked
    found = rating_columns(columns) if len(columns) <= _TABLE_COLUMNS else {}
    if found:
        roles = {role: found.get(role) for role in ("user", "item", "rating")}
        own = [f"{role}={column!r}" for role, column in roles.items() if column != role]
        raise ValueError(
            f"{name} has the columns {columns!r}, so it seems to be a table with one rating a row. "
            "It must be a matrix with a row for each user and a column for each item: pass "
            f"ratings_to_matrix({', '.join([name, *own])})."
        )


def note_catalogue(estimator: Any, X: Any) -> None:
    """Note the names of the columns of X, unless they are their numbers."""
    catalogue = catalogue_of(X)
    estimator._catalogue_ = None if catalogue is None or catalogue.is_plain else catalogue


def _repeated(names: Any) -> ValueError:
    return ValueError(
        f"X has several columns named {names[names.duplicated()][0]!r}, and each item must have "
        "one: rename or drop the others."
    )


def is_lazy(X: Any) -> bool:
    """Return whether X, or the matrix of a RatingMatrix, is a collection of Dask."""
    return hasattr(type(X.X if isinstance(X, RatingMatrix) else X), "__dask_graph__")


def _checked_stored(estimator: Any, X: Any, reset: bool, rating_range: Any) -> tuple[Any, np.dtype]:
    """Note number and names of the items of ratings on disk, or in a matrix of Dask."""
    lazy = is_lazy(X)
    if not reset and not lazy:
        raise TypeError(
            f"X={X!r} is a {type(X).__name__}, which only fit reads: pass rows of ratings, such as "
            "X.read_rows(0, 1), those of its first part."
        )
    n_users = X.shape[0] if len(getattr(X, "shape", ())) == 2 else None
    holds = not hasattr(type(X), "columns") and hasattr(estimator, "budget")
    if lazy and not (holds and is_integer(n_users, 1)):
        raise ValueError(
            f"X={type(X).__name__} of Dask must be a dask.array of users x items with a known "
            "number of rows, for an estimator with a budget: call X.compute_chunk_sizes(), make a "
            "matrix of a table with one rating in a row by ratings_to_matrix(X, users=..., "
            "items=...), or pass X.compute()."
        )
    names = getattr(X, "item_ids", None)
    note_catalogue(estimator, X)
    _note_columns(estimator, X)
    if names is not None and names.dtype.kind in "OU":
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    if rating_range is not None and not lazy:
        first, bounds = X._first_ratings(), check_rating_range(rating_range)
        warn_of_scale(count_outside(first, bounds), first.size, bounds)
    return X, np.dtype(np.float64)


def _checked_labelled(estimator: Any, X: RatingMatrix, reset: bool) -> Any:
    noted = None if reset or estimator._catalogue_ is None else estimator._catalogue_.items
    if not reset and X.items is not noted and X.items.has_duplicates:
        raise _repeated(X.items)
    if reset:
        _note_columns(estimator, X)
    elif X.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input: pass rows over the items of fit."
        )
    return as_rating_matrix(unsummed(X.X))


def _note_columns(estimator: Any, X: Any) -> None:
    if isinstance(X, RatingMatrix) and X.items.has_duplicates:
        raise _repeated(X.items)
    if 0 in X.shape:
        raise ValueError(
            f"X has shape {X.shape} and must have a row and a column: pass the ratings of "
            "somebody, or declare items that nobody has rated."
        )
    estimator.n_features_in_ = X.shape[1]
    vars(estimator).pop("feature_names_in_", None)


_NOT_NUMBERS = (
    "Make a matrix of a table with one rating in a row by ratings_to_matrix(table). Otherwise "
    "convert X (each column of a DataFrame by pandas.to_numeric), or leave out text."
)
# by words of scikit-learn's and numpy's errors
_REMEDIES = {
    "could not convert": _NOT_NUMBERS,
    "must be a string or a real number": _NOT_NUMBERS,
    "setting an array element": "Rows of a list must be of one length, and hold numbers.",
    "Found array with dim": "Pass a matrix: a row for each user and a column for each item.",
    "contains infinity": "Replace infinite ratings by NaN; validate_ratings(X) counts them.",
}


def unsummed(X: Any) -> Any:
    """Sparse X made ready for ``validate_data``, whose conversions would sum repeated entries."""
    if not sparse.issparse(X):
        return X
    if X.format in ("dok", "lil"):  # these hold no entry twice
        X = X.tocsr()
    if X.dtype.kind == "f" and X.format not in ("bsr", "dia"):
        from sklearn.utils import assert_all_finite

        assert_all_finite(X.data, allow_nan=True, input_name="X")
        if X.dtype in (np.float64, np.float32):
            return X
    return as_rating_matrix(X) if X.dtype.kind in "buif" else X
