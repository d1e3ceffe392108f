"""What a fitted object has spent: estimators, pipelines, searches and lists of them."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skdpmf.data.labelled_rows import Catalogue
from skdpmf.estimators.contract.base import BaseRecommender
from skdpmf.exceptions import PrivacyParameterError, require_that
from skdpmf.preprocessing import ContributionBounder
from skdpmf.privacy.composition import compose_statements, state_fits
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement

_STEPS = (
    "Each step was fitted on the output of the steps before it. Columns that a step chose follow "
    "from releases that are counted here."
)
_SIDE_BY_SIDE = " For steps that run side by side pass a list of the fitted parts, which compose."
_CHOICE = (
    "The choice of a candidate: scores are exact functions of private ratings, so that "
    "best_params_, best_score_ and cv_results_ are not private, and epsilon does not include the "
    "choice of the best model."
)


def privacy_spent(fitted: Any, *, n_items: int | None = None) -> PrivacyStatement:
    """Return what a fitted object has released, all its fits together. Touches no data.

    - An estimator or step of this package: its ``privacy_spent_``.
    - A pipeline: the composition of its steps. "passthrough" and `ContributionBounder` are free.
    - A search such as ``GridSearchCV``: candidates x folds, and the refit, each fit charged with
      its whole budget. That the same user is in most folds, not in all, is not made use of.
    - A list or tuple, such as ``cross_validate(..., return_estimator=True)["estimator"]``: their
      composition, as they were fitted on the same ratings.

    Gaussian releases are composed by mu^2, and accounted once at their common delta, so that the
    parts of `PrivacyBudget.split` in a pipeline make up the whole; see `compose_statements`.

    Parameters
    ----------
    fitted : object
        The fitted object.
    n_items : int, default=None
        Columns of X: only for a search with ``refit=False``, which does not keep their number.

    Returns
    -------
    PrivacyStatement
        Releases have the name of the step, candidate or fit in front.

    Raises
    ------
    PrivacyParameterError
        If a part says nothing about its privacy, as anything from elsewhere that was fitted on the
        ratings, or is not fitted; if it is a ``FeatureUnion`` or ``ColumnTransformer``; if units,
        neighbouring relations or what a cap on ratings a user allows for do not fit together. It
        names the parts.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from skdpmf import DPItemMeans, PrivacyBudget, privacy_spent
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.preprocessing import ContributionBounder, DPItemSelector
    >>> head, rest = PrivacyBudget(1.0, 1e-5).split([0.1, 0.9])
    >>> model = make_pipeline(ContributionBounder(), DPItemSelector(head), DPItemMeans(rest))
    >>> spent = privacy_spent(model.fit(make_ratings(500, 40, random_state=0)))
    >>> 0.99999 < spent.epsilon <= 1.0, spent.delta
    (True, 1e-05)
    """
    statement = getattr(fitted, "privacy_spent_", None)
    if isinstance(statement, PrivacyStatement):
        return statement
    if isinstance(fitted, Pipeline):
        return _of_steps({name: privacy_spent(one) for name, one in _private_steps(fitted)}, fitted)
    if isinstance(fitted, list | tuple) and fitted:
        return compose_statements({f"fit {i}": privacy_spent(one) for i, one in enumerate(fitted)})
    if hasattr(fitted, "cv_results_") and hasattr(fitted, "n_splits_"):
        return _of_search(fitted, n_items)
    raise PrivacyParameterError(
        f"fitted={_named(fitted)} must be fitted and have a privacy_spent_: a step that is fitted "
        "on private ratings without a statement has no privacy. Fit it, or leave it out; "
        f"skdpmf.preprocessing has private steps.{_SIDE_BY_SIDE}"
    )


def _private_steps(pipeline: Pipeline) -> Iterator[tuple[str, Any]]:
    """Yield names and steps of a pipeline but for those that cost nothing."""
    for name, step in pipeline.steps:
        if step is not None and not isinstance(step, str | ContributionBounder):
            yield name, step


def _of_steps(statements: dict[str, PrivacyStatement], pipeline: Pipeline) -> PrivacyStatement:
    if not statements:
        raise PrivacyParameterError(
            f"fitted={_named(pipeline)} must have a step with a budget: it has released nothing."
        )
    spent = compose_statements(statements)
    bounders = [pair for pair in pipeline.steps if isinstance(pair[1], ContributionBounder)]
    caps = [name for name, step in bounders if step.max_ratings_per_user is not None]
    if caps and spent.unit == "rating":
        raise PrivacyParameterError(
            f"max_ratings_per_user of step {caps[0]!r} must be None for the unit 'rating' of steps "
            f"{list(statements)!r}: a rating added to a full row pushes another one out, so that "
            "their guarantees do not hold for the ratings before the cap. Clip only."
        )
    return replace(spent, notes=(*spent.notes, _STEPS)) if len(statements) > 1 else spent


def _of_search(search: Any, n_items: Any) -> PrivacyStatement:
    candidates, n_splits = search.cv_results_["params"], int(search.n_splits_)
    n_items = getattr(search, "n_features_in_", None) if n_items is None else n_items
    words = f"given for {_named(search)}, which has kept no model: pass the columns of X."
    require_that(n_items is not None, "n_items", n_items, words)
    refitted = int(search.best_index_) if search.refit else -1
    each = {}
    for i, params in enumerate(candidates):
        one = clone(search.estimator).set_params(**clone(params, safe=False))
        each[f"candidate {i}"] = _of_candidate(one, int(n_items), n_splits + (i == refitted))
    spent = compose_statements(each)
    n_fits = len(candidates) * n_splits + (refitted >= 0)
    fits = f"{len(candidates)} candidates x {n_splits} folds{' + 1 refit' * (refitted >= 0)}: "
    fits += f"{n_fits} fits, each charged with its whole budget."
    return replace(spent, notes=(fits, *spent.notes), not_covered=(_CHOICE, *spent.not_covered))


def _of_candidate(estimator: Any, n_items: int, n_fits: int) -> PrivacyStatement:
    """What fits of an estimator spend that are not kept, from its parameters alone."""
    if isinstance(estimator, Pipeline):
        # later steps may have fewer items: see state_fits
        steps = _private_steps(estimator)
        each = {name: _of_candidate(step, n_items, n_fits) for name, step in steps}
        return _of_steps(each, estimator)
    plan = estimator.plan(n_items) if hasattr(estimator, "plan") else None
    if isinstance(plan, PrivacyStatement) and not plan.is_private:
        return plan
    if not isinstance(plan, ReleasePlan):
        raise PrivacyParameterError(
            f"estimator={_named(estimator)} must have a plan of its releases: whatever is fitted "
            f"on private ratings without one has no privacy.{_SIDE_BY_SIDE}"
        )
    return state_fits(plan, n_fits, seeded=getattr(estimator, "random_state", None) is not None)


def _named(value: Any) -> str:
    """Type of a value, without anything of its content."""
    return f"<{type(value).__name__}>"


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
            known = known or next(filter(None, steps), None)  # the first step that knows items
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
