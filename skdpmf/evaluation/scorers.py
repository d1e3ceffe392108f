"""Scorers ``(estimator, X, y) -> float`` for ``GridSearchCV(scoring=...)``; higher is better.

All are used in the same way: ``scoring=ndcg_scorer(5)``, or by default ``scoring=ndcg_scorer``.
They score exact ratings, so a search that uses them chooses on private data: its choice is the
curator's, whatever the estimators inside have spent.

Coverage and novelty of lists have no scorer: a random ranking is near the best by both, so that a
search would choose noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
from scipy import sparse

from skdpmf.data.validation import as_rating_matrix
from skdpmf.evaluation.metrics import (
    average_precision_at_k,
    hit_rate_at_k,
    ndcg_at_k,
    recall_at_k,
    reciprocal_rank_at_k,
    rmse,
)

__all__ = [
    "average_precision_scorer",
    "hit_rate_scorer",
    "ndcg_scorer",
    "recall_scorer",
    "reciprocal_rank_scorer",
    "rmse_scorer",
]


def _scorer_too(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let what makes a scorer be one itself, with its defaults: called as ``(estimator, X, y)``."""

    @wraps(make)
    def either(*args: Any, **kwargs: Any) -> Any:
        return make()(*args, **kwargs) if len(args) > 1 else make(*args, **kwargs)

    return either


@dataclass(frozen=True)
class _RankingScorer:
    """A ranking metric of the top k of ``estimator.recommend``; a class so that it pickles."""

    metric: Callable[[Any, Any, int], float]
    k: int

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        if y is None:
            raise ValueError(
                "y=None must be held-out items or ratings of the rows of X: leave_one_out and "
                "split_ratings make such. Pass y to the search, or score with estimator.score."
            )
        items, _ = estimator.recommend(X, n_recommendations=self.k)
        k = min(self.k, items.shape[1])  # no more than there are items
        return self.metric(_held_out(estimator, X, y), items, k)


@_scorer_too
def hit_rate_scorer(k: int = 10) -> _RankingScorer:
    """Scorer of `hit_rate_at_k` on each user's k best unseen items.

    Parameters
    ----------
    k : int, default=10
        How many items to recommend.

    Returns
    -------
    callable
        ``scorer(estimator, X, y)``: X holds the known ratings of the users; y their held-out items,
        1-D (column index, negative for none; or the name of a column, where the estimator has
        ``feature_names_in_``) or a users x items matrix. Picklable. Raises ValueError for a y
        outside the catalogue and whatever the metric raises.

    Examples
    --------
    >>> from skdpmf.evaluation import hit_rate_scorer
    >>> hit_rate_scorer(5).k
    5
    """
    return _RankingScorer(hit_rate_at_k, k)


@_scorer_too
def recall_scorer(k: int = 10) -> _RankingScorer:
    """Scorer of `recall_at_k` on each user's k best unseen items.

    Parameters
    ----------
    k : int, default=10
        How many items to recommend.

    Returns
    -------
    callable
        ``scorer(estimator, X, y)``, as `hit_rate_scorer` gives it.

    Examples
    --------
    >>> from skdpmf.evaluation import recall_scorer
    >>> recall_scorer(5).k
    5
    """
    return _RankingScorer(recall_at_k, k)


@_scorer_too
def ndcg_scorer(k: int = 10) -> _RankingScorer:
    """Scorer of `ndcg_at_k` on each user's k best unseen items.

    Parameters
    ----------
    k : int, default=10
        How many items to recommend.

    Returns
    -------
    callable
        ``scorer(estimator, X, y)``, as `hit_rate_scorer` gives it.

    Examples
    --------
    >>> from skdpmf.evaluation import ndcg_scorer
    >>> ndcg_scorer(5).k
    5
    """
    return _RankingScorer(ndcg_at_k, k)


@_scorer_too
def average_precision_scorer(k: int = 10) -> _RankingScorer:
    """Scorer of `average_precision_at_k` on each user's k best unseen items.

    Parameters
    ----------
    k : int, default=10
        How many items to recommend.

    Returns
    -------
    callable
        ``scorer(estimator, X, y)``, as `hit_rate_scorer` gives it.

    Examples
    --------
    >>> from skdpmf.evaluation import average_precision_scorer
    >>> average_precision_scorer(5).k
    5
    """
    return _RankingScorer(average_precision_at_k, k)


@_scorer_too
def reciprocal_rank_scorer(k: int = 10) -> _RankingScorer:
    """Scorer of `reciprocal_rank_at_k` on each user's k best unseen items.

    Parameters
    ----------
    k : int, default=10
        How many items to recommend.

    Returns
    -------
    callable
        ``scorer(estimator, X, y)``, as `hit_rate_scorer` gives it.

    Examples
    --------
    >>> from skdpmf.evaluation import reciprocal_rank_scorer
    >>> reciprocal_rank_scorer(5).k
    5
    """
    return _RankingScorer(reciprocal_rank_at_k, k)


@dataclass(frozen=True)
class _RMSEScorer:
    """Minus the RMSE of ``estimator.predict_entries``."""

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        if not sparse.issparse(y) and np.ndim(y) != 2:
            raise ValueError(
                f"y of shape {np.shape(y)} must be a users x items matrix of held-out ratings. For "
                "each user's held-out item score with hit_rate_scorer(k)."
            )
        held_out = as_rating_matrix(y)
        return -rmse(held_out, estimator.predict_entries(X, held_out))


@_scorer_too
def rmse_scorer() -> _RMSEScorer:
    """Scorer of minus the `rmse` at the known entries of y, predicted by ``predict_entries``.

    Returns
    -------
    callable
        ``scorer(estimator, X, y)``: X holds the known ratings of the users; y their held-out
        ratings, a users x items matrix, sparse (stored = rated) or dense (NaN = unknown). The score
        is ``-rmse``, in rating units; 0 is best. Picklable. Raises ValueError if y is not a matrix,
        and whatever `rmse` raises.

    Examples
    --------
    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.evaluation import rmse_scorer, split_ratings
    >>> known, hidden = split_ratings(make_ratings(60, 10, random_state=0), random_state=0)
    >>> model = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(known)
    >>> rmse_scorer()(model, known, hidden) < 0.0
    True
    """
    return _RMSEScorer()


def _held_out(estimator: Any, X: Any, y: Any) -> Any:
    """Targets for the metrics: a matrix as it is, 1-D item names or indices as column indices."""
    if sparse.issparse(y) or np.ndim(y) != 1:
        return y
    y = np.asarray(y)
    n_items = np.shape(X)[1]
    if y.dtype.kind in "iu":
        if y.size and y.max() >= n_items:
            raise ValueError(
                f"y names item {y.max()} and X has {n_items} columns: a held-out item must be a "
                "column index of X, negative for none."
            )
        return y
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        raise ValueError(
            f"y of dtype {y.dtype} must hold column indices (int): the estimator was fitted "
            "without item names. Fit it on a DataFrame, or pass indices."
        )
    column = {name: index for index, name in enumerate(names)}
    unknown = [name for name in y if name not in column]
    if unknown:
        raise ValueError(
            f"y names {len(unknown)} items that are not columns of X, the first {unknown[0]!r}: "
            "held-out items must be names in feature_names_in_."
        )
    return np.array([column[name] for name in y], dtype=np.intp)
