"""DPCovarianceRecommender: noisy item averages and one noisy item covariance."""

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from skdpmf.data.validation import middle_and_quarter
from skdpmf.estimators.contract import filled
from skdpmf.estimators.contract.neighbors import NeighborModel
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.estimators.contract.recommend import item_item_model
from skdpmf.estimators.planners.dp_covariance import DPCovarianceRecommenderPlanner, NearestItems
from skdpmf.mechanisms.common import unpack_lower
from skdpmf.mechanisms.gram import covariance as solver
from skdpmf.mechanisms.gram import item_item as noisy_gram
from skdpmf.privacy.curator_release import Curator


@filled
class DPCovarianceRecommender(DPCovarianceRecommenderPlanner, PrivateRecommender):
    """Noisy item means and a noisy item covariance, published once; predictions are local.

    `fit` releases item means m_j and, for the clamped ratings x_i = clip(r_i - m - o_i, -B, B) of
    user i, centred by the item means and the user's own offset o_i,

        Cov = sum_i w_i x_i x_i' + noise,    Wgt = sum_i w_i e_i e_i' + noise,

    e_i being the pattern of known ratings and w_i a weight that falls with their number. Cov / Wgt,
    cleaned, is the covariance of two items' ratings; its leading eigenvectors, scaled to the items'
    popularity, are the factors; the variance that they do not explain is the noise of a rating.
    From then on every user predicts from the own ratings alone:

    - ``predictor="svd"``: r_ij ~ m_j + o_i + z_i . v_j, with o_i and z_i from a ridge regression.
      Its penalties follow from that noise, so that it is the conditional mean of a normal law;
    - ``predictor="knn"``: m_j + o_i + A_jN (A_NN + ridge I)^-1 x_iN, interpolated from the known
      items N with the largest Wgt_jN; with cleaning, A is what the factors explain.

    The guarantee is for one user's row or for one single rating, as `budget.unit` says.

    With ``feedback="implicit"`` X holds clicks. Released are item counts and one Gram matrix of the
    users' clicks on the popular items, which becomes an item-item model: EASE, of low rank
    (`skdpmf.mechanisms.gram.item_item`). Of all models here its lists are the best from clicks.
    A `refresh` with clicks of new people adds their counts and their Gram matrix, of the popular
    items of the first fits; items that come later are recommended by popularity.
    From ratings, lists are by popularity, by what people choose where the sums show it, and by
    predicted rating; those of `AdaptiveWeightALS` are better (docs/benchmarks/lists.md).

    Parameters
    ----------
    budget : PrivacyBudget
        Budget of the fit, and its unit: "user", or "rating" for one known rating (a cell
        of X, present or absent). Gaussian noise needs delta > 0, Laplace noise spends none.
        ``PrivacyBudget.nonprivate()`` gives the published algorithm for single ratings, without
        noise. Clicks have the unit "user".
    {rating_range}
    {item_features}
        Item means lean on them, and with predictor="svd" each user has tastes for them beside the
        factors.
    {random_state, n_jobs}
    {public}
    feedback : {"explicit", "implicit"} or `Clicks`, default="explicit"
        "explicit": X holds ratings. "implicit": a stored value in (0, 1] is a click of this weight,
        a larger one a click of weight 1; ``Clicks(weighting="log")`` weighs counts. 0 or less is no
        click, and marks an item down: nobody gets what he marked down (zeros of a dense row without
        NaN say nothing).
        `predict` then gives scores within [0, 1], and `score` is the recall of held-out clicks
        among 20 recommended items. All parameters but `budget`, `noise`, which is "gaussian",
        `random_state` and `n_jobs` are unused.
    noise : {"gaussian", "laplace"}, default="gaussian"
        "gaussian": accounted exactly, as (epsilon, delta)-DP. "laplace": pure epsilon-DP, with far
        more noise.
    predictor : {"svd", "knn"} or `NearestItems`, default="svd"
        See above. "knn" stands for ``NearestItems()``. It changes neither what is released nor
        `transform`.
    covariance : {"auto"} or `NoisyCovariance`, default="auto"
        How the covariance is released and cleaned. "auto" stands for ``NoisyCovariance()``.
    n_components : int, default=20
        Largest rank k. Factors that do not rise above the noise are left out, as far as released
        values support: their rows of ``components_`` are zero.
    user_damping : float, default=40.0
        Fictitious ratings in the user's own mean that is taken off before the covariance, at the
        item means; without cleaning in predictions as well. For unit "rating" the noise falls with
        it.

    Attributes
    ----------
    {components_}
        `transform` gives z_i, a user's coordinates.
        Clicks have as many as the released Gram matrix supports, up to 1,024 without privacy.
    {n_components_}
    {item_means_}
        With clicks the released popularity, scaled to a thousandth at most where there are factors.
    covariance_ : ndarray of shape (n_covered, n_covered)
        Released covariance of the items in ``covariance_items_``, cleaned, in squared rating units;
        for predictor="knn" what the factors explain of it. It is made anew whenever it is asked
        for.
    covariance_items_ : ndarray of shape (n_covered,)
        Columns of X that the covariance covers, ascending. Empty if it was left out, and for
        clicks.
    {privacy_spent_}
    {n_features_in_, feature_names_in_}

    See Also
    --------
    AdaptiveWeightALS : More accurate at the same budget for unit "user", but on dense ratings.

    Notes
    -----
    X has a public number of rows and a public catalogue of columns. `plan` lists the releases
    without touching data. At unit "rating" nothing is trimmed, as trimming would double every
    sensitivity.

    The published sensitivities take the range of the ratings for that of the centred ones, which is
    too small; those in use are proved anew, see `skdpmf.privacy.pair_sensitivity`.

    References
    ----------
    F. McSherry, I. Mironov, "Differentially private recommender systems: building privacy into the
    Netflix Prize contenders", KDD 2009.

    R. Bell, Y. Koren, "Scalable collaborative filtering with jointly derived neighborhood
    interpolation weights", ICDM 2007.

    Examples
    --------
    >>> from skdpmf import DPCovarianceRecommender, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(500, 40, random_state=0)
    >>> budget = PrivacyBudget(4.0, 1e-5, unit="rating")
    >>> model = DPCovarianceRecommender(budget, random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:3], n=5)
    >>> items.shape
    (3, 5)
    >>> round(model.privacy_spent_.epsilon, 2)
    4.0

    Clicks:

    >>> budget = PrivacyBudget(20.0, 1e-5)
    >>> clicks = DPCovarianceRecommender(budget, feedback="implicit", random_state=0)
    >>> items, scores = clicks.fit((X > 3.5).astype(float)).recommend(X[:3], n=5)
    >>> items.shape
    (3, 5)
    """

    @property
    def covariance_(self) -> np.ndarray:
        """Released covariance of the items in ``covariance_items_``."""
        check_is_fitted(self, "covariance_items_")
        return unpack_lower(self._neighbor_model_.covariance)

    def _settings_of(self, n_items: int) -> Any:
        return self._settings()

    def _release(self, curator: Curator, settings: Any, **more: Any) -> Any:
        if self._implicit:
            if "public" in more:
                more["public"] = noisy_gram.learn_public(more["public"])
            return noisy_gram.fit(curator, rounds=self._rounds(), **more)
        return solver.fit(curator, settings, rounds=self._rounds(), **more)

    def _publish(self, released: Any) -> None:
        model, self._knowledge_ = released, None
        if self._implicit:
            lists, self._knowledge_ = released
            model = solver.Model(lists.offsets, lists.decoder, np.empty(0, np.int64), None)
            self.item_means_, self.components_ = lists.offsets, lists.decoder.T.copy()
            self._item_model_ = item_item_model(lists, implicit=True)
            self._predictor_ = "svd"
        else:
            self._set_model(model.item_means, model.factors, model.ridge, model.offset_ridge)
            self._set_ranking(model.lists, model.log_popularity)
            self._predictor_ = self._shorthand("predictor")  # what is kept depends on it
        self._set_neighbors(model)

    def _set_neighbors(self, model: solver.Model) -> None:
        square = middle_and_quarter(self.rating_range)[1] ** 2
        self.covariance_items_ = model.head
        covariance, weights = np.empty(0), np.empty(0)
        if model.covariance is not None:
            below = np.tri(model.head.size, dtype=bool)
            covariance = model.covariance.covariance[below]
            if self._predictor_ == "knn":
                V, weights = model.factors[model.head], model.covariance.weights[below]
                covariance = (V @ V.T)[below] if self._chosen("covariance").clean else covariance
        k = int((self._chosen("predictor") or NearestItems()).n_neighbors)
        near = square * covariance, weights, model.head, k, square * model.ridge
        self._neighbor_model_ = NeighborModel(*near)

    def _scores(self, R: Any) -> np.ndarray:
        if self._predictor_ == "svd":
            return super()._scores(R)
        everything = sparse.csr_array(np.ones(R.shape, bool))
        return self._entry_scores(R, everything).reshape(R.shape)

    def _entry_scores(self, R: Any, where: Any) -> np.ndarray:
        if self._predictor_ == "svd":
            return super()._entry_scores(R, where)
        return self._neighbor_model_.scores(self._item_model_, R, where, self.n_jobs)

    def _top_items(self, R: Any, n: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        if self._predictor_ == "svd":
            return super()._top_items(R, n, **options)
        options |= {"n_jobs": self.n_jobs, "ranking": self._ranking_, "table": self._score_table()}
        return self._neighbor_model_.top_items(self._item_model_, R, n, **options)

    def _add_tastes(self) -> None:
        if self._predictor_ == "svd":
            super()._add_tastes()

    def _contributions(self, R: Any, items: np.ndarray) -> np.ndarray:
        if self._predictor_ == "svd":
            return super()._contributions(R, items)
        given = self._item_model_, R, items, self._score_table()
        assert self._ranking_ is not None
        return self._neighbor_model_.contributions(self._ranking_, *given)
