"""Parameters of AdaptiveWeightALS, and its plan."""

from dataclasses import dataclass
from typing import Any, ClassVar

from skdpmf.estimators.contract.parameters import Options, PrivatePlanner, is_finite, require
from skdpmf.estimators.planners import Clicks
from skdpmf.mechanisms.als import clicks, dpals, loop, pooled, pooled_clicks, variational
from skdpmf.mechanisms.item_means.joint_release import FIT_DAMPING, FOLD_IN_DAMPING
from skdpmf.privacy.plan import ReleasePlan

_SOLVERS: dict[str, Any] = {"pooled": pooled, "dpals": dpals}
_CLICK_SOLVERS: dict[str, Any] = {**_SOLVERS, "pooled": pooled_clicks}
_ROUNDS = {"pooled": 15, "dpals": 10}
_CLICK_ROUNDS = {**_ROUNDS, "pooled": 5}
_N_COMPONENTS, _EXACT_COMPONENTS = 16, 32
_WEIGHTINGS = ("adaptive", "tail", "uniform")
_DEFAULT_CAP = 100  # ratings a user under the sampling baselines, as in their papers
_RATINGS_EXPONENT = 0.25
_LIST_SHARE = 0.25  # of mu^2: errors of ratings grow by a percent, recall of lists three times


def _check_exponent(value: Any) -> None:
    holds = value is None or (is_finite(value) and value >= 0)
    require(holds, "weight_exponent", value, "a finite number >= 0 or None", "use the default")


@dataclass(repr=False)
class Pooled(Options):
    """Item step of `AdaptiveWeightALS` that pools the gradients of all rounds: the default.

    Parameters
    ----------
    list_share : "auto", float or None, default="auto"
        Share of the budget (of mu^2) for what people choose to rate: one Gram matrix of the rated
        items, by which `recommend` ranks beside the predicted rating
        (`skdpmf.mechanisms.gram.item_item`). "auto": a quarter. None: nothing; lists are by
        popularity and by predicted rating alone (docs/benchmarks/lists.md).
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
        share, rule = self.list_share, "'auto', a number between 0 and 1, or None"
        is_word = share is None or isinstance(share, str)
        holds = share in ("auto", None) if is_word else is_finite(share) and 0.0 < share < 1.0
        require(holds, "list_share", share, rule, "use 'auto'")
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
        self._require_switches("item_means")


@dataclass(repr=False, eq=False, kw_only=True)
class AdaptiveWeightALSPlanner(PrivatePlanner):
    """Parameters of `AdaptiveWeightALS`, and its plan."""

    _options: ClassVar[dict[str, Any]] = {
        "feedback": {"explicit": None, "implicit": Clicks},
        "solver": {"pooled": Pooled, "dpals": DPALS},
    }

    public: Any = None
    n_components: int | None = None
    feedback: Any = "explicit"
    solver: Any = "pooled"
    max_ratings_per_user: int | None = None
    max_iter: int | None = None
    alpha: float = 1.0
    user_damping: float | None = None

    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        return self._solver().make_plan(self.budget, self._settings(), n_items)

    def _learnt(self) -> tuple[float, ...] | None:
        a, rounds = pooled.constant_weight(self.budget), 0.5 * (self._n_rounds() + 1)
        terms = self._rank(), a, pooled.CLIP * (1.0 + a * a) ** 0.5, 1.0, rounds
        return terms if self._shorthand("solver") == "pooled" else None

    @property
    def _is_exact(self) -> bool:
        return self._shorthand("solver") == "pooled" and not self.budget.is_private

    @property
    def _takes_models(self) -> bool:
        return not self._implicit  # exact models of clicks do not say how many people they hold

    @property
    def _takes_public(self) -> bool:
        return self._shorthand("solver") == "pooled"

    def _solver(self) -> Any:
        if self._is_exact and not self._implicit:
            return variational
        return (_CLICK_SOLVERS if self._implicit else _SOLVERS)[self._shorthand("solver")]

    def _n_rounds(self) -> int:
        if self.max_iter is not None:
            return int(self.max_iter)
        if self._is_exact:
            return pooled.EXACT_ROUNDS
        return (_CLICK_ROUNDS if self._implicit else _ROUNDS)[self._shorthand("solver")]

    def _rank(self) -> int:
        if self.n_components is not None:
            return int(self.n_components)
        if self._is_exact:
            return pooled_clicks.MOST_FACTORS if self._implicit else _EXACT_COMPONENTS
        return _N_COMPONENTS

    def _settings(self) -> loop.Settings:
        solver, cap = self._chosen("solver"), self.max_ratings_per_user
        weighting = getattr(solver, "weighting", "adaptive")
        if cap is None and weighting != "adaptive":
            cap = _DEFAULT_CAP
        exponent = solver.weight_exponent
        if exponent is None:
            exponent = 0.0 if self._implicit else _RATINGS_EXPONENT
        share = getattr(solver, "list_share", None)
        of_ratings = pooled.Settings if isinstance(solver, Pooled) else loop.Settings
        return self._settled(
            clicks.Settings if self._implicit else of_ratings,
            self._chosen("feedback"),
            n_components=self._rank(),
            weighting=weighting,
            weight_exponent=exponent,
            max_ratings_per_user=cap,
            max_iter=self._n_rounds(),
            user_damping=self._damping(FIT_DAMPING),
            fold_in_damping=self._damping(FOLD_IN_DAMPING),
            item_means=getattr(solver, "item_means", True),
            list_share=_LIST_SHARE if share == "auto" else share or 0.0,
            chooses_rank=self._implicit and self._is_exact and self.n_components is None,
        )

    def _check_params(self) -> None:
        super()._check_params()
        self._require_counts("n_components", "max_iter", "max_ratings_per_user", optional=True)
        self._require_positive("alpha")
        self._require_positive("user_damping", optional=True)
        self._make_plan(1)  # refuses budgets it cannot plan for
