"""The scikit-learn surface: one estimator a file."""

from typing import TYPE_CHECKING

from skdpmf._lazy import lazy_names

if TYPE_CHECKING:
    from skdpmf.estimators.adaptive_weight_als import AdaptiveWeightALS
    from skdpmf.estimators.cache_sgd import CacheSGDFactorizer
    from skdpmf.estimators.contract.model_file import load_model
    from skdpmf.estimators.dp_covariance import DPCovarianceRecommender
    from skdpmf.estimators.dp_item_means import DPItemMeans
    from skdpmf.estimators.dpmf_sampler import DPMFSampler
    from skdpmf.estimators.local_dpgddr import LocalDPGDDR
    from skdpmf.estimators.multi_task_ridge import private_multi_task_ridge

__all__ = ["AdaptiveWeightALS", "CacheSGDFactorizer", "DPCovarianceRecommender", "DPItemMeans"]
__all__ += ["DPMFSampler", "LocalDPGDDR", "load_model", "private_multi_task_ridge"]
__getattr__, __dir__ = lazy_names(
    __name__,
    *("adaptive_weight_als.AdaptiveWeightALS", "cache_sgd.CacheSGDFactorizer"),
    *("contract.model_file.load_model", "dp_covariance.DPCovarianceRecommender"),
    *("dp_item_means.DPItemMeans", "dpmf_sampler.DPMFSampler", "local_dpgddr.LocalDPGDDR"),
    *("multi_task_ridge.private_multi_task_ridge",),
)
