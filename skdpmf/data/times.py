"""Times of any type, and of text in any one format, as numbers that can be compared."""

import re
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


# Orders of a date that people write; where the year leads, the month follows it.
_DATES = (
    *("Y m d", "d m Y", "m d Y", "d m y", "m d y", "y m d"),
    *("d b Y", "b d Y", "d B Y", "B d Y", "d b y", "Y b d", "Y B d"),
)
_CLOCKS = ("", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%H.%M", "%H%M%S")
_ZONES = ("", "%z", " %z", " UTC", " GMT")
_DATE = re.compile(
    r"(?P<day>[A-Za-z]{3},? )?(\d+|[^\W\d]+)([\W_]+)(\d+|[^\W\d]+)([\W_]+)(\d+)([T:,\s]*)"
)
_COMPACT = re.compile(r"(?P<day>)(\d{2}|\d{4})()(\d{2})()(\d{4}|\d{2})([T:,\s]*)")
_AWARE = re.compile(r":\d\d.*(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)$")


def comparable_times(times: "pd.Series", where: str) -> np.ndarray:
    """Return times in their order; ValueError if they have none. `where` names them in errors."""
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
    if types.is_integer_dtype(times) and _end_with_years(times):
        times = _parsed(times.astype(str).str.zfill(8), where)
    if isinstance(times.dtype, pd.DatetimeTZDtype):
        times = times.dt.tz_convert(None)
    return np.asarray(times.to_numpy())


def _end_with_years(times: "pd.Series") -> bool:
    """Return whether all integers are days and months of eight digits, in no order as they are."""
    starts, ends = times // 10_000, times % 10_000
    return bool((starts.between(101, 3131) & ends.between(1900, 2100)).all())


def _parsed(times: "pd.Series", where: str) -> "pd.Series":
    """Return objects as numbers or times."""
    import pandas as pd

    codes, found = pd.factorize(times)
    values = pd.Series(np.asarray(found, dtype=object))
    are_texts = values.map(lambda value: isinstance(value, str))
    if not are_texts.any():
        aware = values.map(lambda value: getattr(value, "tzinfo", None) is not None)
        _refuse_mixture(aware, values, where)
        is_time = values.map(lambda value: hasattr(value, "year"))
        parsed = values.infer_objects()
        if is_time.all():
            parsed = pd.to_datetime(values, utc=bool(aware.any()))
        if parsed.dtype == object:
            raise ValueError(
                f"{where} holds {values[0]!r} and other objects that have no order as times: pass "
                "numbers, dates, or texts of one format."
            )
    elif are_texts.all():
        parsed = _of_texts(values.str.strip(), where)
    else:
        raise ValueError(
            f"{where} holds texts beside other values: convert all by pandas.to_datetime."
        )
    return parsed.take(codes).reset_index(drop=True)


def _of_texts(texts: "pd.Series", where: str) -> "pd.Series":
    import pandas as pd

    numbers = pd.to_numeric(texts, errors="coerce")
    is_date = texts.str.fullmatch(r"\d{8}") & numbers.mod(10_000).between(1900, 2100)
    if numbers.notna().all() and not is_date.all():
        return numbers
    aware = texts.str.contains(_AWARE)
    _refuse_mixture(aware, texts, where)
    options: dict[str, Any] = {"errors": "coerce", "utc": bool(aware.any())}
    iso = pd.to_datetime(texts, format="ISO8601", **options)
    if iso.notna().all() and not is_date.all():
        return iso
    explained: dict[str, Any] = {}
    for form in _forms(texts[0]):
        parsed = pd.to_datetime(texts, format=form, **options)
        if parsed.notna().all() and not any(parsed.equals(same) for same in explained.values()):
            explained[form] = parsed
    if len(explained) == 1:
        return next(iter(explained.values()))
    trouble = "which {} all explain".format(" and ".join(explained))
    if not explained:
        trouble = "and no one format of dates explains all of them"
    raise ValueError(
        f"{where} holds times such as {texts[0]!r}, {trouble}: convert the column by "
        "pandas.to_datetime(..., format=...), which says what is day and month."
    )


def _forms(text: str) -> list[str]:
    """Return the formats that may explain a text."""
    import pandas as pd

    forms = ["%a %b %d %H:%M:%S %z %Y"]
    if match := _DATE.match(text) or _COMPACT.match(text):
        day, _, first, _, second, _, gap = match.groups()
        start = f"%a{day[3:]}" if day else ""
        dates = [f"{start}%{a}{first}%{b}{second}%{c}{gap}" for a, b, c in map(str.split, _DATES)]
        clocks = product(_CLOCKS, _ZONES) if gap else [("", "")]
        forms += [f"{date}{clock}{zone}" for date, (clock, zone) in product(dates, clocks)]
    return [f for f in forms if pd.notna(pd.to_datetime(text, format=f, errors="coerce"))]


def _refuse_mixture(aware: "pd.Series", values: "pd.Series", where: str) -> None:
    if aware.any() and not aware.all():
        raise ValueError(
            f"{where} has times with a time zone, such as {str(values[aware].iloc[0])!r}, and "
            f"others without, such as {str(values[~aware].iloc[0])!r}: give all of them a zone."
        )
