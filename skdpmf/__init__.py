"""Differentially private matrix-factorization recommenders with the scikit-learn interface."""

from skdpmf.estimators import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    private_multi_task_ridge,
)
from skdpmf.evaluation import privacy_spent
from skdpmf.privacy import PrivacyBudget, PrivacyLedger

__version__ = "0.1.0.dev0"
__all__ = [
    "AdaptiveWeightALS",
    "CacheSGDFactorizer",
    "DPCovarianceRecommender",
    "DPItemMeans",
    "DPMFSampler",
    "LocalDPGDDR",
    "PrivacyBudget",
    "PrivacyLedger",
    "privacy_spent",
    "private_multi_task_ridge",
]
