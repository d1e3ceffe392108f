"""Times of any type, and of text in ISO 8601, as numbers that can be compared."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_AWARE = r":\d\d.*(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)$"


def comparable_times(times: "pd.Series", where: str) -> np.ndarray:
    """Return times in their order; ValueError if they have none. `where` names them in errors.

    No text shows which of two numbers is the day and which the month: ISO 8601 alone fixes it.
    """
    import pandas as pd
    from pandas.api import types

    missing = np.flatnonzero(times.isna())
    if missing.size:
        raise ValueError(
            f"{where} has no time in {missing.size} rows (first: row {missing[0]}): drop "
            "these rows, or split at random."
        )
    if isinstance(times.dtype, pd.CategoricalDtype):
        times = times.astype(times.cat.categories.dtype)
    if types.is_object_dtype(times) or types.is_string_dtype(times):
        times = _parsed(times, where)
    if types.is_integer_dtype(times):
        starts, ends = times // 10_000, times % 10_000
        if (starts.between(101, 3131) & ends.between(1900, 2100)).all():
            raise _no_order(f"{times.iloc[0]:08d}", where)  # days and months before years
    if isinstance(times.dtype, pd.DatetimeTZDtype):
        times = times.dt.tz_convert(None)
    return np.asarray(times.to_numpy())


def _parsed(times: "pd.Series", where: str) -> "pd.Series":
    """Return objects as numbers or times."""
    import pandas as pd

    codes, found = pd.factorize(times)
    values = pd.Series(np.asarray(found, dtype=object))
    are_texts = values.map(lambda value: isinstance(value, str))
    aware = values.map(lambda value: getattr(value, "tzinfo", None) is not None)
    if are_texts.all() and len(values):
        parsed = pd.to_numeric(values, errors="coerce")
        aware = values.str.contains(_AWARE)
        if parsed.isna().any():
            zone = bool(aware.any())
            texts = values.str.strip()
            parsed = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=zone)
    elif are_texts.any():
        raise ValueError(
            f"{where} holds texts beside other values: convert all by pandas.to_datetime."
        )
    elif values.map(lambda value: hasattr(value, "year")).all() and aware.all() == aware.any():
        parsed = pd.to_datetime(values, utc=bool(aware.any()))
    else:
        parsed = values.infer_objects()
    if aware.any() and not aware.all():
        raise ValueError(
            f"{where} has times with a time zone, such as {str(values[aware].iloc[0])!r}, and "
            f"others without, such as {str(values[~aware].iloc[0])!r}: give all of them a zone."
        )
    if parsed.dtype == object or parsed.isna().any():
        raise _no_order(values[int(np.argmax(parsed.isna()))], where)
    return parsed.take(codes).reset_index(drop=True)


def _no_order(value: object, where: str) -> ValueError:
    return ValueError(
        f"{where} holds {value!r} and must hold numbers, times, or texts in ISO 8601 such as "
        "'2026-01-31': convert the column by pandas.to_datetime(..., format=...), which says what "
        "is day and month."
    )
