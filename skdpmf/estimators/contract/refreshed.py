"""What a refresh takes: a model that keeps knowledge, a budget of its kind, and rows."""

import math
from typing import Any

from skdpmf.data.labels import Catalogue, RatingMatrix, catalogue_of, labelled_rows
from skdpmf.data.validation import shape_of
from skdpmf.estimators.contract.parameters import require_budget
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.plan import ReleasePlan, pure_total

__all__ = ["check_refreshable", "extended", "in_model_columns", "notes_of_a_year"]


def check_refreshable(model: Any, budget: Any) -> None:
    """Raise ValueError where a fitted model keeps nothing, or not for such a budget."""
    require_budget(budget)
    old = model.budget
    if not (old.is_private and budget.is_private):
        raise ValueError(
            f"budget={budget!r} must be private for refresh, and that of the fit before, {old!r}, "
            "too: without privacy, fit on the rows of everybody."
        )
    if model._knowledge_ is None:
        raise ValueError(
            f"{model!r} must keep what its fit has released for refresh. DPItemMeans, "
            "AdaptiveWeightALS with solver 'pooled' and DPCovarianceRecommender of clicks do: fit "
            "one of them, or fit this one on the rows of everybody."
        )
    kinds = [(one.unit, "delta > 0" if one.delta else "delta = 0") for one in (budget, old)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"budget={budget!r} must have unit {kinds[1][0]!r} and {kinds[1][1]} for refresh, as "
            "the fit before: its sums are bounded in another way. Choose such a budget."
        )


def notes_of_a_year(plan: ReleasePlan, n: int) -> tuple[str, ...]:
    """Return what n such fits cost a person, as refreshes on new people and on everybody."""
    if not plan.is_private:
        return ()
    whole = n * pure_total(plan.releases)
    if plan.gaussian:
        slack = plan.slack | {"n_values": plan.n_values * n}
        slack["largest"] /= math.sqrt(n)
        whole += gaussian_epsilon(plan.mu * math.sqrt(n), plan.delta, **slack)
    return (
        f"{n} refreshes, each person in one: epsilon {plan.epsilon:.3g} for each person, once. The "
        f"noise of sums over all is {math.sqrt(n):.2f} times that of one fit alone.",
        f"{n} fits on everybody: epsilon {whole:.3g} for each person, all together.",
    )


def in_model_columns(X: Any, model: Any) -> tuple[Any, Catalogue | None, int]:
    """Return rows with the model's columns and then new ones; their names; how many are new.

    X: rows over any items if it names them, else over the model's columns; model: fitted. Raises
    ValueError for other columns, and new items where they cannot be.
    """
    n_items, n_columns = model.n_features_in_, shape_of(X)[1]
    own, catalogue = catalogue_of(X), model._catalogue_
    if own is None:
        if n_columns != n_items:
            raise ValueError(
                f"X_new has {n_columns} columns and must have the {n_items} of the model: pass a "
                "RatingMatrix or DataFrame, which names its items, where there are new ones."
            )
        return X, catalogue, 0
    known = Catalogue(range(n_items)) if catalogue is None else catalogue
    names = own.items.tolist()
    new = [at for at, item in enumerate(names) if _is_new(item, known)]
    if len(new) == len(names):
        knows = "no names" if catalogue is None else f"such as {known.items[0]!r}"
        raise ValueError(
            f"X_new names the item {names[0]!r} and others, and must name items of the model, "
            f"which knows {knows}: write ids as in fit, or pass a matrix of its columns."
        )
    grown = _with_new(known, own, new)
    if hasattr(model, "feature_names_in_") and not grown.has_strings:
        raise ValueError(
            f"X_new names the item {names[new[0]]!r} and must name all by strings, as in fit: "
            "write such ids as texts."
        )
    if new and model._features_ is not None:
        raise ValueError(
            f"X_new has the new item {names[new[0]]!r}, whose features the model needs: give it "
            "them first, by model.with_items(features_of_new_items).refresh(X_new)."
        )
    return _reordered(X, own, grown), None if grown.is_plain else grown, len(new)


def _is_new(item: Any, known: Catalogue) -> bool:
    return item not in known.place and item not in known.dropped


def _with_new(known: Catalogue, own: Catalogue, new: list[int]) -> Catalogue:
    """Return the catalogue with those items of another one that are new, by their columns."""
    if not new:
        return known
    titles = own.items.map(str) if own.titles is None else own.titles
    added = [own.items.tolist()[at] for at in new]
    return extended(known, added, [titles[at] for at in new], known.dropped)


def extended(known: Catalogue, new: list[Any], titles: list[str], dropped: Any = ()) -> Catalogue:
    """Return the catalogue with new items at its end, and their titles where it has titles."""
    items, own, genres = known.items.tolist(), known.titles, known.genres
    return Catalogue(
        [*items, *new],
        None if own is None else [*own, *titles],
        dropped,
        None if genres is None else [*genres, *[""] * len(new)],
    )


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
