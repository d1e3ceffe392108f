"""Parameters and plans of the estimators, one a file: the part of each without scikit-learn."""

from typing import Any

from skdpmf._lazy import lazy_names
from skdpmf.estimators.contract.parameters import alone

__all__ = ["planner_of"]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "adaptive_weight_als": ("AdaptiveWeightALSPlanner",),
        "cache_sgd": ("CacheSGDFactorizerPlanner",),
        "dp_covariance": ("DPCovarianceRecommenderPlanner",),
        "dp_item_means": ("DPItemMeansPlanner",),
        "dpmf_sampler": ("DPMFSamplerPlanner",),
        "local_dpgddr": ("LocalDPGDDRPlanner",),
    },
)


def planner_of(name: str) -> Any:
    """Return the planner of the estimator of this name, as a class of its own."""
    return alone(__getattr__(f"{name}Planner"))
