"""Differentially private matrix-factorization recommenders with the scikit-learn interface."""

from skdpmf.estimators import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPMFSampler,
    LocalDPGDDR,
)
from skdpmf.privacy import PrivacyBudget, PrivacyLedger

__version__ = "0.1.0.dev0"
__all__ = [
    "AdaptiveWeightALS",
    "CacheSGDFactorizer",
    "DPCovarianceRecommender",
    "DPMFSampler",
    "LocalDPGDDR",
    "PrivacyBudget",
    "PrivacyLedger",
]
