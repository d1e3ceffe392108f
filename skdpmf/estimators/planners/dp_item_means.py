"""Parameters of DPItemMeans, and its plan."""

from dataclasses import dataclass
from typing import Any

from skdpmf.estimators.contract.parameters import PrivatePlanner
from skdpmf.mechanisms.item_means import baseline as solver
from skdpmf.privacy.plan import ReleasePlan


@dataclass(repr=False, eq=False, kw_only=True)
class DPItemMeansPlanner(PrivatePlanner):
    """Parameters of `DPItemMeans`, and its plan."""

    public: Any = None
    _takes_models = True  # as public
    user_damping: float | None = None

    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        return solver.make_plan(self.budget, n_items)

    @property
    def _takes_public(self) -> bool:
        return self.budget.unit == "user" or not self.budget.is_private

    def _n_rounds(self) -> int:
        return solver.N_ROUNDS

    def _check_params(self) -> None:
        super()._check_params()
        if self.user_damping is not None:
            self._require_between("user_damping")
        self._make_plan(1)  # refuses budgets it cannot plan for
