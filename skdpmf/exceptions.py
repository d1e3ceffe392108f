"""Errors. Each message names the parameter, the value, the rule and the remedy.

Whoever catches an error needs no class of ours but one: wrong values, also those in damaged files
of models or ratings, are a ``ValueError``; what is wrong with the file of a ledger is
a ``RuntimeError``; a missing extra is an ``ImportError``.
"""

__all__ = ["BudgetExceededError"]


def counted(n: int, noun: str, many: str = "") -> str:
    """Return a number of things in words: 1 row, 2 rows."""
    return f"{n:,} {noun if n == 1 else many or noun + 's'}"


class PrivacyParameterError(ValueError):
    """A privacy parameter is outside its range, or a request cannot be met by any noise."""


def require_that(holds: object, name: str, value: object, rule: str) -> None:
    """Raise PrivacyParameterError unless it holds; rule: what the value must be, and the remedy."""
    if not holds:
        raise PrivacyParameterError(f"{name}={value!r:.500} must be {rule}")


class BudgetExceededError(PrivacyParameterError):
    """A request is larger than what a ledger has left; nothing was charged.

    Attributes
    ----------
    largest : float
        Largest epsilon of the same request, at the same delta, that would fit; 0 if none does.
    """

    largest: float = 0.0


class LedgerError(RuntimeError):
    """The file of a ledger cannot be read or written, or is not what it should be."""


class MissingExtraError(ImportError):
    """A feature needs an optional dependency (an extra of skdpmf) that is not installed."""


class ModelFileError(ValueError):
    """A model file is damaged, of another format or a newer version, or cannot be written."""


class RatingStoreError(ValueError):
    """Ratings on disk are incomplete, altered, of another format or of a newer version."""
