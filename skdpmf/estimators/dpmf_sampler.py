"""DPMFSampler: Langevin dynamics or one posterior sample as a private recommender."""

from typing import Any

import numpy as np

from skdpmf.estimators.contract import filled
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.estimators.planners.dpmf_sampler import DPMFSamplerPlanner
from skdpmf.mechanisms import noisy_gradient
from skdpmf.mechanisms.als.pooled import PooledModel
from skdpmf.mechanisms.item_means.joint_release import FOLD_IN_DAMPING
from skdpmf.mechanisms.posterior_draw import draw as posterior
from skdpmf.privacy.curator_release import Curator


@filled
class DPMFSampler(DPMFSamplerPlanner, PrivateRecommender):
    """Private matrix factorization by Langevin dynamics, or by one sample of a posterior.

    Ratings are modelled as r_ij ~ m_j + o_i + <u_i, v_j>; only the items' side leaves `fit`. Lists
    are by popularity and by predicted rating, better than the most popular items (Recall@20 .198
    against .184 on MovieLens 1M at epsilon 4, docs/benchmarks/lists.md).

    ``guarantee="every-step"`` (the default) runs `max_iter` steps of preconditioned Langevin
    dynamics on the items. Each step solves every user exactly on the user's own ratings and
    releases, with Gaussian noise, the sum over users of the gradients w_ij e_ij u_i, one factor per
    user clipping the whole of it, and of u_i u_i'. The guarantee is (epsilon, delta)-DP, exactly
    accounted, and holds at every step whether or not the chain converges. All steps count in the
    model, by a Kalman filter, around private item means. The ridges, the size of every factor and
    the noise of ratings are learnt from what is released: factors that the budget cannot learn, or
    that are not there, vanish. Without privacy it is the variational Bayesian fit of that model,
    which learns the ridge of offsets as well.

    ``guarantee="posterior"`` is the paper's mechanism: one draw from the density

        exp(-a sum_i w_i sum_j (e_ij - clip(u_i . v_j, -M, M))^2) p0(U, V),

    with e_ij the ratings less their user's own mean. The loss of a user is at most B whatever the
    ratings, so that one exact draw is pure epsilon-DP at a = epsilon / B. The guarantee is
    CONDITIONAL on the chain having converged, which nothing can prove; `privacy_spent_` says so. At
    the same epsilon it is far less accurate than "every-step": use it to compare with the paper.

    Parameters
    ----------
    budget : PrivacyBudget
        Budget of the fit, for unit "user": epsilon, and for "every-step" delta > 0.
        "posterior" spends no delta. ``PrivacyBudget.nonprivate()`` gives the noiseless limit, or a
        Bayesian matrix factorization.
    {rating_range}
    {item_features}
        Each user has tastes for them beside the factors; with guarantee="every-step" item means
        lean on them as well.
    {random_state, n_jobs}
    {public}
    guarantee : {"every-step", "posterior"} or `PosteriorDraw`, default="every-step"
        See above. "posterior" stands for ``PosteriorDraw()``.
    n_components : int, default=8
        Rank k. For "every-step" the largest: a private fit begins with as many factors as the noisy
        item counts support at this budget, and the other rows of ``components_`` are zero.
    max_ratings_per_user : int or None, default=None
        tau: at most so many ratings of each user, a random subset, enter `fit` (fold-in uses
        all). None: all for "every-step" and without privacy, else 200 for "posterior", whose bound
        B is proportional to it.
    max_iter : int or None, default=None
        Steps, or sweeps over the ratings. Fixed in advance: convergence would depend on the data.
        None: 40 for "every-step", 100 for the Gibbs sampler, 1500 for SGLD.
    alpha : float, default=1.0
        Strength of the L2 penalties on factors, relative to the learnt ones in "every-step"; that
        of the fold-in for "posterior".
    user_damping : float or None, default=None
        Penalty on a user's offset: as many fictitious ratings at the item means. None: 10 in
        `fit`, and 1 for predictions. Learnt for "every-step" without privacy.

    Attributes
    ----------
    {components_}
    {n_components_}
    {item_means_}
    privacy_spent_ : PrivacyStatement
        Release, its cost, its assumptions and its condition.
    nonprivate_diagnostics_ : Diagnostics or None
        Split R-hat and effective sample sizes of rotation-invariant quantities; None unless asked
        for. Never publish them.
    n_iter_ : int
        Steps or sweeps.
    {n_features_in_, feature_names_in_}

    See Also
    --------
    AdaptiveWeightALS : Least squares with noise in place of gradients with noise.
    CacheSGDFactorizer : The fast factorization without privacy.

    Notes
    -----
    The guarantee is for one user's whole row, X having a public number of rows and a public
    catalogue of columns. `plan` lists the releases without touching data.

    Personal privacy: ``fit(X, user_epsilon=levels)`` protects user i with epsilon levels[i], at the
    same delta. A user of level 0 has no influence at all. The levels are public and must not depend
    on the ratings.

    The published accounting of the posterior is wrong in both directions: its bound is 4 times too
    large, and its sampler's temperature divides the true guarantee by up to 400. There is no
    temperature parameter here.

    References
    ----------
    Z. Liu, Y.-X. Wang, A. Smola, "Fast Differentially Private Matrix Factorization", RecSys 2015.

    Examples
    --------
    >>> from skdpmf import DPMFSampler, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(500, 40, random_state=0)
    >>> model = DPMFSampler(PrivacyBudget(4.0, 1e-5), random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:3], n=5)
    >>> items.shape
    (3, 5)
    >>> round(model.privacy_spent_.epsilon, 2)
    4.0
    """

    def fit(self, X: Any, y: Any = None, user_epsilon: Any = None) -> Any:
        """Fit and release the model.

        Parameters
        ----------
        {fit X}
        {y}
        user_epsilon : array-like of shape (n_users,), default=None
            Public privacy level of each user, from 0 (no influence at all) to the budget's
            epsilon. None: the budget's for everybody. Split with the rows by metadata routing:
            ``set_fit_request(user_epsilon=True)``.

        Returns
        -------
        {self}

        Raises
        ------
        {fit errors}
            Or if a level is out of its range, or `user_epsilon` does not fit X.
        """
        return self._fit_rows(X, y, user_epsilon=user_epsilon)

    def _levels(self, user_epsilon: Any = None) -> np.ndarray | None:
        return None if user_epsilon is None else np.asarray(user_epsilon, np.float64)

    @property
    def _reports(self) -> str | None:  # type: ignore[override]
        return None if self._draw is None else "noise"

    def _settings_of(self, n_items: int) -> Any:
        if self._draw is not None:
            return self._posterior_settings(n_items)
        return self._gradient_settings()

    def _release(self, curator: Curator, settings: Any, **more: Any) -> Any:
        if "levels" in more:
            shared = curator.plan, curator.n_rows
            levels = more.pop("levels")
            more["influence"] = noisy_gradient.personal_influence(levels, *shared)
        return noisy_gradient.fit(curator, settings, rounds=self._rounds(), **more)

    def _release_rows(self, R: Any, noise: Any, settings: Any, levels: Any) -> Any:
        draw: Any = self._draw
        return posterior.fit(
            *(R, settings, self.budget, noise),
            rounds=self._rounds(),
            levels=levels,
            diagnosed=draw.nonprivate_diagnostics,
            n_jobs=self.n_jobs,
        )

    def _publish(self, released: Any) -> None:
        model = released
        if isinstance(model, PooledModel):  # without privacy
            self._set_columns(model)
            self.components_ = self._item_model_.factors[:, 1:].T.copy()
        else:
            means, factors, ridge = model[:3]
            self._set_model(means, factors, ridge, self._damping(FOLD_IN_DAMPING))
        if self._draw is None:
            self._set_ranking(None, model.log_popularity)
        self.n_iter_ = self._n_rounds()
        self.nonprivate_diagnostics_ = None if self._draw is None else model.diagnostics

    def _terms(self, released: Any) -> dict[str, Any]:
        if self._draw is None:
            return {}
        settings = self._posterior_settings(released.item_bias.size)
        terms = {"assumptions": posterior.assumptions(settings)}
        if self.nonprivate_diagnostics_ is not None:
            what = "The attribute nonprivate_diagnostics_: it reads the ratings."
            terms["not_covered"] = (what,)
        return terms

    def _check_metadata(self, n_rows: int, user_epsilon: Any = None) -> None:
        """Check public levels; their errors may name values."""
        if user_epsilon is None:
            return
        if not self.budget.is_private:
            raise ValueError(
                f"user_epsilon was given with budget={self.budget!r}, which protects nobody: pass "
                "a budget of finite epsilon, or leave user_epsilon out."
            )
        levels = np.asarray(user_epsilon)
        if levels.shape != (n_rows,) or levels.dtype.kind not in "iuf":
            raise ValueError(
                f"user_epsilon has shape {levels.shape} and dtype {levels.dtype}; it must hold one "
                f"number for each of the {n_rows} rows of X: pass these users' privacy levels."
            )
        levels = levels.astype(np.float64)
        outside = ~((levels >= 0.0) & (levels <= self.budget.epsilon))
        if outside.any():
            row = int(np.argmax(outside))
            raise ValueError(
                f"user_epsilon[{row}]={levels[row]!r} must lie between 0 (no influence) and the "
                f"epsilon of the budget, {self.budget.epsilon!r}: lower it, or raise the budget's."
            )
