"""DPMFSampler: Langevin dynamics or one posterior sample as a private recommender."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from skdpmf.data.bounding import without_rows
from skdpmf.distributed.exchange import Exchange
from skdpmf.estimators.contract.options import Options, with_old_spellings
from skdpmf.estimators.contract.parameters import is_count, is_finite, require
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.estimators.contract.progress import with_callbacks
from skdpmf.mechanisms import noisy_gradient
from skdpmf.mechanisms.posterior_draw import draw as posterior
from skdpmf.mechanisms.posterior_draw.chain_diagnostics import Diagnostics
from skdpmf.mechanisms.posterior_draw.guarantee import CALIBRATIONS
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.sampler.noise import NoiseSource

__all__ = ["DPMFSampler", "PosteriorDraw"]

_SAMPLERS = ("gibbs", "sgld")
_NOISES = ("exact", "table")
_CAP = 200  # ratings a user in the posterior, as in the paper
_ITERATIONS = {"every-step": 40, "gibbs": 100, "sgld": 1500}


@dataclass(repr=False)
class PosteriorDraw(Options):
    """One draw from a posterior as the release of `DPMFSampler` (Liu, Wang, Smola 2015).

    The density, the bound B and a are those of `DPMFSampler`.

    Parameters
    ----------
    sampler : {"gibbs", "sgld"}, default="gibbs"
        "gibbs": exact draws of blocks, corrected for the clipped loss by a
        Metropolis step, and an elliptical slice step. "sgld": stochastic gradient Langevin
        dynamics, one rating at a time on the kernel of `CacheSGDFactorizer`; only as exact as
        its steps are small.
    calibration : {"tight", "paper"}, default="tight"
        Rule for a. "tight": a = epsilon / B (neighbours "replace": epsilon / 2B).
        "paper": epsilon / 4B, as published; ``privacy_spent_`` shows the true, smaller epsilon.
    weight_cap : float or None, default=None
        rho: w_i = min(rho, B / (m_i L^2)) for a user with m_i ratings, L the
        largest error. 1 weighs all ratings alike; inf gives every user the same say. None: inf
        for a private Gibbs sampler; 1 for "sgld", whose steps must be as small as the largest
        weight is large, and without privacy.
    kappa : float, default=0.0
        In rating units: predictions are clipped to the targets' range and kappa.
    item_bias : bool or None, default=None
        Whether the model has item biases. Without them the released V is
        protected by a bound half as large (at kappa=0), and a is twice as large. None: with them
        only if the budget is not private.
    user_std, item_std, bias_std : float, default=1.0, 0.3, 0.5
        Standard deviations of the prior of u, v (in quarters of the rating
        range) and the item biases (likewise). Public: never tuned on the ratings.
    rating_std : float, default=0.8
        In quarters of the rating range: standard deviation of a rating around
        its prediction in the untempered model. a is 1 / (2 rating_std^2) without privacy, and never
        larger.
    sample_precisions : bool, default=False
        Whether the precisions of the priors of u and v are sampled too, under
        Gamma priors of mean 1 / std^2. Costs no privacy.
    step_size : float, default=2.0
        For "sgld": diffusion time of a round, relative to the stiffest curvature; smaller is more
        exact and slower.
    noise : {"exact", "table"}, default="exact"
        For "sgld". "table": normals are read from random places of a table. Faster, and no
        privacy: refused unless the budget is ``PrivacyBudget.nonprivate()``.
    table_size : int, default=262144
        Normals in that table.
    n_draws : int, default=1
        The model is the mean of so many last sweeps, their factors rotated onto
        one another. More than 1 only without privacy: each draw costs the whole epsilon.
    nonprivate_diagnostics : bool, default=False
        Run four more chains and set ``nonprivate_diagnostics_``. It reads the
        ratings, is outside the guarantee, and is for the curator alone; the model is the same
        without.

    Examples
    --------
    >>> from skdpmf import DPMFSampler, PosteriorDraw, PrivacyBudget
    >>> model = DPMFSampler(PrivacyBudget(4.0), guarantee=PosteriorDraw(sampler="sgld"))
    >>> model.set_params(guarantee__step_size=0.5).guarantee
    PosteriorDraw(sampler='sgld', step_size=0.5)
    """

    sampler: str = "gibbs"
    calibration: str = "tight"
    weight_cap: float | None = None
    kappa: float = 0.0
    item_bias: bool | None = None
    user_std: float = 1.0
    item_std: float = 0.3
    bias_std: float = 0.5
    rating_std: float = 0.8
    sample_precisions: bool = False
    step_size: float = 2.0
    noise: str = "exact"
    table_size: int = 262144
    n_draws: int = 1
    nonprivate_diagnostics: bool = False

    def _check(self) -> None:
        for name, choices in (
            ("sampler", _SAMPLERS),
            ("calibration", CALIBRATIONS),
            ("noise", _NOISES),
        ):
            value = getattr(self, name)
            rule = " or ".join(map(repr, choices))
            require(value in choices, name, value, rule, f"{choices[0]!r} is the default")
        for name in ("n_draws", "table_size"):
            value = getattr(self, name)
            require(is_count(value), name, value, "an integer >= 1", "use the default")
        for name in ("user_std", "item_std", "bias_std", "rating_std", "step_size"):
            value = getattr(self, name)
            holds = is_finite(value) and value > 0
            require(holds, name, value, "a finite number > 0", "use the default")
        value = self.kappa
        require(is_finite(value) and value >= 0, "kappa", value, "a finite number >= 0", "use 0")
        value = self.weight_cap
        number = is_finite(value) or (isinstance(value, float) and value == np.inf)
        holds = value is None or (number and value > 0)
        require(holds, "weight_cap", value, "None or a number > 0", "inf for no cap, or 1")
        for name in ("item_bias", "sample_precisions", "nonprivate_diagnostics"):
            value = getattr(self, name)
            holds = isinstance(value, bool | np.bool_) or (name == "item_bias" and value is None)
            rule = "True, False or None" if name == "item_bias" else "True or False"
            require(holds, name, value, rule, "use the default")


class DPMFSampler(PrivateRecommender):
    """Private matrix factorization by Langevin dynamics, or by one sample of a posterior.

    Ratings are modelled as r_ij ~ m_j + o_i + <u_i, v_j>; only the items' side leaves `fit`. Lists
    are by predicted rating, and worse than the most popular items (Recall@20 .12 against .18 on
    MovieLens 1M, docs/benchmarks/lists.md).

    ``guarantee="every-step"`` (the default) runs `max_iter` steps of preconditioned Langevin
    dynamics on the items. Each step solves every user exactly on the user's own ratings and
    releases, with Gaussian noise, the sum over users of the gradients w_ij e_ij u_i, one factor per
    user clipping the whole of it, and of u_i u_i'. The guarantee is (epsilon, delta)-DP, exactly
    accounted, and holds at every step whether or not the chain converges. All steps count in the
    model, by a Kalman filter, around private item means. The ridges, the size of every factor and
    the noise of ratings are learnt from what is released: factors that the budget cannot learn, or
    that are not there, vanish.

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
    guarantee : {"every-step", "posterior"} or `PosteriorDraw`, default="every-step"
        See above. "posterior" stands for ``PosteriorDraw()``.
    n_components : int, default=8
        Rank k. For "every-step" the largest: a private fit begins with as many factors as the noisy
        item counts support at this budget, and the other rows of ``components_`` are zero.
    rating_range : tuple of float, default=(1.0, 5.0)
        Public smallest and largest rating. Ratings outside are clipped.
    item_features : {array-like, sparse matrix, DataFrame} of shape (n_items, d), default=None
        Public facts of the items, such as genres and years (`skdpmf.data.item_features`): a row for
        each column of X, in their order, or a DataFrame whose index are item ids, which X as a
        DataFrame or `RatingMatrix` names. They cost no budget if no rating, tag, review or count of
        these people is in them (docs/what-is-public.md). Each user has tastes for them beside the
        factors; with guarantee="every-step" item means lean on them as well.
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
    user_damping : float, default=10.0
        Penalty on a user's offset: as many fictitious ratings at the item means.
    random_state : int or None, default=None
        None: randomness from a fresh 256-bit key of the operating system. An int makes a fit on the
        same data with the same parameters repeatable, and voids the guarantee against anyone
        who can guess it; other data or parameters get unrelated noise.
    n_jobs : int or None, default=None
        Threads, as in joblib. Does not change the result.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_items)
        Released item factors V.T, in rating units.
    n_components_ : int
        Factors in use: rows of ``components_`` that are not all zero.
    item_means_ : ndarray of shape (n_items,)
        Released m_j, in rating units: the prediction for a user without ratings.
    privacy_spent_ : PrivacyStatement
        Release, its cost, its assumptions and its condition.
    nonprivate_diagnostics_ : Diagnostics or None
        Split R-hat and effective sample sizes of rotation-invariant quantities; None unless asked
        for. Never publish them.
    n_iter_ : int
        Steps or sweeps.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Item names, if X had string column names.

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

    n_iter_: int
    nonprivate_diagnostics_: Diagnostics | None
    _options: ClassVar[dict[str, Any]] = {
        "guarantee": {"every-step": None, "posterior": PosteriorDraw}
    }

    @with_old_spellings
    def __init__(
        self,
        budget: PrivacyBudget,
        *,
        guarantee: Any = "every-step",
        n_components: int = 8,
        rating_range: tuple[float, float] = (1.0, 5.0),
        item_features: Any = None,
        max_ratings_per_user: int | None = None,
        max_iter: int | None = None,
        alpha: float = 1.0,
        user_damping: float = 10.0,
        random_state: int | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.budget = budget
        self.guarantee = guarantee
        self.n_components = n_components
        self.rating_range = rating_range
        self.item_features = item_features
        self.max_ratings_per_user = max_ratings_per_user
        self.max_iter = max_iter
        self.alpha = alpha
        self.user_damping = user_damping
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def _draw(self) -> PosteriorDraw | None:
        draw: PosteriorDraw | None = self._chosen("guarantee")
        return draw

    @with_callbacks
    def fit(self, X: Any, y: Any = None, user_epsilon: Any = None) -> Any:
        """Fit and release the model.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Ratings, or a `RatingStore` or `ParquetRatings`.
        y : None, array-like of shape (n_users,) or matrix of shape (n_users, n_items)
            Held-out items or ratings of the same users. Only its kind is used, never its content:
            it decides what `predict` returns.
        user_epsilon : array-like of shape (n_users,), default=None
            Public privacy level of each user, from 0 (no influence at all) to the budget's
            epsilon. None: the budget's for everybody. Split with the rows by metadata routing:
            ``set_fit_request(user_epsilon=True)``.

        Returns
        -------
        self : estimator
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is invalid (checked before X is looked at), X is not a matrix of
            real numbers or holds an infinite one, or y or user_epsilon does not fit X. What
            else the rows hold raises and warns nothing.
        """
        return self._fit_rows(X, y, user_epsilon=user_epsilon)

    def _check_metadata(self, n_rows: int, **metadata: Any) -> None:
        self._check_levels(metadata["user_epsilon"], n_rows)

    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        if self._draw is None:
            return noisy_gradient.make_plan(self.budget, self._gradient_settings(), n_items)
        return posterior.make_plan(self.budget, self._posterior_settings(n_items), n_items)

    def _fit(self, R: Any, y: Any, plan: Any = None, included: Any = None, **metadata: Any) -> None:
        levels = self._check_levels(metadata["user_epsilon"], R.shape[0])
        super()._fit(R, y, plan, included, user_epsilon=levels)

    def _release(self, R: Any, plan: ReleasePlan, exchange: Exchange, **metadata: Any) -> Any:
        levels = metadata.get("user_epsilon")
        if levels is not None:
            R = without_rows(R, levels == 0.0)
        source = self._source(exchange, plan, R, levels)
        if self._draw is not None:
            return (self._posterior(R, source, levels), levels is not None), ()
        influence = None
        if levels is not None:
            n_rows = source.total_rows(R.shape[0])
            influence = noisy_gradient.personal_influence(levels, plan, n_rows)
        curator = self._curator(R, plan, source)
        model = noisy_gradient.fit(
            curator, self._gradient_settings(), rounds=self._rounds(), influence=influence
        )
        return (model, levels is not None), curator.record

    @property
    def _only_sums(self) -> bool:
        return self._draw is None

    def _publish(self, plan: ReleasePlan, released: Any) -> None:
        model, personal = released
        means, factors, ridge = model[:3]
        self._set_model(means, factors, ridge, float(self.user_damping))
        self.n_iter_ = self._n_rounds()
        self.nonprivate_diagnostics_: Diagnostics | None = None
        assumptions: tuple[str, ...] = ()
        if self._draw is not None:
            self.nonprivate_diagnostics_ = model.diagnostics
            n_items = model.item_bias.size
            assumptions = posterior.assumptions(self._posterior_settings(n_items))
        self._state(
            plan,
            assumptions=assumptions,
            personal=personal,
            not_covered=(
                ()
                if self.nonprivate_diagnostics_ is None
                else ("The attribute nonprivate_diagnostics_: it reads the ratings.",)
            ),
        )

    def _posterior(self, R: Any, source: NoiseSource, levels: Any) -> Any:
        return posterior.fit(
            R,
            self._posterior_settings(R.shape[1]),
            self.budget,
            source,
            rounds=self._rounds(),
            levels=levels,
            diagnose=self._chosen("guarantee").nonprivate_diagnostics,
            n_jobs=self.n_jobs,
        )

    def _source(self, exchange: Exchange, plan: ReleasePlan, R: Any, levels: Any) -> Any:
        settings: Any = self._gradient_settings()
        if self._draw is not None:
            settings = self._posterior_settings(R.shape[1])
        return self._noise(exchange, plan, settings, R, *(() if levels is None else (levels,)))

    def _n_rounds(self) -> int:
        if self.max_iter is not None:
            return int(self.max_iter)
        draw = self._draw
        return _ITERATIONS["every-step" if draw is None else draw.sampler]

    def _gradient_settings(self) -> noisy_gradient.Settings:
        cap = self.max_ratings_per_user
        return noisy_gradient.Settings(
            n_components=int(self.n_components),
            max_ratings_per_user=None if cap is None else int(cap),
            max_iter=self._n_rounds(),
            alpha=float(self.alpha),
            user_damping=float(self.user_damping),
        )

    def _posterior_settings(self, n_items: int = _CAP) -> posterior.Settings:
        draw, private, cap = (
            self._chosen("guarantee"),
            self.budget.is_private,
            self.max_ratings_per_user,
        )
        rho = draw.weight_cap
        if cap is None:
            cap = _CAP if private else n_items
        if rho is None:
            rho = np.inf if private and draw.sampler == "gibbs" else 1.0
        low, high = self.rating_range
        table = draw.sampler == "sgld" and draw.noise == "table"
        return posterior.Settings(
            n_components=int(self.n_components),
            max_ratings_per_user=int(cap),
            weight_cap=float(rho),
            kappa=float(draw.kappa) * 4.0 / (high - low),
            max_iter=self._n_rounds(),
            sampler=draw.sampler,
            calibration=draw.calibration,
            item_bias=not private if draw.item_bias is None else bool(draw.item_bias),
            user_std=float(draw.user_std),
            item_std=float(draw.item_std),
            bias_std=float(draw.bias_std),
            rating_std=float(draw.rating_std),
            sample_precisions=bool(draw.sample_precisions),
            step_size=float(draw.step_size),
            table_size=int(draw.table_size) if table else None,
            n_draws=int(draw.n_draws),
            alpha=float(self.alpha),
            user_damping=float(self.user_damping),
        )

    def _check_levels(self, user_epsilon: Any, n_rows: int) -> np.ndarray | None:
        """Check public levels; their errors may name values."""
        if user_epsilon is None:
            return None
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
                f"epsilon of the budget, {self.budget.epsilon!r}: raise the budget's, or lower it."
            )
        return levels

    def _check_params(self) -> None:
        super()._check_params()
        for name in ("n_components", "max_iter", "max_ratings_per_user"):
            value = getattr(self, name)
            if value is not None or name == "n_components":
                require(is_count(value), name, value, "an integer >= 1", "use the default")
        for name in ("alpha", "user_damping"):
            value = getattr(self, name)
            holds = is_finite(value) and value > 0
            require(holds, name, value, "a finite number > 0", "use the default")
        if self._draw is not None:
            self._check_draw(self._draw)
        self._make_plan(1)  # refuses budgets it cannot plan for

    def _check_draw(self, draw: PosteriorDraw) -> None:
        """Check what a draw asks for together with the other parameters."""
        private, table = self.budget.is_private, draw.noise == "table"
        holds = not table or draw.sampler == "sgld"
        require(holds, "noise", draw.noise, "'exact' unless sampler='sgld'", "use 'exact'")
        rule = "'exact' for a private fit, as a table of normals hides nobody"
        remedy = "use 'exact', or PrivacyBudget.nonprivate()"
        require(not (table and private), "noise", draw.noise, rule, remedy)
        smallest = max(2, int(self.n_components))
        holds = not table or int(draw.table_size) >= smallest
        rule = f"at least n_components and 2, here {smallest}"
        require(holds, "table_size", draw.table_size, rule, "use the default")
        n = int(draw.n_draws)
        rule = "1 for a private fit, as every draw costs the whole epsilon"
        remedy = "use 1, or PrivacyBudget.nonprivate()"
        require(n == 1 or not private, "n_draws", n, rule, remedy)
        rule = f"at most the {self._n_rounds()} sweeps"
        require(n <= self._n_rounds(), "n_draws", n, rule, "raise max_iter")
