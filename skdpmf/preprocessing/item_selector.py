r"""DPItemSelector: keep the items that are popular by noisy weighted counts, of this sensitivity.

.. math:: N_j = \sum_i w_i\, e_{ij}, \qquad e_{ij} = 1 \text{ if user i rated item j, else } 0.

User i has n_i items, duplicates merged. The weight w_i depends on n_i alone, so that one user's
terms say nothing about another's:

- unit "user": :math:`w_i = n_i^{-1/2}` ("l2", for Gaussian noise) or :math:`w_i = n_i^{-1}`
  ("l1", for Laplace noise), 0 for an empty row;
- unit "rating": w_i = 1.

**Sensitivity**, with the norm over all items of the catalogue:

===================  =============  ==========================
unit                 "add-remove"   "replace"
===================  =============  ==========================
"user" and "rating"  1              l1: 2, l2: :math:`\sqrt 2`
===================  =============  ==========================

*Proof, one user.* The terms x_j = w_i e_ij have
:math:`|x|_2^2 = n_i w_i^2 = 1`, or :math:`|x|_1 = n_i w_i = 1`. Against the empty row that is the
distance. Against another row x', :math:`|x - x'|_1 \le |x|_1 + |x'|_1 = 2`, and
:math:`|x - x'|_2^2 = |x|^2 + |x'|^2 - 2 \langle x, x' \rangle \le 2`, as no term is negative.
Attained by users without common items. *One rating.* A cell that comes or goes changes one count
by 1. "Replace" empties a cell and fills one: two counts change by 1, or one by 1 twice, up and
down again. QED.

The bound on n_i is the catalogue: nothing has to be capped, and capping before (at unit "user")
changes no sensitivity, as a user's kept items are a function of that user's row and slot.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from skdpmf.data.labelled_rows import RatingMatrix, labelled_rows
from skdpmf.data.validation import check_ratings
from skdpmf.estimators.contract import parameters as check
from skdpmf.estimators.contract.charged import Fit, charged, fit_framed
from skdpmf.estimators.contract.progress import SpentDisplay, one_at_a_time
from skdpmf.preprocessing.bounder import RatingStep, dense_of
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import BoundedSum, item_scalars, scalars_bound
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.other_sums import rating_sums, ratings_bound
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import Rows

_COUNTS = "item counts"
_INSIDE = 1.0 - 2.0**-40  # rounded, the weights of a user must not exceed the bound


@dataclass(repr=False, eq=False)
class DPItemSelector(  # type: ignore[call-arg]
    check.OptionParameters,
    SpentDisplay,
    RatingStep,
    SelectorMixin,
    BaseEstimator,
    auto_wrap_output_keys=None,
):
    r"""Keep the columns of the most popular items, by counts that are released with noise.

    `fit` makes one release, the weighted counts of all items of the catalogue,

    .. math:: N_j = \sum_i w_i\, e_{ij}, \qquad e_{ij} = 1 \text{ if user i rated item j, else } 0,

    and all else follows from it: the items of the largest N_j stay, of equal ones that of the
    smaller column. With n_i the number of user i's items, the weights and the sensitivity over all
    items to a change of one unit are

    - unit "user", delta > 0: :math:`w_i = n_i^{-1/2}`, l2 sensitivity 1, Gaussian noise;
    - unit "user", delta = 0: :math:`w_i = n_i^{-1}`, l1 sensitivity 1, Laplace noise;
    - unit "rating": :math:`w_i = 1`, sensitivity 1 in either norm.

    For ``neighbors="replace"`` it is :math:`\sqrt 2` in l2 and 2 in l1. *Proof:* a user's terms
    have :math:`n_i w_i^2 = 1`, or :math:`n_i w_i = 1`, and none is negative; a rating's one term
    is 1. In full in `skdpmf.preprocessing.item_selector`. No cap on n_i is needed.

    Parameters
    ----------
    budget : PrivacyBudget
        Budget of the fit, and its unit, "user" or "rating". Usually a part of a whole
        (`PrivacyBudget.split`), such as a tenth: counts need little.
    n_items : int or float, default=0.5
        Most items to keep: their number, at least 1 and at most the columns of X, or their share
        of the columns, in (0, 1], rounded up. Public.
    min_signal : float or None, default=None
        If given, items whose noisy count is not above so many standard deviations of its noise go
        as well; the most popular one always stays. The number that stay is then random: it follows
        from the noisy counts and costs nothing more.
    random_state : int or None, default=None
        None: noise from a fresh 256-bit key of the operating system. An int makes a fit on the
        same data with the same parameters repeatable, and voids the guarantee against anyone
        who can guess it; other data or parameters get unrelated noise.

    Attributes
    ----------
    counts_ : ndarray of shape (n_items,)
        Released N_j of all columns: a number of users, or of weighted ones.
    support_ : ndarray of bool, shape (n_items,)
        The columns that stay.
    privacy_spent_ : PrivacyStatement
        Releases with their noise, their cost and their assumptions.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Item names, if X had string column names.

    See Also
    --------
    ContributionBounder : Caps the ratings of each user.

    Notes
    -----
    The guarantee covers which columns stay, and whatever later steps release under their own
    budgets: `privacy_spent` adds up a pipeline. `transform` itself only drops columns of the rows
    that it is given.

    Later steps know the columns that stay, not those of X, and no step can change y. So in a
    pipeline y is None, or holds item names while DataFrames run through it: held-out items that
    were dropped then count as missed.
    Column indices in y, and predicted ones, count the columns that stay. ``score`` refuses an index
    beyond them; smaller ones go unnoticed, and are compared with the wrong items. For ratings
    without names score the last step with what the selection makes of y:
    ``model[-1].score(model[:-1].transform(X), model[:-1].transform(Y))`` for a matrix Y;
    ``get_support(indices=True)`` and `inverse_transform` translate indices.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget, privacy_spent
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.preprocessing import DPItemSelector
    >>> X = make_ratings(500, 40, random_state=0)
    >>> head, rest = PrivacyBudget(4.0, 1e-5).split([0.1, 0.9])
    >>> model = make_pipeline(
    ...     DPItemSelector(head, n_items=25, random_state=0),
    ...     AdaptiveWeightALS(rest, random_state=0),
    ... ).fit(X)
    >>> model.predict(X[:3]).shape
    (3, 25)
    >>> round(privacy_spent(model).epsilon, 4)
    4.0
    """

    budget: PrivacyBudget
    _: KW_ONLY
    n_items: float = 0.5
    min_signal: float | None = None
    random_state: int | None = None
    _catalogue_ = None

    def plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        """Tell what `fit` would release, with which noise.

        Parameters
        ----------
        n_items : int
            Size of the catalogue, the columns of X.
        n_rows : int, default=None
            Number of rows of X; the plan does not depend on it.

        Returns
        -------
        ReleasePlan
            The one release. No data is touched and no budget is spent.

        Raises
        ------
        ValueError
            If a parameter is invalid, or the budget cannot be met.

        Examples
        --------
        >>> plan = DPItemSelector(PrivacyBudget(1.0, 1e-5)).plan(n_items=40)
        >>> [(release.name, release.shape) for release in plan.releases]
        [('item counts', (40,))]
        """
        self._check_params()
        holds = check.is_count(n_items)
        check.require(holds, "n_items", n_items, "an integer >= 1", "pass X.shape[1]")
        self._most(int(n_items))
        return self._make_plan(int(n_items))

    @one_at_a_time
    def fit(self, X: Any, y: Any = None) -> "DPItemSelector":
        """Release the counts and choose the items.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Ratings, also as `ParquetRatings`; which there are counts, not their values.
        y : object, default=None
            Ignored.

        Returns
        -------
        DPItemSelector
            The fitted selector.

        Raises
        ------
        ValueError
            If a parameter is invalid (checked before X is looked at, but for an `n_items` of more
            than its columns), or X is not a matrix of real numbers or holds an infinite one.
        """
        self._check_params()
        R = check_ratings(self, X, reset=True, stored=True)[0]
        self._most(R.shape[1])
        with charged(self, X, R, Fit()) as fit:
            fit_framed(self, R, fit)
        return self

    def _publish(self, released: Any) -> None:
        self.counts_, deviation = released
        keep = np.argsort(-self.counts_, kind="stable")[: self._most(self.counts_.size)]
        if self.min_signal is not None:
            seen = self.counts_[keep] > float(self.min_signal) * deviation
            keep = keep[: max(1, int(seen.sum()))]  # the counts of keep fall
        self.support_ = np.zeros(self.counts_.size, bool)
        self.support_[keep] = True

    # what `fit_framed` asks for
    _value_range, _reports, n_jobs = None, None, None

    def _preparation(self) -> tuple[Any, ...]:
        return (_presences,)

    def _settings_of(self, n_items: int) -> None:
        return None

    def _terms(self, released: Any) -> dict[str, Any]:
        return {}

    def _release(self, curator: Curator, settings: None) -> Any:
        """Release the counts."""
        counts = curator.release(_COUNTS, self._counts(curator))
        return counts, curator.deviation(_COUNTS)

    def transform(self, X: Any) -> Any:
        """Keep the columns of the chosen items.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Ratings of any users.

        Returns
        -------
        {ndarray, DataFrame, csr_array, RatingMatrix} of shape (n_users, n_kept)
            A RatingMatrix for a RatingMatrix; sparse for sparse X, with several ratings of one
            (user, item) pair merged by their mean, both whatever `set_output` says; without it a
            DataFrame with the items' names for a DataFrame.

        Raises
        ------
        ValueError
            If X is invalid or has other columns than in `fit`.
        sklearn.exceptions.NotFittedError
            Before `fit`.

        Examples
        --------
        >>> from skdpmf.data import make_ratings
        >>> X = make_ratings(60, 10, random_state=0)
        >>> selector = DPItemSelector(PrivacyBudget(4.0, 1e-5), n_items=6).fit(X)
        >>> selector.transform(X).shape
        (60, 6)
        """
        check_is_fitted(self, "support_")
        X = labelled_rows(X, self._catalogue_, self.n_features_in_)[0]
        is_sparse = sparse.issparse(X)
        places = np.flatnonzero(self.support_)
        if hasattr(X, "iloc") and self._container() != "polars":  # columns of any type stay so
            validate_data(self, X, reset=False, skip_check_array=True)
            return X.iloc[:, places]
        if not (is_sparse or hasattr(X, "columns") or isinstance(X, RatingMatrix)):
            return self._as_asked(super().transform(X), X)
        R, dtype = check_ratings(self, X, reset=False)
        if isinstance(X, RatingMatrix):
            return X.with_ratings(R)[:, places]
        R = R.astype(dtype, copy=False)[:, places]
        return R if is_sparse else self._as_asked(dense_of(R, dtype), X, places)

    def inverse_transform(self, X: Any) -> Any:
        """Put the columns back in their places; the dropped ones are unknown.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_kept)
            Ratings, or anything else that has a column for each item that stayed.

        Returns
        -------
        {ndarray, csr_array} of shape (n_users, n_items)
            Dropped columns are NaN, in a sparse result nothing is stored there: zeros, as other
            selectors insert, would be ratings.

        Raises
        ------
        ValueError
            If X is not a matrix of as many columns as stayed.
        sklearn.exceptions.NotFittedError
            Before `fit`.

        Examples
        --------
        >>> from skdpmf.data import make_ratings
        >>> X = make_ratings(60, 10, random_state=0)
        >>> selector = DPItemSelector(PrivacyBudget(4.0, 1e-5), n_items=6).fit(X)
        >>> selector.inverse_transform(selector.transform(X)).shape
        (60, 10)
        """
        check_is_fitted(self, "support_")
        places = np.flatnonzero(self.support_)
        X = check_array(X, accept_sparse="csr", dtype=None, ensure_all_finite=False)
        if X.shape[1] != places.size:
            raise ValueError(
                f"X has {X.shape[1]} columns and must have {places.size}, one for each item that "
                "stayed: pass what transform or a later step returned."
            )
        shape = (X.shape[0], self.support_.size)
        if sparse.issparse(X):
            return sparse.csr_array((X.data, places[X.indices], X.indptr), shape=shape)
        full = np.full(shape, np.nan, np.result_type(X.dtype, np.float32))
        full[:, places] = X
        return full

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self, "support_")
        return self.support_

    def _counts(self, curator: Curator) -> BoundedSum:
        """Weighted counts."""
        users = curator.users
        grid = exact_grid(curator.n_rows, 1.0, degree=1)
        if self.budget.unit == "rating":
            return rating_sums(users, scale=1.0, grid=grid, norm=self._norm)
        weights = users.map(_count_weights, self._norm)
        return item_scalars(users, weights, clip=1.0, grid=grid, signed=False, norm=self._norm)

    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        budget = self.budget
        near: Any = {"norm": self._norm, "neighbors": budget.neighbors, "unit": budget.unit}
        if budget.unit == "rating":
            sensitivity = ratings_bound(1.0, 0.0, **near)
        else:
            sensitivity = scalars_bound(1.0, signed=False, **near)
        weights = "number" if budget.unit == "rating" else "weighted number"
        what = (_COUNTS, f"{weights} of each item's users", (n_items,))
        release: Release | PureRelease = Release(*what, sensitivity)
        if self._norm == "l1":
            release = PureRelease(*what, math.inf, "laplace", sensitivity, "l1")
        return ReleasePlan.from_shares(budget, [release], {_COUNTS: 1.0})

    @property
    def _norm(self) -> str:
        """Norm of the sensitivity: l2 for Gaussian noise, and where there is none."""
        return "l1" if self.budget.is_private and self.budget.delta == 0.0 else "l2"

    def _most(self, n_columns: int) -> int:
        """Most items to keep of so many."""
        if not check.is_count(self.n_items):
            return math.ceil(float(self.n_items) * n_columns)
        rule = f"at most the {n_columns} columns of X, or a share in (0, 1]"
        check.require(self.n_items <= n_columns, "n_items", self.n_items, rule, "lower it")
        return int(self.n_items)

    def _check_params(self) -> None:
        check.require_budget(self.budget)
        value: Any = self.n_items
        share = isinstance(value, float | np.floating) and 0.0 < float(value) <= 1.0
        rule = "an integer >= 1 or a float in (0, 1]"
        remedy = "pass the number of items to keep, or their share"
        check.require(share or check.is_count(value), "n_items", value, rule, remedy)
        value = self.min_signal
        holds = value is None or (check.is_finite(value) and value >= 0.0)
        check.require(holds, "min_signal", value, "a finite number >= 0 or None", "use None or 3.0")
        check.require_random_state(self.random_state)
        self._container()
        self._make_plan(1)  # refuses budgets it cannot plan for


def _presences(R: Any) -> Any:
    """Ratings count, and their values do not."""
    return sparse.csr_array((np.ones(R.nnz), R.indices, R.indptr), shape=R.shape)


def _count_weights(rows: Rows, norm: str) -> np.ndarray:
    """Weights of each user's ratings."""
    return np.repeat(item_count_weights(rows.n_ratings, norm=norm), rows.n_ratings)


def item_count_weights(n_ratings: ArrayLike, *, norm: str = "l2") -> NDArray[np.float64]:
    """Return the weights w_i of users, from the numbers n_i of their items.

    They are lower than the formula by a factor 1 - 2^-40, against rounding.
    """
    n = np.asarray(n_ratings, dtype=np.float64)
    return np.where(n > 0.0, _INSIDE / np.maximum(n if norm == "l1" else np.sqrt(n), 1.0), 0.0)
