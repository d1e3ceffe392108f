"""From a table of items to their public features, by transformers of scikit-learn."""

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .labels import as_pandas

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["item_features"]

_TITLE_YEAR = r"\((\d{4})\)\s*$"
_TOO_PRIVATE = re.compile(
    r"rating|rank|popular|count|votes?\b|views?\b|plays?\b|likes?\b|score", re.I
)
_FEWEST = 2  # items with a label


def item_features(
    items: Any,
    *,
    labels: Sequence[str] | None = None,
    years: str | None = None,
    numbers: Sequence[str] = (),
    words: str | None = None,
    n_periods: int = 5,
    n_word_columns: int = 8,
) -> "pd.DataFrame":
    """Make features of items from a table of public facts about them.

    The result is for the parameter `item_features` of the estimators, whose fits use it without
    noise: **it has to be known without any rating, tag, review or count of the people whose ratings
    are fitted** (docs/what-is-public.md).

    Parameters
    ----------
    items : pandas.DataFrame or polars.DataFrame
        One row an item, such as `read_items` returns: ids in the column ``"item"``, else in the
        index. Not modified.
    labels : sequence of str, default=None
        Columns of texts such as ``"Comedy|Drama"``: a feature of 0 or 1 for each label that at
        least two items have. None: ``"genres"``, if there is such a column.
    years : str, default=None
        Column of years: a feature of 0 or 1 for each of `n_periods` periods with about as many
        items. None: ``"year"``, else the years at the end of titles such as ``"Up (2009)"``, if
        there are any.
    numbers : sequence of str, default=()
        Columns of numbers, such as a price: a feature each, and one that says where it is missing,
        if it is.
    words : str, default=None
        Column of texts such as titles: their words, hashed and reduced to `n_word_columns`
        features. None: none.
    n_periods : int, default=5
        Periods of years, at least 2.
    n_word_columns : int, default=8
        Features of words, at least 1.

    Returns
    -------
    pandas.DataFrame
        Columns are float64, the index has the items' ids. No value is missing: an item without
        labels or year has zeros there.

    Raises
    ------
    ValueError
        If an id is missing or there twice, a column is not in the table or looks like something
        that is made of ratings or counts, a parameter is out of range, or there is nothing to make
        features of. Columns that are named in `numbers` or `labels` are refused by their name too.

    Examples
    --------
    >>> import pandas as pd
    >>> from skdpmf.data import item_features
    >>> titles = ["Up (2009)", "Ran (1985)", "Alien (1979)"]
    >>> films = pd.DataFrame({"item": [7, 9, 4], "title": titles})
    >>> films["genres"] = ["Comedy|Drama", "Drama", "Horror"]
    >>> item_features(films, n_periods=2).astype(int)
          genres=Drama  year<1985  year>=1985
    item
    7                1          0           1
    9                1          0           1
    4                0          1           0
    """
    import pandas as pd

    table = _by_item(items)
    for name, value, least in (("n_periods", n_periods, 2), ("n_word_columns", n_word_columns, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name}={value!r} must be an integer >= {least}: use the default.")
    if labels is None:
        labels = [name for name in ("genres",) if name in table]
    if years is None and "year" in table:
        years = "year"
    asked = [("labels", name) for name in labels] + [("numbers", name) for name in numbers]
    asked += [(role, name) for role, name in (("years", years), ("words", words)) if name]
    for role, name in asked:
        _require_public(role, name, table)
    parts = [_labels(table[name], name) for name in labels]
    if years is not None:
        parts.append(_periods(pd.to_numeric(table[years], errors="coerce"), n_periods))
    elif "title" in table:
        found = table["title"].astype(str).str.extract(_TITLE_YEAR)[0]
        parts.append(_periods(pd.to_numeric(found), n_periods))
    parts += [_number(table[name], name) for name in numbers]
    if words is not None:
        parts.append(_words(table[words], words, n_word_columns))
    made: pd.DataFrame = pd.concat(parts, axis=1) if parts else pd.DataFrame(index=table.index)
    if made.shape[1] == 0:
        raise ValueError(
            f"items has the columns {list(table.columns)!r}, which say nothing of use: name "
            "columns by labels, years, numbers or words."
        )
    return made.astype(np.float64)


def _by_item(items: Any) -> "pd.DataFrame":
    """Return the table with the ids as its index."""
    if not hasattr(items, "columns"):
        raise ValueError(
            f"items={type(items).__name__} must be a DataFrame with one row for each item: pass "
            "what read_items returns."
        )
    items = as_pandas(items, list(items.columns))
    table = items.set_index("item") if "item" in items else items
    if table.index.hasnans:
        raise ValueError("items has a row without an id: drop it.")
    if table.index.has_duplicates:
        twice = table.index[table.index.duplicated()].tolist()[0]
        raise ValueError(f"items has several rows for the item {twice!r}: keep one of them.")
    return table


def _require_public(role: str, name: str, table: "pd.DataFrame") -> None:
    if name not in table:
        raise ValueError(
            f"{role} names {name!r}, which is none of the columns {list(table.columns)!r} of "
            "items: name one of them."
        )
    if _TOO_PRIVATE.search(str(name)):
        raise ValueError(
            f"{role} names {name!r}, which seems to be made of ratings or counts of people: such "
            "features are not public and carry private data into the model. Leave it out, or "
            "rename the column if it is known without these people."
        )


def _labels(texts: "pd.Series", name: str) -> "pd.DataFrame":
    import pandas as pd
    from sklearn.preprocessing import MultiLabelBinarizer

    known = texts.fillna("").astype(str)
    split = [[part for part in text.split("|") if part] for text in known]
    binarizer = MultiLabelBinarizer()
    found = binarizer.fit_transform(split)
    columns = [f"{name}={label}" for label in binarizer.classes_]
    made = pd.DataFrame(found, columns=columns, index=texts.index)
    return made.loc[:, made.sum() >= _FEWEST]


def _periods(years: "pd.Series", n_periods: int) -> "pd.DataFrame":
    import pandas as pd

    known = years.dropna()
    if known.empty:
        return pd.DataFrame(index=years.index)
    inner = np.linspace(0.0, 1.0, n_periods + 1)[1:-1]
    edges = np.unique(np.quantile(known, inner, method="inverted_cdf"))
    edges = edges[edges > known.min()]
    if edges.size == 0:
        return pd.DataFrame(index=years.index)
    bounds = [-np.inf, *edges, np.inf]
    inside = [(years >= low) & (years < high) for low, high in itertools.pairwise(bounds)]
    names = [f"year<{edges[0]:g}"]
    names += [f"{low:g}<=year<{high:g}" for low, high in itertools.pairwise(edges)]
    return pd.DataFrame(
        np.column_stack(inside), columns=[*names, f"year>={edges[-1]:g}"], index=years.index
    )


def _number(values: "pd.Series", name: str) -> "pd.DataFrame":
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce").replace([np.inf, -np.inf], np.nan)
    made = pd.DataFrame({name: numbers.fillna(numbers.median() if numbers.notna().any() else 0.0)})
    if numbers.isna().any():
        made[f"{name} is missing"] = numbers.isna()
    return made


def _words(texts: "pd.Series", name: str, n_columns: int) -> "pd.DataFrame":
    import pandas as pd
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(n_features=2**12, alternate_sign=False).transform(
        texts.fillna("").astype(str)
    )
    n_columns = min(n_columns, *hashed.shape)
    made = TruncatedSVD(n_columns, random_state=0).fit_transform(hashed)
    return pd.DataFrame(made, columns=[f"{name}: {c}" for c in range(n_columns)], index=texts.index)
