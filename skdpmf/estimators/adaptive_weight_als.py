"""AdaptiveWeightALS: private alternating least squares, budget shifted to rare items."""

from typing import Any

import numpy as np

from skdpmf.data.validation import middle_and_quarter
from skdpmf.estimators.contract import filled
from skdpmf.estimators.contract.parameters import require
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.estimators.contract.recommend import _ONE_BLAS_THREAD, ItemModel
from skdpmf.estimators.planners.adaptive_weight_als import AdaptiveWeightALSPlanner
from skdpmf.mechanisms.als import pooled, pooled_public
from skdpmf.mechanisms.item_means.joint_release import FOLD_IN_DAMPING
from skdpmf.privacy.curator_release import Curator


@filled
class AdaptiveWeightALS(AdaptiveWeightALSPlanner, PrivateRecommender):
    """Alternating least squares from noisy statistics, with weights that protect rare items.

    Ratings are modelled as r_ij ~ m_j + o_i + <u_i, v_j>: noisy item means m_j, a user's own
    offset o_i, and k factors. Each round solves every user exactly on the user's own ratings (this
    half is local and never leaves `fit`) and improves every item from a released weighted gradient,

        g_j = sum_i w_ij e_ij phi_i,    sum_j w_ij^2 <= 1,

    phi_i being the user's vector in the unit ball beside a constant and e_ij the residual. One
    factor per user clips the whole contribution, so the releases' sensitivities hold for any user
    whatever the ratings. Popular items can do with less weight: w_ij is proportional to
    N_j^-weight_exponent, N_j the noisy popularity, normalised to the bound for each user.

    With ``feedback="implicit"`` X holds clicks, and factors alone are fitted: to 1 at the clicks
    and, with a smaller weight, to 0 at all pairs of a user and an item
    (`skdpmf.mechanisms.als.clicks`).

    The default `solver` divides by one released Gram matrix of the users, the same for all items,
    keeps what all rounds have released, and lets each user have a slope on m_j and on log N_j
    beside the factors, which needs no release (proofs and formulas:
    `skdpmf.mechanisms.als.pooled`).

    Parameters
    ----------
    budget : PrivacyBudget
        Budget of the fit: epsilon, and delta > 0, for unit "user". Beyond an epsilon of
        about 60 the noise shrinks no further, as the proof of the noise sampler ends there.
        ``PrivacyBudget.nonprivate()`` is without noise and clipping; with "pooled" and ratings
        all penalties are then learnt (`skdpmf.mechanisms.als.variational`).
    {rating_range}
        Unused for clicks.
    {item_features}
        Item means and, with "pooled", factors lean on them, and the fold-in of a user includes
        tastes for them.
    {random_state, n_jobs}
    {public}
    n_components : int or None, default=None
        Largest rank k. A private fit uses as many factors as the noisy item counts support at
        this budget, and none where they would drown in noise, or where neither choices show tastes
        nor half of the rounds of "pooled" factors of ratings; the other rows of ``components_`` are
        zero. None: 16; without privacy and with "pooled" 32 for ratings, of which a fit has as many
        as show something, and for clicks 1 to 128: twice as many as there are tastes that random
        clicks would not show. With `DPALS` it is the rank without privacy.
    feedback : {"explicit", "implicit"} or `Clicks`, default="explicit"
        "explicit": X holds ratings. "implicit": a stored value in (0, 1] is a click of this weight,
        a larger one a click of weight 1; ``Clicks(weighting="log")`` weighs counts. 0 or less is no
        click, and marks an item down: nobody gets what he marked down (zeros of a dense row without
        NaN say nothing).
        `predict` then gives scores within [0, 1], and `score` is the recall of held-out clicks
        among 20 recommended items.
    solver : {"pooled", "dpals"}, `Pooled` or `DPALS`, default="pooled"
        Item step. A string stands for the options' defaults. "pooled": see above. `DPALS`, the
        published one: sufficient statistics of each item beside the gradients.
    max_ratings_per_user : int or None, default=None
        tau: at most so many ratings of each user enter the releases (fold-in uses all). None: all,
        but 100 under the weightings "tail" and "uniform" of `DPALS`.
    max_iter : int or None, default=None
        Rounds; None: 15 for "pooled", 5 of clicks, 10 for `DPALS` and without privacy. Fixed in
        advance: convergence would depend on the data.
    alpha : float, default=1.0
        Strength of the L2 penalties on user and item factors, relative to the built-in ones. Where
        penalties are learnt, alpha multiplies the learnt penalty of the fold-in alone.
        Penalties of clicks with "pooled" without privacy grow with a user's and an item's clicks.
    user_damping : float or None, default=None
        Penalty on a user's offset: as many fictitious ratings at the item means. None: 10 in
        `fit`, and 1 for predictions, where "pooled" only starts from it and learns. Unused for
        clicks.

    Attributes
    ----------
    {components_}
    {n_components_}
    {item_means_}
        With clicks the released popularity, scaled to a thousandth at most: it ranks where factors
        say nothing.
    {privacy_spent_}
    n_iter_ : int
        Rounds made.
    {n_features_in_, feature_names_in_}

    See Also
    --------
    skdpmf.evaluation.RatingRegressor : The same for tables of (user, item) -> rating.

    Notes
    -----
    The guarantee is for one user's whole row, X having a public number of rows and a public
    catalogue of columns. `plan` lists the releases without touching data; ``privacy_spent_`` shows
    the same after the fit. With `DPALS`, residual right-hand sides equal the paper's in exact
    arithmetic (g_j = b_j - A_j theta_j); item means, the joint clip, shrinking each A_j towards the
    pooled one and keeping all rounds' releases are additions of ours.

    References
    ----------
    W. Krichene, P. Jain, S. Song, M. Sundararajan, A. Thakurta, L. Zhang, "Multi-Task Differential
    Privacy Under Distribution Skew", ICML 2023.

    S. Chien, P. Jain, W. Krichene, S. Rendle, S. Song, A. Thakurta, L. Zhang, "Private Alternating
    Least Squares: Practical Private Matrix Completion with Tighter Rates", ICML 2021.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(500, 40, random_state=0)
    >>> model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:3], n=5)
    >>> items.shape
    (3, 5)
    >>> round(model.privacy_spent_.epsilon, 2)
    4.0

    Clicks:

    >>> budget = PrivacyBudget(20.0, 1e-5)
    >>> clicks = AdaptiveWeightALS(budget, feedback="implicit", random_state=0)
    >>> items, scores = clicks.fit((X > 3.5).astype(float)).recommend(X[:3], n=5)
    >>> items.shape
    (3, 5)
    """

    def _check_start(self, known: Any) -> None:
        rule = f"{known.rank} at least, the factors of the model that is refreshed"
        holds = self._rank() >= known.rank
        require(holds, "n_components", self.n_components, rule, "fit anew with fewer")

    def _settings_of(self, n_items: int) -> Any:
        return self._settings()

    def _release(self, curator: Curator, settings: Any, **more: Any) -> Any:
        # its products are small, and a seeded fit must not depend on them
        with _ONE_BLAS_THREAD:
            if "public" in more and not self._implicit:
                rows = more.pop("public")
                return pooled_public.fit(curator, settings, rows, rounds=self._rounds())
            return self._solver().fit(curator, settings, rounds=self._rounds(), **more)

    def _publish(self, released: Any) -> None:
        model = released
        self._knowledge_ = None
        if self._implicit:
            self._knowledge_ = model.knowledge
            self.item_means_ = model.offsets
            parts = model.offsets, model.columns, model.ridge, model.rating_ridge
            self._item_model_ = ItemModel(*parts, prior=model.prior, implicit=True)
            self.components_ = model.columns[:, model.n_lead :].T.copy()
        elif self._takes_public:
            self._set_columns(model)
            self._knowledge_ = model.knowledge
            self._set_ranking(model.lists, model.log_popularity)
            self.components_ = self._item_model_.factors[:, pooled.N_LEAD :].T.copy()
        else:
            damping = self._damping(FOLD_IN_DAMPING) if self._chosen("solver").item_means else None
            self._set_model(model.item_means, model.factors, model.ridge, damping)
            self._set_ranking(None, model.log_popularity)
        self.n_iter_ = self._n_rounds()

    def _item_weights(self) -> np.ndarray:
        if self._implicit or not self._takes_public:
            return super()._item_weights()
        unit = middle_and_quarter(self.rating_range)[1]
        log_popularity = self._item_model_.factors[:, 2] / (unit * pooled.LOG_SCALE)
        return np.exp(0.5 * log_popularity)
