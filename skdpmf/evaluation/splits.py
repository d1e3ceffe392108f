"""Splits of ratings into train and test: by rating, by user, by time, one rating of each user.

A split is public randomness: `random_state` chooses which ratings are held out and never noise.
"""

import re
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state, check_scalar

from skdpmf.data.labelled_rows import RatingMatrix, as_frame, as_pandas, require_columns
from skdpmf.data.loaders import known_columns
from skdpmf.data.matrix import keep_entries, rank_in_groups
from skdpmf.data.validation import as_rating_matrix, require
from skdpmf.exceptions import counted

if TYPE_CHECKING:
    import pandas as pd


def split_ratings(X: Any, *, test_size: float = 0.1, random_state: Any = None) -> tuple[Any, Any]:
    """Hold out ratings at random, of all users and items alike.

    Parameters
    ----------
    X : matrix of shape (n_users, n_items)
        Ratings: sparse (stored = rated, also a stored 0), dense (NaN = unknown) or a RatingMatrix,
        whose labels both sides keep. Duplicates are merged by their mean before the split,
        so that none stands on both sides.
    test_size : float or int, default=0.1
        Share of the ratings (float in (0, 1), rounded up) or their number (int).
    random_state : int, RandomState instance or None, default=None
        Chooses the ratings.

    Returns
    -------
    X_train, X_test : CSR of shape (n_users, n_items)
        Together the ratings of `X`, each in one of the two.

    Raises
    ------
    ValueError
        If `test_size` leaves either side without a rating.

    See Also
    --------
    split_table : The same for a table of ratings.
    sklearn.model_selection.KFold : Cross-validation on the rows of a table.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.evaluation import split_ratings
    >>> X_train, X_test = split_ratings(np.ones((4, 5)), test_size=0.25, random_state=0)
    >>> X_train.shape, X_train.nnz, X_test.nnz
    ((4, 5), 15, 5)
    """
    ratings = as_rating_matrix(X)
    how = {"test_size": test_size, "random_state": random_state}
    _, chosen = train_test_split(np.arange(ratings.nnz), **how)
    test = np.zeros(ratings.nnz, dtype=bool)
    test[chosen] = True
    return _like(X, keep_entries(ratings, ~test)), _like(X, keep_entries(ratings, test))


def split_users(
    X: Any, *, test_size: float = 0.1, fold_in: float = 0.8, random_state: Any = None
) -> tuple[Any, Any, Any]:
    """Hold out whole users, and of each of them some ratings to predict from the rest.

    Strong generalisation (Liang et al. 2018): the model never sees the held-out users. Of the n
    ratings of a held-out user, ``int((1 - fold_in) * n)`` chosen at random are targets, the others
    are known; so with ``fold_in=0.8`` a user with fewer than 5 ratings has no target.

    Parameters
    ----------
    X : matrix of shape (n_users, n_items)
        Ratings, as in `split_ratings`.
    test_size : float or int, default=0.1
        Share of the users (float in (0, 1), rounded up) or their number (int).
    fold_in : float, default=0.8
        Share of a held-out user's ratings that stays known, in (0, 1).
    random_state : int, RandomState instance or None, default=None
        Chooses the users and their targets.

    Returns
    -------
    X_train : CSR of shape (n_train, n_items)
        Rows of the training users, in the order of `X`.
    X_known : CSR of shape (n_users - n_train, n_items)
        Known ratings of the held-out users, in the order of `X`: the input of ``predict`` and
        ``recommend``.
    X_held_out : CSR of shape (n_users - n_train, n_items)
        Their targets, row by row.

    Raises
    ------
    ValueError
        If `fold_in` is not in (0, 1) or `test_size` leaves either side without a user.

    References
    ----------
    Liang, Krishnan, Hoffman, Jebara (2018). Variational autoencoders for collaborative filtering.
    WWW.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.evaluation import split_users
    >>> X_train, X_known, X_held_out = split_users(np.ones((6, 10)), test_size=2, random_state=0)
    >>> X_train.shape, X_known.nnz, X_held_out.nnz
    ((4, 10), 16, 4)
    """
    remedy = "both known and held-out ratings are needed, so pass 0.8, the usual value"
    require(0.0 < fold_in < 1.0, "fold_in", fold_in, "a share in (0, 1)", remedy)
    rng = check_random_state(random_state)
    ratings = as_rating_matrix(X)
    sides = train_test_split(np.arange(ratings.shape[0]), test_size=test_size, random_state=rng)
    train, held_out = map(np.sort, sides)
    users = ratings[held_out]
    # 1 - 0.8 is below 0.2 in floating point, and int() would then lose a target of 5 ratings
    n_targets = np.floor((1.0 - fold_in) * np.diff(users.indptr) + 1e-9).astype(np.intp)
    rows = np.repeat(np.arange(users.shape[0]), np.diff(users.indptr))
    # without replacement
    target = rank_in_groups(rng.random_sample(rows.size), rows) < n_targets[rows]
    known, targets = keep_entries(users, ~target), keep_entries(users, target)
    return (_like(X, ratings[train], train), _like(X, known, held_out), _like(X, targets, held_out))


def leave_one_out(X: Any, random_state: Any = None) -> tuple[Any, np.ndarray]:
    """Hold out one rating of each user, as the item that a recommender should find.

    Parameters
    ----------
    X : matrix of shape (n_users, n_items)
        Ratings, as in `split_ratings`.
    random_state : int, RandomState instance or None, default=None
        Chooses the ratings, uniformly in each row.

    Returns
    -------
    X_known : CSR of shape (n_users, n_items)
        The other ratings, rows as in `X`.
    y : ndarray of int, shape (n_users,)
        Column of the held-out item; -1 for users with fewer than 2 ratings, whose rows stay as
        they are. The metrics and scorers of this package leave these users out; for scikit-learn's
        own scorers drop them first: ``X_known[y >= 0], y[y >= 0]``.

    Raises
    ------
    ValueError
        If X is no matrix of ratings, or random_state is none of these.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.evaluation import leave_one_out
    >>> X = np.array([[5.0, np.nan, 3.0], [np.nan, 4.0, np.nan]])
    >>> X_known, y = leave_one_out(X, random_state=0)
    >>> X_known.nnz, y
    (2, array([ 0, -1]))
    """
    rng = check_random_state(random_state)
    ratings = as_rating_matrix(X)
    n_entries = np.diff(ratings.indptr)
    has_two = n_entries >= 2
    chosen = ratings.indptr[:-1][has_two] + rng.randint(0, n_entries[has_two])
    y = np.full(ratings.shape[0], -1, dtype=np.intp)
    y[has_two] = ratings.indices[chosen]
    known = np.ones(ratings.nnz, dtype=bool)
    known[chosen] = False
    return _like(X, keep_entries(ratings, known)), y


def split_table(
    frame: Any,
    test_size: float = 0.1,
    random_state: Any = 0,
    *,
    by: str | None = None,
    user: str = "user",
    time: str | None = None,
) -> tuple[Any, Any]:
    """Split the rows of a ratings table: at random, or by time.

    At random row i is a test row if ``u[i] < test_size`` with
    ``u = numpy.random.default_rng(random_state).random(n_rows)``. So the test share is
    `test_size` on average, and depends on the order of the rows. Figures published by this project
    have this split. By time the test rows are the latest ones, as they are for a recommender at
    work: what is judged lies in the future of what was learnt.

    Parameters
    ----------
    frame : pandas.DataFrame or ndarray of shape (n_rows, n_columns)
        Ratings, one a row. By time a table, of pandas, polars (lazy ones are collected) or Arrow
        (the sides are of pandas then).
    test_size : float, default=0.1
        Probability that a row is a test row, in (0, 1); by time the share of test rows.
    random_state : int, numpy.random.Generator or None, default=0
        Seed of ``numpy.random.default_rng``, not of a ``RandomState`` as elsewhere: the published
        split is defined by it. Unused by time.
    by : {None, "time", "user-time"}, default=None
        None: at random. "time": the latest rows of all. "user-time": the latest rows of each user,
        their number rounded down.
    user : str, default="user"
        Column of the users.
    time : str, default=None
        Column of the times: numbers, dates, or texts of ISO 8601, all with a time zone or all
        without. None: ``"time"``, or another name of it that `read_ratings` knows, such as
        ``"timestamp"``. Rows of equal times stay together with "time"; with "user-time" the first
        of them count as earlier.

    Returns
    -------
    train, test : as `frame`
        The rows of each side, in their order.

    Raises
    ------
    ValueError
        If `test_size` is not in (0, 1), `by` is none of these, a column or a time is missing, times
        have no order, or one side would be empty.

    Examples
    --------
    >>> import pandas as pd
    >>> from skdpmf.evaluation import split_table
    >>> train, test = split_table(pd.DataFrame({"rating": range(20)}))
    >>> test.index.to_list()
    [2, 3, 11, 13]
    >>> table = pd.DataFrame({"user": [1, 1, 2, 2], "time": [4, 3, 9, 8]})
    >>> split_table(table, 0.5, by="user-time")[1].index.to_list()
    [0, 2]
    """
    rule, remedy = "a probability in (0, 1)", "pass 0.1, as the published split has"
    require(0.0 < test_size < 1.0, "test_size", test_size, rule, remedy)
    frame = as_frame(frame)
    if not len(frame):
        raise ValueError("frame has no rows and must have ratings to split: pass a table of them.")
    if by is None:
        test = np.random.default_rng(random_state).random(len(frame)) < test_size
    else:
        test = _latest(frame, test_size, by, user, time)
    if hasattr(frame, "filter") and not hasattr(frame, "iloc"):  # of polars
        return frame.filter(~test), frame.filter(test)
    return frame[~test], frame[test]


def rolling_folds(
    frame: Any, n_splits: int = 5, *, test_size: float = 0.1, time: str | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Folds by time of a ratings table: each tests the rows after those that it trains on.

    The last ``n_splits * test_size`` of the rows, by time, are cut into `n_splits` windows. A fold
    tests a window and trains on all rows that are older. Rows of equal times stay together.

    Parameters
    ----------
    frame : pandas.DataFrame, or table of polars or Arrow
        Ratings, one a row.
    n_splits : int, default=5
        Number of folds, at least 1.
    test_size : float, default=0.1
        Share of the rows in each window; ``n_splits * test_size`` is below 1.
    time : str, default=None
        Column of the times, as in `split_table`.

    Returns
    -------
    list of (train, test)
        Numbers of rows of `frame`, ascending, oldest fold first: for ``frame.iloc[train]``, and,
        with `RatingRegressor`, for ``cv=`` of scikit-learn's tools.

    Raises
    ------
    ValueError
        If the shares are not as above, the column is missing, times have no order, or a fold would
        have no row to train on or to test, as where too many times are equal.

    Examples
    --------
    >>> import pandas as pd
    >>> from skdpmf.evaluation import rolling_folds
    >>> table = pd.DataFrame({"time": [9, 1, 2, 3, 4, 5, 6, 7, 8, 10]})
    >>> for train, test in rolling_folds(table, 2, test_size=0.2):
    ...     print(train.tolist(), test.tolist())
    [1, 2, 3, 4, 5, 6] [7, 8]
    [1, 2, 3, 4, 5, 6, 7, 8] [0, 9]
    """
    check_scalar(n_splits, "n_splits", Integral, min_val=1)
    holds = test_size > 0.0 and n_splits * test_size < 1.0
    rule = f"a share of the rows > 0 that leaves some to train on before {n_splits} windows of it"
    require(holds, "test_size", test_size, rule, f"use less than {1 / n_splits:g}")
    times = _columns_of(as_frame(frame), time)[0]
    in_order, n = np.sort(times), len(times)
    starts = [n - int(np.ceil(k * test_size * n)) for k in range(n_splits, 0, -1)]
    first = [in_order[start] for start in starts]
    after = [times >= start for start in first] + [np.zeros(n, dtype=bool)]
    folds = [(np.flatnonzero(~a), np.flatnonzero(a & ~b)) for a, b in pairwise(after)]
    if not all(train.size and test.size for train, test in folds):
        raise ValueError(
            f"n_splits={n_splits} windows of test_size={test_size:g} of {n} rows must each hold a "
            "row that is later than one to train on, and equal times stay together: lower n_splits,"
            " or raise test_size."
        )
    return folds


def _columns_of(frame: Any, time: str | None, user: str | None = None) -> tuple[Any, Any]:
    """Return the comparable times of a table's rows, and its users if their column is given."""
    if time is None:
        time = next(iter(known_columns(getattr(frame, "columns", ()), "time")), "time")
    wanted = [time] if user is None else [user, time]
    require_columns(frame, wanted, "frame", "Name yours by user= and time=")
    columns = as_pandas(frame, wanted)
    times = np.asarray(comparable_times(columns[time], f"column {time!r}"))
    return times, None if user is None else columns[user]


def _latest(frame: Any, share: float, by: str, user: str, time: str | None) -> np.ndarray:
    """Mark the latest rows, of all or of each user."""
    import pandas as pd

    rule = "None, 'time' or 'user-time'"
    require(by in ("time", "user-time"), "by", by, rule, "pass how to split rows")
    times, users = _columns_of(frame, time, user if by == "user-time" else None)
    if by == "time":
        n_known = len(times) - int(np.ceil(share * len(times)))
        test = np.asarray(times >= np.sort(times)[n_known])
        trouble = "all rows as old as the first test row are test rows, and none is older"
    else:
        groups = pd.factorize(users)[0]
        counts = np.bincount(groups)
        n_known = counts - np.floor(share * counts)
        test = np.asarray(rank_in_groups(times, groups) >= n_known[groups])
        trouble = f"no user has the {int(np.ceil(1 / share))} rows of which one is a test row"
    if test.all() or not test.any():
        raise ValueError(
            f"test_size={share:g} with by={by!r} leaves nothing to learn from or to test on: "
            f"{trouble}. Pass another test_size, or split at random (by=None)."
        )
    return test


def _like(X: Any, ratings: Any, rows: Any = slice(None)) -> Any:
    """The ratings, of some rows of X, with its labels if it has some."""
    return X[rows].with_ratings(ratings) if isinstance(X, RatingMatrix) else ratings


# Times of any type as numbers that can be compared

_AWARE = re.compile(r":\d\d.*(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)$")


def comparable_times(times: "pd.Series", where: str) -> np.ndarray:
    """Return times in their order; ValueError if they have none. `where` names them in errors."""
    import pandas as pd
    from pandas.api import types

    missing = np.flatnonzero(times.isna())
    if missing.size:
        raise ValueError(
            f"{where} has no time in {counted(missing.size, 'row')}, the first of them row "
            f"{missing[0]}: drop these rows, or split at random."
        )
    if isinstance(times.dtype, pd.CategoricalDtype):
        times = times.astype(times.cat.categories.dtype)
    found = times
    if types.is_object_dtype(times) or types.is_string_dtype(times):
        found = pd.to_numeric(times, errors="coerce")
        found = found if found.notna().all() else _parsed(times, where)
    is_read = bool(found.notna().all())
    if types.is_integer_dtype(found):  # days and months before years are in no order as they are
        starts, ends = found // 10_000, found % 10_000
        is_read = not bool((starts.between(101, 3131) & ends.between(1900, 2100)).all())
    if not is_read:
        raise ValueError(
            f"{where} holds times such as {str(times.iloc[0])!r}, which must be numbers, dates, or "
            "texts of ISO 8601 such as '2021-12-31 18:30': convert the column by "
            "pandas.to_datetime(..., format=...), which says what is day and month."
        )
    if isinstance(found.dtype, pd.DatetimeTZDtype):
        found = found.dt.tz_convert(None)
    return np.asarray(found.to_numpy())


def _parsed(times: "pd.Series", where: str) -> "pd.Series":
    """Return objects as times, missing where they are none."""
    import pandas as pd

    texts = times.map(str)
    aware = texts.str.contains(_AWARE)
    if aware.any() and not aware.all():
        raise ValueError(
            f"{where} has times with a time zone, such as {texts[aware].iloc[0]!r}, and others "
            f"without, such as {texts[~aware].iloc[0]!r}: give all of them a zone."
        )
    how: Any = {"format": "ISO8601", "errors": "coerce", "utc": bool(aware.any())}
    return pd.to_datetime(texts.str.strip(), **how)
