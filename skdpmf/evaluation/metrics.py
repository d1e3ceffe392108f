"""Error of predicted ratings, quality and variety of ranked items, intervals, and popularity.

All of them are exact functions of the ratings: a figure on private ratings is the curator's and
stands outside every privacy guarantee.
"""

from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import normalize
from sklearn.utils import check_array, check_scalar

from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.data.validation import as_rating_matrix, refuse_infinite, require
from skdpmf.estimators.contract.recommend import ItemModel, top_items
from skdpmf.mechanisms.common import rows_of

if TYPE_CHECKING:
    import pandas as pd


def rmse(y_true: Any, y_pred: Any) -> float:
    """Root mean squared error over the known entries of `y_true`.

    ``sqrt(mean((y_true - y_pred)**2))``, each known entry with the same weight.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n_users, n_items), or sparse matrix
        True ratings. NaN is unknown; in a sparse matrix what is not stored is unknown too, and a
        stored 0 is the rating 0. Duplicate stored entries are merged by their mean.
    y_pred : array-like or sparse matrix of the same shape
        Predicted ratings, read only where `y_true` is known. A sparse matrix must store a
        prediction at each of these positions, as ``predict_entries(X, y_true)`` gives them.

    Returns
    -------
    float
        In the unit of the ratings; 0 is best.

    Raises
    ------
    ValueError
        If the shapes differ, nothing in `y_true` is known, `y_true` is infinite somewhere, or a
        prediction that is needed is missing or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.evaluation import rmse
    >>> rmse([[4.0, np.nan], [2.0, 5.0]], [[3.0, 9.0], [2.0, 3.0]])
    1.2909944487358056
    """
    true, predicted, _ = known_entries(y_true, y_pred)
    if true.size == 0:
        raise ValueError(
            f"y_true of shape {np.shape(y_true)} holds no known rating: the metric needs at least "
            "one. Check the split that made it."
        )
    return float(np.sqrt(np.mean(np.square(true - predicted))))


def recall_at_k(relevant: Any, ranked: Any, k: int) -> float:
    """Recall at k, the mean over users with targets of ``|top-k & targets| / min(k, |targets|)``.

    The denominator of Liang et al. (2018) makes 1 reachable for users with more than k targets.

    Parameters
    ----------
    relevant : sparse matrix or array-like of shape (n_users, n_items), or of shape (n_users,)
        The held-out items (targets) of each user. Matrix: every stored entry is a target, whatever
        its value (dense: every entry that is not NaN). 1-D: the column index of each user's one
        target, negative for none.
    ranked : array-like of int, shape (n_users, >= k)
        Column indices of the recommended items, best first, without repetition, -1 for none: the
        first of the two results of ``recommend``.
    k : int
        How many recommended items count, at least 1.

    Returns
    -------
    float
        Between 0 and 1; 1 is best.

    Raises
    ------
    ValueError
        If `ranked` has not n_users rows and at least k columns of integers, repeats an item or
        names one outside the catalogue; or if no user has a target.

    References
    ----------
    Liang, Krishnan, Hoffman, Jebara (2018). Variational autoencoders for collaborative filtering.
    WWW.

    Examples
    --------
    >>> from skdpmf.evaluation import recall_at_k
    >>> recall_at_k([3, 1], [[0, 3, 2], [0, 2, 3]], k=2)
    0.5
    """
    hits, n_targets = _hits(relevant, ranked, k)
    return float(np.mean(hits.sum(axis=1) / np.minimum(n_targets, k)))


def precision_at_k(relevant: Any, ranked: Any, k: int) -> float:
    """Precision at k, the mean over users with targets of ``|top-k & targets| / k``.

    A -1 (no item) is a miss. With n targets no list has more than ``min(k, n) / k``.

    Parameters
    ----------
    relevant : sparse matrix or array-like of shape (n_users, n_items), or of shape (n_users,)
        The targets of each user, as in `recall_at_k`.
    ranked : array-like of int, shape (n_users, >= k)
        Recommended items, best first, as in `recall_at_k`.
    k : int
        How many recommended items count, at least 1.

    Returns
    -------
    float
        Between 0 and 1; larger is better.

    Raises
    ------
    ValueError
        As `recall_at_k`.

    Examples
    --------
    >>> from skdpmf.evaluation import precision_at_k
    >>> precision_at_k([3, 1], [[0, 3, 2], [0, 2, 3]], k=2)
    0.25
    """
    hits, _ = _hits(relevant, ranked, k)
    return float(np.mean(hits))


def ndcg_at_k(relevant: Any, ranked: Any, k: int) -> float:
    """Normalised discounted cumulative gain at k, the mean over users with targets.

    With binary gains: DCG is the sum of 1 / log2(1 + rank) over the targets that stand at rank
    1 .. k, divided by the DCG of a ranking that begins with the targets.

    Parameters
    ----------
    relevant : sparse matrix or array-like of shape (n_users, n_items), or of shape (n_users,)
        The targets of each user, as in `recall_at_k`.
    ranked : array-like of int, shape (n_users, >= k)
        Recommended items, best first, as in `recall_at_k`.
    k : int
        How many recommended items count, at least 1.

    Returns
    -------
    float
        Between 0 and 1; 1 is best.

    Raises
    ------
    ValueError
        As `recall_at_k`.

    References
    ----------
    Jarvelin, Kekalainen (2002). Cumulated gain-based evaluation of IR techniques. ACM TOIS 20(4).

    Examples
    --------
    >>> from skdpmf.evaluation import ndcg_at_k
    >>> ndcg_at_k([3, 1], [[3, 0, 2], [0, 2, 1]], k=3)
    0.75
    """
    hits, n_targets = _hits(relevant, ranked, k)
    discount = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)[np.minimum(n_targets, k) - 1]
    return float(np.mean(hits @ discount / ideal))


def average_precision_at_k(relevant: Any, ranked: Any, k: int) -> float:
    """Mean over users with targets of their average precision at k: MAP@k.

    The average precision of a user with n targets is ``sum(precision(r)) / min(k, n)`` over the
    ranks r <= k at which a target stands; ``precision(r)`` is the share of targets among the first
    r items (McFee et al. 2012, "The Million Song Dataset Challenge"). A -1 is a miss at its rank.

    relevant (sparse matrix or array-like of shape (n_users, n_items), or of shape (n_users,)),
    ranked (array-like of int, shape (n_users, >= k)), k: as in `recall_at_k`, as are the errors.
    Result: between 0 and 1; 1 is best. With one target a user it equals `reciprocal_rank_at_k`.

    Examples
    --------
    The two targets stand at the ranks 1 and 3, where the precision is 1 and 2/3:

    >>> from scipy import sparse
    >>> from skdpmf.evaluation.metrics import average_precision_at_k
    >>> targets = sparse.csr_matrix([[1.0, 0.0, 1.0, 0.0]])
    >>> round(average_precision_at_k(targets, [[2, 3, 0]], k=3), 4)
    0.8333
    """
    hits, n_targets = _hits(relevant, ranked, k)
    precision = np.cumsum(hits, axis=1) / np.arange(1, k + 1)
    return float(np.mean((hits * precision).sum(axis=1) / np.minimum(n_targets, k)))


def reciprocal_rank_at_k(relevant: Any, ranked: Any, k: int) -> float:
    """Mean over users with targets of 1 / (rank of their first target): MRR@k.

    A user whose targets all stand below rank k, or nowhere, counts as 0 (Voorhees 1999, TREC-8).

    relevant (sparse matrix or array-like of shape (n_users, n_items), or of shape (n_users,)),
    ranked (array-like of int, shape (n_users, >= k)), k: as in `recall_at_k`, as are the errors.
    Result: between 0 and 1; 1 is best.

    Examples
    --------
    >>> from skdpmf.evaluation.metrics import reciprocal_rank_at_k
    >>> reciprocal_rank_at_k([3, 1, -1], [[3, 0], [0, 1], [0, 2]], k=2)
    0.75
    """
    hits, _ = _hits(relevant, ranked, k)
    # argmax is 0 for a row without a hit, which the product turns into 0
    return float(np.mean(hits.any(axis=1) / (1.0 + hits.argmax(axis=1))))


def catalogue_coverage_at_k(n_items: int, ranked: Any, k: int) -> float:
    """Share of the catalogue's items that stand in the top k of at least one user.

    Every list counts, whether or not its user has targets. A -1 (no item) covers nothing, and the
    denominator stays `n_items`.

    Parameters
    ----------
    n_items : int
        Size of the catalogue, at least 1: the number of columns of X.
    ranked : array-like of int, shape (n_users, >= k)
        Recommended items of each user, without repetition, -1 for none: the first of the two
        results of ``recommend``.
    k : int
        How many recommended items count, at least 1.

    Returns
    -------
    float
        Between 0 and ``min(1, n_users * k / n_items)``. It grows with the number of users: compare
        models on the same users. A random ranking has a high one, so it says nothing by itself.

    Raises
    ------
    ValueError
        If `ranked` has not at least k columns of integers, repeats an item in a row, or names one
        outside the catalogue.

    References
    ----------
    Ge, Delgado-Battenfeld, Jannach (2010). Beyond accuracy: evaluating recommender systems by
    coverage and serendipity. RecSys.

    Examples
    --------
    >>> from skdpmf.evaluation import catalogue_coverage_at_k
    >>> catalogue_coverage_at_k(4, [[0, 1], [1, -1]], k=2)
    0.5
    """
    check_scalar(n_items, "n_items", Integral, min_val=1)
    top = _top(ranked, k, n_items)
    return float(np.unique(top[top >= 0]).size / n_items)


def novelty_at_k(item_counts: Any, ranked: Any, k: int, n_users: int | None = None) -> float:
    """Mean self-information of the top k in bits: how few users know what is recommended.

    An item that c of the n users have rated carries ``-log2(c / n)`` bits. The novelty of a list is
    the mean over its items, and the result is the mean over the users. A -1 (no item) does not
    count, nor does a user whose list is empty. An item with a count below 1 counts as rated by one
    user, which bounds the result by ``log2(n)``.

    Parameters
    ----------
    item_counts : array-like of shape (n_items,), or matrix of shape (n_users, n_items)
        Number of users who have rated each item in the training data, or the training matrix.
    ranked : array-like of int, shape (any number of users, >= k)
        Recommended items of each user, as in `catalogue_coverage_at_k`. They may be other users
        than those of the training data.
    k : int
        How many recommended items count, at least 1.
    n_users : int, default=None
        Number n of users behind the counts. None: the rows of the training matrix.

    Returns
    -------
    float
        From 0 (only items that everybody has rated) to log2(n). Larger is more novel, which is not
        yet better: a random ranking is novel.

    Raises
    ------
    ValueError
        If `ranked` is refused as by `catalogue_coverage_at_k` or has no item at all; if a count is
        negative, NaN or above n, or all are below 1; or if `n_users` is None beside counts.

    References
    ----------
    Zhou, Kuscsik, Liu, Medo, Wakeling, Zhang (2010). Solving the apparent diversity-accuracy
    dilemma of recommender systems. PNAS 107(10).

    Vargas, Castells (2011). Rank and relevance in novelty and diversity metrics for recommender
    systems. RecSys.

    Examples
    --------
    All 8 users have rated item 0, and 2 of them item 1:

    >>> from skdpmf.evaluation import novelty_at_k
    >>> novelty_at_k([8, 2, 1], [[0, 1], [1, -1]], k=2, n_users=8)
    1.5
    """
    if n_users is None:
        if not _is_matrix(item_counts):
            raise ValueError(
                "n_users=None needs a training matrix as item_counts, whose rows are the users: "
                "with counts, pass n_users as well, the number of users who were counted."
            )
        n_users = np.shape(item_counts)[0]
    check_scalar(n_users, "n_users", Integral, min_val=1)
    counts = item_counts_of(item_counts)
    largest = counts.max(initial=0)
    if not 1 <= largest <= n_users:
        raise ValueError(
            f"item_counts has {largest:g} as its largest count, which must be between 1 and "
            f"n_users={n_users}: each user counts once for an item. Pass numbers of users (a share "
            "times n_users), or the training matrix."
        )
    top = _top(ranked, k, counts.size)
    named = top >= 0
    length = named.sum(axis=1)
    if not length.any():
        raise ValueError(
            f"ranked names no item for any of the {len(top)} users: at least one list must hold an "
            "item. Check that the users have not seen the whole catalogue."
        )
    bits = np.log2(n_users / np.maximum(counts, 1))
    total = np.where(named, bits[top], 0.0).sum(axis=1)
    return float(np.mean(total[length > 0] / length[length > 0]))


def intra_list_diversity_at_k(item_vectors: Any, ranked: Any, k: int) -> float:
    """Mean distance of two items of the same top k: 1 minus the cosine of their vectors.

    It is the mean of ``1 - cos(v_i, v_j)`` over the pairs of a list, and the mean of this over the
    users with two items or more. A zero vector is at distance 1 from all others.

    Parameters
    ----------
    item_vectors : {array-like, sparse matrix, DataFrame} of shape (n_items, d)
        A row for each column of X, which says when items are alike: public features, such as genres
        (`skdpmf.data.item_features`), or factors (``model.components_.T``). Finite.
    ranked : array-like of int, shape (n_users, >= k)
        Recommended items of each user, as in `catalogue_coverage_at_k`.
    k : int
        How many recommended items count, at least 2.

    Returns
    -------
    float
        0 if all items of a list are alike, 1 if they have nothing in common, at most 2. Larger is
        more diverse, which is not yet better: compare models of the same recall.

    Raises
    ------
    ValueError
        If `item_vectors` is no finite matrix, `ranked` is refused as by `catalogue_coverage_at_k`,
        or no list has two items.

    References
    ----------
    Ziegler, McNee, Konstan, Lausen (2005). Improving recommendation lists through topic
    diversification. WWW.

    Examples
    --------
    Items 0 and 1 are of one genre, item 2 of another:

    >>> from skdpmf.evaluation import intra_list_diversity_at_k
    >>> intra_list_diversity_at_k([[1, 0], [1, 0], [0, 1]], [[0, 1], [0, 2]], k=2)
    0.5
    """
    check_scalar(k, "k", Integral, min_val=2)
    V = normalize(check_array(item_vectors, accept_sparse=True, dtype=np.float64))
    V = sparse.csr_array(V)
    top = _top(ranked, k, V.shape[0])
    length = (top >= 0).sum(axis=1)
    pairs, has_pair = length * (length - 1.0), length > 1
    if not has_pair.any():
        raise ValueError(
            f"ranked names two items for none of the {len(top)} users: at least one list must hold "
            "two. Check that the users have not seen the whole catalogue."
        )
    ends = np.concatenate(([0], np.cumsum(length)))
    lists = sparse.csr_array((np.ones(ends[-1]), top[top >= 0], ends), (len(top), V.shape[0]))
    # all cosines of a list, less those of its items with themselves
    cosines = (lists @ V).power(2).sum(axis=1) - lists @ V.power(2).sum(axis=1)
    return float(np.mean(1.0 - cosines[has_pair] / pairs[has_pair]))


def bootstrap_interval(
    metric: Callable[..., float],
    *by_user: Any,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    random_state: int = 0,
    **params: Any,
) -> tuple[float, float]:
    """Bootstrap percentile interval of a metric, over users (Efron 1979, Annals of Statistics).

    Users are drawn with replacement, as many as there are; the interval is between quantiles of the
    metric on these draws. It says how much the figure depends on who was tested, not on noise.

    Parameters
    ----------
    metric : callable
        ``metric(*by_user, **params) -> float``: any metric, also one of yours, such as the
        difference of two models.
    *by_user : arrays or matrices with a row for each user
        They are drawn together, such as targets and lists.
    confidence : float, default=0.95
        Share of the draws inside, in (0, 1).
    n_resamples : int, default=1000
        Number of draws, at least 1.
    random_state : int, default=0
        Seed of ``numpy.random.default_rng``: the same draws of users at every call.
    **params
        Further arguments of the metric.

    Returns
    -------
    low, high : float
        The ends of the interval.

    Raises
    ------
    ValueError
        If there is nothing to draw, numbers of rows differ, `confidence` is not in (0, 1), or the
        metric refuses a draw, such as one of few users of whom none has a target.

    Examples
    --------
    >>> from functools import partial
    >>> from skdpmf.evaluation import bootstrap_interval, catalogue_coverage_at_k, recall_at_k
    >>> targets, ranked = [3, 1, 2, 2], [[3, 1], [0, 1], [0, 3], [2, 0]]
    >>> recall_at_k(targets, ranked, k=2), bootstrap_interval(recall_at_k, targets, ranked, k=2)
    (0.75, (0.25, 1.0))
    >>> coverage = partial(catalogue_coverage_at_k, 4)  # whose first argument is not by user
    >>> bootstrap_interval(coverage, ranked, k=2)
    (0.75, 1.0)
    """
    check_scalar(n_resamples, "n_resamples", Integral, min_val=1)
    require(0.0 < confidence < 1.0, "confidence", confidence, "a share in (0, 1)", "use 0.95")
    plain = [values.X if isinstance(values, RatingMatrix) else values for values in by_user]
    sizes = {np.shape(values)[0] for values in plain}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(
            f"by_user has {sorted(sizes)} rows and must have one number of them, at least 1: pass "
            "arrays with a row for each user, and other arguments of the metric by name."
        )
    rows = [values.tocsr() if sparse.issparse(values) else np.asarray(values) for values in plain]
    rng, n = np.random.default_rng(random_state), sizes.pop()
    draws = (rng.integers(n, size=n) for _ in range(n_resamples))
    found = [metric(*(values[draw] for values in rows), **params) for draw in draws]
    low, high = np.quantile(found, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    return float(low), float(high)


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
    >>> from skdpmf.evaluation.metrics import popularity_buckets
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


def _is_matrix(values: Any) -> bool:
    return sparse.issparse(values) or np.ndim(values) == 2


def item_counts_of(item_counts: Any, like: Any = None, name: str = "") -> np.ndarray:
    """Return the number of ratings of each item, from a training matrix or from such numbers.

    They must be as many as the columns of a matrix `like` this, of this name.
    """
    if _is_matrix(item_counts):
        ratings = as_rating_matrix(item_counts)
        item_counts = np.bincount(ratings.indices, minlength=ratings.shape[1])
    counts = np.asarray(item_counts)
    if counts.ndim != 1 or not np.all(counts >= 0):
        raise ValueError(
            f"item_counts of shape {counts.shape} must hold one count >= 0 for each item. Pass the "
            "training matrix, or its number of ratings by item."
        )
    if name and counts.size != np.shape(like)[1]:
        raise ValueError(
            f"item_counts has {counts.size} items and {name} has {np.shape(like)[1]} columns: they "
            "must be the same items in the same order. Pass matrices of the same catalogue."
        )
    return counts


def known_entries(y_true: Any, y_pred: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True values, predictions and items (columns) at the known entries of y_true; 1-D: one row."""
    if np.shape(y_true) != np.shape(y_pred):
        raise ValueError(
            f"y_pred has shape {np.shape(y_pred)} and y_true has shape {np.shape(y_true)}: they "
            "must be equal. Predict for the same users and items."
        )
    if not _is_matrix(y_true):
        y_true, y_pred = (np.asarray(y, dtype=np.float64)[None] for y in (y_true, y_pred))
    refuse_infinite(y_true, "y_true")
    truth = as_rating_matrix(y_true)
    rows = rows_of(truth)
    if sparse.issparse(y_pred) or isinstance(y_pred, RatingMatrix):
        values = as_rating_matrix(y_pred)
        place, known = _lookup(values, rows, truth.indices)
        predicted = np.where(known, np.append(values.data, np.nan)[place], np.nan)
    else:
        predicted = np.asarray(y_pred, dtype=np.float64)[rows, truth.indices]
    missing = np.flatnonzero(~np.isfinite(predicted))
    if missing.size:
        first = missing[0]
        raise ValueError(
            f"y_pred has no finite prediction at {missing.size} of the {truth.nnz} known entries "
            f"of y_true, the first in row {rows[first]}, column {truth.indices[first]}: every known"
            " rating needs one. Use predict_entries(X, y_true), or a dense matrix."
        )
    return truth.data, predicted, truth.indices


def _lookup(R: Any, rows: Any, columns: Any) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Where a canonical CSR stores the entries of these rows and columns, and whether it does."""
    stored = rows_of(R) * R.shape[1] + R.indices
    wanted = rows * R.shape[1] + columns
    place = np.searchsorted(stored, wanted)
    return place, (np.append(stored, -1)[place] == wanted) & (columns >= 0)


def _hits(relevant: Any, ranked: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Hits (users with targets x k, bool) and number of targets of each of these users."""
    n_users = np.shape(relevant)[0]
    if _is_matrix(relevant):
        targets = as_rating_matrix(relevant)
        n_targets = np.diff(targets.indptr)
        top = _top(ranked, k, targets.shape[1], n_users)
        hits = _lookup(targets, np.arange(n_users)[:, np.newaxis], top)[1]
    else:
        target = np.asarray(relevant)
        if target.ndim != 1 or target.dtype.kind not in "iu":
            raise ValueError(
                f"relevant of shape {target.shape} and dtype {target.dtype} must be a users x items"
                " matrix, or the column index (int) of each user's held-out item, -1 for none."
            )
        n_targets = (target >= 0).astype(np.intp)
        top = _top(ranked, k, None, n_users)
        hits = (top == target[:, None]) & (target >= 0)[:, None]
    counted = n_targets > 0
    if not counted.any():
        raise ValueError(
            f"relevant holds no target for any of the {n_targets.size} users: at least one user "
            "needs a held-out item. Check the split that made it."
        )
    return hits[counted], n_targets[counted]


def _top(ranked: Any, k: int, n_items: int | None, n_users: int | None = None) -> np.ndarray:
    """The first k items of each row, -1 for none; None: no number of items or users is known."""
    check_scalar(k, "k", Integral, min_val=1)
    ranked = np.asarray(ranked)
    if ranked.ndim != 2 or ranked.dtype.kind not in "iu":
        raise ValueError(
            f"ranked of shape {ranked.shape} and dtype {ranked.dtype} must be a 2-D array of item "
            "indices (int). Pass the first of the two results of recommend."
        )
    if n_users not in (None, ranked.shape[0]) or ranked.shape[1] < k:
        rows = "" if n_users is None else f"{n_users} rows, the users of relevant, and "
        raise ValueError(
            f"ranked has shape {ranked.shape} and must have {rows}at least k={k} columns. Ask "
            f"recommend for n={k}; where the catalogue has fewer items than that, "
            "pass their number as k."
        )
    top = np.maximum(ranked[:, :k].astype(np.intp), -1)
    if n_items is not None and top.max(initial=-1) >= n_items:
        raise ValueError(
            f"ranked names item {top.max()} and the catalogue has {n_items} items: a ranked item "
            "must be a column index below that. Use the same catalogue for both."
        )
    ascending = np.sort(top, axis=1)
    if np.any((ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] >= 0)):
        raise ValueError(
            "ranked names an item twice in one row: the items of a row must differ. Pass the "
            "ranking that recommend gives."
        )
    return top
