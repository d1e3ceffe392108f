"""Parameters and plans of the estimators, one a file: the part of each without scikit-learn."""

from dataclasses import dataclass
from typing import Any

from skdpmf._lazy import lazy_names
from skdpmf.estimators.contract.parameters import Options, alone, require

__getattr__, __dir__ = lazy_names(
    __name__,
    *("adaptive_weight_als.AdaptiveWeightALSPlanner", "cache_sgd.CacheSGDFactorizerPlanner"),
    *("dp_covariance.DPCovarianceRecommenderPlanner", "dp_item_means.DPItemMeansPlanner"),
    *("dpmf_sampler.DPMFSamplerPlanner", "local_dpgddr.LocalDPGDDRPlanner"),
)


def planner_of(name: str) -> Any:
    """Return the planner of the estimator of this name, as a class of its own."""
    return alone(__getattr__(f"{name}Planner"))


@dataclass(repr=False)
class Clicks(Options):
    """Clicks, plays or purchases as what X holds (``feedback="implicit"``).

    Parameters
    ----------
    unobserved_weight : float, default=0.4
        Weight > 0 of the target 0 that every pair of a user and an item has, beside that of a
        click's target 1. Unused by `DPCovarianceRecommender`.
    weighting : {None, "log"}, default=None
        Weight of a click in [0, 1] from its stored value v > 0. None: min(v, 1), so that a count
        of plays says no more than one play. "log": (1 + log(1 + v) / log(1 + m)) / 2 with m the
        largest value of the same row, for counts that follow taste. Either is a function of one
        row: the bounds of all releases, and so the noise, are the same.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, Clicks, PrivacyBudget
    >>> AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), feedback=Clicks(weighting="log")).feedback
    Clicks(weighting='log')
    """

    unobserved_weight: float = 0.4
    weighting: str | None = None

    def _check(self) -> None:
        self._require_positive("unobserved_weight")
        holds = self.weighting in (None, "log")
        require(holds, "weighting", self.weighting, "None or 'log'", "None counts all clicks alike")
