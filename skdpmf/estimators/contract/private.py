"""What the private estimators share beyond the contract: plan, scale, key and released model."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from skdpmf.data.bounding import keep_entries
from skdpmf.data.matrix import RatingMatrix
from skdpmf.data.scale import in_quarter_ranges, middle_and_quarter
from skdpmf.distributed.exchange import Exchange
from skdpmf.estimators.contract.base import BaseRecommender, ItemModel
from skdpmf.estimators.contract.fitting import (
    charged,
    is_stored,
    note_items,
    release_on_blocks,
    state_of,
)
from skdpmf.estimators.contract.parameters import is_count, require, require_budget, shape_of
from skdpmf.estimators.contract.recommend import Ranking, recall
from skdpmf.estimators.contract.resources import estimate_resources
from skdpmf.mechanisms.gram.item_item import Lists
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator import Curator, as_made
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement

__all__ = ["PrivateRecommender"]

_N_RANKED = 20  # of the recall that scores clicks
# Of a quarter range of the predicted rating in a ranking score, in shares of users who choose a
# typical item.
_RATING_WEIGHT = 0.25


class PrivateRecommender(BaseRecommender):
    """A recommender that spends a `budget`; a subclass has `_make_plan`, `_release` and `_publish`.

    Solvers work in quarters of the rating range, from its middle. Where joblib is configured for a
    backend of processes, blocks of users are spread over them (`skdpmf.distributed`).
    """

    budget: PrivacyBudget
    item_means_: np.ndarray
    privacy_spent_: PrivacyStatement
    feedback: Any = "explicit"  # a parameter of those that take clicks too

    @abstractmethod
    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        """Plan for checked parameters."""

    @abstractmethod
    def _release(self, R: Any, plan: ReleasePlan, exchange: Exchange, **metadata: Any) -> Any:
        """Make all releases of prepared ratings; return what `_publish` takes, and the record.

        It runs on every block of users and must not change the estimator.
        """

    @property
    def _implicit(self) -> bool:
        return not isinstance(self.feedback, str) or self.feedback == "implicit"

    @property
    def _value_range(self) -> Any:
        return (0.0, 1.0) if self._implicit else self.rating_range

    def _used(self, R: Any) -> Any:
        return _clicks_of(R) if self._implicit else R

    def _score_at(self, known: Any, hidden: Any, problem: str) -> float:
        return super()._score_at(known, _clicks_of(hidden) if self._implicit else hidden, problem)

    def _score_entries(self, known: Any, hidden: Any) -> float:
        if not self._implicit:
            return super()._score_entries(known, hidden)
        return recall(hidden, self._top_items(known, _N_RANKED)[0])

    def _prepared(self, R: Any) -> Any:
        """Canonical ratings as the solver wants them."""
        return R if self._implicit else in_quarter_ranges(R, self.rating_range)

    @abstractmethod
    def _publish(self, plan: ReleasePlan, released: Any) -> None:
        """Set the fitted attributes."""

    @property
    def _only_sums(self) -> bool:
        """Whether all that is released are sums over users, so that blocks of them may be apart."""
        return True

    def _fit(self, R: Any, y: Any, **metadata: Any) -> None:
        plan = self._make_plan(R.shape[1], R.shape[0])
        released, record = release_on_blocks(self, R, plan, metadata)
        self._publish(as_made(plan, record), released)

    def _check_ratings(self, X: Any, *, reset: bool = False) -> tuple[Any, np.dtype]:
        if is_stored(X):
            note_items(self, X, reset=reset)
            return X, np.dtype(np.float64)
        return super()._check_ratings(X, reset=reset)

    def plan(
        self,
        n_items: int,
        n_rows: int | None = None,
        *,
        n_ratings: int | None = None,
        n_workers: int = 1,
    ) -> ReleasePlan:
        """Tell what `fit` would release, with which noise, for which share of the budget.

        Parameters
        ----------
        n_items : int
            Size of the catalogue, the columns of X.
        n_rows : int, default=None
            Number of rows of X, where the plan depends on it.
        n_ratings : int, default=None
            Number of ratings, if what the fit takes is to be estimated too, for which n_rows is
            needed. Trial fits on synthetic ratings then take some seconds.
        n_workers : int, default=1
            Processes that hold the ratings, for the estimate.

        Returns
        -------
        ReleasePlan
            The releases, and with n_ratings the `FitResources` as ``resources``. No data is touched
            and no budget is spent.

        Raises
        ------
        ValueError
            If a parameter is invalid, or the budget cannot be met.

        Examples
        --------
        >>> from skdpmf import DPItemMeans
        >>> plan = DPItemMeans(PrivacyBudget(4.0, 1e-5)).plan(n_items=40)
        >>> [release.name for release in plan.releases]
        ['global effects', 'item counts', 'item residuals']
        """
        self._check_params()
        require(is_count(n_items), "n_items", n_items, "an integer >= 1", "pass X.shape[1]")
        if n_rows is not None:
            require(is_count(n_rows), "n_rows", n_rows, "an integer >= 1", "pass X.shape[0]")
            n_rows = int(n_rows)
        plan = self._make_plan(int(n_items), n_rows)
        if n_ratings is None:
            return plan
        remedy = "pass n_rows too, and numbers of ratings and workers"
        for name, value in (("n_rows", n_rows), ("n_ratings", n_ratings), ("n_workers", n_workers)):
            require(is_count(value), name, value, "an integer >= 1 with n_ratings", remedy)
        holds = n_workers == 1 or (self.budget.is_private and self._only_sums)
        rule = "1 where more than noisy sums over users is released"
        require(holds, "n_workers", n_workers, rule, "leave it out")
        sizes = int(n_items), int(n_rows or 1), int(n_ratings), int(n_workers)
        return replace(plan, resources=estimate_resources(self, plan, *sizes))

    def _fit_rows(self, X: Any, y: Any, **metadata: Any) -> Any:
        """`fit`; a ledger is charged before X is looked at, but for its shape."""
        self._check_params()
        is_matrix = isinstance(X, RatingMatrix)
        undeclared = X.undeclared if is_matrix or is_stored(X) else ()
        self._features_ = self._columns_of(X)
        X = X.X if is_matrix else X
        if self.budget.ledger is not None:
            self._check_metadata(shape_of(X)[0], **metadata)
        with charged(self, X, **metadata) as shape:
            super()._fit_rows(X, y, shape=shape, features=self._features_, **metadata)
        self.privacy_spent_ = self.privacy_spent_.with_undeclared(undeclared)
        return self

    def _check_metadata(self, n_rows: int, **metadata: Any) -> None:
        """Check what belongs to the rows and is public, before it costs anything."""

    def _state(self, plan: ReleasePlan, **more: Any) -> None:
        """Set the statement."""
        self.privacy_spent_ = state_of(self, plan, **more)

    def _noise(
        self, exchange: Exchange, plan: ReleasePlan, settings: Any, R: Any, *aligned: Any
    ) -> Any:
        text = f"{type(self).__name__} {settings!r} {self.rating_range!r} {plan!r}"
        if self._features_ is not None:
            text += f" {self._features_.digest}"
        return exchange.noise(self.random_state, text, R, *aligned)

    def _curator(self, R: Any, plan: ReleasePlan, noise: Any) -> Curator:
        """Return the curator of prepared ratings, who knows what is public of the items."""
        columns = None if self._features_ is None else self._features_.values
        return Curator(R, plan, noise, self.n_jobs, item_columns=columns)

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
        self._item_model_ = ItemModel(
            self.item_means_, np.ascontiguousarray(columns), np.diag(penalty)
        )

    def _set_columns(
        self, means: np.ndarray, columns: np.ndarray, ridge: np.ndarray, prior: np.ndarray
    ) -> None:
        """Set the released model y ~ m_j + z_i . columns_j, z_i with a prior mean; as above.

        The last columns, for which there is a component each, are the factors.
        """
        middle, unit = middle_and_quarter(self.rating_range)
        self.item_means_ = middle + unit * means
        factors = np.ascontiguousarray(unit * columns)
        prior = prior.copy()
        prior[1:] /= unit  # of means of columns
        self._item_model_ = ItemModel(self.item_means_, factors, unit**2 * ridge, prior=prior)

    def _set_ranking(self, lists: Lists | None) -> None:
        """Rank ratings by what people choose, and by predicted ratings beside it."""
        self._ranking_ = None
        if lists is not None:
            unit = middle_and_quarter(self.rating_range)[1]
            weight = _RATING_WEIGHT * lists.scale / unit
            self._ranking_ = Ranking(item_item_model(lists, implicit=False), weight)

    def _check_params(self) -> None:
        super()._check_params()
        require_budget(self.budget)


def item_item_model(lists: Lists, *, implicit: bool) -> ItemModel:
    """Return the model of released lists."""
    factors, encoder = (np.ascontiguousarray(part) for part in (lists.decoder, lists.encoder))
    ridge = np.empty((0, 0))
    return ItemModel(lists.offsets, factors, ridge, implicit=implicit, encoder=encoder)


def _clicks_of(R: Any) -> Any:
    """Entries above 0: what is 0 or clipped to it is no click."""
    return keep_entries(R, R.data > 0.0)
