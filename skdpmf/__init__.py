"""Differentially private matrix-factorization recommenders with the scikit-learn interface."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skdpmf.books.card import PrivacyCard
    from skdpmf.books.ledger import PrivacyLedger
    from skdpmf.estimators import (
        AdaptiveWeightALS,
        CacheSGDFactorizer,
        DPCovarianceRecommender,
        DPItemMeans,
        DPMFSampler,
        LocalDPGDDR,
        load_model,
        private_multi_task_ridge,
    )
    from skdpmf.estimators.adaptive_weight_als import DPALS, DPSGD, Clicks, Pooled
    from skdpmf.estimators.cache_sgd import Snapshots
    from skdpmf.estimators.dp_covariance import NearestItems, NoisyCovariance
    from skdpmf.estimators.dpmf_sampler import PosteriorDraw
    from skdpmf.estimators.local_dpgddr import GradientReports, ResponseReports
    from skdpmf.evaluation import privacy_spent, recommender_of
    from skdpmf.privacy import PrivacyBudget

__version__ = "0.1.0.dev0"
__all__ = [
    "DPALS",
    "DPSGD",
    "AdaptiveWeightALS",
    "CacheSGDFactorizer",
    "Clicks",
    "DPCovarianceRecommender",
    "DPItemMeans",
    "DPMFSampler",
    "GradientReports",
    "LocalDPGDDR",
    "NearestItems",
    "NoisyCovariance",
    "Pooled",
    "PosteriorDraw",
    "PrivacyBudget",
    "PrivacyCard",
    "PrivacyLedger",
    "ResponseReports",
    "Snapshots",
    "load_model",
    "privacy_spent",
    "private_multi_task_ridge",
    "recommender_of",
]
_PARTS = ("data", "distributed", "estimators", "local", "privacy")


def __getattr__(name: str) -> Any:
    # Nothing is imported before it is wanted: the command line's help needs none of it.
    home: Any
    if name in ("privacy_spent", "recommender_of"):
        import skdpmf.evaluation as home
    elif name == "PrivacyBudget":
        import skdpmf.privacy as home
    elif name == "PrivacyCard":
        import skdpmf.books.card as home
    elif name == "PrivacyLedger":
        import skdpmf.books.ledger as home
    elif name in ("DPALS", "DPSGD", "Clicks", "Pooled"):
        import skdpmf.estimators.adaptive_weight_als as home
    elif name == "Snapshots":
        import skdpmf.estimators.cache_sgd as home
    elif name in ("NearestItems", "NoisyCovariance"):
        import skdpmf.estimators.dp_covariance as home
    elif name == "PosteriorDraw":
        import skdpmf.estimators.dpmf_sampler as home
    elif name in ("GradientReports", "ResponseReports"):
        import skdpmf.estimators.local_dpgddr as home
    elif name in __all__:
        import skdpmf.estimators as home
    elif name in _PARTS:
        import skdpmf.estimators  # noqa: F401  which imports them all

        return globals()[name]
    else:
        raise AttributeError(f"module 'skdpmf' has no attribute {name!r}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
