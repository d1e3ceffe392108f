"""Public item features: made of a table of items, and as few scaled columns of regressions."""

import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from .labelled_rows import as_frame, as_pandas, require_columns
from .validation import require

if TYPE_CHECKING:
    import pandas as pd


Floats = NDArray[np.float64]

MOST_FEATURES = 2000  # of the matrix whose eigenvectors are found: 4 seconds
MOST_COLUMNS = 32
LARGEST = 1e100  # of a feature
_SLOPE_RIDGE = 10.0  # against columns of mean squared norm 1, and as many items as there are
_LEAST_RANGE = 1e-12  # below it a feature is the same for all items, but for rounding

_TITLE_YEAR = r"\((\d{4})\)\s*$"
_YEARS = {"year", "releaseyear", "yearofrelease", "publicationyear", "yearofpublication"}
_TOO_PRIVATE = re.compile(r"rating|rank|popular|count|score|(vote|view|play|like)s?\b", re.I)
_FEWEST = 2  # items with a label
_N_PERIODS = 5  # of years


class ItemColumns(NamedTuple):
    """Features D = (F - centre) @ turn, a linear map that new items go through as well."""

    values: NDArray[np.float64]
    """D, (n_items, d): of mean 0 and mean squared row norm 1, or d = 0."""
    centre: NDArray[np.float64]
    """(p,)."""
    turn: NDArray[np.float64]
    """(p, d)."""

    @property
    def digest(self) -> str:
        """Hash of D: noise with a seed depends on it."""
        return hashlib.blake2b(self.values.tobytes(), digest_size=16).hexdigest()

    def of(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return D of other items."""
        return np.ascontiguousarray((features - self.centre) @ self.turn)


def item_columns(features: NDArray[np.float64]) -> ItemColumns:
    """Centre the features, divide each by its range, and keep at most `MOST_COLUMNS` directions.

    features (n_items, p): F, finite. A feature that is the same for all items has no part in it.
    """
    low, high, centre = features.min(axis=0), features.max(axis=0), features.mean(axis=0)
    told = np.flatnonzero(high - low > _LEAST_RANGE * np.maximum(1.0, np.abs(centre)))
    turn = np.zeros((features.shape[1], told.size))
    turn[told, np.arange(told.size)] = 1.0 / (high - low)[told]
    D = (features - centre) @ turn
    if told.size > MOST_COLUMNS:
        vectors = np.linalg.eigh(D.T @ D)[1][:, : -MOST_COLUMNS - 1 : -1]
        turn, D = turn @ vectors, D @ vectors
    size = np.sqrt(np.mean(np.sum(D**2, axis=1))) if told.size else 1.0
    return ItemColumns(np.ascontiguousarray(D / size), centre, turn / size)


def like_others(D: Floats, values: Floats, weights: Floats, new: Floats) -> Floats:
    """Return what items with such columns have on average, by a weighted ridge regression.

    D (n_items, d): columns of known items; values (n_items, k): what is known of them; weights
    (n_items,): how well, of any scale; new (m, d): columns of other items. Returns (m, k).
    """
    weights = weights / weights.mean()
    design, d = np.column_stack((np.ones(len(D)), D)), D.shape[1]
    gram = (design * weights[:, None]).T @ design + np.diag([0.0] + [_SLOPE_RIDGE] * d)
    slopes = np.linalg.solve(gram, (design * weights[:, None]).T @ values)
    return np.asarray(np.column_stack((np.ones(len(new)), new)) @ slopes)


def check_item_features(item_features: Any) -> None:
    """Check what can be said of features without a catalogue: finite numbers in two dimensions."""
    shape = getattr(item_features, "shape", None)
    if item_features is None:
        return
    if shape is None or len(shape) != 2 or min(shape) < 1:
        found = f"of type {type(item_features).__name__}" if shape is None else f"of shape {shape}"
        raise ValueError(
            f"item_features {found} must be None, or an array, sparse matrix or DataFrame of shape "
            "(n_items, d): pass one row of features for each item."
        )
    if shape[1] > MOST_FEATURES:
        raise ValueError(
            f"item_features has {shape[1]} columns and must have {MOST_FEATURES} at most: reduce "
            "them first, by sklearn.decomposition.TruncatedSVD for instance."
        )
    values_of(item_features)


def aligned_features(item_features: Any, n_items: int, names: Any) -> NDArray[np.float64]:
    """Return the features of each item of the catalogue, in its order.

    A DataFrame is aligned by its index with the ids `names`, None if unknown, and may have more
    items; anything else has a row for each column of X, in their order. Returns (n_items, p).
    """
    import pandas as pd

    values, own = values_of(item_features), _labels(item_features)
    if own is not None and own.has_duplicates:
        raise ValueError(
            f"item_features has several rows for the item {_shown(own[own.duplicated()][0])} and "
            "must have one: drop the others from its index."
        )
    if own is not None and names is not None:
        place = own.get_indexer(pd.Index(names))
        if (place < 0).any():
            item = pd.Index(names)[place < 0][0]
            raise ValueError(
                f"item_features has no row for the item {_shown(item)} of X and must have one for "
                "each: add it to its index, or leave the item out of X."
            )
        return values[place]
    if own is not None and not own.equals(pd.RangeIndex(len(own))):
        raise ValueError(
            f"item_features is a DataFrame of items such as {_shown(own[0])}, and X has no names "
            "to align them with: pass X as a DataFrame or RatingMatrix, or "
            "item_features.to_numpy() in the order of the columns of X."
        )
    if len(values) != n_items:
        raise ValueError(
            f"item_features has {len(values)} rows for the {n_items} columns of X and must have "
            "as many: pass one row for each column, in their order, or a DataFrame whose index "
            "names the items, with X as a DataFrame or RatingMatrix."
        )
    return values


def _labels(item_features: Any) -> Any:
    index = getattr(item_features, "index", None)  # of a DataFrame, a method of a list
    return None if callable(index) else index


def values_of(item_features: Any) -> NDArray[np.float64]:
    """Return features as a matrix of finite numbers, or raise ValueError."""
    dense = item_features.toarray() if sparse.issparse(item_features) else item_features
    try:
        values = np.asarray(dense, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"item_features must hold numbers ({error}): make them by skdpmf.data.item_features "
            "or by transformers of scikit-learn."
        ) from None
    broken = np.argwhere(~(np.abs(values) <= LARGEST))
    if broken.size:
        row, column = broken[0]
        labels, names = _labels(item_features), getattr(item_features, "columns", None)
        item = row if labels is None else labels[row]
        feature = column if names is None else names[column]
        raise ValueError(
            f"item_features is {values[row, column]} for the item {_shown(item)} in the feature "
            f"{_shown(feature)} and must be finite, {LARGEST:g} at most: fill in what is missing."
        )
    return values


def _shown(label: Any) -> str:
    return repr(label.item() if isinstance(label, np.generic) else label)


def item_features(
    items: Any,
    *,
    labels: Sequence[str] | None = None,
    years: str | None = None,
) -> "pd.DataFrame":
    """Make features of items from a table of public facts about them.

    The result is for the parameter `item_features` of the estimators, whose fits use it without
    noise: **it has to be known without any rating, tag, review or count of the people whose ratings
    are fitted** (docs/what-is-public.md).

    Parameters
    ----------
    items : DataFrame of pandas or polars, also a lazy one, or pyarrow.Table
        One row an item, such as `read_items` returns: ids in the column ``"item"``, else in the
        index. Not modified.
    labels : sequence of str, default=None
        Columns of texts such as ``"Comedy|Drama"``: a feature of 0 or 1 for each label that at
        least two items have. None: ``"genres"``, if there is such a column.
    years : str, default=None
        Column of years: a feature of 0 or 1 for each of five periods with about as many items.
        None: ``"year"``, ``"release_year"`` or ``"publication_year"``, in any writing, else the
        years at the end of titles such as ``"Up (2009)"``, if there are any.

    Returns
    -------
    pandas.DataFrame
        Columns are float64, the index has the items' ids. No value is missing: an item without
        labels or year has zeros there. Other public numbers, such as prices, may be added as
        columns.

    Raises
    ------
    ValueError
        If an id is missing or there twice, a column is not in the table or looks like something
        that is made of ratings or counts, or there is nothing to make features of.

    Examples
    --------
    >>> import pandas as pd
    >>> from skdpmf.data import item_features
    >>> titles = ["Up (2009)", "Ran (1985)", "Alien (1979)"]
    >>> films = pd.DataFrame({"item": [7, 9, 4], "title": titles})
    >>> films["genres"] = ["Comedy|Drama", "Drama", "Horror"]
    >>> item_features(films).astype(int)
          genres=Drama  year<1985  1985<=year<2009  year>=2009
    item
    7                1          0                0           1
    9                1          0                1           0
    4                0          1                0           0
    """
    import pandas as pd

    table = _by_item(items)
    if labels is None:
        labels = [name for name in ("genres",) if name in table]
    if years is None:
        plain = {name: "".join(filter(str.isalpha, str(name).lower())) for name in table.columns}
        years = next((name for name, letters in plain.items() if letters in _YEARS), None)
    asked = [("labels", name) for name in labels] + ([("years", years)] if years else [])
    for role, name in asked:
        _require_public(role, name, table)
    parts = [_label_columns(table[name], name) for name in labels]
    if years is not None:
        parts.append(_periods(pd.to_numeric(table[years], errors="coerce")))
    elif "title" in table:
        found = table["title"].astype(str).str.extract(_TITLE_YEAR)[0]
        parts.append(_periods(pd.to_numeric(found)))
    made: pd.DataFrame = pd.concat(parts, axis=1) if parts else pd.DataFrame(index=table.index)
    if made.shape[1] == 0:
        raise ValueError(
            f"items has the columns {list(table.columns)!r}, none of which is known: name columns "
            "by labels or years."
        )
    return made.astype(np.float64)


def _by_item(items: Any) -> "pd.DataFrame":
    """Return the table with the ids as its index."""
    items = as_frame(items)
    rule, what = "a DataFrame with one row for each item", type(items).__name__
    require(hasattr(items, "columns"), "items", what, rule, "pass what read_items returns")
    items = as_pandas(items, list(items.columns))
    table = items.set_index("item") if "item" in items else items
    if table.index.hasnans:
        raise ValueError("items has a row without an id: drop it.")
    if table.index.has_duplicates:
        twice = table.index[table.index.duplicated()].tolist()[0]
        raise ValueError(f"items has several rows for the item {twice!r}: keep one of them.")
    return table


def _require_public(role: str, name: str, table: "pd.DataFrame") -> None:
    require_columns(table, [name], "items", f"Name one of them by {role}")
    if _TOO_PRIVATE.search(str(name)):
        raise ValueError(
            f"{role} names {name!r}, which seems to be made of ratings or counts of people: such "
            "features are not public and carry private data into the model. Leave it out, or "
            "rename the column if it is known without these people."
        )


def _label_columns(texts: "pd.Series", name: str) -> "pd.DataFrame":
    import pandas as pd
    from sklearn.preprocessing import MultiLabelBinarizer

    split = [[part for part in text.split("|") if part] for text in texts.fillna("").astype(str)]
    binarizer = MultiLabelBinarizer()
    found = binarizer.fit_transform(split)
    columns = [f"{name}={label}" for label in binarizer.classes_]
    made = pd.DataFrame(found, columns=columns, index=texts.index)
    return made.loc[:, made.sum() >= _FEWEST]


def _periods(years: "pd.Series") -> "pd.DataFrame":
    import pandas as pd

    known = years.dropna()
    if known.empty:
        return pd.DataFrame(index=years.index)
    inner = np.linspace(0.0, 1.0, _N_PERIODS + 1)[1:-1]
    edges = np.unique(np.quantile(known, inner, method="inverted_cdf"))
    edges = edges[edges > known.min()]
    if edges.size == 0:
        return pd.DataFrame(index=years.index)
    bounds = [-np.inf, *edges, np.inf]
    inside = [(years >= low) & (years < high) for low, high in itertools.pairwise(bounds)]
    names = [f"year<{edges[0]:g}"]
    names += [f"{low:g}<=year<{high:g}" for low, high in itertools.pairwise(edges)]
    names.append(f"year>={edges[-1]:g}")
    return pd.DataFrame(np.column_stack(inside), columns=names, index=years.index)
