"""The scikit-learn surface: one estimator a file."""

from skdpmf.estimators.adaptive_weight_als import AdaptiveWeightALS

__all__ = ["AdaptiveWeightALS"]
