"""Items that were not in the catalogue at fit: what a released model says of their features."""

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.data.feature_columns import check_item_features, like_others, values_of
from skdpmf.data.labels import Catalogue
from skdpmf.estimators.contract.parameters import require
from skdpmf.estimators.contract.recommend import ItemModel
from skdpmf.estimators.contract.refreshed import extended


def with_items(fitted: Any, item_features: Any, titles: Any) -> Any:
    """Return a copy of a fitted model with new items; `BaseRecommender.with_items` says which."""
    features = fitted._features_
    if features is None:
        raise ValueError(
            f"item_features={fitted.item_features!r} of the fitted model must be given for "
            "with_items, as nothing else is known of new items: fit it with item_features."
        )
    labels = getattr(item_features, "index", None)
    if not hasattr(item_features, "shape"):
        item_features = np.asarray(item_features)
    check_item_features(item_features)
    F = values_of(item_features)
    if F.shape[1] != features.centre.size:
        raise ValueError(
            f"item_features has {F.shape[1]} columns and must have those of fit, "
            f"{features.centre.size}: make them by the same transformer."
        )
    model = copy.deepcopy(fitted).set_params(item_features=None)
    model._catalogue_ = _catalogue_with(fitted, labels, titles, len(F))
    if hasattr(fitted, "feature_names_in_"):
        model.feature_names_in_ = np.array(model._catalogue_.items, dtype=object)
    D, new, weights = features.values, features.of(F), fitted._item_weights()
    model._features_ = features._replace(values=np.concatenate((D, new)))
    model._set_items(_extended_model(fitted._item_model_, D, new, weights))
    if fitted._ranking_ is not None:
        known = fitted._ranking_.lists
        lists = _extended_model(known, D, new, weights)
        # a regression may find a popularity below 0, which has no logarithm
        lists = lists._replace(offsets=np.maximum(lists.offsets, known.offsets.min()))
        model._ranking_ = fitted._ranking_._replace(lists=lists)
    if getattr(fitted, "_knowledge_", None) is not None:
        model._knowledge_ = fitted._knowledge_.with_items(len(F))
    return model


def _catalogue_with(fitted: Any, labels: Any, titles: Any, n_new: int) -> Catalogue | None:
    """Return the catalogue of the items and of new ones, if ids of both are known."""
    known: Catalogue | None = fitted._catalogue_
    new = [] if labels is None or callable(labels) else list(labels)
    is_named = bool(new) and all(isinstance(name, str) for name in new)
    if hasattr(fitted, "feature_names_in_") and not is_named:
        raise ValueError(
            "item_features must be a DataFrame whose index are the names of the new items, as "
            "the fitted items have names: pass one."
        )
    if known is None or not new:
        return None
    items = [*known.items.tolist(), *new]
    if len(set(items)) != len(items):
        twice = next(name for name in new if items.count(name) > 1)
        raise ValueError(
            f"item_features names the item {twice!r}, which the model has already or which is "
            "there twice: leave it out."
        )
    more = list(map(str, new)) if titles is None else list(titles)
    rule = f"{n_new} texts, one for each new item"
    require(len(more) == n_new, "titles", titles, rule, "pass them in the items' order")
    return extended(known, new, more)


def _extended_model(
    model: ItemModel,
    D: NDArray[np.float64],
    new: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> ItemModel:
    """Return the model with items appended that are like others of their features.

    Every coordinate of an item is regressed on the item columns, over the catalogue: the new items
    get what the regression says, and of their ridges the largest, as nothing is less certain. This
    is post-processing.

    D (n_items, d), new (m, d): columns of the catalogue's items and of the new ones; weights
    (n_items,): how well the items are known.
    """

    def with_others(known: Any) -> Any:
        if known is None:
            return None
        table = known if known.ndim == 2 else known[:, None]
        added = like_others(D, table, weights, new).reshape(len(new), *known.shape[1:])
        return np.ascontiguousarray(np.concatenate((known, added)))

    ridge = model.item_ridge
    return model._replace(
        offsets=with_others(model.offsets),
        factors=with_others(model.factors),
        encoder=with_others(model.encoder),
        features=None if model.features is None else np.concatenate((D, new)),
        item_ridge=None if ridge is None else np.append(ridge, np.full(len(new), ridge.max())),
    )
