"""Checks of parameters, and the one form of their errors."""

import math
from numbers import Integral, Real
from typing import Any

__all__ = ["is_count", "is_finite", "is_int", "require"]


def is_int(value: Any) -> bool:
    """Return whether a value is an integer, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether a value is an integer >= 1."""
    return is_int(value) and int(value) >= 1


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite real number, and no bool."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(float(value))


def require(holds: bool, name: str, value: Any, rule: str, remedy: str) -> None:
    """Raise ValueError, naming parameter, value, rule and remedy, unless the rule holds."""
    if not holds:
        raise ValueError(f"{name}={value!r} must be {rule}: {remedy}.")
