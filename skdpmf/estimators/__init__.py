"""The scikit-learn surface: one estimator a file."""

from skdpmf.estimators.adaptive_weight_als import AdaptiveWeightALS
from skdpmf.estimators.cache_sgd import CacheSGDFactorizer
from skdpmf.estimators.contract.model_file import load_model
from skdpmf.estimators.dp_covariance import DPCovarianceRecommender
from skdpmf.estimators.dp_item_means import DPItemMeans
from skdpmf.estimators.dpmf_sampler import DPMFSampler
from skdpmf.estimators.local_dpgddr import LocalDPGDDR
from skdpmf.estimators.multi_task_ridge import private_multi_task_ridge

__all__ = [
    "AdaptiveWeightALS",
    "CacheSGDFactorizer",
    "DPCovarianceRecommender",
    "DPItemMeans",
    "DPMFSampler",
    "LocalDPGDDR",
    "load_model",
    "private_multi_task_ridge",
]
