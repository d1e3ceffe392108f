"""Parameters of DPMFSampler, and its plan."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from skdpmf.estimators.contract.parameters import Options, PrivatePlanner, is_finite, require
from skdpmf.mechanisms import noisy_gradient
from skdpmf.mechanisms.item_means.joint_release import FIT_DAMPING
from skdpmf.mechanisms.posterior_draw import draw as posterior
from skdpmf.mechanisms.posterior_draw.guarantee import CALIBRATIONS
from skdpmf.privacy.plan import ReleasePlan

_CAP = 200  # ratings a user in the posterior, as in the paper
_DEVIATIONS = ("user_std", "item_std", "bias_std", "rating_std")
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
        self._require_choice("sampler", ("gibbs", "sgld"))
        self._require_choice("calibration", CALIBRATIONS)
        self._require_choice("noise", ("exact", "table"))
        self._require_counts("n_draws", "table_size")
        self._require_positive(*_DEVIATIONS, "step_size")
        rule = "a finite number >= 0"
        self._require(("kappa",), lambda x: is_finite(x) and x >= 0, rule, "use 0")
        if self.weight_cap is not None and self.weight_cap != np.inf:
            rule, remedy = "None or a number > 0", "use inf for no cap, or 1"
            self._require(("weight_cap",), lambda x: is_finite(x) and x > 0, rule, remedy)
        rule = "True, False or None"
        self._require(("item_bias",), lambda x: x is None or isinstance(x, bool | np.bool_), rule)
        self._require_switches("sample_precisions", "nonprivate_diagnostics")


@dataclass(repr=False, eq=False, kw_only=True)
class DPMFSamplerPlanner(PrivatePlanner):
    """Parameters of `DPMFSampler`, and its plan."""

    _options: ClassVar[Any] = {"guarantee": {"every-step": None, "posterior": PosteriorDraw}}

    public: Any = None
    guarantee: Any = "every-step"
    n_components: int = 8
    max_ratings_per_user: int | None = None
    max_iter: int | None = None
    alpha: float = 1.0
    user_damping: float | None = None

    @property
    def _takes_public(self) -> bool:
        return self._draw is None

    @property
    def _draw(self) -> PosteriorDraw | None:
        return self._chosen("guarantee")

    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        if self._draw is None:
            return noisy_gradient.make_plan(self.budget, self._gradient_settings(), n_items)
        return posterior.make_plan(self.budget, self._posterior_settings(n_items), n_items)

    def _learnt(self) -> tuple[float, ...] | None:
        own, budget = noisy_gradient, self.budget
        steps = own.MEAN_SQUARE, (1.0 - own.STARTING) * self._n_rounds()
        terms = own.CONSTANT, own.gradient_clip(budget), *steps
        return (int(self.n_components), *terms) if self._draw is None else None

    @property
    def _work_of_round(self) -> int:
        return 1 if self._draw is None else 1 << 26  # a chain compiles in any case

    def _n_rounds(self) -> int:
        if self.max_iter is not None:
            return int(self.max_iter)
        draw = self._draw
        return _ITERATIONS["every-step" if draw is None else draw.sampler]

    def _gradient_settings(self) -> noisy_gradient.Settings:
        own = {"max_iter": self._n_rounds(), "user_damping": self._damping(FIT_DAMPING)}
        return self._settled(noisy_gradient.Settings, **own)

    def _posterior_settings(self, n_items: int = _CAP) -> posterior.Settings:
        draw, cap = self._chosen("guarantee"), self.max_ratings_per_user
        private, rho = self.budget.is_private, draw.weight_cap
        if cap is None:
            cap = _CAP if private else n_items
        if rho is None:
            rho = np.inf if private and draw.sampler == "gibbs" else 1.0
        low, high = self.rating_range
        table = draw.sampler == "sgld" and draw.noise == "table"
        return self._settled(
            *(posterior.Settings, draw),
            max_ratings_per_user=cap,
            weight_cap=rho,
            kappa=float(draw.kappa) * 4.0 / (high - low),
            max_iter=self._n_rounds(),
            item_bias=not private if draw.item_bias is None else draw.item_bias,
            table_size=draw.table_size if table else None,
            user_damping=self._damping(FIT_DAMPING),
        )

    def _check_params(self) -> None:
        super()._check_params()
        self._require_counts("n_components")
        self._require_counts("max_iter", "max_ratings_per_user", optional=True)
        self._require_positive("alpha")
        self._require_positive("user_damping", optional=True)
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
