"""Rows of people who said yes: public ratings, in the columns and the units of a fit."""

from typing import Any, NamedTuple

import numpy as np

from skdpmf.data.labelled_rows import RatingMatrix, as_index, catalogue_of, labelled_rows
from skdpmf.data.parquet_ratings import ParquetRatings
from skdpmf.data.validation import as_rating_matrix, refuse_infinite, refuse_table

PUBLIC_ASSUMPTION = (
    "The ratings of {:,} people are public: these people agreed and are outside of the guarantee, "
    "and whether a person is public does not depend on the ratings."
)


class PublicRows(NamedTuple):
    """Public rows, prepared as the private ones are."""

    rows: Any  # csr_array (n_people, n_items)
    others: np.ndarray | None  # bool, of the private rows: who is not public; None: all of them


def public_rows_of(estimator: Any, X: Any, n_items: int) -> PublicRows | None:
    """Return the rows of the parameter `public` for a fit; None where they hold no rating.

    Of X, whose form was checked, only names of items and ids of users are read, and no rating: what
    public rows are follows from public values alone. Items that X lacks are dropped.
    """
    given = getattr(estimator, "public", None)
    if given is None:
        return None
    refuse_table(given, "public")
    names, own, ids, known = catalogue_of(given), catalogue_of(X), _people(given), _people(X)
    R = given.read_rows() if isinstance(given, ParquetRatings) else given
    refuse_infinite(R)
    R = as_rating_matrix(R)
    if names is None or own is None or names.is_plain or own.is_plain:
        if R.shape[1] != n_items:
            raise ValueError(
                f"public has {R.shape[1]} columns and must have the {n_items} of X: pass a "
                "RatingMatrix or DataFrame for both, which are aligned by the names of items."
            )
    else:
        if names.items.has_duplicates or not own.items.isin(names.items).any():
            raise ValueError(
                f"public names items such as {names.items[0]!r} and must name some of X, such as "
                f"{own.items[0]!r}, each once: write ids as in X."
            )
        named = RatingMatrix(R, None, names.items)
        R = as_rating_matrix(labelled_rows(named, own, n_items, unknown="ignore")[0])
    if not R.nnz:
        return None
    bounds = None if estimator._implicit else estimator._value_range
    rows = estimator._prepared(as_rating_matrix(R, rating_range=bounds))
    others = None if ids is None or known is None else ~known.isin(ids)
    return PublicRows(rows, None if others is None or others.all() else others)


def _people(X: Any) -> Any:
    """Return the ids of the rows' users as an index; None where they are numbers of rows."""
    ids = getattr(X, "user_ids", X.users if isinstance(X, RatingMatrix) else None)
    return None if ids is None or getattr(ids, "start", None) == 0 else as_index(ids)
