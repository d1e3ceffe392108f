"""The scikit-learn surface: one estimator a file."""

from skdpmf._lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    *("adaptive_weight_als.AdaptiveWeightALS", "cache_sgd.CacheSGDFactorizer"),
    *("contract.model_file.load_model", "dp_covariance.DPCovarianceRecommender"),
    *("dp_item_means.DPItemMeans", "dpmf_sampler.DPMFSampler", "local_dpgddr.LocalDPGDDR"),
    "multi_task_ridge.private_multi_task_ridge",
)
__all__ = [name for name in __dir__() if name not in globals()]
