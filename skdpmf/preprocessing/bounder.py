"""ContributionBounder bounds ratings of users; RatingStep is what steps have in common."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn import get_config
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpmf.data.labelled_rows import RatingMatrix, labelled_rows
from skdpmf.data.matrix import bound_contributions
from skdpmf.data.validation import check_rating_range, check_ratings
from skdpmf.estimators.contract.parameters import is_count, require, require_random_state
from skdpmf.privacy.sampler.noise import fresh_key, recorded_key
from skdpmf.privacy.sampler.streams import derived_key, slot_priorities


class RatingStep:
    """A base before scikit-learn's, which then must not wrap results: sparse ones stay sparse."""

    def set_output(self, *, transform: Any = None) -> Any:
        """Choose the container of dense results.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None, default=None
            What `transform` and `fit_transform` make of a dense X or a DataFrame; "default" are an
            array and a DataFrame of the same library. A RatingMatrix and sparse ratings stay what
            they are, as a table of all cells would take much more memory. None changes nothing.

        Returns
        -------
        estimator
            The step.

        Raises
        ------
        ValueError
            If `transform` is none of these.

        Examples
        --------
        >>> from skdpmf.data import make_ratings
        >>> from skdpmf.preprocessing import ContributionBounder
        >>> bounder, X = ContributionBounder().set_output(transform="pandas"), [[4.0, 9.0]]
        >>> bounder.fit_transform(X)
            x0   x1
        0  4.0  5.0
        >>> bounder.fit_transform(make_ratings(5, 3, random_state=0)).format
        'csr'
        """
        if transform is not None:
            rule = "'default', 'pandas' or 'polars'"
            holds = transform in ("default", "pandas", "polars")
            require(holds, "transform", transform, rule, "choose the container of dense results")
            config = getattr(self, "_sklearn_output_config", {})  # where clone looks for it
            self._sklearn_output_config = {**config, "transform": transform}
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags

    def _container(self) -> str:
        """Return the setting that holds; `fit` asks first, so that nothing is spent in vain."""
        own = getattr(self, "_sklearn_output_config", {})
        kind = str(own.get("transform", get_config()["transform_output"]))
        if kind == "polars":
            import polars  # noqa: F401
        return kind

    def _as_asked(self, values: np.ndarray, X: Any, places: Any = slice(None)) -> Any:
        """Return dense results for X, of its columns at some places, in their container."""
        kind, is_pandas = self._container(), hasattr(X, "iloc")
        if kind == "default" and hasattr(X, "columns"):
            kind = "pandas" if is_pandas else "polars"
        if kind == "default":
            return values
        # names of any type: the next step must know the items
        names = np.asarray(X.columns)[places] if hasattr(X, "columns") else None
        names = self.get_feature_names_out() if names is None else names  # type: ignore[attr-defined]
        if kind == "pandas":
            import pandas as pd

            return pd.DataFrame(values, index=X.index if is_pandas else None, columns=names)
        import polars as pl

        return pl.DataFrame(values, schema=[str(name) for name in names], orient="row")


def dense_of(R: Any, dtype: Any) -> np.ndarray:
    """Return canonical ratings as an array, NaN where nothing is stored."""
    dense = np.full(R.shape, np.nan, dtype)
    dense[np.repeat(np.arange(R.shape[0]), np.diff(R.indptr)), R.indices] = R.data
    return dense


@dataclass(repr=False, eq=False)
class ContributionBounder(  # type: ignore[call-arg]
    RatingStep, OneToOneFeatureMixin, TransformerMixin, BaseEstimator, auto_wrap_output_keys=None
):
    """Cap the ratings of each user and clip them to a range. Costs no budget.

    Row i of the result is a function of row i, its number i (the user's slot) and a key: of a row
    with more than tau = `max_ratings_per_user` ratings it keeps the tau whose keyed hash of
    (slot, item) is smallest, a random subset. All kept ratings are clipped to `rating_range`.

    So two matrices that differ in one row still do so afterwards, whatever the key: for unit
    "user" every guarantee of later steps holds for the whole pipeline, and nothing is spent. For
    unit "rating" only clipping is free. A rating that is added to a full row pushes another one
    out, so that one change becomes two: `privacy_spent` refuses such a pipeline, and
    ``max_ratings_per_user=None`` is the remedy.

    Parameters
    ----------
    max_ratings_per_user : int or None, default=200
        tau >= 1, public: never read off the data. None keeps all ratings.
    rating_range : tuple of float or None, default=(1.0, 5.0)
        Public smallest and largest rating. None clips nothing.
    random_state : int or None, default=None
        Seed of the key. None: a fresh key of the operating system for every fit. An int repeats
        it. It is no secret, as the guarantee holds for every key.

    Attributes
    ----------
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Item names, if X had string column names.

    Notes
    -----
    `transform` caps every matrix, so that a pipeline's predictions use at most tau ratings of a row
    as well. The estimators of this package bound what a user contributes by weights and clipping,
    and need no cap; it serves steps that do.

    In a sparse X stored = rated, in a dense one NaN = unknown, and so it is in the result, which is
    sparse (csr) for sparse X. Several ratings of one (user, item) pair are merged by their mean.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.preprocessing import ContributionBounder
    >>> X = np.array([[5.0, 9.0, 3.0], [np.nan, 0.0, np.nan]])
    >>> bounded = ContributionBounder(2, random_state=0).fit_transform(X)
    >>> np.isfinite(bounded).sum(axis=1), float(np.nanmax(bounded)), float(bounded[1, 1])
    (array([2, 1]), 5.0, 1.0)
    """

    max_ratings_per_user: int | None = 200
    rating_range: tuple[float, float] | None = (1.0, 5.0)
    random_state: int | None = None
    _catalogue_ = None

    def fit(self, X: Any, y: Any = None) -> "ContributionBounder":
        """Note the columns of X, and draw the key.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Ratings; only its columns are used.
        y : object, default=None
            Ignored.

        Returns
        -------
        ContributionBounder
            The fitted transformer.

        Raises
        ------
        ValueError
            If a parameter is invalid (checked before X is looked at), or X is not a matrix of
            real numbers or holds an infinite one.

        Examples
        --------
        >>> import numpy as np
        >>> from skdpmf.preprocessing import ContributionBounder
        >>> bounder = ContributionBounder(1).fit(np.array([[5.0, 9.0, 3.0]]))
        >>> bounder.n_features_in_
        3
        """
        tau = self.max_ratings_per_user
        rule = "an integer >= 1 or None"
        remedy = "pass the number of ratings that each user may contribute, or None for all"
        require(tau is None or is_count(tau), "max_ratings_per_user", tau, rule, remedy)
        if self.rating_range is not None:
            check_rating_range(self.rating_range)
        require_random_state(self.random_state)
        self._container()
        check_ratings(self, X, reset=True, rating_range=self.rating_range, warns=True)
        seed = self.random_state
        name = type(self).__name__
        self._key_ = recorded_key(fresh_key if seed is None else lambda: derived_key(seed, name))
        return self

    def transform(self, X: Any) -> Any:
        """Cap and clip the rows of X.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Ratings; row i is the user of slot i.

        Returns
        -------
        {ndarray, DataFrame, csr_array, RatingMatrix} of shape (n_users, n_items)
            The bounded ratings, float32 if X is, else float64. A RatingMatrix and sparse ratings
            stay so whatever `set_output` says; a DataFrame stays one without it.

        Raises
        ------
        ValueError
            If X is invalid or has other columns than in `fit`.
        sklearn.exceptions.NotFittedError
            Before `fit`.

        Examples
        --------
        >>> import numpy as np
        >>> from skdpmf.preprocessing import ContributionBounder
        >>> bounder = ContributionBounder(1).fit(np.array([[5.0, 9.0, 3.0]]))
        >>> int(np.isfinite(bounder.transform(np.array([[5.0, 9.0, 3.0]]))).sum())
        1
        """
        check_is_fitted(self, "_key_")
        X = labelled_rows(X, self._catalogue_, self.n_features_in_)[0]
        R, dtype = check_ratings(self, X, reset=False, rating_range=self.rating_range)
        if self.max_ratings_per_user is not None:
            priorities = slot_priorities(self._key_, "bounder", R.indptr, R.indices)
            R = bound_contributions(R, self.max_ratings_per_user, priorities)
        if isinstance(X, RatingMatrix):
            return X.with_ratings(R)
        if sparse.issparse(X):
            return sparse.csr_array((R.data.astype(dtype), R.indices, R.indptr), shape=R.shape)
        return self._as_asked(dense_of(R, dtype), X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
