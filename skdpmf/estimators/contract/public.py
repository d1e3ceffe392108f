"""People who said yes: their rows, or a model of them, in the columns and the units of a fit."""

import os
import re
import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from skdpmf.data.labelled_rows import RatingMatrix, as_index, catalogue_of, labelled_rows, labels_of
from skdpmf.data.parquet_ratings import ParquetRatings
from skdpmf.data.validation import (
    as_rating_matrix,
    clipped,
    middle_and_quarter,
    refuse_infinite,
    refuse_table,
)
from skdpmf.estimators.contract.parameters import require
from skdpmf.exceptions import ModelFileError
from skdpmf.mechanisms.als.pooled import N_LEAD
from skdpmf.mechanisms.item_means.joint_release import FIT_DAMPING, HALF_RELIABLE
from skdpmf.mechanisms.knowledge import Knowledge, PublicModel

PUBLIC_ASSUMPTION = (
    "The ratings of {:,} people are public: these people agreed and are outside of the guarantee, "
    "and whether a person is public does not depend on the ratings."
)


class Public(NamedTuple):
    """Public people of a fit: prepared as the private ones are, or a model of them."""

    rows: Any  # csr_array (n_people, n_items); None: there is a model
    others: np.ndarray | None = None  # bool, of private rows: who is not public; None: all of them
    model: PublicModel | None = None

    @property
    def people(self) -> Any:
        """What a mechanism takes."""
        return self.rows if self.model is None else self.model

    @property
    def framed(self) -> dict[str, Any]:
        """What a frame is given: a model is like the released values that a refresh starts from."""
        m = self.model
        return {"public": self.rows} if m is None else {"known": (*m.known, *m[1:])}

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All that a seeded key depends on."""
        rows = self.rows
        given: Any = self.framed.get("known") or (rows.indptr, rows.indices, rows.data)
        return tuple(given)

    @property
    def n_people(self) -> int:
        """How many they are."""
        return int(self.rows.shape[0] if self.model is None else self.model.known.exposure.max())


def public_of(estimator: Any, X: Any, n_items: int) -> Public | None:
    """Return who the parameter `public` says for a fit; None where they hold no rating.

    Of X, whose form was checked, only names of items and ids of users are read, and no rating: what
    public rows are follows from public values alone. Items that X lacks are dropped.
    """
    given = getattr(estimator, "public", None)
    if given is None:
        return None
    if is_model(given):
        model = exact_model(given, estimator)
        place = _places(model._catalogue_, catalogue_of(X), model.n_features_in_, n_items)
        room = getattr(estimator, "_rank", int)()  # of a plan, for factors
        return Public(None, model=_said_by(model, place, room))
    refuse_table(given, "public")
    names, own = catalogue_of(given), catalogue_of(X)
    R = given.read_rows() if isinstance(given, ParquetRatings) else given
    rule = "a matrix of ratings with a row for each person who agreed, and no list of ids"
    remedy = "pass X.loc[ids] of a DataFrame, or matrix.rows(ids)"
    flat = isinstance(R, list | tuple) and not any(map(np.iterable, R))
    require(not flat and getattr(R, "ndim", 2) != 1, "public", type(given), rule, remedy)
    try:
        refuse_infinite(R)
        R = as_rating_matrix(R)
    except ValueError as error:
        raise ValueError(re.sub(r"\bX\b", "public", str(error))) from None
    if _places(names, own, R.shape[1], n_items) is not None:
        assert names is not None
        named = RatingMatrix(R, None, names.items)
        R = as_rating_matrix(labelled_rows(named, own, n_items, unknown="ignore")[0])
    if not R.nnz:
        return None
    bounds = None if estimator._implicit else estimator._value_range
    rows = estimator._prepared(R if bounds is None else clipped(R, bounds, warns="public"))
    return Public(rows, _others(given, X))


def is_model(given: Any) -> bool:
    """Whether `public` is a model or the path of its file, and no rows."""
    return isinstance(given, str | os.PathLike) or hasattr(given, "get_params")


def exact_model(given: Any, estimator: Any) -> Any:
    """Return the model that `public` is, of no private people, for the rating range of a fit."""
    takes = getattr(estimator, "_takes_models", False) and estimator.budget.is_private
    rule = "rows: a model serves AdaptiveWeightALS and DPItemMeans of ratings, in a private fit"
    require(takes, "public", type(given), rule, "pass the ratings of these people")
    model = getattr(given, "estimator", given)  # of FrozenEstimator
    if isinstance(given, str | os.PathLike):
        from skdpmf.estimators.contract.model_file import load_model

        try:
            model = load_model(given)
        except (OSError, ModelFileError) as error:
            raise ValueError(
                f"public={os.fspath(given)!r} must be the path of a model file, and none can be "
                f"read there ({error}): pass the path that save wrote to, or the ratings of these "
                "people, such as ratings_to_matrix(read_ratings(path))."
            ) from None
    rule = "fitted and of AdaptiveWeightALS, DPItemMeans or CacheSGDFactorizer, of ratings"
    remedy = "pass the path of its file or FrozenEstimator(model), as clone makes a model unfitted"
    kind = type(given)
    require(getattr(model, "_item_model_", None) is not None, "public", kind, rule, remedy)
    remedy = "pass an exact model of public people alone (epsilon=inf), or their rows"
    rule = "a model without privacy: one of private people is no public one, and refresh goes on"
    require(not model.privacy_spent_.is_private, "public", type(model), rule, remedy)
    rule = "a model that says how many people rated its items, as AdaptiveWeightALS, DPItemMeans "
    rule += "and CacheSGDFactorizer of ratings"
    require(getattr(model, "_knowledge_", None) is not None, "public", type(model), rule, remedy)
    rule, own = f"the rating_range {estimator.rating_range!r} of this fit", model.rating_range
    remedy = "fit the public model with this range"
    holds = tuple(own) == tuple(estimator.rating_range)
    require(holds, "rating_range of public", tuple(own), rule, remedy)
    return model


def _places(names: Any, own: Any, n_columns: int, n_items: int) -> Any:
    """Return the column of each item of X among others, -1 for none; None: columns are the same."""
    if names is None or own is None or names.is_plain or own.is_plain:
        if n_columns != n_items:
            raise ValueError(
                f"public has {n_columns} columns and must have the {n_items} of X: pass a "
                "RatingMatrix or DataFrame for both, which are aligned by the names of items."
            )
        return None
    if names.items.has_duplicates or not own.items.isin(names.items).any():
        raise ValueError(
            f"public names items such as {names.items[0]!r} and must name some of X, such as "
            f"{own.items[0]!r}, each once: write ids as in X."
        )
    return names.items.get_indexer(own.items)


def _said_by(model: Any, place: Any, rank: float) -> PublicModel:
    """Return what a model says of the items of a fit, in quarters of the rating range.

    It has as many of its factors, the strongest ones, as the plan has room for.
    """
    items, V = model._item_model_, model.components_.T
    (middle, unit), size = middle_and_quarter(model.rating_range), np.sum(V**2, axis=0)
    alive = (size > 0.0) & (np.argsort(np.argsort(-size)) < rank)
    known, ridge = model._knowledge_, np.zeros((0, 0))
    doubts = np.zeros(len(V)) if items.item_ridge is None else items.item_ridge
    if items.item_ridge is None:
        alive &= False  # nothing says how well its factors are known
    V = V[:, alive]
    lead = items.factors.shape[1] - alive.size
    if V.shape[1]:
        kept = np.append(np.full(lead, True), alive)
        ridge = items.ridge[np.ix_(kept, kept)] / unit**2
        if model.alpha is not None:
            ridge[lead:, lead:] /= model.alpha
        if lead < N_LEAD:  # users have no slopes, and a bias or nothing in units of their own
            level = ridge[0, 0] * (unit / items.factors[0, 0]) ** 2 if lead else FIT_DAMPING
            first = np.diag([level, HALF_RELIABLE, HALF_RELIABLE])
            ridge = block_diag(first, ridge[lead:, lead:])
    prior = np.zeros((len(ridge) + 1, len(ridge)))
    if V.shape[1] and items.prior is not None:
        prior = items.prior[np.append(True, kept)][:, kept]
        prior[1:] *= unit
    parts: Any = [*known[:4], (items.offsets - middle) / unit, doubts / unit**2, V / unit]
    if place is not None:
        parts = [np.where(place < 0, 0.0, part[place].T).T for part in parts]
    counts, exposure, precision, shift, means, doubts, V = parts
    known = Knowledge(counts, exposure, precision, shift, known[4])
    return PublicModel(known, means, V, doubts, ridge, prior)


def _others(given: Any, X: Any) -> Any:
    """Return the rows of X that are of nobody who is public, by ids; None: all of them.

    Rows that are numbered from 0 have no ids, but labels that all stand in X are a choice of its
    rows. Warnings and errors look at ids alone, which are no ratings, and at who has agreed.
    """
    ids, own = (labels_of(each)[0] for each in (given, X))
    if ids is None or own is None:
        return None
    ids, own = as_index(ids).dropna(), as_index(own)
    both = alike = own.isin(ids)
    if _is_numbered(ids) or (_is_numbered(own) and not ids.isin(own).all()):
        if both.any():
            warnings.warn(
                "public and X have rows of the same numbers, and numbers of rows are no ids of "
                "people: whoever is in both counts twice, as public and as private. Give both the "
                "ids of people, as users of a RatingMatrix or by set_index of a DataFrame.",
                stacklevel=2,
            )
        return None
    if ids.inferred_type != own.inferred_type:
        alike = own.map(str).isin(ids.map(str))
    if (alike & ~both).any():
        raise ValueError(
            f"public has ids of people of type {ids.inferred_type}, such as {ids.tolist()[0]!r}, "
            f"which must be of type {own.inferred_type}, as in X, because 17 and '17' are two "
            "people: convert them by astype(str) or astype(int) in one of the two."
        )
    return ~both if both.any() else None


def _is_numbered(ids: Any) -> bool:
    """Whether these are numbers of rows, as pandas gives them."""
    return getattr(ids, "start", None) == 0 and ids.step == 1
