"""Popularity: the list that every model must beat, and errors from rare to popular items."""

from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_scalar

from skdpmf.data.validation import as_rating_matrix, require
from skdpmf.estimators.contract.recommend import ItemModel, top_items
from skdpmf.evaluation.metrics import item_counts_of, known_entries, rmse

if TYPE_CHECKING:
    import pandas as pd


def popularity(item_counts: Any, X: Any, n: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Recommend the most popular items by exact counts: the baseline of every table of lists.

    It is not private.

    Parameters
    ----------
    item_counts : array-like of shape (n_items,), or matrix of shape (n_users, n_items)
        Number of users who have rated each item in the training data, or the training matrix.
    X : matrix of shape (n_rows, n_items)
        Known ratings of the users who get the lists, none of which is recommended.
    n : int, default=10
        Items for each user, at least 1; more than there are items means all of them.

    Returns
    -------
    items, scores : ndarray of shape (n_rows, min(n, n_items))
        As those of ``recommend``: columns, the most popular first and of equal ones the smaller,
        -1 where none is left, and counts, -inf there.

    Raises
    ------
    ValueError
        If a count is negative or NaN, or X has other columns.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.evaluation import popularity
    >>> X = np.array([[4.0, np.nan, 2.0], [5.0, 1.0, np.nan], [np.nan, 3.0, np.nan]])
    >>> popularity(X, X[:1], n=2)
    (array([[ 1, -1]]), array([[  2., -inf]]))
    """
    counts, R = item_counts_of(item_counts, X, "X"), as_rating_matrix(X)
    check_scalar(n, "n", Integral, min_val=1)
    model = ItemModel(counts.astype(np.float64), np.empty((counts.size, 0)), np.empty((0, 0)))
    return top_items(model, R, min(n, counts.size))


def popularity_buckets(item_counts: Any, n_buckets: int = 5) -> np.ndarray:
    """Bucket of each item: equally many items a bucket, the rarest items in bucket 0.

    Items are sorted by their count (ties by column) and cut into `n_buckets` runs whose sizes
    differ by one at most.

    item_counts (array-like of shape (n_items,), or matrix of shape (n_users, n_items)): ratings of
    each item in the training data, or the training matrix itself, whose known entries are counted;
    n_buckets: number of buckets, from 1 to n_items. Returns (n_items,) int: bucket of each item, 0
    .. n_buckets - 1. Raises ValueError if there are more buckets than items, or a count is negative
    or NaN.

    Examples
    --------
    Recall on the targets of one bucket only:

    >>> import numpy as np
    >>> from scipy import sparse
    >>> from skdpmf.evaluation import recall_at_k
    >>> from skdpmf.evaluation.popularity import popularity_buckets
    >>> buckets = popularity_buckets([9, 1, 5, 2], n_buckets=2)
    >>> buckets
    array([1, 0, 1, 0])
    >>> held_out = sparse.csr_matrix([[1.0, 1.0, 0.0, 0.0]])
    >>> rare = held_out.tocoo()
    >>> keep = buckets[rare.col] == 0
    >>> rare = sparse.csr_matrix((rare.data[keep], (rare.row[keep], rare.col[keep])), shape=(1, 4))
    >>> recall_at_k(rare, [[1, 2]], k=2)
    1.0
    """
    counts = item_counts_of(item_counts)
    check_scalar(n_buckets, "n_buckets", Integral, min_val=1)
    rule = f"at most {counts.size}, the number of items, as a bucket needs one"
    require(n_buckets <= counts.size, "n_buckets", n_buckets, rule, "lower it")
    buckets = np.empty(counts.size, dtype=np.intp)
    for bucket, items in enumerate(np.array_split(np.argsort(counts, kind="stable"), n_buckets)):
        buckets[items] = bucket
    return buckets


def by_popularity(
    item_counts: Any,
    y_true: Any,
    y_pred: Any,
    n_buckets: int = 5,
    metric: Callable[[np.ndarray, np.ndarray], float] = rmse,
) -> "pd.DataFrame":
    """A rating metric on each popularity bucket of items (see `popularity_buckets`).

    Parameters
    ----------
    item_counts : array-like of shape (n_items,), or matrix of shape (n_users, n_items)
        Ratings of each item in the training data, or the training matrix.
    y_true : sparse matrix or array-like of shape (n_users, n_items)
        True ratings of the test data, as in `rmse`.
    y_pred : sparse matrix or array-like of shape (n_users, n_items)
        Predicted ratings, as in `rmse`.
    n_buckets : int, default=5
        Number of buckets, from 1 to n_items.
    metric : callable, default=rmse
        ``metric(true, predicted) -> float`` on 1-D arrays.

    Returns
    -------
    pandas.DataFrame
        A row a bucket, rarest items first; columns ``n_items``, ``min_count``, ``max_count`` (of
        training ratings an item), ``n_ratings`` (test ratings in the bucket) and the metric under
        its own name: NaN for a bucket without test ratings.

    Raises
    ------
    ValueError
        As `rmse` and `popularity_buckets`, or if the item counts are not those of the columns.

    References
    ----------
    Krichene, Jain, Song, Sundararajan, Thakurta, Zhang (2023). Multi-task differential privacy
    under distribution skew. ICML, arXiv:2302.07975 (figures on five buckets of items).

    Examples
    --------
    >>> from skdpmf.evaluation import by_popularity
    >>> y_true, y_pred = [[3.0, 4.0], [5.0, 1.0]], [[3.0, 2.0], [4.0, 1.0]]
    >>> by_popularity([10, 2], y_true, y_pred, n_buckets=2)
            n_items  min_count  max_count  n_ratings      rmse
    bucket
    0             1          2          2          2  1.414214
    1             1         10         10          2  0.707107
    """
    import pandas as pd

    counts = item_counts_of(item_counts, y_true, "y_true")
    buckets = popularity_buckets(counts, n_buckets)
    true, predicted, items = known_entries(y_true, y_pred)
    name = getattr(metric, "__name__", "score")
    rows = []
    for bucket in range(n_buckets):
        inside = buckets[items] == bucket
        members = counts[buckets == bucket]
        score = metric(true[inside], predicted[inside]) if inside.any() else np.nan
        rows.append((members.size, members.min(), members.max(), int(inside.sum()), score))
    columns = ["n_items", "min_count", "max_count", "n_ratings", name]
    return pd.DataFrame(rows, pd.RangeIndex(n_buckets, name="bucket"), columns)
