"""Differentially private matrix-factorization recommenders with the scikit-learn interface."""

from typing import TYPE_CHECKING, Any

from skdpmf.estimators import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    load_catalogue,
    load_model,
    private_multi_task_ridge,
)
from skdpmf.privacy import PrivacyBudget, PrivacyLedger

if TYPE_CHECKING:
    from skdpmf.evaluation import privacy_spent

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
    "load_catalogue",
    "load_model",
    "privacy_spent",
    "private_multi_task_ridge",
]


def __getattr__(name: str) -> Any:
    # `evaluation` imports scikit-learn's model selection: only where it is wanted
    if name == "privacy_spent":
        from skdpmf.evaluation import privacy_spent

        return privacy_spent
    raise AttributeError(f"module 'skdpmf' has no attribute {name!r}")
