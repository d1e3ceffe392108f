"""Differentially private matrix-factorization recommenders with the scikit-learn interface."""

__version__ = "0.1.0.dev0"
