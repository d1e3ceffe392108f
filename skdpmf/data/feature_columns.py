"""Public item features as columns of regressions: aligned with the catalogue, scaled, few."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = [
    "ItemColumns",
    "aligned_features",
    "check_item_features",
    "item_columns",
    "like_others",
    "values_of",
]

MOST_FEATURES = 2000  # of the matrix whose eigenvectors are found: 4 seconds
MOST_COLUMNS = 32
LARGEST = 1e100  # of a feature
_SLOPE_RIDGE = 10.0  # against columns of mean squared norm 1, and as many items as there are
_LEAST_RANGE = 1e-12  # below it a feature is the same for all items, but for rounding


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

    Examples
    --------
    >>> from skdpmf.data.feature_columns import item_columns
    >>> item_columns(np.array([[0.0, 7.0], [10.0, 7.0]])).values
    array([[-1.],
           [ 1.]])
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


def like_others(
    D: NDArray[np.float64],
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    new: NDArray[np.float64],
) -> NDArray[np.float64]:
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

    item_features (ndarray, sparse matrix or DataFrame): as `check_item_features` accepts. A
    DataFrame is aligned by its index, and may have more items; anything else has a row for each
    column of X, in their order. names (array-like of shape (n_items,) or None): its item ids; None:
    unknown. Returns (n_items, p). Raises ValueError if the rows are not those of the catalogue. The
    message names an item.
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
    is_sparse: Any = sparse.issparse(item_features)
    dense = item_features.toarray() if is_sparse else item_features
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
