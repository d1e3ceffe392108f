"""Differentially private matrix-factorization recommenders with the scikit-learn interface."""

from typing import TYPE_CHECKING

from skdpmf._lazy import lazy_names

if TYPE_CHECKING:
    from skdpmf.books.card import PrivacyCard
    from skdpmf.books.ledger import PrivacyLedger
    from skdpmf.estimators.adaptive_weight_als import AdaptiveWeightALS
    from skdpmf.estimators.cache_sgd import CacheSGDFactorizer
    from skdpmf.estimators.contract.model_file import load_model
    from skdpmf.estimators.dp_covariance import DPCovarianceRecommender
    from skdpmf.estimators.dp_item_means import DPItemMeans
    from skdpmf.estimators.dpmf_sampler import DPMFSampler
    from skdpmf.estimators.local_dpgddr import LocalDPGDDR
    from skdpmf.estimators.multi_task_ridge import private_multi_task_ridge
    from skdpmf.estimators.planners import Clicks
    from skdpmf.estimators.planners.adaptive_weight_als import DPALS, Pooled
    from skdpmf.estimators.planners.cache_sgd import Snapshots
    from skdpmf.estimators.planners.dp_covariance import NearestItems, NoisyCovariance
    from skdpmf.estimators.planners.dpmf_sampler import PosteriorDraw
    from skdpmf.estimators.planners.local_dpgddr import GradientReports
    from skdpmf.evaluation import privacy_spent, recommender_of
    from skdpmf.privacy import PrivacyBudget

__version__ = "0.1.0.dev0"
__all__ = ["DPALS", "AdaptiveWeightALS", "CacheSGDFactorizer", "Clicks"]
__all__ += ["DPCovarianceRecommender", "DPItemMeans", "DPMFSampler", "GradientReports"]
__all__ += ["LocalDPGDDR", "NearestItems", "NoisyCovariance", "Pooled", "PosteriorDraw"]
__all__ += ["PrivacyBudget", "PrivacyCard", "PrivacyLedger", "Snapshots", "load_model"]
__all__ += ["privacy_spent", "private_multi_task_ridge", "recommender_of"]
__getattr__, __dir__ = lazy_names(
    __name__,
    *("books.card.PrivacyCard", "books.ledger.PrivacyLedger", "data", "estimators"),
    *("estimators.AdaptiveWeightALS", "estimators.CacheSGDFactorizer"),
    *("estimators.DPCovarianceRecommender", "estimators.DPItemMeans", "estimators.DPMFSampler"),
    *("estimators.LocalDPGDDR", "estimators.load_model", "estimators.planners.Clicks"),
    "estimators.planners.adaptive_weight_als.DPALS",
    *("estimators.planners.adaptive_weight_als.Pooled", "estimators.planners.cache_sgd.Snapshots"),
    "estimators.planners.dp_covariance.NearestItems",
    "estimators.planners.dp_covariance.NoisyCovariance",
    "estimators.planners.dpmf_sampler.PosteriorDraw",
    *("estimators.planners.local_dpgddr.GradientReports", "estimators.private_multi_task_ridge"),
    *("evaluation.privacy_spent", "evaluation.recommender_of", "local", "privacy"),
    "privacy.budget.PrivacyBudget",
)
