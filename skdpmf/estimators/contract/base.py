"""The contract of every estimator: ratings in, a released model, predictions for any row."""

import warnings
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpmf.data.feature_columns import ItemColumns, aligned_features, item_columns
from skdpmf.data.labelled_rows import Catalogue, catalogue_of, labelled_rows, names_items
from skdpmf.data.matrix import keep_entries
from skdpmf.data.validation import check_ratings, held_out_ratings, middle_and_quarter
from skdpmf.estimators.contract import answers, filled, recommend
from skdpmf.estimators.contract.answers import TableOutput, columns_of, list_table, named
from skdpmf.estimators.contract.cluster import client_of
from skdpmf.estimators.contract.model_file import save_model
from skdpmf.estimators.contract.parameters import Planner, check_count, check_where, require
from skdpmf.estimators.contract.progress import RoundsMixin, SpentDisplay, with_callbacks, work_of
from skdpmf.estimators.contract.recommend import _ONE_BLAS_THREAD, ItemModel, Ranking, ScoreTable
from skdpmf.estimators.contract.refreshed import with_items
from skdpmf.kernels.averaging import TASTE_VARIANCE
from skdpmf.kernels.jit_and_threads import ANSWER_WORK, is_small, sized
from skdpmf.privacy.recording import active_recorder


@filled
class BaseRecommender(
    Planner,
    RoundsMixin,
    SpentDisplay,
    TableOutput,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
    ABC,
):
    """Everything that the recommenders share; a subclass adds the solver.

    X is the users x items matrix. Sparse: stored = rated, a stored 0 is the rating 0. Dense or
    DataFrame: NaN = unknown. Ratings of one (user, item) pair are merged by their mean, ratings
    outside of `rating_range` are clipped to it.

    A subclass has the parameters `rating_range`, `item_features`, `random_state` and `n_jobs`,
    defines `plan` and `_fit`, and may extend ``_check_params()``, which runs before any data is
    touched, and ``_n_rounds()``; its solver loops over ``self._rounds(n)``, for progress bars.

    The guarantee of a private subclass covers the fitted model. What answers rows uses them and
    the model, and costs no budget: this is the billboard model, in which each user combines the
    published model with the own row. Answers for private rows are not protected against whoever
    sees them, and belong to these users or to the curator.
    """

    components_: np.ndarray
    _item_model_: ItemModel
    _ranking_: Ranking | None = None
    _features_: ItemColumns | None = None
    _catalogue_: Catalogue | None = None
    _table_: Any = None  # a list: filled by the first answer, which must not set attributes

    @abstractmethod
    def _fit(self, R: Any, y: Any) -> None:
        """Release the model of canonical ratings R (CSR, float64, merged, clipped).

        The content of y must not be used; what else a ``fit`` hands to `_fit_rows` comes as
        keywords. Sets ``components_`` (k, n_items), ``_item_model_`` in rating units, and whatever
        else is released.
        """

    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit and release the model.

        Parameters
        ----------
        {fit X}
        {y}

        Returns
        -------
        {self}

        Raises
        ------
        {fit errors}

        Examples
        --------
        {model}
        >>> model.fit(X).item_means_.shape
        (3,)
        """
        return self._fit_rows(X, y)

    @with_callbacks
    def _fit_rows(self, X: Any, y: Any, start: Any = None, **metadata: Any) -> Any:
        """`fit`, with whatever else belongs to the rows handed on to `_fit`.

        start: what a refresh starts from, of `skdpmf.estimators.contract.refreshed`.
        """
        self._check_params()
        self._table_, self._ranking_ = [], None
        R = self._check_ratings(X, reset=True)[0]
        self._features_ = self._columns_of(X, R) if start is None else start.features
        self._target_kind = answers.kind_of(y, R.shape, self._catalogue_)
        with self._framed(X, R, start, metadata) as known:
            self._begin_rounds()
            with sized(work_of(self, R.shape)), _ONE_BLAS_THREAD if is_small() else nullcontext():
                self._fit(R, y, **known, **metadata)
            self._add_tastes()
            self._end_rounds()
        return self

    def _framed(self, X: Any, R: Any, start: Any, metadata: Any) -> Any:
        """Return a context of what else `_fit` takes; R: X, checked."""
        return nullcontext({})

    def _columns_of(self, X: Any, R: Any) -> ItemColumns | None:
        """Return the columns of the `item_features` of X's catalogue."""
        if self.item_features is None:
            return None
        catalogue = catalogue_of(X)
        names = None if catalogue is None else catalogue.items
        return item_columns(aligned_features(self.item_features, R.shape[1], names))

    def _add_tastes(self) -> None:
        """Let the fold-in regress on the features as well, where it predicts ratings."""
        features, model = self._features_, self._item_model_
        if features is None or model.implicit or not features.values.shape[1]:
            return
        variance = TASTE_VARIANCE * middle_and_quarter(self.rating_range)[1] ** 2
        self._item_model_ = model._replace(features=features.values, variance=variance)

    def transform(self, X: Any) -> np.ndarray:
        """Embed users: the ridge fold-in of each row into the released items.

        Parameters
        ----------
        {X}

        Returns
        -------
        ndarray of shape (n_users, k)
            float32 if X is float32, else float64. A row without ratings becomes 0.

        Raises
        ------
        {errors}

        Examples
        --------
        {model}
        >>> model.transform(X).shape
        (2, 1)
        """
        R, dtype = self._check_ratings(X)
        Z = recommend.fold_in(self._item_model_, R, self.n_jobs)
        width = self._item_model_.factors.shape[1]
        embedding = Z[:, width - self._n_features_out : width]
        return np.array(embedding, dtype=dtype, order="C")

    def predict(self, X: Any) -> np.ndarray:
        """Predict what y was in `fit`: ratings, or the best unseen item.

        Parameters
        ----------
        {X}

        Returns
        -------
        ndarray of shape (n_users, n_items) or (n_users,)
            Fitted with y=None or a matrix y: predicted ratings, clipped to `rating_range`. Fitted
            with a 1-D y: the best unseen item of each user, so that the accuracy is the hit rate.
            It is the column index (int64; -1 where a user has rated all items), or, if y
            held strings, the id of the item ("" where none is left).

        Raises
        ------
        {errors}

        Examples
        --------
        {model}
        >>> model.predict(X).shape
        (2, 3)
        """
        R, down = self._rows(X)
        if self._target_kind in ("index", "name"):
            best = self._best_unseen(R, down)
            return best if self._target_kind == "index" else self._names(best)
        scores = self._scores(R)
        return np.clip(scores, *self._value_range, out=scores)

    def decision_function(self, X: Any) -> np.ndarray:
        """Score all items for each user.

        Parameters
        ----------
        {X}

        Returns
        -------
        ndarray of shape (n_users, n_items)
            Predicted ratings, in rating units, not clipped, float64.

        Raises
        ------
        {errors}

        Examples
        --------
        {model}
        >>> model.decision_function(X).shape
        (2, 3)
        """
        return self._scores(self._check_ratings(X)[0])

    def predict_entries(self, X: Any, where: Any) -> Any:
        """Predict ratings at some positions only, without a dense matrix.

        Parameters
        ----------
        {X}
        where : sparse matrix or array-like of the same shape
            The positions: what is stored, whatever its value (dense: what is not NaN, or True).

        Returns
        -------
        csr_array of shape (n_users, n_items)
            Predicted ratings, clipped to `rating_range`, at the positions of `where`, columns
            ascending; positions that are stored twice come once.

        Raises
        ------
        {errors}
            Or if `where` has another shape.

        Examples
        --------
        {model}
        >>> model.predict_entries(X, np.isnan(X)).shape
        (2, 3)
        """
        R = self._check_ratings(X)[0]
        where = answers.in_order(where, self._catalogue_, R.shape[1], "where")
        return self._predict_entries(R, check_where(where, R.shape))

    def recommend(
        self,
        X: Any,
        n: int = 10,
        exclude_seen: bool = True,
        candidates: Any = None,
        *,
        exclude: Any = None,
        unknown: str = "error",
        taste: float | None = None,
    ) -> Any:
        """Recommend items to each user, in blocks of users.

        Items are named by their columns in X or, where the model knows them (``catalogue_``), by
        their ids. Text is always an id. An integer is a column, unless X is `{item: rating}` or
        answers are tables: then it is an id, if ids are integers.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix, RatingMatrix} of shape (n_users, n_items)
            Known ratings of any users. Or ``{item: rating}`` of one user, or a list of such.
        n : int, default=10
            Items for each user, at least 1; more than there are items means all of them.
        exclude_seen : bool, default=True
            Do not recommend what the user has rated. Clicks that mark an item down, by a weight of
            0 or below, are never recommended.
        candidates : array-like of items, shape (n_candidates,), default=None
            Items to choose from. None: all items.
        exclude : array-like of items, or matrix of shape (n_users, n_items), default=None
            Items that nobody gets, or, stored in the row of a matrix or named by the dict of a
            list, that this user does not get.
        unknown : {"error", "ignore"}, default="error"
            Ratings in X of items that the model does not know are an error, or are left out; then
            a warning says how many.
        taste : float, default=None
            Between 0 and 1. At 0 items are ranked by what people choose, at 1 by the scores of
            `decision_function`. Between them the weight of what the user's ratings say grows as
            taste / (1 - taste). None: 0.5, for items that the user may both choose and like.
            Without released counts, and for clicks, `taste` changes nothing.

        Returns
        -------
        items : int64 ndarray of shape (n_users, min(n, n_items))
            Columns of X, also where it has names (``catalogue_["item"][column]``), the best
            first, of equal ones the smaller. -1 where no item is left.
        scores : float64 ndarray of the same shape
            Values that rank them: for ratings the logarithm of how often people with these choices
            choose the item, plus what the predicted rating adds; for clicks, and where no counts
            are known, the scores of `decision_function`. -inf where no item is left. After
            ``set_output(recommend="pandas")`` or "polars" both come as one table, with the columns
            user, rank, item (the id), title (where known) and score.

        Raises
        ------
        {errors}
            Or if X names an unknown item, or another argument is out of its range.

        Examples
        --------
        {model}
        >>> model.recommend(X, n=1)[0]
        array([[2],
               [1]])

        By name:

        >>> from skdpmf.data import ratings_to_matrix
        >>> import pandas as pd
        >>> table = pd.DataFrame({"user": [1, 1], "item": ["Heat", "Alien"], "rating": [4.0, 5.0]})
        >>> model = DPItemMeans(PrivacyBudget.nonprivate()).fit(ratings_to_matrix(table))
        >>> model.set_output(recommend="pandas").recommend({"Heat": 4.0})[["rank", "item"]]
           rank   item
        0     1  Alien
        """
        check_is_fitted(self, "_item_model_")
        remedy = "choose whether ratings of unknown items are an error or left out"
        require(unknown in ("error", "ignore"), "unknown", unknown, "'error' or 'ignore'", remedy)
        n_items, ids = self.n_features_in_, names_items(X) or self._answers_by_table
        X, left_out = labelled_rows(X, self._catalogue_, n_items, unknown=unknown)
        R, down = self._rows(X)
        if left_out:
            words = f"ratings of X whose items the model does not know are left out ({left_out})."
            warnings.warn(words, stacklevel=2)
        check_count(n, "n")
        share = recommend.check_share(taste)
        chosen = candidates
        if chosen is not None:
            chosen = np.unique(columns_of(chosen, self._catalogue_, n_items, "candidates", ids=ids))
        nobody, pattern = answers.excluded(exclude, self._catalogue_, R.shape, ids=ids)
        pattern = pattern if down is None else recommend.union_of(down, pattern)
        if nobody is not None:
            chosen = np.setdiff1d(np.arange(n_items) if chosen is None else chosen, nobody)
        n = min(int(n), n_items)
        if chosen is not None and not chosen.size:
            best, scores = np.full((R.shape[0], n), -1), np.full((R.shape[0], n), -np.inf)
        else:
            options = {"exclude_seen": exclude_seen, "exclude": pattern, "items": chosen}
            best, scores = self._top_items(R, n, taste=share, **options)
        if not self._answers_by_table:
            return best, scores
        lead = {"user": answers.row_labels(X, len(best))}
        return list_table(self._output, lead, best, {"score": scores}, self._catalogue_)

    def explain(self, X: Any, items: Any) -> Any:
        """Say which of a user's own items argue for a recommendation, and how much.

        Scores of `recommend` are a constant of the item, for the weights that the row gets, and a
        part for each item that the user has rated. They follow from the model and the row, and cost
        no budget.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix, RatingMatrix} of shape (n_users, n_items)
            Known ratings of any users, also as ``{item: rating}``.
        items : item or array-like of items, shape (n_users,)
            The item to explain, the same for all or one for each user; named as in `recommend`.

        Returns
        -------
        csr_array of shape (n_users, n_items)
            At the known ratings of each row, what they add to the score of that row's item:
            positive ones argue for it, negative ones against it. Where answers are tables, one
            with the columns user, for (the explained id), why, rank, item, title (where known) and
            contribution, the strongest argument first; a row without ratings has one line, without
            an item. "why" says what lists the explained item:
            "popular with everybody", "chosen by people with your taste", "you rated Horror high"
            (a label of its genres, or of the columns of `item_features`), or several of them.

        Raises
        ------
        {errors}
            Or if `items` names no items of X, one or as many as there are rows.

        Examples
        --------
        {model}
        >>> model.explain(X, model.recommend(X, n=1)[0][:, 0]).shape
        (2, 3)
        """
        check_is_fitted(self, "_item_model_")
        catalogue, ids = self._catalogue_, names_items(X) or self._answers_by_table
        X = labelled_rows(X, catalogue, self.n_features_in_)[0]
        R = self._check_ratings(X)[0]
        asked = columns_of(items, catalogue, R.shape[1], "items", ids=ids)
        if asked.size not in (1, R.shape[0]):
            raise ValueError(
                f"items has {asked.size} entries and must be one item, or one for each of the "
                f"{R.shape[0]} rows of X: for several items of one user repeat the row."
            )
        asked = np.broadcast_to(asked, R.shape[:1])
        with sized(R.shape[0] * ANSWER_WORK):
            each = self._contributions(R, asked)
        parts = sparse.csr_array((each, R.indices, R.indptr), R.shape)
        if not self._answers_by_table:
            return parts
        lead = {"user": answers.row_labels(X, len(asked)), "for": named(asked, catalogue)["item"]}
        lead["why"] = answers.reasons(self, R, asked, each)
        lists = answers.strongest(parts)
        return list_table(self._output, lead, *lists, catalogue, each_row=True)

    def _contributions(self, R: Any, items: np.ndarray) -> np.ndarray:
        """Return the part of each known rating in the ranking score of its row's item."""
        given = self._ranking_, self._item_model_, R, items, self._score_table()
        return recommend.ranking_contributions(*given)

    def _set_ranking(self, lists: Any, log_popularity: np.ndarray) -> None:
        self._ranking_ = recommend.ranking_of(lists, log_popularity, self.rating_range)

    def similar_items(self, items: Any, n: int = 10) -> Any:
        """Find the nearest items by the Tanimoto similarity of their released factors.

        Where a fit on ratings has lists by choice (`AdaptiveWeightALS`), the factors are those of
        the lists: items that the same users choose are near. The similarity is ``<a, b> / (|a|^2 +
        |b|^2 - <a, b>)``: a cosine that also compares lengths, so that the noise in a rare item's
        short vector does not make it everyone's neighbour.

        Parameters
        ----------
        items : item or array-like of items, shape (n_queries,)
            Columns, or ids where the model knows them, as in `recommend`.
        n : int, default=10
            Neighbours for each, at least 1; more than there are items means all of them.

        Returns
        -------
        items : int64 ndarray of shape (n_queries, min(n, n_items)), or 1-D for a single int
            Column indices of the neighbours, nearest first, without the item itself. -1 where
            none is left, and throughout where the model has no factors (``n_components_`` is 0).
        scores : float64 ndarray of the same shape
            Similarities, of columns of ``components_`` unless there are lists, at most 1; 0 if one
            is zero, -inf where `items` is -1. Where answers are tables both come as one, with the
            columns to (the id asked for), rank, item, title (where known) and score.

        Raises
        ------
        ValueError
            If an item is not in the catalogue or `n` is no integer >= 1.
        sklearn.exceptions.NotFittedError
            Before `fit`.

        Examples
        --------
        >>> from skdpmf import CacheSGDFactorizer, DPItemMeans, PrivacyBudget
        >>> X = np.array([[5.0, 1.0, np.nan], [4.0, np.nan, 3.0]])
        >>> model = CacheSGDFactorizer(2, alpha=0.05).fit(X)
        >>> sorted(model.similar_items(0, n=2)[0].tolist())
        [1, 2]
        >>> DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(X).similar_items(0, n=2)[0]  # no factors
        array([-1, -1])
        """
        check_is_fitted(self, "components_")
        check_count(n, "n")
        n_items, catalogue = self.components_.shape[1], self._catalogue_
        queries = columns_of(items, catalogue, n_items, "items", ids=self._answers_by_table)
        n = min(int(n), self.n_features_in_)
        components, has_factors = ScoreTable(self.components_), bool(self.n_components_)
        if self._ranking_ is not None and self._ranking_.lists.factors.shape[1]:
            none = np.empty((0, n_items))
            components = self._score_table()._replace(first=none, floor=none[:, 0])
            has_factors = True
        if has_factors:
            nearest, scores = recommend.nearest_items(components, queries, n)
        else:
            nearest = np.full((queries.size, n), -1, np.int64)
            scores = np.full(nearest.shape, -np.inf)
        if self._answers_by_table:
            lead = {"to": named(queries, catalogue)["item"]}
            return list_table(self._output, lead, nearest, {"score": scores}, catalogue)
        return (nearest, scores) if np.ndim(items) else (nearest[0], scores[0])

    @property
    def catalogue_(self) -> Any:
        """The items: a DataFrame with a row for each column of X, in its order.

        ``item`` is the id, the number of the column where none is known; ``title`` and ``genres``
        are there where they are known. Ids are those of a RatingMatrix, of a DataFrame, of ratings
        on disk or of a file.
        """
        check_is_fitted(self, "_item_model_")
        catalogue = self._catalogue_ or Catalogue(range(self.n_features_in_))
        return catalogue.frame()

    def score(self, X: Any, y: Any = None) -> float:
        """Score the predictions for users whose known ratings are X; higher is better.

        Parameters
        ----------
        {X}
        y : None, array-like of shape (n_users,) or matrix of shape (n_users, n_items)
            Held-out items or ratings of these users. A matrix: minus the RMSE of the predictions
            at its known entries. 1-D: the share of users whose best unseen item it is (index or
            name); negative indices, "" and missing values are users without a held-out item and
            do not count. None: minus the RMSE at a fifth of each row of X, hidden before the
            fold-in. The hidden fifth is the same at every call.

        Returns
        -------
        float
            In rating units (at most 0), or a rate in [0, 1]. Exact, hence private as X and y are.

        Raises
        ------
        {errors}
            Or if the shape of y does not fit, it names an item beyond the columns of X, or there is
            nothing to score on.

        Examples
        --------
        {model}
        >>> model.score(X, y=np.array([2, 1]))  # the unseen
        1.0
        """
        R, down = self._rows(X)
        kind = answers.kind_of(y, R.shape, self._catalogue_)
        if kind in ("index", "name"):
            best = self._best_unseen(R, down)
            return answers.hit_rate(best if kind == "index" else self._names(best), y, R.shape[1])
        if kind == "matrix":
            y = answers.in_order(y, self._catalogue_, R.shape[1], "y")
            held_out = held_out_ratings(y, self._value_range)
            return self._score_at(R, held_out, "y has no known rating")
        hidden = recommend.hidden_fifth(R)
        remedy = f"y=None and X has too few ratings ({R.nnz}) to hide a fifth of them"
        return self._score_at(keep_entries(R, ~hidden), keep_entries(R, hidden), remedy)

    def with_items(self, item_features: Any, titles: Any = None) -> Any:
        """Return the model with new items, which have features and no ratings.

        The items are appended to the catalogue as its last columns. Each gets what the released
        model says of items with such features, by a linear regression of the released items on
        their features. This is post-processing: it costs no budget and reads no ratings.

        Parameters
        ----------
        item_features : {array-like, sparse matrix, DataFrame} of shape (n_new, d)
            Their features, with the meaning and order of those of `fit`. A DataFrame's index are
            the new items' ids, which a model with ``feature_names_in_`` needs; others know no names
            any more without them.
        titles : sequence of str of length n_new, default=None
            Their titles, where the model knows titles. None: the ids.

        Returns
        -------
        estimator
            A copy, fitted, of ``n_features_in_`` + n_new items. Its ``item_features`` are None: it
            is not meant for another `fit`.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ValueError
            If the model was fitted without `item_features`, these have another number of columns or
            are not finite, or a name is missing or not new.

        Examples
        --------
        >>> from skdpmf import DPItemMeans, PrivacyBudget
        >>> from skdpmf.data import make_ratings
        >>> X, genre = make_ratings(500, 40, random_state=0), np.arange(40)[:, None] % 2
        >>> model = DPItemMeans(PrivacyBudget(4.0, 1e-5), item_features=genre).fit(X)
        >>> model.with_items([[1.0], [0.0]]).item_means_.shape
        (42,)
        """
        check_is_fitted(self, "_item_model_")
        return with_items(self, item_features, titles)

    def _item_weights(self) -> np.ndarray:
        """How well each item is known, for what is said of new ones."""
        return np.ones(self._item_model_.offsets.size)

    def _set_items(self, items: ItemModel) -> None:
        """Set the item model, and what is part of it."""
        k, width = len(self.components_), items.factors.shape[1]
        self._item_model_ = items
        self.components_ = np.array(items.factors[:, width - k :].T, order="C")
        self.n_features_in_ = items.offsets.size
        if hasattr(self, "item_means_"):
            self.item_means_ = items.offsets

    def save(self, path: Any, *, catalogue: Any = None) -> None:
        """Write the released model to a file; `skdpmf.load_model` reads it, from anyone, safely.

        Saved is what is released and no more: the items' side of the model, ``privacy_spent_``
        with its card, the catalogue, and the parameters but for ``random_state``, ``n_jobs``, the
        budget's ledger, ``snapshots`` and ``item_features``, of which the columns that `fit`
        made are saved. Nothing of a user is in it, of `CacheSGDFactorizer` neither, whose items
        depend on single ratings all the same.

        Parameters
        ----------
        path : str or path-like
            The file. A file that is there is replaced, in one step, and its mode kept.
        catalogue : DataFrame or dict, default=None
            Ids and titles of the columns of X, one row each in their order: ``"item"`` (numbers or
            strings) and, where they are known, ``"title"`` and ``"genres"`` (texts such as
            ``"Comedy|Drama"``). None: ``catalogue_``, where ids are known.

        Raises
        ------
        ModelFileError
            If the catalogue does not fit X or holds control characters, or the model is of another
            class than those of this package or was changed by hand.
        OSError
            If the file cannot be written, or `path` is a link, a pipe, a device or a folder.
        sklearn.exceptions.NotFittedError
            Before `fit`.

        Examples
        --------
        {model}
        >>> import tempfile
        >>> from skdpmf import load_model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/items.skdpmf")
        ...     loaded = load_model(f"{folder}/items.skdpmf")
        >>> bool((loaded.predict(X) == model.predict(X)).all())
        True
        """
        save_model(self, path, catalogue)

    def _check_ratings(self, X: Any, *, reset: bool = False) -> tuple[Any, np.dtype]:
        """Canonical ratings, clipped, and the floating type of X."""
        if not reset:
            check_is_fitted(self, "_item_model_")
        bounds = self._value_range
        warns = reset and bounds is self.rating_range and active_recorder() is None
        warns = warns and client_of(X) is None  # whose workers look
        own = {"rating_range": bounds, "warns": warns, "stored": True}
        return check_ratings(self, X, reset=reset, **own)

    def _rows(self, X: Any) -> tuple[Any, Any]:
        """Canonical ratings that are used, and a pattern of what the rows never get, or None."""
        return self._check_ratings(X)[0], None

    def _scores(self, R: Any) -> np.ndarray:
        return recommend.all_scores(self._item_model_, R, self.n_jobs)

    def _entry_scores(self, R: Any, where: Any) -> np.ndarray:
        return np.asarray(recommend.entry_scores(self._item_model_, R, where, self.n_jobs))

    def _top_items(self, R: Any, n: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        options |= {"n_jobs": self.n_jobs, "ranking": self._ranking_, "table": self._score_table()}
        return recommend.top_items(self._item_model_, R, n, **options)

    def _score_table(self) -> ScoreTable:
        """Return the `score_table` of the model, which is kept for the next answer."""
        if self._table_ is None:
            self._table_ = []
        kept, model, ranking = self._table_, self._item_model_, self._ranking_
        if not kept or kept[0][0] is not model or kept[0][1] is not ranking:
            kept[:] = [(model, ranking, recommend.score_table(model, ranking))]
        return kept[0][2]

    def _predict_entries(self, R: Any, where: Any) -> Any:
        ratings = self._entry_scores(R, where)
        np.clip(ratings, *self._value_range, out=ratings)
        return sparse.csr_array((ratings, where.indices, where.indptr), shape=where.shape)

    def _best_unseen(self, R: Any, down: Any) -> np.ndarray:
        return self._top_items(R, 1, exclude=down)[0][:, 0]

    def _names(self, items: np.ndarray) -> np.ndarray:
        assert self._catalogue_ is not None
        return np.append(np.asarray(self._catalogue_.items, dtype=object), "")[items]

    def _score_at(self, known: Any, hidden: Any, problem: str) -> float:
        """Score at the stored entries of `hidden`; higher is better."""
        if hidden.nnz == 0:
            raise ValueError(f"{problem}, so there is nothing to score on: pass held-out y.")
        return self._score_entries(known, hidden)

    def _score_entries(self, known: Any, hidden: Any) -> float:
        predicted = self._predict_entries(known, hidden)
        return -float(np.sqrt(np.mean((predicted.data - hidden.data) ** 2)))

    @property
    def n_components_(self) -> int:
        """Factors in use: rows of ``components_`` that are not all zero."""
        check_is_fitted(self, "components_")
        return int((self.components_ != 0).any(axis=1).sum())

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: [] if name == "_table_" else value for name, value in state.items()}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
