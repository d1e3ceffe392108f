"""recommender_of: what answers for a fitted pipeline or search."""

import copy
from typing import Any

from sklearn.pipeline import Pipeline

from skdpmf.data.labels import Catalogue
from skdpmf.estimators.contract.base import BaseRecommender
from skdpmf.evaluation.spending import privacy_spent

__all__ = ["recommender_of"]


def recommender_of(fitted: Any) -> Any:
    """Return the recommender in a fitted pipeline or search, to answer and be saved for the whole.

    It has `recommend`, `similar_items`, `similar_users`, `explain` and `save`, which pipelines and
    searches of scikit-learn lack. Its ``privacy_spent_`` is that of the whole, as `privacy_spent`
    states it, so that a saved model says what the steps before it, or the other candidates, have
    spent as well.

    Parameters
    ----------
    fitted : object
        A fitted ``Pipeline`` whose last step is a recommender, a refitted search such as
        ``GridSearchCV`` or `PrivateSearchCV`, one in the other, or a recommender.

    Returns
    -------
    estimator
        A copy of the recommender, which shares its arrays. Rows, and `exclude`, may name items
        that an earlier step has dropped; these count for nothing. What a `ContributionBounder`
        would cap is not capped. Unnamed rows have the columns of the last step:
        ``fitted[:-1].transform(X)``.

    Raises
    ------
    ValueError
        If there is no fitted recommender of this package at the end.
    PrivacyParameterError
        If a part says nothing about its privacy; see `privacy_spent`.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.pipeline import make_pipeline
    >>> from skdpmf import DPItemMeans, PrivacyBudget, recommender_of
    >>> from skdpmf.data import ratings_to_matrix
    >>> from skdpmf.preprocessing import DPItemSelector
    >>> table = pd.DataFrame({"user": [1, 2, 2], "item": ["Heat", "Heat", "Up"], "rating": 4.0})
    >>> off = PrivacyBudget.nonprivate()
    >>> steps = make_pipeline(DPItemSelector(off, n_items=1), DPItemMeans(off))
    >>> model = recommender_of(steps.fit(ratings_to_matrix(table, items=["Heat", "Up", "Alien"])))
    >>> model.catalogue_["item"].tolist(), model.predict({"Up": 4.0}).shape
    (['Heat'], (1, 1))
    """
    model, known = fitted, None
    while not isinstance(model, BaseRecommender):
        if isinstance(model, Pipeline):
            steps = (getattr(step, "_catalogue_", None) for _, step in model.steps)
            known = known or next(filter(None, steps), None)  # of the first that knows items
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            raise ValueError(
                f"fitted={type(fitted).__name__} must have a fitted recommender of skdpmf at its "
                f"end and has {type(model).__name__}: pass a fitted pipeline that ends in one, or "
                "a search over one that has refitted (refit=True)."
            )
    answering = copy.copy(model)
    answering._statement = privacy_spent(fitted)
    own = answering._catalogue_
    if known is not None and own is not None:
        dropped = set(known.items) - set(own.items)
        answering._catalogue_ = Catalogue(own.items, own.titles, dropped, own.genres)
    return answering
