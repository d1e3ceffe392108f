"""Exceptions of skdpmf. Each message names the parameter, the value, the rule and the remedy."""

__all__ = ["MissingExtraError", "PrivacyParameterError", "RatingStoreError"]


class PrivacyParameterError(ValueError):
    """A privacy parameter is outside its range, or a request cannot be met by any noise."""


class MissingExtraError(ImportError):
    """A feature needs an optional dependency (an extra of skdpmf) that is not installed."""


class RatingStoreError(ValueError):
    """A rating store on disk is incomplete, altered, of another format or of a newer version."""
