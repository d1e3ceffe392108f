"""What a search has from its best estimator: the methods of a recommender."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

__all__ = ["BestEstimatorMixin"]


def _best_has(name: str) -> Callable[[Any], bool]:
    """Whether the best estimator, before the fit the template, has a method of this name."""

    def check(search: Any) -> bool:
        getattr(getattr(search, "best_estimator_", search.estimator), name)
        return True

    return check


class BestEstimatorMixin:
    """Methods of the released model, ``best_estimator_``; before the fit those of the template.

    Examples
    --------
    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.evaluation import PrivateSearchCV
    >>> X, budget = make_ratings(60, 10, random_state=0), PrivacyBudget(8.0, 1e-5)
    >>> grid = {"user_damping": [5.0, 20.0]}
    >>> search = PrivateSearchCV(DPItemMeans(budget), grid, budget, n_trials=2)
    >>> search.fit_transform(X).shape, search.transform(X).shape
    ((60, 1), (60, 1))
    >>> search.predict(X).shape, search.decision_function(X).shape
    ((60, 10), (60, 10))
    >>> search.predict_entries(X, X).nnz == X.nnz
    True
    >>> items, scores = search.recommend(X, 5)
    >>> neighbours, similarity = search.similar_items([0, 1], n=3)
    >>> items.shape, neighbours.shape
    ((60, 5), (2, 3))
    >>> search.score(X) < 0.0  # minus the RMSE
    True
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     search.save(pathlib.Path(folder) / "best.skdpmf")
    """

    estimator: Any
    best_estimator_: Any
    fit: Any

    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    @available_if(_best_has("predict"))
    def predict(self, X: Any) -> Any:
        """Predict with the best estimator.

        Parameters
        ----------
        X : matrix of shape (n_users, n_items)
            Known ratings of any users.

        Returns
        -------
        ndarray of shape (n_users, n_items)
            Predicted ratings.

        Raises
        ------
        ValueError
            As from the estimator.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._best().predict(X)

    @available_if(_best_has("transform"))
    def transform(self, X: Any) -> Any:
        """Embed users with the best estimator.

        Parameters
        ----------
        X : matrix of shape (n_users, n_items)
            Known ratings of any users.

        Returns
        -------
        ndarray of shape (n_users, k)
            Embeddings.

        Raises
        ------
        ValueError
            As from the estimator.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._best().transform(X)

    @available_if(_best_has("transform"))
    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Search, and embed the same users with the best estimator.

        Parameters
        ----------
        X : matrix of shape (n_users, n_items)
            Ratings.
        y : None or array-like of shape (n_users,)
            As for `fit`.

        Returns
        -------
        ndarray of shape (n_users, k)
            Embeddings.

        Raises
        ------
        ValueError
            As `fit` and `transform`.
        """
        return self.fit(X, y).transform(X)

    @available_if(_best_has("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Score all items with the best estimator.

        Parameters
        ----------
        X : matrix of shape (n_users, n_items)
            Known ratings of any users.

        Returns
        -------
        ndarray of shape (n_users, n_items)
            Scores, not clipped.

        Raises
        ------
        ValueError
            As from the estimator.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._best().decision_function(X)

    @available_if(_best_has("predict_entries"))
    def predict_entries(self, X: Any, where: Any) -> Any:
        """Predict ratings at some positions with the best estimator.

        Parameters
        ----------
        X : matrix of shape (n_users, n_items)
            Known ratings of any users.
        where : matrix of the same shape
            The positions: what is stored (dense: not NaN).

        Returns
        -------
        csr_array of shape (n_users, n_items)
            Predicted ratings at the positions of `where`.

        Raises
        ------
        ValueError
            As from the estimator.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._best().predict_entries(X, where)

    @available_if(_best_has("recommend"))
    def recommend(self, X: Any, n: int = 10, **options: Any) -> Any:
        """Recommend items with the best estimator.

        Parameters
        ----------
        X : matrix of shape (n_users, n_items)
            Known ratings of any users, or what else the estimator takes.
        n : int, default=10
            Items for each user.
        **options
            As for the estimator: ``exclude_seen``, ``candidates``, ``exclude``.

        Returns
        -------
        items, scores : ndarrays of shape (n_users, min(n, n_items))
            As from the estimator.

        Raises
        ------
        ValueError
            As from the estimator.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._best().recommend(X, n, **options)

    @available_if(_best_has("similar_items"))
    def similar_items(self, items: Any, n: int = 10) -> Any:
        """Find the nearest items in the best estimator's factors.

        Parameters
        ----------
        items : item or array-like of items
            Columns or ids, as for the estimator.
        n : int, default=10
            Neighbours for each.

        Returns
        -------
        items, scores : ndarrays
            As from the estimator.

        Raises
        ------
        ValueError
            As from the estimator.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._best().similar_items(items, n)

    @available_if(_best_has("score"))
    def score(self, X: Any, y: Any = None) -> Any:
        """Score the best estimator; exact, hence private as X and y are.

        Parameters
        ----------
        X : matrix of shape (n_users, n_items)
            Known ratings of any users.
        y : None, array-like of shape (n_users,) or matrix
            Held-out items or ratings, as for the estimator.

        Returns
        -------
        float
            As from the estimator. It is not `best_score_`.

        Raises
        ------
        ValueError
            As from the estimator.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        return self._best().score(X, y)

    @available_if(_best_has("save"))
    def save(self, path: Any, **options: Any) -> None:
        """Write the best estimator to a file, with the statement of the whole search.

        Parameters
        ----------
        path : str or path-like
            The file; `skdpmf.load_model` reads it.
        **options
            As for the estimator: ``catalogue``.

        Raises
        ------
        ModelFileError, OSError
            As from the estimator.
        sklearn.exceptions.NotFittedError
            Before `fit`.
        """
        self._best().save(path, **options)
