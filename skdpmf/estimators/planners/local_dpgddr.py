"""Parameters of LocalDPGDDR, and its plan."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from skdpmf.estimators.contract.parameters import Options, PrivatePlanner, require
from skdpmf.exceptions import PrivacyParameterError, require_that
from skdpmf.mechanisms.device_reports import gradient
from skdpmf.mechanisms.device_reports import item_means as items
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.device_reports.randomizers import MAX_EPSILON
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan

_GRADIENT_ROUNDS = 5
_N_PARTS = 10  # of a round, for progress bars


@dataclass(repr=False)
class GradientReports(Options):
    """Gradients that devices report in every round, for `LocalDPGDDR` (Shin et al. 2018).

    Parameters
    ----------
    step_size : float, default=0.001
        Step of the item factors, in one round.
    user_step : float, default=0.03
        Step of the devices' u_i, in one round.
    alpha : float, default=0.01
        Strength of the L2 penalties on both kinds of factors.
    center : bool, default=True
        Whether a device subtracts its own damped mean from its ratings before all else. False: raw
        ratings and no o_i, as published.
    projection_dim : int or None, default=None
        q of Algorithm 2, for randomizer="coordinate".
    back_projection : {"unbiased", "pinv"}, default="unbiased"
        From q rows back to all items: by Phi', or by the pseudo-inverse, as published, which loses
        the part (1 - q / n_items) of every gradient.

    Examples
    --------
    >>> from skdpmf import GradientReports, LocalDPGDDR, PrivacyBudget
    >>> LocalDPGDDR(PrivacyBudget(4.0), method=GradientReports(alpha=0.1)).method
    GradientReports(alpha=0.1)
    """

    step_size: float = 1e-3
    user_step: float = 0.03
    alpha: float = 0.01
    center: bool = True
    projection_dim: int | None = None
    back_projection: str = "unbiased"

    def _check(self) -> None:
        self._require_between("step_size", "user_step", "alpha", least=0.0)
        self._require_switches("center", remedy="use True")
        self._require_counts("projection_dim", optional=True)
        self._require_choice("back_projection", ("unbiased", "pinv"))


@dataclass(repr=False, eq=False, kw_only=True)
class LocalDPGDDRPlanner(PrivatePlanner):
    """Parameters of `LocalDPGDDR`, and its plan."""

    _options: ClassVar[dict[str, Any]] = {"method": {"items": None, "gradient": GradientReports}}

    public: Any = None
    method: Any = "items"
    randomizer: Literal["privunit", "coordinate"] = "privunit"
    n_components: int = 8
    max_iter: int | None = None
    user_damping: float = 10.0

    @property
    def _gradients(self) -> GradientReports | None:
        """Return the options of reported gradients; None for method "items"."""
        return self._chosen("method")

    @property
    def _takes_public(self) -> bool:
        return self._gradients is None

    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        budget = PrivacyBudget(self.budget.epsilon, self.budget.delta, neighbors="replace")
        if self._gradients is not None:
            return gradient.make_plan(budget, self._gradient_settings(), n_items)
        if budget.is_private and self.randomizer == "privunit":
            PrivUnit(budget.epsilon, items.statistics_dimension(n_items) + 1)  # refuses its limits
        n_rounds = len(self._fractions(n_items, n_rows or 0))
        return items.make_plan(budget, n_items, n_rounds, self.randomizer)

    def _learnt(self) -> tuple[float, ...] | None:
        known = self._is_by_vectors or not (self._gradients or self.budget.is_private)
        return (0,) if known else None

    def _n_reports(self) -> int:
        """Return the largest number of rounds of the protocol."""
        if self._gradients is not None:
            return int(self.max_iter or _GRADIENT_ROUNDS)
        return int(self.max_iter or items.ROUNDS) if self._is_by_vectors else 1

    @property
    def _work_of_round(self) -> int:
        # a report of each device, which draws until it is in a set that is rare at a large epsilon
        return round(64 + 2 ** min(1.5 * float(self.budget.epsilon), 40.0))

    def _n_rounds(self) -> int:
        return self._n_reports() * (_N_PARTS if self._is_by_vectors else 1)

    @property
    def _is_by_vectors(self) -> bool:
        sums = self._gradients is None and self.randomizer == "privunit"
        return sums and self.budget.is_private

    def _fractions(self, n_items: int, n_rows: int) -> tuple[float, ...]:
        """Return the share of the devices in each round; n_rows 0: not known, taken as many."""
        if not self._is_by_vectors:
            return (1.0,)
        noise = items.mean_noise(float(self.budget.epsilon), n_items, n_rows)
        return items.fractions_of(noise, None if self.max_iter is None else int(self.max_iter))

    def _gradient_settings(self) -> gradient.Settings:
        reports, rounds = self._chosen("method"), self._n_reports()
        own = {"max_iter": rounds, "method": self.randomizer}
        own |= dict.fromkeys(("item_penalty", "user_penalty"), reports.alpha)
        return self._settled(gradient.Settings, reports, **own)

    def _check_params(self) -> None:
        super()._check_params()
        self._require_choice("randomizer", ("privunit", "coordinate"))
        self._require_counts("n_components")
        self._require_counts("max_iter", optional=True)
        self._require_between("user_damping")
        dim = getattr(self._gradients, "projection_dim", None)
        rule = "None but for randomizer='coordinate'"
        remedy = "the error of the other does not fall with the number of values"
        require(dim is None or self.randomizer == "coordinate", "projection_dim", dim, rule, remedy)
        self._check_budget()
        # refuses budgets that it cannot plan for
        self._make_plan(1 if dim is None else int(dim))

    def _check_budget(self) -> None:
        unit, rule = self.budget.unit, "'user': a device's report protects all its ratings "
        require_that(unit == "user", "unit", unit, f"{rule}together. Pass a budget of that unit.")
        each, where = float(self.budget.epsilon), ""
        if self._gradients is not None:
            each = gradient.report_epsilon(each, self._gradient_settings())
            where = f" over max_iter={self._n_reports()} rounds"
        if MAX_EPSILON < each < np.inf:
            raise PrivacyParameterError(
                f"epsilon={self.budget.epsilon!r}{where} must be at most {MAX_EPSILON:g} for a "
                "report, or infinite: pass less, or PrivacyBudget.nonprivate()."
            )
