"""Items that were not in the catalogue at fit: what a released model says of their features."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.data.feature_columns import like_others
from skdpmf.estimators.contract.recommend import ItemModel

__all__ = ["with_new_items"]


def with_new_items(
    model: ItemModel,
    D: NDArray[np.float64],
    new: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> ItemModel:
    """Return the model with items appended that are like others of their features.

    Every coordinate of an item is regressed on the item columns, over the catalogue: the new items
    get what the regression says. This is post-processing.

    model: of the catalogue; D (n_items, d): columns of the catalogue's items; new (m, d): columns
    of the new items; weights (n_items,): how well the items are known. Result: of the catalogue,
    and then the new items.
    """

    def extended(known: Any) -> Any:
        if known is None:
            return None
        table = known if known.ndim == 2 else known[:, None]
        added = like_others(D, table, weights, new).reshape(len(new), *known.shape[1:])
        return np.ascontiguousarray(np.concatenate((known, added)))

    return model._replace(
        offsets=extended(model.offsets),
        factors=extended(model.factors),
        encoder=extended(model.encoder),
        features=None if model.features is None else np.concatenate((D, new)),
        item_ridge=_with_doubt(model.item_ridge, len(new)),
    )


def _with_doubt(item_ridge: Any, n_new: int) -> Any:
    """Return the ridges of the items with those of new items: nothing is less certain."""
    return None if item_ridge is None else np.append(item_ridge, np.full(n_new, item_ridge.max()))
