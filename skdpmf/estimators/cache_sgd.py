"""CacheSGDFactorizer: fast matrix factorisation without privacy, from memory or from disk."""

import hashlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.exceptions import ConvergenceWarning

from skdpmf.data.parquet_ratings import ParquetRatings
from skdpmf.data.validation import check_rating_range, middle_and_quarter
from skdpmf.estimators.contract import filled
from skdpmf.estimators.contract.base import BaseRecommender, ItemModel
from skdpmf.estimators.contract.recommend import fold_in
from skdpmf.estimators.planners.cache_sgd import NO_PRIVACY, CacheSGDFactorizerPlanner
from skdpmf.mechanisms.item_means.joint_release import RATING_VARIANCE
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.mechanisms.item_means.residual_rounds import PublicAverages

if TYPE_CHECKING:
    from skdpmf.mechanisms.sgd import cache_sgd as solver
    from skdpmf.mechanisms.sgd.rating_batches import Batches, Scale

# Tuned: the share of the learning rate that is left in the end, by default.
_LAST_RATE = 0.04


@filled
class CacheSGDFactorizer(CacheSGDFactorizerPlanner, BaseRecommender):
    """Matrix factorisation by cache-efficient stochastic gradient descent; not private.

    The rating of user i for item j is modelled as

        r_ij ~ b_0 + b_i + c_j + <u_i, v_j>,

    b_0 the mean, fitted by stochastic gradient descent to minimise, summed over the ratings,

        e_ij^2 / s^2 + alpha (|u_i|^2 + (|v_j|^2 + b_i^2 + c_j^2) / s^2),

    e the error and s the standard deviation of all ratings. The steps are taken in standardised
    units, so that the same settings work on any rating scale. Users are visited in batches whose
    factors fit the L2 cache, the ratings of a batch in item order.

    Lists are by popularity and by predicted rating, better than the most popular items (Recall@20
    .195 against .184 on MovieLens 1M, docs/benchmarks/lists.md).

    Parameters
    ----------
    n_components : int, default=32
        Number of factors k.
    rating_range : tuple of float, default=(1.0, 5.0)
        Smallest and largest rating. Ratings outside are clipped: for play counts, pass a range
        that holds them.
    {item_features}
        The fold-in of a user includes tastes for them; training does not use them.
    random_state : int or None, default=None
        Seed of the item factors at the start. With a seed and one thread a fit repeats bit for bit
        on one machine.
    n_jobs : int or None, default=None
        Threads, as in joblib. Several threads update the items without locks: results of repeated
        fits differ in the third digit of the RMSE at most.
    max_iter : int, default=30
        Rounds over all ratings.
    learning_rate : float, default=0.07
        Length of a gradient step in the first round, in standardised units, at most 1 / (8 alpha).
        If the fit diverges it starts again at half the rate, with a `ConvergenceWarning`.
    learning_rate_decay : float or None, default=None
        Factor in (0, 1] by which the rate falls after each round. None: 0.04 ** (1 / max_iter).
    alpha : float or None, default=None
        Strength >= 0 of the L2 penalty, for each rating, in standardised units. None: the variance
        of the noise and those of biases and of each factor are learned, and the penalties follow
        from them: a factor is penalised the less the stronger it is, a user or an item the less
        the more ratings there are. Penalties begin at 0 and are whole after two fifths of the
        rounds, and after twelve rounds at the earliest.
    fit_bias : bool, default=True
        Whether b_i and c_j are fitted. Without them they are 0; b_0 is the mean in both cases.
    snapshots : `Snapshots` or None, default=None
        File for snapshots of the fit in progress, with which a fit goes on after a crash.
    warm_start : bool, default=False
        Whether `fit` starts from the factors of the previous fit. As many rows as then are taken
        for the same users; those of a matrix with another number of rows are folded in. The rate
        starts again at `learning_rate`: lower it, or the first rounds undo some of the last.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_items)
        Item factors V.T, in rating units.
    {n_components_}
    user_factors_ : float32 ndarray of shape (n_users, n_components)
        Factors U of the training users; ratings are modelled by
        ``intercept_ + user_biases_[:, None] + item_biases_ + user_factors_ @ components_``.
    user_biases_ : ndarray of shape (n_users,)
        b_i, in rating units.
    item_biases_ : ndarray of shape (n_items,)
        c_j, in rating units.
    intercept_ : float
        b_0, the mean of the ratings, in rating units.
    loss_curve_ : ndarray of shape (n_iter_,)
        Root mean square of the errors of each round, in rating units, each before its update.
    item_counts_ : ndarray of shape (n_items,)
        Number of ratings that were fitted.
    privacy_spent_ : PrivacyStatement
        That there is no privacy.
    n_iter_ : int
        `max_iter`.
    {n_features_in_, feature_names_in_}

    Raises
    ------
    ValueError
        By `fit`, beside what other recommenders refuse, if the fitted model does not fit X
        (`warm_start`) or the snapshot belongs to another fit.
    RatingStoreError
        By `fit`, if the files of `ParquetRatings` are damaged.
    FloatingPointError
        If a fit diverges at any learning rate.

    See Also
    --------
    skdpmf.data.ParquetRatings : Ratings on disk, which `fit` reads row group by row group in every
        round.
    AdaptiveWeightALS : Private matrix factorisation.

    Notes
    -----
    `transform` and all predictions fold rows in: they solve for b_i and u_i exactly against the
    items, with the same penalty. For training users that is close to ``user_factors_``, which
    comes from the gradient steps.

    Errors beyond ten standard deviations of the ratings pull with the strength of ten.

    References
    ----------
    Z. Liu, Y.-X. Wang, A. J. Smola, "Fast Differentially Private Matrix Factorization", RecSys
    2015, sections 5.1-5.3 and Algorithm 2.

    Examples
    --------
    >>> from skdpmf import CacheSGDFactorizer
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(500, 40, random_state=0)
    >>> model = CacheSGDFactorizer(8, random_state=0).fit(X)
    >>> model.user_factors_.shape, model.components_.shape
    ((500, 8), (8, 40))
    >>> items, scores = model.recommend(X[:3], n=5)
    >>> items.shape
    (3, 5)
    >>> model.privacy_spent_.is_private
    False
    """

    n_iter_: int
    user_factors_: np.ndarray
    user_biases_: np.ndarray
    item_biases_: np.ndarray
    item_counts_: np.ndarray
    intercept_: float
    loss_curve_: np.ndarray
    _unit_: float

    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Go on from the present factors with the rows of new users.

        The new users are folded in, `max_iter` rounds run over their ratings, and then each item
        moves towards its new factors by the share of its ratings that is new. The factors of
        earlier users stay. The first call is a `fit`; later calls keep its variances, so let it
        have as many users as there are.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix} of shape (n_new_users, n_items)
            Ratings of users that were not in earlier calls.
        y : None, array-like of shape (n_new_users,) or matrix of shape (n_new_users, n_items)
            As in `fit`, in the first call.

        Returns
        -------
        self : estimator
            The estimator; ``user_factors_`` and ``user_biases_`` have the new users' rows appended.

        Raises
        ------
        ValueError
            If X or a parameter is invalid, or n_components is not that of the fitted model.
        TypeError
            If X is `ParquetRatings`, except in the first call.

        Examples
        --------
        >>> from skdpmf.data import make_ratings
        >>> X = make_ratings(60, 20, random_state=0)
        >>> model = CacheSGDFactorizer(2, random_state=0).fit(X[:50])
        >>> model.partial_fit(X[50:]).user_factors_.shape
        (60, 2)
        """
        from skdpmf.mechanisms.sgd.rating_batches import Scale

        if not hasattr(self, "components_"):
            return self.fit(X, y)
        self._check_params()
        R = self._check_ratings(X)[0]
        self._check_start(R.shape)
        trained, batches = self._descend(R, Scale(self.intercept_, self._unit_), self._folded_in(R))
        model, counts = trained.factors, batches.item_counts
        share = counts / np.maximum(1, counts + self.item_counts_)
        V = self._unit_ * model.V[:, : self.components_.shape[0]] * self._balance()
        c = self._unit_ * model.item_bias.astype(np.float64)
        self.components_ = self.components_ + share * (V.T - self.components_)
        self.item_biases_ = self.item_biases_ + share * (c - self.item_biases_)
        self.item_counts_ = self.item_counts_ + counts
        if R.nnz:
            self._item_model_ = self._fold_in_model(*self._learned())
        self._note_counts(len(self.user_biases_) + R.shape[0])
        self._add_tastes()
        b, U = self._folded_in(R)
        self.user_factors_ = np.concatenate((self.user_factors_, U.astype(np.float32)))
        self.user_biases_ = np.concatenate((self.user_biases_, b))
        return self

    def _fit(self, R: Any, y: Any) -> None:
        users = None
        if self.warm_start and hasattr(self, "components_"):
            self._check_start(R.shape)
            users = self.user_biases_, self.user_factors_
            if len(self.user_factors_) != R.shape[0]:
                users = self._folded_in(R)
        trained, batches = self._descend(R, None, users)
        model, scale = trained.factors, batches.scale
        n_users, k, variances = R.shape[0], int(self.n_components), model.variances
        # factors of users with variance 1, as nothing else fixes their units
        unit = np.sqrt(np.maximum(variances[0, 1:], 1e-30)) if self.alpha is None else 1.0
        self._unit_ = scale.std
        self.intercept_ = scale.mean
        self.user_factors_ = np.ascontiguousarray(model.U[:n_users, :k] / unit, np.float32)
        self.components_ = scale.std * (model.V[:, :k].astype(np.float64) * unit).T
        self.user_biases_ = scale.std * model.user_bias[:n_users].astype(np.float64)
        self.item_biases_ = scale.std * model.item_bias.astype(np.float64)
        self.item_counts_ = batches.item_counts
        self.loss_curve_ = scale.std * np.array(trained.losses)
        self.n_iter_ = int(self.max_iter)
        self._statement = NO_PRIVACY
        variances[:, 1:] = np.stack((np.ones(k), np.prod(variances[:, 1:], axis=0)))
        self._item_model_ = self._fold_in_model(variances, float(model.noise))
        self._note_counts(n_users)

    def _note_counts(self, n_users: int) -> None:
        """Rank by counts, and keep what a fit shows that takes the model as `public`."""
        n = self.item_counts_
        self._set_ranking(None, estimate_popularity(n, 0.0).log_mean)
        middle, unit = middle_and_quarter(self.rating_range)
        mean, level = self._item_model_.offsets - middle, float(self.intercept_) - middle
        weight = np.sqrt(n_users / max(int(n.sum()), n_users))  # of a rating, typically
        precision = n / max((float(self.loss_curve_[-1]) / unit) ** 2, RATING_VARIANCE)
        counts, means = (n * weight, n * weight**2), (mean / unit, precision)
        shown = PublicAverages(float(n_users), *counts, *means, level / unit)
        self._knowledge_ = shown.knowledge() if n.any() else None

    def _descend(self, R: Any, scale: "Scale | None", users: Any) -> "tuple[solver.Descent, Any]":
        """Run the solver, from the present items and these users (biases, factors) if given."""
        from skdpmf.mechanisms.sgd import cache_sgd as solver
        from skdpmf.mechanisms.sgd.rating_batches import MatrixBatches, ParquetBatches, Workers

        decay = self.learning_rate_decay or _LAST_RATE ** (1.0 / self.max_iter)
        settings = self._settled(solver.Settings, learning_rate_decay=decay)
        k, alpha = settings.n_components, settings.alpha
        earlier = self.item_counts_ if scale is not None else None  # partial_fit
        n_threads = effective_n_jobs(self.n_jobs)
        in_files = isinstance(R, ParquetRatings)
        n_rows = solver.batch_rows(R.shape[0], k, n_threads, equal=not in_files)
        bounds = check_rating_range(self.rating_range)
        with Workers(n_threads) as workers:
            batches: Batches
            if in_files:
                batches = ParquetBatches(R, bounds, n_rows)
            else:
                batches = MatrixBatches(R, bounds, n_rows, workers, scale)

            def start() -> solver.Factors:
                factors = solver.starting_factors(batches.shape, k, n_threads, self.random_state)
                if users is not None:
                    self._put_present(factors, batches.scale, *users)
                if earlier is not None and alpha is None:
                    factors.variances[:], factors.noise[()] = self._learned()
                    factors.variances[:, 1:] *= self._balance() ** np.array([[2.0], [-2.0]])
                return factors

            snapshot = every = None
            if self.snapshots is not None:
                every = self.snapshots.every
                purpose = f"{settings!r} {self.random_state!r} {batches.fingerprint()}"
                if users is not None:
                    purpose += hashlib.blake2b(self.components_.tobytes()).hexdigest()
                snapshot = solver.Snapshot(self.snapshots.path, purpose)
            descent = solver.Descent(batches, settings, start, workers, snapshot, every, earlier)
            trained = descent.run(self._rounds())
        if trained.learning_rate < settings.learning_rate:
            rate = trained.learning_rate
            words = f"learning_rate={self.learning_rate!r} diverged, so that the fit started again "
            words += f"with {rate!r}. Pass learning_rate={rate!r} or less."
            warnings.warn(words, ConvergenceWarning, stacklevel=5)
        return trained, batches

    def _put_present(self, factors: "solver.Factors", scale: "Scale", b: Any, U: Any) -> None:
        """Overwrite starting factors by the fitted items and by users' biases and factors."""
        (n_users, k), balance = U.shape, self._balance()
        factors.U[:n_users, :k] = U * balance
        V = self.components_.T / (scale.std * balance)
        alive = np.flatnonzero(V.any(axis=0))  # a factor that was lost starts anew
        factors.V[:, alive] = V[:, alive]
        if self.fit_bias:
            factors.user_bias[:n_users] = b / scale.std
            factors.item_bias[:] = (self.item_biases_ + self.intercept_ - scale.mean) / scale.std

    def _folded_in(self, R: Any) -> tuple[np.ndarray, np.ndarray]:
        """Biases and factors of rows under the present items."""
        if isinstance(R, ParquetRatings):
            words = (
                f"warm_start={self.warm_start!r} with ParquetRatings of {R.shape[0]} users needs "
            )
            words += f"the {len(self.user_factors_)} users of the last fit: pass warm_start=False, "
            raise ValueError(words + "or new users as a matrix to partial_fit.")
        Z = fold_in(self._item_model_._replace(features=None), R, self.n_jobs)
        U = Z[:, Z.shape[1] - self.components_.shape[0] :]
        # the last fit's fit_bias, which may have been another
        return self._unit_ * Z[:, 0] if Z.shape[1] > U.shape[1] else np.zeros(len(Z)), U

    def _learned(self) -> tuple[np.ndarray, float]:
        """Return the variances of the last fit, those of the items by the present ones; its noise.

        They are in standardised units. An item's variance is the mean square of what is known and
        of the doubt in it, which depends on the variance: a fixed point.
        """
        from skdpmf.mechanisms.sgd import cache_sgd as solver

        ridges = np.maximum(np.diag(self._item_model_.ridge) / self._unit_**2, 1e-9)
        if ridges[-1] <= 1e-9:  # the last fit had an alpha
            ridges[:] = max(float(self.loss_curve_[-1] / self._unit_) ** 2, 1e-9)
        k, counts = len(self.components_), self.item_counts_
        table = np.column_stack((self.item_biases_, self.components_.T)) / self._unit_
        variances, noise = np.ones((2, 1 + k)), float(ridges[-1])
        variances[0, :1] = noise / ridges[0] if len(ridges) > k else 0.0
        variances[1] = means = counts @ table**2 / max(1, counts.sum())
        own = [np.unique(n, return_counts=True) for n in (np.zeros(1, int), counts)]
        for _ in range(20):
            variances[1] = means + solver.posterior_variances(noise, variances, own)[1]
        return variances, noise

    def _balance(self) -> Any:
        """Return what users' factors have to be multiplied by to have the variances of items'."""
        if self.alpha is not None:
            return 1.0
        return np.maximum(self._learned()[0][1, 1:], 1e-12) ** 0.25

    def _fold_in_model(self, variances: np.ndarray, noise: float) -> ItemModel:
        """Items, with penalties that follow from the variances unless alpha gives them."""
        V, unit = self.components_.T, self._unit_**2
        ridges, items = np.zeros(1 + V.shape[1]), None
        if self.alpha is None:
            ridges = unit * noise / np.maximum(variances[0], 1e-9)
            # An item's mean doubt, of its factors by their size: nearly equal, in these units.
            size = variances[0, 1:] * variances[1, 1:]
            doubts = size / (1.0 + self.item_counts_[:, None] * size / noise)
            items = unit * (doubts @ size) / max(float(size.sum()), 1e-30)
        if self.fit_bias:  # b_i in standardised units
            V = np.column_stack((np.full(len(V), self._unit_), V))
        parts = self.intercept_ + self.item_biases_, np.ascontiguousarray(V)
        ridge, alpha = np.diag(ridges[-V.shape[1] :]), unit * float(self.alpha or 0.0)
        return ItemModel(*parts, ridge, alpha, item_ridge=items)

    def _set_items(self, items: ItemModel) -> None:
        n_new = items.offsets.size - self.item_counts_.size
        super()._set_items(items)
        self.item_biases_ = items.offsets - self.intercept_
        self.item_counts_ = np.append(self.item_counts_, np.zeros(n_new, np.int64))

    def _check_start(self, shape: tuple[int, int]) -> None:
        """Check that the fitted items fit the parameters and the catalogue."""
        k, n_items = self.components_.shape
        if int(self.n_components) != k or shape[1] != n_items:
            words = f"n_components={self.n_components!r} for {shape[1]} items must be those of the "
            words += f"fitted model to go on from it, {k} for {n_items}: set them so, or fit anew "
            raise ValueError(words + "with warm_start=False.")
