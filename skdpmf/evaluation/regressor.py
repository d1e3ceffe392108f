"""(user, item) -> rating: a recommender under scikit-learn's tools for regression."""

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.utils import check_array, check_consistent_length, get_tags
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from skdpmf.data.labelled_rows import as_frame
from skdpmf.data.matrix import present_ids, ratings_to_matrix
from skdpmf.data.validation import as_rating_matrix
from skdpmf.mechanisms.common import rows_of
from skdpmf.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    import pandas as pd


class RatingRegressor(RegressorMixin, MetaEstimatorMixin, BaseEstimator):
    """A recommender as a regressor on (user, item) pairs, for tables of single ratings.

    ``fit`` pivots the table into the users x items matrix R and fits a clone of `estimator` on it;
    ``predict`` folds each user's *training* row in and reads the predictions of the pairs that are
    asked for (``predict_entries``), without a dense matrix. So ``KFold``, ``cross_val_predict``,
    ``GridSearchCV`` and the stock regression scorers split and score single ratings.

    .. warning::
       This object belongs to the curator. It holds the training ratings (for the fold-in), and
       its predictions, scores and error messages depend on them. Only `estimator_` may be
       released, and only under the assumptions of its ``privacy_spent_``: the catalogue must be
       public, so declare `items` (and `users`, the public slots); left at None, they are read off
       the ratings, and the mere presence of an item or a user then shows that somebody rated, which
       ``privacy_spent_`` states as a condition that is not met. A search over parameters selects on
       exact scores: its choice is not private.

    Parameters
    ----------
    estimator : estimator object
        A recommender of this package, or any estimator with ``fit(X)`` and
        ``predict_entries(X, where)`` on a sparse users x items matrix.
    items : array-like of shape (n_items,), default=None
        The public catalogue: ids of the columns, in their order. None takes the sorted items of
        the training table.
    users : array-like of shape (n_users,), default=None
        The public user slots: ids of the rows, in their order. None takes the sorted users of the
        training table.

    Attributes
    ----------
    estimator_ : estimator object
        The fitted clone of `estimator`: the only part that may be released.
    users_ : pandas.Index of shape (n_users,)
        User ids by row.
    items_ : pandas.Index of shape (n_items,)
        Item ids by column.
    ratings_ : CSR of shape (n_users, n_items)
        The training ratings, duplicates merged by their mean. Private data.
    user_means_ : ndarray of shape (n_users,)
        Mean training rating of each user, clipped to the estimator's ``rating_range``;
        `mean_rating_` for users without ratings. Private data.
    mean_rating_ : float
        Mean of the training ratings, in their unit, clipped to ``rating_range``. Private data.
    n_features_in_ : int
        Always 2.
    feature_names_in_ : ndarray of shape (2,)
        Names of the two columns, if X was a DataFrame with string names.

    Notes
    -----
    Pairs that training did not see:

    ==========  ==========  =======================================================
    user        item        prediction
    ==========  ==========  =======================================================
    known       known       the estimator's, from the user's training row
    unknown     known       the estimator's, from an empty row (its item means, say)
    known       unknown     `user_means_` of the user
    unknown     unknown     `mean_rating_`
    ==========  ==========  =======================================================

    Ids are compared by value: 3 and 3.0 are one item, 3 and "3" are two. A numpy array of strings
    and integers turns all ids into strings; a DataFrame or a list of pairs keeps them apart.

    Examples
    --------
    >>> from sklearn.model_selection import KFold, cross_val_score
    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> data = make_ratings(60, 10, random_state=0, as_frame=True)
    >>> model = RatingRegressor(DPItemMeans(PrivacyBudget(4.0, 1e-5)), items=data.matrix.items)
    >>> pairs, ratings = data.ratings[["user", "item"]], data.ratings["rating"]
    >>> model.fit(pairs, ratings).predict(pairs[:3]).shape
    (3,)
    >>> folds = KFold(3, shuffle=True, random_state=0)
    >>> scoring = "neg_root_mean_squared_error"
    >>> cross_val_score(model, pairs, ratings, cv=folds, scoring=scoring).shape
    (3,)
    """

    def __init__(self, estimator: Any, *, items: Any = None, users: Any = None) -> None:
        self.estimator = estimator
        self.items = items
        self.users = users

    def fit(self, X: Any, y: Any) -> "RatingRegressor":
        """Pivot the table and fit the recommender on the matrix.

        Parameters
        ----------
        X : DataFrame, array-like or list of pairs, shape (n_ratings, 2)
            User id and item id of each rating: hashable values, none missing.
        y : array-like of shape (n_ratings,)
            The ratings. Those of the same pair are merged by their mean.

        Returns
        -------
        RatingRegressor
            The fitted object.

        Raises
        ------
        ValueError
            If `X` has not two columns or has a missing id, `y` is not finite or not as long as
            `X`, a declared catalogue repeats an id, or `X` has an id outside of it.
        TypeError
            If an id is not hashable.
        """
        import pandas as pd

        users, items = self._id_columns(X, reset=True)
        y = self._check_ratings(y)
        check_consistent_length(users, y)
        table = pd.DataFrame({"user": users, "item": items, "rating": y})
        matrix = ratings_to_matrix(table, users=self.users, items=self.items)
        self.ratings_, self.users_, self.items_ = matrix
        self.estimator_ = clone(self.estimator).fit(self.ratings_)
        statement = getattr(self.estimator_, "privacy_spent_", None)
        if isinstance(statement, PrivacyStatement):
            self.estimator_._statement = statement.with_undeclared(matrix.undeclared)
        R, counts = self.ratings_, np.diff(self.ratings_.indptr)
        # a bound on the range is public; ratings beyond it do not count in full anywhere
        low, high = getattr(self.estimator_, "rating_range", None) or (-np.inf, np.inf)
        data = np.clip(R.data, low, high)
        self.mean_rating_ = float(data.mean())
        sums = np.bincount(rows_of(R), weights=data, minlength=counts.size)
        self.user_means_ = np.where(counts > 0, sums / np.maximum(counts, 1), self.mean_rating_)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predicted rating of each (user, item) pair.

        Parameters
        ----------
        X : DataFrame, array-like or list of pairs, shape (n_pairs, 2)
            User id and item id of each pair. Users and items that training did not see are
            allowed; see the table in the notes of the class.

        Returns
        -------
        ndarray of shape (n_pairs,)
            In the unit of the ratings, within the estimator's ``rating_range``.

        Raises
        ------
        ValueError
            If `X` has not two columns or has a missing id.
        sklearn.exceptions.NotFittedError
            Before ``fit``.
        """
        check_is_fitted(self, "estimator_")
        users, items = self._id_columns(X, reset=False)
        rows, columns = self.users_.get_indexer(users), self.items_.get_indexer(items)
        rows[rows < 0] = self.users_.size  # one empty row for all unknown users
        predicted = np.append(self.user_means_, self.mean_rating_)[rows]
        known = columns >= 0
        if known.any():
            predicted[known] = self._predict_pairs(rows[known], columns[known])
        return predicted

    def _predict_pairs(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Ask the estimator once for each distinct pair, on the rows of the users concerned."""
        n_items = self.items_.size
        wanted, row = np.unique(rows, return_inverse=True)
        keys, pair = np.unique(row.astype(np.int64) * n_items + columns, return_inverse=True)
        indptr = np.searchsorted(keys, np.arange(wanted.size + 1, dtype=np.int64) * n_items)
        shape = (wanted.size, n_items)
        where = sparse.csr_array((np.ones(keys.size), keys % n_items, indptr), shape=shape)
        R = self.ratings_
        parts = R.data, R.indices, np.append(R.indptr, R.indptr[-1])
        padded = sparse.csr_array(parts, shape=(R.shape[0] + 1, n_items))
        # as_rating_matrix sorts the columns, whatever order the estimator answers in
        answer = as_rating_matrix(self.estimator_.predict_entries(padded[wanted], where))
        if answer.nnz != keys.size:
            raise ValueError(
                f"estimator={type(self.estimator).__name__} gave {answer.nnz} finite predictions "
                f"for {keys.size} pairs: predict_entries must give one for each stored position of "
                "`where`. Check its predictions for NaN."
            )
        return answer.data[pair]

    def _check_ratings(self, y: Any) -> np.ndarray:
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: y must "
                "hold the rating of each row of X. Pass the rating column."
            )
        y = column_or_1d(y, warn=True)
        try:
            return np.asarray(check_array(y, dtype=np.float64, ensure_2d=False, input_name="y"))
        except ValueError as error:
            raise ValueError(
                f"y of dtype {y.dtype} must hold finite numbers, the ratings: {error} Drop the "
                "rows without a finite rating."
            ) from None

    def _id_columns(self, X: Any, *, reset: bool) -> tuple["pd.Index", "pd.Index"]:
        """User and item ids as two pandas indexes, each with its own dtype."""
        import pandas as pd

        X = as_frame(X)
        if isinstance(X, list):
            X = pd.DataFrame(X)
        if not isinstance(X, pd.DataFrame):
            X = check_array(X, dtype=None, ensure_all_finite=False, estimator=self, input_name="X")
        if reset and X.shape[1] != 2:
            raise ValueError(
                f"X has n_features={X.shape[1]} and must have exactly two columns, the user id and "
                f"the item id: {type(self).__name__} reads a table of single ratings. Select them, "
                'as in X[["user", "item"]], and pass the rating as y; for a users x items matrix '
                "use the wrapped estimator itself."
            )
        if len(X) == 0:
            raise ValueError("Found array with 0 sample(s) in X: a (user, item) pair is required.")
        validate_data(self, X, reset=reset, skip_check_array=True)
        columns = X.iloc if isinstance(X, pd.DataFrame) else X
        return _as_ids(columns[:, 0], "user"), _as_ids(columns[:, 1], "item")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = get_tags(self.estimator).non_deterministic
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def _as_ids(column: Any, name: str) -> "pd.Index":
    import pandas as pd

    ids = pd.Series(np.asarray(column)).replace([np.inf, -np.inf], np.nan)
    ids = present_ids(ids, f"the {name} column of X (NaN and infinity are none)")
    try:
        set(ids)
    except TypeError as error:
        raise TypeError(
            f"The {name} column of X holds an id that cannot be hashed ({error}): the argument "
            "must be a hashable value such as a string or a number. Convert the column."
        ) from error
    return pd.Index(ids)
