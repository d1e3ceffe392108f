"""The scorer ``(estimator, X, y) -> float`` for ``GridSearchCV(scoring=...)``; higher is better."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from skdpmf.data.labelled_rows import Catalogue, RatingMatrix, catalogue_of
from skdpmf.data.matrix import keep_entries
from skdpmf.data.validation import as_rating_matrix, held_out_ratings
from skdpmf.estimators.contract.recommend import hidden_fifth
from skdpmf.evaluation import metrics

# each the beginning of the name of a function of `metrics`
_OF_LISTS = ("average_precision", "ndcg", "precision", "recall", "reciprocal_rank")


def recommender_scorer(metric: str = "ndcg", k: int = 10) -> Any:
    """Scorer of held-out ratings or items, for searches and cross-validation.

    It scores exact ratings, so a search that uses it chooses on private data: its choice is the
    curator's, whatever the estimators inside have spent.

    Parameters
    ----------
    metric : {"ndcg", "recall", "precision", "average_precision", "reciprocal_rank", "rmse"}, \
            default="ndcg"
        "rmse" is minus the `rmse` of ``predict_entries`` at the known entries of y, in units of
        ratings. The others measure each user's k best unseen items, such as `ndcg_at_k`. Coverage
        and novelty of lists have no scorer: a random ranking is near the best by both.
    k : int, default=10
        How many items to recommend; "rmse" does without.

    Returns
    -------
    callable
        ``scorer(estimator, X, y=None)``: X holds the known ratings of the users. None, as after
        ``GridSearchCV(...).fit(X)``: a fifth of each row of X is hidden before the fold-in, the
        same at every call, and is what the rest must find. Otherwise y holds their held-out
        ratings, a users x items matrix, sparse (stored = rated) or dense (NaN = unknown; one that
        holds zeros and no NaN, as of ``toarray``, is refused); for lists also 1-D, one item each
        (column index, negative for none; or the name of a column, where the estimator has
        ``feature_names_in_``). ``cross_validate`` refuses a sparse y, which ``GridSearchCV`` takes;
        both take ``RatingMatrix(y)``. Picklable. Raises ValueError for a y that is none of these,
        and whatever the metric raises.

    Raises
    ------
    ValueError
        If there is no such metric.

    Examples
    --------
    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.evaluation import recommender_scorer, split_ratings
    >>> known, hidden = split_ratings(make_ratings(60, 10, random_state=0), random_state=0)
    >>> model = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(known)
    >>> recommender_scorer("rmse")(model, known, hidden) < 0.0
    True
    >>> 0.0 <= recommender_scorer("recall", k=5)(model, known, hidden) <= 1.0
    True
    >>> from sklearn.model_selection import GridSearchCV
    >>> grid, lists = {"user_damping": [5.0, 20.0]}, recommender_scorer("recall", k=5)
    >>> sorted(GridSearchCV(model, grid, scoring=lists).fit(known).best_params_)
    ['user_damping']
    """
    if metric not in ("rmse", *_OF_LISTS):
        raise ValueError(f"metric={metric!r} must be one of {['rmse', *_OF_LISTS]}: pass one.")
    return _Scorer(metric, None if metric == "rmse" else k)


@dataclass(frozen=True)
class _Scorer:
    """A metric of the top k of ``recommend``, or of ``predict_entries``; a class: it pickles."""

    metric: str
    k: int | None

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        if y is None:
            X, y = _hidden(estimator, X)
        if self.k is not None:
            items, _ = estimator.recommend(X, n=self.k)
            k = min(self.k, items.shape[1])  # no more than there are items
            measure = getattr(metrics, f"{self.metric}_at_k")
            return float(measure(_held_out(estimator, X, y), items, k))
        if not sparse.issparse(y) and np.ndim(y) != 2:
            raise ValueError(
                f"y of shape {np.shape(y)} must be a users x items matrix of held-out ratings. Use "
                "recommender_scorer('recall') where y names each user's held-out item."
            )
        held_out = held_out_ratings(y, getattr(estimator, "rating_range", None))
        return -metrics.rmse(held_out, estimator.predict_entries(X, held_out))


def _hidden(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Rows of X without a fifth of each, and that fifth, as `score` hides them."""
    R = as_rating_matrix(X)
    if getattr(estimator, "_implicit", False):
        R = keep_entries(R, R.data > 0.0)
    hidden = hidden_fifth(R)
    if not hidden.any():
        raise ValueError(
            f"y=None and X has too few ratings ({R.nnz}) to hide a fifth of each row: pass "
            "held-out ratings as y, which split_ratings makes."
        )
    known, catalogue = keep_entries(R, ~hidden), catalogue_of(X)
    named = known if catalogue is None else RatingMatrix(known, None, catalogue.items)
    return named, keep_entries(R, hidden)


def _held_out(estimator: Any, X: Any, y: Any) -> Any:
    """Targets for the metrics: a matrix as it is, 1-D item names or indices as column indices."""
    if sparse.issparse(y) or np.ndim(y) != 1:
        return held_out_ratings(y)
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
    return Catalogue(names).columns(y, "y")
