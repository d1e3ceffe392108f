"""A fitted model that goes on: by a refresh with new rows, or with new items by their features."""

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.data.feature_columns import check_item_features, like_others, values_of
from skdpmf.data.labelled_rows import Catalogue, RatingMatrix, catalogue_of, labelled_rows
from skdpmf.data.validation import refuse_table
from skdpmf.estimators.contract.parameters import require, require_budget
from skdpmf.estimators.contract.public import PUBLIC_ASSUMPTION
from skdpmf.estimators.contract.recommend import ItemModel
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.composition import compose_statements
from skdpmf.privacy.statement import PrivacyStatement
from skdpmf.privacy.text import COHORT_ASSUMPTIONS, lifetime_note


class Start(NamedTuple):
    """What a refresh starts from: released values of earlier fits, and public facts."""

    known: Any  # Knowledge, or what a Gram model knows
    features: Any
    rows: str  # of people who come again: "new" or "whole"
    people: str  # "any" or "new"
    public: tuple[str, ...]  # what is assumed of public people of earlier fits


def is_by_person(budget: PrivacyBudget) -> bool:
    """Return whether a fit charges the persons of its rows."""
    return budget.ledger is not None and budget.ledger.at_most is not None


def check_refreshable(model: Any, budget: Any) -> None:
    """Raise ValueError where a fitted model keeps nothing, or not for such a budget."""
    require_budget(budget)
    old = model.budget
    rule = f"private for refresh, and that of the fit before, {old!r}, too"
    remedy = "without privacy, fit on the rows of everybody"
    require(old.is_private and budget.is_private, "budget", budget, rule, remedy)
    if model._knowledge_ is None:
        raise ValueError(
            f"{model!r} cannot be refreshed, as it keeps nothing that it released. DPItemMeans, "
            "AdaptiveWeightALS with solver 'pooled' and DPCovarianceRecommender of clicks can: fit "
            "one of them, or fit this one on the rows of everybody."
        )
    kinds = [(one.unit, "delta > 0" if one.delta else "delta = 0") for one in (budget, old)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"budget={budget!r} must have unit {kinds[1][0]!r} and {kinds[1][1]} for refresh, as "
            "the fit before, whose sums are bounded in this way: pass such a budget."
        )


FEATURES_ASSUMPTION = (
    "The item features are public: they were chosen without a look at these ratings, and are not "
    "made of ratings, tags, reviews or counts of these people."
)
# Assumptions of a refresh, and its notes
_BY_LEDGER = (
    "This fit started from released values of earlier fits, all of which were charged to the "
    "ledger of this fit: it has counted those people again who are in several."
)
_DISJOINT = {
    "user": "This fit started from released values of earlier fits, and nobody in it was in one of "
    "them: to somebody who was, the costs of both add up.",
    "rating": "This fit started from released values of earlier fits, and no rating in it was in "
    "one of them: to a rating that was, the costs of both add up. Where a person's ratings are "
    "in several fits, each rating is protected, and all of them together are not.",
}
_AGAIN = {
    "new": "The rows of people who were in earlier fits hold only what is new; what earlier fits "
    "had of them stays in the model.",
    "whole": "The rows of people who were in earlier fits are whole; what earlier fits had of "
    "them stays in the model, and so counts twice.",
}
_OF_NEW = (
    "Epsilon is that of the people of this refresh, whom the caller said to be new. For people of "
    "earlier fits it is what the statements of these fits say."
)
_OF_LEDGER = (
    "Epsilon is that of this refresh alone, for each person in it; the ledger adds up what a "
    "person spends in several fits."
)
_ADDED = (
    "Epsilon is that of a person who was in this refresh and in all fits that it started from. "
    "For somebody who was in the refresh alone it is {:.4g}."
)


def words_of(estimator: Any, fit: Any, own: dict[str, Any]) -> dict[str, Any]:
    """Return the words of a fit's statement, given those of its estimator alone."""
    budget, start = estimator.budget, fit.start
    assumptions = own.pop("assumptions", ())
    notes = own.pop("notes", fit.frame.plan.notes)
    if fit.features is not None:
        assumptions = (*assumptions, FEATURES_ASSUMPTION)
    if fit.public is not None:
        assumptions = (*assumptions, PUBLIC_ASSUMPTION.format(fit.public.n_people))
    elif start is not None:
        assumptions = (*assumptions, *start.public)
    by_person = is_by_person(budget)
    if start is not None and by_person:
        assumptions = (*assumptions, _BY_LEDGER)
        notes = (*notes, _OF_LEDGER, _AGAIN[start.rows])
    elif start is not None and start.people == "new":
        assumptions, notes = (*assumptions, _DISJOINT[budget.unit]), (*notes, _OF_NEW)
    elif start is not None:
        notes = (*notes, _AGAIN[start.rows])
    if by_person:
        assumptions = (*assumptions, *COHORT_ASSUMPTIONS)
        notes = (*notes, lifetime_note(budget.ledger.limit, budget.ledger.at_most))
    return {**own, "assumptions": assumptions, "notes": notes}


def check_addable(spent: PrivacyStatement, budget: PrivacyBudget) -> None:
    """Raise ValueError where a statement does not tell what all people have spent so far."""
    holds = not {_BY_LEDGER, *_DISJOINT.values()} & {*spent.assumptions}
    rule = "'new' for a model whose statement leaves out people of earlier fits, as its last "
    rule += "refresh was of new people or had a ledger by person"
    remedy = "pass 'new' if nobody comes again, or a budget with that ledger"
    require(holds, "people", "any", rule, remedy)
    if budget.neighbors != spent.neighbors:
        raise ValueError(
            f"neighbors={budget.neighbors!r} of the budget must be {spent.neighbors!r}, as for the "
            "fit before, or the two do not add up: change it, or pass people='new'."
        )


def add_up(earlier: Any, model: Any) -> None:
    """State what a refresh and all fits before cost people who were in them."""
    own = model.privacy_spent_
    both = compose_statements({"earlier fits": earlier.privacy_spent_, "this refresh": own})
    model._statement = replace(both, notes=(_ADDED.format(own.epsilon), *both.notes))


def in_model_columns(X: Any, model: Any) -> tuple[Any, Catalogue | None, int]:
    """Return rows with the model's columns and then new ones; their names; how many are new.

    X: rows over any items if it names them, else over the model's columns; model: fitted. Raises
    ValueError for other columns, and new items where they cannot be.
    """
    refuse_table(X, "X_new")
    own, catalogue, n_items = catalogue_of(X), model._catalogue_, model.n_features_in_
    if own is None:
        n_columns = np.shape(X)[-1] if np.ndim(X) else 0
        if n_columns != n_items:
            raise ValueError(
                f"X_new has {n_columns} columns and must have the {n_items} of the model: pass a "
                "RatingMatrix or DataFrame, which names its items, where there are new ones."
            )
        return X, catalogue, 0
    known = Catalogue(range(n_items)) if catalogue is None else catalogue
    names = own.items.tolist()
    old = {*known.place, *known.dropped}
    new = [at for at, item in enumerate(names) if item not in old]
    if len(new) == len(names):
        knows = "no names" if catalogue is None else f"names such as {known.items[0]!r}"
        raise ValueError(
            f"X_new names the item {names[0]!r} and others, and must name items of the model, "
            f"which knows {knows}: write ids as in fit, or pass a matrix of its columns."
        )
    grown = known
    if new:
        titles = own.items.map(str) if own.titles is None else own.titles
        added = [names[at] for at in new], [titles[at] for at in new]
        grown = extended(known, *added, known.dropped)
    if hasattr(model, "feature_names_in_") and not grown.has_strings:
        raise ValueError(
            f"X_new names the item {names[new[0]]!r} and must name all items by strings, as in "
            "fit: write such ids as texts."
        )
    if new and model._features_ is not None:
        raise ValueError(
            f"X_new has the new item {names[new[0]]!r}, whose features the model needs: give it "
            "them first, by model.with_items(features_of_new_items).refresh(X_new)."
        )
    return _reordered(X, own, grown), None if grown.is_plain else grown, len(new)


def extended(known: Catalogue, new: list[Any], titles: list[str], dropped: Any = ()) -> Catalogue:
    """Return the catalogue with new items at its end, and their titles where it has titles."""
    items, own, genres = known.items.tolist(), known.titles, known.genres
    more = None if own is None else [*own, *titles]
    labels = None if genres is None else [*genres, *[""] * len(new)]
    return Catalogue([*items, *new], more, dropped, labels)


def _reordered(X: Any, own: Catalogue, grown: Catalogue) -> Any:
    """Return the rows with the columns of the catalogue."""
    if own.items.equals(grown.items) or own.items.has_duplicates:  # fit refuses the latter
        return X
    if isinstance(X, RatingMatrix):
        Y = labelled_rows(X, grown, len(grown.items))[0]
        return RatingMatrix(Y.X, Y.users, Y.items, Y.titles, X.undeclared)
    if hasattr(X, "reindex"):
        return X.reindex(columns=grown.items)
    raise ValueError(
        f"X_new of type {type(X).__name__} must have the model's items as its columns, in their "
        "order: pass a RatingMatrix or DataFrame, whose columns refresh puts in order."
    )


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
            "item_features must be a DataFrame whose index holds the names of the new items, as "
            "the fitted items have names: pass one."
        )
    if known is None or not new:
        return None
    items = [*known.items.tolist(), *new]
    if len(set(items)) != len(items):
        twice = next(name for name in new if items.count(name) > 1)
        raise ValueError(
            f"item_features names the item {twice!r}, which the model knows already or which "
            "occurs twice: leave it out."
        )
    more = list(map(str, new)) if titles is None else list(titles)
    rule = f"{n_new} texts, one for each new item"
    require(len(more) == n_new, "titles", titles, rule, "pass them in the items' order")
    return extended(known, new, more)


def _extended_model(
    model: ItemModel, D: NDArray[np.float64], new: NDArray[np.float64], weights: NDArray[np.float64]
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
        return np.ascontiguousarray(np.concatenate((known, added)), known.dtype)

    ridge = model.item_ridge
    return model._replace(
        offsets=with_others(model.offsets),
        factors=with_others(model.factors),
        encoder=with_others(model.encoder),
        features=None if model.features is None else np.concatenate((D, new)),
        item_ridge=None if ridge is None else np.append(ridge, np.full(len(new), ridge.max())),
    )
