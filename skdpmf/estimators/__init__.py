"""The scikit-learn surface: one estimator a file."""
