"""The scikit-learn surface: one estimator a file."""

from skdpmf.estimators.adaptive_weight_als import AdaptiveWeightALS
from skdpmf.estimators.cache_sgd import CacheSGDFactorizer

__all__ = ["AdaptiveWeightALS", "CacheSGDFactorizer"]
