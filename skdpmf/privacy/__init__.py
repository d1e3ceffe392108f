"""Budget, accounting, sensitivities, sums, noise and statements: all a privacy reviewer reads."""

from typing import TYPE_CHECKING

from skdpmf._lazy import lazy_names

if TYPE_CHECKING:
    from skdpmf.privacy.budget import PrivacyBudget
    from skdpmf.privacy.plan import ReleasePlan
    from skdpmf.privacy.statement import PrivacyStatement

__all__ = ["PrivacyBudget", "PrivacyStatement", "ReleasePlan"]
__getattr__, __dir__ = lazy_names(
    __name__, *("budget.PrivacyBudget", "plan.ReleasePlan", "statement.PrivacyStatement")
)
