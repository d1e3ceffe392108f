"""A recommender that spends a budget: its plan, its refreshes, and its released model."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from skdpmf.data.matrix import keep_entries
from skdpmf.data.validation import check_ratings, in_quarter_ranges, middle_and_quarter
from skdpmf.estimators.contract import refreshed
from skdpmf.estimators.contract.base import BaseRecommender, ItemModel
from skdpmf.estimators.contract.charged import Fit, charged, fit_framed
from skdpmf.estimators.contract.parameters import PrivatePlanner, require
from skdpmf.estimators.contract.public import public_of
from skdpmf.estimators.contract.recommend import recall
from skdpmf.mechanisms.als.pooled import PooledModel
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator

_N_RANKED = 20  # of the recall that scores clicks


class PrivateRecommender(PrivatePlanner, BaseRecommender):
    """A recommender that spends a `budget`; it sees public settings and released values.

    A subclass has `_make_plan`, `_settings_of`, `_release` and `_publish`.
    Solvers work in quarters of the rating range, from its middle. Ratings
    may be in a Dask cluster (`skdpmf.estimators.contract.cluster`).
    """

    item_means_: np.ndarray
    _reports: str | None = None  # by what it draws that releases no sums: "noise" or "key"
    _knowledge_: Any = None  # what a refresh starts from, where there is one

    @abstractmethod
    def _settings_of(self, n_items: int) -> Any:
        """Return the mechanism's public settings, which their repr shows in full."""

    def _release(self, curator: Curator, settings: Any, **more: Any) -> Any:
        """Make all releases; return what `_publish` takes. Devices report instead.

        more: ``known``, where a refresh starts; ``levels`` of privacy; ``public``, a csr_array of
        prepared public rows, or a `PublicModel`.
        """

    def _check_ratings(self, X: Any, *, reset: bool = False) -> tuple[Any, np.dtype]:
        if not self._implicit:
            return super()._check_ratings(X, reset=reset)
        if not reset:
            check_is_fitted(self, "_item_model_")
        R, dtype = check_ratings(self, X, reset=reset, stored=True)
        return R if reset else self._prepared(R), dtype

    def _rows(self, X: Any) -> tuple[Any, Any]:
        if not self._implicit:
            return super()._rows(X)
        check_is_fitted(self, "_item_model_")
        R = check_ratings(self, X, reset=False)[0]  # not clipped: signs count
        n, down = np.diff(R.indptr), R.data <= 0.0
        if hasattr(X, "__array__") or isinstance(X, list):
            # a dense row with a value in every column, as of 0 and 1, says nothing by its zeros
            down &= (R.data < 0.0) | np.repeat(n < R.shape[1], n)
        return self._prepared(R), keep_entries(R, down) if down.any() else None

    def _score_at(self, known: Any, hidden: Any, problem: str) -> float:
        return super()._score_at(known, _clicks_of(hidden) if self._implicit else hidden, problem)

    def _score_entries(self, known: Any, hidden: Any) -> float:
        if not self._implicit:
            return super()._score_entries(known, hidden)
        return recall(hidden, self._top_items(known, _N_RANKED)[0])

    def _prepared(self, R: Any) -> Any:
        """Canonical ratings as the solver wants them; of clicks, not clipped, their weights."""
        function, *public = self._preparation()
        return function(R, *public)

    def _preparation(self) -> tuple[Any, ...]:
        """Return a function of rows, per user, and its other arguments."""
        if self._implicit:
            return click_weights, self._chosen("feedback").weighting
        return in_quarter_ranges, self.rating_range

    @abstractmethod
    def _publish(self, released: Any) -> None:
        """Set the fitted attributes."""

    def _fit(self, R: Any, y: Any, fit: Any = None, **metadata: Any) -> None:
        fit_framed(self, R, fit, self._levels(**metadata))

    def refresh(
        self,
        X_new: Any,
        *,
        budget: PrivacyBudget | None = None,
        rows: str = "new",
        people: str = "any",
    ) -> Any:
        """Fit on the rows of new people, starting from what this model's fit has released.

        Released values of earlier fits are public, and cost nobody again; the people of X_new pay
        the budget of the refresh, and nobody else pays anything. For every row each release has the
        plan's sensitivity, whatever the fit starts from; `skdpmf.mechanisms.knowledge` has the
        proof, also over all refreshes. Noise does not shrink as if everybody were in one fit: T
        cohorts alike know what one fit on all of them with mu / sqrt(T) knows.

        Parameters
        ----------
        X_new : {DataFrame, RatingMatrix, array-like, sparse matrix} of shape (n_new_users, n)
            Ratings of new people, or of people who come again (`people`, `rows`). Names put columns
            in order, items that the model does not know are appended, and items that X_new lacks
            are kept; without names the columns are the model's.
        budget : PrivacyBudget, default=None
            Budget of this refresh, of the same unit, with delta > 0 if and only if that of the fit
            had one. None: that of the fit, once more, for these people.
        rows : {"new", "whole"}, default="new"
            What X_new holds of people who come again. "new": only what no earlier fit had. "whole":
            all of their ratings. Either is clipped as one row, so that it moves each release by
            the plan's sensitivity at most, and costs the same. What they gave before stays in the
            released sums, from which nobody can be taken out: of whole rows it counts twice in the
            model. The notes of the statement say which it was.
        people : {"any", "new"}, default="any"
            Who is in X_new. "any": there may be people of earlier fits, so that the statement adds
            up what these and the refresh spend. "new": nobody is, as you know; the statement is for
            the people of X_new, and assumes so. (At unit "rating" it is about their ratings.) With
            a ledger by person, which counts everybody's fits, it does not matter.

        Returns
        -------
        estimator
            A new fitted estimator with these parameters; this one is as it was. Its
            ``privacy_spent_`` says whose epsilon it states.

        Raises
        ------
        ValueError
            If the model keeps nothing for a refresh, the budget is of another kind, `rows` or
            `people` is neither, the model's statement leaves out people of earlier fits, so that
            nothing can be added to it, or the columns of X_new are not the model's, in whole or in
            part.
        skdpmf.exceptions.BudgetExceededError
            If a ledger has too little left.
        sklearn.exceptions.NotFittedError
            Before `fit`.

        Examples
        --------
        >>> from skdpmf import DPItemMeans
        >>> from skdpmf.data import make_ratings
        >>> X = make_ratings(1000, 40, random_state=0)
        >>> model = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(X[:500])
        >>> model.refresh(X[500:], people="new").privacy_spent_.epsilon <= 4.0
        True
        >>> round(model.refresh(X[500:]).privacy_spent_.epsilon, 1)  # if somebody is in both
        6.0
        """
        check_is_fitted(self, "_item_model_")
        budget = self.budget if budget is None else budget
        remedy = "use 'new' unless earlier participants bring old ratings again"
        require(rows in ("new", "whole"), "rows", rows, "'new' or 'whole'", remedy)
        remedy = "use 'any' unless nobody in X_new was in an earlier fit"
        require(people in ("any", "new"), "people", people, "'any' or 'new'", remedy)
        refreshed.check_refreshable(self, budget)
        adds_up = people == "any" and not refreshed.is_by_person(budget)
        if adds_up:
            refreshed.check_addable(self.privacy_spent_, budget)
        X, catalogue, n_new = refreshed.in_model_columns(X_new, self)
        model = clone(self).set_params(budget=budget)
        start = None
        if self._knowledge_.exposure.any():
            known = self._knowledge_.with_items(n_new), self._features_
            public = tuple(a for a in self.privacy_spent_.assumptions if "people are public" in a)
            start = refreshed.Start(*known, rows, people, public)
            lost = public and self._implicit and model.public is None
            rule = "the clicks of the model's public people, as no file has them"
            require(not lost, "public", None, rule, "set_params(public=rows), or rows[:0] for none")
        model._fit_rows(X, None, start)
        if adds_up:
            refreshed.add_up(self, model)
        model._target_kind, model._catalogue_ = self._target_kind, catalogue
        vars(model).pop("feature_names_in_", None)
        if hasattr(self, "feature_names_in_"):
            names = self.feature_names_in_ if catalogue is None else catalogue.items
            model.feature_names_in_ = np.array(names, dtype=object)
        return model

    @contextmanager
    def _framed(self, X: Any, R: Any, start: Any, metadata: Any) -> Iterator[Any]:
        if start is not None:
            self._check_start(start.known)
        self._check_metadata(R.shape[0], **metadata)
        # a refresh starts from what knows them already; matrices of clicks are the private people's
        is_new = start is None or self._implicit
        public = public_of(self, X, R.shape[1]) if is_new else None
        with charged(self, X, R, Fit(self._features_, start, public)) as fit:
            yield {"fit": fit}

    def _check_start(self, known: Any) -> None:
        """Check the parameters against what a refresh starts from."""

    def _check_metadata(self, n_rows: int, user_epsilon: Any = None) -> None:
        """Check what belongs to the rows and is public, before it costs anything."""

    def _levels(self, user_epsilon: Any = None) -> np.ndarray | None:
        """Return what belongs to the rows as checked privacy levels."""
        return None

    def _terms(self, released: Any) -> dict[str, Any]:
        """Return what the statement says beside the releases: arguments of `Frame.statement`."""
        return {}

    def _set_model(
        self, means: np.ndarray, factors: np.ndarray, ridge: float, offset_ridge: float | None
    ) -> None:
        """Set the released model: y ~ m_j + o_i + u_i . v_j, in quarter ranges.

        ``ridge`` is the penalty on u_i, ``offset_ridge`` on o_i; None: the model has no o_i.
        """
        middle, unit = middle_and_quarter(self.rating_range)
        self.components_ = unit * factors.T
        self.item_means_ = middle + unit * means
        penalty = np.full(factors.shape[1], unit**2 * ridge)
        columns = self.components_.T
        if offset_ridge is not None:
            columns = np.column_stack((np.ones(len(columns)), columns))
            penalty = np.concatenate(([offset_ridge], penalty))
        columns = np.ascontiguousarray(columns)
        self._item_model_ = ItemModel(self.item_means_, columns, np.diag(penalty))

    def _set_columns(self, released: PooledModel) -> None:
        """Set the released model y ~ m_j + z_i . columns_j, z_i with a prior mean; as above.

        The last columns, for which there is a component each, are the factors.
        """
        middle, unit = middle_and_quarter(self.rating_range)
        means, columns, ridge, item_ridge, prior = released[:5]
        self.item_means_ = middle + unit * means
        factors = np.ascontiguousarray(unit * columns)
        prior = prior.copy()
        prior[1:] /= unit  # of means of columns
        self._item_model_ = ItemModel(
            *(self.item_means_, factors, unit**2 * ridge),
            prior=prior if prior.any() else None,
            item_ridge=unit**2 * item_ridge if item_ridge.any() else None,
        )


def _clicks_of(R: Any) -> Any:
    """Entries above 0: what is 0 or less is no click."""
    return keep_entries(R, R.data > 0.0)


def click_weights(R: Any, weighting: str | None) -> Any:
    """Return the weights in (0, 1] of canonical clicks, each a function of its row alone.

    `skdpmf.Clicks` has the formulas; sums bound each row whatever the weights are.
    """
    clicks = _clicks_of(R)
    if weighting != "log" or not clicks.nnz:
        clicks.data = np.minimum(clicks.data, 1.0)
        return clicks
    size, n = np.log1p(clicks.data), np.diff(clicks.indptr)
    most = np.maximum.reduceat(size, clicks.indptr[:-1][n > 0])
    clicks.data = 0.5 + 0.5 * size / np.repeat(most, n[n > 0])
    return clicks
