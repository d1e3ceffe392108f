"""Items that were not in the catalogue at fit: what a released model says of their features."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.data._feature_columns import ItemColumns
from skdpmf.estimators._recommend import ItemModel

__all__ = ["with_new_items"]

_RIDGE = 10.0  # of slopes, on columns of mean square 1 / d


def with_new_items(model: ItemModel, features: ItemColumns, new: NDArray[np.float64]) -> ItemModel:
    """Return the model with items appended that are like others of their features.

    Every coordinate of an item, released or public, is regressed on the item columns, over the
    catalogue: the new items get what the regression says. This is post-processing.

    Parameters
    ----------
    model : ItemModel
        Of the catalogue.
    features : ItemColumns
        Of the catalogue.
    new : ndarray of shape (m, d)
        Columns of the new items.

    Returns
    -------
    ItemModel
        Of the catalogue, and then the new items.
    """
    D = features.values
    gram = D.T @ D + _RIDGE * np.eye(D.shape[1])

    def extended(known: Any) -> Any:
        if known is None:
            return None
        mean = known.mean(axis=0)  # of no correlation with D, whose columns have the mean 0
        slopes = np.linalg.solve(gram, D.T @ (known - mean))
        return np.ascontiguousarray(np.concatenate((known, mean + new @ slopes)))

    return model._replace(
        offsets=extended(model.offsets),
        factors=extended(model.factors),
        encoder=extended(model.encoder),
        features=None if model.features is None else np.concatenate((D, new)),
    )
