"""AdaptiveWeightALS: private alternating least squares, budget shifted to rare items."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from skdpmf.data.scale import middle_and_quarter
from skdpmf.distributed.exchange import Exchange
from skdpmf.estimators.contract.options import Options, with_old_spellings
from skdpmf.estimators.contract.parameters import is_count, is_finite, require
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.estimators.contract.recommend import _ONE_BLAS_THREAD, ItemModel
from skdpmf.mechanisms.als import (
    clicks,
    dpals,
    dpals_clicks,
    dpsgd,
    dpsgd_clicks,
    pooled,
    pooled_clicks,
    ratings,
    variational,
)
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan

__all__ = ["DPALS", "DPSGD", "AdaptiveWeightALS", "Clicks", "Pooled"]

_SOLVERS: dict[str, Any] = {"pooled": pooled, "dpals": dpals, "dpsgd": dpsgd}
_CLICK_SOLVERS: dict[str, Any] = {
    "pooled": pooled_clicks,
    "dpals": dpals_clicks,
    "dpsgd": dpsgd_clicks,
}
_ROUNDS, _EXACT_ROUNDS = {"pooled": 15, "dpals": 10, "dpsgd": 10}, 10
_CLICK_ROUNDS = {**_ROUNDS, "pooled": 5}
_N_COMPONENTS, _EXACT_COMPONENTS = 16, 32
_WEIGHTINGS = ("adaptive", "tail", "uniform")
_DEFAULT_CAP = 100  # ratings a user under the sampling baselines, as in their papers
_RATINGS_EXPONENT = 0.25
_INNER_STEPS = 4  # of DPSGD, and in the key of seeded noise
_LIST_SHARE = 0.25  # of mu^2: errors of ratings grow by a percent, recall of lists three times


def _check_exponent(value: Any) -> None:
    holds = value is None or (is_finite(value) and value >= 0)
    require(holds, "weight_exponent", value, "a finite number >= 0 or None", "use the default")


def _check_share(value: Any) -> None:
    holds = value == "auto" if isinstance(value, str) else value is None or is_finite(value)
    holds = holds and (value is None or isinstance(value, str) or 0.0 < value < 1.0)
    rule = "'auto', a number between 0 and 1, or None"
    require(holds, "list_share", value, rule, "use 'auto'")


@dataclass(repr=False)
class Pooled(Options):
    """Item step of `AdaptiveWeightALS` that pools the gradients of all rounds: the default.

    Parameters
    ----------
    list_share : "auto", float or None, default="auto"
        Share of the budget (of mu^2) for what people choose to rate: one Gram matrix of the rated
        items, by which `recommend` ranks beside the predicted rating
        (`skdpmf.mechanisms.gram.item_item`). "auto": a quarter. None: nothing; lists are by
        predicted rating alone, and worse than the most popular items (docs/benchmarks/lists.md).
        Unused for clicks.
    weight_exponent : float or None, default=None
        Exponent mu >= 0 of the weights; 0 weighs all of a user's ratings alike. None: 0.25 for
        ratings and 0 for clicks: lists of few items gain more from popular items.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, Pooled, PrivacyBudget
    >>> model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), solver=Pooled(list_share=None))
    >>> model.get_params()["solver__list_share"] is None
    True
    """

    list_share: Any = "auto"
    weight_exponent: float | None = None

    def _check(self) -> None:
        _check_share(self.list_share)
        _check_exponent(self.weight_exponent)


@dataclass(repr=False)
class DPALS(Options):
    """Item step of `AdaptiveWeightALS` from published sufficient statistics (Krichene et al. 2023).

    Each round releases A_j = sum_i w_ij phi_i phi_i' of every item beside the gradients g_j.

    Parameters
    ----------
    weighting : {"adaptive", "tail", "uniform"}, default="adaptive"
        "adaptive": all (kept) ratings of a user, with weights in proportion to
        N_j^-weight_exponent. The baselines: "uniform" keeps `max_ratings_per_user` random ratings a
        user with equal weights, "tail" those of the least popular items by the noisy counts.
    weight_exponent : float or None, default=None
        Exponent mu >= 0 of the adaptive weights; 0 weighs all of a user's ratings alike. Unused
        by the baselines. None: 0.25 for ratings and 0 for clicks.
    item_means : bool, default=True
        Whether m_j and o_i are modelled. False: factors only, around the middle of the range.
        Clicks have factors only, whatever this says.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, DPALS, PrivacyBudget
    >>> model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), solver=DPALS(weighting="tail"))
    >>> model.set_params(solver__weighting="uniform").solver
    DPALS(weighting='uniform')
    """

    weighting: str = "adaptive"
    weight_exponent: float | None = None
    item_means: bool = True

    def _check(self) -> None:
        rule = "'adaptive', 'tail' or 'uniform'"
        remedy = "use 'adaptive' unless you compare baselines"
        require(self.weighting in _WEIGHTINGS, "weighting", self.weighting, rule, remedy)
        _check_exponent(self.weight_exponent)
        holds = isinstance(self.item_means, bool | np.bool_)
        require(holds, "item_means", self.item_means, "True or False", "use the default")


@dataclass(repr=False)
class DPSGD(DPALS):
    """Item step of `AdaptiveWeightALS` by noisy gradient descent (Krichene et al. 2023).

    A round takes steps of gradient descent, each from one release of the gradients g_j alone at the
    latest item vectors, on all users.

    Parameters
    ----------
    weighting : {"adaptive", "tail", "uniform"}, default="adaptive"
        As for `DPALS`, and the next two.
    weight_exponent : float or None, default=None
        Exponent of the adaptive weights.
    item_means : bool, default=True
        Whether m_j and o_i are modelled.
    n_inner_steps : int, default=4
        Steps of a round. Each is a release.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, DPSGD, PrivacyBudget
    >>> AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), solver=DPSGD(n_inner_steps=2)).solver
    DPSGD(n_inner_steps=2)
    """

    n_inner_steps: int = 4

    def _check(self) -> None:
        super()._check()
        value = self.n_inner_steps
        require(is_count(value), "n_inner_steps", value, "an integer >= 1", "use the default")


@dataclass(repr=False)
class Clicks(Options):
    """Clicks, plays or purchases as what X holds (``feedback="implicit"``).

    Parameters
    ----------
    unobserved_weight : float, default=0.4
        Weight > 0 of the target 0 that every pair of a user and an item has, beside that of a
        click's target 1.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, Clicks, PrivacyBudget
    >>> AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), feedback=Clicks(unobserved_weight=0.2)).feedback
    Clicks(unobserved_weight=0.2)
    """

    unobserved_weight: float = 0.4

    def _check(self) -> None:
        value = self.unobserved_weight
        holds = is_finite(value) and value > 0
        require(holds, "unobserved_weight", value, "a finite number > 0", "use the default")


class AdaptiveWeightALS(PrivateRecommender):
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
    n_components : int or None, default=None
        Largest rank k. A private fit uses as many factors as the noisy item counts support at
        this budget, and none where they would drown in noise; the other rows of
        ``components_`` are zero. None: 16; without privacy and with "pooled" 32 for ratings, of
        which those that are not needed vanish, and for clicks 1 to 128: twice as many as there are
        tastes that random clicks would not show. With the other solvers it is the rank without
        privacy.
    rating_range : tuple of float, default=(1.0, 5.0)
        Public smallest and largest rating. Ratings outside are clipped. Unused for clicks.
    item_features : {array-like, sparse matrix, DataFrame} of shape (n_items, d), default=None
        Public facts of the items, such as genres and years (`skdpmf.data.item_features`): a row for
        each column of X, in their order, or a DataFrame whose index are item ids, which X as a
        DataFrame or `RatingMatrix` names. They cost no budget if no rating, tag, review or count of
        these people is in them (docs/what-is-public.md). Item means and, with "pooled", factors
        lean on them, and the fold-in of a user includes tastes for them.
    feedback : {"explicit", "implicit"} or `Clicks`, default="explicit"
        "explicit": X holds ratings. "implicit": a stored value in (0, 1] is a click of this weight,
        a larger one a click of weight 1, and 0 or less is no click. `predict` then gives scores
        within [0, 1], and `score` is the recall of held-out clicks among 20 recommended items.
    solver : {"pooled", "dpals", "dpsgd"}, `Pooled`, `DPALS` or `DPSGD`, default="pooled"
        Item step. A string stands for the options' defaults. "pooled": see above. The published
        ones, with the same item means, start and user step: `DPALS`, sufficient statistics of each
        item beside the gradients; `DPSGD`, several steps of gradient descent a round.
    max_ratings_per_user : int or None, default=None
        tau: at most so many ratings of each user enter the releases (fold-in uses all). None: all,
        but 100 under the weightings "tail" and "uniform" of `DPALS` and `DPSGD`.
    max_iter : int or None, default=None
        Rounds; None: 15 for "pooled", 5 of clicks, 10 for the others and without privacy. Fixed in
        advance: convergence would depend on the data.
    alpha : float, default=1.0
        Strength of the L2 penalties on user and item factors, relative to the built-in ones. Where
        penalties are learnt, alpha multiplies the learnt penalty of the fold-in alone.
        Penalties of clicks with "pooled" without privacy grow with a user's and an item's clicks.
    user_damping : float, default=10.0
        Penalty on a user's offset: as many fictitious ratings at the item means. Unused for
        clicks, and where it is learnt.
    random_state : int or None, default=None
        None: noise from a fresh 256-bit key of the operating system. An int makes a fit on the
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
        Released m_j, in rating units: the prediction for a user without ratings. With clicks the
        released popularity, scaled to a thousandth at most: it ranks where factors say nothing.
    privacy_spent_ : PrivacyStatement
        Releases with their noise, their cost and their assumptions.
    n_iter_ : int
        Rounds made.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Item names, if X had string column names.

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

    n_iter_: int
    _options: ClassVar[dict[str, Any]] = {
        "feedback": {"explicit": None, "implicit": Clicks},
        "solver": {"pooled": Pooled, "dpals": DPALS, "dpsgd": DPSGD},
    }
    _old_values: ClassVar[dict[str, Any]] = {"solver": {"ssp": "dpals"}}

    @with_old_spellings
    def __init__(
        self,
        budget: PrivacyBudget,
        *,
        n_components: int | None = None,
        rating_range: tuple[float, float] = (1.0, 5.0),
        item_features: Any = None,
        feedback: Any = "explicit",
        solver: Any = "pooled",
        max_ratings_per_user: int | None = None,
        max_iter: int | None = None,
        alpha: float = 1.0,
        user_damping: float = 10.0,
        random_state: int | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.budget = budget
        self.n_components = n_components
        self.rating_range = rating_range
        self.item_features = item_features
        self.feedback = feedback
        self.solver = solver
        self.max_ratings_per_user = max_ratings_per_user
        self.max_iter = max_iter
        self.alpha = alpha
        self.user_damping = user_damping
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        return self._solver().make_plan(self.budget, self._settings(), n_items)

    @property
    def _exact_clicks(self) -> bool:
        return (
            self._implicit and self._shorthand("solver") == "pooled" and not self.budget.is_private
        )

    @property
    def _exact_ratings(self) -> bool:
        return self._pooled_ratings and not self.budget.is_private

    @property
    def _pooled_ratings(self) -> bool:
        return not self._implicit and self._shorthand("solver") == "pooled"

    def _solver(self) -> Any:
        if self._exact_ratings:
            return variational
        return (_CLICK_SOLVERS if self._implicit else _SOLVERS)[self._shorthand("solver")]

    def _release(self, R: Any, plan: ReleasePlan, exchange: Exchange, **metadata: Any) -> Any:
        settings = self._settings()
        # its products are small, and a seeded fit must not depend on them
        with _ONE_BLAS_THREAD:
            noise = self._noise(exchange, plan, settings, R)
            curator = self._curator(R, plan, noise)
            known: dict[str, Any] = {} if self._prior_ is None else {"known": self._prior_}
            model = self._solver().fit(curator, settings, rounds=self._rounds(), **known)
        return model, curator.record

    def _publish(self, plan: ReleasePlan, released: Any) -> None:
        model = released
        self._ranking_, self._knowledge_ = None, None
        if self._implicit:
            self._knowledge_ = model.knowledge
            self.item_means_ = model.offsets
            self._item_model_ = ItemModel(
                *(model.offsets, model.columns, model.ridge, model.rating_ridge),
                prior=model.prior,
                implicit=True,
            )
            self.components_ = model.columns[:, model.n_lead :].T.copy()
        elif self._pooled_ratings:
            self._set_columns(*model[:5])
            self._knowledge_ = model.knowledge
            self._set_ranking(model.lists)
            self.components_ = self._item_model_.factors[:, pooled.N_LEAD :].T.copy()
        else:
            damping = float(self.user_damping) if self._chosen("solver").item_means else None
            self._set_model(model.item_means, model.factors, model.ridge, damping)
        self.n_iter_ = self._n_rounds()
        self._state(plan)

    def _item_weights(self) -> np.ndarray:
        if not self._pooled_ratings:
            return super()._item_weights()
        unit = middle_and_quarter(self.rating_range)[1]
        return pooled.released_popularity(self._item_model_.factors / unit) ** 0.5

    def _n_rounds(self) -> int:
        if self.max_iter is None and self._exact_clicks:
            return pooled_clicks.EXACT_ROUNDS
        if self.max_iter is None and self._exact_ratings:
            return _EXACT_ROUNDS
        if self.max_iter is None:
            return (_CLICK_ROUNDS if self._implicit else _ROUNDS)[self._shorthand("solver")]
        return int(self.max_iter)

    def _rank(self) -> int:
        if self.n_components is not None:
            return int(self.n_components)
        if self._exact_clicks:
            return pooled_clicks.MOST_FACTORS
        return _EXACT_COMPONENTS if self._exact_ratings else _N_COMPONENTS

    def _settings(self) -> ratings.Settings:
        solver, cap = self._chosen("solver"), self.max_ratings_per_user
        weighting = getattr(solver, "weighting", "adaptive")
        if cap is None and weighting != "adaptive":
            cap = _DEFAULT_CAP
        exponent = solver.weight_exponent
        if exponent is None:
            exponent = 0.0 if self._implicit else _RATINGS_EXPONENT
        common: dict[str, Any] = {
            "n_components": self._rank(),
            "weighting": weighting,
            "weight_exponent": float(exponent),
            "max_ratings_per_user": None if cap is None else int(cap),
            "max_iter": self._n_rounds(),
            "alpha": float(self.alpha),
            "user_damping": float(self.user_damping),
            "item_means": bool(getattr(solver, "item_means", True)),
        }
        n_inner_steps = int(getattr(solver, "n_inner_steps", _INNER_STEPS))
        if self._implicit:
            weight = float(self._chosen("feedback").unobserved_weight)
            common["chooses_rank"] = self._exact_clicks and self.n_components is None
            return clicks.Settings(**common, unobserved_weight=weight, n_inner_steps=n_inner_steps)
        if isinstance(solver, Pooled):
            share = _LIST_SHARE if solver.list_share == "auto" else float(solver.list_share or 0.0)
            return pooled.Settings(**common, list_share=share)
        if isinstance(solver, DPSGD):
            return dpsgd.Settings(**common, n_inner_steps=n_inner_steps)
        return ratings.Settings(**common)

    def _check_params(self) -> None:
        super()._check_params()
        for name in ("n_components", "max_iter", "max_ratings_per_user"):
            value = getattr(self, name)
            if value is not None:
                require(is_count(value), name, value, "an integer >= 1", "use the default")
        for name in ("alpha", "user_damping"):
            value = getattr(self, name)
            holds = is_finite(value) and value > 0
            require(holds, name, value, "a finite number > 0", "use the default")
        if self._prior_ is not None:
            least = self._prior_.rank
            rule = f"{least} at least, the factors of the model that is refreshed"
            holds = self._rank() >= least
            require(holds, "n_components", self.n_components, rule, "fit anew with fewer")
        self._make_plan(1)  # refuses budgets it cannot plan for
